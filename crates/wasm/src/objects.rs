//! The objects of `types.d.ts`, in its words.

use crate::failure;
use js_sys::{Array, Float32Array, Reflect};
use model::LayerHead;
use model::compare::{self, Comparison, Lane, Reading, Report};
use model::config::Config;
use model::generate::{Event, Reason, Text};
use model::policy::{CacheBytes, Storage};
use model::sampler::Settings;
use model::session::Session;
use model::weights::{Loader, Weights};
use model::words::LaneWords;
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
    parts: CacheParts,
    tail: u64,
    dense_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct CacheParts {
    sinks: u64,
    codes: u64,
    scales: u64,
    tail: u64,
    slack: u64,
}

impl From<CacheBytes> for CacheParts {
    fn from(CacheBytes { sinks, codes, scales, tail, slack }: CacheBytes) -> Self {
        Self { sinks, codes, scales, tail, slack }
    }
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
            parts: session.lane(0).parts().into(),
            tail: session.lane(0).tail(),
            dense_bytes: dense.bytes(session.stream().fed()),
        }
    }
}

#[derive(Debug, Serialize)]
struct TokenJs<'a> {
    id: u32,
    text: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum StepJs<'a> {
    Prompt {
        done: usize,
        total: usize,
        tokens: Vec<TokenJs<'a>>,
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

fn pair(range: &Option<Range<u64>>) -> Option<[u64; 2]> {
    range.as_ref().map(|range| [range.start, range.end])
}

/// A `Step`.
pub fn step(event: &Event, session: &Session, ms: f64) -> Result<JsValue, JsValue> {
    let cache = CacheState::of(session);
    let (object, arrays) = match event {
        Event::Prompt { done, total, tokens, evicted, evicted_turns, sink_mass, probs } => (
            StepJs::Prompt {
                done: *done,
                total: *total,
                tokens: tokens.iter().map(|(id, text)| TokenJs { id: *id, text }).collect(),
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
    set_arrays(&object, arrays)?;
    Ok(object)
}

/// A `CompareSource`.
#[derive(Debug, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum CompareSource {
    Forced { text: String, from: usize, n: usize },
    Free { prompt: String, sampler: SamplerJs, max_tokens: usize },
}

impl CompareSource {
    /// # Errors
    /// Nothing to read, or a question that the chat template refuses.
    pub fn reading(self, text: &Text) -> Result<Reading, String> {
        match self {
            Self::Forced { text: words, from, n } => {
                let mut tokens = text.tokenizer.encode(&words).map_err(|error| error.to_string())?;
                if from >= tokens.len() {
                    let count = tokens.len();
                    return Err(format!("the text has {count} tokens, and {from} are to be left out: begin earlier"));
                }
                tokens.drain(..from);
                if n > 0 {
                    tokens.truncate(n);
                }
                Ok(Reading::Forced(tokens))
            }
            Self::Free { prompt, sampler, max_tokens } => Ok(Reading::Free {
                prompt: text.question(&prompt).map_err(|error| error.to_string())?,
                settings: sampler.settings(),
                ends: text.tokenizer.eos().to_vec(),
                most: max_tokens,
            }),
        }
    }
}

/// A lane of a comparison.
///
/// # Errors
/// A word that `types.d.ts` does not have, or characters that are no tokens.
pub fn lane(words: &LaneWords, text: &Text) -> Result<Lane, String> {
    let cache = words.settings(Some(text)).map_err(|error| error.to_string())?;
    let before = words.sink_text.as_deref().unwrap_or_default();
    let before = text.tokenizer.encode_characters(before).map_err(|error| error.to_string())?;
    Ok(Lane { cache, before })
}

#[derive(Debug, Serialize)]
pub struct CompareInfo {
    tokens: usize,
    shared: Vec<bool>,
}

impl CompareInfo {
    pub fn of(comparison: &Comparison, reading: &Reading) -> Self {
        Self { tokens: reading.tokens().len(), shared: comparison.shared() }
    }
}

/// An `AttentionHead` of a lane.
#[derive(Debug, Deserialize)]
pub struct LaneHeadJs {
    lane: usize,
    #[serde(flatten)]
    head: AttentionHeadJs,
}

impl From<LaneHeadJs> for (usize, LayerHead) {
    fn from(LaneHeadJs { lane, head }: LaneHeadJs) -> Self {
        (lane, head.into())
    }
}

#[derive(Debug, Serialize)]
struct Best<'a> {
    id: u32,
    text: &'a str,
    p: f32,
}

#[derive(Debug, Serialize)]
struct LaneStepJs<'a> {
    i: u64,
    id: u32,
    text: &'a str,
    nll: Option<f32>,
    best: Option<Best<'a>>,
    ended: bool,
    ms: Option<f64>,
    held: u64,
    capacity: u64,
    sinks: u64,
    tail: u64,
    bytes: CacheParts,
    evicted: Option<[u64; 2]>,
}

/// A `CompareStep`.
pub fn compare_step(step: &compare::Step, ms: f64) -> Result<JsValue, JsValue> {
    #[derive(Serialize)]
    struct CompareStep {
        ms: f64,
        done: bool,
    }
    let lanes = Array::new();
    for report in &step.lanes {
        lanes.push(&report.as_ref().map_or(Ok(JsValue::NULL), lane_step)?);
    }
    let object = plain(&CompareStep { ms, done: step.done })?;
    Reflect::set(&object, &"lanes".into(), &lanes)?;
    Ok(object)
}

fn lane_step(report: &Report) -> Result<JsValue, JsValue> {
    let object = plain(&LaneStepJs {
        i: report.index,
        id: report.token,
        text: &report.text,
        nll: report.nll,
        best: report.best.as_ref().map(|(id, text, p)| Best { id: *id, text, p: *p }),
        ended: report.ended,
        ms: report.ms,
        held: report.held,
        capacity: report.capacity,
        sinks: report.sinks,
        tail: report.tail,
        bytes: report.bytes.into(),
        evicted: pair(&report.evicted),
    })?;
    let arrays = [
        ("sink_mass", Some(&report.sink_mass)),
        ("first_mass", Some(&report.first_mass)),
        ("probs", report.probs.as_ref()),
    ];
    set_arrays(&object, arrays)?;
    Ok(object)
}

/// Sets those arrays that there are.
fn set_arrays<'a>(
    object: &JsValue,
    arrays: impl IntoIterator<Item = (&'static str, Option<&'a Vec<f32>>)>,
) -> Result<(), JsValue> {
    for (name, array) in arrays {
        if let Some(array) = array {
            Reflect::set(object, &name.into(), &Float32Array::from(array.as_slice()))?;
        }
    }
    Ok(())
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
