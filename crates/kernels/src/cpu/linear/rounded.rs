//! Products in integers, activations being rounded to 16 bits with one scale for each 32 columns.
//!
//! A block's sum of products is exact, and blocks are added in f32 in order. The rounding costs some 2e-6 of the sum of
//! |w x|. Values far above the row's others (the first token's residual has one of 2e4) would make their blocks' steps coarse:
//! they are set aside and multiplied in f32.

#![expect(clippy::needless_range_loop, reason = "the innermost loops index several small arrays in step")]

use super::{Input, Target, inverse_rms, share_pairs};
use crate::cpu::simd::{self, Kernel, Simd, dispatch, unrolled};
use crate::cpu::threads::Disjoint;
use crate::packed::{BLOCK, Codec, Packed, octets};
use std::cell::RefCell;
use std::ops::Range;

/// A value of so many times the row's root mean square is set aside: the steps of such values' blocks would make up most of a
/// row's error. At most one value in the square of this can be so large.
const FAR: f32 = 8.0;
/// Rows that share a load of weights.
const TILE: usize = 4;

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
}

pub(super) fn linear(input: Input<'_>, w: &Packed<'_>, target: Target<'_>) {
    ACTIVATIONS.with_borrow_mut(|activations| {
        activations.prepare(input, w.codec);
        activations.share_far(w.codec);
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
    /// By row: the columns and values that were set aside.
    far: Vec<Vec<(usize, f32)>>,
    /// The same by tile.
    far_of_tiles: Vec<Vec<Far>>,
}

/// Values of a column that their blocks leave out: most often a column is far in all rows.
struct Far {
    column: usize,
    /// The octet's word with the column's codes, and their place in it.
    word: usize,
    shift: u32,
    /// Those of a tile's rows, 0 where the value is not far.
    values: [f32; TILE],
}

impl Activations {
    fn prepare(&mut self, input: Input<'_>, codec: Codec) {
        self.blocks = input.cols / BLOCK;
        let blocks = self.blocks;
        self.pairs.resize(input.rows * blocks, [0; 16]);
        self.scales.resize(input.rows * blocks, [0.0; 2]);
        self.far.resize_with(input.rows, Vec::new);
        let (pairs, scales) = (Disjoint::new(&mut self.pairs), Disjoint::new(&mut self.scales));
        let far = Disjoint::new(&mut self.far);
        input.prepare(|rows, x| {
            let range = rows.start * blocks..rows.end * blocks;
            // SAFETY: parts have different rows.
            let (pairs, scales, far) = unsafe { (pairs.range(range.clone()), scales.range(range), far.range(rows)) };
            dispatch(Quantize { input: Input { x, ..input }, q4: codec == Codec::Q4, pairs, scales, far });
        });
        self.far.truncate(input.rows);
    }

    /// Gathers what was set aside by tile, in the order of columns.
    fn share_far(&mut self, codec: Codec) {
        let place = if codec == Codec::Q4 { Q4::place } else { Q8::place };
        self.far_of_tiles.resize_with(self.far.len().div_ceil(TILE), Vec::new);
        for (rows, to) in self.far.chunks(TILE).zip(&mut self.far_of_tiles) {
            to.clear();
            for (t, &(column, value)) in
                rows.iter().enumerate().flat_map(|(t, row)| row.iter().map(move |far| (t, far)))
            {
                let at = to.binary_search_by_key(&column, |far| far.column).unwrap_or_else(|at| {
                    let (word, shift) = place(column);
                    to.insert(at, Far { column, word, shift, values: [0.0; TILE] });
                    at
                });
                to[at].values[t] = value;
            }
        }
    }

    #[inline]
    fn row(&self, row: usize) -> Row<'_> {
        let range = row * self.blocks..(row + 1) * self.blocks;
        Row { pairs: &self.pairs[range.clone()], scales: &self.scales[range] }
    }
}

/// A row of [`Activations`].
#[derive(Clone, Copy)]
struct Row<'a> {
    pairs: &'a [[u32; 16]],
    scales: &'a [[f32; 2]],
}

