//! Packed matrix times activations, with RMSNorm before and an epilogue after.
//!
//! Quantized weights meet activations rounded to 16 bits, one scale for each 32 columns; a block's sum of products is an
//! exact integer, and blocks are added in f32 in order. So a chunk gives, to the bit, what its rows give one by one. The
//! rounding costs some 2e-6 of the sum of |w x|; in blocks with values far above the row's others (the first token's residual
//! has one of 2e4) what the rounding left over is multiplied too. Unquantized weights are multiplied in f32.

#![expect(clippy::needless_range_loop, reason = "the innermost loops index several small arrays in step")]

use super::simd::{self, Kernel, Simd, dispatch};
use super::threads::{self, Disjoint, share};
use crate::packed::{BLOCK, Codec, OCTET, Packed, octets};
use std::cell::RefCell;
use std::ops::Range;

/// RMSNorm of the input: `x * gain / sqrt(mean(x^2) + eps)`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// One factor a column.
    pub gain: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// What becomes of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// `out = y`.
    Store,
    /// `out += y`: the residual.
    Add,
    /// The octets of the weights alternate gate and up; `out = silu(gate) * up`, half as wide.
    SiluGate,
}

/// A block whose largest value is so many times the row's root mean square is rounded twice: the steps of such blocks
/// would make up most of a row's error.
const FAR: f32 = 8.0;
/// Rows that share a load of weights.
const TILE: usize = 4;
/// From this many rows on, unpacked weights are kept for the rows that follow.
const UNPACK_FROM: usize = 5;
/// From these rows and columns of output on, products are gathered for [`NARROW_PAIRS`] octet pairs before they are stored:
/// one after another they would each touch a line of another page, which the caches cannot hold.
const NARROW_ROWS: usize = 64;
const NARROW_FROM: usize = 8192;
const NARROW_PAIRS: usize = 8;
/// Rows of activations that one part prepares.
const PREPARE_ROWS: usize = 8;
/// Parts a thread, so that one that is held up does not hold up all.
const PARTS_A_THREAD: usize = 4;

/// `y = W x`, or `W norm(x)`, for each row of `x`.
///
/// # Shapes
/// - x: `[rows, w.cols]`
/// - norm gain: `[w.cols]`
/// - out: `[rows, w.rows]`, or `[rows, w.rows / 2]` for [`Epilogue::SiluGate`]
///
/// # Panics
/// If a slice's length contradicts these shapes, or SiLU is asked of a matrix whose rows are no multiple of 16.
pub fn linear(x: &[f32], rows: usize, norm: Option<Norm<'_>>, w: &Packed<'_>, out: &mut [f32], epilogue: Epilogue) {
    let out_cols = if epilogue == Epilogue::SiluGate { w.rows / 2 } else { w.rows };
    assert_eq!(x.len(), rows * w.cols, "the input of a linear layer");
    assert_eq!(out.len(), rows * out_cols, "the output of a linear layer");
    assert!(norm.is_none_or(|norm| norm.gain.len() == w.cols), "the norm has one factor a column");
    assert!(
        epilogue != Epilogue::SiluGate || w.rows.is_multiple_of(2 * OCTET),
        "gate and up rows alternate by whole octets"
    );
    if rows == 0 {
        return;
    }
    ACTIVATIONS.with_borrow_mut(|activations| {
        activations.prepare(x, rows, norm, w.codec, w.cols);
        let out = Disjoint::new(out);
        let pairs = octets(w.rows).div_ceil(2);
        let parts = pairs.min(threads::threads() * PARTS_A_THREAD);
        threads::run(parts, |part| {
            let pairs = share(pairs, part, parts);
            let to = Target { out: &out, stride: out_cols, columns: 0..out_cols };
            dispatch(Part { activations, rows, w, to, epilogue, pairs });
        });
    });
}

thread_local! {
    static ACTIVATIONS: RefCell<Activations> = RefCell::default();
    static TILES: RefCell<Tiles> = RefCell::default();
    static NARROW: RefCell<Vec<f32>> = RefCell::default();
}

