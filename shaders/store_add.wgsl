// The residual: adds to what is there.
fn store(token: u32, row: u32, y: vec4<f32>, last: vec4<f32>) {
    for (var i = 0u; i < 4u; i++) {
        if (row + i < MATRIX_ROWS) { out[token * MATRIX_ROWS + row + i] += y[i]; }
    }
}
