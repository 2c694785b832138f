// out = epilogue(W * norm(x)): one thread takes four rows of W (half an octet) and one of SLOTS shares of the columns,
// for TOKENS rows of x, and keeps all sums in registers. `combine` (sum_*.wgsl) adds up the shares, `norm_*.wgsl` makes
// y = W (x g) / sqrt(mean(x^2) + eps) without a pass of its own, `store_*.wgsl` writes.
// Preamble: MATRIX_ROWS (without padding), COLS, SLOTS, UNITS (half octets a workgroup), TOKENS, PARTS (2 where octets
// alternate between two matrices, gate and up), GRID_X, HEAD (1: rows of x start at the step's first head row), EPS,
// LANES, ROWS, HEAD_DIM. Needs step.wgsl and a codec.

@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;      // (rows, cols/4)
@group(0) @binding(1) var<storage, read_write> words: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> scales: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> step: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;          // (rows, matrix rows)

const BLOCKS: u32 = COLS / 32u;
const HALF_OCTETS: u32 = ((MATRIX_ROWS + 7u) / 8u) * 2u / PARTS;

struct Sums {
    acc: array<vec4<f32>, PARTS * TOKENS>, // W x, four rows
    ss: array<f32, TOKENS>,                // sum of x^2
}

@compute @workgroup_size(UNITS * SLOTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let unit = thread % UNITS;
    let slot = thread / UNITS;
    // A grid is at most 65,535 workgroups wide.
    let rows_at = (group.y * GRID_X + group.x) * UNITS + unit;
    var first = 0u;
    var count = step_rows();
    if (HEAD == 1u) {
        first = step_head_first();
        count = step_head_rows();
    }
    let token0 = group.z * TOKENS;
    var sums: Sums;
    if (rows_at < HALF_OCTETS && token0 < count) {
        let octet = rows_at / 2u;
        let half_octet = rows_at % 2u;
        for (var k = slot; k < BLOCKS * 4u; k += SLOTS) {
            let block = k / 4u;
            let j = k % 4u;
            for (var p = 0u; p < PARTS; p++) {
                let octet_block = (octet * PARTS + p) * BLOCKS + block;
                let quads = load_quads(octet_block, half_octet, j);
                let s = load_scales(octet_block, half_octet);
                for (var t = 0u; t < TOKENS; t++) {
                    let row = first + min(token0 + t, count - 1u);
                    let at = row * (COLS / 4u) + block * 8u;
                    let x_lo = x[at + quad_lo(j)];
                    let x_hi = x[at + quad_hi(j)];
                    let y_lo = weigh(x_lo, block * 8u + quad_lo(j));
                    let y_hi = weigh(x_hi, block * 8u + quad_hi(j));
                    let product = s.d * (y_lo * quads.lo + y_hi * quads.hi);
                    sums.acc[p * TOKENS + t] += product + s.m * dot(y_lo + y_hi, vec4<f32>(1.0));
                    if (p == 0u) { sums.ss[t] += dot(x_lo, x_lo) + dot(x_hi, x_hi); }
                }
            }
        }
    }
    combine(&sums, unit, slot);
    if (slot == 0u && rows_at < HALF_OCTETS) {
        for (var t = 0u; t < TOKENS; t++) {
            if (token0 + t < count) {
                let factor = norm_factor(sums.ss[t]);
                let last = (PARTS - 1u) * TOKENS + t;
                store(token0 + t, rows_at * 4u, sums.acc[t] * factor, sums.acc[last] * factor);
            }
        }
    }
}
