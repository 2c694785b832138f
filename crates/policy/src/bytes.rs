//! Bytes in closed form, for comparison with the buffers that were really allocated.

use std::fmt;
use std::ops::Add;

/// How one cached value is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Storage {
    /// 4 bytes.
    F32,
    /// 2 bytes, the default.
    #[default]
    F16,
    /// 2 bytes, with the range of f32 and 8 bits of precision.
    Bf16,
    /// A code of that many bits, 8, 4 or 2; groups of values share a scale and a zero. Sinks and tail are f16.
    Packed { bits: u32 },
}

/// How packed values are grouped, and which are not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packing {
    /// Tokens (K) or channels (V) that share a scale.
    pub group: u32,
    /// Places of the last tokens, which are not packed yet; whenever they are full, all are packed.
    pub tail: u32,
    /// First tokens of a dense cache that are never packed, as sinks aren't.
    pub exact: u32,
}

impl Default for Packing {
    fn default() -> Self {
        Self { group: 32, tail: 32, exact: 4 }
    }
}

/// Why values cannot be packed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingError {
    /// `group` is 0 or no multiple of 8.
    Group(u32),
    /// `tail` is 0 or no multiple of `group`.
    Tail { tail: u32, group: u32 },
}

impl fmt::Display for PackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(group) => write!(f, "the group is {group}: use a multiple of 8, like 32"),
            Self::Tail { tail, group } => {
                write!(f, "the tail is {tail} and the group {group}: make the tail a multiple of the group")
            }
        }
    }
}

impl std::error::Error for PackingError {}

impl Packing {
    /// Checks that groups fill whole words and the tail whole groups.
    ///
    /// # Errors
    /// They do not.
    pub fn check(self) -> Result<(), PackingError> {
        let Self { group, tail, .. } = self;
        if group == 0 || !group.is_multiple_of(8) {
            return Err(PackingError::Group(group));
        }
        if tail == 0 || !tail.is_multiple_of(group) {
            return Err(PackingError::Tail { tail, group });
        }
        Ok(())
    }
}

/// The shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    pub layers: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub keys: Storage,
    pub values: Storage,
    pub packing: Packing,
    /// Tokens that are never packed: the sinks, or the exact ones of a dense cache.
    pub sinks: u32,
}

/// What the parts of a cache take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    /// The sinks.
    pub sinks: u64,
    /// The values of the recent tokens: codes, or floats where nothing is packed.
    pub codes: u64,
    /// Scales and zeros.
    pub scales: u64,
    /// The places of tokens that are not packed yet.
    pub tail: u64,
    /// What the last group is longer than the recent tokens need.
    pub slack: u64,
}

impl CacheBytes {
    /// All of it.
    pub fn total(self) -> u64 {
        self.sinks + self.codes + self.scales + self.tail + self.slack
    }
}

impl Add for CacheBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sinks: self.sinks + other.sinks,
            codes: self.codes + other.codes,
            scales: self.scales + other.scales,
            tail: self.tail + other.tail,
            slack: self.slack + other.slack,
        }
    }
}

impl Storage {
    /// Bits of one value, scales apart.
    pub fn bits(self) -> u64 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Packed { bits } => u64::from(bits),
        }
    }

    /// Bits of one value of a sink, or of a token that is not packed yet.
    fn exact_bits(self) -> u64 {
        match self {
            Self::Packed { .. } => 16,
            _ => self.bits(),
        }
    }
}

impl CacheShape {
    /// The same cache with K and V kept as `storage`.
    pub fn stored_as(self, storage: Storage) -> Self {
        Self { keys: storage, values: storage, ..self }
    }

    /// Whether any value is packed.
    pub fn packs(self) -> bool {
        [self.keys, self.values].into_iter().any(|storage| matches!(storage, Storage::Packed { .. }))
    }

    /// Bytes that one more token takes in all layers: K and V of every KV head, scales included.
    pub fn bytes_per_token(self) -> f64 {
        let group = u64::from(self.packing.group);
        if !self.packs() {
            return self.parts(u64::from(self.sinks) + 1).codes as f64;
        }
        let one = self.parts(u64::from(self.sinks) + group);
        (one.codes + one.scales) as f64 / group as f64
    }

    /// Bytes of a cache of `slots` tokens, the sinks among them.
    pub fn bytes(self, slots: u64) -> u64 {
        self.parts(slots).total()
    }

    /// The parts of a cache of `slots` tokens, the sinks among them.
    pub fn parts(self, slots: u64) -> CacheBytes {
        let sinks = u64::from(self.sinks).min(slots);
        let recent = slots - sinks;
        let heads = u64::from(self.layers) * u64::from(self.n_kv_heads);
        let [dim, group, tail] = [self.head_dim, self.packing.group, self.packing.tail].map(u64::from);
        let of = |storage: Storage, scales_of_a_group: u64| {
            let tokens = |count: u64, bits: u64| heads * dim * count * bits / 8;
            let mut bytes = CacheBytes {
                sinks: tokens(sinks, storage.exact_bits()),
                codes: tokens(recent, storage.bits()),
                ..CacheBytes::default()
            };
            if self.packs() {
                let groups = recent.div_ceil(group);
                bytes.slack = tokens(groups * group - recent, storage.bits());
                bytes.tail = tokens(tail, storage.exact_bits());
                if matches!(storage, Storage::Packed { .. }) {
                    bytes.scales = heads * groups * scales_of_a_group * 4;
                }
            }
            bytes
        };
        of(self.keys, dim) + of(self.values, group * dim.div_ceil(group))
    }

