//! Attention over sinks, groups, ring and the chunk itself, with RoPE applied on read. Packed keys and values are unpacked in
//! registers.
//!
//! A single row reads each key and value once, channels in lanes, for all query heads that share it; its keys are split
//! among the threads, and the partial results merged. A chunk prepares all keys, eight in the lanes of a tile, and all
//! values once; then threads share its rows, and the rows of a part share each tile while it is near.

use super::Heads;
use super::simd::{self, Kernel, Simd, dispatch, unrolled};
use super::threads::{self, Disjoint, share};
use crate::cache::{Bits, CacheFormat, CacheLayout, Float, Spot, Storage, scale_and_zero};
use crate::step::{FIRST_KEYS, LaneStep, ReportLayout, SOFTMAX_ONE, StepView, ZERO_SINKS};
use std::cell::RefCell;
use std::ops::Range;

/// What an attention is over.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The layer's heads.
    pub heads: Heads,
    /// How the arena keeps keys and values.
    pub format: CacheFormat,
    /// `[positions, head_dim]`: for each position cosines, then sines, `head_dim / 2` of each.
    /// Channel `i` turns with channel `i + head_dim / 2`.
    pub rope: &'a [f32],
    /// The step.
    pub step: StepView<'a>,
    /// The arena whose lanes attend.
    pub store: u32,
    /// `[n_heads]`: one more logit of the denominator, [`crate::NO_SINK_LOGIT`] where there is none. A lane with
    /// [`SOFTMAX_ONE`] has 0 in its place.
    pub sink_logits: &'a [f32],
    /// The layer, for the report.
    pub layer: usize,
    /// The report's layout.
    pub report: ReportLayout,
    /// Room for the probs of a lane.
    pub slots: usize,
}

/// What an attention writes.
#[derive(Debug)]
pub struct Attended<'a> {
    /// `[rows, q_cols]`, of all lanes.
    pub out: &'a mut [f32],
    /// `[rows, stride]`, of all lanes: the two masses of each row and head of this layer.
    pub report: &'a mut [f32],
    /// `[lanes, slots]`: if the step asks for probs of this layer, those of each lane's last row, sinks first, then recent
    /// keys, oldest first.
    pub probs: &'a mut [f32],
}

/// Keys of a block.
const BLOCK: usize = 8;
/// Fewer keys than this are not split.
const SPLIT_FROM: usize = 96;
/// From this many blocks on a thread has two parts, so that one that is held up does not hold up all.
const HALVE_FROM: usize = 64;
/// The most rows of a chunk that one part does.
const PART_ROWS: usize = 8;
/// Keys whose values are added at once: as many as stay near.
const NEAR_KEYS: usize = 32;

/// Attention of the rows of an arena's lanes. Keys older than a lane's first row come from the arena as it was before the
/// chunk; the chunk's own are rounded to storage precision first.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: as [`CacheLayout`] says, of each lane, of this layer
///
/// # Panics
/// If a slice is shorter than the step needs, a key's position is outside `rope`, or [`Heads::check`] would refuse.
pub fn attend(a: &Attend<'_>, qkv: &[f32], arena: &[u32], to: Attended<'_>) {
    assert!(a.heads.head_dim.is_multiple_of(16) && a.heads.n_heads.is_multiple_of(a.heads.n_kv_heads), "the heads");
    let mut scratch = SCRATCH.take();
    let (out, report, probs) = (Disjoint::new(to.out), Disjoint::new(to.report), Disjoint::new(to.probs));
    let asked = a.step.asked().filter(|asked| asked.layer == a.layer).map(|asked| asked.head);
    for (number, lane) in a.step.lanes_of(a.store) {
        let layout = a.format.layout(a.heads, lane.sinks as usize, lane.recent as usize);
        scratch.round_chunk(&layout, &lane, qkv);
        let keys = Keys::new(a, layout, &lane, &arena[lane.at as usize..], &scratch.fresh);
        let call = Call { a, number, lane, qkv, keys: &keys, asked, out: &out, report: &report, probs: &probs };
        if lane.rows == 1 {
            call.one_row(&mut scratch.partials);
        } else {
            call.chunk(&mut scratch.tiles, &mut scratch.values);
        }
    }
    SCRATCH.set(scratch);
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static SCORES: RefCell<Vec<f32>> = RefCell::default();
    static PARAMETERS: RefCell<Vec<f32>> = RefCell::default();
}

/// Memory that lasts from call to call.
#[derive(Default)]
struct Scratch {
    /// The chunk's own keys and values, as slots.
    fresh: Vec<u32>,
    /// Rotated keys: `[kv_heads, blocks, head_dim]` of eight.
    tiles: Vec<[f32; BLOCK]>,
    /// Values: `[kv_heads, keys, head_dim]`.
    values: Vec<f32>,
    partials: Vec<f32>,
}

impl Scratch {
    fn round_chunk(&mut self, layout: &CacheLayout, lane: &LaneStep, qkv: &[f32]) {
        let (heads, slot_words) = (layout.heads, layout.slot_words());
        let rows = lane.rows as usize;
        self.fresh.resize(rows * slot_words, 0);
        let fresh = Disjoint::new(&mut self.fresh);
        threads::run(rows, |row| {
            let at = (lane.row0 as usize + row) * heads.qkv_cols() + heads.q_cols();
            // SAFETY: parts have different rows.
            let words = unsafe { fresh.range(row * slot_words..(row + 1) * slot_words) };
            layout.encode_slot(&qkv[at..at + 2 * heads.kv_cols()], words);
        });
    }
}

/// All keys that a chunk sees: sinks, then recent ones, oldest first.
struct Keys<'a> {
    lane: LaneStep,
    layout: CacheLayout,
    arena: &'a [u32],
    /// Slots of the chunk's own.
    fresh: &'a [u32],
    slot_words: usize,
    sinks: usize,
    len: usize,
    /// The end of those that are packed; the first number of a recent one where none is.
    packed: usize,
    /// Stream index of the first recent one.
    oldest: u32,
    /// Place in the ring of the first recent one that is not packed.
    place: usize,
    /// The ring's first word, and its slots.
    ring_at: usize,
    ring: usize,
    /// Sinks and recent keys never share a block, since queries are rotated differently for the two. Those of a single
    /// row are all packed, and of one group, or none is.
    blocks: Vec<KeyBlock>,
}

#[derive(Clone, Copy)]
struct KeyBlock {
    first: usize,
    len: usize,
    /// Position of the first key; those of the others follow.
    position: usize,
}

impl<'a> Keys<'a> {
    fn new(a: &Attend<'_>, layout: CacheLayout, lane: &LaneStep, arena: &'a [u32], fresh: &'a [u32]) -> Self {
        let rows = (lane.row0..lane.row0 + lane.rows).map(|row| a.step.row(row as usize));
        let sinks = rows.clone().map(|row| row.sinks_held).max().unwrap_or(0).min(lane.sinks) as usize;
        let end = lane.start + lane.rows;
        let oldest = rows.filter(|row| row.index >= lane.sinks).map(|row| row.first.max(lane.sinks)).min();
        let oldest = oldest.unwrap_or(end);
        let len = sinks + (end - oldest) as usize;
        let unpacked = oldest.max(if a.format.packs() { lane.packed } else { 0 });
        let mut keys = Keys {
            lane: *lane,
            layout,
            arena,
            fresh,
            slot_words: layout.slot_words(),
            sinks,
            len,
            packed: (sinks + (unpacked - oldest) as usize).min(len),
            oldest,
            place: unpacked.saturating_sub(lane.sinks).checked_rem(layout.ring() as u32).unwrap_or(0) as usize,
            ring_at: layout.ring_at(),
            ring: layout.ring(),
            blocks: Vec::with_capacity(len / BLOCK + 4),
        };
        let angle = oldest.saturating_sub(lane.base) as usize;
        let mut first = 0;
        while first < len {
            let run_end = match first < sinks {
                true => sinks,
                false if lane.rows == 1 => keys.run_end(first),
                false => len,
            };
            let position = if first < sinks { first } else { angle + first - sinks };
            let block = KeyBlock { first, len: BLOCK.min(run_end - first), position };
            keys.blocks.push(block);
            first += block.len;
        }
        keys
    }

    /// The end of the keys from `key` on that lie alike: in slots, or in one group.
    fn run_end(&self, key: usize) -> usize {
        if !self.is_packed(key) {
            let sink = key < self.sinks && self.packed > self.sinks;
            return if sink { self.sinks } else { self.len };
        }
        let index = self.oldest as usize + key - self.sinks - self.lane.sinks as usize;
        self.packed.min(key + self.layout.format.group - index % self.layout.format.group)
    }

    fn is_packed(&self, key: usize) -> bool {
        (self.sinks..self.packed).contains(&key)
    }

