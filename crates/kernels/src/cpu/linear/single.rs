//! Products in f32, eight rows of weights in the lanes.
//!
//! A weight is `d * code + m`, rounded once, as it is wherever weights are unpacked to f32. Columns are added one by one
//! within a panel, then the panels: less is lost than in one long sum, and the order is the same whatever the number of rows,
//! so that a chunk equals its rows.

#![expect(clippy::needless_range_loop, reason = "the innermost loops index several small arrays in step")]

use super::{Input, Target, inverse_rms, share_pairs};
use crate::cpu::simd::{self, Kernel, Simd, dispatch};
use crate::cpu::threads::Disjoint;
use crate::packed::{BLOCK, Codec, Packed, octets};
use std::cell::RefCell;
use std::ops::Range;

/// Rows that share a load of weights.
const TILE: usize = 6;
/// From this many rows on, unpacked weights are kept for the rows that follow.
const UNPACK_FROM: usize = 5;
/// Octets that one row meets at once: a sum waits for the one before it, so that there must be several.
const ABREAST: usize = 4;
/// Blocks of a pair of octets that are unpacked at a time: 12 KiB, which stays in the first cache.
const PANEL: usize = 6;
/// Pairs of octets whose products are gathered before they are stored: one after another, each would touch a line of
/// another page, which the caches cannot hold.
const STRIP: usize = 8;

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn linear(input: Input<'_>, w: &Packed<'_>, target: Target<'_>) {
    ACTIVATIONS.with_borrow_mut(|activations| {
        activations.prepare(input, w.codec);
        let rows = input.rows;
        share_pairs(octets(w.rows), |pairs| Part { activations, rows, w, target, pairs });
    });
}

/// The input as the inner loops read it, by row and block of 32 columns, in the order in which the codec's words yield
/// codes.
#[derive(Default)]
struct Activations {
    blocks: usize,
    values: Vec<[f32; BLOCK]>,
}

impl Activations {
    fn prepare(&mut self, input: Input<'_>, codec: Codec) {
        self.blocks = input.cols / BLOCK;
        let blocks = self.blocks;
        self.values.resize(input.rows * blocks, [0.0; BLOCK]);
        let values = Disjoint::new(&mut self.values);
        input.prepare(|rows, x| {
            // SAFETY: parts have different rows.
            let values = unsafe { values.range(rows.start * blocks..rows.end * blocks) };
            dispatch(Prepare { input: Input { x, ..input }, codec, values });
        });
    }

    fn row(&self, row: usize) -> &[[f32; BLOCK]] {
        &self.values[row * self.blocks..(row + 1) * self.blocks]
    }
}

struct Prepare<'a> {
    input: Input<'a>,
    codec: Codec,
    values: &'a mut [[f32; BLOCK]],
}

impl Kernel for Prepare<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.codec {
            Codec::Q4 => self.by::<S, Q4>(s),
            Codec::Q8 => self.by::<S, Q8>(s),
            Codec::F16 => self.by::<S, F16>(s),
            Codec::F32 => self.by::<S, F32>(s),
        }
    }
}

impl Prepare<'_> {
    #[inline(always)]
    fn by<S: Simd, C: Code>(self, s: S) {
        let blocks = self.input.cols / BLOCK;
        let gain = self.input.norm.map(|norm| norm.gain.as_chunks::<8>().0);
        for (x, out) in self.input.x.chunks_exact(self.input.cols).zip(self.values.chunks_exact_mut(blocks)) {
            let x = x.as_chunks::<8>().0;
            let factor = self.input.norm.map(|norm| s.splat(inverse_rms(s, x, norm.eps)));
            for (block, out) in out.iter_mut().enumerate() {
                let mut values = [[0.0; 8]; 4];
                for i in 0..4 {
                    let mut value = s.load(&x[4 * block + i]);
                    if let (Some(gain), Some(factor)) = (gain, factor) {
                        value = s.mul(s.mul(value, factor), s.load(&gain[4 * block + i]));
                    }
                    s.store(value, &mut values[i]);
                }
                let values = values.as_flattened();
                for (word, out) in out.chunks_exact_mut(C::CODES).enumerate() {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = values[C::column(word, i)];
                    }
                }
            }
        }
    }
}

