// Q8_0: value = d * code. Binding `words`: (rows/8, cols/32, 8, 8); `scales`: (rows/8, cols/32, 4), two rows a word.

const WORDS: u32 = 8u;

// Weights of four neighbouring rows at columns 4*quad_lo(j).. and 4*quad_hi(j).. of a block; column r of a matrix = row r.
struct Quads { lo: mat4x4<f32>, hi: mat4x4<f32> }

fn quad_lo(j: u32) -> u32 { return 2u * j; }
fn quad_hi(j: u32) -> u32 { return 2u * j + 1u; }

// Signed bytes: adding 128 to each makes them unsigned without a carry between bytes.
fn signed_bytes(word: u32) -> vec4<f32> { return unpack4x8unorm(word ^ 0x80808080u) * 255.0 - 128.0; }

fn signed_rows(w: vec4<u32>) -> mat4x4<f32> {
    return mat4x4<f32>(signed_bytes(w.x), signed_bytes(w.y), signed_bytes(w.z), signed_bytes(w.w));
}

// `block` counts blocks of an octet of rows (octet * cols/32 + block), `half_octet` is 0 or 1, `j` 0..4.
fn load_quads(block: u32, half_octet: u32, j: u32) -> Quads {
    let at = (block * WORDS + 2u * j) * 2u + half_octet;
    return Quads(signed_rows(words[at]), signed_rows(words[at + 2u]));
}

// Scale (d) and offset (m) of four rows in a block.
struct Scales { d: vec4<f32>, m: vec4<f32> }

fn load_scales(block: u32, half_octet: u32) -> Scales {
    let pair = scales[block * 2u + half_octet];
    return Scales(vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y)), vec4<f32>());
}
