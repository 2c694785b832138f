//! Eight lanes as two registers of wasm's simd128.

use super::simd::{EXP, HALF_FACTOR, HALF_MASK, Kernel, LINE, SHIFTER, Simd};
use std::arch::wasm32::*;
use std::hint::black_box;

/// Constants of inner loops are kept as values, read where the compiler cannot see it: as constants a browser makes them anew,
/// in three instructions, wherever they are used.
#[derive(Clone, Copy)]
pub(super) struct Simd128 {
    half_mask: v128,
    half_factor: v128,
    exp: &'static [f32; EXP.len()],
}

/// Runs a kernel as a function of its own: browsers compile many small functions sooner than a large one, and keep more of
/// their values in registers.
#[inline(never)]
pub(super) fn call(kernel: impl Kernel) {
    kernel.run(Simd128 {
        half_mask: black_box(u32x4_splat(HALF_MASK)),
        half_factor: black_box(f32x4_splat(HALF_FACTOR)),
        exp: black_box(&EXP),
    });
}

type Two = [v128; 2];

/// Operations that are the same on both registers.
macro_rules! on_both {
    ($($name:ident$(<$n:ident>)?($($arg:ident),*) { $body:expr })*) => {$(
        #[inline(always)]
        fn $name$(<const $n: i32>)?(self, $($arg: Two),*) -> Two {
            let op = |$($arg: v128),*| $body;
            [op($($arg[0]),*), op($($arg[1]),*)]
        }
    )*};
}

/// Four rows become four columns.
fn transpose4([a, b, c, d]: [v128; 4]) -> [v128; 4] {
    let ab = i32x4_shuffle::<0, 4, 1, 5>(a, b);
    let cd = i32x4_shuffle::<0, 4, 1, 5>(c, d);
    let ab_high = i32x4_shuffle::<2, 6, 3, 7>(a, b);
    let cd_high = i32x4_shuffle::<2, 6, 3, 7>(c, d);
    [
        i64x2_shuffle::<0, 2>(ab, cd),
        i64x2_shuffle::<1, 3>(ab, cd),
        i64x2_shuffle::<0, 2>(ab_high, cd_high),
        i64x2_shuffle::<1, 3>(ab_high, cd_high),
    ]
}

/// The sum of each row's lanes.
fn sums4(rows: [v128; 4]) -> v128 {
    let [a, b, c, d] = transpose4(rows);
    f32x4_add(f32x4_add(a, b), f32x4_add(c, d))
}

impl Simd for Simd128 {
    type F = Two;
    type I = Two;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Two {
        [f32x4_splat(x); 2]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> Two {
        self.load_i(bytemuck::cast_ref(x))
    }

    #[inline(always)]
    fn store(self, x: Two, to: &mut [f32; 8]) {
        self.store_i(x, bytemuck::cast_mut(to));
    }

    on_both! {
        add(a, b) { f32x4_add(a, b) }
        sub(a, b) { f32x4_sub(a, b) }
        mul(a, b) { f32x4_mul(a, b) }
        div(a, b) { f32x4_div(a, b) }
        mul_add(a, b, c) { f32x4_add(f32x4_mul(a, b), c) }
        mul_sub(a, b, c) { f32x4_sub(f32x4_mul(a, b), c) }
        // The pseudo-maximum `b < a ? a : b`, one instruction on x86.
        max(a, b) { f32x4_pmax(b, a) }
        min(a, b) { f32x4_pmin(b, a) }
        // A conversion would mind numbers that are too large, in eight instructions on x86.
        round(x) { i32x4_sub(f32x4_add(x, f32x4_splat(SHIFTER)), f32x4_splat(SHIFTER)) }
        add_i(a, b) { i32x4_add(a, b) }
        and(a, b) { v128_and(a, b) }
        shift_left<N>(a) { i32x4_shl(a, N as u32) }
        shift_right<N>(a) { u32x4_shr(a, N as u32) }
        shift_right_signed<N>(a) { i32x4_shr(a, N as u32) }
        low_pairs(a, b) { i16x8_shuffle::<0, 4, 8, 12, 2, 6, 10, 14>(a, b) }
        low_bytes(a) { i16x8_shr(i16x8_shl(a, 8), 8) }
        high_bytes(a) { i16x8_shr(a, 8) }
        dot_pairs(a, b) { i32x4_dot_i16x8(a, b) }
        to_f(a) { f32x4_convert_i32x4(a) }
        as_f(a) { a }
        as_i(a) { a }
    }

    #[inline(always)]
    fn shift_left_by(self, a: Two, n: u32) -> Two {
        a.map(|a| i32x4_shl(a, n))
    }

    #[inline(always)]
    fn any_greater(self, a: Two, b: Two) -> bool {
        v128_any_true(v128_or(f32x4_gt(a[0], b[0]), f32x4_gt(a[1], b[1])))
    }

    #[inline(always)]
    fn exp_numbers(self) -> &'static [f32; EXP.len()] {
        self.exp
    }

