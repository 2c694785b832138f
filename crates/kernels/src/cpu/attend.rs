//! Attention over sinks, ring and the chunk itself, with RoPE applied on read.
//!
//! Keys go in blocks of eight, one a lane: gathered, turned over, rotated, and then multiplied with every query that sees
//! them. A single row works block by block, its keys split among the threads and the partial results merged; a chunk
//! prepares all keys and values once, and then splits its rows.

use super::append::{encode, slot_of};
use super::simd::{self, Kernel, Simd, dispatch};
use super::threads::{self, Disjoint, share};
use super::{Heads, Storage};
use crate::step::{FIRST_KEYS, LaneStep, ReportLayout, StepView};
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
    /// The lane whose rows attend.
    pub lane: usize,
    /// The layer, for the report.
    pub layer: usize,
    /// The report's layout.
    pub report: ReportLayout,
}

/// Keys of a block.
const BLOCK: usize = 8;
/// Room before a row's scores: the first block may begin before the first key that the row sees.
const PAD: usize = BLOCK;
/// Fewer keys than this are not split.
const SPLIT_FROM: usize = 96;
/// Rows of a chunk that one part does.
const PART_ROWS: usize = 4;

/// Attention of a lane's rows. Keys older than the lane's first row come from the arena as it was before the chunk; the
/// chunk's own are rounded to storage precision first. The report's two masses of each row and head of this layer are
/// written.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: `[sinks + recent, slot_words]`, of this lane and layer
/// - out: `[rows, q_cols]`, of all lanes
/// - report: `[rows, stride]`, of all lanes
///
/// # Panics
/// If a slice is shorter than the step needs, a key's position is outside `rope`, or [`Heads::check`] would refuse.
pub fn attend(a: &Attend<'_>, qkv: &[f32], arena: &[u32], out: &mut [f32], report: &mut [f32]) {
    assert!(a.heads.head_dim.is_multiple_of(16) && a.heads.n_heads.is_multiple_of(a.heads.n_kv_heads), "the heads");
    let lane = a.step.lane(a.lane);
    if lane.rows == 0 {
        return;
    }
    let mut scratch = SCRATCH.take();
    scratch.round_chunk(a, &lane, qkv);
    let keys = Keys::new(a, &lane, arena, &scratch.fresh);
    let (out, report) = (Disjoint::new(out), Disjoint::new(report));
    let call = Call { a, lane, qkv, keys: &keys, out: &out, report: &report };
    if lane.rows == 1 {
        call.one_row(&mut scratch.partials);
    } else {
        call.chunk(&mut scratch.tiles, &mut scratch.values);
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
    /// Values in the order in which a slot's words yield them: `[kv_heads, keys, head_dim]`.
    values: Vec<u32>,
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
    /// The slot of each.
    slots: Vec<&'a [u32]>,
    sinks: usize,
    /// Stream index of the first recent one.
    oldest: u32,
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
        let sinks = rows.clone().map(|row| row.sinks_held).max().unwrap_or(0);
        let end = lane.start + lane.rows;
        let oldest = rows.filter(|row| row.index >= lane.sinks).map(|row| row.first.max(lane.sinks)).min();
        let oldest = oldest.unwrap_or(end);
        let slot_words = a.storage.slot_words(a.heads);
        let slot = |index: u32| {
            let (from, slot) = match index.checked_sub(lane.start) {
                Some(row) => (fresh, row as usize),
                None => (arena, slot_of(lane, index).unwrap_or(usize::MAX)),
            };
            &from[slot * slot_words..(slot + 1) * slot_words]
        };
        let slots: Vec<_> = (0..sinks).chain(oldest..end).map(slot).collect();
        let sinks = sinks as usize;
        let blocks = |first: usize, end: usize, position: usize| {
            (first..end).step_by(BLOCK).map(move |at| KeyBlock {
                first: at,
                len: BLOCK.min(end - at),
                position: position + at - first,
            })
        };
        let angle = oldest.saturating_sub(lane.base) as usize;
        let blocks = blocks(0, sinks, 0).chain(blocks(sinks, slots.len(), angle)).collect();
        Keys { slots, sinks, oldest, blocks }
    }

    fn sink_blocks(&self) -> usize {
        self.sinks.div_ceil(BLOCK)
    }
}

