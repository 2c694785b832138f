//! Products in f32, two octets of rows of weights in the lanes.
//!
//! A weight is `d * code + m`, rounded once, as it is wherever weights are unpacked to f32. Columns are added one by one
//! within a panel, then the panels: less is lost than in one long sum, and the order is the same whatever the number of rows,
//! so that a chunk equals its rows.

#![expect(clippy::needless_range_loop, reason = "the innermost loops index several small arrays in step")]

use super::{Input, Target, inverse_rms, share_pairs};
use crate::cpu::simd::{Kernel, Simd, dispatch};
use crate::cpu::simd_wide::{self, Wide, WideKernel};
use crate::cpu::threads::Disjoint;
use crate::packed::{BLOCK, Codec, Packed, octets};
use std::cell::RefCell;
use std::ops::Range;

/// Rows that share a load of weights: as many as there are registers for their sums.
const TILE: usize = 6;
/// The same where sixteen lanes are one register.
const TALL_TILE: usize = 8;
/// From this many rows on, unpacked weights are kept for the rows that follow.
const UNPACK_FROM: usize = 5;
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
        share_pairs(octets(w.rows), |pairs| simd_wide::dispatch(Part { activations, rows, w, target, pairs }));
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

/// How words of sixteen rows yield weights.
trait Code {
    /// Codes of a word; a block has `BLOCK / CODES` words.
    const CODES: usize;
    /// Scale words of eight rows' block.
    const SCALES: usize;
    /// The column, within the block, of a word's code.
    fn column(word: usize, code: usize) -> usize;
    /// Scales and minima, from two octets' words.
    fn scales<W: Wide>(w: W, words: [&[u32]; 2]) -> [W::F; 2];
    /// The weights of code `i`.
    fn weights<W: Wide>(w: W, words: W::I, i: usize, scales: [W::F; 2]) -> W::F;
}