/// The input as the inner loops read it, by row and block of 32 columns.
#[derive(Default)]
struct Activations {
    blocks: usize,
    /// 16-bit values, in pairs, in the order in which the codec's words yield codes; for the unquantized codecs unused.
    pairs: Vec<[u32; 16]>,
    /// What a 16-bit value of 1 stands for, and the sum of the block's values, in true size.
    scales: Vec<[f32; 2]>,
    /// By row: what rounding left over in blocks with far values.
    rests: Vec<Vec<Rest>>,
    /// Single precision values; for the quantized codecs unused.
    values: Vec<[f32; BLOCK]>,
}

/// A second term of a block of activations.
struct Rest {
    block: usize,
    pairs: [u32; 16],
    scales: [f32; 2],
}

impl Activations {
    fn prepare(&mut self, x: &[f32], rows: usize, norm: Option<Norm<'_>>, codec: Codec, cols: usize) {
        self.blocks = cols / BLOCK;
        let blocks = rows * self.blocks;
        let quantized = matches!(codec, Codec::Q4 | Codec::Q8);
        if quantized {
            self.pairs.resize(blocks, [0; 16]);
            self.scales.resize(blocks, [0.0; 2]);
            self.rests.resize_with(rows, Vec::new);
        } else {
            self.values.resize(blocks, [0.0; BLOCK]);
        }
        let (pairs, scales) = (Disjoint::new(&mut self.pairs), Disjoint::new(&mut self.scales));
        let (rests, values) = (Disjoint::new(&mut self.rests), Disjoint::new(&mut self.values));
        let parts = rows.div_ceil(PREPARE_ROWS);
        threads::run(parts, |part| {
            let rows = share(rows, part, parts);
            let range = rows.start * cols / BLOCK..rows.end * cols / BLOCK;
            let x = &x[rows.start * cols..rows.end * cols];
            // SAFETY: parts have different rows.
            unsafe {
                if quantized {
                    let (pairs, scales) = (pairs.range(range.clone()), scales.range(range));
                    let rests = rests.range(rows);
                    dispatch(Quantize { x, cols, norm, q4: codec == Codec::Q4, pairs, scales, rests });
                } else {
                    dispatch(Widen { x, cols, norm, values: values.range(range) });
                }
            }
        });
    }

    fn row<'a, T>(&self, of: &'a [T], row: usize) -> &'a [T] {
        &of[row * self.blocks..(row + 1) * self.blocks]
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[[f32; 8]], eps: f32) -> f32 {
    let mut total = 0.0;
    for x in x.chunks(16) {
        let mut squares = s.splat(0.0);
        for x in x {
            let x = s.load(x);
            squares = s.mul_add(x, x, squares);
        }
        total += f64::from(simd::sum(s, squares));
    }
    (1.0 / (total / (x.len() * 8) as f64 + f64::from(eps)).sqrt()) as f32
}

struct Quantize<'a> {
    x: &'a [f32],
    cols: usize,
    norm: Option<Norm<'a>>,
    q4: bool,
    pairs: &'a mut [[u32; 16]],
    scales: &'a mut [[f32; 2]],
    rests: &'a mut [Vec<Rest>],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.cols / BLOCK;
        let gain = self.norm.map(|norm| norm.gain.as_chunks::<8>().0);
        for (row, (x, rests)) in self.x.chunks_exact(self.cols).zip(self.rests).enumerate() {
            rests.clear();
            let x = x.as_chunks::<8>().0;
            let factor = self.norm.map_or(1.0, |norm| inverse_rms(s, x, norm.eps));
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

struct Widen<'a> {
    x: &'a [f32],
    cols: usize,
    norm: Option<Norm<'a>>,
    values: &'a mut [[f32; BLOCK]],
}

impl Kernel for Widen<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let values = self.values.as_flattened_mut();
        for (x, values) in self.x.chunks_exact(self.cols).zip(values.chunks_exact_mut(self.cols)) {
            values.copy_from_slice(x);
            if let Some(norm) = self.norm {
                let factor = inverse_rms(s, x.as_chunks().0, norm.eps);
                for (value, gain) in values.iter_mut().zip(norm.gain) {
                    *value *= gain * factor;
                }
            }
        }
    }
}