    /// The group of a packed key, and the key's number in it.
    fn group(&self, key: usize) -> (&'a [u32], usize) {
        let index = self.oldest as usize + key - self.sinks;
        match self.layout.spot(index, usize::MAX) {
            Some(Spot::Group { at, token }) => (&self.arena[at..at + self.layout.group_words()], token),
            _ => unreachable!("only recent keys are packed"),
        }
    }

    /// The words of a block's keys and values; the last key again where there are fewer.
    #[inline(always)]
    fn slots(&self, block: KeyBlock) -> [&'a [u32]; BLOCK] {
        std::array::from_fn(|lane| self.slot(block.first + lane.min(block.len - 1)))
    }

    /// The slots of the arena that hold something, which lie one after another; none of a format that packs.
    fn slots_in_use(&self) -> &'a [u32] {
        let slots = if self.layout.format.packs() { 0 } else { self.sinks + self.ring.min(self.len - self.sinks) };
        &self.arena[..slots * self.slot_words]
    }

    fn sink_blocks(&self) -> usize {
        self.sinks.div_ceil(BLOCK)
    }

    /// The first key whose value counts.
    fn first_value(&self) -> usize {
        if self.lane.flags & ZERO_SINKS == 0 { 0 } else { self.sinks }
    }

    /// The words of a key that is not packed, and its value.
    #[inline(always)]
    fn slot(&self, key: usize) -> &'a [u32] {
        let index = if key < self.sinks { key } else { self.oldest as usize + key - self.sinks };
        let (from, slot) = match index.checked_sub(self.lane.start as usize) {
            Some(row) => (self.fresh, row),
            None if key < self.sinks => (self.arena, key),
            None => {
                // The ring holds no key twice, so it is passed once.
                let place = self.place + key - self.packed;
                let slot = if place < self.ring { place } else { place - self.ring };
                return &self.arena[self.ring_at + slot * self.slot_words..][..self.slot_words];
            }
        };
        &from[slot * self.slot_words..(slot + 1) * self.slot_words]
    }
}

/// The keys that a row sees: the first sinks, and a range of the recent ones, counted from the first of those.
#[derive(Clone)]
struct View {
    sinks: usize,
    recent: Range<usize>,
}

#[derive(Clone, Copy)]
struct Call<'a> {
    a: &'a Attend<'a>,
    /// The lane's.
    number: usize,
    lane: LaneStep,
    qkv: &'a [f32],
    keys: &'a Keys<'a>,
    /// The head whose probs are asked for.
    asked: Option<usize>,
    out: &'a Disjoint<'a, f32>,
    report: &'a Disjoint<'a, f32>,
    probs: &'a Disjoint<'a, f32>,
}

impl Call<'_> {
    fn view(&self, row: usize) -> View {
        let row = self.a.step.row(row);
        let keys = self.keys;
        let recent = if row.index < self.lane.sinks {
            0..0
        } else {
            let first = row.first.max(self.lane.sinks);
            (first - keys.oldest) as usize..(row.index + 1 - keys.oldest) as usize
        };
        View { sinks: (row.sinks_held as usize).min(keys.sinks), recent }
    }

    /// One row: threads share its keys.
    fn one_row(&self, partials: &mut Vec<f32>) {
        let heads = self.a.heads;
        let blocks = self.keys.blocks.len();
        let parts = match threads::threads() {
            _ if blocks * BLOCK < SPLIT_FROM => 1,
            threads if blocks < HALVE_FROM * threads => threads.min(blocks),
            threads => 2 * threads,
        };
        // A head's values, then greatest score, sum of weights, weights of sinks and of the first keys.
        let stride = heads.head_dim + 4;
        partials.resize(parts * heads.n_heads * stride, 0.0);
        let shared = Disjoint::new(partials);
        threads::run(parts, |part| {
            let size = heads.n_heads * stride;
            // SAFETY: each part has its own range.
            let partials = unsafe { shared.range(part * size..(part + 1) * size) };
            dispatch(OneRow { call: self, blocks: share(blocks, part, parts), partials });
        });
        let mut merged = vec![0.0; heads.head_dim];
        for head in 0..heads.n_heads {
            let partial = |part: usize| &partials[(part * heads.n_heads + head) * stride..][..stride];
            let greatest = (0..parts).map(|part| partial(part)[heads.head_dim]).fold(f32::NEG_INFINITY, f32::max);
            merged.fill(0.0);
            let mut sums = [0.0; 3];
            for part in 0..parts {
                let (values, rest) = partial(part).split_at(heads.head_dim);
                let factor = (rest[0] - greatest).exp();
                merged.iter_mut().zip(values).for_each(|(out, value)| *out += value * factor);
                sums.iter_mut().zip(&rest[1..]).for_each(|(sum, x)| *sum += x * factor);
            }
            self.finish(self.lane.row0 as usize, head, &merged, greatest, sums);
        }
    }

    /// A chunk: all keys and values are prepared, then threads share the rows.
    fn chunk(&self, tiles: &mut Vec<[f32; BLOCK]>, values: &mut Vec<f32>) {
        let Heads { n_kv_heads, head_dim, .. } = self.a.heads;
        tiles.resize(n_kv_heads * self.keys.blocks.len() * head_dim, [0.0; BLOCK]);
        values.resize(n_kv_heads * self.keys.len * head_dim, 0.0);
        let (shared_tiles, shared_values) = (Disjoint::new(tiles), Disjoint::new(values));
        threads::run(self.keys.blocks.len(), |block| {
            dispatch(Prepare { call: self, block, tiles: &shared_tiles, values: &shared_values });
        });
        let rows = self.lane.rows as usize;
        let part_rows = (rows / (4 * threads::threads())).clamp(1, PART_ROWS);
        threads::run(rows.div_ceil(part_rows), |part| {
            let row0 = self.lane.row0 as usize;
            let rows = row0 + part * part_rows..row0 + rows.min((part + 1) * part_rows);
            dispatch(ChunkRows { call: self, rows, tiles, values });
        });
    }

    /// Whether the probs of a row and head are asked for.
    fn is_asked(&self, row: usize, head: usize) -> bool {
        self.asked == Some(head) && row + 1 == (self.lane.row0 + self.lane.rows) as usize
    }

    /// Keeps a head's scores of the keys from `first` on, if its probs are asked for, for [`Self::finish`].
    fn keep_scores(&self, row: usize, head: usize, first: usize, scores: &[f32]) {
        if self.is_asked(row, head) {
            let at = self.number * self.a.slots + first;
            // SAFETY: the parts of a single row have different keys, and one part has all those of a row of a chunk.
            unsafe { self.probs.range(at..at + scores.len()) }.copy_from_slice(scores);
        }
    }

    /// Writes a head's output, masses and, from the scores that were kept, probs. `sums` are of the weights, which are
    /// relative to the score `greatest`: all, sinks, first keys. Here the denominator gets its extra logit.
    fn finish(&self, row: usize, head: usize, values: &[f32], greatest: f32, sums: [f32; 3]) {
        let Heads { head_dim, .. } = self.a.heads;
        let at = row * self.a.heads.q_cols() + head * head_dim;
        let mass_at = row * self.a.report.stride() + self.a.report.mass_at(self.a.layer, head);
        // SAFETY: parts have different rows.
        let (out, masses) = unsafe { (self.out.range(at..at + head_dim), self.report.range(mass_at..mass_at + 2)) };
        let extra = if self.lane.flags & SOFTMAX_ONE == 0 { self.a.sink_logits[head] } else { 0.0 };
        let top = greatest.max(extra);
        let factor = (greatest - top).exp();
        let whole = sums[0] * factor + (extra - top).exp();
        masses[0] = sums[1] * factor / whole;
        masses[1] = sums[2] * factor / whole;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value * factor / whole);
        if self.is_asked(row, head) {
            let (at, view) = (self.number * self.a.slots, self.view(row));
            // SAFETY: a lane's probs are asked for of one row and head.
            let probs = unsafe { self.probs.range(at..at + view.sinks + view.recent.len()) };
            probs.iter_mut().for_each(|x| *x = (*x - top).exp() / whole);
        }
    }

    /// The queries of some heads, rotated for sink keys or for recent ones, scaled by `1 / sqrt(head_dim)`.
    #[inline(always)]
    fn rotate_queries<S: Simd>(&self, s: S, row: usize, sink: bool, head: usize, queries: &mut [f32]) {
        let head_dim = self.a.heads.head_dim;
        let half = head_dim / 2;
        let step = self.a.step.row(row);
        let (cos, sin) = if sink {
            (step.cos, step.sin)
        } else {
            let position = step.index.saturating_sub(self.lane.base) as usize;
            self.a.rope[position * head_dim..(position + 1) * head_dim].split_at(half)
        };
        let (cos, sin) = (cos.as_chunks::<8>().0, sin.as_chunks::<8>().0);
        let scale = s.splat(1.0 / (head_dim as f32).sqrt());
        for (i, query) in queries.chunks_exact_mut(head_dim).enumerate() {
            let q = &self.qkv[row * self.a.heads.qkv_cols() + (head + i) * head_dim..][..head_dim];
            let (x, y) = q.split_at(half);
            let (x, y) = (x.as_chunks::<8>().0, y.as_chunks::<8>().0);
            let (low, high) = query.split_at_mut(half);
            let (low, high) = (low.as_chunks_mut::<8>().0, high.as_chunks_mut::<8>().0);
            for i in 0..cos.len() {
                let (cos, sin) = (s.load(&cos[i]), s.load(&sin[i]));
                let [x, y] = rotate(s, s.load(&x[i]), s.load(&y[i]), cos, sin);
                s.store(s.mul(x, scale), &mut low[i]);
                s.store(s.mul(y, scale), &mut high[i]);
            }
        }
    }

    /// Cosines and sines of a block's positions, a lane a key: `head_dim / 2` of each.
    #[inline(always)]
    fn angles<S: Simd>(&self, s: S, block: KeyBlock, angles: &mut [[f32; BLOCK]]) {
        let head_dim = self.a.heads.head_dim;
        let rows: [&[u32]; BLOCK] = std::array::from_fn(|lane| {
            let position = block.position + lane.min(block.len - 1);
            bytemuck::cast_slice(&self.a.rope[position * head_dim..(position + 1) * head_dim])
        });
        for (group, angles) in angles.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let columns = columns(s, rows, group);
            for i in 0..8 {
                s.store(s.as_f(columns[i]), &mut angles[i]);
            }
        }
    }

    /// The rotated keys of a block and head, a lane a key: `head_dim` vectors.
    #[inline(always)]
    fn key_tile<S: Simd>(
        &self,
        s: S,
        block: KeyBlock,
        kv_head: usize,
        angles: &[[f32; BLOCK]],
        tile: &mut [[f32; BLOCK]],
    ) {
        if (block.first..block.first + block.len).any(|key| self.keys.is_packed(key)) {
            self.packed_tile(s, block, kv_head, tile);
        } else {
            self.float_tile(s, block, kv_head, tile);
        }
        let half = tile.len() / 2;
        let (low, high) = tile.split_at_mut(half);
        let (cos, sin) = angles.split_at(half);
        for i in 0..half {
            let (x, y, cos, sin) = (s.load(&low[i]), s.load(&high[i]), s.load(&cos[i]), s.load(&sin[i]));
            let [x, y] = rotate(s, x, y, cos, sin);
            s.store(x, &mut low[i]);
            s.store(y, &mut high[i]);
        }
    }

    /// [`Self::key_tile`] before its keys are rotated, of keys in slots.
    #[inline(always)]
    fn float_tile<S: Simd>(&self, s: S, block: KeyBlock, kv_head: usize, tile: &mut [[f32; BLOCK]]) {
        let words = self.keys.layout.key_words();
        let rows = self.keys.slots(block).map(|slot| &slot[kv_head * words..(kv_head + 1) * words]);
        for group in 0..words / 8 {
            let columns = columns(s, rows, group);
            for i in 0..8 {
                let pair = 16 * group + 2 * i;
                match self.a.format.keys.float {
                    Float::F32 => s.store(s.as_f(columns[i]), &mut tile[8 * group + i]),
                    Float::F16 => {
                        s.store(s.low_halves(columns[i]), &mut tile[pair]);
                        s.store(s.high_halves(columns[i]), &mut tile[pair + 1]);
                    }
                    Float::Bf16 => {
                        s.store(s.as_f(s.shift_left::<16>(columns[i])), &mut tile[pair]);
                        s.store(s.as_f(s.and(columns[i], s.splat_i(0xFFFF_0000))), &mut tile[pair + 1]);
                    }
                }
            }
        }
    }

    /// [`Self::key_tile`] before its keys are rotated, of keys some of which are packed.
    #[inline(always)]
    fn packed_tile<S: Simd>(&self, s: S, block: KeyBlock, kv_head: usize, tile: &mut [[f32; BLOCK]]) {
        let mut rows = vec![[0.0; 8]; tile.len()];
        let eights = tile.len() / 8;
        for (lane, row) in rows.chunks_exact_mut(eights).enumerate() {
            self.unpack_key(s, block.first + lane.min(block.len - 1), kv_head, row);
        }
        let rows: &[u32] = bytemuck::cast_slice(rows.as_flattened());
        let rows: [&[u32]; BLOCK] = std::array::from_fn(|lane| &rows[lane * tile.len()..(lane + 1) * tile.len()]);
        for n in 0..eights {
            let columns = columns(s, rows, n);
            for i in 0..8 {
                s.store(s.as_f(columns[i]), &mut tile[8 * n + i]);
            }
        }
    }

    /// A head's key, not rotated.
    #[inline(always)]
    fn unpack_key<S: Simd>(&self, s: S, key: usize, kv_head: usize, to: &mut [[f32; 8]]) {
        let layout = &self.keys.layout;
        let storage = layout.format.keys;
        if !self.keys.is_packed(key) {
            let words = layout.key_words();
            return unpack_floats(s, storage.float, &self.keys.slot(key)[kv_head * words..(kv_head + 1) * words], to);
        }
        let (group, token) = self.keys.group(key);
        let part = &group[kv_head * layout.group_key_words()..][..layout.group_key_words()];
        unpack::<S, true>(s, layout, storage, part, token, to);
    }

    /// A head's value.
    #[inline(always)]
    fn unpack_value<S: Simd>(&self, s: S, key: usize, kv_head: usize, to: &mut [[f32; 8]]) {
        let layout = &self.keys.layout;
        let storage = layout.format.values;
        if !self.keys.is_packed(key) {
            let words = layout.value_words();
            let at = layout.values_at() + kv_head * words;
            return unpack_floats(s, storage.float, &self.keys.slot(key)[at..at + words], to);
        }
        let (group, token) = self.keys.group(key);
        let part = &group[layout.group_values_at(kv_head)..][..layout.group_value_words()];
        unpack::<S, false>(s, layout, storage, part, token, to);
    }
}