/// The keys that a row sees: the first sinks, and a range of the recent ones.
#[derive(Clone)]
struct View {
    sinks: usize,
    recent: Range<usize>,
}

impl View {
    fn len(&self) -> usize {
        self.sinks + self.recent.len()
    }
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
            keys.sinks..keys.sinks
        } else {
            let first = row.first.max(self.lane.sinks);
            let at = |index: u32| keys.sinks + (index - keys.oldest) as usize;
            at(first)..at(row.index + 1)
        };
        View { sinks: (row.sinks_held as usize).min(keys.sinks), recent }
    }

    /// One row: threads share its keys.
    fn one_row(&self, partials: &mut Vec<f32>) {
        let heads = self.a.heads;
        let blocks = self.keys.blocks.len();
        let parts = if blocks * BLOCK < SPLIT_FROM { 1 } else { threads::threads().min(blocks) };
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
        for head in 0..heads.n_heads {
            let partial = |part: usize| &partials[(part * heads.n_heads + head) * stride..][..stride];
            let greatest = (0..parts).map(|part| partial(part)[heads.head_dim]).fold(f32::NEG_INFINITY, f32::max);
            let mut out = vec![0.0; heads.head_dim];
            let mut sums = [0.0; 3];
            for part in 0..parts {
                let (values, rest) = partial(part).split_at(heads.head_dim);
                let factor = (rest[0] - greatest).exp();
                out.iter_mut().zip(values).for_each(|(out, value)| *out += value * factor);
                sums.iter_mut().zip(&rest[1..]).for_each(|(sum, x)| *sum += x * factor);
            }
            self.finish(self.lane.row0 as usize, head, &out, sums);
        }
    }

    /// A chunk: all keys and values are prepared, then threads share the rows.
    fn chunk(&self, tiles: &mut Vec<[f32; BLOCK]>, values: &mut Vec<u32>) {
        let Heads { n_kv_heads, head_dim, .. } = self.a.heads;
        tiles.resize(n_kv_heads * self.keys.blocks.len() * head_dim, [0.0; BLOCK]);
        values.resize(n_kv_heads * self.keys.slots.len() * head_dim, 0);
        let (shared_tiles, shared_values) = (Disjoint::new(tiles), Disjoint::new(values));
        threads::run(self.keys.blocks.len(), |block| {
            dispatch(Prepare { call: self, block, tiles: &shared_tiles, values: &shared_values });
        });
        let rows = self.lane.rows as usize;
        threads::run(rows.div_ceil(PART_ROWS), |part| {
            let row0 = self.lane.row0 as usize;
            let rows = row0 + part * PART_ROWS..row0 + rows.min((part + 1) * PART_ROWS);
            dispatch(ChunkRows { call: self, rows, tiles, values });
        });
    }

    /// Writes a head's output and masses. `sums` are of the weights: all, sinks, first keys.
    fn finish(&self, row: usize, head: usize, values: &[f32], sums: [f32; 3]) {
        let Heads { head_dim, .. } = self.a.heads;
        let at = row * self.a.heads.q_cols() + head * head_dim;
        let mass_at = row * self.a.report.stride() + self.a.report.mass_at(self.a.layer, head);
        // SAFETY: parts have different rows.
        let (out, masses) = unsafe { (self.out.range(at..at + head_dim), self.report.range(mass_at..mass_at + 2)) };
        masses[0] = sums[1] / sums[0];
        masses[1] = sums[2] / sums[0];
        match self.a.storage {
            Storage::F32 => out.iter_mut().zip(values).for_each(|(out, value)| *out = value / sums[0]),
            Storage::F16 => {
                // Sixteen channels come as the eight even ones, then the eight odd ones.
                for (out, values) in out.as_chunks_mut::<16>().0.iter_mut().zip(values.as_chunks::<16>().0) {
                    for i in 0..8 {
                        out[2 * i] = values[i] / sums[0];
                        out[2 * i + 1] = values[8 + i] / sums[0];
                    }
                }
            }
        }
    }

    /// The queries of some heads, rotated for sink keys or for recent ones, scaled by `1 / sqrt(head_dim)`.
    #[inline(always)]
    fn rotate_queries(&self, row: usize, sink: bool, head: usize, queries: &mut [f32]) {
        let head_dim = self.a.heads.head_dim;
        let half = head_dim / 2;
        let step = self.a.step.row(row);
        let (cos, sin) = if sink {
            (step.cos, step.sin)
        } else {
            let position = step.index.saturating_sub(self.lane.base) as usize;
            self.a.rope[position * head_dim..(position + 1) * head_dim].split_at(half)
        };
        let scale = 1.0 / (head_dim as f32).sqrt();
        for (i, query) in queries.chunks_exact_mut(head_dim).enumerate() {
            let q = &self.qkv[row * self.a.heads.qkv_cols() + (head + i) * head_dim..][..head_dim];
            let (low, high) = query.split_at_mut(half);
            for i in 0..half {
                low[i] = (q[i] * cos[i] - q[i + half] * sin[i]) * scale;
                high[i] = (q[i] * sin[i] + q[i + half] * cos[i]) * scale;
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
        let rows: [&[f32]; BLOCK] = std::array::from_fn(|lane| {
            let position = block.position + lane.min(block.len - 1);
            &self.a.rope[position * head_dim..(position + 1) * head_dim]
        });
        for (group, angles) in angles.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut lanes = [s.splat_i(0); 8];
            for (lane, row) in lanes.iter_mut().zip(rows) {
                *lane = s.as_i(s.load(&row.as_chunks().0[group]));
            }
            let columns = s.transpose(lanes);
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
        let rows: [&[[u32; 8]]; BLOCK] = std::array::from_fn(|lane| {
            let slot = self.keys.slots[block.first + lane.min(block.len - 1)];
            slot[kv_head * words..(kv_head + 1) * words].as_chunks().0
        });
        for group in 0..words / 8 {
            let mut lanes = [s.splat_i(0); 8];
            for lane in 0..8 {
                lanes[lane] = s.load_i(&rows[lane][group]);
            }
            let columns = s.transpose(lanes);
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
            let minus_y = s.sub(s.splat(0.0), y);
            s.store(s.mul_add(minus_y, sin, s.mul(x, cos)), &mut low[i]);
            s.store(s.mul_add(y, cos, s.mul(x, sin)), &mut high[i]);
        }
    }
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

/// Scores become weights `exp(score - greatest)`. Returns the greatest score, and the sums of all weights, of those of
/// the first `sinks` and of the first `first`.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], sinks: usize, first: usize) -> [f32; 4] {
    let mut greatest = f32::NEG_INFINITY;
    for score in scores.iter() {
        greatest = if *score > greatest { *score } else { greatest };
    }
    let mut total = 0.0;
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
        total += f64::from(simd::sum(s, sum)) + rest.iter().map(|&x| f64::from(x)).sum::<f64>();
    }
    let mass = |n: usize| scores[..n].iter().map(|&x| f64::from(x)).sum::<f64>() as f32;
    [greatest, total as f32, mass(sinks), mass(first)]
}

