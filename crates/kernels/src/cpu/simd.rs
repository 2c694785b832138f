//! Eight lanes of f32 or i32, three times: AVX2, wasm simd128, and plain arrays. Kernels are written once against
//! [`Simd`] and compiled for each; [`dispatch`] picks at run time.
//!
//! Everything on the way from [`Kernel::run`] to an operation must be `#[inline(always)]`, or it is compiled without the
//! instruction set.

/// Words of a cache line.
pub(super) const LINE: usize = 16;

/// An instruction set; a value of the type is the proof that the machine has it.
pub(super) trait Simd: Copy {
    /// Eight f32.
    type F: Copy;
    /// Eight 32-bit integers, or sixteen 16-bit ones.
    type I: Copy;
    /// Whether registers suffice for two octets of weights, or two blocks of keys, at once.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; 8]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; 8]);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once or twice.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b - c`, rounded once or twice.
    fn mul_sub(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The second operand where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Whether any lane of `a` is greater than that of `b`.
    fn any_greater(self, a: Self::F, b: Self::F) -> bool;
    /// To the nearest integer, ties to even, of magnitudes below 2^22; any other gives any integer.
    fn round(self, x: Self::F) -> Self::I;

    fn splat_i(self, x: u32) -> Self::I;
    fn load_i(self, x: &[u32; 8]) -> Self::I;
    fn store_i(self, x: Self::I, to: &mut [u32; 8]);
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn shift_left<const N: i32>(self, a: Self::I) -> Self::I;
    /// By fewer than 32 bits.
    fn shift_left_by(self, a: Self::I, n: u32) -> Self::I;
    /// Fills with zeros.
    fn shift_right<const N: i32>(self, a: Self::I) -> Self::I;
    /// Fills with the sign.
    fn shift_right_signed<const N: i32>(self, a: Self::I) -> Self::I;
    /// The low bytes of the sixteen 16-bit lanes, sign extended.
    fn low_bytes(self, a: Self::I) -> Self::I;
    /// The high bytes of the sixteen 16-bit lanes, sign extended.
    fn high_bytes(self, a: Self::I) -> Self::I;
    /// Of each four lanes of both the low halves, in pairs: `a0 a2`, `b0 b2`, `a1 a3`, `b1 b3`.
    #[inline(always)]
    fn low_pairs(self, a: Self::I, b: Self::I) -> Self::I {
        let mut lanes = [[0; 8]; 2];
        self.store_i(a, &mut lanes[0]);
        self.store_i(b, &mut lanes[1]);
        self.load_i(&std::array::from_fn(|i| {
            let (from, first) = (&lanes[i % 2], i / 4 * 4 + i % 4 / 2);
            from[first] & 0xFFFF | from[first + 2] << 16
        }))
    }
    /// Products of 16-bit lanes, neighbours added to 32 bits.
    fn dot_pairs(self, a: Self::I, b: Self::I) -> Self::I;
    /// Integers to floats.
    fn to_f(self, a: Self::I) -> Self::F;
    /// The same bits.
    fn as_f(self, a: Self::I) -> Self::F;
    /// The same bits.
    fn as_i(self, a: Self::F) -> Self::I;
    /// Eight halves, two a word, the low one first. Finite ones only.
    fn halves(self, x: &[u32; 4]) -> Self::F;
    /// The low halves of the lanes as f32: exact for finite ones, infinities become 65536.
    #[inline(always)]
    fn low_halves(self, x: Self::I) -> Self::F {
        self.high_halves(self.shift_left::<16>(x))
    }
    /// The high halves of the lanes as f32: exact for finite ones, infinities become 65536.
    #[inline(always)]
    fn high_halves(self, x: Self::I) -> Self::F {
        let bits = self.and(self.shift_right_signed::<3>(x), self.splat_i(HALF_MASK));
        self.mul(self.as_f(bits), self.splat(HALF_FACTOR))
    }
    /// Rows become columns.
    fn transpose(self, rows: [Self::I; 8]) -> [Self::I; 8];
    /// Asks for the cache line of a word that is needed soon; any address will do.
    #[inline(always)]
    fn prefetch(self, _word: *const u32) {}
    /// Reads words that are needed soon, where the machine cannot be asked for them: in order, which is how memory is fastest.
    #[inline(always)]
    fn read_ahead(self, _words: &[u32]) {}
    /// [`EXP`], where the instruction set finds it soonest.
    #[inline(always)]
    fn exp_numbers(self) -> &'static [f32; EXP.len()] {
        &EXP
    }
    /// The greatest lane; any where one is NaN.
    #[inline(always)]
    fn greatest(self, x: Self::F) -> f32 {
        let mut x8 = [0.0; 8];
        self.store(x, &mut x8);
        let [a, b, c, d, e, f, g, h] = x8;
        a.max(b).max(c.max(d)).max(e.max(f).max(g.max(h)))
    }
    /// The sum of each row's lanes.
    fn sums(self, rows: [Self::F; 8]) -> Self::F;
}

