//! The model's shape, read from a weight file's metadata.

use crate::gguf::{Header, MetadataError};
use kernels::{Heads, packed};

/// Which channels of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// 2i and 2i+1: how GGUF files of Llama models hold the rows of q and k.
    Interleaved,
    /// i and i + head_dim/2: how the kernels want them, and how PyTorch checkpoints hold them.
    HalfSplit,
}

/// A Llama model's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name that the file gives itself.
    pub name: String,
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    pub heads: Heads,
    pub vocab: usize,
    /// The longest text that the model was trained on, in tokens.
    pub trained_length: u32,
    /// RoPE's base: channel pair i of `head_dim/2` turns by `base^(-2i/head_dim)` a position.
    pub rope_base: f64,
    pub rope_layout: RopeLayout,
    /// Epsilon of every RMSNorm.
    pub eps: f32,
    /// Whether a layer has learned logits that take attention without a key ([`SINK_LOGITS`]).
    pub learned_sinks: bool,
}

/// The part of a tensor's name that says that it holds a learned logit for each head, in the denominator of the softmax.
pub const SINK_LOGITS: &str = "attn_sinks";

/// Why a file's metadata do not describe a model that can run here.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    #[error("the file holds a model of architecture `{0}`, and only `llama` runs here: use a Llama or SmolLM file")]
    Architecture(String),
    #[error("`{key}` is {found}, which does not run here: {needs}")]
    Value { key: &'static str, found: String, needs: String },
}

const MAX_LAYERS: u64 = 1024;
const MAX_WIDTH: u64 = 1 << 20;

impl Config {
    /// Reads and checks the shape. The vocabulary is as large as the token table.
    ///
    /// # Errors
    /// A missing or impossible value, another architecture, or a scaled RoPE.
    pub fn from_gguf(header: &Header) -> Result<Self, ConfigError> {
        let metadata = &header.metadata;
        let architecture: &str = metadata.require("general.architecture")?;
        if architecture != "llama" {
            return Err(ConfigError::Architecture(architecture.to_owned()));
        }
        let size = |key: &'static str, most: u64| -> Result<usize, ConfigError> {
            let found: u64 = metadata.require(key)?;
            if found == 0 || found > most {
                return Err(value(key, found, format!("it must be 1 to {most}")));
            }
            Ok(found as usize)
        };
        let layers = size("llama.block_count", MAX_LAYERS)?;
        let d_model = size("llama.embedding_length", MAX_WIDTH)?;
        let d_ff = size("llama.feed_forward_length", MAX_WIDTH)?;
        let n_heads = size("llama.attention.head_count", MAX_WIDTH)?;
        let n_kv_heads: u64 = metadata.get("llama.attention.head_count_kv")?.unwrap_or(n_heads as u64);
        let head_dim: u64 = metadata.get("llama.attention.key_length")?.unwrap_or((d_model / n_heads) as u64);
        let heads = Heads {
            n_heads,
            n_kv_heads: n_kv_heads.min(MAX_WIDTH) as usize,
            head_dim: head_dim.min(MAX_WIDTH) as usize,
        };
        heads.check().map_err(|problem| value("llama.attention.head_count", n_heads, problem))?;
        for (key, width) in [
            ("llama.embedding_length", d_model),
            ("llama.feed_forward_length", d_ff),
            ("llama.attention.head_count", n_heads * heads.head_dim),
        ] {
            if !width.is_multiple_of(packed::BLOCK) {
                return Err(value(key, width, format!("rows of weights must be multiples of {}", packed::BLOCK)));
            }
        }
        let turned: u64 = metadata.get("llama.rope.dimension_count")?.unwrap_or(head_dim);
        if turned != head_dim {
            return Err(value("llama.rope.dimension_count", turned, format!("heads have {head_dim} channels")));
        }
        if let Some(kind @ ("linear" | "yarn" | "longrope")) = metadata.get::<&str>("llama.rope.scaling.type")? {
            return Err(value("llama.rope.scaling.type", kind, "only unscaled positions are supported".to_owned()));
        }
        let eps: f32 = metadata.require("llama.attention.layer_norm_rms_epsilon")?;
        let rope_base: f32 = metadata.get("llama.rope.freq_base")?.unwrap_or(10_000.0);
        for (key, number) in [("llama.attention.layer_norm_rms_epsilon", eps), ("llama.rope.freq_base", rope_base)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(value(key, number, "it must be a positive number".to_owned()));
            }
        }
        let trained: u64 = metadata.require("llama.context_length")?;
        let table = header.tensors.iter().find(|tensor| tensor.name == "token_embd.weight");
        Ok(Self {
            name: metadata.get::<&str>("general.name")?.unwrap_or("unnamed").to_owned(),
            layers,
            d_model,
            d_ff,
            heads,
            vocab: table.and_then(|table| table.dims.get(1)).map_or(0, |rows| *rows as usize),
            trained_length: u32::try_from(trained).unwrap_or(u32::MAX),
            rope_base: f64::from(rope_base),
            rope_layout: RopeLayout::Interleaved,
            eps,
            learned_sinks: header.tensors.iter().any(|tensor| tensor.name.contains(SINK_LOGITS)),
        })
    }

    /// Cosines and sines of one position for the kernels: `[head_dim]`, all cosines first. In f64, since the stream
    /// variant asks for positions in the millions.
    pub fn rotation(&self, position: u64) -> Vec<f32> {
        let half = self.heads.head_dim / 2;
        let angle = |i: usize| position as f64 * self.rope_base.powf(-2.0 * i as f64 / self.heads.head_dim as f64);
        let cosines = (0..half).map(|i| angle(i).cos() as f32);
        cosines.chain((0..half).map(|i| angle(i).sin() as f32)).collect()
    }
}

fn value(key: &'static str, found: impl ToString, needs: String) -> ConfigError {
    ConfigError::Value { key, found: found.to_string(), needs }
}