/// Where a head's values lie.
trait Values: Copy {
    /// The words of a key's value.
    fn words(&self, key: usize) -> &[u32];
}

/// In the slots.
#[derive(Clone, Copy)]
struct SlotValues<'a> {
    slots: &'a [&'a [u32]],
    at: usize,
    len: usize,
}

impl Values for SlotValues<'_> {
    #[inline(always)]
    fn words(&self, key: usize) -> &[u32] {
        &self.slots[key][self.at..self.at + self.len]
    }
}

/// Widened to single precision.
#[derive(Clone, Copy)]
struct WideValues<'a> {
    words: &'a [u32],
    len: usize,
}

impl Values for WideValues<'_> {
    #[inline(always)]
    fn words(&self, key: usize) -> &[u32] {
        &self.words[key * self.len..(key + 1) * self.len]
    }
}

/// Adds the values of keys `keys`, times the weights of `G` heads, to `out` (`G` times `head_dim`, in storage order).
/// The weights of head `g` begin at `weights[g * stride]`.
#[inline(always)]
fn add_values<S: Simd, V: Values, const HALF: bool, const G: usize>(
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
        add_vectors::<S, V, HALF, G, 4>(s, values, keys.clone(), weights, stride, out, at);
        at += 4;
    }
    while at < vectors {
        add_vectors::<S, V, HALF, G, 2>(s, values, keys.clone(), weights, stride, out, at);
        at += 2;
    }
}

