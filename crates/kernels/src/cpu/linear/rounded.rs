//! Products in integers, activations being rounded to 16 bits with one scale for each 32 columns.
//!
//! A block's sum of products is exact, and blocks are added in f32 in order. The rounding costs some 2e-6 of the sum of
//! |w x|; in blocks with values far above the row's others (the first token's residual has one of 2e4) what the rounding left
//! over is multiplied too.

#![expect(clippy::needless_range_loop, reason = "the innermost loops index several small arrays in step")]

use super::{Input, Target, inverse_rms, share_pairs};
use crate::cpu::simd::{self, Kernel, Simd, dispatch};
use crate::cpu::threads::Disjoint;
use crate::packed::{BLOCK, Codec, Packed, octets};
use std::cell::RefCell;
use std::ops::Range;

/// A block whose largest value is so many times the row's root mean square is rounded twice: the steps of such blocks
/// would make up most of a row's error.
const FAR: f32 = 8.0;
/// Rows that share a load of weights.
const TILE: usize = 4;

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
}

pub(super) fn linear(input: Input<'_>, w: &Packed<'_>, target: Target<'_>) {
    ACTIVATIONS.with_borrow_mut(|activations| {
        activations.prepare(input, w.codec);
        let rows = input.rows;
        share_pairs(octets(w.rows), |pairs| dispatch(Part { activations, rows, w, target, pairs }));
    });
}

/// The input as the inner loops read it, by row and block of 32 columns.
#[derive(Default)]
struct Activations {
    blocks: usize,
    /// 16-bit values, in pairs, in the order in which the codec's words yield codes.
    pairs: Vec<[u32; 16]>,
    /// What a 16-bit value of 1 stands for, and the sum of the block's values, in true size.
    scales: Vec<[f32; 2]>,
    /// By row: what rounding left over in blocks with far values.
    rests: Vec<Vec<Rest>>,
}

/// A second term of a block of activations.
struct Rest {
    block: usize,
    pairs: [u32; 16],
    scales: [f32; 2],
}

impl Activations {
    fn prepare(&mut self, input: Input<'_>, codec: Codec) {
        self.blocks = input.cols / BLOCK;
        let blocks = self.blocks;
        self.pairs.resize(input.rows * blocks, [0; 16]);
        self.scales.resize(input.rows * blocks, [0.0; 2]);
        self.rests.resize_with(input.rows, Vec::new);
        let (pairs, scales) = (Disjoint::new(&mut self.pairs), Disjoint::new(&mut self.scales));
        let rests = Disjoint::new(&mut self.rests);
        input.prepare(|rows, x| {
            let range = rows.start * blocks..rows.end * blocks;
            // SAFETY: parts have different rows.
            let (pairs, scales, rests) =
                unsafe { (pairs.range(range.clone()), scales.range(range), rests.range(rows)) };
            dispatch(Quantize { input: Input { x, ..input }, q4: codec == Codec::Q4, pairs, scales, rests });
        });
    }

    fn row(&self, row: usize) -> Row<'_> {
        let range = row * self.blocks..(row + 1) * self.blocks;
        Row { pairs: &self.pairs[range.clone()], scales: &self.scales[range], rests: &self.rests[row] }
    }
}

/// A row of [`Activations`].
#[derive(Clone, Copy)]
struct Row<'a> {
    pairs: &'a [[u32; 16]],
    scales: &'a [[f32; 2]],
    rests: &'a [Rest],
}

struct Quantize<'a> {
    input: Input<'a>,
    q4: bool,
    pairs: &'a mut [[u32; 16]],
    scales: &'a mut [[f32; 2]],
    rests: &'a mut [Vec<Rest>],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.input.cols / BLOCK;
        let gain = self.input.norm.map(|norm| norm.gain.as_chunks::<8>().0);
        for (row, (x, rests)) in self.input.x.chunks_exact(self.input.cols).zip(self.rests).enumerate() {
            rests.clear();
            let x = x.as_chunks::<8>().0;
            let factor = self.input.norm.map_or(1.0, |norm| inverse_rms(s, x, norm.eps));
            let far = FAR * root_mean_square(s, x, gain);
            for block in 0..blocks {
                let mut values = [s.splat(0.0); 4];
                for i in 0..4 {
                    values[i] = s.load(&x[4 * block + i]);
                    if let Some(gain) = gain {
                        values[i] = s.mul(values[i], s.load(&gain[4 * block + i]));
                    }
                }
                let at = row * blocks + block;
                let rounded = quantize(s, values, factor, self.q4, &mut self.pairs[at]);
                self.scales[at] = rounded.scales;
                if rounded.greatest > far {
                    let mut pairs = [0; 16];
                    let scales = quantize(s, rounded.rest, factor, self.q4, &mut pairs).scales;
                    rests.push(Rest { block, pairs, scales });
                }
            }
        }
    }
}

