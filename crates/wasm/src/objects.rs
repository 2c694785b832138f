//! The objects of `types.d.ts`, in its words.

use crate::failure;
use js_sys::{Float32Array, Reflect};
use model::LayerHead;
use model::config::Config;
use model::generate::{Event, Reason, Text};
use model::policy::{Packing, Policy, Positions, Storage};
use model::sampler::Settings;
use model::session::{CacheSettings, Session, Softmax};
use model::weights::{Loader, Weights};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use wasm_bindgen::JsValue;

/// A plain JavaScript object.
pub fn plain(value: &impl Serialize) -> Result<JsValue, JsValue> {
    value.serialize(&serde_wasm_bindgen::Serializer::json_compatible()).map_err(failure)
}

/// Milliseconds from some moment.
pub fn now() -> f64 {
    let performance = Reflect::get(&js_sys::global(), &"performance".into());
    performance.map_or(0.0, |performance| web_sys::Performance::from(performance).now())
}

#[derive(Debug, Deserialize)]
pub struct CacheSettingsJs {
    policy: String,
    sinks: u32,
    recent: u32,
    kv: String,
    kv_k: Option<String>,
    kv_v: Option<String>,
    group: Option<u32>,
    tail: Option<u32>,
    positions: Option<String>,
    softmax: Option<String>,
    zero_sinks: Option<bool>,
    turns: Option<bool>,
}

impl CacheSettingsJs {
    /// # Errors
    /// A word that `types.d.ts` does not have, or a chat template that does not mark turns where those count.
    pub fn settings(&self, text: &Text) -> Result<CacheSettings, String> {
        let unknown = |what: &str, word: &str, known: &str| format!("there is no {what} `{word}`: use {known}");
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
            let known = "f32, f16, bf16, int8, int4 or int2";
            model::Storage::named(word).ok_or_else(|| unknown("storage", word, known))
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
        let turns = match self.turns {
            Some(true) => Some(text.turns().map_err(|error| error.to_string())?),
            _ => None,
        };
        Ok(CacheSettings { policy, positions, keys, values, packing, softmax, zero_sinks, turns })
    }
}

#[derive(Debug, Deserialize)]
pub struct SamplerJs {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    seed: f64,
}

impl SamplerJs {
    pub fn settings(&self) -> Settings {
        Settings {
            temperature: self.temperature,
            top_k: self.top_k as _,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed as u64,
            ..Settings::default()
        }
    }
}

#[derive(Debug, Deserialize)]
pub struct SendOptions {
    pub sampler: SamplerJs,
    pub max_tokens: usize,
}

/// An `AttentionHead`.
#[derive(Debug, Deserialize)]
pub struct AttentionHeadJs {
    layer: u32,
    head: u32,
}

impl From<AttentionHeadJs> for LayerHead {
    fn from(AttentionHeadJs { layer, head }: AttentionHeadJs) -> Self {
        Self { layer: layer as usize, head: head as usize }
    }
}

#[derive(Debug, Serialize)]
pub struct LoadProgress {
    bytes: u64,
    total: Option<u64>,
    tensors: usize,
    tensors_total: Option<usize>,
}

impl LoadProgress {
    pub fn of(loader: &Loader) -> Self {
        let header = loader.header();
        Self {
            bytes: loader.bytes_read(),
            total: header.map(|header| header.file_bytes),
            tensors: loader.tensors_read(),
            tensors_total: header.map(|header| header.tensors.len()),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ModelInfo {
    name: String,
    layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    trained_length: u32,
    weight_bytes: u64,
}

impl ModelInfo {
    pub fn of(config: &Config, weights: &Weights) -> Self {
        Self {
            name: config.name.clone(),
            layers: config.layers,
            n_heads: config.heads.n_heads,
            n_kv_heads: config.heads.n_kv_heads,
            head_dim: config.heads.head_dim,
            vocab: config.vocab,
            trained_length: config.trained_length,
            weight_bytes: weights.bytes,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct CacheState {
    held: u64,
    capacity: u64,
    sinks: u32,
    stream: u64,
    bytes: u64,
    dense_bytes: u64,
}

impl CacheState {
    pub fn of(session: &Session) -> Self {
        let dense = session.cache_shape().stored_as(Storage::F16);
        Self {
            held: session.stream().held(),
            capacity: session.slots(),
            sinks: session.settings().policy.sinks(),
            stream: session.stream().fed(),
            bytes: session.cache_bytes(),
            dense_bytes: dense.bytes(session.stream().fed()),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum StepJs<'a> {
    Prompt {
        done: usize,
        total: usize,
        ms: f64,
        cache: CacheState,
        evicted: Option<[u64; 2]>,
        evicted_turns: Option<[u64; 2]>,
    },
    Token {
        id: u32,
        slot: u64,
        text: &'a str,
        nll: f32,
        ms: f64,
        cache: CacheState,
        evicted: Option<[u64; 2]>,
        evicted_turns: Option<[u64; 2]>,
    },
    End {
        reason: &'static str,
        text: &'a str,
    },
}

/// A `Step`.
pub fn step(event: &Event, session: &Session, ms: f64) -> Result<JsValue, JsValue> {
    let pair = |range: &Option<Range<u64>>| range.as_ref().map(|range| [range.start, range.end]);
    let cache = CacheState::of(session);
    let (object, arrays) = match event {
        Event::Prompt { done, total, evicted, evicted_turns, sink_mass, probs } => (
            StepJs::Prompt {
                done: *done,
                total: *total,
                ms,
                cache,
                evicted: pair(evicted),
                evicted_turns: pair(evicted_turns),
            },
            vec![("sink_mass", Some(sink_mass)), ("probs", probs.as_ref())],
        ),
        Event::Token { id, slot, text, nll, evicted, evicted_turns, sink_mass, first_mass, probs } => (
            StepJs::Token {
                id: *id,
                slot: *slot,
                text,
                nll: *nll,
                ms,
                cache,
                evicted: pair(evicted),
                evicted_turns: pair(evicted_turns),
            },
            vec![("sink_mass", Some(sink_mass)), ("first_mass", Some(first_mass)), ("probs", probs.as_ref())],
        ),
        Event::End { reason, text } => {
            let reason = match reason {
                Reason::End => "end",
                Reason::Length => "length",
                Reason::Stopped => "stopped",
            };
            (StepJs::End { reason, text }, Vec::new())
        }
    };
    let object = plain(&object)?;
    for (name, array) in arrays {
        if let Some(array) = array {
            Reflect::set(&object, &name.into(), &Float32Array::from(array.as_slice()))?;
        }
    }
    Ok(object)
}

#[derive(Debug, Serialize)]
pub struct Versions {
    sinkstream: &'static str,
    burn: &'static str,
    cubecl: &'static str,
    wgpu: &'static str,
}

impl Default for Versions {
    fn default() -> Self {
        // A test holds the last three to Cargo.lock.
        Self { sinkstream: env!("CARGO_PKG_VERSION"), burn: "0.22.1", cubecl: "0.11.3", wgpu: "30.0.2" }
    }
}
