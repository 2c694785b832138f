//! Packed matrix times activations, with RMSNorm before and an epilogue after.
//!
//! Two ways to multiply, and one frame around them. [`single`] keeps f32 throughout: what native programs use. [`rounded`]
//! rounds activations to 16 bits, which in wasm, where f32 products cost twice as much, is what makes an answer bearable to
//! wait for. Either way a chunk gives, to the bit, what its rows give one by one.

mod rounded;
mod single;

use super::simd::{self, Simd};
use super::threads::{self, Disjoint, share};
use crate::packed::{Codec, OCTET, Packed, octets};
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

/// How quantized weights meet activations. Unquantized ones are always multiplied in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// In f32.
    Single,
    /// In integers, activations being rounded to 16 bits.
    Rounded,
}

impl Arithmetic {
    /// What this machine uses.
    pub const HERE: Self = if cfg!(target_family = "wasm") { Self::Rounded } else { Self::Single };
}

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
    linear_by(Arithmetic::HERE, x, rows, norm, w, out, epilogue);
}

/// [`linear`] by either arithmetic.
///
/// # Panics
/// As [`linear`].
pub fn linear_by(
    arithmetic: Arithmetic,
    x: &[f32],
    rows: usize,
    norm: Option<Norm<'_>>,
    w: &Packed<'_>,
    out: &mut [f32],
    epilogue: Epilogue,
) {
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
    let target = Target { out: &Disjoint::new(out), stride: out_cols, epilogue, octets: octets(w.rows) };
    let rounded = arithmetic == Arithmetic::Rounded && matches!(w.codec, Codec::Q4 | Codec::Q8);
    let input = Input { x, rows, cols: w.cols, norm };
    if rounded { rounded::linear(input, w, target) } else { single::linear(input, w, target) }
}

/// Rows of activations.
#[derive(Clone, Copy)]
struct Input<'a> {
    x: &'a [f32],
    rows: usize,
    cols: usize,
    norm: Option<Norm<'a>>,
}

impl<'a> Input<'a> {
    /// Calls `prepare` with each part's rows and their values; parts run at once.
    fn prepare(self, prepare: impl Fn(Range<usize>, &'a [f32]) + Sync) {
        const PART_ROWS: usize = 8;
        let parts = self.rows.div_ceil(PART_ROWS);
        threads::run(parts, |part| {
            let rows = share(self.rows, part, parts);
            let x = &self.x[rows.start * self.cols..rows.end * self.cols];
            prepare(rows, x);
        });
    }
}

/// Calls `run` with each part's pairs of octets; parts run at once.
fn share_pairs(octets: usize, run: impl Fn(Range<usize>) + Sync) {
    let pairs = octets.div_ceil(2);
    let parts = pairs.min(threads::threads() * PARTS_A_THREAD);
    threads::run(parts, |part| run(share(pairs, part, parts)));
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

/// Where products go.
#[derive(Clone, Copy)]
struct Target<'a> {
    out: &'a Disjoint<'a, f32>,
    stride: usize,
    epilogue: Epilogue,
    /// Of the weights.
    octets: usize,
}

impl Target<'_> {
    /// Finishes the products of a row with a pair of octets. At an odd end the second octet is dropped.
    ///
    /// # Safety
    /// No two threads may finish the same pair of a row at once.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, row: usize, pair: usize, y: [S::F; 2]) {
        // SAFETY: the caller's.
        unsafe {
            if self.epilogue == Epilogue::SiluGate {
                let [gate, up] = y;
                let sigmoid = s.add(s.splat(1.0), simd::exp(s, s.sub(s.splat(0.0), gate)));
                self.write(s, row, pair, s.mul(s.div(gate, sigmoid), up));
            } else {
                self.write(s, row, 2 * pair, y[0]);
                if 2 * pair + 1 < self.octets {
                    self.write(s, row, 2 * pair + 1, y[1]);
                }
            }
        }
    }

    /// Writes eight columns, fewer at the end.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: usize, octet: usize, y: S::F) {
        let first = octet * OCTET;
        let at = row * self.stride + first;
        // SAFETY: the caller's.
        let out = unsafe { self.out.range(at..at + OCTET.min(self.stride - first)) };
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
