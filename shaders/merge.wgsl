// Joins the tiles of attend.wgsl into the head's output and reports the share of attention on the sinks and on the
// first four slots. Scores that attend.wgsl has kept become probs. The denominator has one more logit: what the head has
// learned, or 0 for a lane with softmax one.
// One workgroup a (head, row), one channel a thread.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM, TILES, SLOTS, REPORT (stride of a report row), MASSES, LANES, ROWS. Needs
// step.wgsl.

@group(0) @binding(0) var<storage, read_write> part: array<f32>;   // (lanes, SLOTS), then (rows, n_heads, tiles, 4 + head_dim)
@group(0) @binding(1) var<storage, read_write> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;    // (rows, n_heads * head_dim)
@group(0) @binding(3) var<storage, read_write> report: array<f32>; // (rows, REPORT)
@group(0) @binding(4) var<storage, read_write> sink_logits: array<f32>; // (n_heads); below NO_LOGIT there is none
@group(0) @binding(5) var<uniform> info: vec4<u32>;                // store, layer

const TILE: u32 = 64u;
const PART: u32 = 4u + HEAD_DIM;
const NO_LOGIT: f32 = -1.0e38;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let head = group.x;
    let row = group.y;
    let lane = lane_of(row, info.x);
    if (lane == LANES) { return; }
    let used = (row_held(row) + TILE - 1u) / TILE;
    let parts = LANES * SLOTS + (row * N_HEADS + head) * TILES * PART;
    let extra = select(sink_logits[head], 0.0, lane_has(lane, SOFTMAX_ONE));
    var largest = extra;
    for (var s = 0u; s < used; s++) { largest = max(largest, part[parts + s * PART]); }
    var sum = select(exp(extra - largest), 0.0, extra < NO_LOGIT);
    var sink_sum = 0.0;
    var first_sum = 0.0;
    for (var s = 0u; s < used; s++) {
        let at = parts + s * PART;
        let scale = exp(part[at] - largest);
        sum += scale * part[at + 1u];
        sink_sum += scale * part[at + 2u];
        first_sum += scale * part[at + 3u];
    }
    for (var c = thread; c < HEAD_DIM; c += 64u) {
        var v = 0.0;
        for (var s = 0u; s < used; s++) {
            let at = parts + s * PART;
            v += exp(part[at] - largest) * part[at + 4u + c];
        }
        out[(row * N_HEADS + head) * HEAD_DIM + c] = v / sum;
    }
    if (info.y == step_asked_layer() && head == step_asked_head() && is_last(lane, row)) {
        for (var n = thread; n < row_held(row); n += 64u) {
            let at = lane * SLOTS + n;
            part[at] = exp(part[at] - largest) / sum;
        }
    }
    if (thread == 0u) {
        let at = row * REPORT + MASSES + (info.y * N_HEADS + head) * 2u;
        report[at] = sink_sum / sum;
        report[at + 1u] = first_sum / sum;
    }
}