/// `N` (even) of the vectors of [`add_values`], from vector `at`.
#[inline(always)]
fn add_vectors<S: Simd, V: Values, const HALF: bool, const G: usize, const N: usize>(
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
    let mut sums = [[s.splat(0.0); N]; G];
    for g in 0..G {
        for n in 0..N {
            sums[g][n] = s.load(&out[g * vectors + at + n]);
        }
    }
    for (i, key) in keys.enumerate() {
        let words = values.words(key).as_chunks::<8>().0;
        let mut value = [s.splat(0.0); N];
        if HALF {
            let words = &words[at / 2..(at + N) / 2];
            for n in 0..N / 2 {
                let word = s.load_i(&words[n]);
                value[2 * n] = simd::low_halves(s, word);
                value[2 * n + 1] = simd::high_halves(s, word);
            }
        } else {
            let words = &words[at..at + N];
            for n in 0..N {
                value[n] = s.as_f(s.load_i(&words[n]));
            }
        }
        for g in 0..G {
            let weight = s.splat(weights[g][i]);
            for n in 0..N {
                sums[g][n] = s.mul_add(weight, value[n], sums[g][n]);
            }
        }
    }
    for g in 0..G {
        for n in 0..N {
            s.store(sums[g][n], &mut out[g * vectors + at + n]);
        }
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
        let Heads { n_heads, n_kv_heads, head_dim } = self.call.a.heads;
        let row = self.call.lane.row0 as usize;
        let keys = self.call.keys;
        let blocks = &keys.blocks[self.blocks.clone()];
        let first = blocks.first().map_or(0, |block| block.first);
        let end = blocks.last().map_or(0, |block| block.first + block.len);
        let stride = end - first + BLOCK;
        // Queries for sinks and for recent keys, a tile, its angles, the scores.
        let mut scratch = SCORES.take();
        scratch.resize(2 * n_heads * head_dim + 2 * BLOCK * head_dim + n_heads * stride, 0.0);
        let (queries, rest) = scratch.split_at_mut(2 * n_heads * head_dim);
        let (tiles, weights) = rest.split_at_mut(2 * BLOCK * head_dim);
        let (tile, angles) = tiles.as_chunks_mut::<BLOCK>().0.split_at_mut(head_dim);
        let (sink_queries, recent_queries) = queries.split_at_mut(n_heads * head_dim);
        self.call.rotate_queries(row, true, 0, sink_queries);
        self.call.rotate_queries(row, false, 0, recent_queries);
        for block in blocks {
            let queries = if block.first < keys.sinks { &*sink_queries } else { &*recent_queries };
            self.call.angles(s, *block, angles);
            let at = block.first - first;
            for kv_head in 0..n_kv_heads {
                self.call.key_tile(s, *block, kv_head, angles, tile);
                let heads = n_heads / n_kv_heads;
                let mut done = 0;
                while done < heads {
                    let head = kv_head * heads + done;
                    let (q, w) = (&queries[head * head_dim..], &mut weights[head * stride + at..]);
                    match group_of(heads - done) {
                        3 => score_block::<S, 3>(s, q, tile, w, stride),
                        _ => score_block::<S, 1>(s, q, tile, w, stride),
                    }
                    done += group_of(heads - done);
                }
            }
        }
        let words = self.call.head_words();
        // Keys of this part that are sinks, and that are among the first.
        let sinks = keys.sinks.clamp(first, end) - first;
        let firsts = FIRST_KEYS.clamp(first, end) - first;
        for kv_head in 0..n_kv_heads {
            let values = SlotValues { slots: &keys.slots, at: (n_kv_heads + kv_head) * words, len: words };
            let heads = n_heads / n_kv_heads;
            let mut done = 0;
            while done < heads {
                let group = group_of(heads - done);
                let head = kv_head * heads + done;
                let mut out = vec![0.0; group * head_dim];
                let weights = &mut weights[head * stride..(head + group) * stride];
                for g in 0..group {
                    let sums = softmax(s, &mut weights[g * stride..][..end - first], sinks, firsts);
                    let partial = &mut self.partials[(head + g) * (head_dim + 4)..][..head_dim + 4];
                    partial[head_dim..].copy_from_slice(&sums);
                }
                let half = self.call.a.storage == Storage::F16;
                let range = first..end;
                match (group, half) {
                    (3, true) => add_values::<S, _, true, 3>(s, values, range, weights, stride, &mut out),
                    (_, true) => add_values::<S, _, true, 1>(s, values, range, weights, stride, &mut out),
                    (3, false) => add_values::<S, _, false, 3>(s, values, range, weights, stride, &mut out),
                    (_, false) => add_values::<S, _, false, 1>(s, values, range, weights, stride, &mut out),
                }
                for g in 0..group {
                    self.partials[(head + g) * (head_dim + 4)..][..head_dim]
                        .copy_from_slice(&out[g * head_dim..(g + 1) * head_dim]);
                }
                done += group;
            }
        }
        SCORES.set(scratch);
    }
}

