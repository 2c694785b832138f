// Q4_0 and Q4_1: value = d * code + m. Binding `words`: (rows/8, cols/32, 4, 8); `scales`: (rows/8, cols/32, 8).

const WORDS: u32 = 4u;

// Weights of four neighbouring rows at columns 4*quad_lo(j).. and 4*quad_hi(j).. of a block; column r of a matrix = row r.
struct Quads { lo: mat4x4<f32>, hi: mat4x4<f32> }

fn quad_lo(j: u32) -> u32 { return j; }
fn quad_hi(j: u32) -> u32 { return j + 4u; }

fn low_nibbles(word: u32) -> vec4<f32> { return unpack4x8unorm(word & 0x0f0f0f0fu) * 255.0; }
fn high_nibbles(word: u32) -> vec4<f32> { return unpack4x8unorm((word >> 4u) & 0x0f0f0f0fu) * 255.0; }

// `block` counts blocks of an octet of rows (octet * cols/32 + block), `half_octet` is 0 or 1, `j` 0..4.
fn load_quads(block: u32, half_octet: u32, j: u32) -> Quads {
    let w = words[(block * WORDS + j) * 2u + half_octet];
    return Quads(
        mat4x4<f32>(low_nibbles(w.x), low_nibbles(w.y), low_nibbles(w.z), low_nibbles(w.w)),
        mat4x4<f32>(high_nibbles(w.x), high_nibbles(w.y), high_nibbles(w.z), high_nibbles(w.w)),
    );
}

// Scale (d) and offset (m) of four rows in a block.
struct Scales { d: vec4<f32>, m: vec4<f32> }

fn load_scales(block: u32, half_octet: u32) -> Scales {
    let at = (block * 2u + half_octet) * 2u;
    let a = scales[at];
    let b = scales[at + 1u];
    let r0 = unpack2x16float(a.x);
    let r1 = unpack2x16float(a.y);
    let r2 = unpack2x16float(b.x);
    let r3 = unpack2x16float(b.y);
    return Scales(vec4<f32>(r0.x, r1.x, r2.x, r3.x), vec4<f32>(r0.y, r1.y, r2.y, r3.y));
}
