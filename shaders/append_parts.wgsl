// The same as append.wgsl for a cache of parts.wgsl; and where the step says so, whole groups of the tail are packed: a
// scale and a zero for each channel of K over the group's tokens, and for each token of V over PACK_GROUP channels.
// Workgroups y < ROWS append a row; each of the others packs one head's K or V of one group.

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;   // (rows, (n_heads + 2 n_kv_heads) * head_dim)
@group(0) @binding(1) var<storage, read_write> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<u32>; // of each lane, as parts.wgsl says
@group(0) @binding(3) var<uniform> info: vec4<u32>;               // store

const QKV: u32 = (N_HEADS + 2u * N_KV_HEADS) * HEAD_DIM;
const IN_CHUNK: u32 = 0x80000000u;
const PARAMETERS: u32 = max(HEAD_DIM, PACK_GROUP * CHANNEL_GROUPS);

var<private> lane_word: u32;
var<workgroup> parameters: array<vec2<f32>, PARAMETERS>; // scale and zero

// f16, rounded to nearest even whatever the device does; |x| is at most F16_MAX.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size < 0x38800000u) { return sign | u32(round(abs(x) * 16777216.0)); }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
}

fn put(float: u32, at: u32, channel: u32, v: vec2<f32>) {
    if (float == 0u) {
        arena[lane_word + at + channel] = bitcast<u32>(v.x);
        arena[lane_word + at + channel + 1u] = bitcast<u32>(v.y);
    } else {
        arena[lane_word + at + channel / 2u] = rounded(float, v);
    }
}

fn append_pair(row: u32, pair: u32) {
    let lane = lane_of(row, info.x);
    if (lane == LANES || pair >= N_KV_HEADS * HEAD_DIM) { return; }
    lane_word = lane_first_word(lane);
    let sinks = lane_sinks(lane);
    let index = lane_start(lane) + row - lane_row0(lane);
    let end = lane_start(lane) + lane_rows(lane);
    var slot = index * SLOT_WORDS;
    if (index >= sinks) {
        if (end - index > select(lane_recent(lane), TAIL, PACKS == 1u)) { return; }
        slot = ring_slot(lane, index);
    }
    let at = row * QKV + N_HEADS * HEAD_DIM + 2u * pair;
    let v = vec2<f32>(qkv[at], qkv[at + 1u]);
    let keys = N_KV_HEADS * HEAD_DIM;
    if (2u * pair < keys) {
        put(K_FLOAT, slot, 2u * pair, v);
    } else {
        put(V_FLOAT, slot + N_KV_HEADS * K_WORDS, 2u * pair - keys, v);
    }
}

// Two neighbouring values of a token that is not packed yet: from the chunk, or from the tail.
fn unpacked(lane: u32, index: u32, values: bool, kv_head: u32, channel: u32) -> vec2<f32> {
    let float = select(K_FLOAT, V_FLOAT, values);
    let start = lane_start(lane);
    if (index >= start) {
        let head = N_HEADS + select(0u, N_KV_HEADS, values) + kv_head;
        let i = (lane_row0(lane) + index - start) * QKV + head * HEAD_DIM + channel;
        return stored(float, vec2<f32>(qkv[i], qkv[i + 1u]));
    }
    let offset = select(kv_head * K_WORDS, N_KV_HEADS * K_WORDS + kv_head * V_WORDS, values);
    return load_floats(float, ring_slot(lane, index) + offset, channel);
}
fn unpacked_one(lane: u32, index: u32, values: bool, kv_head: u32, channel: u32) -> f32 {
    let pair = unpacked(lane, index, values, kv_head, channel & ~1u);
    return clamp(select(pair.x, pair.y, (channel & 1u) == 1u), -F16_MAX, F16_MAX);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (group.y < ROWS) { append_pair(group.y, group.x * 64u + thread); }

    let unit = max(group.y, ROWS) - ROWS;
    let values = unit % 2u == 1u;
    let kv_head = unit / 2u % N_KV_HEADS;
    let lane = min(unit / (2u * N_KV_HEADS) / (TAIL / PACK_GROUP), LANES - 1u);
    let first = lane_packed(lane) + unit / (2u * N_KV_HEADS) % (TAIL / PACK_GROUP) * PACK_GROUP;
    let packs_to = lane_packs_to(lane);
    let bits = select(K_BITS, V_BITS, values);
    // Where the tail has more groups than there is room for, the first of them have been seen for the last time.
    let live = PACKS == 1u && group.y >= ROWS && group.x == 0u && lane_store(lane) == info.x && lane_rows(lane) > 0u
        && first < packs_to && packs_to - first <= lane_groups(lane) * PACK_GROUP;
    if (live) { lane_word = lane_first_word(lane); }
    let code_words = select(K_CODE_WORDS, V_CODE_WORDS, values);
    var at = 0u;
    if (live) {
        at = group_at(lane, first)
            + select(kv_head * K_GROUP_WORDS, N_KV_HEADS * K_GROUP_WORDS + kv_head * V_GROUP_WORDS, values);
    }
    let largest = f32((1u << bits) - 1u);
    if (live && bits > 0u) {
        for (var p = thread; p < select(HEAD_DIM, PACK_GROUP * CHANNEL_GROUPS, values); p += 64u) {
            var least = F16_MAX;
            var most = -F16_MAX;
            if (values) {
                let token = p % PACK_GROUP;
                let channel = p / PACK_GROUP * PACK_GROUP;
                for (var c = channel; c < min(channel + PACK_GROUP, HEAD_DIM); c++) {
                    let x = unpacked_one(lane, first + token, true, kv_head, c);
                    least = min(least, x);
                    most = max(most, x);
                }
            } else {
                for (var token = 0u; token < PACK_GROUP; token++) {
                    let x = unpacked_one(lane, first + token, false, kv_head, p);
                    least = min(least, x);
                    most = max(most, x);
                }
            }
            let word = half_bits((most - least) / largest) | (half_bits(least) << 16u);
            arena[lane_word + at + code_words + p] = word;
            parameters[p] = unpack2x16float(word);
        }
    }
    workgroupBarrier();
    if (live && bits > 0u) {
        let per_word = 32u / max(bits, 1u);
        for (var w = thread; w < code_words; w += 64u) {
            var word = 0u;
            for (var j = 0u; j < per_word; j++) {
                let code = (w / 8u * per_word + j) * 8u + w % 8u;
                let token = code / HEAD_DIM;
                let channel = code % HEAD_DIM;
                let p = parameters[select(channel, channel / PACK_GROUP * PACK_GROUP + token, values)];
                let x = unpacked_one(lane, first + token, values, kv_head, channel);
                let rounded_code = clamp(round((x - p.y) / p.x), 0.0, largest);
                word |= select(u32(rounded_code), 0u, p.x == 0.0) << (j * bits);
            }
            arena[lane_word + at + w] = word;
        }
    }
    if (live && bits == 0u) {
        let float = select(K_FLOAT, V_FLOAT, values);
        for (var i = thread; i < PACK_GROUP * HEAD_DIM / 2u; i += 64u) {
            let token = i / (HEAD_DIM / 2u);
            let channel = i % (HEAD_DIM / 2u) * 2u;
            put(float, at, 2u * i, unpacked(lane, first + token, values, kv_head, channel));
        }
    }
}
