//! Sixteen lanes, two octets of weights: one register where the machine has such, else two of eight lanes.
//!
//! Only what packed products need. As with [`Simd`], everything from [`WideKernel::run`] to an operation must be
//! `#[inline(always)]`.

use super::simd::{self, Kernel, Simd};

/// An instruction set with sixteen lanes; a value of the type is the proof that the machine has it.
pub(super) trait Wide: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen 32-bit integers.
    type I: Copy;
    /// The same machine's eight lanes.
    type Half: Simd;
    /// Whether the sixteen lanes are one register.
    const ONE: bool;

    fn half(self) -> Self::Half;
    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[[f32; 8]; 2]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [[f32; 8]; 2]);
    fn split(self, x: Self::F) -> [<Self::Half as Simd>::F; 2];
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once or twice.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    fn load_i(self, x: [&[u32; 8]; 2]) -> Self::I;
    fn and(self, a: Self::I, mask: u32) -> Self::I;
    fn shift_left<const N: i32>(self, a: Self::I) -> Self::I;
    /// Fills with zeros.
    fn shift_right<const N: i32>(self, a: Self::I) -> Self::I;
    /// Integers to floats.
    fn to_f(self, a: Self::I) -> Self::F;
    /// The same bits.
    fn as_f(self, a: Self::I) -> Self::F;
    /// The low halves as f32. Finite ones only.
    fn low_halves(self, a: Self::I) -> Self::F;
    /// The high halves as f32. Finite ones only.
    fn high_halves(self, a: Self::I) -> Self::F;
    /// Twice eight halves, two a word, the low one first. Finite ones only.
    fn halves(self, x: [&[u32; 4]; 2]) -> Self::F;
}

/// Work to be compiled for each instruction set. Implementations of `run` are `#[inline(always)]`.
pub(super) trait WideKernel {
    fn run<W: Wide>(self, w: W);
}

/// Runs a kernel on the best instruction set of this machine.
pub(super) fn dispatch(kernel: impl WideKernel) {
    #[cfg(target_arch = "x86_64")]
    if let Some(w) = super::simd_avx512::Avx512::detect() {
        return w.call(kernel);
    }
    simd::dispatch(OnTwo(kernel));
}

struct OnTwo<K>(K);

impl<K: WideKernel> Kernel for OnTwo<K> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.run(Two(s));
    }
}

/// Sixteen lanes as two registers.
#[derive(Clone, Copy)]
struct Two<S>(S);

/// Operations that are the same on both registers. No closures: they would be compiled without the instruction set.
macro_rules! on_both {
    ($($name:ident$(<$n:ident>)?($($arg:ident: $of:ident),*) -> $out:ident { |$s:ident| $body:expr })*) => {$(
        #[inline(always)]
        fn $name$(<const $n: i32>)?(self, $($arg: Self::$of),*) -> Self::$out {
            let $s = self.0;
            [{ $(let $arg = $arg[0];)* $body }, { $(let $arg = $arg[1];)* $body }]
        }
    )*};
}

impl<S: Simd> Wide for Two<S> {
    type F = [S::F; 2];
    type I = [S::I; 2];
    type Half = S;
    const ONE: bool = false;

    #[inline(always)]
    fn half(self) -> S {
        self.0
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [self.0.splat(x); 2]
    }

    #[inline(always)]
    fn load(self, [a, b]: &[[f32; 8]; 2]) -> Self::F {
        [self.0.load(a), self.0.load(b)]
    }

    #[inline(always)]
    fn store(self, x: Self::F, [a, b]: &mut [[f32; 8]; 2]) {
        self.0.store(x[0], a);
        self.0.store(x[1], b);
    }

    #[inline(always)]
    fn split(self, x: Self::F) -> [S::F; 2] {
        x
    }

    #[inline(always)]
    fn load_i(self, [a, b]: [&[u32; 8]; 2]) -> Self::I {
        [self.0.load_i(a), self.0.load_i(b)]
    }

    #[inline(always)]
    fn and(self, a: Self::I, mask: u32) -> Self::I {
        let mask = self.0.splat_i(mask);
        [self.0.and(a[0], mask), self.0.and(a[1], mask)]
    }

    #[inline(always)]
    fn halves(self, [a, b]: [&[u32; 4]; 2]) -> Self::F {
        [self.0.halves(a), self.0.halves(b)]
    }

    on_both! {
        add(a: F, b: F) -> F { |s| s.add(a, b) }
        mul(a: F, b: F) -> F { |s| s.mul(a, b) }
        mul_add(a: F, b: F, c: F) -> F { |s| s.mul_add(a, b, c) }
        shift_left<N>(a: I) -> I { |s| s.shift_left::<N>(a) }
        shift_right<N>(a: I) -> I { |s| s.shift_right::<N>(a) }
        to_f(a: I) -> F { |s| s.to_f(a) }
        as_f(a: I) -> F { |s| s.as_f(a) }
        low_halves(a: I) -> F { |s| s.low_halves(a) }
        high_halves(a: I) -> F { |s| s.high_halves(a) }
    }
}
