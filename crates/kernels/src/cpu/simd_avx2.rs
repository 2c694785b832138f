//! Eight lanes on x86-64 with AVX2, FMA and F16C.

use super::simd::{Kernel, Simd};
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// None where the machine lacks a feature, or `SINKSTREAM_SIMD=portable` asks for plain arrays (to rule the
    /// instruction set out as the cause of a difference, and to test the arrays).
    pub fn detect() -> Option<Self> {
        static FOUND: OnceLock<Option<Avx2>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let unwanted = std::env::var_os("SINKSTREAM_SIMD").is_some_and(|set| set == "portable");
            let has =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            (has && !unwanted).then_some(Avx2(()))
        })
    }

    pub fn call(self, kernel: impl Kernel) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled_for_avx2<K: Kernel>(s: Avx2, kernel: K) {
            kernel.run(s);
        }
        // SAFETY: `self` exists, so `detect` found the features.
        unsafe { compiled_for_avx2(self, kernel) }
    }
}

/// Of two rows each, neighbours in the result, half the sums of their halves.
#[inline(always)]
unsafe fn two(a: __m256, b: __m256) -> __m256 {
    // SAFETY: the caller has AVX.
    unsafe { _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)) }
}

/// Of two results of [`two`], the sums of the four rows' halves.
#[inline(always)]
unsafe fn four(a: __m256, b: __m256) -> __m256 {
    // SAFETY: the caller has AVX.
    unsafe { _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(a, b), _mm256_shuffle_ps::<0b11_10_11_10>(a, b)) }
}

/// Implements methods by the bodies given.
macro_rules! operations {
    ($($name:ident$(<$n:ident>)?($($arg:ident: $of:ty),*) $(-> $out:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        fn $name$(<const $n: i32>)?(self, $($arg: $of),*) $(-> $out)? {
            // SAFETY: `self` exists, so `detect` found the features; loads and stores are of whole arrays.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    type F = __m256;
    type I = __m256i;
    const WIDE: bool = true;

    operations! {
        splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        load(x: &[f32; 8]) -> __m256 { _mm256_loadu_ps(x.as_ptr()) }
        store(x: __m256, to: &mut [f32; 8]) { _mm256_storeu_ps(to.as_mut_ptr(), x) }
        add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        mul_sub(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmsub_ps(a, b, c) }
        max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        any_greater(a: __m256, b: __m256) -> bool { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) != 0 }
        round(x: __m256) -> __m256i { _mm256_cvtps_epi32(x) }

        splat_i(x: u32) -> __m256i { _mm256_set1_epi32(x.cast_signed()) }
        load_i(x: &[u32; 8]) -> __m256i { _mm256_loadu_si256(x.as_ptr().cast()) }
        store_i(x: __m256i, to: &mut [u32; 8]) { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
        add_i(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        shift_left<N>(a: __m256i) -> __m256i { _mm256_slli_epi32::<N>(a) }
        shift_left_by(a: __m256i, n: u32) -> __m256i { _mm256_sll_epi32(a, _mm_cvtsi32_si128(n.cast_signed())) }
        shift_right<N>(a: __m256i) -> __m256i { _mm256_srli_epi32::<N>(a) }
        shift_right_signed<N>(a: __m256i) -> __m256i { _mm256_srai_epi32::<N>(a) }
        low_bytes(a: __m256i) -> __m256i { _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)) }
        high_bytes(a: __m256i) -> __m256i { _mm256_srai_epi16::<8>(a) }
        dot_pairs(a: __m256i, b: __m256i) -> __m256i { _mm256_madd_epi16(a, b) }
        to_f(a: __m256i) -> __m256 { _mm256_cvtepi32_ps(a) }
        as_f(a: __m256i) -> __m256 { _mm256_castsi256_ps(a) }
        as_i(a: __m256) -> __m256i { _mm256_castps_si256(a) }
        halves(x: &[u32; 4]) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
        sums(r: [__m256; 8]) -> __m256 {{
            // Within the 128-bit halves: pairs of rows, then fours; then the halves.
            let [a, b, c, d] = [two(r[0], r[1]), two(r[2], r[3]), two(r[4], r[5]), two(r[6], r[7])];
            let [a, b] = [four(a, b), four(c, d)];
            _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
        }}
        prefetch(word: *const u32) { _mm_prefetch::<_MM_HINT_T0>(word.cast()) }
        transpose(r: [__m256i; 8]) -> [__m256i; 8] {{
            // 2x2, then 4x4 within the 128-bit halves, then the halves.
            let a = [
                _mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpacklo_epi32(r[2], r[3]),
                _mm256_unpacklo_epi32(r[4], r[5]), _mm256_unpacklo_epi32(r[6], r[7]),
            ];
            let b = [
                _mm256_unpackhi_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[2], r[3]),
                _mm256_unpackhi_epi32(r[4], r[5]), _mm256_unpackhi_epi32(r[6], r[7]),
            ];
            let c = [
                _mm256_unpacklo_epi64(a[0], a[1]), _mm256_unpackhi_epi64(a[0], a[1]),
                _mm256_unpacklo_epi64(b[0], b[1]), _mm256_unpackhi_epi64(b[0], b[1]),
            ];
            let d = [
                _mm256_unpacklo_epi64(a[2], a[3]), _mm256_unpackhi_epi64(a[2], a[3]),
                _mm256_unpacklo_epi64(b[2], b[3]), _mm256_unpackhi_epi64(b[2], b[3]),
            ];
            [
                _mm256_permute2x128_si256::<0x20>(c[0], d[0]), _mm256_permute2x128_si256::<0x20>(c[1], d[1]),
                _mm256_permute2x128_si256::<0x20>(c[2], d[2]), _mm256_permute2x128_si256::<0x20>(c[3], d[3]),
                _mm256_permute2x128_si256::<0x31>(c[0], d[0]), _mm256_permute2x128_si256::<0x31>(c[1], d[1]),
                _mm256_permute2x128_si256::<0x31>(c[2], d[2]), _mm256_permute2x128_si256::<0x31>(c[3], d[3]),
            ]
        }}
    }
}
