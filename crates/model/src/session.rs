//! Streams at work: a model, the caches behind its lanes, and how tokens are fed to both.
//!
//! A lane is one stream with a cache of its own. All lanes run in one forward, so that the weights are read once.

use crate::config::Config;
use crate::device::Place;
use crate::store::Store;
use crate::transformer::{LaneInput, RowReport, Workspace, rope_table};
use crate::weights::Weights;
use burn::tensor::Tensor;
use kernels::cache::{Float, Spot};
use kernels::step::{LayerHead, SOFTMAX_ONE, ZERO_SINKS};
use kernels::{CacheFormat, Storage};
use policy::{CacheBytes, CacheShape, Packing, PackingError, Policy, PolicyError, Positions, Stream};
use std::ops::Range;
use std::rc::Rc;

/// Slots that a dense cache begins with; it doubles when they are full.
pub const DENSE_SLOTS: u64 = 256;
/// Slots at which a dense cache stops.
pub const DENSE_LIMIT: u64 = 32_768;

/// A model's shape and weights.
#[derive(Debug)]
pub struct Model {
    pub config: Config,
    pub weights: Weights,
    pub place: Place,
}

/// The denominator of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Softmax {
    /// The sum over keys, and a learned logit where the weights have one.
    #[default]
    Plain,
    /// One more logit, which is 0, so that a head can attend to nothing (softmax1, "off by one").
    One,
}

/// How turns are found and kept whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// The token that begins a turn.
    pub opening: u32,
    /// Tokens of the system prompt, which stay for ever: there are at least as many sinks.
    pub pinned: u32,
}

/// How a cache is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    pub policy: Policy,
    pub positions: Positions,
    pub keys: Storage,
    pub values: Storage,
    /// How packed keys or values are grouped.
    pub packing: Packing,
    pub softmax: Softmax,
    /// Sinks take attention, but their values count as zeros.
    pub zero_sinks: bool,
    /// Room is made by whole turns.
    pub turns: Option<Turns>,
}

impl CacheSettings {
    /// Slot positions, half precision, plain softmax, room made token by token.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            positions: Positions::Slot,
            keys: Storage::F16,
            values: Storage::F16,
            packing: Packing::default(),
            softmax: Softmax::Plain,
            zero_sinks: false,
            turns: None,
        }
    }

    /// The same with keys and values kept as `storage`.
    pub fn stored_as(self, storage: Storage) -> Self {
        Self { keys: storage, values: storage, ..self }
    }

    /// The cache in memory.
    pub fn format(self) -> CacheFormat {
        CacheFormat::new(self.keys, self.values, self.packing.group as usize, self.packing.tail as usize)
    }

    /// The empty stream behind such a cache.
    pub fn stream(self) -> Stream {
        let stream = if self.turns.is_some() { Stream::by_turns(self.policy) } else { Stream::new(self.policy) };
        if self.format().packs() { stream.packing(self.packing) } else { stream }
    }

    /// With a system prompt pinned, as many sinks as that takes; the window stays as long as it was.
    fn pinned(self) -> Self {
        let policy = match (self.policy, self.turns) {
            (Policy::Window { recent }, Some(Turns { pinned, .. })) => Policy::Sinks { sinks: pinned, recent },
            (Policy::Sinks { sinks, recent }, Some(Turns { pinned, .. })) => {
                Policy::Sinks { sinks: sinks.max(pinned), recent }
            }
            (policy, _) => policy,
        };
        Self { policy, ..self }
    }

    /// Checks the settings against a model, for which its file's header is enough.
    ///
    /// # Errors
    /// The policy does not fit the model, or the settings contradict it or each other.
    pub fn check(self, config: &Config) -> Result<(), SessionError> {
        self.pinned().policy.check(config.trained_length)?;
        if self.format().packs() {
            self.packing.check()?;
            if matches!(self.policy, Policy::Recompute { .. }) {
                return Err(SessionError::RecomputePacked);
            }
        }
        if self.softmax == Softmax::One && config.learned_sinks {
            return Err(SessionError::LearnedSinks);
        }
        match (self.policy, self.turns) {
            (Policy::Recompute { .. }, Some(_)) => Err(SessionError::RecomputeTurns),
            (_, Some(Turns { opening: id, .. })) if id as usize >= config.vocab => {
                Err(SessionError::Token { id, vocab: config.vocab })
            }
            _ => Ok(()),
        }
    }

    fn flags(self) -> u32 {
        let one = if self.softmax == Softmax::One { SOFTMAX_ONE } else { 0 };
        let zero = if self.zero_sinks { ZERO_SINKS } else { 0 };
        one | zero
    }
}