struct Quantize<'a> {
    input: Input<'a>,
    q4: bool,
    pairs: &'a mut [[u32; 16]],
    scales: &'a mut [[f32; 2]],
    far: &'a mut [Vec<(usize, f32)>],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.input.cols / BLOCK;
        let gain = self.input.norm.map(|norm| norm.gain.as_chunks::<8>().0);
        for (row, (x, far)) in self.input.x.chunks_exact(self.input.cols).zip(self.far).enumerate() {
            far.clear();
            let x = x.as_chunks::<8>().0;
            let factor = self.input.norm.map_or(1.0, |norm| inverse_rms(s, x, norm.eps));
            let typical = root_mean_square(s, x, gain);
            let limit = FAR * typical;
            // NaN where a value is not finite: integers could not tell.
            let factor = factor + 0.0 * typical;
            for block in 0..blocks {
                let mut values = [s.splat(0.0); 4];
                for i in 0..4 {
                    values[i] = s.load(&x[4 * block + i]);
                    if let Some(gain) = gain {
                        values[i] = s.mul(values[i], s.load(&gain[4 * block + i]));
                    }
                }
                let mut greatest = greatest_magnitude(s, values);
                if greatest > limit {
                    values = set_aside(s, values, limit, |column, value| {
                        far.push((BLOCK * block + column, value * factor));
                    });
                    greatest = greatest_magnitude(s, values);
                }
                let at = row * blocks + block;
                self.scales[at] = quantize(s, values, greatest, factor, self.q4, &mut self.pairs[at]);
            }
        }
    }
}

#[inline(always)]
fn greatest_magnitude<S: Simd>(s: S, values: [S::F; 4]) -> f32 {
    let mut greatest = s.splat(0.0);
    for value in values {
        greatest = s.max(greatest, s.max(value, s.sub(s.splat(0.0), value)));
    }
    s.greatest(greatest)
}

