//! One stream: a model, the cache behind it, and how tokens are fed to both.

use crate::config::Config;
use crate::device::Place;
use crate::store::Store;
use crate::transformer::{Input, RowReport, Workspace, rope_table};
use crate::weights::Weights;
use burn::tensor::Tensor;
use kernels::Storage;
use policy::{CacheShape, Policy, PolicyError, Positions, Stream};
use std::ops::Range;
use std::rc::Rc;

/// Slots that a dense cache begins with; it doubles when they are full.
const DENSE_SLOTS: u64 = 256;
/// Slots at which a dense cache stops.
pub const DENSE_LIMIT: u64 = 32_768;

/// A model's shape and weights.
#[derive(Debug)]
pub struct Model {
    pub config: Config,
    pub weights: Weights,
    pub place: Place,
}

/// How a cache is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    pub policy: Policy,
    pub positions: Positions,
    pub storage: Storage,
}

/// Why tokens could not be fed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    #[error(
        "a cache that keeps everything stops at {DENSE_LIMIT} tokens: use sinks, whose memory does not grow, or start anew"
    )]
    DenseFull,
    #[error("token {id} does not exist: the vocabulary has {vocab}")]
    Token { id: u32, vocab: usize },
    #[error("the device does not answer ({0}): reload the model")]
    Device(String),
}