/// Floats of a slot or a group.
#[inline(always)]
fn unpack_floats<S: Simd>(s: S, float: Float, words: &[u32], to: &mut [[f32; 8]]) {
    for (n, to) in to.iter_mut().enumerate() {
        match float {
            Float::F32 => s.store(eight::<S, F32>(s, words, n), to),
            Float::F16 => s.store(eight::<S, F16>(s, words, n), to),
            Float::Bf16 => s.store(eight::<S, BF16>(s, words, n), to),
        }
    }
}

/// A token of a head's part, its keys or its values, of a group.
#[inline(always)]
fn unpack<S: Simd, const KEYS: bool>(
    s: S,
    layout: &CacheLayout,
    storage: Storage,
    part: &[u32],
    token: usize,
    to: &mut [[f32; 8]],
) {
    let (codes, parameters) = part.split_at(layout.code_words(storage));
    let Some(bits) = storage.bits else {
        let words = storage.float.words(layout.heads.head_dim);
        return unpack_floats(s, storage.float, &codes[token * words..(token + 1) * words], to);
    };
    let first = token * to.len();
    for (n, to) in to.iter_mut().enumerate() {
        let codes = match bits {
            Bits::Eight => eight_codes::<S, 8>(s, codes, first, n),
            Bits::Four => eight_codes::<S, 4>(s, codes, first, n),
            Bits::Two => eight_codes::<S, 2>(s, codes, first, n),
        };
        let (scale, zero) = if KEYS {
            let parameters = s.load_i(&parameters.as_chunks().0[n]);
            (s.low_halves(parameters), s.high_halves(parameters))
        } else {
            let group = layout.format.group;
            let (scale, zero) = scale_and_zero(parameters[8 * n / group * group + token]);
            (s.splat(scale), s.splat(zero))
        };
        s.store(s.mul_add(codes, scale, zero), to);
    }
}

/// Eight words of each of eight rows, from word `8 * group`: a vector a column, a lane a row.
#[inline(always)]
fn columns<S: Simd>(s: S, rows: [&[u32]; BLOCK], group: usize) -> [S::I; 8] {
    let mut lanes = [s.splat_i(0); 8];
    for (lane, row) in lanes.iter_mut().zip(rows) {
        *lane = s.load_i(&row.as_chunks().0[group]);
    }
    s.transpose(lanes)
}

#[inline(always)]
fn rotate<S: Simd>(s: S, x: S::F, y: S::F, cos: S::F, sin: S::F) -> [S::F; 2] {
    [s.mul_sub(x, cos, s.mul(y, sin)), s.mul_add(y, cos, s.mul(x, sin))]
}

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Eight values of a slot, from value `8 * n`.
#[inline(always)]
fn eight<S: Simd, const FLOAT: u8>(s: S, words: &[u32], n: usize) -> S::F {
    match FLOAT {
        F32 => s.as_f(s.load_i(&words.as_chunks().0[n])),
        F16 => s.halves(&words.as_chunks().0[n]),
        _ => {
            let words: &[u32; 4] = &words.as_chunks().0[n];
            s.as_f(s.load_i(&std::array::from_fn(|i| {
                let word = words[i / 2];
                if i % 2 == 0 { word << 16 } else { word & 0xFFFF_0000 }
            })))
        }
    }
}

