//! What a cache keeps, in whole numbers: which tokens stay, where each lies, which positions a query gives them, and how
//! many bytes that takes.
//!
//! This crate has never seen a tensor. `model` asks it for a [`Chunk`] of views before every forward and hands the
//! numbers to the kernels, which assume none of the rules below.
//!
//! Words: `sinks` are the first tokens, kept for ever; `recent` are the last ones, the current one included; a `slot` is
//! a place in the cache; `held` counts slots in use; a token's *stream index* counts from 0 since the last reset.

mod bytes;
mod stream;

pub use bytes::{CacheBytes, CacheShape, Packing, PackingError, Storage};
pub use stream::{Chunk, Stream, View};

use std::fmt;

/// Which tokens stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Keeps all.
    Dense,
    /// Keeps the last `recent`. The same as [`Policy::Sinks`] with no sinks.
    Window { recent: u32 },
    /// Keeps the first `sinks` and the last `recent` (StreamingLLM, Xiao et al. 2023).
    Sinks { sinks: u32, recent: u32 },
    /// Keeps nothing: at every token the last `recent` are read again from position 0.
    Recompute { recent: u32 },
}

/// Which position a sink key has as seen from a query. Recent keys have their true distance in either scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Positions {
    /// A key's position is its slot and the query's is `held - 1`: the paper's, and the default.
    #[default]
    Slot,
    /// Every token keeps its stream index, so the sinks move ever further away.
    Stream,
}

/// Why a policy cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// `recent` is 0: there is no room for the token that is being read.
    NoRecent,
    /// More slots than the model was trained for.
    TooLong { capacity: u64, trained_length: u32 },
    /// More tokens are read again than the model was trained for.
    RecomputeTooLong { recent: u32, trained_length: u32 },
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecent => write!(f, "recent is 0, so the cache has no room for the current token: use 1 or more"),
            Self::TooLong { capacity, trained_length } => write!(
                f,
                "the cache would hold {capacity} tokens, but the model was trained on {trained_length}: \
                 make sinks + recent at most {trained_length}"
            ),
            Self::RecomputeTooLong { recent, trained_length } => write!(
                f,
                "recompute would read {recent} tokens at once, but the model was trained on {trained_length}: \
                 make recent at most {trained_length}"
            ),
        }
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    /// The first tokens that never leave.
    pub fn sinks(self) -> u32 {
        match self {
            Self::Sinks { sinks, .. } => sinks,
            Self::Dense | Self::Window { .. } | Self::Recompute { .. } => 0,
        }
    }

    /// The last tokens that are kept; none for `dense`, which keeps all.
    pub fn recent(self) -> Option<u32> {
        match self {
            Self::Dense => None,
            Self::Window { recent } | Self::Sinks { recent, .. } | Self::Recompute { recent } => Some(recent),
        }
    }

    /// `sinks + recent`: the most keys that a query sees, itself included; none for `dense`.
    pub fn capacity(self) -> Option<u64> {
        self.recent().map(|recent| u64::from(self.sinks()) + u64::from(recent))
    }

    /// Checks the policy against the length of text that the model was trained on.
    ///
    /// # Errors
    /// `recent` is 0, or the capacity exceeds `trained_length`.
    pub fn check(self, trained_length: u32) -> Result<(), PolicyError> {
        if self.recent() == Some(0) {
            return Err(PolicyError::NoRecent);
        }
        match (self, self.capacity()) {
            (Self::Recompute { recent }, _) if recent > trained_length => {
                Err(PolicyError::RecomputeTooLong { recent, trained_length })
            }
            (_, Some(capacity)) if capacity > u64::from(trained_length) => {
                Err(PolicyError::TooLong { capacity, trained_length })
            }
            _ => Ok(()),
        }
    }
}

impl Positions {
    /// The position of the query `view` for sink keys, which have their slots as positions.
    pub fn for_sinks(self, view: &View) -> u64 {
        match self {
            Self::Slot => u64::from(view.held) - 1,
            Self::Stream => view.index,
        }
    }
}