/// Scores of one block; head `g` writes its eight at `weights[g * stride]`.
#[inline(always)]
fn score_block<S: Simd, const G: usize>(
    s: S,
    queries: &[f32],
    tile: &[[f32; BLOCK]],
    weights: &mut [f32],
    stride: usize,
) {
    let sums = scores::<S, G, 1>(s, queries, [tile]);
    for g in 0..G {
        if let Some(to) = weights[g * stride..].first_chunk_mut() {
            s.store(sums[g][0], to);
        }
    }
}

/// One block of a chunk's keys and values.
struct Prepare<'a> {
    call: &'a Call<'a>,
    block: usize,
    tiles: &'a Disjoint<'a, [f32; BLOCK]>,
    values: &'a Disjoint<'a, u32>,
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
            let at = (kv_head * keys.slots.len() + block.first) * head_dim;
            // SAFETY: parts have different blocks, and blocks different keys.
            let values = unsafe { self.values.range(at..at + block.len * head_dim) };
            for (i, value) in values.chunks_exact_mut(head_dim).enumerate() {
                let slot = keys.slots[block.first + i];
                let from = &slot[(n_kv_heads + kv_head) * words..][..words];
                match self.call.a.storage {
                    Storage::F32 => value.copy_from_slice(from),
                    Storage::F16 => {
                        let value = value.as_chunks_mut::<16>().0;
                        for (value, word) in value.iter_mut().zip(from.as_chunks::<8>().0) {
                            let word = s.load_i(word);
                            let (even, odd) = value.split_at_mut(8);
                            if let (Some(even), Some(odd)) = (even.as_mut_array(), odd.as_mut_array()) {
                                s.store_i(s.as_i(simd::low_halves(s, word)), even);
                                s.store_i(s.as_i(simd::high_halves(s, word)), odd);
                            }
                        }
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
    values: &'a [u32],
}

impl Kernel for ChunkRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Heads { n_heads, n_kv_heads, .. } = self.call.a.heads;
        let heads = n_heads / n_kv_heads;
        let mut scratch = SCORES.take();
        for kv_head in 0..n_kv_heads {
            for row in self.rows.clone() {
                let mut done = 0;
                while done < heads {
                    let head = kv_head * heads + done;
                    match group_of(heads - done) {
                        3 => self.group::<S, 3>(s, row, kv_head, head, &mut scratch),
                        _ => self.group::<S, 1>(s, row, kv_head, head, &mut scratch),
                    }
                    done += group_of(heads - done);
                }
            }
        }
        SCORES.set(scratch);
    }
}