/// Eight neighbouring codes as floats: the vector `first + n`, `first` the first of a token.
#[inline(always)]
fn eight_codes<S: Simd, const BITS: usize>(s: S, codes: &[u32], first: usize, n: usize) -> S::F {
    let (vector, per_word) = (first + n, 32 / BITS);
    let mut words = s.load_i(&codes.as_chunks().0[vector / per_word]);
    // In two steps, so that the second depends on `n` alone where tokens have eight vectors.
    if vector % per_word >= 8 {
        words = s.shift_right::<16>(words);
    }
    let words = match vector % per_word.min(8) * BITS {
        0 => words,
        2 => s.shift_right::<2>(words),
        4 => s.shift_right::<4>(words),
        6 => s.shift_right::<6>(words),
        8 => s.shift_right::<8>(words),
        10 => s.shift_right::<10>(words),
        12 => s.shift_right::<12>(words),
        14 => s.shift_right::<14>(words),
        16 => s.shift_right::<16>(words),
        20 => s.shift_right::<20>(words),
        24 => s.shift_right::<24>(words),
        _ => s.shift_right::<28>(words),
    };
    s.to_f(s.and(words, s.splat_i((1 << BITS) - 1)))
}

/// Codes that take turns in the bits of a word before [`eight_codes`] shifts.
const fn turns(bits: usize) -> usize {
    if bits == 8 { 4 } else { 8 }
}

/// Whether the vectors of every token take the same turns, so that codes need no shift: see [`raw_codes`].
fn raw(bits: usize, head_dim: usize) -> bool {
    head_dim.is_multiple_of(8 * turns(bits))
}

/// What [`raw_codes`] must be multiplied by.
fn raw_factor(bits: usize, n: usize) -> f32 {
    let turn = n % turns(bits);
    // The last code of a word is shifted after all, since its top bit would be a sign.
    let shifted = turn * bits + bits == 32;
    if shifted { 1.0 } else { 1.0 / (1u32 << (turn * bits)) as f32 }
}

/// As [`eight_codes`], but left where they are in their words, where [`raw`] says so: a code times a power of two.
#[inline(always)]
fn raw_codes<S: Simd, const BITS: usize>(s: S, codes: &[u32], first: usize, n: usize) -> S::F {
    turn_codes::<S, BITS>(s, raw_words::<S, BITS>(s, codes, first + n), n % turns(BITS))
}

/// The words of a vector and of the others that take turns with it.
#[inline(always)]
fn raw_words<S: Simd, const BITS: usize>(s: S, codes: &[u32], vector: usize) -> S::I {
    let words = s.load_i(&codes.as_chunks().0[vector / (32 / BITS)]);
    if BITS == 2 && vector % 16 >= 8 { s.shift_right::<16>(words) } else { words }
}

/// The codes whose turn it is.
#[inline(always)]
fn turn_codes<S: Simd, const BITS: usize>(s: S, words: S::I, turn: usize) -> S::F {
    s.to_f(match turn * BITS + BITS {
        32 if BITS == 8 => s.shift_right::<24>(words),
        32 => s.shift_right::<28>(words),
        _ => s.and(words, s.splat_i(((1 << BITS) - 1) << (turn * BITS))),
    })
}

/// Eight codes, times a power of two where `RAW`.
#[inline(always)]
fn some_codes<S: Simd, const BITS: usize, const RAW: bool>(s: S, codes: &[u32], first: usize, n: usize) -> S::F {
    if RAW { raw_codes::<S, BITS>(s, codes, first, n) } else { eight_codes::<S, BITS>(s, codes, first, n) }
}

/// The most query heads that are done at once.
const MOST_HEADS: usize = 3;

/// Query heads that are done at once, of `left`: few variants, since each is compiled for each instruction set.
fn group_of(left: usize) -> usize {
    if left >= MOST_HEADS { MOST_HEADS } else { 1 }
}

/// The scores of `G` queries (one after another in `queries`) and `B` blocks of keys.
#[inline(always)]
fn scores<S: Simd, const G: usize, const B: usize>(
    s: S,
    queries: &[f32],
    tiles: [&[[f32; BLOCK]]; B],
) -> [[S::F; B]; G] {
    let head_dim = tiles[0].len();
    let queries: [&[f32]; G] = std::array::from_fn(|g| &queries[g * head_dim..(g + 1) * head_dim]);
    let tiles = tiles.map(|tile| &tile[..head_dim]);
    let mut sums = [[s.splat(0.0); B]; G];
    for i in 0..head_dim {
        let mut keys = [s.splat(0.0); B];
        for b in 0..B {
            keys[b] = s.load(&tiles[b][i]);
        }
        for g in 0..G {
            let q = s.splat(queries[g][i]);
            for b in 0..B {
                sums[g][b] = s.mul_add(q, keys[b], sums[g][b]);
            }
        }
    }
    sums
}

/// Scores, which may lie in two places, become weights `exp(score - greatest)`. Returns the greatest score, and the sums of
/// all weights and of the first so many, twice.
#[inline(always)]
fn softmax<S: Simd>(s: S, mut scores: [&mut [f32]; 2], firsts: [usize; 2]) -> [f32; 4] {
    let mut greatest = s.splat(f32::NEG_INFINITY);
    for scores in &scores {
        let (eights, rest) = scores.as_chunks::<8>();
        for x in eights {
            greatest = s.max(s.load(x), greatest);
        }
        greatest = s.max(s.load(&padded(rest)), greatest);
    }
    let greatest = s.greatest(greatest);
    let weights = |scores: S::F| simd::exp(s, s.sub(scores, s.splat(greatest)));
    let mut total = 0.0;
    for scores in &mut scores {
        for chunk in scores.chunks_mut(128) {
            let (eights, rest) = chunk.as_chunks_mut::<8>();
            let mut sum = s.splat(0.0);
            for x in eights {
                let weights = weights(s.load(x));
                sum = s.add(sum, weights);
                s.store(weights, x);
            }
            total += f64::from(simd::sum(s, sum));
            let mut last = [0.0; 8];
            s.store(weights(s.load(&padded(rest))), &mut last);
            for (x, weight) in rest.iter_mut().zip(last) {
                *x = weight;
                total += f64::from(weight);
            }
        }
    }
    let [before, after] = scores;
    let of_first = |n| before.iter().chain(&*after).take(n).map(|&x| f64::from(x)).sum::<f64>() as f32;
    [greatest, total as f32, of_first(firsts[0]), of_first(firsts[1])]
}

/// Fewer than eight scores, and others that weigh nothing.
#[inline(always)]
fn padded(scores: &[f32]) -> [f32; 8] {
    let mut padded = [f32::NEG_INFINITY; 8];
    padded.iter_mut().zip(scores).for_each(|(to, score)| *to = *score);
    padded
}

/// Where a head's values lie.
trait Values: Copy {
    /// Eight channels of a key's value, from channel `8 * n`.
    fn eight<S: Simd>(&self, s: S, key: usize, n: usize) -> S::F;
}

/// In the slots.
#[derive(Clone, Copy)]
struct SlotValues<'a, const FLOAT: u8>(&'a [&'a [u32]]);

impl<const FLOAT: u8> Values for SlotValues<'_, FLOAT> {
    #[inline(always)]
    fn eight<S: Simd>(&self, s: S, key: usize, n: usize) -> S::F {
        eight::<S, FLOAT>(s, self.0[key], n)
    }
}

/// Widened to single precision.
#[derive(Clone, Copy)]
struct WideValues<'a> {
    values: &'a [[f32; 8]],
    len: usize,
}

impl Values for WideValues<'_> {
    #[inline(always)]
    fn eight<S: Simd>(&self, s: S, key: usize, n: usize) -> S::F {
        s.load(&self.values[key * self.len..(key + 1) * self.len][n])
    }
}

/// [`add_values`] for all heads of a row that share the values.
#[inline(always)]
fn add_row<S: Simd, V: Values>(
    s: S,
    values: V,
    keys: Range<usize>,
    weights: &[f32],
    stride: usize,
    out: &mut [f32],
    head_dim: usize,
) {
    let heads = out.len() / head_dim;
    let mut head = 0;
    while head < heads {
        let group = group_of(heads - head);
        let weights = &weights[head * stride..];
        let out = &mut out[head * head_dim..(head + group) * head_dim];
        match group {
            3 => add_values::<S, V, 3>(s, values, keys.clone(), weights, stride, out),
            _ => add_values::<S, V, 1>(s, values, keys.clone(), weights, stride, out),
        }
        head += group;
    }
}

