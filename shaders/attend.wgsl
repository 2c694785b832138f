// Attention of one token over one tile of its view, for the query heads that share a KV head. The view is the sinks and
// the recent tokens from `first` to the token itself; what came before this chunk is read from the cache, packed or not,
// the chunk's own K and V from `qkv`, rounded as the cache rounds them. Keys are stored un-rotated: a sink key is rotated by its
// slot, a recent key by its distance from `base`; the query has one rotation for each kind.
// Writes the tile's largest score, its sums and its weighted V; merge.wgsl joins the tiles. Where the step asks for the probs
// of a head of this layer, its scores are kept for merge.wgsl too.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM, TILES, SLOTS (that `part` has for a lane's scores), THREADS (of a workgroup; a
// tile's keys are shared among them), LANES, ROWS. Needs step.wgsl, and either slots.wgsl with storage_*.wgsl or parts.wgsl
// with parts_load.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;   // (rows, (n_heads + 2 n_kv_heads) * head_dim)
@group(0) @binding(1) var<storage, read_write> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<u32>; // of each lane, as place_of says
@group(0) @binding(3) var<storage, read_write> rope: array<f32>;  // (positions, cos and sin, head_dim/2)
@group(0) @binding(4) var<storage, read_write> part: array<f32>;  // (lanes, SLOTS), then (rows, n_heads, tiles, 4 + head_dim)
@group(0) @binding(5) var<uniform> info: vec4<u32>;               // store, layer

const TILE: u32 = 64u;
const KEYS: u32 = TILE / THREADS;
const PAIRS: u32 = max(HEAD_DIM / (2u * THREADS), 1u);
const HALF: u32 = HEAD_DIM / 2u;
const GROUP: u32 = N_HEADS / N_KV_HEADS;
const QKV: u32 = (N_HEADS + 2u * N_KV_HEADS) * HEAD_DIM;
const PART: u32 = 4u + HEAD_DIM;
const PARTS_AT: u32 = LANES * SLOTS;
const IN_CHUNK: u32 = 0x80000000u;

var<workgroup> query: array<f32, 2 * GROUP * HEAD_DIM>; // for sink keys, then for recent keys
var<workgroup> score: array<f32, GROUP * TILE>;         // then its exponential
var<workgroup> place: array<u32, TILE>;                 // as place_of says

