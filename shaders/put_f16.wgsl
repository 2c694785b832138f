const VALUES_PER_WORD: u32 = 2u;

fn put(value: u32, v: vec2<f32>) {
    arena[value / 2u] = pack2x16float(clamp(v, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}
