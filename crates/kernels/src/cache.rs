//! How a cache lies in memory, and how its values are packed (KIVI).
//!
//! A lane's part of an arena holds whole *slots*, each a token's keys of all key/value heads and then their values, as
//! floats; keys are not rotated. Where nothing is packed there is a slot for each sink and a ring of slots for the recent
//! tokens. Where K or V are packed, three parts follow each other: slots of the sinks, a ring of groups, and the tail, a
//! ring of slots of tokens that are not packed yet. Groups count from the first token behind the sinks.
//!
//! A group holds its tokens' keys, a head after the other, then their values. A head's part is codes and parameters: a
//! word for each channel (keys: the tokens of the group share a scale) or for each `group` channels and token (values),
//! the scale as f16 in its low half, the zero in its high half. Codes go by token, then channel, in vectors of eight
//! neighbours; the vectors take turns in the bits of eight words, lowest bits first, so that one vector load, a shift and a
//! mask give eight neighbouring codes. Where only the other of K and V is packed, a head's part is its floats by token.

use crate::Heads;
use half::{bf16, f16};
use std::fmt;

/// Codes of a vector, and words of the octet that it lies in.
const OCTET: usize = 8;
/// The largest f16.
const F16_MAX: f32 = 65504.0;

/// A float format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// One value a word.
    F32,
    /// Two values a word, the low half first. Rounded to nearest even, clamped to ±65504.
    F16,
    /// Two values a word, the low half first. Rounded to nearest even.
    Bf16,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    Eight,
    Four,
    Two,
}

/// How keys, or values, are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Storage {
    /// Of values that are not packed.
    pub float: Float,
    /// Of the codes of values that are; none: nothing is packed.
    pub bits: Option<Bits>,
}

/// How K and V are kept. `group` and `tail` are 0 where nothing is packed, so that equal caches have equal formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheFormat {
    pub keys: Storage,
    pub values: Storage,
    /// Tokens (K) or channels (V) that share a scale, a multiple of 8.
    pub group: usize,
    /// Slots of tokens that are not packed yet, a multiple of `group`.
    pub tail: usize,
}

/// Where things lie in a lane's part of an arena; all offsets are in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    pub heads: Heads,
    pub format: CacheFormat,
    /// Slots of sinks.
    pub sinks: usize,
    /// Recent tokens that there is room for.
    pub recent: usize,
}

/// Where a token lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// In the slot at this word.
    Slot(usize),
    /// In the group at this word, as its `token`th.
    Group { at: usize, token: usize },
}

impl Float {
    /// Words of `values` values, an even number.
    pub const fn words(self, values: usize) -> usize {
        match self {
            Self::F32 => values,
            Self::F16 | Self::Bf16 => values / 2,
        }
    }

    /// Rounds values, an even number of them.
    pub fn encode(self, values: &[f32], words: &mut [u32]) {
        let pairs = |words: &mut [u32], half: fn(f32) -> u16| {
            for (word, pair) in words.iter_mut().zip(values.chunks_exact(2)) {
                *word = u32::from(half(pair[0])) | u32::from(half(pair[1])) << 16;
            }
        };
        match self {
            Self::F32 => {
                for (word, value) in words.iter_mut().zip(values) {
                    *word = value.to_bits();
                }
            }
            Self::F16 => pairs(words, |x| f16::from_f32(x.clamp(-F16_MAX, F16_MAX)).to_bits()),
            Self::Bf16 => pairs(words, |x| bf16::from_f32(x).to_bits()),
        }
    }

    /// Writes the values of `words` to `values`.
    pub fn decode(self, words: &[u32], values: &mut [f32]) {
        let pairs = |values: &mut [f32], half: fn(u16) -> f32| {
            for (pair, word) in values.chunks_exact_mut(2).zip(words) {
                pair[0] = half(*word as u16);
                pair[1] = half((*word >> 16) as u16);
            }
        };
        match self {
            Self::F32 => {
                for (value, word) in values.iter_mut().zip(words) {
                    *value = f32::from_bits(*word);
                }
            }
            Self::F16 => pairs(values, |bits| f16::from_bits(bits).to_f32()),
            Self::Bf16 => pairs(values, |bits| bf16::from_bits(bits).to_f32()),
        }
    }
}