impl ChunkRows<'_> {
    /// `G` heads of one row.
    #[inline(always)]
    fn group<S: Simd, const G: usize>(&self, s: S, row: usize, kv_head: usize, head: usize, scratch: &mut Vec<f32>) {
        let head_dim = self.call.a.heads.head_dim;
        let keys = self.call.keys;
        let view = self.call.view(row);
        let blocks = keys.blocks.len();
        let tiles = &self.tiles[kv_head * blocks * head_dim..(kv_head + 1) * blocks * head_dim];
        let tile = |block: usize| &tiles[block * head_dim..(block + 1) * head_dim];
        // The first block may begin before the first key seen, and two blocks are written at once.
        let stride = PAD + view.len() + 2 * BLOCK;
        scratch.resize(2 * G * head_dim + G * stride, 0.0);
        let (queries, weights) = scratch.split_at_mut(G * head_dim);
        let (out, weights) = weights.split_at_mut(G * head_dim);

        self.call.rotate_queries(row, false, head, queries);
        let seen = view.recent.start - keys.sinks..view.recent.end - keys.sinks;
        let sink_blocks = keys.sink_blocks();
        let (mut block, last) = (seen.start / BLOCK, seen.end.div_ceil(BLOCK));
        while block < last {
            let at = PAD + view.sinks + block * BLOCK - seen.start;
            let one = tile(sink_blocks + block);
            if S::WIDE && block + 2 <= last {
                let sums = scores::<S, G, 2>(s, queries, [one, tile(sink_blocks + block + 1)]);
                for g in 0..G {
                    let to = weights[g * stride + at..].as_chunks_mut::<BLOCK>().0;
                    s.store(sums[g][0], &mut to[0]);
                    s.store(sums[g][1], &mut to[1]);
                }
                block += 2;
            } else {
                score_block::<S, G>(s, queries, one, &mut weights[at..], stride);
                block += 1;
            }
        }
        // After the recent keys, whose first block may have written where the sinks' scores belong.
        self.call.rotate_queries(row, true, head, queries);
        for block in 0..view.sinks.div_ceil(BLOCK) {
            let len = BLOCK.min(view.sinks - block * BLOCK);
            let sums = scores::<S, G, 1>(s, queries, [tile(block)]);
            for g in 0..G {
                let mut eight = [0.0; BLOCK];
                s.store(sums[g][0], &mut eight);
                weights[g * stride + PAD + block * BLOCK..][..len].copy_from_slice(&eight[..len]);
            }
        }

        let mut sums = [[0.0; 4]; G];
        for g in 0..G {
            let weights = &mut weights[g * stride + PAD..][..view.len()];
            sums[g] = softmax(s, weights, view.sinks, FIRST_KEYS.min(view.len()));
        }
        out.fill(0.0);
        let all = keys.slots.len() * head_dim;
        let values = WideValues { words: &self.values[kv_head * all..(kv_head + 1) * all], len: head_dim };
        add_values::<S, _, false, G>(s, values, 0..view.sinks, &weights[PAD..], stride, out);
        add_values::<S, _, false, G>(s, values, view.recent, &weights[PAD + view.sinks..], stride, out);
        for g in 0..G {
            let [_, all, sinks, first] = sums[g];
            self.call.finish(row, head + g, &out[g * head_dim..(g + 1) * head_dim], [all, sinks, first]);
        }
    }
}
