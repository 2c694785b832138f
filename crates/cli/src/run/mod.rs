//! A recorded run: `RecordedRun` of `crates/wasm/run.d.ts`, read with distrust.

mod csv;
mod health;
mod recorder;

pub use csv::{Column, csv};
pub use health::health;
pub use recorder::{LaneRecorder, Recorded};

use crate::Failure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use model::tokenizer::Tokenizer;
use model::words::LaneWords;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

pub const FORMAT: &str = "sinkstream-run";
pub const VERSION: u32 = 1;
/// Bytes of the largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// Lanes of the widest run.
const MOST_LANES: usize = 16;
/// Tokens of the longest run.
const MOST_TOKENS: usize = 1 << 24;

/// `[i, value, step]`: see `Ramp` of `run.d.ts`.
pub type Ramp = Vec<[i64; 3]>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub format: String,
    pub version: u32,
    pub title: String,
    pub made: Made,
    pub model: ModelWords,
    pub mode: Mode,
    pub sampler: Option<SamplerWords>,
    pub text: Option<TextWords>,
    pub start: usize,
    pub count: usize,
    pub prompt: usize,
    pub every: usize,
    pub vocab: BTreeMap<u32, TokenText>,
    pub tokens: Option<Vec<u32>>,
    pub lanes: Vec<Lane>,
    pub marks: Vec<Mark>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_ranges: Vec<KeyRanges>,
}