impl Bits {
    /// How many.
    pub const fn count(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
            Self::Two => 2,
        }
    }

    /// The largest code.
    pub const fn largest(self) -> u32 {
        (1 << self.count()) - 1
    }

    /// The word and the lowest bit of a code.
    pub const fn place(self, code: usize) -> (usize, usize) {
        let (vector, per_word) = (code / OCTET, 32 / self.count());
        (vector / per_word * OCTET + code % OCTET, vector % per_word * self.count())
    }

    /// Scale and zero of values that lie between `least` and `most`, as a word of parameters.
    #[inline(always)]
    pub fn parameters(self, least: f32, most: f32) -> u32 {
        let (least, most) = (least.clamp(-F16_MAX, F16_MAX), most.clamp(-F16_MAX, F16_MAX));
        let scale = f16::from_f32((most - least) / self.largest() as f32);
        u32::from(scale.to_bits()) | u32::from(f16::from_f32(least).to_bits()) << 16
    }

    /// The code of a value.
    #[inline(always)]
    pub fn code(self, x: f32, scale: f32, zero: f32) -> u32 {
        // A scale of 0 makes this NaN or infinite; what a cast and the clamp leave of that is replaced.
        let code = ((x.clamp(-F16_MAX, F16_MAX) - zero) / scale).round_ties_even().clamp(0.0, self.largest() as f32);
        if scale == 0.0 { 0 } else { code as u32 }
    }
}

/// Scale and zero of a word of parameters.
#[inline(always)]
pub fn scale_and_zero(parameters: u32) -> (f32, f32) {
    (f16::from_bits(parameters as u16).to_f32(), f16::from_bits((parameters >> 16) as u16).to_f32())
}

impl Storage {
    pub const F32: Self = Self { float: Float::F32, bits: None };
    pub const F16: Self = Self { float: Float::F16, bits: None };
    pub const BF16: Self = Self { float: Float::Bf16, bits: None };
    pub const INT8: Self = Self { float: Float::F16, bits: Some(Bits::Eight) };
    pub const INT4: Self = Self { float: Float::F16, bits: Some(Bits::Four) };
    pub const INT2: Self = Self { float: Float::F16, bits: Some(Bits::Two) };
    /// All of them, most bits first.
    pub const ALL: [Self; 6] = [Self::F32, Self::F16, Self::BF16, Self::INT8, Self::INT4, Self::INT2];

    /// The one that people call `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|storage| storage.to_string() == name)
    }
}

/// The name that people give it.
impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.bits, self.float) {
            (Some(Bits::Eight), _) => "int8",
            (Some(Bits::Four), _) => "int4",
            (Some(Bits::Two), _) => "int2",
            (None, Float::F32) => "f32",
            (None, Float::F16) => "f16",
            (None, Float::Bf16) => "bf16",
        })
    }
}

impl CacheFormat {
    /// K and V kept apart.
    pub const fn new(keys: Storage, values: Storage, group: usize, tail: usize) -> Self {
        let packs = keys.bits.is_some() || values.bits.is_some();
        Self { keys, values, group: if packs { group } else { 0 }, tail: if packs { tail } else { 0 } }
    }

    /// K and V kept alike; packed values in groups of 32, with a tail of 32.
    pub const fn of(storage: Storage) -> Self {
        Self::new(storage, storage, 32, 32)
    }

    /// Whether anything is packed.
    pub const fn packs(&self) -> bool {
        self.group > 0
    }

    /// Where things lie in a cache of this format.
    pub const fn layout(self, heads: Heads, sinks: usize, recent: usize) -> CacheLayout {
        CacheLayout { heads, format: self, sinks, recent }
    }
}

