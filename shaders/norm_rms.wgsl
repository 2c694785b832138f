// RMSNorm folded into the product: the gain goes on x, the factor on the result.

@group(0) @binding(5) var<storage, read_write> gain: array<vec4<f32>>; // (cols/4)

fn weight(quad: u32) -> vec4<f32> { return gain[quad]; }
fn norm_factor(ss: f32) -> f32 { return inverseSqrt(ss / f32(COLS) + EPS); }
