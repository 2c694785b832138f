//! Settings in words, as they cross to the page and stand in files: `LaneSettings` and `CacheSettings` of
//! `crates/wasm/types.d.ts`.

use crate::generate::Text;
use crate::session::{CacheSettings, Softmax};
use kernels::Storage;
use policy::{Packing, Policy, Positions};
use serde::{Deserialize, Serialize};

/// A lane's settings; those of a cache are the same without a text for the sinks. What is left out has its default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneWords {
    pub policy: String,
    pub sinks: u32,
    pub recent: u32,
    pub kv: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_k: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_v: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softmax: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_sinks: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_text: Option<String>,
}

/// A word that is none of those known, or turns that a template does not mark.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    #[error("there is no {what} `{word}`: use {known}")]
    Unknown { what: &'static str, word: String, known: &'static str },
    #[error("{0}")]
    Turns(String),
}

impl LaneWords {
    /// What the words say. `text` is looked at where turns count.
    ///
    /// # Errors
    /// A word that is not known, or a chat template that does not mark turns where those count.
    pub fn settings(&self, text: Option<&Text>) -> Result<CacheSettings, WordsError> {
        let unknown =
            |what, word: &str, known| WordsError::Unknown { what, word: word.chars().take(40).collect(), known };
        let recent = self.recent;
        let policy = match self.policy.as_str() {
            "dense" => Policy::Dense,
            "window" => Policy::Window { recent },
            "sinks" => Policy::Sinks { sinks: self.sinks, recent },
            "recompute" => Policy::Recompute { recent },
            other => return Err(unknown("policy", other, "dense, window, sinks or recompute")),
        };
        let positions = match self.positions.as_deref().unwrap_or("slot") {
            "slot" => Positions::Slot,
            "stream" => Positions::Stream,
            other => return Err(unknown("positions", other, "slot or stream")),
        };
        let storage = |word: &str| {
            Storage::named(word).ok_or_else(|| unknown("storage", word, "f32, f16, bf16, int8, int4 or int2"))
        };
        let keys = storage(self.kv_k.as_ref().unwrap_or(&self.kv))?;
        let values = storage(self.kv_v.as_ref().unwrap_or(&self.kv))?;
        let Packing { group, tail, .. } = Packing::default();
        let packing =
            Packing { group: self.group.unwrap_or(group), tail: self.tail.unwrap_or(tail), exact: self.sinks };
        let softmax = match self.softmax.as_deref().unwrap_or("plain") {
            "plain" => Softmax::Plain,
            "one" => Softmax::One,
            other => return Err(unknown("softmax", other, "plain or one")),
        };
        let zero_sinks = self.zero_sinks.unwrap_or(false);
        let turns = match (self.turns, text) {
            (Some(true), Some(text)) => Some(text.turns().map_err(|error| WordsError::Turns(error.to_string()))?),
            _ => None,
        };
        Ok(CacheSettings { policy, positions, keys, values, packing, softmax, zero_sinks, turns })
    }

    /// The words for some settings; defaults are left out.
    pub fn of(settings: &CacheSettings, sink_text: Option<&str>) -> Self {
        let Packing { group, tail, .. } = Packing::default();
        let (policy, sinks, recent) = match settings.policy {
            Policy::Dense => ("dense", 0, 0),
            Policy::Window { recent } => ("window", 0, recent),
            Policy::Sinks { sinks, recent } => ("sinks", sinks, recent),
            Policy::Recompute { recent } => ("recompute", 0, recent),
        };
        // A dense cache that packs keeps its first tokens exact.
        let sinks = match settings.policy {
            Policy::Dense if settings.format().packs() => settings.packing.exact,
            _ => sinks,
        };
        let same = settings.keys == settings.values;
        let apart = |storage: Storage| (!same).then(|| storage.to_string());
        Self {
            policy: policy.to_owned(),
            sinks,
            recent,
            kv: settings.keys.to_string(),
            kv_k: apart(settings.keys),
            kv_v: apart(settings.values),
            group: Some(settings.packing.group).filter(|other| *other != group),
            tail: Some(settings.packing.tail).filter(|other| *other != tail),
            positions: (settings.positions == Positions::Stream).then(|| "stream".to_owned()),
            softmax: (settings.softmax == Softmax::One).then(|| "one".to_owned()),
            zero_sinks: settings.zero_sinks.then_some(true),
            turns: settings.turns.map(|_| true),
            sink_text: sink_text.map(str::to_owned),
        }
    }

