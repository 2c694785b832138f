// F16: two columns a word. Binding `words`: (rows/8, cols/32, 16, 8). `scales` is not used.

const WORDS: u32 = 16u;

// Weights of four neighbouring rows at columns 4*quad_lo(j).. and 4*quad_hi(j).. of a block; column r of a matrix = row r.
struct Quads { lo: mat4x4<f32>, hi: mat4x4<f32> }

fn quad_lo(j: u32) -> u32 { return 2u * j; }
fn quad_hi(j: u32) -> u32 { return 2u * j + 1u; }

fn half_rows(a: vec4<u32>, b: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(
        vec4<f32>(unpack2x16float(a.x), unpack2x16float(b.x)),
        vec4<f32>(unpack2x16float(a.y), unpack2x16float(b.y)),
        vec4<f32>(unpack2x16float(a.z), unpack2x16float(b.z)),
        vec4<f32>(unpack2x16float(a.w), unpack2x16float(b.w)),
    );
}

// `block` counts blocks of an octet of rows (octet * cols/32 + block), `half_octet` is 0 or 1, `j` 0..4.
fn load_quads(block: u32, half_octet: u32, j: u32) -> Quads {
    let at = (block * WORDS + 4u * j) * 2u + half_octet;
    return Quads(half_rows(words[at], words[at + 2u]), half_rows(words[at + 4u], words[at + 6u]));
}

// Scale (d) and offset (m) of four rows in a block.
struct Scales { d: vec4<f32>, m: vec4<f32> }

fn load_scales(block: u32, half_octet: u32) -> Scales {
    _ = scales[0];
    return Scales(vec4<f32>(1.0), vec4<f32>());
}