/// Which logits are wanted of a feed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want<'a> {
    /// None: the tokens only go into the cache.
    Nothing,
    /// Those of the last token, for sampling; ids in `penalized` are penalized.
    Last { penalty: f32, penalized: &'a [u32] },
    /// Those of every token, with the logit of the token that followed; `forced` is as long as the feed, or one shorter
    /// at the end of a text.
    All { forced: &'a [u32] },
}

/// A model at work on one stream.
#[derive(Debug)]
pub struct Session {
    model: Rc<Model>,
    settings: CacheSettings,
    stream: Stream,
    store: Store,
    rope: Tensor<1>,
    /// One token at a time.
    decode: Workspace,
    /// Several.
    chunk: Option<Workspace>,
    chunk_rows: usize,
}

impl Session {
    /// An empty cache. At most `chunk_rows` tokens go through the model together.
    ///
    /// # Errors
    /// The policy does not fit the model.
    pub fn new(model: Rc<Model>, settings: CacheSettings, chunk_rows: usize) -> Result<Self, SessionError> {
        settings.policy.check(model.config.trained_length)?;
        let slots = settings.policy.capacity().unwrap_or(DENSE_SLOTS);
        let place = &model.place;
        let store = Store::new(&model.config, settings.storage, slots, &place.device);
        let chunk_rows = chunk_rows.max(1);
        Ok(Self {
            settings,
            stream: Stream::new(settings.policy),
            store,
            rope: rope_table(&model.config, slots + chunk_rows as u64, &place.device),
            decode: Workspace::new(&model.config, 1, slots, place),
            chunk: None,
            chunk_rows,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Rc<Model> {
        &self.model
    }

    /// How the cache is kept.
    pub fn settings(&self) -> CacheSettings {
        self.settings
    }

    /// The stream behind the cache.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of the cache's buffers.
    pub fn cache_bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Number of the cache's buffers.
    pub fn cache_buffers(&self) -> usize {
        self.store.buffers()
    }

    /// Slots of the cache: sinks and recent, or what a dense cache has allocated so far.
    pub fn slots(&self) -> u64 {
        self.store.slots()
    }

    /// Bytes of the forward's scratch, apart from the cache.
    pub fn workspace_bytes(&self) -> u64 {
        self.decode.bytes() + self.chunk.as_ref().map_or(0, Workspace::bytes)
    }

    /// Whether single tokens are now read by replaying a recording: on a GPU, after a few.
    pub fn replays(&self) -> bool {
        self.decode.replays()
    }

    /// The shape of the cache, for bytes in closed form.
    pub fn cache_shape(&self) -> CacheShape {
        let Config { layers, heads, .. } = &self.model.config;
        CacheShape {
            layers: *layers as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            head_dim: heads.head_dim as u32,
            storage: match self.settings.storage {
                Storage::F32 => policy::Storage::F32,
                Storage::F16 => policy::Storage::F16,
            },
        }
    }

    /// The tokens that one [`Self::feed`] takes.
    pub fn chunk<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        &tokens[..tokens.len().min(self.chunk_rows)]
    }

    /// Feeds at most one chunk of `tokens` and reports: how many were taken, the range of stream indices that left, and
    /// the rows that were wanted. With [`Want::Nothing`] the last row's report carries the attention alone.
    ///
    /// # Errors
    /// A token outside the vocabulary, a dense cache at its limit, a lost device. Nothing is fed then.
    pub async fn feed(&mut self, tokens: &[u32], want: Want<'_>) -> Result<Fed, SessionError> {
        let all = tokens.len();
        let tokens = self.chunk(tokens);
        let taken = tokens.len();
        let last = taken == all;
        let vocab = self.model.config.vocab;
        let forced = match want {
            Want::All { forced } => &forced[..taken.min(forced.len())],
            _ => &[],
        };
        if let Some(&id) = tokens.iter().chain(forced).find(|id| **id as usize >= vocab) {
            return Err(SessionError::Token { id, vocab });
        }
        self.make_room(taken as u64)?;
        let chunk = self.stream.feed(taken as u32);
        let (penalty, penalized) = match want {
            Want::Last { penalty, penalized } => (penalty, penalized),
            _ => (1.0, &[][..]),
        };
        let head: Range<usize> = match want {
            Want::Nothing => 0..0,
            Want::Last { .. } if !last => 0..0,
            Want::Last { .. } => taken - 1..taken,
            Want::All { .. } => 0..taken,
        };
        let input = Input {
            tokens,
            forced,
            chunk: &chunk,
            positions: self.settings.positions,
            sinks: self.settings.policy.sinks(),
            recent: (self.store.slots() as u32).saturating_sub(self.settings.policy.sinks()),
            penalty,
            penalized,
        };
        let model = Rc::clone(&self.model);
        let workspace = if taken == 1 {
            &mut self.decode
        } else {
            let slots = self.store.slots();
            self.chunk.get_or_insert_with(|| Workspace::new(&model.config, self.chunk_rows, slots, &model.place))
        };
        let lost = SessionError::Device;
        workspace.forward(&model.config, &model.weights, &self.rope, &mut self.store, &input, head).map_err(lost)?;
        let mut rows = workspace.report(taken).await.map_err(SessionError::Device)?;
        if !matches!(want, Want::All { .. }) {
            rows.drain(..taken - 1);
        }
        let evicted = chunk.views.iter().filter_map(|view| view.evicted.clone()).reduce(|all, one| all.start..one.end);
        Ok(Fed { taken, evicted, rows })
    }

    /// A dense cache doubles when it is full.
    fn make_room(&mut self, tokens: u64) -> Result<(), SessionError> {
        if self.settings.policy != Policy::Dense {
            return Ok(());
        }
        let needed = self.stream.fed() + tokens;
        if needed > DENSE_LIMIT {
            return Err(SessionError::DenseFull);
        }
        if needed > self.store.slots() {
            let slots = needed.next_power_of_two();
            let place = &self.model.place;
            self.store.grow(slots, &place.device);
            self.rope = rope_table(&self.model.config, slots + self.chunk_rows as u64, &place.device);
            self.decode = Workspace::new(&self.model.config, 1, slots, place);
            self.chunk = None;
        }
        Ok(())
    }
}

/// What a feed did.
#[derive(Clone, Debug, PartialEq)]
pub struct Fed {
    /// Tokens that went through the model.
    pub taken: usize,
    /// Stream indices that left the cache.
    pub evicted: Option<Range<u64>>,
    /// The reports of the rows that were wanted; always at least the last row's.
    pub rows: Vec<RowReport>,
}
