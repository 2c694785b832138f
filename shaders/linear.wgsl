// out = epilogue(W * norm(x)): one thread takes HALVES * 4 rows of W (halves of an octet) and one of SLOTS shares of the
// columns, for TOKENS rows of x, and keeps all sums in registers. `combine` (sum_*.wgsl) adds up the shares, `norm_*.wgsl`
// makes y = W (x g) / sqrt(mean(x^2) + eps) without a pass of its own, `store_*.wgsl` writes.
// Preamble: MATRIX_ROWS (without padding), COLS, SLOTS (1 or a multiple of 4), HALVES, UNITS (threads side by side along
// the rows), TOKENS, PARTS (2 where octets alternate between two matrices, gate and up), GRID_X, HEAD (1: rows of x start
// at the step's first head row), EPS, LANES, ROWS, HEAD_DIM. Needs step.wgsl and a codec.

@group(0) @binding(0) var<storage, read_write> x: array<vec4<f32>>;      // (rows, cols/4)
@group(0) @binding(1) var<storage, read_write> words: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> scales: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> step: array<u32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;          // (rows, matrix rows)

const BLOCKS: u32 = COLS / 32u;
const PLACES: u32 = ((MATRIX_ROWS + 7u) / 8u) * 2u / PARTS / HALVES;
// Four threads share a block's four steps where there are several slots.
const BLOCK_STEP: u32 = (SLOTS + 3u) / 4u;
const J_STEP: u32 = min(SLOTS, 4u);
const SUMS: u32 = PARTS * HALVES * TOKENS;

struct Sums {
    acc: array<vec4<f32>, SUMS>, // W x, four rows each
    ss: array<f32, TOKENS>,      // sum of x^2
}

@compute @workgroup_size(UNITS * SLOTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let unit = thread % UNITS;
    let slot = thread / UNITS;
    // A grid is at most 65,535 workgroups wide. Threads past the end repeat the last rows and store nothing.
    let place = (group.y * GRID_X + group.x) * UNITS + unit;
    let half0 = min(place, PLACES - 1u) * HALVES;
    var first = 0u;
    var count = step_rows();
    if (HEAD == 1u) {
        first = step_head_first();
        count = step_head_rows();
    }
    let token0 = group.z * TOKENS;
    var sums: Sums;
    if (token0 < count) {
        for (var block = slot / 4u; block < BLOCKS; block += BLOCK_STEP) {
            var s: array<Scales, PARTS * HALVES>;
            for (var part = 0u; part < PARTS * HALVES; part++) {
                let half = half0 + part % HALVES;
                s[part] = load_scales((half / 2u * PARTS + part / HALVES) * BLOCKS + block, half % 2u);
            }
            for (var j = slot % J_STEP; j < 4u; j += J_STEP) {
                let lo = block * 8u + quad_lo(j);
                let hi = block * 8u + quad_hi(j);
                let weight_lo = weight(lo);
                let weight_hi = weight(hi);
                var quads: array<Quads, PARTS * HALVES>;
                for (var part = 0u; part < PARTS * HALVES; part++) {
                    let half = half0 + part % HALVES;
                    quads[part] = load_quads((half / 2u * PARTS + part / HALVES) * BLOCKS + block, half % 2u, j);
                }
                for (var t = 0u; t < TOKENS; t++) {
                    let at = (first + min(token0 + t, count - 1u)) * (COLS / 4u);
                    let x_lo = x[at + lo];
                    let x_hi = x[at + hi];
                    sums.ss[t] += dot(x_lo, x_lo) + dot(x_hi, x_hi);
                    let y_lo = x_lo * weight_lo;
                    let y_hi = x_hi * weight_hi;
                    let y_sum = dot(y_lo + y_hi, vec4<f32>(1.0));
                    for (var part = 0u; part < PARTS * HALVES; part++) {
                        let product = y_lo * quads[part].lo + y_hi * quads[part].hi;
                        sums.acc[part * TOKENS + t] += s[part].d * product + s[part].m * y_sum;
                    }
                }
            }
        }
    }
    combine(&sums, unit, slot);
    if (slot == 0u && place < PLACES) {
        for (var t = 0u; t < TOKENS; t++) {
            if (token0 + t < count) {
                let factor = norm_factor(sums.ss[t]);
                for (var half = 0u; half < HALVES; half++) {
                    let y = sums.acc[half * TOKENS + t] * factor;
                    let last = sums.acc[((PARTS - 1u) * HALVES + half) * TOKENS + t] * factor;
                    store(token0 + t, (half0 + half) * 4u, y, last);
                }
            }
        }
    }
}
