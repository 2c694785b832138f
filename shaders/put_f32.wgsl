const VALUES_PER_WORD: u32 = 1u;

fn put(value: u32, v: vec2<f32>) {
    arena[value] = bitcast<u32>(v.x);
    arena[value + 1u] = bitcast<u32>(v.y);
}