/// The root of the mean square of a row times its gain.
#[inline(always)]
fn root_mean_square<S: Simd>(s: S, x: &[[f32; 8]], gain: Option<&[[f32; 8]]>) -> f32 {
    let mut sum = s.splat(0.0);
    for (i, x) in x.iter().enumerate() {
        let mut value = s.load(x);
        if let Some(gain) = gain {
            value = s.mul(value, s.load(&gain[i]));
        }
        sum = s.mul_add(value, value, sum);
    }
    (simd::sum(s, sum) / (x.len() * 8) as f32).sqrt()
}

/// A block of activations after rounding.
struct Rounded<F> {
    /// As in [`Activations`].
    scales: [f32; 2],
    /// The largest magnitude; a block is rounded in steps of it.
    greatest: f32,
    /// What the rounding left over.
    rest: [F; 4],
}

/// Rounds a block to 16 bits; its true values are `values * factor`.
#[inline(always)]
fn quantize<S: Simd>(s: S, values: [S::F; 4], factor: f32, q4: bool, pairs: &mut [u32; 16]) -> Rounded<S::F> {
    let zero = s.splat(0.0);
    let (mut greatest, mut poison) = (zero, zero);
    for value in values {
        let magnitude = s.max(value, s.sub(zero, value));
        greatest = s.max(greatest, magnitude);
        // Zero, or NaN where the value is not finite: integers could not tell.
        poison = s.mul_add(value, zero, poison);
    }
    let greatest = simd::greatest(s, greatest);
    let inverse = if greatest > 1e-30 { 32767.0 / greatest } else { 0.0 };
    let step = greatest / 32767.0;
    let mut codes = [[0; 8]; 4];
    let mut sums = s.splat_i(0);
    let mut rest = values;
    for i in 0..4 {
        let code = s.round(s.mul(values[i], s.splat(inverse)));
        sums = s.add_i(sums, code);
        s.store_i(code, &mut codes[i]);
        rest[i] = s.mul_add(s.to_f(code), s.splat(-step), values[i]);
    }
    let codes = codes.as_flattened();
    let pair = |a: usize| codes[a] & 0xFFFF | codes[a + 2] << 16;
    if q4 {
        for j in 0..4 {
            pairs[4 * j] = pair(4 * j);
            pairs[4 * j + 1] = pair(16 + 4 * j);
            pairs[4 * j + 2] = pair(4 * j + 1);
            pairs[4 * j + 3] = pair(16 + 4 * j + 1);
        }
    } else {
        for j in 0..8 {
            pairs[2 * j] = pair(4 * j);
            pairs[2 * j + 1] = pair(4 * j + 1);
        }
    }
    // At most 32 * 32767, which f32 holds exactly.
    let total = simd::sum(s, s.to_f(sums));
    let scale = step * factor + simd::sum(s, poison);
    Rounded { scales: [scale, total * scale], greatest, rest }
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
        if self.w.codec == Codec::Q4 { self.by::<S, Q4>(s) } else { self.by::<S, Q8>(s) }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn by<S: Simd, C: Code>(&self, s: S) {
        for pair in self.pairs.clone() {
            let octet = |octet: usize| Weights::new((self.w.octet_words(octet), self.w.octet_scales(octet)));
            let weights = [octet(2 * pair), octet((2 * pair + 1).min(self.target.octets - 1))];
            let mut row = 0;
            while row + TILE <= self.rows {
                self.tile::<S, C, TILE>(s, pair, weights, row);
                row += TILE;
            }
            match self.rows - row {
                1 => self.tile::<S, C, 1>(s, pair, weights, row),
                2 => self.tile::<S, C, 2>(s, pair, weights, row),
                3 => self.tile::<S, C, 3>(s, pair, weights, row),
                _ => {}
            }
        }
    }

    /// The products of a pair of octets with `T` rows.
    #[inline(always)]
    fn tile<S: Simd, C: Code, const T: usize>(&self, s: S, pair: usize, weights: [Weights<'_, C>; 2], row: usize) {
        let x: [_; T] = std::array::from_fn(|t| self.activations.row(row + t));
        let mut y = [[s.splat(0.0); T]; 2];
        if S::WIDE {
            y = multiply(s, weights, x);
        } else {
            for o in 0..2 {
                if 2 * pair + o < self.target.octets {
                    [y[o]] = multiply(s, [weights[o]], x);
                }
            }
        }
        for t in 0..T {
            // SAFETY: parts have different pairs.
            unsafe { self.target.finish(s, row + t, pair, [y[0][t], y[1][t]]) };
        }
    }
}

/// How a word of eight rows yields 16-bit codes in pairs.
trait Code: Copy {
    /// Words of a block.
    const WORDS: usize;
    /// Vectors of pairs that a word yields; 16 a block.
    const PLANES: usize;
    /// Scale words of eight rows' block.
    const SCALES: usize;
    /// Vector `plane` of those.
    fn plane<S: Simd>(s: S, word: S::I, plane: usize) -> S::I;
    /// Scale and minimum of eight rows.
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2];
    /// Whether the minimum is not always 0.
    const MINIMUM: bool;
}

#[derive(Clone, Copy)]
struct Q4;

impl Code for Q4 {
    const WORDS: usize = 4;
    const PLANES: usize = 4;
    const SCALES: usize = 8;
    const MINIMUM: bool = true;