/// A loop written out, whose counter takes those of the turns listed that are below its end: the compiler itself unrolls
/// only loops with little in them, and what is not unrolled keeps its sums in memory.
macro_rules! unrolled {
    ($i:ident of [$($turn:literal)*] below $end:expr => $body:expr) => {$(
        if $turn < $end {
            let $i = $turn;
            $body;
        }
    )*};
}

pub(super) use unrolled;

/// Work to be compiled for each instruction set. Implementations of `run` are `#[inline(always)]`.
pub(super) trait Kernel {
    fn run<S: Simd>(self, s: S);
}

/// Runs a kernel on the best instruction set of this machine.
pub(super) fn dispatch(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    if let Some(s) = super::simd_avx2::Avx2::detect() {
        return s.call(kernel);
    }
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    return super::simd_wasm::call(kernel);
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    kernel.run(super::simd_portable::Portable);
}

/// What the bits of halves are masked with when they are where f32 has them, and what they then are multiplied by. The
/// exponent's bias, 15 instead of 127, is made good by the product, which also normalizes subnormals.
pub(super) const HALF_MASK: u32 = 0x8FFF_E000;
pub(super) const HALF_FACTOR: f32 = f32::from_bits((127 + 112) << 23);

/// Adding 1.5 * 2^23 leaves the nearest integer, of magnitudes below 2^22, in the low bits of the sum.
pub(super) const SHIFTER: f32 = 12_582_912.0;

/// Numbers that [`exp`] needs: its range, `log2 e`, `-ln 2` in two parts, the first of which has few bits, so that its products
/// are exact, and a polynomial for `e^x` on `[-ln(2)/2, ln(2)/2]`, from Cephes.
#[expect(clippy::excessive_precision, reason = "as Cephes has them")]
pub(super) static EXP: [f32; 11] = [
    88.0,
    -87.0,
    std::f32::consts::LOG2_E,
    -0.693_359_375,
    2.121_944_4e-4,
    1.987_569_15e-4,
    1.398_199_95e-3,
    8.333_451_9e-3,
    4.166_579_6e-2,
    1.666_666_55e-1,
    5.000_000_1e-1,
];

/// `e^x` within 2 units in the last place; below -87 it stays at e^-87, above 88 at e^88.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let [most, least, log2_e, high, low, polynomial @ ..] = s.exp_numbers();
    let x = s.max(s.min(x, s.splat(*most)), s.splat(*least));
    let shifter = s.splat(SHIFTER);
    let shifted = s.mul_add(x, s.splat(*log2_e), shifter);
    let n = s.sub(shifted, shifter);
    let r = s.mul_add(n, s.splat(*high), x);
    let r = s.mul_add(n, s.splat(*low), r);
    let mut p = s.splat(polynomial[0]);
    for c in &polynomial[1..] {
        p = s.mul_add(p, r, s.splat(*c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.as_f(s.add_i(s.as_i(p), s.shift_left::<23>(s.as_i(shifted))))
}

/// Asks for words that are needed soon.
#[inline(always)]
pub(super) fn prefetch<S: Simd>(s: S, words: &[u32]) {
    for line in words.chunks(LINE) {
        s.prefetch(line.as_ptr());
    }
}

/// The sum of the lanes.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, x: S::F) -> f32 {
    let mut x8 = [0.0; 8];
    s.store(x, &mut x8);
    let [a, b, c, d, e, f, g, h] = x8;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}
