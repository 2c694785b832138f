fn weigh(x: vec4<f32>, quad: u32) -> vec4<f32> { return x; }
fn norm_factor(ss: f32) -> f32 { return 1.0; }