var<private> lane_word: u32;      // the lane's first word in the arena
var<private> lane_groups_at: u32; // its groups, from there on
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tile = group.x;
    let kv_head = group.y;
    let row = group.z;
    let found = lane_of(row, info.x);
    let live = found < LANES;
    let lane = select(0u, found, live);
    lane_word = lane_first_word(lane);
    lane_groups_at = lane_sinks(lane) * SLOT_WORDS;
    let held = select(0u, row_held(row), live);
    let n_sinks = row_sinks(row);
    let base = lane_base(lane);
    let count = min(max(held, tile * TILE) - tile * TILE, TILE);

    // The two rotations of each query head.
    let distance = row_index(row) - base;
    for (var i = thread; i < GROUP * HALF; i += THREADS) {
        let g = i / HALF;
        let c = i % HALF;
        let at = row * QKV + (kv_head * GROUP + g) * HEAD_DIM + c;
        let a = qkv[at];
        let b = qkv[at + HALF];
        let sink_cos = row_sink_cos(row, c);
        let sink_sin = row_sink_sin(row, c);
        query[g * HEAD_DIM + c] = a * sink_cos - b * sink_sin;
        query[g * HEAD_DIM + c + HALF] = a * sink_sin + b * sink_cos;
        // A query that is itself a sink lies before `base` and has no recent keys.
        let p = select(0u, distance, live && row_index(row) >= base) * HEAD_DIM + c;
        let recent_cos = rope[p];
        let recent_sin = rope[p + HALF];
        query[(GROUP + g) * HEAD_DIM + c] = a * recent_cos - b * recent_sin;
        query[(GROUP + g) * HEAD_DIM + c + HALF] = a * recent_sin + b * recent_cos;
    }
    workgroupBarrier();

    // Scores: KEYS keys a thread, so that they share what is read of the query.
    var at: array<u32, KEYS>;
    var angle: array<u32, KEYS>;
    var sink: array<bool, KEYS>;
    for (var i = 0u; i < KEYS; i++) {
        let in_tile = i * THREADS + thread;
        // Past the end the last key is read again; its score is not kept.
        let n = tile * TILE + min(in_tile, max(count, 1u) - 1u);
        sink[i] = n < n_sinks;
        let index = select(row_first(row) + n - n_sinks, n, sink[i]);
        at[i] = place_of(lane, index);
        angle[i] = select(index - base, index, sink[i]) * HEAD_DIM;
        place[in_tile] = at[i];
    }
    if (count > 0u) {
        var sums: array<f32, KEYS * GROUP>;
        // Sink keys meet one rotation of the query, recent keys the other.
        for (var kind = 0u; kind < 2u; kind++) {
            var any = false;
            for (var i = 0u; i < KEYS; i++) { any = any || (sink[i] == (kind == 0u)); }
            if (any) {
                for (var c = 0u; c < HALF; c += 2u) {
                    var q_lo: array<vec2<f32>, GROUP>;
                    var q_hi: array<vec2<f32>, GROUP>;
                    for (var g = 0u; g < GROUP; g++) {
                        let q = (kind * GROUP + g) * HEAD_DIM + c;
                        q_lo[g] = vec2<f32>(query[q], query[q + 1u]);
                        q_hi[g] = vec2<f32>(query[q + HALF], query[q + HALF + 1u]);
                    }
                    for (var i = 0u; i < KEYS; i++) {
                        if (sink[i] == (kind == 0u)) {
                            let a = load_key(at[i], kv_head, c);
                            let b = load_key(at[i], kv_head, c + HALF);
                            let cosine = vec2<f32>(rope[angle[i] + c], rope[angle[i] + c + 1u]);
                            let sine = vec2<f32>(rope[angle[i] + HALF + c], rope[angle[i] + HALF + c + 1u]);
                            let k_lo = a * cosine - b * sine;
                            let k_hi = a * sine + b * cosine;
                            for (var g = 0u; g < GROUP; g++) {
                                sums[i * GROUP + g] += dot(q_lo[g], k_lo) + dot(q_hi[g], k_hi);
                            }
                        }
                    }
                }
            }
        }
        for (var i = 0u; i < KEYS; i++) {
            for (var g = 0u; g < GROUP; g++) {
                score[g * TILE + i * THREADS + thread] = sums[i * GROUP + g] * inverseSqrt(f32(HEAD_DIM));
            }
        }
    }
    workgroupBarrier();

    if (live && info.y == step_asked_layer() && is_last(lane, row)) {
        // Of a head of another group this is no number of a head here, since it wraps.
        let asked = step_asked_head() - kv_head * GROUP;
        if (asked < GROUP) {
            for (var n = thread; n < count; n += THREADS) {
                part[lane * SLOTS + tile * TILE + n] = score[asked * TILE + n];
            }
        }
    }
    var largest: array<f32, GROUP>;
    for (var g = 0u; g < GROUP; g++) {
        largest[g] = -3.0e38;
        for (var n = 0u; n < count; n++) { largest[g] = max(largest[g], score[g * TILE + n]); }
    }
    workgroupBarrier();
    for (var n = thread; n < count; n += THREADS) {
        for (var g = 0u; g < GROUP; g++) { score[g * TILE + n] = exp(score[g * TILE + n] - largest[g]); }
    }
    workgroupBarrier();
    if (!live) { return; }

    for (var g = 0u; g < GROUP; g++) {
        let out = PARTS_AT + ((row * N_HEADS + kv_head * GROUP + g) * TILES + tile) * PART;
        if (thread == 0u) {
            var sum = 0.0;
            var sink_sum = 0.0;
            var first_sum = 0.0;
            for (var n = 0u; n < count; n++) {
                let p = score[g * TILE + n];
                sum += p;
                if (tile * TILE + n < n_sinks) { sink_sum += p; }
                if (tile * TILE + n < 4u) { first_sum += p; }
            }
            part[out] = largest[g];
            part[out + 1u] = sum;
            part[out + 2u] = sink_sum;
            part[out + 3u] = first_sum;
        }
    }
    // The first key whose value counts.
    let zeros = select(0u, n_sinks, lane_has(lane, ZERO_SINKS));
    let first_value = min(max(zeros, tile * TILE) - tile * TILE, count);
    // V: PAIRS pairs of channels a thread, so that they share what is read of the scores.
    for (var c = thread * 2u; c < HEAD_DIM; c += 2u * THREADS * PAIRS) {
        var sums: array<vec2<f32>, GROUP * PAIRS>;
        for (var n = first_value; n < count; n++) {
            let at_n = place[n];
            var p: array<f32, GROUP>;
            for (var g = 0u; g < GROUP; g++) { p[g] = score[g * TILE + n]; }
            for (var i = 0u; i < PAIRS; i++) {
                let v = load_value(at_n, kv_head, c + i * 2u * THREADS);
                for (var g = 0u; g < GROUP; g++) { sums[g * PAIRS + i] += p[g] * v; }
            }
        }
        for (var g = 0u; g < GROUP; g++) {
            for (var i = 0u; i < PAIRS; i++) {
                let channel = c + i * 2u * THREADS;
                let out = PARTS_AT + ((row * N_HEADS + kv_head * GROUP + g) * TILES + tile) * PART + 4u + channel;
                part[out] = sums[g * PAIRS + i].x;
                part[out + 1u] = sums[g * PAIRS + i].y;
            }
        }
    }
}