    /// The lane's name in tables: see `RecordedLane` of `crates/wasm/run.d.ts`.
    pub fn name(&self) -> String {
        let mut name = match self.policy.as_str() {
            "sinks" => format!("sinks {}+{}", self.sinks, self.recent),
            "window" | "recompute" => format!("{} {}", self.policy, self.recent),
            other => other.to_owned(),
        };
        let mut add = |word: String| {
            name.push(' ');
            name.push_str(&word);
        };
        let (keys, values) = (self.kv_k.as_ref().unwrap_or(&self.kv), self.kv_v.as_ref().unwrap_or(&self.kv));
        if keys != values {
            add(format!("K {keys} V {values}"));
        } else if keys != "f16" {
            add(keys.clone());
        }
        for (word, number) in [("group", self.group), ("tail", self.tail)] {
            if let Some(number) = number.filter(|number| *number != 32) {
                add(format!("{word} {number}"));
            }
        }
        if self.positions.as_deref() == Some("stream") {
            add("stream".to_owned());
        }
        if self.softmax.as_deref() == Some("one") {
            add("softmax1".to_owned());
        }
        if self.zero_sinks == Some(true) {
            add("zero sinks".to_owned());
        }
        if let Some(text) = &self.sink_text {
            // Escaped as in JSON: a text never fails to be written.
            add(format!("text {}", serde_json::to_string(text).unwrap_or_default()));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(json: &str) -> LaneWords {
        serde_json::from_str(json).expect("words")
    }

    #[test]
    fn names_say_what_differs() {
        for (json, name) in [
            (r#"{"policy":"dense","sinks":0,"recent":0,"kv":"f16"}"#, "dense"),
            (r#"{"policy":"window","sinks":0,"recent":256,"kv":"f16","softmax":"one"}"#, "window 256 softmax1"),
            (r#"{"policy":"sinks","sinks":4,"recent":252,"kv":"int4","tail":64}"#, "sinks 4+252 int4 tail 64"),
            (
                r#"{"policy":"sinks","sinks":4,"recent":60,"kv":"f16","kv_k":"int2","positions":"stream","zero_sinks":true}"#,
                "sinks 4+60 K int2 V f16 stream zero sinks",
            ),
            (
                r#"{"policy":"sinks","sinks":2,"recent":9,"kv":"f32","sink_text":"\n\n"}"#,
                r#"sinks 2+9 f32 text "\n\n""#,
            ),
            (r#"{"policy":"recompute","sinks":0,"recent":128,"kv":"f16","group":32}"#, "recompute 128"),
        ] {
            assert_eq!(words(json).name(), name);
        }
    }

    #[test]
    fn words_and_settings_are_one() {
        for json in [
            r#"{"policy":"dense","sinks":0,"recent":0,"kv":"f16"}"#,
            r#"{"policy":"window","sinks":0,"recent":256,"kv":"f32","softmax":"one"}"#,
            r#"{"policy":"sinks","sinks":4,"recent":252,"kv":"int4","tail":64,"sink_text":"a"}"#,
            r#"{"policy":"sinks","sinks":4,"recent":60,"kv":"f16","kv_k":"f16","kv_v":"int8","positions":"stream"}"#,
        ] {
            let words = words(json);
            let settings = words.settings(None).expect("settings");
            assert_eq!(LaneWords::of(&settings, words.sink_text.as_deref()), words);
            assert_eq!(serde_json::to_string(&words).expect("JSON"), json);
        }
    }

    #[test]
    fn unknown_words_are_named() {
        for (json, word) in [
            (r#"{"policy":"densest","sinks":0,"recent":0,"kv":"f16"}"#, "densest"),
            (r#"{"policy":"dense","sinks":0,"recent":0,"kv":"f8"}"#, "f8"),
            (r#"{"policy":"dense","sinks":0,"recent":0,"kv":"f16","softmax":"two"}"#, "two"),
            (r#"{"policy":"dense","sinks":0,"recent":0,"kv":"f16","positions":"slots"}"#, "slots"),
        ] {
            let error = words(json).settings(None).expect_err(word).to_string();
            assert!(error.contains(&format!("`{word}`")) && error.contains(": use "), "{error}");
        }
    }
}