/// Calls `take` for each of a block's values whose magnitude is above `limit`, and puts zeros in their places.
#[inline(always)]
fn set_aside<S: Simd>(s: S, values: [S::F; 4], limit: f32, mut take: impl FnMut(usize, f32)) -> [S::F; 4] {
    let mut left = [[0.0; 8]; 4];
    for i in 0..4 {
        s.store(values[i], &mut left[i]);
    }
    for (column, value) in left.as_flattened_mut().iter_mut().enumerate() {
        if value.abs() > limit {
            take(column, *value);
            *value = 0.0;
        }
    }
    let mut values = values;
    for i in 0..4 {
        values[i] = s.load(&left[i]);
    }
    values
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

/// Rounds a block to 16 bits, and returns its scales; its true values are `values * factor`.
#[inline(always)]
fn quantize<S: Simd>(s: S, values: [S::F; 4], greatest: f32, factor: f32, q4: bool, pairs: &mut [u32; 16]) -> [f32; 2] {
    let inverse = s.splat(if greatest > 1e-30 { 32767.0 / greatest } else { 0.0 });
    let step = greatest / 32767.0;
    let mut codes = [s.splat_i(0); 4];
    for i in 0..4 {
        codes[i] = s.round(s.mul(values[i], inverse));
    }
    let sums = s.add_i(s.add_i(codes[0], codes[1]), s.add_i(codes[2], codes[3]));
    if q4 {
        let [low, high] = pairs.as_chunks_mut().0 else { unreachable!("sixteen pairs are two eights") };
        s.store_i(s.low_pairs(codes[0], codes[2]), low);
        s.store_i(s.low_pairs(codes[1], codes[3]), high);
    } else {
        let mut lanes = [[0; 8]; 4];
        for i in 0..4 {
            s.store_i(codes[i], &mut lanes[i]);
        }
        for (four, to) in lanes.as_flattened().as_chunks::<4>().0.iter().zip(pairs.as_chunks_mut::<2>().0) {
            *to = [four[0] & 0xFFFF | four[2] << 16, four[1] & 0xFFFF | four[3] << 16];
        }
    }
    // At most 32 * 32767, which f32 holds exactly.
    let total = simd::sum(s, s.to_f(sums));
    let scale = step * factor;
    [scale, total * scale]
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
            let mut row = 0;
            while row + TILE <= self.rows {
                self.tile::<S, C, TILE>(s, pair, row);
                row += TILE;
            }
            match self.rows - row {
                1 => self.tile::<S, C, 1>(s, pair, row),
                2 => self.tile::<S, C, 2>(s, pair, row),
                3 => self.tile::<S, C, 3>(s, pair, row),
                _ => {}
            }
        }
    }

    /// The products of a pair of octets with `T` rows: a function of its own where that is possible, for the same reason that
    /// wasm's kernels are.
    #[cfg_attr(target_family = "wasm", inline(never))]
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn tile<S: Simd, C: Code, const T: usize>(&self, s: S, pair: usize, row: usize) {
        let mut x = [self.activations.row(row); T];
        for t in 1..T {
            x[t] = self.activations.row(row + t);
        }
        let octet = |octet| Weights::<C>::new((self.w.octet_words(octet), self.w.octet_scales(octet)));
        let far = &self.activations.far_of_tiles[row / TILE];
        let first = multiply(s, octet(2 * pair), x, far);
        let second = if 2 * pair + 1 < self.target.octets { multiply(s, octet(2 * pair + 1), x, far) } else { first };
        unrolled!(t of [0 1 2 3] below T => {
            // SAFETY: parts have different pairs.
            unsafe { self.target.finish(s, row + t, pair, [first[t], second[t]]) };
        });
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
    /// What its codes are masked with.
    const MASK: u32;
    /// Those vectors; what follows them is not used.
    fn planes<S: Simd>(s: S, word: S::I, mask: S::I) -> [S::I; 4];
    /// Where the code of a column is: its word, and the bits below it.
    fn place(column: usize) -> (usize, u32);
    /// The codes of eight rows that have `shift` bits below them.
    fn code<S: Simd>(s: S, word: S::I, shift: u32) -> S::I;
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
    const MASK: u32 = 0x000F_000F;
    const MINIMUM: bool = true;

    #[inline(always)]
    fn planes<S: Simd>(s: S, word: S::I, mask: S::I) -> [S::I; 4] {
        [
            s.and(word, mask),
            s.and(s.shift_right::<4>(word), mask),
            s.and(s.shift_right::<8>(word), mask),
            s.and(s.shift_right::<12>(word), mask),
        ]
    }

    fn place(column: usize) -> (usize, u32) {
        (column / BLOCK * Self::WORDS + column % 16 / 4, (8 * (column % 4) + 4 * (column % BLOCK / 16)) as u32)
    }

    #[inline(always)]
    fn code<S: Simd>(s: S, word: S::I, shift: u32) -> S::I {
        s.shift_right::<28>(s.shift_left_by(word, 28 - shift))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, words: &[u32]) -> [S::F; 2] {
        let words = words.as_array().map_or(s.splat_i(0), |words| s.load_i(words));
        [s.low_halves(words), s.high_halves(words)]
    }
}

#[derive(Clone, Copy)]
struct Q8;

impl Code for Q8 {
    const WORDS: usize = 8;
    const PLANES: usize = 2;
    const SCALES: usize = 4;
    const MASK: u32 = 0;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn planes<S: Simd>(s: S, word: S::I, _: S::I) -> [S::I; 4] {
        [s.low_bytes(word), s.high_bytes(word), word, word]
    }

    fn place(column: usize) -> (usize, u32) {
        (column / 4, 8 * (column % 4) as u32)
    }