    /// The fewest slots from which on this cache is never larger than one in f16; none below `limit`.
    pub fn break_even(self, limit: u64) -> Option<u64> {
        let larger = |slots: &u64| self.bytes(*slots) > self.stored_as(Storage::F16).bytes(*slots);
        let last = (1..limit).rev().find(larger);
        last.map_or(Some(1), |last| (last + 1 < limit).then_some(last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn smol(storage: Storage) -> CacheShape {
        CacheShape {
            layers: 30,
            n_kv_heads: 3,
            head_dim: 64,
            keys: storage,
            values: storage,
            packing: Packing::default(),
            sinks: 4,
        }
    }

    #[test]
    fn smollm2_takes_23_040_bytes_a_token_in_f16() {
        let shape = smol(Storage::F16);
        assert_eq!(shape.bytes_per_token(), 23_040.0);
        assert_eq!(shape.bytes(1024), 23_592_960);
        assert_eq!(shape.stored_as(Storage::Bf16).bytes(1024), 23_592_960);
        assert_eq!(shape.stored_as(Storage::F32).bytes(256), 11_796_480);
    }

    /// The numbers of the design: how many times smaller than f16.
    #[test]
    fn ratios_to_f16() {
        let cases = [(1024, 32, [1.67, 2.87, 4.49]), (8192, 32, [1.76, 3.15, 5.21]), (8192, 64, [1.85, 3.45, 6.07])];
        for (slots, group, ratios) in cases {
            for (bits, expected) in [8, 4, 2].into_iter().zip(ratios) {
                let packing = Packing { group, tail: group, exact: 4 };
                let shape = CacheShape { packing, ..smol(Storage::Packed { bits }) };
                let ratio = smol(Storage::F16).bytes(slots) as f64 / shape.bytes(slots) as f64;
                assert!(
                    (0.0..0.01).contains(&(ratio - expected)),
                    "{bits} bits, {slots} slots, group {group}: {ratio}"
                );
            }
        }
    }

    #[test]
    fn per_value_a_packed_token_costs_its_bits_and_a_share_of_the_scales() {
        for (bits, expected) in [(8, 9.0), (4, 5.0), (2, 3.0)] {
            let per_token = smol(Storage::Packed { bits }).bytes_per_token();
            assert_eq!(per_token * 8.0 / (2.0 * 30.0 * 3.0 * 64.0), expected);
        }
    }

    #[test]
    fn packing_pays_from_some_length_on() {
        for bits in [8, 4, 2] {
            let shape = smol(Storage::Packed { bits });
            let from = shape.break_even(4096).expect("it pays at 4096");
            assert!(shape.bytes(from) <= smol(Storage::F16).bytes(from));
            assert!(shape.bytes(from - 1) > smol(Storage::F16).bytes(from - 1), "{bits} bits at {from}");
        }
        assert_eq!(smol(Storage::F32).break_even(100), None);
        assert_eq!(smol(Storage::F16).break_even(100), Some(1));
    }

    #[test]
    fn groups_and_tails_that_do_not_fit_are_refused() {
        let check = |group, tail| Packing { group, tail, exact: 0 }.check();
        assert_eq!(check(8, 8), Ok(()));
        assert_eq!(check(32, 128), Ok(()));
        assert_eq!(check(0, 32), Err(PackingError::Group(0)));
        assert_eq!(check(12, 24), Err(PackingError::Group(12)));
        assert_eq!(check(32, 0), Err(PackingError::Tail { tail: 0, group: 32 }));
        let error = check(32, 48).unwrap_err().to_string();
        assert!(error.contains("48") && error.contains("multiple"), "{error}");
    }

    proptest! {
        /// DESIGN's sentence, where channels fill their groups.
        #[test]
        fn the_closed_form(bits in 1u32..4, groups in 1u64..5, tails in 1u64..4, sinks in 0u64..9, recent in 1u64..400, dims in 1u64..4) {
            let bits = 1 << bits;
            let (group, dim) = (8 * groups, 16 * groups * dims);
            let tail = group * tails;
            let shape = CacheShape {
                layers: 1,
                n_kv_heads: 3,
                head_dim: dim as u32,
                packing: Packing { group: group as u32, tail: tail as u32, exact: 0 },
                sinks: sinks as u32,
                ..smol(Storage::Packed { bits })
            };
            let tokens = (2 * sinks + 2 * tail) as f64;
            let packed = (recent.div_ceil(group) * group) as f64 * (f64::from(bits) / 8.0 + 4.0 / group as f64);
            let expected = (2 * 3 * dim) as f64 * (tokens + packed);
            prop_assert!((shape.bytes(sinks + recent) as f64 - expected).abs() < 1e-6);
        }
    }
}
