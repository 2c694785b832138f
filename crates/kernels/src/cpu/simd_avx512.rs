//! Sixteen lanes on x86-64 with AVX-512.

use super::simd_avx2::Avx2;
use super::simd_wide::{Wide, WideKernel};
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Proof that the machine has AVX-512 (F and VL), AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx512(Avx2);

impl Avx512 {
    /// None where the machine lacks a feature, or `SINKSTREAM_SIMD` (`avx2` or `portable`) asks for less.
    pub fn detect() -> Option<Self> {
        static FOUND: OnceLock<Option<Avx512>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let unwanted = std::env::var_os("SINKSTREAM_SIMD").is_some();
            let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
            Avx2::detect().filter(|_| has && !unwanted).map(Avx512)
        })
    }

    pub fn call(self, kernel: impl WideKernel) {
        #[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
        fn compiled_for_avx512<K: WideKernel>(w: Avx512, kernel: K) {
            kernel.run(w);
        }
        // SAFETY: `self` exists, so `detect` found the features.
        unsafe { compiled_for_avx512(self, kernel) }
    }
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

impl Wide for Avx512 {
    type F = __m512;
    type I = __m512i;
    type Half = Avx2;
    const ONE: bool = true;

    #[inline(always)]
    fn half(self) -> Avx2 {
        self.0
    }

    operations! {
        splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        load(x: &[[f32; 8]; 2]) -> __m512 { _mm512_loadu_ps(x.as_ptr().cast()) }
        store(x: __m512, to: &mut [[f32; 8]; 2]) { _mm512_storeu_ps(to.as_mut_ptr().cast(), x) }
        split(x: __m512) -> [__m256; 2] {
            [_mm512_castps512_ps256(x), _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x)))]
        }
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }

        load_i(x: [&[u32; 8]; 2]) -> __m512i {{
            let [a, b] = [_mm256_loadu_si256(x[0].as_ptr().cast()), _mm256_loadu_si256(x[1].as_ptr().cast())];
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b)
        }}
        and(a: __m512i, mask: u32) -> __m512i { _mm512_and_si512(a, _mm512_set1_epi32(mask.cast_signed())) }
        shift_left<N>(a: __m512i) -> __m512i { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
        shift_right<N>(a: __m512i) -> __m512i { _mm512_srl_epi32(a, _mm_cvtsi32_si128(N)) }
        to_f(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        as_f(a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        low_halves(a: __m512i) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)) }
        high_halves(a: __m512i) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(a))) }
        halves(x: [&[u32; 4]; 2]) -> __m512 {{
            let [a, b] = [_mm_loadu_si128(x[0].as_ptr().cast()), _mm_loadu_si128(x[1].as_ptr().cast())];
            _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b))
        }}
    }
}
