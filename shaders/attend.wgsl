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
// Where a token's K and V are read. Each source has a loop of its own, since an adapter whose threads go in step runs
// through all that any of them could read.
const FROM_SLOT: u32 = 0u;
const FROM_CHUNK: u32 = 1u;
const FROM_GROUP: u32 = 2u;
// Added to twice the source: the query's rotation for the key.
const SINK: u32 = 0u;
const RECENT: u32 = 1u;
const RECENT_IN_GROUP: u32 = 2u * FROM_GROUP + RECENT;

var<workgroup> query: array<f32, 2 * GROUP * HEAD_DIM>; // for sink keys, then for recent keys
var<workgroup> score: array<f32, GROUP * TILE>;         // then its exponential
var<workgroup> place: array<u32, TILE>;                 // as place_of says

var<private> lane_word: u32;      // the lane's first word in the arena
var<private> lane_groups_at: u32; // its groups, from there on
// The thread's keys: twice the source and the rotation, the place, and where their angle's cosines begin.
var<private> key_source: array<u32, KEYS>;
var<private> key_place: array<u32, KEYS>;
var<private> key_angle: array<u32, KEYS>;
var<private> key_sums: array<f32, KEYS * GROUP>;
var<private> value_sums: array<vec2<f32>, GROUP * PAIRS>;
// The tile's keys that lie in groups, and the first of the chunk; those before, and between, lie in slots.
var<private> group_from: u32;
var<private> group_to: u32;
var<private> chunk_from: u32;

// Two neighbouring channels of a head of a row of qkv.
fn qkv_pair(row: u32, head: u32, channel: u32) -> vec2<f32> {
    let i = row * QKV + head * HEAD_DIM + channel;
    return vec2<f32>(qkv[i], qkv[i + 1u]);
}

// Adds to key `i`'s sums what its channels c, c + 1 (a) and those half a head on (b) have in common with the queries.
fn add_score(
    i: u32,
    a: vec2<f32>,
    b: vec2<f32>,
    c: u32,
    q_low: ptr<function, array<vec2<f32>, GROUP>>,
    q_high: ptr<function, array<vec2<f32>, GROUP>>,
) {
    let at = key_angle[i] + c;
    let cosine = vec2<f32>(rope[at], rope[at + 1u]);
    let sine = vec2<f32>(rope[at + HALF], rope[at + HALF + 1u]);
    let k_low = a * cosine - b * sine;
    let k_high = a * sine + b * cosine;
    for (var g = 0u; g < GROUP; g++) {
        key_sums[i * GROUP + g] += dot((*q_low)[g], k_low) + dot((*q_high)[g], k_high);
    }
}

// Adds the scores of the keys of one source that are floats.
fn add_scores(source: u32, kv_head: u32) {
    // Sink keys meet one rotation of the query, recent keys the other.
    for (var rotation = SINK; rotation <= RECENT; rotation++) {
        let wanted = 2u * source + rotation;
        var any = false;
        for (var i = 0u; i < KEYS; i++) { any = any || key_source[i] == wanted; }
        if (any) {
            for (var c = 0u; c < HALF; c += 2u) {
                var q_low: array<vec2<f32>, GROUP>;
                var q_high: array<vec2<f32>, GROUP>;
                for (var g = 0u; g < GROUP; g++) {
                    let q = (rotation * GROUP + g) * HEAD_DIM + c;
                    q_low[g] = vec2<f32>(query[q], query[q + 1u]);
                    q_high[g] = vec2<f32>(query[q + HALF], query[q + HALF + 1u]);
                }
                for (var i = 0u; i < KEYS; i++) {
                    if (key_source[i] == wanted) {
                        let a = load_key(source, key_place[i], kv_head, c);
                        let b = load_key(source, key_place[i], kv_head, c + HALF);
                        add_score(i, a, b, c, &q_low, &q_high);
                    }
                }
            }
        }
    }
}

// Adds the value of key `n` of the tile at the thread's pair `i` of channels.
fn add_value(n: u32, i: u32, v: vec2<f32>) {
    for (var g = 0u; g < GROUP; g++) { value_sums[g * PAIRS + i] += score[g * TILE + n] * v; }
}

// Adds the values of keys `first_key` to `end_key` of the tile, which are floats of one source, at pairs of channels from `channel` on.
fn add_values(source: u32, kv_head: u32, channel: u32, first_key: u32, end_key: u32) {
    for (var n = first_key; n < end_key; n++) {
        for (var i = 0u; i < PAIRS; i++) {
            add_value(n, i, load_value(source, place[n], kv_head, channel + i * 2u * THREADS));
        }
    }
}

// Keys of a row's view in a tile, of `count`, whose stream index is below `index`.
fn keys_before(index: u32, row: u32, tile: u32, count: u32) -> u32 {
    let n_sinks = row_sinks(row);
    let first = row_first(row);
    let before = select(min(index, n_sinks), n_sinks + index - first, index > first);
    return min(max(before, tile * TILE) - tile * TILE, count);
}

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

    // How many of the view's keys in this tile come before a stream index.
    group_from = keys_before(lane_sinks(lane), row, tile, count);
    chunk_from = keys_before(lane_start(lane), row, tile, count);
    group_to = clamp(keys_before(lane_packed(lane), row, tile, count), group_from, max(group_from, chunk_from));

    // Scores: KEYS neighbouring keys a thread, so that they share what is read of the query.
    for (var i = 0u; i < KEYS; i++) {
        let in_tile = thread * KEYS + i;
        // Past the end the last key is read again; its score is not kept.
        let n = tile * TILE + min(in_tile, max(count, 1u) - 1u);
        let is_sink = n < n_sinks;
        let index = select(row_first(row) + n - n_sinks, n, is_sink);
        key_source[i] = 2u * source_of(lane, index) + select(RECENT, SINK, is_sink);
        key_place[i] = place_of(lane, index);
        key_angle[i] = select(index - base, index, is_sink) * HEAD_DIM;
        place[in_tile] = key_place[i];
    }
    if (count > 0u) {
        add_stored_scores(kv_head);
        add_scores(FROM_CHUNK, kv_head);
        for (var i = 0u; i < KEYS; i++) {
            for (var g = 0u; g < GROUP; g++) {
                score[g * TILE + thread * KEYS + i] = key_sums[i * GROUP + g] * inverseSqrt(f32(HEAD_DIM));
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
        for (var i = 0u; i < GROUP * PAIRS; i++) { value_sums[i] = vec2<f32>(0.0); }
        add_stored_values(kv_head, c, first_value, max(first_value, chunk_from));
        add_values(FROM_CHUNK, kv_head, c, max(first_value, chunk_from), count);
        for (var g = 0u; g < GROUP; g++) {
            for (var i = 0u; i < PAIRS; i++) {
                let channel = c + i * 2u * THREADS;
                let out = PARTS_AT + ((row * N_HEADS + kv_head * GROUP + g) * TILES + tile) * PART + 4u + channel;
                part[out] = value_sums[g * PAIRS + i].x;
                part[out + 1u] = value_sums[g * PAIRS + i].y;
            }
        }
    }
}