/// Adds the values of keys `keys`, times the weights of `G` heads, to `out` (`G` times `head_dim`).
/// The weights of head `g` begin at `weights[g * stride]`.
#[inline(always)]
fn add_values<S: Simd, V: Values, const G: usize>(
    s: S,
    values: V,
    keys: Range<usize>,
    weights: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let vectors = out.len() / G / 8;
    let mut at = 0;
    while S::WIDE && at + 4 <= vectors {
        add_vectors::<S, V, G, 4>(s, values, keys.clone(), weights, stride, out, at);
        at += 4;
    }
    while at < vectors {
        add_vectors::<S, V, G, 1>(s, values, keys.clone(), weights, stride, out, at);
        at += 1;
    }
}

/// `N` of the vectors of [`add_values`], from vector `at`.
#[inline(always)]
fn add_vectors<S: Simd, V: Values, const G: usize, const N: usize>(
    s: S,
    values: V,
    keys: Range<usize>,
    weights: &[f32],
    stride: usize,
    out: &mut [f32],
    at: usize,
) {
    let vectors = out.len() / G / 8;
    let out = out.as_chunks_mut::<8>().0;
    let mut each = [&weights[..keys.len()]; G];
    unrolled!(g of [1 2] below G => each[g] = &weights[g * stride..][..keys.len()]);
    let mut sums = [[s.splat(0.0); G]; N];
    unrolled!(n of [0 1 2 3] below N => {
        unrolled!(g of [0 1 2] below G => sums[n][g] = s.load(&out[g * vectors + at + n]));
    });
    for (i, key) in keys.enumerate() {
        // Three weights, one value and twelve sums are all the registers there are.
        let mut weight = [s.splat(0.0); G];
        unrolled!(g of [0 1 2] below G => weight[g] = s.splat(each[g][i]));
        unrolled!(n of [0 1 2 3] below N => {
            let value = values.eight(s, key, at + n);
            unrolled!(g of [0 1 2] below G => sums[n][g] = s.mul_add(weight[g], value, sums[n][g]));
        });
    }
    unrolled!(n of [0 1 2 3] below N => {
        unrolled!(g of [0 1 2] below G => s.store(sums[n][g], &mut out[g * vectors + at + n]));
    });
}

/// The vectors of the low and of the high half of some channels.
#[derive(Clone, Copy)]
struct Halves<'a> {
    low: &'a [[f32; 8]],
    high: &'a [[f32; 8]],
}

impl<'a> Halves<'a> {
    #[inline(always)]
    fn new(channels: &'a [f32], half: usize) -> Self {
        let (low, high) = channels.as_chunks().0.split_at(half);
        Halves { low, high: &high[..half] }
    }
}

/// Some blocks of keys of the only row.
struct OneRow<'a> {
    call: &'a Call<'a>,
    blocks: Range<usize>,
    partials: &'a mut [f32],
}

impl Kernel for OneRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Heads { n_heads, head_dim, .. } = self.call.a.heads;
        let row = self.call.lane.row0 as usize;
        let keys = self.call.keys;
        let CacheFormat { keys: key_storage, values: value_storage, .. } = self.call.a.format;
        s.read_ahead(keys.slots_in_use());
        if let Some(last) = keys.blocks.last() {
            s.read_ahead(bytemuck::cast_slice(&self.call.a.rope[..(last.position + last.len) * head_dim]));
        }
        let blocks = &keys.blocks[self.blocks.clone()];
        let first = blocks.first().map_or(0, |block| block.first);
        let end = blocks.last().map_or(0, |block| block.first + block.len);
        // The last block writes eight scores even where it has fewer keys.
        let stride = end - first + BLOCK;
        // Queries for sinks and for recent keys, the sums of values, the scores.
        let mut scratch = SCORES.take();
        scratch.resize(3 * n_heads * head_dim + n_heads * stride, 0.0);
        let (queries, rest) = scratch.split_at_mut(2 * n_heads * head_dim);
        let (out, weights) = rest.split_at_mut(n_heads * head_dim);
        let (sink_queries, recent_queries) = queries.split_at_mut(n_heads * head_dim);
        self.call.rotate_queries(s, row, true, 0, sink_queries);
        self.call.rotate_queries(s, row, false, 0, recent_queries);
        let queries = [&*sink_queries, &*recent_queries];
        let mut left = blocks;
        while let Some(block) = left.first() {
            let run_end = keys.run_end(block.first);
            let (run, rest) = left.split_at(left.iter().take_while(|block| block.first < run_end).count());
            let scores = Scores { call: self.call, blocks: run, first, queries, weights, stride };
            match (keys.is_packed(block.first), key_storage) {
                (true, Storage { bits: Some(Bits::Eight), .. }) => dispatch(GroupScores::<8>(scores)),
                (true, Storage { bits: Some(Bits::Four), .. }) => dispatch(GroupScores::<4>(scores)),
                (true, Storage { bits: Some(Bits::Two), .. }) => dispatch(GroupScores::<2>(scores)),
                (_, Storage { float: Float::F32, .. }) => dispatch(SlotScores::<F32>(scores)),
                (_, Storage { float: Float::F16, .. }) => dispatch(SlotScores::<F16>(scores)),
                (_, Storage { float: Float::Bf16, .. }) => dispatch(SlotScores::<BF16>(scores)),
            }
            left = rest;
        }
        // Keys of this part that are sinks, and that are among the first.
        let sinks = keys.sinks.clamp(first, end) - first;
        let firsts = FIRST_KEYS.clamp(first, end) - first;
        for head in 0..n_heads {
            let scores = &mut weights[head * stride..][..end - first];
            self.call.keep_scores(row, head, first, scores);
            let sums = softmax(s, [scores, &mut []], [sinks, firsts]);
            self.partials[head * (head_dim + 4) + head_dim..][..4].copy_from_slice(&sums);
        }
        out.fill(0.0);
        let mut at = first.max(keys.first_value());
        while at < end {
            let run = at..end.min(keys.run_end(at));
            at = run.end;
            let packed = keys.is_packed(run.start);
            let sums = Sums { call: self.call, keys: run, first, weights, stride, out };
            match (packed, value_storage) {
                (true, Storage { bits: Some(Bits::Eight), .. }) => dispatch(GroupSums::<8>(sums)),
                (true, Storage { bits: Some(Bits::Four), .. }) => dispatch(GroupSums::<4>(sums)),
                (true, Storage { bits: Some(Bits::Two), .. }) => dispatch(GroupSums::<2>(sums)),
                (_, Storage { float: Float::F32, .. }) => dispatch(SlotSums::<F32>(sums)),
                (_, Storage { float: Float::F16, .. }) => dispatch(SlotSums::<F16>(sums)),
                (_, Storage { float: Float::Bf16, .. }) => dispatch(SlotSums::<BF16>(sums)),
            }
        }
        for (partial, out) in self.partials.chunks_exact_mut(head_dim + 4).zip(out.chunks_exact(head_dim)) {
            partial[..head_dim].copy_from_slice(out);
        }
        SCORES.set(scratch);
    }
}

/// The scores of blocks that lie alike.
struct Scores<'a> {
    call: &'a Call<'a>,
    blocks: &'a [KeyBlock],
    /// The key of the first weight.
    first: usize,
    /// Rotated for sinks and for recent keys.
    queries: [&'a [f32]; 2],
    /// `[n_heads, stride]`.
    weights: &'a mut [f32],
    stride: usize,
}

/// The keys of one head and block.
trait BlockKeys: Copy {
    type Key<S: Simd>: Copy;

    /// A key.
    fn key<S: Simd>(&self, s: S, lane: usize) -> Self::Key<S>;

    /// Channels `8 * n..` and `head_dim / 2 + 8 * n..` of a key.
    fn pair<S: Simd>(&self, s: S, key: Self::Key<S>, n: usize) -> [S::F; 2];
}

/// Keys in slots.
#[derive(Clone, Copy)]
struct SlotKeys<'a, const FLOAT: u8> {
    keys: [&'a [u32]; BLOCK],
    words: usize,
}

impl<'a, const FLOAT: u8> BlockKeys for SlotKeys<'a, FLOAT> {
    type Key<S: Simd> = (&'a [u32], &'a [u32]);

    #[inline(always)]
    fn key<S: Simd>(&self, _: S, lane: usize) -> Self::Key<S> {
        self.keys[lane][..self.words].split_at(self.words / 2)
    }

    #[inline(always)]
    fn pair<S: Simd>(&self, s: S, (low, high): Self::Key<S>, n: usize) -> [S::F; 2] {
        [eight::<S, FLOAT>(s, low, n), eight::<S, FLOAT>(s, high, n)]
    }
}

/// Packed keys of one group.
#[derive(Clone, Copy)]
struct GroupKeys<'a, const BITS: usize, const RAW: bool> {
    codes: &'a [u32],
    /// What a code is multiplied by, as `RAW` codes are.
    scales: Halves<'a>,
    zeros: Halves<'a>,
    /// The first key's token, and the last's.
    tokens: [usize; 2],
}