impl CacheLayout {
    /// Words of a slot.
    pub const fn slot_words(&self) -> usize {
        self.heads.n_kv_heads * (self.key_words() + self.value_words())
    }

    /// Words of a head's keys in a slot.
    pub const fn key_words(&self) -> usize {
        self.format.keys.float.words(self.heads.head_dim)
    }

    /// Words of a head's values in a slot.
    pub const fn value_words(&self) -> usize {
        self.format.values.float.words(self.heads.head_dim)
    }

    /// Offset of the values in a slot.
    pub const fn values_at(&self) -> usize {
        self.heads.n_kv_heads * self.key_words()
    }

    /// Channels of a head that share a scale and a zero of their values, as groups of a token.
    pub const fn channel_groups(&self) -> usize {
        self.heads.head_dim.div_ceil(self.format.group)
    }

    /// Words of the codes, or of the floats, of a head's part of a group.
    pub const fn code_words(&self, storage: Storage) -> usize {
        let values = self.format.group * self.heads.head_dim;
        match storage.bits {
            Some(bits) => values * bits.count() / 32,
            None => storage.float.words(values),
        }
    }

    /// Words of a head's keys in a group.
    pub const fn group_key_words(&self) -> usize {
        let parameters = if self.format.keys.bits.is_some() { self.heads.head_dim } else { 0 };
        self.code_words(self.format.keys) + parameters
    }

    /// Words of a head's values in a group.
    pub const fn group_value_words(&self) -> usize {
        let parameters = if self.format.values.bits.is_some() { self.format.group * self.channel_groups() } else { 0 };
        self.code_words(self.format.values) + parameters
    }

    /// Offset of a head's values in a group.
    pub const fn group_values_at(&self, kv_head: usize) -> usize {
        self.heads.n_kv_heads * self.group_key_words() + kv_head * self.group_value_words()
    }

    /// Words of a group.
    pub const fn group_words(&self) -> usize {
        self.heads.n_kv_heads * (self.group_key_words() + self.group_value_words())
    }

    /// Groups that there is room for.
    pub const fn groups(&self) -> usize {
        if self.format.packs() { self.recent.div_ceil(self.format.group) } else { 0 }
    }

    /// Offset of the groups.
    pub const fn groups_at(&self) -> usize {
        self.sinks * self.slot_words()
    }

    /// Offset of the ring of slots: the tail, or all recent tokens.
    pub const fn ring_at(&self) -> usize {
        self.groups_at() + if self.format.packs() { self.groups() * self.group_words() } else { 0 }
    }

    /// Slots of that ring.
    pub const fn ring(&self) -> usize {
        if self.format.packs() { self.format.tail } else { self.recent }
    }

    /// Words of all.
    pub const fn words(&self) -> usize {
        self.ring_at() + self.ring() * self.slot_words()
    }

    /// Where the token of a stream index lies, or will lie, when those below `packed` are packed; none where there is no
    /// room for any but sinks.
    pub fn spot(&self, index: usize, packed: usize) -> Option<Spot> {
        let Some(recent) = index.checked_sub(self.sinks) else { return Some(Spot::Slot(index * self.slot_words())) };
        if self.format.packs() && index < packed {
            let group = (recent / self.format.group).checked_rem(self.groups())?;
            let at = self.groups_at() + group * self.group_words();
            return Some(Spot::Group { at, token: recent % self.format.group });
        }
        Some(Spot::Slot(self.ring_at() + recent.checked_rem(self.ring())? * self.slot_words()))
    }

    /// Rounds a token's keys and values, `[2, n_kv_heads, head_dim]`, into a slot.
    pub fn encode_slot(&self, values: &[f32], slot: &mut [u32]) {
        let (keys, values) = values.split_at(self.heads.kv_cols());
        let (key_words, value_words) = slot.split_at_mut(self.values_at());
        self.format.keys.float.encode(keys, key_words);
        self.format.values.float.encode(values, value_words);
    }

