//! Attention over sinks, ring and the chunk itself, with RoPE applied on read.
//!
//! A single row reads each key and value once, channels in lanes, for all query heads that share it; its keys are split
//! among the threads, and the partial results merged. A chunk prepares all keys, eight in the lanes of a tile, and all
//! values once; then threads share its rows, and the rows of a part share each tile while it is near.

use super::append::encode;
use super::simd::{self, Kernel, Simd, dispatch};
use super::threads::{self, Disjoint, share};
use super::{Heads, Storage};
use crate::step::{FIRST_KEYS, LaneStep, ReportLayout, SOFTMAX_ONE, StepView, ZERO_SINKS};
use std::cell::RefCell;
use std::ops::Range;

/// What an attention is over.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The layer's heads.
    pub heads: Heads,
    /// How the arena keeps keys and values.
    pub storage: Storage,
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
/// chunk; the chunk's own are rounded to storage precision first. The report's two masses of each row and head of this
/// layer are written.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: `[sinks + recent, slot_words]` of each lane, of this layer
/// - out: `[rows, q_cols]`, of all lanes
/// - report: `[rows, stride]`, of all lanes
///
/// # Panics
/// If a slice is shorter than the step needs, a key's position is outside `rope`, or [`Heads::check`] would refuse.
pub fn attend(a: &Attend<'_>, qkv: &[f32], arena: &[u32], out: &mut [f32], report: &mut [f32]) {
    assert!(a.heads.head_dim.is_multiple_of(16) && a.heads.n_heads.is_multiple_of(a.heads.n_kv_heads), "the heads");
    let mut scratch = SCRATCH.take();
    let (out, report) = (Disjoint::new(out), Disjoint::new(report));
    for lane in a.step.lanes_of(a.store) {
        scratch.round_chunk(a, &lane, qkv);
        let keys = Keys::new(a, &lane, &arena[lane.at as usize..], &scratch.fresh);
        let call = Call { a, lane, qkv, keys: &keys, out: &out, report: &report };
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
    fn round_chunk(&mut self, a: &Attend<'_>, lane: &LaneStep, qkv: &[f32]) {
        let slot_words = a.storage.slot_words(a.heads);
        let rows = lane.rows as usize;
        self.fresh.resize(rows * slot_words, 0);
        let fresh = Disjoint::new(&mut self.fresh);
        threads::run(rows, |row| {
            let at = (lane.row0 as usize + row) * a.heads.qkv_cols() + a.heads.q_cols();
            // SAFETY: parts have different rows.
            let words = unsafe { fresh.range(row * slot_words..(row + 1) * slot_words) };
            encode(a.storage, &qkv[at..at + 2 * a.heads.kv_cols()], words);
        });
    }
}

/// All keys that a chunk sees: sinks, then recent ones, oldest first.
struct Keys<'a> {
    lane: LaneStep,
    arena: &'a [u32],
    /// Slots of the chunk's own.
    fresh: &'a [u32],
    slot_words: usize,
    sinks: usize,
    len: usize,
    /// Stream index of the first recent one, and its place in the ring.
    oldest: u32,
    place: usize,
    /// Sinks and recent keys never share a block, since queries are rotated differently for the two.
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
    fn new(a: &Attend<'_>, lane: &LaneStep, arena: &'a [u32], fresh: &'a [u32]) -> Self {
        let rows = (lane.row0..lane.row0 + lane.rows).map(|row| a.step.row(row as usize));
        let sinks = rows.clone().map(|row| row.sinks_held).max().unwrap_or(0).min(lane.sinks) as usize;
        let end = lane.start + lane.rows;
        let oldest = rows.filter(|row| row.index >= lane.sinks).map(|row| row.first.max(lane.sinks)).min();
        let oldest = oldest.unwrap_or(end);
        let len = sinks + (end - oldest) as usize;
        let blocks = |first: usize, end: usize, position: usize| {
            (first..end).step_by(BLOCK).map(move |at| KeyBlock {
                first: at,
                len: BLOCK.min(end - at),
                position: position + at - first,
            })
        };
        let angle = oldest.saturating_sub(lane.base) as usize;
        Keys {
            lane: *lane,
            arena,
            fresh,
            slot_words: a.storage.slot_words(a.heads),
            sinks,
            len,
            oldest,
            place: oldest.saturating_sub(lane.sinks).checked_rem(lane.recent).unwrap_or(0) as usize,
            blocks: blocks(0, sinks, 0).chain(blocks(sinks, len, angle)).collect(),
        }
    }

    /// The words of a block's keys and values; the last key again where there are fewer.
    #[inline(always)]
    fn slots(&self, block: KeyBlock) -> [&'a [u32]; BLOCK] {
        std::array::from_fn(|lane| self.slot(block.first + lane.min(block.len - 1)))
    }

    fn sink_blocks(&self) -> usize {
        self.sinks.div_ceil(BLOCK)
    }

    /// The first key whose value counts.
    fn first_value(&self) -> usize {
        if self.lane.flags & ZERO_SINKS == 0 { 0 } else { self.sinks }
    }

    /// The words of a key and its value.
    #[inline(always)]
    fn slot(&self, key: usize) -> &'a [u32] {
        let recent = key.wrapping_sub(self.sinks);
        let index = if key < self.sinks { key } else { self.oldest as usize + recent };
        let (from, slot) = match index.checked_sub(self.lane.start as usize) {
            Some(row) => (self.fresh, row),
            None if key < self.sinks => (self.arena, key),
            None => {
                // The ring holds no key twice, so it is passed once.
                let (place, ring) = (self.place + recent, self.lane.recent as usize);
                (self.arena, self.lane.sinks as usize + if place < ring { place } else { place - ring })
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
    lane: LaneStep,
    qkv: &'a [f32],
    keys: &'a Keys<'a>,
    out: &'a Disjoint<'a, f32>,
    report: &'a Disjoint<'a, f32>,
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

    /// Writes a head's output and masses. `sums` are of the weights, which are relative to the score `greatest`: all,
    /// sinks, first keys. Here the denominator gets its extra logit.
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

    /// Words of a head's keys, or of its values.
    fn head_words(&self) -> usize {
        match self.a.storage {
            Storage::F32 => self.a.heads.head_dim,
            Storage::F16 => self.a.heads.head_dim / 2,
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
        let words = self.head_words();
        let rows = self.keys.slots(block).map(|slot| &slot[kv_head * words..(kv_head + 1) * words]);
        for group in 0..words / 8 {
            let columns = columns(s, rows, group);
            match self.a.storage {
                Storage::F32 => {
                    for i in 0..8 {
                        s.store(s.as_f(columns[i]), &mut tile[8 * group + i]);
                    }
                }
                Storage::F16 => {
                    for i in 0..8 {
                        s.store(simd::low_halves(s, columns[i]), &mut tile[16 * group + 2 * i]);
                        s.store(simd::high_halves(s, columns[i]), &mut tile[16 * group + 2 * i + 1]);
                    }
                }
            }
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

/// Eight values of a slot, from value `8 * n`.
#[inline(always)]
fn eight<S: Simd, const HALF: bool>(s: S, words: &[u32], n: usize) -> S::F {
    if HALF { s.halves(&words.as_chunks().0[n]) } else { s.as_f(s.load_i(&words.as_chunks().0[n])) }
}

/// Query heads that are done at once, of `left`: few variants, since each is compiled for each instruction set.
fn group_of(left: usize) -> usize {
    if left >= 3 { 3 } else { 1 }
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

/// Scores, of sink keys and of recent ones, become weights `exp(score - greatest)`. Returns the greatest score, and the
/// sums of all weights, of those of sinks and of the first `first`.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: [&mut [f32]; 2], first: usize) -> [f32; 4] {
    let mut greatest = f32::NEG_INFINITY;
    for scores in &scores {
        let (eights, rest) = scores.as_chunks::<8>();
        let mut greatest8 = s.splat(greatest);
        for x in eights {
            greatest8 = s.max(s.load(x), greatest8);
        }
        greatest = rest.iter().fold(simd::greatest(s, greatest8), |a, &b| a.max(b));
    }
    let mut totals = [0.0; 2];
    let mut firsts = 0.0;
    let mut left = first;
    for (scores, whole) in scores.into_iter().zip(&mut totals) {
        for chunk in scores.chunks_mut(128) {
            let mut sum = s.splat(0.0);
            let (eights, rest) = chunk.as_chunks_mut::<8>();
            for x in eights {
                let weight = simd::exp(s, s.sub(s.load(x), s.splat(greatest)));
                sum = s.add(sum, weight);
                s.store(weight, x);
            }
            let mut last = [f32::NEG_INFINITY; 8];
            last[..rest.len()].copy_from_slice(rest);
            s.store(simd::exp(s, s.sub(s.load(&last), s.splat(greatest))), &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
            *whole += f64::from(simd::sum(s, sum)) + rest.iter().map(|&x| f64::from(x)).sum::<f64>();
        }
        let these = left.min(scores.len());
        firsts += scores[..these].iter().map(|&x| f64::from(x)).sum::<f64>();
        left -= these;
    }
    [greatest, (totals[0] + totals[1]) as f32, totals[0] as f32, firsts as f32]
}

/// Where a head's values lie.
trait Values: Copy {
    /// Eight channels of a key's value, from channel `8 * n`.
    fn eight<S: Simd>(&self, s: S, key: usize, n: usize) -> S::F;
}

/// In the slots.
#[derive(Clone, Copy)]
struct SlotValues<'a, const HALF: bool> {
    slots: &'a [&'a [u32]],
    at: usize,
    len: usize,
}

impl<const HALF: bool> Values for SlotValues<'_, HALF> {
    #[inline(always)]
    fn eight<S: Simd>(&self, s: S, key: usize, n: usize) -> S::F {
        eight::<S, HALF>(s, &self.slots[key][self.at..self.at + self.len], n)
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
        add_vectors::<S, V, G, 2>(s, values, keys.clone(), weights, stride, out, at);
        at += 2;
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
    let weights: [&[f32]; G] = std::array::from_fn(|g| &weights[g * stride..][..keys.len()]);
    let mut sums = [[s.splat(0.0); G]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        for (g, sum) in sums.iter_mut().enumerate() {
            *sum = s.load(&out[g * vectors + at + n]);
        }
    }
    for (i, key) in keys.enumerate() {
        // Three weights, one value and twelve sums are all the registers there are.
        let mut weight = [s.splat(0.0); G];
        for g in 0..G {
            weight[g] = s.splat(weights[g][i]);
        }
        for (n, sums) in sums.iter_mut().enumerate() {
            let value = values.eight(s, key, at + n);
            for g in 0..G {
                sums[g] = s.mul_add(weight[g], value, sums[g]);
            }
        }
    }
    for (n, sums) in sums.into_iter().enumerate() {
        for (g, sum) in sums.into_iter().enumerate() {
            s.store(sum, &mut out[g * vectors + at + n]);
        }
    }
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
        match self.call.a.storage {
            Storage::F16 => self.keys::<S, true>(s),
            Storage::F32 => self.keys::<S, false>(s),
        }
    }
}

impl OneRow<'_> {
    #[inline(always)]
    fn keys<S: Simd, const HALF: bool>(self, s: S) {
        let Heads { n_heads, n_kv_heads, head_dim } = self.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let row = self.call.lane.row0 as usize;
        let keys = self.call.keys;
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
        let words = self.call.head_words();
        let kv_words = n_kv_heads * words;
        for block in blocks {
            // Slots lie too far apart for the machine to see them coming.
            for key in block.first + BLOCK..end.min(block.first + 2 * BLOCK) {
                simd::prefetch(s, &keys.slot(key)[..kv_words]);
            }
            let slots = keys.slots(*block);
            let queries = if block.first < keys.sinks { &*sink_queries } else { &*recent_queries };
            for kv_head in 0..n_kv_heads {
                let keys = slots.map(|slot| &slot[kv_head * words..(kv_head + 1) * words]);
                let mut done = 0;
                while done < heads {
                    let head = kv_head * heads + done;
                    let group = group_of(heads - done);
                    let q = &queries[head * head_dim..(head + group) * head_dim];
                    let w = &mut weights[head * stride + block.first - first..];
                    match (group, head_dim) {
                        (3, 64) => self.score_block::<S, HALF, 4, 3>(s, *block, keys, q, w, stride),
                        (3, _) => self.score_block::<S, HALF, 0, 3>(s, *block, keys, q, w, stride),
                        _ => self.score_block::<S, HALF, 0, 1>(s, *block, keys, q, w, stride),
                    }
                    done += group;
                }
            }
        }
        // Keys of this part that are sinks, and that are among the first.
        let sinks = keys.sinks.clamp(first, end) - first;
        let firsts = FIRST_KEYS.clamp(first, end) - first;
        for head in 0..n_heads {
            let (sinks, recent) = weights[head * stride..][..end - first].split_at_mut(sinks);
            let sums = softmax(s, [sinks, recent], firsts);
            self.partials[head * (head_dim + 4) + head_dim..][..4].copy_from_slice(&sums);
        }
        out.fill(0.0);
        for near in (first.max(keys.first_value())..end).step_by(NEAR_KEYS) {
            let near = near..end.min(near + NEAR_KEYS);
            for key in near.end..end.min(near.end + NEAR_KEYS) {
                simd::prefetch(s, &keys.slot(key)[kv_words..]);
            }
            let mut slots = [&[][..]; NEAR_KEYS];
            for (slot, key) in slots.iter_mut().zip(near.clone()) {
                *slot = keys.slot(key);
            }
            let slots = &slots[..near.len()];
            for kv_head in 0..n_kv_heads {
                let values = SlotValues::<HALF> { slots, at: (n_kv_heads + kv_head) * words, len: words };
                let weights = &weights[kv_head * heads * stride + near.start - first..];
                let out = &mut out[kv_head * heads * head_dim..(kv_head + 1) * heads * head_dim];
                add_row(s, values, 0..near.len(), weights, stride, out, head_dim);
            }
        }
        for (partial, out) in self.partials.chunks_exact_mut(head_dim + 4).zip(out.chunks_exact(head_dim)) {
            partial[..head_dim].copy_from_slice(out);
        }
        SCORES.set(scratch);
    }

    /// Scores of one block; query `g` writes its eight at `weights[g * stride]`. A head has `16 * N` channels; any number
    /// where `N` is 0.
    #[inline(always)]
    fn score_block<S: Simd, const HALF: bool, const N: usize, const G: usize>(
        &self,
        s: S,
        block: KeyBlock,
        keys: [&[u32]; BLOCK],
        queries: &[f32],
        weights: &mut [f32],
        stride: usize,
    ) {
        let half = if N > 0 { N } else { self.call.a.heads.head_dim / 16 };
        let head_dim = 16 * half;
        let words = if HALF { head_dim / 2 } else { head_dim };
        let queries: [_; G] = std::array::from_fn(|g| Halves::new(&queries[g * head_dim..(g + 1) * head_dim], half));
        let mut sums = [[s.splat(0.0); BLOCK]; G];
        for lane in 0..BLOCK {
            let key = lane.min(block.len - 1);
            let (low, high) = keys[lane][..words].split_at(words / 2);
            let angles = Halves::new(&self.call.a.rope[(block.position + key) * head_dim..][..head_dim], half);
            let mut sum = [s.splat(0.0); G];
            for n in 0..half {
                let (x, y) = (eight::<S, HALF>(s, low, n), eight::<S, HALF>(s, high, n));
                let [x, y] = rotate(s, x, y, s.load(&angles.low[n]), s.load(&angles.high[n]));
                for g in 0..G {
                    let (low, high) = (s.load(&queries[g].low[n]), s.load(&queries[g].high[n]));
                    sum[g] = s.mul_add(y, high, s.mul_add(x, low, sum[g]));
                }
            }
            for g in 0..G {
                sums[g][lane] = sum[g];
            }
        }
        for g in 0..G {
            if let Some(to) = weights[g * stride..].first_chunk_mut() {
                s.store(s.sums(sums[g]), to);
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
        let words = self.call.head_words();
        for kv_head in 0..n_kv_heads {
            let at = (kv_head * keys.blocks.len() + self.block) * head_dim;
            // SAFETY: parts have different blocks.
            let tile = unsafe { self.tiles.range(at..at + head_dim) };
            self.call.key_tile(s, block, kv_head, &angles, tile);
            let at = (kv_head * keys.len + block.first) * head_dim;
            // SAFETY: parts have different blocks, and blocks different keys.
            let values = unsafe { self.values.range(at..at + block.len * head_dim) };
            for (i, value) in values.chunks_exact_mut(head_dim).enumerate() {
                let from = &keys.slot(block.first + i)[(n_kv_heads + kv_head) * words..][..words];
                for (n, value) in value.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    match self.call.a.storage {
                        Storage::F32 => s.store(eight::<S, false>(s, from, n), value),
                        Storage::F16 => s.store(eight::<S, true>(s, from, n), value),
                    }
                }
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
            *sums = softmax(s, scores, FIRST_KEYS);
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