/// Weights of two octets, unpacked for many rows: by octet and block, 16-bit codes in pairs, scale and minimum.
#[derive(Default)]
struct Tiles {
    codes: Vec<[[u32; 8]; 16]>,
    scales: Vec<[[f32; 8]; 2]>,
}

/// Where products go: `out[row * stride + column - columns.start]`, for the columns given.
#[derive(Clone)]
struct Target<'a> {
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    columns: Range<usize>,
}

/// Some pairs of octets, times all rows.
struct Part<'a> {
    activations: &'a Activations,
    rows: usize,
    w: &'a Packed<'a>,
    to: Target<'a>,
    epilogue: Epilogue,
    pairs: Range<usize>,
}

impl Kernel for Part<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Where registers are few, one octet at a time, loading unpacked weights costs as much as unpacking them.
        let direct = self.rows < UNPACK_FROM || !S::WIDE;
        match self.w.codec {
            Codec::Q4 if direct => self.direct::<S, Q4>(s),
            Codec::Q8 if direct => self.direct::<S, Q8>(s),
            Codec::Q4 | Codec::Q8
                if self.epilogue == Epilogue::Store && self.rows >= NARROW_ROWS && self.to.stride >= NARROW_FROM =>
            {
                self.narrow(s)
            }
            Codec::Q4 | Codec::Q8 => self.unpacked(s),
            Codec::F16 => self.float::<S, true>(s),
            Codec::F32 => self.float::<S, false>(s),
        }
    }
}

