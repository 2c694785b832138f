//! The flags that say how a cache is kept and where the model runs, shared by all commands.

use crate::Failure;
use clap::{Args, ValueEnum};
use model::Storage;
use model::policy::{Packing, Policy, Positions};
use model::session::{CacheSettings, Softmax};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    Dense,
    Window,
    Recompute,
    Sinks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PositionsName {
    Slot,
    Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StorageName {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
    Int2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SoftmaxName {
    Plain,
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    Cpu,
    Gpu,
}

/// Which model, and where it runs.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// A GGUF file (F32, F16, Q8_0, Q4_0 or Q4_1). `cargo xtask demo` puts the default one there.
    #[arg(long, default_value = "models/SmolLM2-135M-Instruct.Q4_1.gguf")]
    pub model: PathBuf,
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceName,
}

/// How the cache is kept.
#[derive(Clone, Debug, Args)]
pub struct CacheArgs {
    #[arg(long, value_enum, default_value = "sinks")]
    pub policy: PolicyName,
    /// First tokens that never leave. A dense cache keeps them from being packed.
    #[arg(long, default_value_t = 4)]
    pub sinks: u32,
    /// Last tokens that are kept, the current one included.
    #[arg(long, default_value_t = 1020)]
    pub recent: u32,
    #[arg(long, value_enum, default_value = "slot")]
    pub positions: PositionsName,
    /// How one cached value is kept.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv: StorageName,
    /// Keys alone, where they differ.
    #[arg(long, value_enum)]
    pub kv_k: Option<StorageName>,
    /// Values alone, where they differ.
    #[arg(long, value_enum)]
    pub kv_v: Option<StorageName>,
    /// Tokens (K) or channels (V) that share a scale, in packed storage: a multiple of 8.
    #[arg(long, default_value_t = 32)]
    pub group: u32,
    /// Last tokens that are not packed yet, in packed storage: a multiple of the group. When there are so many, all are
    /// packed.
    #[arg(long, default_value_t = 32)]
    pub tail: u32,
    /// `one` adds a logit of 0 to the denominator of attention.
    #[arg(long, value_enum, default_value = "plain")]
    pub softmax: SoftmaxName,
    /// Sinks take attention, but their values count as zeros.
    #[arg(long)]
    pub zero_sinks: bool,
}

impl StorageName {
    pub fn storage(self) -> Storage {
        match self {
            Self::F32 => Storage::F32,
            Self::F16 => Storage::F16,
            Self::Bf16 => Storage::BF16,
            Self::Int8 => Storage::INT8,
            Self::Int4 => Storage::INT4,
            Self::Int2 => Storage::INT2,
        }
    }
}

impl CacheArgs {
    /// The settings, checked as far as that goes without a model.
    ///
    /// # Errors
    /// A value that is not there yet, or a cache without room.
    pub fn settings(&self) -> Result<CacheSettings, Failure> {
        let policy = match self.policy {
            PolicyName::Dense => Policy::Dense,
            PolicyName::Window => Policy::Window { recent: self.recent },
            PolicyName::Sinks => Policy::Sinks { sinks: self.sinks, recent: self.recent },
            PolicyName::Recompute => Policy::Recompute { recent: self.recent },
        };
        let keys = self.kv_k.unwrap_or(self.kv).storage();
        let values = self.kv_v.unwrap_or(self.kv).storage();
        let packing = Packing { group: self.group, tail: self.tail, exact: self.sinks };
        packing.check()?;
        let softmax = match self.softmax {
            SoftmaxName::Plain => Softmax::Plain,
            SoftmaxName::One => Softmax::One,
        };
        let positions = match self.positions {
            PositionsName::Slot => Positions::Slot,
            PositionsName::Stream => Positions::Stream,
        };
        policy.check(u32::MAX)?;
        Ok(CacheSettings {
            policy,
            positions,
            keys,
            values,
            packing,
            softmax,
            zero_sinks: self.zero_sinks,
            turns: None,
        })
    }

    /// The settings for the JSON line.
    pub fn json(&self, settings: &CacheSettings) -> Value {
        json!({
            "policy": match self.policy {
                PolicyName::Dense => "dense",
                PolicyName::Window => "window",
                PolicyName::Recompute => "recompute",
                PolicyName::Sinks => "sinks",
            },
            "sinks": settings.policy.sinks(),
            "recent": settings.policy.recent(),
            "positions": match settings.positions {
                Positions::Slot => "slot",
                Positions::Stream => "stream",
            },
            "kv_k": settings.keys.to_string(),
            "kv_v": settings.values.to_string(),
            "group": settings.packing.group,
            "tail": settings.packing.tail,
            "softmax": match settings.softmax {
                Softmax::Plain => "plain",
                Softmax::One => "one",
            },
            "zero_sinks": settings.zero_sinks,
            "turns": settings.turns.is_some(),
        })
    }
}