    #[inline(always)]
    fn plane<S: Simd>(s: S, word: S::I, plane: usize) -> S::I {
        let mask = s.splat_i(0x000F_000F);
        match plane {
            0 => s.and(word, mask),
            1 => s.and(s.shift_right::<4>(word), mask),
            2 => s.and(s.shift_right::<8>(word), mask),
            _ => s.and(s.shift_right::<12>(word), mask),
        }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2] {
        let words = words.as_array().map_or(s.splat_i(0), |words| s.load_i(words));
        [simd::low_halves(s, words), simd::high_halves(s, words)]
    }
}

#[derive(Clone, Copy)]
struct Q8;

impl Code for Q8 {
    const WORDS: usize = 8;
    const PLANES: usize = 2;
    const SCALES: usize = 4;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn plane<S: Simd>(s: S, word: S::I, plane: usize) -> S::I {
        if plane == 0 { s.low_bytes(word) } else { s.high_bytes(word) }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2] {
        let d = words.as_array().map_or(s.splat(0.0), |words| s.halves(words));
        [d, s.splat(0.0)]
    }
}

/// An octet's packed words and scales.
#[derive(Clone, Copy)]
struct Weights<'a, C> {
    words: &'a [[u32; 8]],
    scales: &'a [u32],
    code: std::marker::PhantomData<C>,
}

impl<'a, C: Code> Weights<'a, C> {
    #[inline(always)]
    fn new((words, scales): (&'a [u32], &'a [u32])) -> Self {
        Weights { words: words.as_chunks().0, scales, code: std::marker::PhantomData }
    }

    #[inline(always)]
    fn word<S: Simd>(self, s: S, block: usize, word: usize) -> S::I {
        s.load_i(&self.words[block * C::WORDS + word])
    }

    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> [S::F; 2] {
        C::scales(s, &self.scales[block * C::SCALES..(block + 1) * C::SCALES])
    }

    /// Asks for the same block of the next pair.
    #[inline(always)]
    fn prefetch<S: Simd>(self, s: S, block: usize) {
        let words = self.words.as_ptr().wrapping_add(2 * self.words.len() + block * C::WORDS);
        for line in (0..C::WORDS).step_by(2) {
            s.prefetch(words.wrapping_add(line).cast());
        }
        s.prefetch(self.scales.as_ptr().wrapping_add(2 * self.scales.len() + block * C::SCALES));
    }
}

/// The products of `O` octets with `T` rows of activations.
#[inline(always)]
fn multiply<S: Simd, C: Code, const T: usize, const O: usize>(
    s: S,
    weights: [Weights<'_, C>; O],
    x: [Row<'_>; T],
) -> [[S::F; T]; O] {
    let mut y = [[s.splat(0.0); T]; O];
    for block in 0..x[0].pairs.len() {
        for o in 0..O {
            weights[o].prefetch(s, block);
        }
        let dots = block_dots::<S, C, T, O>(s, weights, block, std::array::from_fn(|t| &x[t].pairs[block]));
        for o in 0..O {
            let [d, m] = weights[o].scales(s, block);
            for t in 0..T {
                y[o][t] = scale_dots::<S, C>(s, dots[o][t], d, m, x[t].scales[block], y[o][t]);
            }
        }
    }
    for t in 0..T {
        for rest in x[t].rests {
            let dots = block_dots::<S, C, 1, O>(s, weights, rest.block, [&rest.pairs]);
            for o in 0..O {
                let [d, m] = weights[o].scales(s, rest.block);
                y[o][t] = scale_dots::<S, C>(s, dots[o][0], d, m, rest.scales, y[o][t]);
            }
        }
    }
    y
}

/// The integer products of one block.
#[inline(always)]
fn block_dots<S: Simd, C: Code, const T: usize, const O: usize>(
    s: S,
    weights: [Weights<'_, C>; O],
    block: usize,
    x: [&[u32; 16]; T],
) -> [[S::I; T]; O] {
    let mut dots = [[s.splat_i(0); T]; O];
    for word in 0..C::WORDS {
        let mut words = [s.splat_i(0); O];
        for o in 0..O {
            words[o] = weights[o].word(s, block, word);
        }
        for plane in 0..C::PLANES {
            let mut codes = [s.splat_i(0); O];
            for o in 0..O {
                codes[o] = C::plane(s, words[o], plane);
            }
            for t in 0..T {
                let pair = s.splat_i(x[t][word * C::PLANES + plane]);
                for o in 0..O {
                    dots[o][t] = s.add_i(dots[o][t], s.dot_pairs(codes[o], pair));
                }
            }
        }
    }
    dots
}

/// `y` plus a block's products in true size.
#[inline(always)]
fn scale_dots<S: Simd, C: Code>(s: S, dots: S::I, d: S::F, m: S::F, [scale, sum]: [f32; 2], y: S::F) -> S::F {
    let y = s.mul_add(s.mul(d, s.splat(scale)), s.to_f(dots), y);
    if C::MINIMUM { s.mul_add(m, s.splat(sum), y) } else { y }
}