impl Part<'_> {
    /// Octets of a pair: 2, or 1 at an odd end.
    fn octets(&self, pair: usize) -> usize {
        (octets(self.w.rows) - 2 * pair).min(2)
    }

    #[inline(always)]
    fn direct<S: Simd, C: Code>(&self, s: S) {
        for pair in self.pairs.clone() {
            let octet = |octet: usize| Direct::<C>::new((self.w.octet_words(octet), self.w.octet_scales(octet)));
            let weights = [octet(2 * pair), octet(2 * pair + self.octets(pair) - 1)];
            let mut row = 0;
            while row + TILE <= self.rows {
                self.tile::<S, _, TILE>(s, pair, weights, row);
                row += TILE;
            }
            match self.rows - row {
                1 => self.tile::<S, _, 1>(s, pair, weights, row),
                2 => self.tile::<S, _, 2>(s, pair, weights, row),
                3 => self.tile::<S, _, 3>(s, pair, weights, row),
                _ => {}
            }
        }
    }

    #[inline(always)]
    fn unpacked<S: Simd>(&self, s: S) {
        // Taken and put back: within a closure of the thread-local's the instruction set would be lost.
        let mut tiles = TILES.take();
        let blocks = self.w.blocks();
        tiles.codes.resize(2 * blocks, [[0; 8]; 16]);
        tiles.scales.resize(2 * blocks, [[0.0; 8]; 2]);
        for pair in self.pairs.clone() {
            let octets = self.octets(pair);
            for o in 0..octets {
                let weights = (self.w.octet_words(2 * pair + o), self.w.octet_scales(2 * pair + o));
                let codes = &mut tiles.codes[o * blocks..(o + 1) * blocks];
                let scales = &mut tiles.scales[o * blocks..(o + 1) * blocks];
                match self.w.codec {
                    Codec::Q4 => unpack(s, Direct::<Q4>::new(weights), codes, scales),
                    _ => unpack(s, Direct::<Q8>::new(weights), codes, scales),
                }
            }
            let (codes, scales) = (tiles.codes.split_at(blocks), tiles.scales.split_at(blocks));
            let first = Unpacked { codes: codes.0, scales: scales.0 };
            let second = Unpacked { codes: codes.1, scales: scales.1 };
            let weights = [first, if octets == 2 { second } else { first }];
            let mut row = 0;
            while row + TILE <= self.rows {
                self.tile::<S, _, TILE>(s, pair, weights, row);
                row += TILE;
            }
            while row < self.rows {
                self.tile::<S, _, 1>(s, pair, weights, row);
                row += 1;
            }
        }
        TILES.set(tiles);
    }

    /// As [`Self::unpacked`], by way of a narrow array.
    #[inline(always)]
    fn narrow<S: Simd>(&self, s: S) {
        let mut narrow = NARROW.take();
        let mut first = self.pairs.start;
        while first < self.pairs.end {
            let end = self.pairs.end.min(first + NARROW_PAIRS);
            let columns = first * 2 * OCTET..(end * 2 * OCTET).min(self.to.columns.end);
            let stride = columns.len();
            narrow.resize(self.rows * stride, 0.0);
            let gathered = Disjoint::new(&mut narrow);
            let to = Target { out: &gathered, stride, columns: columns.clone() };
            Part { to, pairs: first..end, ..*self }.unpacked(s);
            for (row, from) in narrow.chunks_exact(stride).enumerate() {
                let at = row * self.to.stride;
                // SAFETY: parts have different octets.
                let out = unsafe { self.to.out.range(at + columns.start..at + columns.end) };
                out.copy_from_slice(from);
            }
            first = end;
        }
        NARROW.set(narrow);
    }

    /// The products of a pair of octets with `T` rows. At an odd end the pair is one octet twice, and one is dropped.
    #[inline(always)]
    fn tile<S: Simd, W: Weights, const T: usize>(&self, s: S, pair: usize, weights: [W; 2], row: usize) {
        let a = self.activations;
        let x: [_; T] = std::array::from_fn(|t| Row {
            pairs: a.row(&a.pairs, row + t),
            scales: a.row(&a.scales, row + t),
            rests: &a.rests[row + t],
        });
        let mut y = [[s.splat(0.0); T]; 2];
        if S::WIDE {
            y = multiply::<S, W, T, 2>(s, weights, x);
        } else {
            for o in 0..self.octets(pair) {
                [y[o]] = multiply::<S, W, T, 1>(s, [weights[o]], x);
            }
        }
        self.finish(s, pair, row, y);
    }

    #[inline(always)]
    fn float<S: Simd, const HALF: bool>(&self, s: S) {
        for pair in self.pairs.clone() {
            let mut row = 0;
            while row + TILE <= self.rows {
                self.float_tile::<S, HALF, TILE>(s, pair, row);
                row += TILE;
            }
            while row < self.rows {
                self.float_tile::<S, HALF, 1>(s, pair, row);
                row += 1;
            }
        }
    }

    #[inline(always)]
    fn float_tile<S: Simd, const HALF: bool, const T: usize>(&self, s: S, pair: usize, row: usize) {
        let a = self.activations;
        let x: [_; T] = std::array::from_fn(|t| a.row(&a.values, row + t));
        let mut y = [[s.splat(0.0); T]; 2];
        for o in 0..self.octets(pair) {
            y[o] = multiply_float::<S, HALF, T>(s, self.w.octet_words(2 * pair + o), x);
        }
        self.finish(s, pair, row, y);
    }

    /// Writes the products of a pair of octets with `T` rows.
    #[inline(always)]
    fn finish<S: Simd, const T: usize>(&self, s: S, pair: usize, row: usize, y: [[S::F; T]; 2]) {
        for t in 0..T {
            if self.epilogue == Epilogue::SiluGate {
                let [gate, up] = [y[0][t], y[1][t]];
                let sigmoid = s.add(s.splat(1.0), simd::exp(s, s.sub(s.splat(0.0), gate)));
                self.write(s, row + t, pair, s.mul(s.div(gate, sigmoid), up));
            } else {
                for o in 0..self.octets(pair) {
                    self.write(s, row + t, 2 * pair + o, y[o][t]);
                }
            }
        }
    }

    /// Writes eight columns, fewer at the end.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, row: usize, octet: usize, y: S::F) {
        let Target { out, stride, columns } = &self.to;
        let from = octet * OCTET;
        let to = (from + OCTET).min(columns.end);
        let at = row * stride + from - columns.start;
        // SAFETY: parts have different octets.
        let out = unsafe { out.range(at..at + to - from) };
        let add = self.epilogue == Epilogue::Add;
        if let Some(out) = out.as_mut_array::<8>() {
            let y = if add { s.add(y, s.load(out)) } else { y };
            s.store(y, out);
        } else {
            let mut y8 = [0.0; 8];
            s.store(y, &mut y8);
            for (out, y) in out.iter_mut().zip(y8) {
                *out = if add { *out + y } else { y };
            }
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

/// Where the inner loop takes an octet's weights from.
trait Weights: Copy {
    const WORDS: usize;
    const PLANES: usize;
    const MINIMUM: bool;
    fn word<S: Simd>(self, s: S, block: usize, word: usize) -> S::I;
    fn plane<S: Simd>(s: S, word: S::I, plane: usize) -> S::I;
    fn scales<S: Simd>(self, s: S, block: usize) -> [S::F; 2];
    /// Asks for the same block of the next pair.
    fn prefetch<S: Simd>(self, s: S, block: usize);
}

/// Straight from the packed words.
#[derive(Clone, Copy)]
struct Direct<'a, C> {
    words: &'a [[u32; 8]],
    scales: &'a [u32],
    code: std::marker::PhantomData<C>,
}