impl<const BITS: usize, const RAW: bool> GroupKeys<'_, BITS, RAW> {
    /// The number of a key's first vector.
    #[inline(always)]
    fn first(&self, lane: usize) -> usize {
        (self.tokens[0] + lane).min(self.tokens[1]) * 2 * self.scales.low.len()
    }

    #[inline(always)]
    fn scaled<S: Simd>(&self, s: S, [low, high]: [S::F; 2], n: usize) -> [S::F; 2] {
        [
            s.mul_add(low, s.load(&self.scales.low[n]), s.load(&self.zeros.low[n])),
            s.mul_add(high, s.load(&self.scales.high[n]), s.load(&self.zeros.high[n])),
        ]
    }
}

impl<const BITS: usize, const RAW: bool> BlockKeys for GroupKeys<'_, BITS, RAW> {
    /// The number of its first vector.
    type Key<S: Simd> = usize;

    #[inline(always)]
    fn key<S: Simd>(&self, _: S, lane: usize) -> usize {
        self.first(lane)
    }

    #[inline(always)]
    fn pair<S: Simd>(&self, s: S, first: usize, n: usize) -> [S::F; 2] {
        let half = self.scales.low.len();
        let low = some_codes::<S, BITS, RAW>(s, self.codes, first, n);
        let high = some_codes::<S, BITS, RAW>(s, self.codes, first, half + n);
        self.scaled(s, [low, high], n)
    }
}

/// The same of 64 channels: a key's words stay in two registers.
#[derive(Clone, Copy)]
struct GroupKeys64<'a, const BITS: usize>(GroupKeys<'a, BITS, true>);

impl<const BITS: usize> BlockKeys for GroupKeys64<'_, BITS> {
    /// The words of the low and of the high half of the channels.
    type Key<S: Simd> = [S::I; 2];

    #[inline(always)]
    fn key<S: Simd>(&self, s: S, lane: usize) -> Self::Key<S> {
        let first = self.0.first(lane);
        [raw_words::<S, BITS>(s, self.0.codes, first), raw_words::<S, BITS>(s, self.0.codes, first + 4)]
    }

    #[inline(always)]
    fn pair<S: Simd>(&self, s: S, [low, high]: Self::Key<S>, n: usize) -> [S::F; 2] {
        let low = turn_codes::<S, BITS>(s, low, n);
        let high = turn_codes::<S, BITS>(s, high, (4 + n) % turns(BITS));
        self.0.scaled(s, [low, high], n)
    }
}

/// Of keys in slots, or of floats in groups.
struct SlotScores<'a, const FLOAT: u8>(Scores<'a>);

impl<const FLOAT: u8> Kernel for SlotScores<'_, FLOAT> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut scores = self.0;
        let Heads { n_heads, n_kv_heads, head_dim } = scores.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let keys = scores.call.keys;
        let words = if FLOAT == F32 { head_dim } else { head_dim / 2 };
        let kv_words = n_kv_heads * words;
        let end = scores.blocks.last().map_or(0, |block| block.first + block.len);
        let in_group = scores.blocks.first().is_some_and(|block| keys.is_packed(block.first));
        let mut sums = [[s.splat(0.0); BLOCK]; MOST_HEADS];
        for block in scores.blocks {
            let mut slots = [&[][..]; BLOCK];
            let mut head_stride = words;
            if in_group {
                head_stride = keys.layout.group_key_words();
                let (group, token) = keys.group(block.first);
                for (lane, slot) in slots.iter_mut().enumerate() {
                    *slot = &group[(token + lane.min(block.len - 1)) * words..];
                }
            } else {
                // Slots lie too far apart for the machine to see them coming.
                for key in block.first + BLOCK..end.min(block.first + 2 * BLOCK) {
                    simd::prefetch(s, &keys.slot(key)[..kv_words]);
                }
                slots = keys.slots(*block);
            }
            for kv_head in 0..n_kv_heads {
                let at = kv_head * head_stride;
                let mut keys = SlotKeys::<FLOAT> { keys: slots, words };
                for key in &mut keys.keys {
                    *key = &key[at..at + words];
                }
                let mut done = 0;
                while done < heads {
                    let (head, group) = (kv_head * heads + done, group_of(heads - done));
                    match (group, head_dim) {
                        (3, 64) => {
                            // The same once more, for the compiler to know it.
                            let keys = SlotKeys { words: if FLOAT == F32 { 64 } else { 32 }, ..keys };
                            scores.block::<S, SlotKeys<'_, FLOAT>, 4, 3>(s, *block, keys, head, &mut sums);
                        }
                        (3, _) => scores.block::<S, SlotKeys<'_, FLOAT>, 0, 3>(s, *block, keys, head, &mut sums),
                        _ => scores.block::<S, SlotKeys<'_, FLOAT>, 0, 1>(s, *block, keys, head, &mut sums),
                    }
                    done += group;
                }
            }
        }
    }
}

/// Of packed keys of one group.
struct GroupScores<'a, const BITS: usize>(Scores<'a>);

impl<const BITS: usize> Kernel for GroupScores<'_, BITS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if raw(BITS, self.0.call.a.heads.head_dim) { self.of::<S, true>(s) } else { self.of::<S, false>(s) }
    }
}

impl<const BITS: usize> GroupScores<'_, BITS> {
    #[inline(always)]
    fn of<S: Simd, const RAW: bool>(self, s: S) {
        let mut scores = self.0;
        let Heads { n_heads, n_kv_heads, head_dim } = scores.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let Some(first) = scores.blocks.first() else { return };
        let layout = &scores.call.keys.layout;
        let (group, token) = scores.call.keys.group(first.first);
        let mut parameters = PARAMETERS.take();
        parameters.resize(2 * head_dim, 0.0);
        let mut sums = [[s.splat(0.0); BLOCK]; MOST_HEADS];
        for kv_head in 0..n_kv_heads {
            let part = &group[kv_head * layout.group_key_words()..][..layout.group_key_words()];
            let (codes, words) = part.split_at(layout.code_words(layout.format.keys));
            let (scales, zeros) = parameters.split_at_mut(head_dim);
            let eights = scales.as_chunks_mut::<8>().0.iter_mut().zip(zeros.as_chunks_mut::<8>().0);
            for (n, ((scale, zero), words)) in eights.zip(words.as_chunks().0).enumerate() {
                let words = s.load_i(words);
                let factor = if RAW { raw_factor(BITS, n) } else { 1.0 };
                s.store(s.mul(s.low_halves(words), s.splat(factor)), scale);
                s.store(s.high_halves(words), zero);
            }
            for block in scores.blocks {
                let token = token + block.first - first.first;
                let (scales, zeros) = (Halves::new(scales, head_dim / 16), Halves::new(zeros, head_dim / 16));
                let keys = GroupKeys::<BITS, RAW> { codes, scales, zeros, tokens: [token, token + block.len - 1] };
                let mut done = 0;
                while done < heads {
                    let (head, group) = (kv_head * heads + done, group_of(heads - done));
                    match (group, head_dim) {
                        (3, 64) if RAW => {
                            let keys = GroupKeys::<BITS, true> { codes, scales, zeros, tokens: keys.tokens };
                            scores.block::<S, GroupKeys64<'_, BITS>, 4, 3>(
                                s,
                                *block,
                                GroupKeys64(keys),
                                head,
                                &mut sums,
                            );
                        }
                        (3, _) => scores.block::<S, GroupKeys<'_, BITS, RAW>, 0, 3>(s, *block, keys, head, &mut sums),
                        _ => scores.block::<S, GroupKeys<'_, BITS, RAW>, 0, 1>(s, *block, keys, head, &mut sums),
                    }
                    done += group;
                }
            }
        }
        PARAMETERS.set(parameters);
    }
}

impl Scores<'_> {
    /// Scores of `G` heads from `head` on with one block. A head has `16 * N` channels; any number where `N` is 0. What `sums`
    /// holds is overwritten.
    #[expect(clippy::needless_range_loop, reason = "plain indices keep arrays of vectors in registers")]
    #[inline(always)]
    fn block<S: Simd, K: BlockKeys, const N: usize, const G: usize>(
        &mut self,
        s: S,
        block: KeyBlock,
        keys: K,
        head: usize,
        sums: &mut [[S::F; BLOCK]; MOST_HEADS],
    ) {
        let half = if N > 0 { N } else { self.call.a.heads.head_dim / 16 };
        let head_dim = 16 * half;
        let queries = self.queries[usize::from(block.first >= self.call.keys.sinks)];
        let queries = &queries[head * head_dim..(head + G) * head_dim];
        let mut each = [Halves::new(&queries[..head_dim], half); G];
        unrolled!(g of [1 2] below G => each[g] = Halves::new(&queries[g * head_dim..(g + 1) * head_dim], half));
        for lane in 0..BLOCK {
            let key = keys.key(s, lane);
            let position = block.position + lane.min(block.len - 1);
            let angles = Halves::new(&self.call.a.rope[position * head_dim..][..head_dim], half);
            let mut sum = [s.splat(0.0); G];
            for n in 0..half {
                sum = dot(s, keys.pair(s, key, n), angles, each, n, sum);
            }
            for g in 0..G {
                sums[g][lane] = sum[g];
            }
        }
        for g in 0..G {
            let at = (head + g) * self.stride + block.first - self.first;
            if let Some(to) = self.weights[at..].first_chunk_mut() {
                s.store(s.sums(sums[g]), to);
            }
        }
    }
}