/// Why tokens could not be fed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{0}")]
    Policy(#[from] PolicyError),
    #[error("{0}")]
    Packing(#[from] PackingError),
    #[error(
        "a cache that keeps everything stops at {DENSE_LIMIT} tokens: use sinks, whose memory does not grow, or start anew"
    )]
    DenseFull,
    #[error("token {id} does not exist: the vocabulary has {vocab}")]
    Token { id: u32, vocab: usize },
    #[error(
        "softmax one puts a 0 where this model has learned a logit for each head: use the plain softmax, which has those"
    )]
    LearnedSinks,
    #[error("recompute keeps nothing, so there are no turns to keep whole: use window or sinks")]
    RecomputeTurns,
    #[error("recompute keeps nothing that could be packed: store its keys and values as f32, f16 or bf16")]
    RecomputePacked,
    #[error("recompute reads everything again for each token, so it cannot share a forward: run it alone")]
    RecomputeLanes,
    #[error("a session has one lane or more, and each is fed once at a time: there is no lane {0} to feed")]
    Lane(usize),
    #[error(
        "all logits are kept on the CPU alone, for at most 32 rows of which all are wanted: use the CPU, and feed less"
    )]
    Logits,
    #[error(
        "there is no head {head} in layer {layer}: this model has {layers} layers of {heads} heads, and the first of each is 0"
    )]
    Head { layer: usize, head: usize, layers: usize, heads: usize },
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
    /// Those of the last token, with the logit of an id.
    Next { forced: u32 },
    /// Those of every token, with the logit of the token that followed; `forced` is as long as the feed, or one shorter
    /// at the end of a text.
    All { forced: &'a [u32] },
}

/// What one lane reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneFeed<'a> {
    pub lane: usize,
    pub tokens: &'a [u32],
    pub want: Want<'a>,
}

/// A model at work on some streams.
#[derive(Debug)]
pub struct Session {
    model: Rc<Model>,
    lanes: Vec<Lane>,
    store: Store,
    rope: Tensor<1>,
    /// The layer and head whose probs are reported.
    asked: Option<LayerHead>,
    /// One token of each lane at a time.
    decode: Workspace,
    /// The lanes that the last such step fed, in the order of its rows.
    decoded: Vec<usize>,
    /// Rows of the last forward of all.
    last_rows: usize,
    /// Several.
    chunk: Option<Workspace>,
    chunk_rows: usize,
}

/// One stream.
#[derive(Debug)]
struct Lane {
    settings: CacheSettings,
    stream: Stream,
    /// The last tokens, for a lane that reads them again.
    last: Vec<u32>,
}

/// A look at one stream and its cache.
#[derive(Clone, Copy, Debug)]
pub struct LaneView<'a> {
    session: &'a Session,
    lane: usize,
}

impl<'a> LaneView<'a> {
    /// How the cache is kept, as many sinks as the system prompt has tokens if that is pinned.
    pub fn settings(self) -> CacheSettings {
        self.session.lanes[self.lane].settings
    }

    /// The stream behind the cache.
    pub fn stream(self) -> &'a Stream {
        &self.session.lanes[self.lane].stream
    }

    /// Slots of the cache: sinks and recent, or what a dense cache has allocated so far.
    pub fn slots(self) -> u64 {
        self.session.store.place(self.lane).slots()
    }

    /// Slots in use of the sinks.
    pub fn sinks(self) -> u64 {
        self.stream().fed().min(self.stream().sinks().into())
    }

    /// Slots in use of tokens that are not packed yet; none where nothing is packed.
    pub fn tail(self) -> u64 {
        let stream = self.stream();
        let recent = stream.held() - self.sinks();
        if self.settings().format().packs() { recent.min(stream.fed().saturating_sub(stream.packed())) } else { 0 }
    }

    /// Bytes of the cache by part, in closed form.
    pub fn parts(self) -> CacheBytes {
        self.shape().parts(self.slots())
    }

    /// Bytes of the cache's part of the buffers.
    pub fn bytes(self) -> u64 {
        self.session.store.lane_bytes(self.lane)
    }

    /// The shape of the cache, for bytes in closed form.
    pub fn shape(self) -> CacheShape {
        let Config { layers, heads, .. } = &self.session.model.config;
        let settings = self.settings();
        CacheShape {
            layers: *layers as u32,
            n_kv_heads: heads.n_kv_heads as u32,
            head_dim: heads.head_dim as u32,
            keys: closed_form(settings.keys),
            values: closed_form(settings.values),
            packing: settings.packing,
            sinks: self.stream().sinks(),
        }
    }
}