impl<'a, C: Code> Direct<'a, C> {
    #[inline(always)]
    fn new((words, scales): (&'a [u32], &'a [u32])) -> Self {
        Direct { words: words.as_chunks().0, scales, code: std::marker::PhantomData }
    }
}

impl<C: Code> Weights for Direct<'_, C> {
    const WORDS: usize = C::WORDS;
    const PLANES: usize = C::PLANES;
    const MINIMUM: bool = C::MINIMUM;

    #[inline(always)]
    fn word<S: Simd>(self, s: S, block: usize, word: usize) -> S::I {
        s.load_i(&self.words[block * C::WORDS + word])
    }

    #[inline(always)]
    fn plane<S: Simd>(s: S, word: S::I, plane: usize) -> S::I {
        C::plane(s, word, plane)
    }

    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> [S::F; 2] {
        C::scales(s, &self.scales[block * C::SCALES..(block + 1) * C::SCALES])
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, s: S, block: usize) {
        let words = self.words.as_ptr().wrapping_add(2 * self.words.len() + block * C::WORDS);
        for line in (0..C::WORDS).step_by(2) {
            s.prefetch(words.wrapping_add(line).cast());
        }
        s.prefetch(self.scales.as_ptr().wrapping_add(2 * self.scales.len() + block * C::SCALES));
    }
}

/// From a tile.
#[derive(Clone, Copy)]
struct Unpacked<'a> {
    codes: &'a [[[u32; 8]; 16]],
    scales: &'a [[[f32; 8]; 2]],
}

impl Weights for Unpacked<'_> {
    const WORDS: usize = 16;
    const PLANES: usize = 1;
    const MINIMUM: bool = true;

    #[inline(always)]
    fn word<S: Simd>(self, s: S, block: usize, word: usize) -> S::I {
        s.load_i(&self.codes[block][word])
    }

    #[inline(always)]
    fn plane<S: Simd>(_: S, word: S::I, _: usize) -> S::I {
        word
    }

    #[inline(always)]
    fn scales<S: Simd>(self, s: S, block: usize) -> [S::F; 2] {
        let [d, m] = &self.scales[block];
        [s.load(d), s.load(m)]
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, _: S, _: usize) {}
}

#[inline(always)]
fn unpack<S: Simd, C: Code>(s: S, weights: Direct<'_, C>, codes: &mut [[[u32; 8]; 16]], scales: &mut [[[f32; 8]; 2]]) {
    for (block, (codes, scales)) in codes.iter_mut().zip(scales).enumerate() {
        for word in 0..C::WORDS {
            let from = weights.word(s, block, word);
            for plane in 0..C::PLANES {
                s.store_i(C::plane(s, from, plane), &mut codes[word * C::PLANES + plane]);
            }
        }
        let [d, m] = weights.scales(s, block);
        s.store(d, &mut scales[0]);
        s.store(m, &mut scales[1]);
    }
}

