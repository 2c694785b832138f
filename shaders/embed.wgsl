// x = the rows of the token table that the step names. One invocation writes the eight columns of one (row, block, j).
// Preamble: COLS, LANES, ROWS, HEAD_DIM. Needs step.wgsl and a codec.

@group(0) @binding(0) var<storage, read_write> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> scales: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> step: array<u32>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>; // (rows, cols/4)

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.y;
    let block = id.x / 4u;
    let j = id.x % 4u;
    if (row >= step_rows() || block >= COLS / 32u) { return; }
    let token = row_id(row);
    let octet_block = (token / 8u) * (COLS / 32u) + block;
    let half_octet = (token % 8u) / 4u;
    let r = token % 4u;
    let quads = load_quads(octet_block, half_octet, j);
    let s = load_scales(octet_block, half_octet);
    let at = row * (COLS / 4u) + block * 8u;
    x[at + quad_lo(j)] = s.d[r] * quads.lo[r] + s.m[r];
    x[at + quad_hi(j)] = s.d[r] * quads.hi[r] + s.m[r];
}