/// How a word of eight rows yields weights.
trait Code {
    /// Codes of a word; a block has `BLOCK / CODES` words.
    const CODES: usize;
    /// Scale words of eight rows' block.
    const SCALES: usize;
    /// The column, within the block, of a word's code.
    fn column(word: usize, code: usize) -> usize;
    /// Scale and minimum of eight rows.
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2];
    /// The weights of code `i`.
    fn weights<S: Simd>(s: S, word: S::I, i: usize, scales: [S::F; 2]) -> S::F;
}

struct Q4;

impl Code for Q4 {
    const CODES: usize = 8;
    const SCALES: usize = 8;

    #[inline(always)]
    fn column(word: usize, code: usize) -> usize {
        4 * word + code / 2 + code % 2 * (BLOCK / 2)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2] {
        let words = words.as_array().map_or(s.splat_i(0), |words| s.load_i(words));
        [simd::low_halves(s, words), simd::high_halves(s, words)]
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, word: S::I, i: usize, [d, m]: [S::F; 2]) -> S::F {
        let shifted = match i {
            0 => word,
            1 => s.shift_right::<4>(word),
            2 => s.shift_right::<8>(word),
            3 => s.shift_right::<12>(word),
            4 => s.shift_right::<16>(word),
            5 => s.shift_right::<20>(word),
            6 => s.shift_right::<24>(word),
            _ => s.shift_right::<28>(word),
        };
        let code = if i < 7 { s.and(shifted, s.splat_i(0xF)) } else { shifted };
        s.mul_add(d, s.to_f(code), m)
    }
}

struct Q8;

impl Code for Q8 {
    const CODES: usize = 4;
    const SCALES: usize = 4;

    #[inline(always)]
    fn column(word: usize, code: usize) -> usize {
        4 * word + code
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2] {
        // Codes stand at the top of their words.
        let d = words.as_array().map_or(s.splat(0.0), |words| s.halves(words));
        [s.mul(d, s.splat(1.0 / (1 << 24) as f32)), s.splat(0.0)]
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, word: S::I, i: usize, [d, _]: [S::F; 2]) -> S::F {
        let top = match i {
            0 => s.shift_left::<24>(word),
            1 => s.shift_left::<16>(word),
            2 => s.shift_left::<8>(word),
            _ => word,
        };
        s.mul(d, s.to_f(s.and(top, s.splat_i(0xFF00_0000))))
    }
}

struct F16;

impl Code for F16 {
    const CODES: usize = 2;
    const SCALES: usize = 0;

    #[inline(always)]
    fn column(word: usize, code: usize) -> usize {
        2 * word + code
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, _: &[u32]) -> [S::F; 2] {
        [s.splat(0.0); 2]
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, word: S::I, i: usize, _: [S::F; 2]) -> S::F {
        if i == 0 { simd::low_halves(s, word) } else { simd::high_halves(s, word) }
    }
}

struct F32;

impl Code for F32 {
    const CODES: usize = 1;
    const SCALES: usize = 0;

    #[inline(always)]
    fn column(word: usize, _: usize) -> usize {
        word
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, _: &[u32]) -> [S::F; 2] {
        [s.splat(0.0); 2]
    }

    #[inline(always)]
    fn weights<S: Simd>(s: S, word: S::I, _: usize, _: [S::F; 2]) -> S::F {
        s.as_f(word)
    }
}

/// Memory that lasts from call to call.
#[derive(Default)]
struct Scratch {
    /// Products, by pair of the strip and row.
    products: Vec<[[f32; 8]; 2]>,
    /// A panel's weights, by block and column, of two octets.
    weights: Vec<[[[f32; 8]; 2]; BLOCK]>,
}