/// `sum` plus the products of `G` queries with sixteen channels of a key, which are turned first.
#[inline(always)]
fn dot<S: Simd, const G: usize>(
    s: S,
    [x, y]: [S::F; 2],
    angles: Halves<'_>,
    queries: [Halves<'_>; G],
    n: usize,
    mut sum: [S::F; G],
) -> [S::F; G] {
    let [x, y] = rotate(s, x, y, s.load(&angles.low[n]), s.load(&angles.high[n]));
    unrolled!(g of [0 1 2] below G => {
        let (low, high) = (s.load(&queries[g].low[n]), s.load(&queries[g].high[n]));
        sum[g] = s.mul_add(y, high, s.mul_add(x, low, sum[g]));
    });
    sum
}

/// The weighted sums of values that lie alike.
struct Sums<'a> {
    call: &'a Call<'a>,
    keys: Range<usize>,
    /// The key of the first weight.
    first: usize,
    /// `[n_heads, stride]`.
    weights: &'a [f32],
    stride: usize,
    /// `[n_heads, head_dim]`, added to.
    out: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the values of some keys of a KV head for all heads that share it.
    #[inline(always)]
    fn add<S: Simd, V: Values>(&mut self, s: S, values: V, keys: Range<usize>, kv_head: usize) {
        let Heads { n_heads, n_kv_heads, head_dim } = self.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let weights = &self.weights[kv_head * heads * self.stride + keys.start - self.first..];
        let out = &mut self.out[kv_head * heads * head_dim..(kv_head + 1) * heads * head_dim];
        add_row(s, values, 0..keys.len(), weights, self.stride, out, head_dim);
    }
}

/// Of values in slots, or of floats in groups.
struct SlotSums<'a, const FLOAT: u8>(Sums<'a>);

impl<const FLOAT: u8> Kernel for SlotSums<'_, FLOAT> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sums = self.0;
        let Heads { n_kv_heads, head_dim, .. } = sums.call.a.heads;
        let keys = sums.call.keys;
        let words = if FLOAT == F32 { head_dim } else { head_dim / 2 };
        let (start, end) = (sums.keys.start, sums.keys.end);
        let in_group = keys.is_packed(start);
        let values_at = keys.layout.values_at();
        for near in (start..end).step_by(NEAR_KEYS) {
            let near = near..end.min(near + NEAR_KEYS);
            let mut slots = [&[][..]; NEAR_KEYS];
            if in_group {
                let (group, token) = keys.group(near.start);
                for (i, slot) in slots[..near.len()].iter_mut().enumerate() {
                    *slot = &group[(token + i) * words..];
                }
            } else {
                for key in near.end..end.min(near.end + NEAR_KEYS) {
                    simd::prefetch(s, &keys.slot(key)[values_at..]);
                }
                for (slot, key) in slots.iter_mut().zip(near.clone()) {
                    *slot = keys.slot(key);
                }
            }
            for kv_head in 0..n_kv_heads {
                let at = if in_group { keys.layout.group_values_at(kv_head) } else { values_at + kv_head * words };
                let mut values = slots;
                for value in &mut values[..near.len()] {
                    *value = &value[at..at + words];
                }
                sums.add(s, SlotValues::<FLOAT>(&values[..near.len()]), near.clone(), kv_head);
            }
        }
    }
}

/// Of packed values of one group.
struct GroupSums<'a, const BITS: usize>(Sums<'a>);

impl<const BITS: usize> Kernel for GroupSums<'_, BITS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if raw(BITS, self.0.call.a.heads.head_dim) { self.of::<S, true>(s) } else { self.of::<S, false>(s) }
    }
}

impl<const BITS: usize> GroupSums<'_, BITS> {
    /// A weight times a scale is shared by as many channels, so that codes are summed up, and zeros apart.
    #[inline(always)]
    fn of<S: Simd, const RAW: bool>(self, s: S) {
        let sums = self.0;
        let Heads { n_heads, n_kv_heads, head_dim } = sums.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let layout = &sums.call.keys.layout;
        let (size, groups) = (layout.format.group, layout.channel_groups());
        let (group, first) = sums.call.keys.group(sums.keys.start);
        let len = sums.keys.len();
        let mut scratch = PARAMETERS.take();
        // Scales and zeros of each channel group and token, then a head's weights times scales.
        scratch.resize(2 * groups * size + heads * groups * len, 0.0);
        let (scales, rest) = scratch.split_at_mut(groups * size);
        let (zeros, scaled) = rest.split_at_mut(groups * size);
        for kv_head in 0..n_kv_heads {
            let part = &group[layout.group_values_at(kv_head)..][..layout.group_value_words()];
            let (codes, words) = part.split_at(layout.code_words(layout.format.values));
            let eights = scales.as_chunks_mut::<8>().0.iter_mut().zip(zeros.as_chunks_mut::<8>().0);
            for ((scale, zero), words) in eights.zip(words.as_chunks().0) {
                let words = s.load_i(words);
                s.store(s.low_halves(words), scale);
                s.store(s.high_halves(words), zero);
            }
            for head in 0..heads {
                let at = (kv_head * heads + head) * sums.stride + sums.keys.start - sums.first;
                let weights = &sums.weights[at..at + len];
                let out = &mut sums.out[(kv_head * heads + head) * head_dim..][..head_dim];
                for g in 0..groups {
                    let (scales, zeros) = (&scales[g * size + first..][..len], &zeros[g * size + first..][..len]);
                    let scaled = &mut scaled[(head * groups + g) * len..][..len];
                    for ((scaled, weight), scale) in scaled.iter_mut().zip(weights).zip(scales) {
                        *scaled = weight * scale;
                    }
                    let (eights, rest) = weights.as_chunks::<8>();
                    let (zeros, last) = zeros.as_chunks::<8>();
                    let mut zero = s.splat(0.0);
                    for (weights, zeros) in eights.iter().zip(zeros) {
                        zero = s.mul_add(s.load(weights), s.load(zeros), zero);
                    }
                    let zero = simd::sum(s, zero) + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>();
                    for out in out.iter_mut().skip(g * size).take(size) {
                        *out += zero;
                    }
                }
            }
            let mut at = 0;
            while at < head_dim / 8 {
                // Vectors that share their scales.
                let left = ((8 * at / size + 1) * size).min(head_dim) / 8 - at;
                let vectors = if RAW && left >= 4 && S::WIDE && heads % 3 == 0 && at % 4 == 0 { 4 } else { 1 };
                let mut head = 0;
                while head < heads {
                    let heads_at_once = group_of(heads - head);
                    let out = &mut sums.out[(kv_head * heads + head) * head_dim..][..heads_at_once * head_dim];
                    let from = CodeSums { codes, first: first * (head_dim / 8), vectors: head_dim / 8, at, len };
                    let scaled = &scaled[(head * groups + 8 * at / size) * len..];
                    match (heads_at_once, vectors, at % turns(BITS)) {
                        (3, 4, 0) if RAW => from.add::<S, BITS, true, 3, 4, 0>(s, scaled, groups * len, out),
                        (3, 4, 4) if RAW => from.add::<S, BITS, true, 3, 4, 4>(s, scaled, groups * len, out),
                        (3, _, _) => from.add::<S, BITS, RAW, 3, 1, NO_TURN>(s, scaled, groups * len, out),
                        _ => from.add::<S, BITS, RAW, 1, 1, NO_TURN>(s, scaled, groups * len, out),
                    }
                    head += heads_at_once;
                }
                at += vectors;
            }
        }
        PARAMETERS.set(scratch);
    }
}

/// Vectors that are not all in the same words.
const NO_TURN: usize = usize::MAX;

/// Codes of some vectors of the tokens of a group.
struct CodeSums<'a> {
    codes: &'a [u32],
    /// The first vector of the first token, and vectors of a token.
    first: usize,
    vectors: usize,
    /// The first vector, of a token's.
    at: usize,
    /// Tokens.
    len: usize,
}

