// Two cached values a word, the first in the low half.

const VALUES_PER_WORD: u32 = 2u;

// What a value becomes by being stored.
fn stored(v: vec2<f32>) -> vec2<f32> { return unpack2x16float(pack2x16float(clamp(v, vec2<f32>(-65504.0), vec2<f32>(65504.0)))); }
// Two neighbouring values; `value` counts from the start of the arena and is even.
fn load_stored(value: u32) -> vec2<f32> { return unpack2x16float(arena[value / 2u]); }
