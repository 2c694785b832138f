// One cached value a word.

const VALUES_PER_WORD: u32 = 1u;

// What a value becomes by being stored.
fn stored(v: vec2<f32>) -> vec2<f32> { return v; }
// Two neighbouring values; `value` counts from the start of the arena and is even.
fn load_stored(value: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(arena[value]), bitcast<f32>(arena[value + 1u]));
}