    /// The words of a full cache of numbers drawn from -1 to 1.
    pub fn random(&self, mut draw: impl FnMut() -> f32) -> Vec<u32> {
        let mut words = vec![0; self.words()];
        let (before, rest) = words.split_at_mut(self.groups_at());
        let (groups, ring) = rest.split_at_mut(self.ring_at() - self.groups_at());
        let cols = 2 * self.heads.kv_cols();
        for slot in before.chunks_exact_mut(self.slot_words()).chain(ring.chunks_exact_mut(self.slot_words())) {
            let values: Vec<f32> = (0..cols).map(|_| draw()).collect();
            self.encode_slot(&values, slot);
        }
        if self.format.packs() {
            for group in groups.chunks_exact_mut(self.group_words()) {
                let len = self.format.group * self.heads.head_dim;
                for kv_head in 0..self.heads.n_kv_heads {
                    let [keys, values] = [(); 2].map(|()| (0..len).map(|_| draw()).collect::<Vec<f32>>());
                    self.pack_keys(&keys, &mut group[kv_head * self.group_key_words()..][..self.group_key_words()]);
                    let at = self.group_values_at(kv_head);
                    self.pack_values(&values, &mut group[at..at + self.group_value_words()]);
                }
            }
        }
        words
    }

    /// A token's keys and values, `[2, n_kv_heads, head_dim]`, as attention sees them, keys not rotated; `words` is the
    /// lane's part of the arena.
    pub fn decode(&self, words: &[u32], spot: Spot) -> Vec<f32> {
        let Heads { n_kv_heads, head_dim, .. } = self.heads;
        let mut out = vec![0.0; 2 * self.heads.kv_cols()];
        let (keys, values) = out.split_at_mut(self.heads.kv_cols());
        match spot {
            Spot::Slot(at) => {
                self.format.keys.float.decode(&words[at..at + self.values_at()], keys);
                self.format.values.float.decode(&words[at + self.values_at()..at + self.slot_words()], values);
            }
            Spot::Group { at, token } => {
                let group = &words[at..at + self.group_words()];
                for kv_head in 0..n_kv_heads {
                    let channels = kv_head * head_dim..(kv_head + 1) * head_dim;
                    let part = &group[kv_head * self.group_key_words()..][..self.group_key_words()];
                    self.decode_group(self.format.keys, part, token, |c| c, &mut keys[channels.clone()]);
                    let part = &group[self.group_values_at(kv_head)..][..self.group_value_words()];
                    let parameter = |c| c / self.format.group * self.format.group + token;
                    self.decode_group(self.format.values, part, token, parameter, &mut values[channels]);
                }
            }
        }
        out
    }

    fn decode_group(
        &self,
        storage: Storage,
        part: &[u32],
        token: usize,
        parameter: impl Fn(usize) -> usize,
        out: &mut [f32],
    ) {
        let (codes, parameters) = part.split_at(self.code_words(storage));
        let Some(bits) = storage.bits else {
            let words = storage.float.words(out.len());
            return storage.float.decode(&codes[token * words..(token + 1) * words], out);
        };
        for (c, out) in out.iter_mut().enumerate() {
            let (word, shift) = bits.place(token * self.heads.head_dim + c);
            let (scale, zero) = scale_and_zero(parameters[parameter(c)]);
            *out = (codes[word] >> shift & bits.largest()) as f32 * scale + zero;
        }
    }

