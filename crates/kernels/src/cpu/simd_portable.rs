//! Eight lanes as arrays, for machines without the others.

use super::simd::Simd;
use crate::packed::halves;

#[derive(Clone, Copy)]
pub(super) struct Portable;

/// `f` of the lanes of one, two or three arrays.
macro_rules! lanes {
    (|$($x:ident),*| $body:expr) => {
        std::array::from_fn(|i| { $(let $x = $x[i];)* $body })
    };
}

fn pair(x: u32) -> [i32; 2] {
    [i32::from(x as i16), i32::from((x >> 16) as i16)]
}

fn from_pair(x: [i32; 2]) -> u32 {
    x[0] as u32 & 0xFFFF | (x[1] as u32) << 16
}

impl Simd for Portable {
    type F = [f32; 8];
    type I = [u32; 8];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 8] {
        [x; 8]
    }

    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> [f32; 8] {
        *x
    }

    #[inline(always)]
    fn store(self, x: [f32; 8], to: &mut [f32; 8]) {
        *to = x;
    }

    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b, c| a * b + c)
    }

    #[inline(always)]
    fn mul_sub(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b, c| a * b - c)
    }

    #[inline(always)]
    fn max(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        lanes!(|a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn any_greater(self, a: [f32; 8], b: [f32; 8]) -> bool {
        a.iter().zip(&b).any(|(a, b)| a > b)
    }

    #[inline(always)]
    fn round(self, x: [f32; 8]) -> [u32; 8] {
        lanes!(|x| (x.round_ties_even() as i32).cast_unsigned())
    }

    #[inline(always)]
    fn splat_i(self, x: u32) -> [u32; 8] {
        [x; 8]
    }

    #[inline(always)]
    fn load_i(self, x: &[u32; 8]) -> [u32; 8] {
        *x
    }

    #[inline(always)]
    fn store_i(self, x: [u32; 8], to: &mut [u32; 8]) {
        *to = x;
    }

    #[inline(always)]
    fn add_i(self, a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        lanes!(|a, b| a.wrapping_add(b))
    }

    #[inline(always)]
    fn and(self, a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        lanes!(|a, b| a & b)
    }

    #[inline(always)]
    fn shift_left<const N: i32>(self, a: [u32; 8]) -> [u32; 8] {
        lanes!(|a| a << N)
    }

    #[inline(always)]
    fn shift_left_by(self, a: [u32; 8], n: u32) -> [u32; 8] {
        lanes!(|a| a << n)
    }

    #[inline(always)]
    fn shift_right<const N: i32>(self, a: [u32; 8]) -> [u32; 8] {
        lanes!(|a| a >> N)
    }

    #[inline(always)]
    fn shift_right_signed<const N: i32>(self, a: [u32; 8]) -> [u32; 8] {
        lanes!(|a| (a.cast_signed() >> N).cast_unsigned())
    }

    #[inline(always)]
    fn low_bytes(self, a: [u32; 8]) -> [u32; 8] {
        lanes!(|a| from_pair(pair(a).map(|x| i32::from(x as i8))))
    }

    #[inline(always)]
    fn high_bytes(self, a: [u32; 8]) -> [u32; 8] {
        lanes!(|a| from_pair(pair(a).map(|x| x >> 8)))
    }

    #[inline(always)]
    fn dot_pairs(self, a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        lanes!(|a, b| {
            let ([a0, a1], [b0, b1]) = (pair(a), pair(b));
            (a0 * b0).wrapping_add(a1 * b1).cast_unsigned()
        })
    }

    #[inline(always)]
    fn to_f(self, a: [u32; 8]) -> [f32; 8] {
        lanes!(|a| a.cast_signed() as f32)
    }

    #[inline(always)]
    fn as_f(self, a: [u32; 8]) -> [f32; 8] {
        lanes!(|a| f32::from_bits(a))
    }

    #[inline(always)]
    fn as_i(self, a: [f32; 8]) -> [u32; 8] {
        lanes!(|a| a.to_bits())
    }

    #[inline(always)]
    fn halves(self, x: &[u32; 4]) -> [f32; 8] {
        let [(a, b), (c, d), (e, f), (g, h)] = x.map(halves);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn transpose(self, rows: [[u32; 8]; 8]) -> [[u32; 8]; 8] {
        std::array::from_fn(|i| rows.map(|row| row[i]))
    }

    #[inline(always)]
    fn sums(self, rows: [[f32; 8]; 8]) -> [f32; 8] {
        rows.map(|[a, b, c, d, e, f, g, h]| ((a + b) + (c + d)) + ((e + f) + (g + h)))
    }
}
