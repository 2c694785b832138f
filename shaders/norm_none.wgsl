fn weight(quad: u32) -> vec4<f32> { return vec4<f32>(1.0); }
fn norm_factor(ss: f32) -> f32 { return 1.0; }