    /// Packs a head's keys of a whole group, `[group, head_dim]`: a scale and a zero for each channel.
    #[inline(always)]
    pub fn pack_keys(&self, keys: &[f32], part: &mut [u32]) {
        let (codes, parameters) = part.split_at_mut(self.code_words(self.format.keys));
        let Some(bits) = self.format.keys.bits else { return self.format.keys.float.encode(keys, codes) };
        let head_dim = self.heads.head_dim;
        let mut least = keys[..head_dim].to_vec();
        let mut most = least.clone();
        for token in keys.chunks_exact(head_dim) {
            for ((least, most), x) in least.iter_mut().zip(&mut most).zip(token) {
                *least = x.min(*least);
                *most = x.max(*most);
            }
        }
        for ((parameters, least), most) in parameters.iter_mut().zip(&mut least).zip(&mut most) {
            *parameters = bits.parameters(*least, *most);
            (*most, *least) = scale_and_zero(*parameters);
        }
        codes.fill(0);
        for (token, keys) in keys.chunks_exact(head_dim).enumerate() {
            put_codes(bits, keys, &most, &least, token * head_dim, codes);
        }
    }

    /// Packs a head's values of a whole group, `[group, head_dim]`: a scale and a zero for each token and `group`
    /// channels.
    #[inline(always)]
    pub fn pack_values(&self, values: &[f32], part: &mut [u32]) {
        let (codes, parameters) = part.split_at_mut(self.code_words(self.format.values));
        let Some(bits) = self.format.values.bits else { return self.format.values.float.encode(values, codes) };
        let (head_dim, group) = (self.heads.head_dim, self.format.group);
        let (mut scales, mut zeros) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        codes.fill(0);
        for (token, values) in values.chunks_exact(head_dim).enumerate() {
            for (g, values) in values.chunks(group).enumerate() {
                let least = values.iter().fold(f32::INFINITY, |a, &b| a.min(b));
                let most = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let parameters = &mut parameters[g * group + token];
                *parameters = bits.parameters(least, most);
                let (scale, zero) = scale_and_zero(*parameters);
                scales[g * group..][..values.len()].fill(scale);
                zeros[g * group..][..values.len()].fill(zero);
            }
            put_codes(bits, values, &scales, &zeros, token * head_dim, codes);
        }
    }
}

/// Adds the codes of a token to words that are zero in their place. `first` is the number of the token's first code.
#[inline(always)]
fn put_codes(bits: Bits, values: &[f32], scales: &[f32], zeros: &[f32], first: usize, codes: &mut [u32]) {
    let eights =
        values.as_chunks::<OCTET>().0.iter().zip(scales.as_chunks::<OCTET>().0).zip(zeros.as_chunks::<OCTET>().0);
    for (n, ((values, scales), zeros)) in eights.enumerate() {
        let (word, shift) = bits.place(first + n * OCTET);
        for i in 0..OCTET {
            codes[word + i] |= bits.code(values[i], scales[i], zeros[i]) << shift;
        }
    }
}

/// `tests/golden/kivi_vectors.json`.
#[cfg(test)]
pub(crate) mod golden {
    use super::*;

    /// 32 tokens of one head.
    pub struct Case {
        pub name: String,
        /// Whether they are keys; values otherwise.
        pub keys: bool,
        pub channels: usize,
        x: Vec<f32>,
        pub packed: Vec<(Bits, Packed)>,
    }

    pub struct Packed {
        codes: Vec<u32>,
        scales: Vec<u32>,
        zeros: Vec<u32>,
    }

    pub fn cases() -> Vec<Case> {
        let file = include_str!("../../../tests/golden/kivi_vectors.json");
        let file: serde_json::Value = serde_json::from_str(file).expect("the golden file is JSON");
        let numbers = |value: &serde_json::Value| -> Vec<u32> {
            let list = value.as_array().expect("a list").iter();
            list.map(|n| n.as_u64().and_then(|n| n.try_into().ok()).expect("a whole number")).collect()
        };
        let list = file["cases"].as_array().expect("cases").iter();
        let case = |case: &serde_json::Value| Case {
            name: case["name"].as_str().expect("a name").to_owned(),
            keys: case["kind"] == "keys",
            channels: case["shape"][1].as_u64().expect("channels") as usize,
            x: case["x"].as_array().expect("x").iter().map(|x| x.as_f64().expect("a number") as f32).collect(),
            packed: [("int8", Bits::Eight), ("int4", Bits::Four), ("int2", Bits::Two)]
                .into_iter()
                .map(|(name, bits)| {
                    let of = |what: &str| numbers(&case[name][what]);
                    (bits, Packed { codes: of("codes"), scales: of("scale_f16"), zeros: of("zero_f16") })
                })
                .collect(),
        };
        list.map(case).collect()
    }

