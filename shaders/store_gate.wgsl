// silu(gate) * up. `out` has half as many columns as the fused matrix has rows.
fn store(token: u32, row: u32, gate: vec4<f32>, up: vec4<f32>) {
    let h = gate / (1.0 + exp(-gate)) * up;
    for (var i = 0u; i < 4u; i++) { out[token * (MATRIX_ROWS / 2u) + row + i] = h[i]; }
}
