//! The objects of `types.d.ts`, in its words.

use crate::failure;
use js_sys::{Float32Array, Reflect};
use model::config::Config;
use model::generate::{Event, Reason};
use model::policy::{CacheShape, Storage};
use model::sampler::Settings;
use model::session::Session;
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
    pub policy: String,
    pub sinks: u32,
    pub recent: u32,
    pub kv: String,
    pub positions: Option<String>,
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
        let dense = CacheShape { storage: Storage::F16, ..session.cache_shape() };
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
    Prompt { done: usize, total: usize, ms: f64, cache: CacheState, evicted: Option<[u64; 2]> },
    Token { id: u32, text: &'a str, nll: f32, ms: f64, cache: CacheState, evicted: Option<[u64; 2]> },
    End { reason: &'static str, text: &'a str },
}

/// A `Step`.
pub fn step(event: &Event, session: &Session, ms: f64) -> Result<JsValue, JsValue> {
    let pair = |range: &Option<Range<u64>>| range.as_ref().map(|range| [range.start, range.end]);
    let cache = CacheState::of(session);
    let (object, masses) = match event {
        Event::Prompt { done, total, evicted, sink_mass } => (
            StepJs::Prompt { done: *done, total: *total, ms, cache, evicted: pair(evicted) },
            vec![("sink_mass", sink_mass)],
        ),
        Event::Token { id, text, nll, evicted, sink_mass, first_mass } => (
            StepJs::Token { id: *id, text, nll: *nll, ms, cache, evicted: pair(evicted) },
            vec![("sink_mass", sink_mass), ("first_mass", first_mass)],
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
    for (name, mass) in masses {
        Reflect::set(&object, &name.into(), &Float32Array::from(mass.as_slice()))?;
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
