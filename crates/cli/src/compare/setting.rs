//! One strategy of a comparison, as it is written on the command line.

use crate::Failure;
use crate::text::{check_ids, check_sinks, unescape};
use model::Storage;
use model::config::Config;
use model::gguf::Header;
use model::policy::{Policy, Positions};
use model::session::{CacheSettings, Softmax};
use model::tokenizer::Tokenizer;
use std::str::FromStr;

/// A strategy: `dense`, `window:256`, `sinks:4+252` or `recompute:256`, then any of `,stream`, `,softmax1`, `,zero`,
/// `,kv=f32` and `,text=\n\n\n\n`.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// As written.
    pub name: String,
    pub cache: CacheSettings,
    /// Replaces the sinks.
    pub sink_text: Option<String>,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!(
                "`{written}`: {what}; write dense, window:256, sinks:4+252 or recompute:256, then any of ,stream ,softmax1 \
                 ,zero ,kv=int4 ,text=\\n\\n\\n\\n"
            )
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad(&format!("`{text}` is no number of tokens")));
        let mut parts = written.split(',');
        let head = parts.next().unwrap_or_default();
        let policy = match head.split_once(':') {
            None if head == "dense" => Policy::Dense,
            Some(("window", recent)) => Policy::Window { recent: number(recent)? },
            Some(("recompute", recent)) => Policy::Recompute { recent: number(recent)? },
            Some(("sinks", both)) => {
                let (sinks, recent) = both.split_once('+').ok_or_else(|| bad("sinks need two numbers"))?;
                Policy::Sinks { sinks: number(sinks)?, recent: number(recent)? }
            }
            _ => return Err(bad(&format!("there is no strategy `{head}`"))),
        };
        let mut cache = CacheSettings::new(policy);
        let mut sink_text = None;
        while let Some(option) = parts.next() {
            match option.split_once('=') {
                None if option == "stream" => cache.positions = Positions::Stream,
                None if option == "softmax1" => cache.softmax = Softmax::One,
                None if option == "zero" => cache.zero_sinks = true,
                Some(("kv", name)) => {
                    let storage = Storage::named(name).ok_or_else(|| bad(&format!("there is no storage `{name}`")))?;
                    cache = cache.stored_as(storage);
                }
                Some(("text", text)) => {
                    // It is the last one, commas and all.
                    let rest: Vec<&str> = std::iter::once(text).chain(parts.by_ref()).collect();
                    sink_text = Some(unescape(&rest.join(",")).map_err(|error| bad(&error.to_string()))?);
                }
                _ => return Err(bad(&format!("there is no option `{option}`"))),
            }
        }
        policy.check(u32::MAX).map_err(|error| bad(&error.to_string()))?;
        Ok(Self { name: written.to_owned(), cache, sink_text })
    }
}

impl Setting {
    /// Whether it reads everything again, and so runs by itself.
    pub fn recomputes(&self) -> bool {
        matches!(self.cache.policy, Policy::Recompute { .. })
    }

    /// The ids that are read before the text; the settings are checked against the model.
    ///
    /// # Errors
    /// The settings contradict the model or each other.
    pub fn prepare(&self, header: &Header, config: &Config) -> Result<Vec<u32>, Failure> {
        self.cache.check(config)?;
        let ids = match &self.sink_text {
            Some(text) => Tokenizer::from_gguf(header)?.encode_characters(text)?,
            None => Vec::new(),
        };
        check_sinks(&self.cache, &ids)?;
        check_ids(&ids, config)?;
        Ok(ids)
    }

    /// The text position whose token is the first to evict another, when `before` ids were read first.
    pub fn eviction(&self, before: usize) -> Option<usize> {
        self.cache.policy.capacity().map(|capacity| (capacity as usize).saturating_sub(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(written: &str) -> Result<Setting, String> {
        written.parse()
    }

    #[test]
    fn what_can_be_written() {
        let plain = parse("sinks:4+252").unwrap();
        assert_eq!(plain.cache, CacheSettings::new(Policy::Sinks { sinks: 4, recent: 252 }));
        assert_eq!((plain.eviction(0), plain.eviction(4)), (Some(256), Some(252)));
        let all = parse(r"sinks:4+60,stream,softmax1,zero,kv=f32,text=a,\n").unwrap();
        let expected = CacheSettings {
            positions: Positions::Stream,
            softmax: Softmax::One,
            zero_sinks: true,
            ..CacheSettings::new(Policy::Sinks { sinks: 4, recent: 60 })
        };
        let expected = expected.stored_as(Storage::F32);
        assert_eq!((all.cache, all.sink_text.as_deref()), (expected, Some("a,\n")));
        assert_eq!(parse("dense").unwrap().eviction(0), None);
        assert!(parse("recompute:9").unwrap().recomputes());
    }

    #[test]
    fn what_cannot() {
        for written in
            ["", "sink:4+4", "sinks:4", "sinks:4+0", "window:x", "window:0", "dense:3", "dense,fast", "dense,kv=f8"]
        {
            let error = parse(written).unwrap_err();
            assert!(error.contains("dense, window:256"), "{written}: {error}");
        }
    }
}