/// The first `N` words.
#[inline(always)]
fn first<const N: usize>(words: &[u32]) -> &[u32; N] {
    words.first_chunk().unwrap_or(&[0; N])
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
    fn scales<W: Wide>(w: W, words: [&[u32]; 2]) -> [W::F; 2] {
        let words = w.load_i([first(words[0]), first(words[1])]);
        [w.low_halves(words), w.high_halves(words)]
    }

    #[inline(always)]
    fn weights<W: Wide>(w: W, words: W::I, i: usize, [d, m]: [W::F; 2]) -> W::F {
        let codes = match i {
            0 => w.and(words, 0xF),
            1 => w.and(w.shift_right::<4>(words), 0xF),
            2 => w.and(w.shift_right::<8>(words), 0xF),
            3 => w.and(w.shift_right::<12>(words), 0xF),
            4 => w.and(w.shift_right::<16>(words), 0xF),
            5 => w.and(w.shift_right::<20>(words), 0xF),
            6 => w.and(w.shift_right::<24>(words), 0xF),
            _ => w.shift_right::<28>(words),
        };
        w.mul_add(d, w.to_f(codes), m)
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
    fn scales<W: Wide>(w: W, words: [&[u32]; 2]) -> [W::F; 2] {
        // Codes stand at the top of their words.
        let d = w.halves([first(words[0]), first(words[1])]);
        [w.mul(d, w.splat(1.0 / (1 << 24) as f32)), w.splat(0.0)]
    }

    #[inline(always)]
    fn weights<W: Wide>(w: W, words: W::I, i: usize, [d, _]: [W::F; 2]) -> W::F {
        let top = match i {
            0 => w.shift_left::<24>(words),
            1 => w.shift_left::<16>(words),
            2 => w.shift_left::<8>(words),
            _ => words,
        };
        w.mul(d, w.to_f(w.and(top, 0xFF00_0000)))
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
    fn scales<W: Wide>(w: W, _: [&[u32]; 2]) -> [W::F; 2] {
        [w.splat(0.0); 2]
    }

    #[inline(always)]
    fn weights<W: Wide>(w: W, words: W::I, i: usize, _: [W::F; 2]) -> W::F {
        if i == 0 { w.low_halves(words) } else { w.high_halves(words) }
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
    fn scales<W: Wide>(w: W, _: [&[u32]; 2]) -> [W::F; 2] {
        [w.splat(0.0); 2]
    }

    #[inline(always)]
    fn weights<W: Wide>(w: W, words: W::I, _: usize, _: [W::F; 2]) -> W::F {
        w.as_f(words)
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

impl WideKernel for Part<'_> {
    #[inline(always)]
    fn run<W: Wide>(self, w: W) {
        match self.w.codec {
            Codec::Q4 => self.by::<W, Q4>(w),
            Codec::Q8 => self.by::<W, Q8>(w),
            Codec::F16 => self.by::<W, F16>(w),
            Codec::F32 => self.by::<W, F32>(w),
        }
    }
}

/// The words and scales of a pair of octets. At an odd end it is one octet twice.
#[derive(Clone, Copy)]
struct Weights<'a> {
    words: [&'a [[u32; 8]]; 2],
    scales: [&'a [u32]; 2],
}

impl<'a> Weights<'a> {
    #[inline(always)]
    fn words<W: Wide, C: Code>(&self, w: W, block: usize, word: usize) -> W::I {
        let at = block * (BLOCK / C::CODES) + word;
        w.load_i(self.words.map(|words| &words[at]))
    }

    #[inline(always)]
    fn scales<W: Wide, C: Code>(&self, w: W, block: usize) -> [W::F; 2] {
        let range = block * C::SCALES..(block + 1) * C::SCALES;
        C::scales(w, self.scales.map(|scales| &scales[range.clone()]))
    }

    /// Asks for the same block of the pair that is `pairs` further on.
    #[inline(always)]
    fn prefetch<W: Wide, C: Code>(&self, w: W, block: usize, pairs: usize) {
        const WORDS_OF_A_LINE: usize = 2;
        let n_words = BLOCK / C::CODES;
        for (words, scales) in self.words.into_iter().zip(self.scales) {
            let ahead = words.as_ptr().wrapping_add(2 * pairs * words.len() + block * n_words);
            for line in (0..n_words).step_by(WORDS_OF_A_LINE) {
                w.half().prefetch(ahead.wrapping_add(line).cast());
            }
            w.half().prefetch(scales.as_ptr().wrapping_add(2 * pairs * scales.len() + block * C::SCALES));
        }
    }
}

impl<'a> Part<'a> {
    #[inline(always)]
    fn by<W: Wide, C: Code>(self, w: W) {
        // A sum waits for the one before it, so that several pairs go abreast, as far as registers last.
        match self.rows {
            1 => self.direct::<W, C, 1, 2>(w),
            2 if W::ONE => self.direct::<W, C, 2, 2>(w),
            3 if W::ONE => self.direct::<W, C, 3, 2>(w),
            4 if W::ONE => self.direct::<W, C, 4, 2>(w),
            2 => self.direct::<W, C, 2, 1>(w),
            3 => self.direct::<W, C, 3, 1>(w),
            4 => self.direct::<W, C, 4, 1>(w),
            _ => self.unpacked::<W, C>(w),
        }
    }

    #[inline(always)]
    fn weights(&self, pair: usize) -> Weights<'a> {
        let octets = [2 * pair, 2 * pair + 1].map(|octet| octet.min(self.target.octets - 1));
        Weights {
            words: octets.map(|octet| self.w.octet_words(octet).as_chunks().0),
            scales: octets.map(|octet| self.w.octet_scales(octet)),
        }
    }

    /// `T` rows, in all, straight from the packed words, `P` pairs of octets at a time.
    #[inline(always)]
    fn direct<W: Wide, C: Code, const T: usize, const P: usize>(&self, w: W) {
        const { assert!(T < UNPACK_FROM) }
        let x: [_; T] = std::array::from_fn(|t| self.activations.row(t));
        for first in self.pairs.clone().step_by(P) {
            // Past the end the last pair again, whose products are dropped.
            let weights = std::array::from_fn(|p| self.weights((first + p).min(self.pairs.end - 1)));
            let y = multiply::<W, C, T, P>(w, weights, x);
            for (pair, y) in (first..self.pairs.end).zip(y) {
                for t in 0..T {
                    // SAFETY: parts have different pairs.
                    unsafe { self.target.finish(w.half(), t, pair, w.split(y[t])) };
                }
            }
        }
    }

    /// Many rows: weights are unpacked a panel at a time.
    #[inline(always)]
    fn unpacked<W: Wide, C: Code>(&self, w: W) {
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
                    unpack::<W, C>(w, self.weights(pair), blocks.start, weights);
                    self.panel(w, blocks, weights, products);
                }
            }
            for row in 0..self.rows {
                for (i, pair) in strip.clone().enumerate() {
                    let [a, b] = &scratch.products[i * self.rows + row];
                    let s = w.half();
                    // SAFETY: parts have different pairs.
                    unsafe { self.target.finish(s, row, pair, [s.load(a), s.load(b)]) };
                }
            }
        }
        SCRATCH.set(scratch);
    }

    /// Adds a panel's products with all rows.
    #[inline(always)]
    fn panel<W: Wide>(
        &self,
        w: W,
        blocks: Range<usize>,
        weights: &[[[[f32; 8]; 2]; BLOCK]],
        products: &mut [[[f32; 8]; 2]],
    ) {
        let mut row = 0;
        if W::ONE {
            while row + TALL_TILE <= self.rows {
                self.tile::<W, TALL_TILE>(w, blocks.clone(), weights, row, products);
                row += TALL_TILE;
            }
        }
        while row + TILE <= self.rows {
            self.tile::<W, TILE>(w, blocks.clone(), weights, row, products);
            row += TILE;
        }
        match self.rows - row {
            1 => self.tile::<W, 1>(w, blocks, weights, row, products),
            2 => self.tile::<W, 2>(w, blocks, weights, row, products),
            3 => self.tile::<W, 3>(w, blocks, weights, row, products),
            4 => self.tile::<W, 4>(w, blocks, weights, row, products),
            5 => self.tile::<W, 5>(w, blocks, weights, row, products),
            _ => {}
        }
    }

    #[inline(always)]
    fn tile<W: Wide, const T: usize>(
        &self,
        w: W,
        blocks: Range<usize>,
        weights: &[[[[f32; 8]; 2]; BLOCK]],
        row: usize,
        products: &mut [[[f32; 8]; 2]],
    ) {
        let x: [_; T] = std::array::from_fn(|t| self.activations.row(row + t));
        let mut sums = [w.splat(0.0); T];
        for (block, weights) in blocks.zip(weights) {
            let x: [&[f32; BLOCK]; T] = std::array::from_fn(|t| &x[t][block]);
            for column in 0..BLOCK {
                let weights = w.load(&weights[column]);
                for t in 0..T {
                    sums[t] = w.mul_add(weights, w.splat(x[t][column]), sums[t]);
                }
            }
        }
        for t in 0..T {
            let y = &mut products[row + t];
            w.store(w.add(w.load(y), sums[t]), y);
        }
    }
}

/// The products of `P` pairs of octets with `T` rows.
#[inline(always)]
fn multiply<W: Wide, C: Code, const T: usize, const P: usize>(
    w: W,
    weights: [Weights<'_>; P],
    x: [&[[f32; BLOCK]]; T],
) -> [[W::F; T]; P] {
    let mut y = [[w.splat(0.0); T]; P];
    let mut sums = y;
    for block in 0..x[0].len() {
        if block.is_multiple_of(PANEL) {
            add_panel(w, &mut y, &mut sums);
        }
        let mut scales = [[w.splat(0.0); 2]; P];
        for p in 0..P {
            scales[p] = weights[p].scales::<W, C>(w, block);
            weights[p].prefetch::<W, C>(w, block, P);
        }
        let x: [_; T] = std::array::from_fn(|t| &x[t][block]);
        for word in 0..BLOCK / C::CODES {
            for p in 0..P {
                let words = weights[p].words::<W, C>(w, block, word);
                for i in 0..C::CODES {
                    let weights = C::weights(w, words, i, scales[p]);
                    for t in 0..T {
                        sums[p][t] = w.mul_add(weights, w.splat(x[t][word * C::CODES + i]), sums[p][t]);
                    }
                }
            }
        }
    }
    add_panel(w, &mut y, &mut sums);
    y
}

/// Unpacks blocks from `from` on.
#[inline(always)]
fn unpack<W: Wide, C: Code>(w: W, weights: Weights<'_>, from: usize, out: &mut [[[[f32; 8]; 2]; BLOCK]]) {
    for (block, out) in (from..).zip(out) {
        let scales = weights.scales::<W, C>(w, block);
        for word in 0..BLOCK / C::CODES {
            let words = weights.words::<W, C>(w, block, word);
            for i in 0..C::CODES {
                w.store(C::weights(w, words, i, scales), &mut out[word * C::CODES + i]);
            }
        }
    }
}

/// Adds a panel's sums to the whole, and begins anew.
#[inline(always)]
fn add_panel<W: Wide, const T: usize, const P: usize>(w: W, y: &mut [[W::F; T]; P], sums: &mut [[W::F; T]; P]) {
    for (y, sum) in y.iter_mut().flatten().zip(sums.iter_mut().flatten()) {
        *y = w.add(*y, *sum);
        *sum = w.splat(0.0);
    }
}