/// Some pairs of octets, times all rows.
struct Part<'a> {
    activations: &'a Activations,
    rows: usize,
    w: &'a Packed<'a>,
    target: Target<'a>,
    pairs: Range<usize>,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.w.codec {
            Codec::Q4 => self.by::<S, Q4>(s),
            Codec::Q8 => self.by::<S, Q8>(s),
            Codec::F16 => self.by::<S, F16>(s),
            Codec::F32 => self.by::<S, F32>(s),
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn by<S: Simd, C: Code>(self, s: S) {
        match self.rows {
            1 => self.direct::<S, C, 1, ABREAST>(s),
            2 => self.direct::<S, C, 2, 2>(s),
            3 => self.direct::<S, C, 3, 2>(s),
            4 => self.direct::<S, C, 4, 2>(s),
            _ => self.unpacked::<S, C>(s),
        }
    }

    /// `T` rows, in all, straight from the packed words, `O` octets at a time.
    #[inline(always)]
    fn direct<S: Simd, C: Code, const T: usize, const O: usize>(&self, s: S) {
        const { assert!(T < UNPACK_FROM && O.is_multiple_of(2)) }
        let x: [_; T] = std::array::from_fn(|t| self.activations.row(t));
        for first in self.pairs.clone().step_by(O / 2) {
            // Past the end the last octet again, whose products are dropped.
            let octets = std::array::from_fn(|o| (2 * first + o).min(self.target.octets - 1));
            let y = self.multiply::<S, C, T, O>(s, octets, x);
            for pair in 0..(O / 2).min(self.pairs.end - first) {
                for t in 0..T {
                    // SAFETY: parts have different pairs.
                    unsafe { self.target.finish(s, t, first + pair, [y[2 * pair][t], y[2 * pair + 1][t]]) };
                }
            }
        }
    }

    /// The products of `O` octets with `T` rows.
    #[inline(always)]
    fn multiply<S: Simd, C: Code, const T: usize, const O: usize>(
        &self,
        s: S,
        octets: [usize; O],
        x: [&[[f32; BLOCK]]; T],
    ) -> [[S::F; T]; O] {
        let n_words = BLOCK / C::CODES;
        let words: [&[[u32; 8]]; O] = octets.map(|octet| self.w.octet_words(octet).as_chunks().0);
        let scales: [&[u32]; O] = octets.map(|octet| self.w.octet_scales(octet));
        let mut y = [[s.splat(0.0); T]; O];
        let mut sums = y;
        for block in 0..self.activations.blocks {
            if block.is_multiple_of(PANEL) {
                add_panel(s, &mut y, &mut sums);
            }
            let mut block_scales = [[s.splat(0.0); 2]; O];
            for o in 0..O {
                block_scales[o] = C::scales(s, &scales[o][block * C::SCALES..(block + 1) * C::SCALES]);
                // The same block of the octets that come next.
                let ahead = words[o].as_ptr().wrapping_add(O * words[o].len() + block * n_words);
                for line in (0..n_words).step_by(2) {
                    s.prefetch(ahead.wrapping_add(line).cast());
                }
                s.prefetch(scales[o].as_ptr().wrapping_add(O * scales[o].len() + block * C::SCALES));
            }
            let x: [_; T] = std::array::from_fn(|t| &x[t][block]);
            for word in 0..n_words {
                for o in 0..O {
                    let codes = s.load_i(&words[o][block * n_words + word]);
                    for i in 0..C::CODES {
                        let weights = C::weights(s, codes, i, block_scales[o]);
                        for t in 0..T {
                            sums[o][t] = s.mul_add(weights, s.splat(x[t][word * C::CODES + i]), sums[o][t]);
                        }
                    }
                }
            }
        }
        add_panel(s, &mut y, &mut sums);
        y
    }

    /// Many rows: weights are unpacked a panel at a time.
    #[inline(always)]
    fn unpacked<S: Simd, C: Code>(&self, s: S) {
        // Taken and put back: within a closure of the thread-local's the instruction set would be lost.
        let mut scratch = SCRATCH.take();
        scratch.products.resize(STRIP * self.rows, [[0.0; 8]; 2]);
        scratch.weights.resize(PANEL, [[[0.0; 8]; 2]; BLOCK]);
        for first in self.pairs.clone().step_by(STRIP) {
            let strip = first..self.pairs.end.min(first + STRIP);
            for (pair, products) in strip.clone().zip(scratch.products.chunks_exact_mut(self.rows)) {
                products.fill([[0.0; 8]; 2]);
                for from in (0..self.activations.blocks).step_by(PANEL) {
                    let blocks = from..self.activations.blocks.min(from + PANEL);
                    let weights = &mut scratch.weights[..blocks.len()];
                    self.unpack::<S, C>(s, pair, blocks.clone(), weights);
                    self.panel(s, blocks, weights, products);
                }
            }
            for row in 0..self.rows {
                for (i, pair) in strip.clone().enumerate() {
                    let [a, b] = &scratch.products[i * self.rows + row];
                    // SAFETY: parts have different pairs.
                    unsafe { self.target.finish(s, row, pair, [s.load(a), s.load(b)]) };
                }
            }
        }
        SCRATCH.set(scratch);
    }

    #[inline(always)]
    fn unpack<S: Simd, C: Code>(
        &self,
        s: S,
        pair: usize,
        blocks: Range<usize>,
        weights: &mut [[[[f32; 8]; 2]; BLOCK]],
    ) {
        let n_words = BLOCK / C::CODES;
        for o in 0..2 {
            let octet = (2 * pair + o).min(self.target.octets - 1);
            let words: &[[u32; 8]] = self.w.octet_words(octet).as_chunks().0;
            let scales = self.w.octet_scales(octet);
            for (block, weights) in blocks.clone().zip(&mut *weights) {
                let scales = C::scales(s, &scales[block * C::SCALES..(block + 1) * C::SCALES]);
                for word in 0..n_words {
                    let codes = s.load_i(&words[block * n_words + word]);
                    for i in 0..C::CODES {
                        s.store(C::weights(s, codes, i, scales), &mut weights[word * C::CODES + i][o]);
                    }
                }
            }
        }
    }

    /// Adds a panel's products with all rows.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        blocks: Range<usize>,
        weights: &[[[[f32; 8]; 2]; BLOCK]],
        products: &mut [[[f32; 8]; 2]],
    ) {
        let mut row = 0;
        while row + TILE <= self.rows {
            self.tile::<S, TILE>(s, blocks.clone(), weights, row, products);
            row += TILE;
        }
        match self.rows - row {
            1 => self.tile::<S, 1>(s, blocks, weights, row, products),
            2 => self.tile::<S, 2>(s, blocks, weights, row, products),
            3 => self.tile::<S, 3>(s, blocks, weights, row, products),
            4 => self.tile::<S, 4>(s, blocks, weights, row, products),
            5 => self.tile::<S, 5>(s, blocks, weights, row, products),
            _ => {}
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const T: usize>(
        &self,
        s: S,
        blocks: Range<usize>,
        weights: &[[[[f32; 8]; 2]; BLOCK]],
        row: usize,
        products: &mut [[[f32; 8]; 2]],
    ) {
        let x: [&[f32]; T] = std::array::from_fn(|t| self.activations.row(row + t)[blocks.clone()].as_flattened());
        let weights = weights.as_flattened();
        let x = x.map(|x| &x[..weights.len()]);
        let mut sums = [[s.splat(0.0); 2]; T];
        for column in 0..weights.len() {
            let w = weights[column].each_ref().map(|w| s.load(w));
            for t in 0..T {
                let x = s.splat(x[t][column]);
                sums[t][0] = s.mul_add(w[0], x, sums[t][0]);
                sums[t][1] = s.mul_add(w[1], x, sums[t][1]);
            }
        }
        for t in 0..T {
            for o in 0..2 {
                let y = &mut products[row + t][o];
                s.store(s.add(s.load(y), sums[t][o]), y);
            }
        }
    }
}

/// Adds a panel's sums to the whole, and begins anew.
#[inline(always)]
fn add_panel<S: Simd, const T: usize, const O: usize>(s: S, y: &mut [[S::F; T]; O], sums: &mut [[S::F; T]; O]) {
    for (y, sum) in y.iter_mut().flatten().zip(sums.iter_mut().flatten()) {
        *y = s.add(*y, *sum);
        *sum = s.splat(0.0);
    }
}