/// A row of [`Activations`].
#[derive(Clone, Copy)]
struct Row<'a> {
    pairs: &'a [[u32; 16]],
    scales: &'a [[f32; 2]],
    rests: &'a [Rest],
}

/// The products of `O` octets with `T` rows of activations.
#[inline(always)]
fn multiply<S: Simd, W: Weights, const T: usize, const O: usize>(
    s: S,
    weights: [W; O],
    x: [Row<'_>; T],
) -> [[S::F; T]; O] {
    let mut y = [[s.splat(0.0); T]; O];
    for block in 0..x[0].pairs.len() {
        for o in 0..O {
            weights[o].prefetch(s, block);
        }
        let dots = block_dots::<S, W, T, O>(s, weights, block, std::array::from_fn(|t| &x[t].pairs[block]));
        for o in 0..O {
            let [d, m] = weights[o].scales(s, block);
            for t in 0..T {
                y[o][t] = scale_dots::<S, W>(s, dots[o][t], d, m, x[t].scales[block], y[o][t]);
            }
        }
    }
    for t in 0..T {
        for rest in x[t].rests {
            let dots = block_dots::<S, W, 1, O>(s, weights, rest.block, [&rest.pairs]);
            for o in 0..O {
                let [d, m] = weights[o].scales(s, rest.block);
                y[o][t] = scale_dots::<S, W>(s, dots[o][0], d, m, rest.scales, y[o][t]);
            }
        }
    }
    y
}

/// The integer products of one block.
#[inline(always)]
fn block_dots<S: Simd, W: Weights, const T: usize, const O: usize>(
    s: S,
    weights: [W; O],
    block: usize,
    x: [&[u32; 16]; T],
) -> [[S::I; T]; O] {
    let mut dots = [[s.splat_i(0); T]; O];
    for word in 0..W::WORDS {
        let mut words = [s.splat_i(0); O];
        for o in 0..O {
            words[o] = weights[o].word(s, block, word);
        }
        for plane in 0..W::PLANES {
            let mut codes = [s.splat_i(0); O];
            for o in 0..O {
                codes[o] = W::plane(s, words[o], plane);
            }
            for t in 0..T {
                let pair = s.splat_i(x[t][word * W::PLANES + plane]);
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
fn scale_dots<S: Simd, W: Weights>(s: S, dots: S::I, d: S::F, m: S::F, [scale, sum]: [f32; 2], y: S::F) -> S::F {
    let y = s.mul_add(s.mul(d, s.splat(scale)), s.to_f(dots), y);
    if W::MINIMUM { s.mul_add(m, s.splat(sum), y) } else { y }
}

/// The products of one octet of unquantized weights with `T` rows of activations.
#[inline(always)]
fn multiply_float<S: Simd, const HALF: bool, const T: usize>(
    s: S,
    words: &[u32],
    x: [&[[f32; BLOCK]]; T],
) -> [S::F; T] {
    let words = words.as_chunks::<8>().0;
    let block_words = if HALF { BLOCK / 2 } else { BLOCK };
    let mut y = [s.splat(0.0); T];
    for (block, words) in words.chunks_exact(block_words).enumerate() {
        // Even and odd columns apart: shorter chains, and a block's sum before the whole's loses less.
        let mut sums = [[s.splat(0.0); 2]; T];
        for pair in 0..BLOCK / 2 {
            let [even, odd] = if HALF {
                let word = s.load_i(&words[pair]);
                [simd::low_halves(s, word), simd::high_halves(s, word)]
            } else {
                [s.as_f(s.load_i(&words[2 * pair])), s.as_f(s.load_i(&words[2 * pair + 1]))]
            };
            for t in 0..T {
                let x = &x[t][block];
                sums[t][0] = s.mul_add(even, s.splat(x[2 * pair]), sums[t][0]);
                sums[t][1] = s.mul_add(odd, s.splat(x[2 * pair + 1]), sums[t][1]);
            }
        }
        for t in 0..T {
            y[t] = s.add(y[t], s.add(sums[t][0], sums[t][1]));
        }
    }
    y
}