/// A storage format as `policy` calls it.
fn closed_form(storage: Storage) -> policy::Storage {
    match (storage.bits, storage.float) {
        (Some(bits), _) => policy::Storage::Packed { bits: bits.count() as u32 },
        (None, Float::F32) => policy::Storage::F32,
        (None, Float::F16) => policy::Storage::F16,
        (None, Float::Bf16) => policy::Storage::Bf16,
    }
}

impl Session {
    /// One lane with an empty cache. At most `chunk_rows` tokens go through the model together.
    ///
    /// # Errors
    /// The settings do not fit the model.
    pub fn new(model: Rc<Model>, settings: CacheSettings, chunk_rows: usize) -> Result<Self, SessionError> {
        Self::with_lanes(model, &[settings], chunk_rows)
    }

    /// Lanes with empty caches. At most `chunk_rows` tokens of all lanes together go through the model at a time, but
    /// always one of each.
    ///
    /// # Errors
    /// Some settings do not fit the model or the other lanes.
    pub fn with_lanes(model: Rc<Model>, settings: &[CacheSettings], chunk_rows: usize) -> Result<Self, SessionError> {
        if settings.is_empty() {
            return Err(SessionError::Lane(0));
        }
        if settings.len() > 1 && settings.iter().any(|lane| matches!(lane.policy, Policy::Recompute { .. })) {
            return Err(SessionError::RecomputeLanes);
        }
        let mut lanes = Vec::new();
        for settings in settings {
            settings.check(&model.config)?;
            let settings = settings.pinned();
            lanes.push(Lane { settings, stream: settings.stream(), last: Vec::new() });
        }
        let place = &model.place;
        let shape = |Lane { settings, stream, .. }: &Lane| {
            (
                settings.format(),
                stream.sinks(),
                settings.policy.capacity().unwrap_or(DENSE_SLOTS.max(stream.sinks().into())),
            )
        };
        let store = Store::new(&model.config, lanes.iter().map(shape), &place.device);
        let chunk_rows = chunk_rows.max(lanes.len());
        Ok(Self {
            rope: rope_table(&model.config, store.most_slots() + chunk_rows as u64, &place.device),
            decode: Workspace::new(&model.config, lanes.len(), lanes.len(), store.most_slots(), true, place),
            asked: None,
            decoded: Vec::new(),
            last_rows: 0,
            chunk: None,
            chunk_rows,
            lanes,
            store,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Rc<Model> {
        &self.model
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// A lane.
    ///
    /// # Panics
    /// There is none of that number.
    pub fn lane(&self, lane: usize) -> LaneView<'_> {
        assert!(lane < self.lanes.len(), "lane {lane} of {}", self.lanes.len());
        LaneView { session: self, lane }
    }

    /// How the first lane's cache is kept.
    pub fn settings(&self) -> CacheSettings {
        self.lane(0).settings()
    }

    /// The first lane's stream.
    pub fn stream(&self) -> &Stream {
        self.lane(0).stream()
    }

    /// Slots of the first lane's cache.
    pub fn slots(&self) -> u64 {
        self.lane(0).slots()
    }

    /// The shape of the first lane's cache.
    pub fn cache_shape(&self) -> CacheShape {
        self.lane(0).shape()
    }

    /// Bytes of the buffers of all caches.
    pub fn cache_bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// Number of the buffers of all caches.
    pub fn cache_buffers(&self) -> usize {
        self.store.buffers()
    }

    /// Bytes of the forward's scratch, apart from the cache.
    pub fn workspace_bytes(&self) -> u64 {
        self.decode.bytes() + self.chunk.as_ref().map_or(0, Workspace::bytes)
    }

    /// Whether single tokens are now read by replaying a recording: on a GPU, after a few.
    pub fn replays(&self) -> bool {
        self.decode.replays()
    }

    /// Asks for the probs of a layer and head, in the report of the last row of every feed from now on; of none, for none.
    ///
    /// # Errors
    /// The model has no such layer or head. What was asked before stays.
    pub fn ask(&mut self, asked: Option<LayerHead>) -> Result<(), SessionError> {
        let (layers, heads) = (self.model.config.layers, self.model.config.heads.n_heads);
        if let Some(LayerHead { layer, head }) = asked.filter(|asked| asked.layer >= layers || asked.head >= heads) {
            return Err(SessionError::Head { layer, head, layers, heads });
        }
        self.asked = asked;
        Ok(())
    }

    /// The tokens that one [`Self::feed_one`] takes.
    pub fn chunk<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        &tokens[..self.lanes[0].takes(tokens.len().min(self.chunk_rows))]
    }

    /// Feeds at most one chunk of `tokens` to the first lane alone. See [`Self::feed`].
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub async fn feed_one(&mut self, tokens: &[u32], want: Want<'_>) -> Result<Fed, SessionError> {
        let fed = self.feed(&[LaneFeed { lane: 0, tokens, want }]).await?;
        fed.into_iter().next().ok_or(SessionError::Lane(0))
    }

    /// Feeds all of `tokens` to a lane alone, chunk by chunk; of none is anything wanted.
    ///
    /// # Errors
    /// As [`Self::feed`]; the chunks before are fed then.
    pub async fn read(&mut self, lane: usize, tokens: &[u32]) -> Result<(), SessionError> {
        let mut left = tokens;
        while !left.is_empty() {
            let feed = LaneFeed { lane, tokens: left, want: Want::Nothing };
            left = &left[self.feed(&[feed]).await?.iter().map(|fed| fed.taken).sum()..];
        }
        Ok(())
    }

    /// Feeds at most one chunk to each of some lanes, in one forward, and reports of each, in the same order: how many
    /// tokens were taken, what left the cache, and the rows that were wanted. With [`Want::Nothing`] the last row's report
    /// carries the attention alone. The chunk's rows are shared evenly; a lane that packs takes no more than its tail has
    /// room for, since what follows sees that packed.
    ///
    /// # Errors
    /// A token outside the vocabulary, a lane that is not there or named twice, a dense cache at its limit, a lost device.
    /// Nothing is fed then.
    pub async fn feed(&mut self, feeds: &[LaneFeed<'_>]) -> Result<Vec<Fed>, SessionError> {
        let vocab = self.model.config.vocab;
        let most = (self.chunk_rows / feeds.len().max(1)).max(1);
        let mut taken = vec![0; feeds.len()];
        for (i, feed) in feeds.iter().enumerate() {
            if feed.lane >= self.lanes.len() || feeds[..i].iter().any(|before| before.lane == feed.lane) {
                return Err(SessionError::Lane(feed.lane));
            }
            taken[i] = self.lanes[feed.lane].takes(feed.tokens.len().min(most));
            let forced = match &feed.want {
                Want::All { forced } => &forced[..taken[i].min(forced.len())],
                Want::Next { forced } => std::slice::from_ref(forced),
                _ => &[],
            };
            if let Some(&id) = feed.tokens[..taken[i]].iter().chain(forced).find(|id| **id as usize >= vocab) {
                return Err(SessionError::Token { id, vocab });
            }
        }
        if matches!(self.lanes[0].settings.policy, Policy::Recompute { .. }) {
            let Some(feed) = feeds.first() else { return Ok(Vec::new()) };
            return Ok(vec![
                self.read_again(&feed.tokens[..taken[0]], taken[0] == feed.tokens.len(), feed.want).await?,
            ]);
        }
        self.make_room(feeds, &taken)?;
        let mut inputs = Vec::with_capacity(feeds.len());
        for (feed, &taken) in feeds.iter().zip(&taken).filter(|(_, taken)| **taken > 0) {
            let lane = &mut self.lanes[feed.lane];
            let tokens = &feed.tokens[..taken];
            let opening = lane.settings.turns.map(|turns| turns.opening);
            let chunk = lane.stream.feed_turns(taken as u32, |i| Some(tokens[i]) == opening);
            let whole = taken == feed.tokens.len();
            let (head, forced, penalty) = match &feed.want {
                Want::Last { penalty, penalized } if whole => (taken - 1..taken, (&[][..], 0), (*penalty, *penalized)),
                Want::Next { forced } if whole => {
                    (taken - 1..taken, (std::slice::from_ref(forced), taken - 1), (1.0, &[][..]))
                }
                Want::Nothing | Want::Last { .. } | Want::Next { .. } => (0..0, (&[][..], 0), (1.0, &[][..])),
                Want::All { forced } => (0..taken, (*forced, 0), (1.0, &[][..])),
            };
            inputs.push(lane.input(feed.lane, tokens, chunk, head, forced, penalty));
        }
        let all: usize = taken.iter().sum();
        let mut rows = Vec::new();
        if all > 0 {
            let model = Rc::clone(&self.model);
            let single = inputs.iter().all(|input| input.tokens.len() == 1);
            self.decoded = if single { inputs.iter().map(|input| input.lane).collect() } else { Vec::new() };
            let workspace = if single {
                &mut self.decode
            } else {
                let (lanes, slots) = (self.lanes.len(), self.store.most_slots());
                let new = || Workspace::new(&model.config, lanes, self.chunk_rows, slots, false, &model.place);
                self.chunk.get_or_insert_with(new)
            };
            workspace
                .forward(&model.config, &model.weights, &self.rope, &mut self.store, &inputs, self.asked)
                .map_err(SessionError::Device)?;
            rows = workspace.report(all).await.map_err(SessionError::Device)?;
            self.last_rows = all;
        }
        let mut rows = rows.into_iter();
        let mut inputs = inputs.into_iter();
        let mut fed = Vec::with_capacity(feeds.len());
        for (feed, &taken) in feeds.iter().zip(&taken) {
            let mut rows: Vec<RowReport> = rows.by_ref().take(taken).collect();
            if !matches!(feed.want, Want::All { .. }) {
                rows.drain(..taken.saturating_sub(1));
            }
            let views = if taken > 0 { inputs.next().map(|input| input.chunk.views) } else { None };
            let views = views.unwrap_or_default();
            fed.push(Fed {
                taken,
                evicted: joined(views.iter().filter_map(|view| view.evicted.clone())),
                evicted_turns: joined(views.iter().filter_map(|view| view.evicted_turns.clone())),
                rows,
            });
        }
        Ok(fed)
    }

    /// All logits of each row of the last feed, `[rows, vocab]`, lane by lane in the order that they were fed in. For
    /// measurements, on the CPU: a GPU's are lost when they have been ranked.
    ///
    /// # Errors
    /// The model is on a GPU, or the feed had more than 32 rows or rows of which no logits were wanted.
    pub async fn logits(&self) -> Result<Vec<f32>, SessionError> {
        if self.model.place.grid.is_some() {
            return Err(SessionError::Logits);
        }
        let single = self.decoded.len() == self.last_rows;
        let workspace = self.chunk.as_ref().filter(|_| !single).unwrap_or(&self.decode);
        let logits = workspace.logits(self.model.config.vocab, self.last_rows).await.map_err(SessionError::Device)?;
        logits.ok_or(SessionError::Logits)
    }

    /// What a lane's cache holds in a layer besides the sinks, oldest first: stream index, whether it is packed, and its
    /// keys and values as attention sees them, `[2, n_kv_heads, head_dim]`, keys not rotated.
    ///
    /// # Errors
    /// A lost device.
    pub async fn cached(&self, lane: usize, layer: usize) -> Result<Vec<Cached>, SessionError> {
        let words = self.store.read(lane, layer).await.map_err(SessionError::Device)?;
        let stream = self.lane(lane).stream();
        let (layout, packed) = (self.store.place(lane).layout, stream.packed());
        let recent = stream.held() - stream.fed().min(u64::from(stream.sinks()));
        let cached = |index: u64| {
            let spot = layout.spot(usize::try_from(index).ok()?, usize::try_from(packed).ok()?)?;
            let is_packed = layout.format.packs() && index < packed;
            Some(Cached { index, packed: is_packed, keys_and_values: layout.decode(&words, spot) })
        };
        Ok((stream.fed() - recent..stream.fed()).filter_map(cached).collect())
    }

    /// Overwrites tokens that a lane's cache holds and has not packed, as [`Self::cached`] gave them: for experiments with
    /// other ways to keep them.
    ///
    /// # Errors
    /// A lost device.
    pub async fn overwrite(&mut self, lane: usize, layer: usize, tokens: &[Cached]) -> Result<(), SessionError> {
        let mut words = self.store.read(lane, layer).await.map_err(SessionError::Device)?;
        let (layout, packed) = (self.store.place(lane).layout, self.lane(lane).stream().packed());
        for token in tokens.iter().filter(|token| !token.packed) {
            let spot = usize::try_from(token.index).ok().and_then(|index| layout.spot(index, packed as usize));
            if let Some(Spot::Slot(at)) = spot {
                layout.encode_slot(&token.keys_and_values, &mut words[at..at + layout.slot_words()]);
            }
        }
        self.store.write(lane, layer, words, &self.model.place.device);
        Ok(())
    }

    /// -ln p of one more token for each of some lanes, `(lane, id)`, as the last token that each of them was fed sees it.
    /// For ids that were not known when the lanes were fed, right after a feed of one token a lane.
    ///
    /// # Errors
    /// A token outside the vocabulary, a lane that was not fed then, a lost device.
    pub async fn nll_of(&mut self, asked: &[(usize, u32)]) -> Result<Vec<f32>, SessionError> {
        let vocab = self.model.config.vocab;
        let mut rows = Vec::with_capacity(asked.len());
        for &(lane, id) in asked {
            if id as usize >= vocab {
                return Err(SessionError::Token { id, vocab });
            }
            let row = self.decoded.iter().position(|decoded| *decoded == lane).ok_or(SessionError::Lane(lane))?;
            rows.push((row, id));
        }
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        self.decode.look(&self.model.config, &self.model.weights, &sorted);
        let reports = self.decode.report(self.decoded.len()).await.map_err(SessionError::Device)?;
        Ok(rows.iter().map(|(row, _)| reports[*row].log_sum_exp - reports[*row].forced).collect())
    }

    /// Fills every slot with numbers drawn by `seed` and sets every stream to `position`, as if so many tokens had been
    /// read: for measurements far into a stream, which would take hours to reach.
    ///
    /// # Errors
    /// A dense cache does not reach that far.
    pub fn pretend(&mut self, position: u64, seed: u64) -> Result<(), SessionError> {
        for lane in 0..self.lanes.len() {
            self.grow(lane, position)?;
        }
        self.store.fill(seed);
        let vocab = self.model.config.vocab as u64;
        for lane in &mut self.lanes {
            lane.stream.jump(position);
            if let Policy::Recompute { recent } = lane.settings.policy {
                // Any ids will do, as long as they differ.
                let ids = (0..u64::from(recent).min(position)).map(|i| ((seed + i).wrapping_mul(7919) % vocab) as u32);
                lane.last = ids.collect();
            }
        }
        Ok(())
    }

    /// Reads the last tokens again for each new one, from position 0 and with an empty cache.
    async fn read_again(&mut self, tokens: &[u32], whole: bool, want: Want<'_>) -> Result<Fed, SessionError> {
        let model = Rc::clone(&self.model);
        let lane = &mut self.lanes[0];
        let recent = lane.settings.policy.recent().unwrap_or(1) as usize;
        let mut fed = Fed { taken: tokens.len(), evicted: None, evicted_turns: None, rows: Vec::new() };
        self.decoded.clear();
        for (i, token) in tokens.iter().enumerate() {
            let extra = (lane.last.len() + 1).saturating_sub(recent);
            lane.last.drain(..extra);
            lane.last.push(*token);
            let evicted = lane.stream.feed(1).views.remove(0).evicted;
            fed.evicted = joined(fed.evicted.into_iter().chain(evicted));
            let (wanted, forced, penalty) = match &want {
                Want::All { forced } => (true, &forced[i.min(forced.len())..forced.len().min(i + 1)], (1.0, &[][..])),
                Want::Next { forced } => (whole, std::slice::from_ref(forced), (1.0, &[][..])),
                Want::Last { penalty, penalized } => (whole, &[][..], (*penalty, *penalized)),
                Want::Nothing => (false, &[][..], (1.0, &[][..])),
            };
            if !matches!(want, Want::All { .. }) && i + 1 < tokens.len() {
                continue;
            }
            let mut again = Stream::new(lane.settings.policy);
            let mut left = lane.last.len();
            for piece in lane.last.chunks(self.chunk_rows) {
                left -= piece.len();
                let at = piece.len() - 1;
                let head = if left == 0 && wanted { at..at + 1 } else { 0..0 };
                let chunk = again.feed(piece.len() as u32);
                let input = lane.input(0, piece, chunk, head, (forced, at), penalty);
                let workspace = if piece.len() == 1 {
                    &mut self.decode
                } else {
                    let slots = self.store.most_slots();
                    let new = || Workspace::new(&model.config, 1, self.chunk_rows, slots, false, &model.place);
                    self.chunk.get_or_insert_with(new)
                };
                workspace
                    .forward(&model.config, &model.weights, &self.rope, &mut self.store, &[input], self.asked)
                    .map_err(SessionError::Device)?;
                if left == 0 {
                    fed.rows.extend(workspace.report(piece.len()).await.map_err(SessionError::Device)?.pop());
                }
            }
        }
        Ok(fed)
    }

    /// Dense caches double when they are full.
    fn make_room(&mut self, feeds: &[LaneFeed<'_>], taken: &[usize]) -> Result<(), SessionError> {
        let needed = |lanes: &[Lane], feed: &LaneFeed<'_>, taken: usize| lanes[feed.lane].stream.fed() + taken as u64;
        let dense = |lanes: &[Lane], feed: &LaneFeed<'_>| lanes[feed.lane].settings.policy == Policy::Dense;
        for (feed, &taken) in feeds.iter().zip(taken).filter(|(feed, _)| dense(&self.lanes, feed)) {
            if needed(&self.lanes, feed, taken) > DENSE_LIMIT {
                return Err(SessionError::DenseFull);
            }
        }
        for (feed, &taken) in feeds.iter().zip(taken) {
            self.grow(feed.lane, needed(&self.lanes, feed, taken))?;
        }
        Ok(())
    }

    /// Makes a dense cache large enough for `needed` tokens.
    fn grow(&mut self, lane: usize, needed: u64) -> Result<(), SessionError> {
        if self.lanes[lane].settings.policy != Policy::Dense || needed <= self.store.place(lane).slots() {
            return Ok(());
        }
        if needed > DENSE_LIMIT {
            return Err(SessionError::DenseFull);
        }
        let (config, place) = (&self.model.config, &self.model.place);
        self.store.grow(lane, needed.next_power_of_two(), &place.device);
        let (lanes, slots) = (self.lanes.len(), self.store.most_slots());
        self.rope = rope_table(config, slots + self.chunk_rows as u64, &place.device);
        self.decode = Workspace::new(config, lanes, lanes, slots, true, place);
        self.decoded.clear();
        self.chunk = None;
        Ok(())
    }
}

impl Lane {
    /// How many of `tokens` tokens can be read at once: all until the next are packed.
    fn takes(&self, tokens: usize) -> usize {
        self.stream.until_packed().map_or(tokens, |until| tokens.min(usize::try_from(until).unwrap_or(usize::MAX)))
    }

    /// What `chunk`, which the stream has read, puts into a forward.
    fn input<'a>(
        &self,
        lane: usize,
        tokens: &'a [u32],
        chunk: policy::Chunk,
        head: Range<usize>,
        (forced, forced_from): (&'a [u32], usize),
        (penalty, penalized): (f32, &'a [u32]),
    ) -> LaneInput<'a> {
        LaneInput {
            lane,
            tokens,
            forced,
            forced_from,
            chunk,
            positions: self.settings.positions,
            sinks: self.stream.sinks(),
            packs_to: self.stream.packed(),
            flags: self.settings.flags(),
            penalty,
            penalized,
            head,
        }
    }
}

/// Neighbouring ranges as one.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Option<Range<u64>> {
    ranges.reduce(|all, one| all.start..one.end)
}

/// One token in a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Cached {
    pub index: u64,
    pub packed: bool,
    /// `[2, n_kv_heads, head_dim]`.
    pub keys_and_values: Vec<f32>,
}

/// What a feed did to a lane.
#[derive(Clone, Debug, PartialEq)]
pub struct Fed {
    /// Tokens that went through the model.
    pub taken: usize,
    /// Stream indices that left the cache.
    pub evicted: Option<Range<u64>>,
    /// Numbers of the turns that ended with what left, where turns count.
    pub evicted_turns: Option<Range<u64>>,
    /// The reports of the rows that were wanted; always at least the last row's, if a token was taken.
    pub rows: Vec<RowReport>,
}