    impl Case {
        /// The tokens as rows of `qkv`, for one head; keys and values alike.
        pub fn rows(&self) -> Vec<f32> {
            self.x.chunks_exact(self.channels).flat_map(|x| [x, x, x].concat()).collect()
        }

        /// Compares the first group of an arena, bit for bit.
        pub fn check(&self, bits: Bits, expected: &Packed, layout: &CacheLayout, arena: &[u32]) {
            let at = layout.groups_at() + if self.keys { 0 } else { layout.group_values_at(0) };
            let (codes, parameters) = arena[at..].split_at(layout.code_words(layout.format.keys));
            let what = format!("{}, {} bits", self.name, bits.count());
            for (i, code) in expected.codes.iter().enumerate() {
                let (word, shift) = bits.place(i);
                assert_eq!(codes[word] >> shift & bits.largest(), *code, "{what}: code {i}");
            }
            assert_eq!(expected.scales.len(), if self.keys { self.channels } else { 32 * layout.channel_groups() });
            for (i, (scale, zero)) in expected.scales.iter().zip(&expected.zeros).enumerate() {
                // The file has values by token, then channels.
                let groups = layout.channel_groups();
                let word = parameters[if self.keys { i } else { i % groups * 32 + i / groups }];
                assert_eq!((word & 0xFFFF, word >> 16), (*scale, *zero), "{what}: scale and zero {i}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel of 32 tokens, packed and unpacked.
    fn round_trip(bits: Bits, values: [f32; 32]) -> [f32; 32] {
        let storage = Storage { float: Float::F16, bits: Some(bits) };
        let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 16 };
        let layout = CacheFormat::new(storage, storage, 32, 32).layout(heads, 0, 32);
        let mut words = vec![u32::MAX; layout.words()];
        let keys: Vec<f32> = values.iter().flat_map(|x| [*x; 16]).collect();
        layout.pack_keys(&keys, &mut words[..layout.group_key_words()]);
        std::array::from_fn(|token| layout.decode(&words, Spot::Group { at: 0, token })[7])
    }

    const ALL_BITS: [Bits; 3] = [Bits::Eight, Bits::Four, Bits::Two];

    #[test]
    fn a_range_of_zero_gives_the_value_back() {
        for bits in ALL_BITS {
            for x in [0.0, -0.0, 1.5, -3.0, 65504.0, -65504.0, f32::from_bits(0x3380_0000)] {
                assert_eq!(round_trip(bits, [x; 32]), [x; 32], "{bits:?}, {x}");
            }
        }
    }

    #[test]
    fn a_range_too_small_for_a_scale_gives_the_least() {
        for bits in ALL_BITS {
            let mut values = [0.0; 32];
            values[3] = 1e-8;
            assert_eq!(round_trip(bits, values), [0.0; 32]);
        }
    }

    /// The scale is what the codes were made with: a scale of more bits than are kept would shift the largest values.
    #[test]
    fn codes_are_made_with_the_scale_that_is_kept() {
        for bits in ALL_BITS {
            let values = std::array::from_fn(|i| 1000.0 + 0.37 * i as f32);
            let (scale, zero) = scale_and_zero(bits.parameters(values[0], values[31]));
            for (x, back) in values.into_iter().zip(round_trip(bits, values)) {
                let nearest = (0..=bits.largest()).map(|code| code as f32 * scale + zero);
                let error = nearest.map(|y| (x - y).abs()).fold(f32::INFINITY, f32::min);
                assert_eq!((x - back).abs(), error, "{bits:?}: {x} became {back}");
            }
        }
    }

    /// Least and most have the first and the last code, and no code overflows into its neighbours.
    #[test]
    fn the_clamp_keeps_the_ends() {
        for bits in ALL_BITS {
            let values = std::array::from_fn(|i| if i % 2 == 0 { -2.0 } else { 5.0 + i as f32 / 100.0 });
            let back = round_trip(bits, values);
            let (scale, _) = scale_and_zero(bits.parameters(-2.0, 5.31));
            for (x, back) in values.into_iter().zip(back) {
                assert!((x - back).abs() <= scale / 2.0 + 1e-3, "{bits:?}: {x} became {back}");
            }
            // Rounding a scale down makes the largest value's code one too large, were it not for the clamp.
            for most in 1..2000 {
                let (scale, zero) = scale_and_zero(bits.parameters(0.0, most as f32 / 7.0));
                assert!(bits.code(most as f32 / 7.0, scale, zero) <= bits.largest());
            }
        }
    }

    #[test]
    fn far_values_and_subnormals_stay_finite() {
        let smallest = f16::from_bits(1).to_f32();
        for bits in ALL_BITS {
            let mut far = [0.0; 32];
            (far[0], far[1], far[2], far[3]) = (-1e9, 1e9, f32::INFINITY, f32::NEG_INFINITY);
            let back = round_trip(bits, far);
            assert!(back.iter().all(|x| x.is_finite()), "{bits:?}: {back:?}");
            assert!((back[0] + 65504.0).abs() < 1.0 && back[3] == back[0], "{bits:?}: {}", back[0]);
            assert!((back[1] - 65504.0).abs() < 70.0 && back[2] == back[1], "{bits:?}: {}", back[1]);
            let small = std::array::from_fn(|i| i as f32 * smallest);
            let (scale, _) = scale_and_zero(bits.parameters(0.0, small[31]));
            // At eight bits the scale would be less than the smallest f16, so it is 0.
            let tolerance = if scale == 0.0 { small[31] } else { scale };
            for (x, back) in small.into_iter().zip(round_trip(bits, small)) {
                assert!((x - back).abs() <= tolerance, "{bits:?}: {x} became {back}");
            }
        }
    }

    #[test]
    fn not_a_number_is_a_number_once_packed() {
        for bits in ALL_BITS {
            let mut values = [1.0; 32];
            (values[0], values[9]) = (f32::NAN, 2.0);
            assert!(round_trip(bits, values).iter().all(|x| (1.0..=2.0).contains(x)));
        }
    }

    #[test]
    fn names() {
        for storage in Storage::ALL {
            assert_eq!(Storage::named(&storage.to_string()), Some(storage));
        }
        assert_eq!(Storage::named("int3"), None);
    }

    /// Every token has a place of its own, and all places are in the arena.
    #[test]
    fn places_do_not_overlap() {
        let heads = Heads { n_heads: 3, n_kv_heads: 3, head_dim: 48 };
        for (keys, values) in
            [(Storage::INT2, Storage::INT8), (Storage::F32, Storage::INT4), (Storage::F16, Storage::F16)]
        {
            let layout = CacheFormat::new(keys, values, 32, 64).layout(heads, 3, 100);
            let mut words = vec![0u8; layout.words()];
            let mut mark = |at: usize, len: usize| words[at..at + len].iter_mut().for_each(|word| *word += 1);
            let packed = if layout.format.packs() { 3 + 128 } else { 3 };
            for index in 0..packed + layout.ring() {
                match layout.spot(index, packed) {
                    Some(Spot::Slot(at)) => mark(at, layout.slot_words()),
                    Some(Spot::Group { at, token: 0 }) => mark(at, layout.group_words()),
                    Some(Spot::Group { .. }) => {}
                    None => panic!("token {index} has no place"),
                }
            }
            assert!(words.iter().all(|count| *count == 1), "{keys}, {values}");
        }
    }
}