impl CodeSums<'_> {
    /// Adds `N` vectors times the weights of `G` heads, which are `stride` apart, to `out`. `TURN` is the first vector's,
    /// where all of them are in the same words.
    #[expect(clippy::needless_range_loop, reason = "plain indices keep arrays of vectors in registers")]
    #[inline(always)]
    fn add<S: Simd, const BITS: usize, const RAW: bool, const G: usize, const N: usize, const TURN: usize>(
        &self,
        s: S,
        weights: &[f32],
        stride: usize,
        out: &mut [f32],
    ) {
        let weights: [&[f32]; G] = std::array::from_fn(|g| &weights[g * stride..][..self.len]);
        let mut sums = [[s.splat(0.0); G]; N];
        for i in 0..self.len {
            let first = self.first + i * self.vectors;
            let mut weight = [s.splat(0.0); G];
            for g in 0..G {
                weight[g] = s.splat(weights[g][i]);
            }
            let words =
                if TURN == NO_TURN { s.splat_i(0) } else { raw_words::<S, BITS>(s, self.codes, first + self.at) };
            for (n, sums) in sums.iter_mut().enumerate() {
                let codes = match TURN {
                    NO_TURN => some_codes::<S, BITS, RAW>(s, self.codes, first, self.at + n),
                    _ => turn_codes::<S, BITS>(s, words, TURN + n),
                };
                for g in 0..G {
                    sums[g] = s.mul_add(weight[g], codes, sums[g]);
                }
            }
        }
        let out = out.as_chunks_mut::<8>().0;
        for (n, sums) in sums.into_iter().enumerate() {
            let factor = s.splat(if RAW { raw_factor(BITS, self.at + n) } else { 1.0 });
            for (g, sum) in sums.into_iter().enumerate() {
                let out = &mut out[g * self.vectors + self.at + n];
                s.store(s.mul_add(sum, factor, s.load(out)), out);
            }
        }
    }
}

/// One block of a chunk's keys and values.
struct Prepare<'a> {
    call: &'a Call<'a>,
    block: usize,
    tiles: &'a Disjoint<'a, [f32; BLOCK]>,
    values: &'a Disjoint<'a, f32>,
}

impl Kernel for Prepare<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Heads { n_kv_heads, head_dim, .. } = self.call.a.heads;
        let keys = self.call.keys;
        let block = keys.blocks[self.block];
        let mut angles = vec![[0.0; BLOCK]; head_dim];
        self.call.angles(s, block, &mut angles);
        for kv_head in 0..n_kv_heads {
            let at = (kv_head * keys.blocks.len() + self.block) * head_dim;
            // SAFETY: parts have different blocks.
            let tile = unsafe { self.tiles.range(at..at + head_dim) };
            self.call.key_tile(s, block, kv_head, &angles, tile);
            let at = (kv_head * keys.len + block.first) * head_dim;
            // SAFETY: parts have different blocks, and blocks different keys.
            let values = unsafe { self.values.range(at..at + block.len * head_dim) };
            for (i, value) in values.chunks_exact_mut(head_dim).enumerate() {
                self.call.unpack_value(s, block.first + i, kv_head, value.as_chunks_mut().0);
            }
        }
    }
}

/// Some rows of a chunk.
struct ChunkRows<'a> {
    call: &'a Call<'a>,
    rows: Range<usize>,
    tiles: &'a [[f32; BLOCK]],
    values: &'a [f32],
}

impl Kernel for ChunkRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut scratch = SCORES.take();
        for kv_head in 0..self.call.a.heads.n_kv_heads {
            self.kv_head(s, kv_head, &mut scratch);
        }
        SCORES.set(scratch);
    }
}

impl ChunkRows<'_> {
    /// All rows' heads that share a key/value head. A "query" is a row's head; they go row by row.
    #[inline(always)]
    fn kv_head<S: Simd>(&self, s: S, kv_head: usize, scratch: &mut Vec<f32>) {
        let Heads { n_heads, n_kv_heads, head_dim } = self.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let keys = self.call.keys;
        let views: Vec<View> = self.rows.clone().map(|row| self.call.view(row)).collect();
        let sinks = views.iter().map(|view| view.sinks).max().unwrap_or(0);
        let seen = || views.iter().filter(|view| !view.recent.is_empty());
        let start = seen().map(|view| view.recent.start).min().unwrap_or(0) / BLOCK;
        let end = seen().map(|view| view.recent.end).max().unwrap_or(0).div_ceil(BLOCK);

        // Scores of a query: sinks, then, from the next multiple of eight, the recent keys from block `start` on.
        let sink_blocks = sinks.div_ceil(BLOCK);
        let stride = (sink_blocks + end - start) * BLOCK;
        let queries = views.len() * heads;
        scratch.resize(queries * (2 * head_dim + stride), 0.0);
        let (rotated, rest) = scratch.split_at_mut(queries * head_dim);
        let (out, weights) = rest.split_at_mut(queries * head_dim);

        let blocks = keys.blocks.len();
        let tiles = &self.tiles[kv_head * blocks * head_dim..(kv_head + 1) * blocks * head_dim];
        for sink in [true, false] {
            for (row, rotated) in self.rows.clone().zip(rotated.chunks_exact_mut(heads * head_dim)) {
                self.call.rotate_queries(s, row, sink, kv_head * heads, rotated);
            }
            let (first, count, to) =
                if sink { (0, sink_blocks, 0) } else { (keys.sink_blocks() + start, end - start, sink_blocks) };
            let mut block = 0;
            while block < count {
                let pair = S::WIDE && block + 2 <= count;
                let tile = |block: usize| &tiles[(first + block) * head_dim..(first + block + 1) * head_dim];
                let mut query = 0;
                while query < queries {
                    let left = queries - query;
                    let group = if S::WIDE && left >= 6 { 6 } else { group_of(left) };
                    let q = &rotated[query * head_dim..(query + group) * head_dim];
                    let w = &mut weights[query * stride + (to + block) * BLOCK..];
                    match (group, pair) {
                        (6, true) => store_scores::<S, 6, 2>(s, q, [tile(block), tile(block + 1)], w, stride),
                        (3, true) => store_scores::<S, 3, 2>(s, q, [tile(block), tile(block + 1)], w, stride),
                        (_, true) => store_scores::<S, 1, 2>(s, q, [tile(block), tile(block + 1)], w, stride),
                        (6, false) => store_scores::<S, 6, 1>(s, q, [tile(block)], w, stride),
                        (3, false) => store_scores::<S, 3, 1>(s, q, [tile(block)], w, stride),
                        (_, false) => store_scores::<S, 1, 1>(s, q, [tile(block)], w, stride),
                    }
                    query += group;
                }
                block += if pair { 2 } else { 1 };
            }
        }

        let mut sums = vec![[0.0; 4]; queries];
        for (query, (weights, sums)) in weights.chunks_exact_mut(stride).zip(&mut sums).enumerate() {
            let view = &views[query / heads];
            let (sinks, recent) = weights.split_at_mut(sink_blocks * BLOCK);
            let at = if view.recent.is_empty() { 0 } else { view.recent.start - start * BLOCK };
            let scores = [&mut sinks[..view.sinks], &mut recent[at..at + view.recent.len()]];
            let (row, head) = (self.rows.start + query / heads, kv_head * heads + query % heads);
            self.call.keep_scores(row, head, 0, scores[0]);
            self.call.keep_scores(row, head, view.sinks, scores[1]);
            *sums = softmax(s, scores, [view.sinks, FIRST_KEYS]);
        }

        out.fill(0.0);
        let all = keys.len * head_dim;
        let values = self.values[kv_head * all..(kv_head + 1) * all].as_chunks::<8>().0;
        let values = WideValues { values, len: head_dim / 8 };
        for (row, view) in views.iter().enumerate() {
            let out = &mut out[row * heads * head_dim..(row + 1) * heads * head_dim];
            let counted = keys.first_value().min(view.sinks)..view.sinks;
            add_row(
                s,
                values,
                counted.clone(),
                &weights[row * heads * stride + counted.start..],
                stride,
                out,
                head_dim,
            );
        }
        for near in (start * BLOCK..end * BLOCK).step_by(NEAR_KEYS) {
            for (row, view) in views.iter().enumerate() {
                let range = near.max(view.recent.start)..(near + NEAR_KEYS).min(view.recent.end);
                if !range.is_empty() {
                    let weights = &weights[row * heads * stride + sink_blocks * BLOCK + range.start - start * BLOCK..];
                    let range = keys.sinks + range.start..keys.sinks + range.end;
                    let out = &mut out[row * heads * head_dim..(row + 1) * heads * head_dim];
                    add_row(s, values, range, weights, stride, out, head_dim);
                }
            }
        }
        for (query, [greatest, sums @ ..]) in sums.into_iter().enumerate() {
            let (row, head) = (self.rows.start + query / heads, kv_head * heads + query % heads);
            self.call.finish(row, head, &out[query * head_dim..(query + 1) * head_dim], greatest, sums);
        }
    }
}

/// Scores of `B` blocks; query `g` writes its eights at `weights[g * stride]`.
#[inline(always)]
fn store_scores<S: Simd, const G: usize, const B: usize>(
    s: S,
    queries: &[f32],
    tiles: [&[[f32; BLOCK]]; B],
    weights: &mut [f32],
    stride: usize,
) {
    let sums = scores::<S, G, B>(s, queries, tiles);
    for g in 0..G {
        let to = &mut weights[g * stride..][..B * BLOCK];
        for (sum, to) in sums[g].into_iter().zip(to.as_chunks_mut().0) {
            s.store(sum, to);
        }
    }
}