    #[inline(always)]
    fn greatest(self, x: Two) -> f32 {
        // Numbers by themselves are compared with branches.
        let x = f32x4_pmax(x[0], x[1]);
        let x = f32x4_pmax(x, i64x2_shuffle::<1, 0>(x, x));
        f32x4_extract_lane::<0>(f32x4_pmax(x, i32x4_shuffle::<1, 0, 3, 2>(x, x)))
    }

    #[inline(always)]
    fn splat_i(self, x: u32) -> Two {
        [u32x4_splat(x); 2]
    }

    #[inline(always)]
    fn load_i(self, x: &[u32; 8]) -> Two {
        let at = x.as_ptr().cast::<v128>();
        // SAFETY: both are within the array; wasm loads need no alignment.
        unsafe { [v128_load(at), v128_load(at.add(1))] }
    }

    #[inline(always)]
    fn store_i(self, x: Two, to: &mut [u32; 8]) {
        let at = to.as_mut_ptr().cast::<v128>();
        // SAFETY: both are within the array; wasm stores need no alignment.
        unsafe {
            v128_store(at, x[0]);
            v128_store(at.add(1), x[1]);
        }
    }

    #[inline(always)]
    fn read_ahead(self, words: &[u32]) {
        for word in words.iter().step_by(LINE) {
            // SAFETY: a reference is valid for reads.
            unsafe { std::ptr::from_ref(word).read_volatile() };
        }
    }

    #[inline(always)]
    fn halves(self, x: &[u32; 4]) -> Two {
        // SAFETY: the load is of the whole array; wasm loads need no alignment.
        let x = unsafe { v128_load(x.as_ptr().cast()) };
        let halves = |x| f32x4_mul(v128_and(i32x4_shl(x, 13), self.half_mask), self.half_factor);
        [halves(i32x4_extend_low_i16x8(x)), halves(i32x4_extend_high_i16x8(x))]
    }

    #[inline(always)]
    fn high_halves(self, x: Two) -> Two {
        x.map(|x| f32x4_mul(v128_and(i32x4_shr(x, 3), self.half_mask), self.half_factor))
    }

    #[inline(always)]
    fn transpose(self, r: [Two; 8]) -> [Two; 8] {
        let [a, b, c, d, e, f, g, h] = r;
        let top_left = transpose4([a[0], b[0], c[0], d[0]]);
        let top_right = transpose4([a[1], b[1], c[1], d[1]]);
        let low_left = transpose4([e[0], f[0], g[0], h[0]]);
        let low_right = transpose4([e[1], f[1], g[1], h[1]]);
        std::array::from_fn(|i| if i < 4 { [top_left[i], low_left[i]] } else { [top_right[i - 4], low_right[i - 4]] })
    }

    #[inline(always)]
    fn sums(self, r: [Two; 8]) -> Two {
        let [a, b, c, d, e, f, g, h] = r.map(|[low, high]| f32x4_add(low, high));
        [sums4([a, b, c, d]), sums4([e, f, g, h])]
    }
}