    #[inline(always)]
    fn code<S: Simd>(s: S, word: S::I, shift: u32) -> S::I {
        s.shift_right_signed::<24>(s.shift_left_by(word, 24 - shift))
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

/// The products of an octet with `T` rows of activations.
#[inline(always)]
fn multiply<S: Simd, C: Code, const T: usize>(
    s: S,
    weights: Weights<'_, C>,
    x: [Row<'_>; T],
    far: &[Far],
) -> [S::F; T] {
    let mut y = [s.splat(0.0); T];
    let hidden = Hidden { mask: s.splat_i(std::hint::black_box(C::MASK)), never: std::hint::black_box(usize::MAX) };
    for block in 0..x[0].pairs.len() {
        weights.prefetch(s, block);
        let mut pairs = [&x[0].pairs[block]; T];
        unrolled!(t of [0 1 2 3] below T => pairs[t] = &x[t].pairs[block]);
        let dots = block_dots::<S, C, T>(s, weights, block, pairs, hidden);
        let [d, m] = weights.scales(s, block);
        unrolled!(t of [0 1 2 3] below T => y[t] = scale_dots::<S, C>(s, dots[t], d, m, x[t].scales[block], y[t]));
    }
    for far in far {
        let code = s.to_f(C::code(s, s.load_i(&weights.words[far.word]), far.shift));
        let [d, m] = weights.scales(s, far.column / BLOCK);
        // The weight comes first: where it is 0, `d * code` and `m` cancel as they are.
        let weight = if C::MINIMUM { s.mul_add(d, code, m) } else { s.mul(d, code) };
        unrolled!(t of [0 1 2 3] below T => y[t] = s.mul_add(weight, s.splat(far.values[t]), y[t]));
    }
    y
}

/// Values that the compiler is kept from knowing.
#[derive(Clone, Copy)]
struct Hidden<S: Simd> {
    /// What codes are masked with: as a constant a browser makes it anew wherever it is used.
    mask: S::I,
    /// A turn that never comes: [`add_word`] says what it is for.
    never: usize,
}

/// The integer products of one block.
#[inline(always)]
fn block_dots<S: Simd, C: Code, const T: usize>(
    s: S,
    weights: Weights<'_, C>,
    block: usize,
    x: [&[u32; 16]; T],
    hidden: Hidden<S>,
) -> [S::I; T] {
    let mut dots = [s.splat_i(0); T];
    // Written out, fewer rows than a tile's are faster; a tile's own sums would not all keep their registers.
    if T < TILE {
        unrolled!(word of [0 1 2 3 4 5 6 7] below C::WORDS => {
            dots = add_word(s, weights, [block, word], x, hidden, dots);
        });
    } else {
        for word in 0..C::WORDS {
            dots = add_word(s, weights, [block, word], x, hidden, dots);
        }
    }
    dots
}

/// Adds the products of a word's codes.
///
/// All rows' sums go on together, a plane at a time. Left to itself LLVM's code for wasm finishes one sum after another, for
/// which all planes must be kept, more than there are registers. So every plane might be the last one, for all it knows: a
/// turn on which the sums were wanted as they then are.
#[inline(always)]
fn add_word<S: Simd, C: Code, const T: usize>(
    s: S,
    weights: Weights<'_, C>,
    [block, word]: [usize; 2],
    x: [&[u32; 16]; T],
    hidden: Hidden<S>,
    mut dots: [S::I; T],
) -> [S::I; T] {
    let codes = C::planes(s, weights.word(s, block, word), hidden.mask);
    unrolled!(plane of [0 1 2 3] below C::PLANES => {
        let at = word * C::PLANES + plane;
        unrolled!(t of [0 1 2 3] below T => {
            dots[t] = s.add_i(dots[t], s.dot_pairs(codes[plane], s.splat_i(x[t][at])));
        });
        if cfg!(target_family = "wasm") && block + at == hidden.never {
            let mut sums = [[0; 8]; T];
            unrolled!(t of [0 1 2 3] below T => s.store_i(dots[t], &mut sums[t]));
            never_comes(&sums);
        }
    });
    dots
}

#[cold]
#[inline(never)]
fn never_comes(sums: &[[u32; 8]]) -> ! {
    unreachable!("no row has so many blocks: {sums:?}")
}

/// `y` plus a block's products in true size.
#[inline(always)]
fn scale_dots<S: Simd, C: Code>(s: S, dots: S::I, d: S::F, m: S::F, [scale, sum]: [f32; 2], y: S::F) -> S::F {
    let y = s.mul_add(s.mul(d, s.splat(scale)), s.to_f(dots), y);
    if C::MINIMUM { s.mul_add(m, s.splat(sum), y) } else { y }
}