/// How far a layer's key channels range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRanges {
    pub layer: usize,
    pub ranges: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Made {
    pub by: String,
    pub commit: String,
    pub date: String,
    pub backend: String,
    pub adapter: Option<String>,
    pub command: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelWords {
    pub name: String,
    pub file: String,
    pub sha256: String,
    pub layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub trained_length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Forced,
    Free,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerWords {
    pub temperature: f64,
    pub top_k: u32,
    pub top_p: f64,
    pub min_p: f64,
    pub repetition_penalty: f64,
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextWords {
    pub name: String,
    pub sha256: String,
}

/// A token's text, or its bytes where those are no text by themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenText {
    Text(String),
    Bytes { b64: String },
}

impl TokenText {
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes { b64: BASE64.encode(bytes) },
        }
    }

    /// Bytes of the token; none if what should be base64 is not.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.as_bytes().to_vec()),
            Self::Bytes { b64 } => BASE64.decode(b64).ok(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    pub name: String,
    pub settings: LaneWords,
    pub keys: Option<Keys>,
    pub tokens: Option<Vec<u32>>,
    pub ended: bool,
    pub nll: Vec<Option<f64>>,
    pub ms: Option<Sampled>,
    pub held: Ramp,
    pub capacity: Ramp,
    pub tail: Ramp,
    pub oldest: Ramp,
    pub bytes: Vec<(usize, Parts)>,
    pub sink_mass: Option<Sampled>,
    pub first_mass: Option<Sampled>,
    pub heads: Option<SampledHeads>,
    pub best: Vec<(usize, u32, f64)>,
    pub summary: Vec<LossRange>,
}

/// How keys were packed where no cache does it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    ByToken,
    Rotated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    pub every: usize,
    pub values: Vec<Option<f64>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledHeads {
    pub every: usize,
    pub shape: [usize; 2],
    pub u8: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    pub sinks: u64,
    pub codes: u64,
    pub scales: u64,
    pub tail: u64,
    pub slack: u64,
}

impl Parts {
    pub fn total(self) -> u64 {
        let Self { sinks, codes, scales, tail, slack } = self;
        [codes, scales, tail, slack].into_iter().fold(sinks, u64::saturating_add)
    }
}

impl From<model::policy::CacheBytes> for Parts {
    fn from(bytes: model::policy::CacheBytes) -> Self {
        let model::policy::CacheBytes { sinks, codes, scales, tail, slack } = bytes;
        Self { sinks, codes, scales, tail, slack }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossRange {
    pub from: usize,
    pub to: usize,
    pub mean_nll: Option<f64>,
    pub perplexity: Option<f64>,
}

impl LossRange {
    /// Of the losses `from` to `to - 1`, of which some may not be measured.
    pub fn of(losses: &[Option<f64>], from: usize, to: usize) -> Self {
        let part = losses.get(from.min(losses.len())..to.min(losses.len())).unwrap_or_default();
        let measured: Vec<f64> = part.iter().filter_map(|nll| *nll).collect();
        let mean = (!measured.is_empty()).then(|| measured.iter().sum::<f64>() / measured.len() as f64);
        Self { from, to, mean_nll: mean.map(|mean| rounded(mean, 4)), perplexity: mean.map(|m| rounded(m.exp(), 4)) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub i: usize,
    pub lane: Option<usize>,
    pub kind: MarkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    FirstLeft,
    Trained,
}

/// A number with so many decimals.
pub fn rounded(number: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (number * scale).round() / scale
}

impl Lane {
    /// The tokens that it read, of a run whose lanes read `shared` or their own.
    pub fn tokens<'a>(&'a self, shared: Option<&'a [u32]>) -> Option<&'a [u32]> {
        self.tokens.as_deref().or(shared)
    }

    /// The token with which the first left.
    pub fn first_left(&self, number: usize, marks: &[Mark]) -> Option<usize> {
        let own = |mark: &&Mark| mark.kind == MarkKind::FirstLeft && mark.lane == Some(number);
        marks.iter().find(own).map(|mark| mark.i)
    }
}

impl Run {
    /// With the text of every token that occurs.
    pub fn spelled(self, tokenizer: &Tokenizer) -> Self {
        let lanes = self.lanes.iter().flat_map(|lane| {
            let own = lane.tokens.iter().flatten().copied();
            own.chain(lane.best.iter().map(|best| best.1))
        });
        let ids = lanes.chain(self.tokens.iter().flatten().copied());
        let vocab = ids.map(|id| (id, TokenText::of(tokenizer.token_bytes(id)))).collect();
        Self { vocab, ..self }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is larger than 64 MiB, or holds no run that can be trusted: as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let named = |what: &dyn std::fmt::Display| -> Failure { format!("{}: {what}", path.display()).into() };
        let size = std::fs::metadata(path).map_err(|error| named(&error))?.len();
        if size > MOST_BYTES {
            return Err(named(&format!("{size} bytes are more than a recorded run has: 64 MiB at most")));
        }
        let bytes = std::fs::read(path).map_err(|error| named(&error))?;
        let text = std::str::from_utf8(&bytes).map_err(|_| named(&"not UTF-8, so no recorded run"))?;
        Self::parse(text).map_err(|error| named(&error))
    }

    /// A run from its JSON.
    ///
    /// # Errors
    /// It is no JSON, of another format or a higher version, or contradicts itself; each a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let head: Head = serde_json::from_str(text).map_err(|error| {
            if error.is_eof() {
                format!("the file ends too early ({error}): fetch or record it again")
            } else {
                format!("no recorded run ({error})")
            }
        })?;
        if head.format != FORMAT {
            let format: String = head.format.chars().take(40).collect();
            return Err(format!("the format is `{format}`, not `{FORMAT}`: give a recorded run"));
        }
        if head.version != VERSION {
            return Err(format!(
                "the run has version {} of its format, and this program reads version {VERSION}: use a newer program, or \
                 record it again",
                head.version
            ));
        }
        let run: Self = serde_json::from_str(text).map_err(|error| format!("a part of the run is wrong ({error})"))?;
        run.check()?;
        Ok(run)
    }

    /// Lengths, order and ranges.
    fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("the run contradicts itself: {what}"));
        if self.lanes.is_empty() || self.lanes.len() > MOST_LANES {
            return wrong(format!("{} lanes, where 1 to {MOST_LANES} can be", self.lanes.len()));
        }
        if self.count < 1 || self.count > MOST_TOKENS {
            return wrong(format!("{} tokens, where 1 to {MOST_TOKENS} can be", self.count));
        }
        if self.every == 0 {
            return wrong("losses are means of 0".to_owned());
        }
        match (self.mode, &self.tokens) {
            (Mode::Forced, Some(tokens)) if tokens.len() != self.count => {
                return wrong(format!("{} tokens of {}", tokens.len(), self.count));
            }
            (Mode::Free, Some(_)) => return wrong("free lanes that share their tokens".to_owned()),
            _ => {}
        }
        let mut longest = 0;
        for (number, lane) in self.lanes.iter().enumerate() {
            longest = longest.max(self.check_lane(lane).map_err(|what| {
                let name: String = lane.name.chars().take(40).collect();
                format!("the run contradicts itself in lane {number}, `{name}`: {what}")
            })?);
        }
        if longest != self.count {
            return wrong(format!("{} tokens, and the longest lane has {longest}", self.count));
        }
        if self.prompt > self.count {
            return wrong(format!("a prompt of {} of {} tokens", self.prompt, self.count));
        }
        if !self.marks.is_sorted_by_key(|mark| mark.i) {
            return wrong("marks are not in order".to_owned());
        }
        for Mark { i, lane, .. } in &self.marks {
            if *i >= self.count || lane.is_some_and(|lane| lane >= self.lanes.len()) {
                return wrong(format!("a mark at token {i} of a lane that is not there, or behind the end"));
            }
        }
        let channels = self.model.n_kv_heads.saturating_mul(self.model.head_dim);
        for KeyRanges { layer, ranges } in &self.key_ranges {
            if *layer >= self.model.layers || ranges.len() != channels || ranges.iter().any(|range| *range < 0.0) {
                return wrong(format!(
                    "`key_ranges` of layer {layer} are not those of a layer's {channels} key channels"
                ));
            }
        }
        for (id, text) in &self.vocab {
            if text.bytes().is_none() {
                return wrong(format!("the bytes of token {id} are not base64"));
            }
        }
        Ok(())
    }

    /// How many tokens the lane has.
    fn check_lane(&self, lane: &Lane) -> Result<usize, String> {
        lane.settings.settings(None).map_err(|error| error.to_string())?;
        let count = match (self.mode, &lane.tokens) {
            (Mode::Forced, Some(_)) => return Err("it has tokens of its own, and the run is forced".to_owned()),
            (Mode::Free, None) => return Err("it has no tokens, and the run is free".to_owned()),
            (Mode::Forced, None) => self.count,
            (Mode::Free, Some(tokens)) => tokens.len(),
        };
        if count < 1 {
            return Err("no tokens".to_owned());
        }
        if let Some(id) =
            lane.tokens(self.tokens.as_deref()).unwrap_or_default().iter().find(|id| !self.vocab.contains_key(id))
        {
            return Err(format!("there is no text for token {id}"));
        }
        let losses = (count - 1).div_ceil(self.every);
        if lane.nll.len() != losses {
            return Err(format!("{} losses, where {losses} belong", lane.nll.len()));
        }
        for (what, ramp) in
            [("held", &lane.held), ("capacity", &lane.capacity), ("tail", &lane.tail), ("oldest", &lane.oldest)]
        {
            let rises = ramp.is_sorted_by(|a, b| a[0] < b[0]);
            let small = ramp.iter().flatten().all(|number| number.unsigned_abs() < 1 << 40);
            if ramp.first().is_none_or(|first| first[0] != 0) || !rises || !small {
                return Err(format!("`{what}` does not begin at token 0, does not rise, or is far too large"));
            }
        }
        let rises = lane.bytes.is_sorted_by(|a, b| a.0 < b.0);
        if lane.bytes.first().is_none_or(|first| first.0 != 0) || !rises {
            return Err("`bytes` does not begin at token 0, or does not rise".to_owned());
        }
        for (what, sampled, most) in [
            ("ms", &lane.ms, f64::INFINITY),
            ("sink_mass", &lane.sink_mass, 1.01),
            ("first_mass", &lane.first_mass, 1.01),
        ] {
            let Some(Sampled { every, values }) = sampled else { continue };
            if *every == 0 || values.len() > count / every {
                return Err(format!("`{what}` has {} values, one each {every} of {count} tokens", values.len()));
            }
            if values.iter().flatten().any(|value| !(0.0..=most).contains(value)) {
                return Err(format!("`{what}` has a value that it cannot have"));
            }
        }
        if let Some(SampledHeads { every, shape, u8 }) = &lane.heads {
            let row = self.model.layers.saturating_mul(self.model.n_heads).max(1);
            let rows = BASE64.decode(u8).ok().filter(|bytes| bytes.len().is_multiple_of(row)).map(|b| b.len() / row);
            if *shape != [self.model.layers, self.model.n_heads]
                || *every == 0
                || rows.is_none_or(|rows| rows > count / every)
            {
                return Err("`heads` is not base64, or not of this model and these tokens".to_owned());
            }
        }
        if let Some((i, id, p)) =
            lane.best.iter().find(|(i, id, p)| *i >= count || !(0.0..=1.0).contains(p) || !self.vocab.contains_key(id))
        {
            return Err(format!("the likeliest token {id} with {p} after token {i} cannot be"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
