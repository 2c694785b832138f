// How attention reads a cache of parts.wgsl.

// Vectors of eight channels of a head, as codes lie.
const VECTORS: u32 = HEAD_DIM / 8u;
const K_PER_WORD: u32 = 32u / max(K_BITS, 1u);
const V_PER_WORD: u32 = 32u / max(V_BITS, 1u);
// Vectors of half a head, from a multiple of as many on, that lie in the same words whatever the token.
const K_BLOCK: u32 = min(K_PER_WORD, (VECTORS / 2u) & (~(VECTORS / 2u) + 1u));
// Whether all of a head's vectors lie in the same words.
const K_TOGETHER: bool = K_PER_WORD % VECTORS == 0u;
// Vectors between two channels that a thread takes; whether it can use the words, and the parameters, of one for the next.
const V_STEP: u32 = THREADS / 4u;
const V_TOGETHER: bool = (V_PER_WORD % VECTORS == 0u || VECTORS % V_PER_WORD == 0u) && V_PER_WORD % V_STEP == 0u;
const V_ONE_SCALE: bool = PACK_GROUP % (2u * THREADS) == 0u;

// Where the token of a stream index lies when those below `packed` are packed.
fn source_of(lane: u32, index: u32) -> u32 {
    if (index >= lane_start(lane)) { return FROM_CHUNK; }
    if (PACKS == 1u && index >= lane_sinks(lane) && index < lane_packed(lane)) { return FROM_GROUP; }
    return FROM_SLOT;
}
// Its row of qkv, its group of the ring * PACK_GROUP + its number there, or its slot.
fn place_of(lane: u32, index: u32) -> u32 {
    let source = source_of(lane, index);
    if (source == FROM_CHUNK) { return lane_row0(lane) + index - lane_start(lane); }
    let sinks = lane_sinks(lane);
    if (source == FROM_GROUP) { return (index - sinks) % (lane_groups(lane) * PACK_GROUP); }
    if (index < sinks) { return index * SLOT_WORDS; }
    return ring_slot(lane, index);
}

fn load_key(source: u32, place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if (source == FROM_CHUNK) { return stored(K_FLOAT, qkv_pair(place, N_HEADS + kv_head, channel)); }
    if (source == FROM_GROUP) {
        return load_floats(K_FLOAT, keys_at(place, kv_head) + place % PACK_GROUP * K_WORDS, channel);
    }
    return load_floats(K_FLOAT, place + kv_head * K_WORDS, channel);
}
fn load_value(source: u32, place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if (source == FROM_CHUNK) { return stored(V_FLOAT, qkv_pair(place, N_HEADS + N_KV_HEADS + kv_head, channel)); }
    if (source == FROM_GROUP) {
        return load_floats(V_FLOAT, values_at(place, kv_head) + place % PACK_GROUP * V_WORDS, channel);
    }
    return load_floats(V_FLOAT, place + N_KV_HEADS * K_WORDS + kv_head * V_WORDS, channel);
}

fn add_stored_scores(kv_head: u32) {
    add_scores(FROM_SLOT, kv_head);
    if (PACKS == 1u) {
        if (K_BITS == 0u) { add_scores(FROM_GROUP, kv_head); } else { add_packed_scores(kv_head); }
    }
}
// Of the keys `first_key` to `end_key` of the tile, at pairs of channels from `channel` on.
fn add_stored_values(kv_head: u32, channel: u32, first_key: u32, end_key: u32) {
    if (PACKS == 0u) {
        add_values(FROM_SLOT, kv_head, channel, first_key, end_key);
        return;
    }
    add_values(FROM_SLOT, kv_head, channel, first_key, min(end_key, group_from));
    let first = max(first_key, group_from);
    let last = min(end_key, group_to);
    if (V_BITS == 0u) { add_values(FROM_GROUP, kv_head, channel, first, last); }
    else { add_packed_values(kv_head, channel, first, last); }
    add_values(FROM_SLOT, kv_head, channel, max(first_key, group_to), end_key);
}

// The first word of a head's keys, or values, in the group of `place`.
fn keys_at(place: u32, kv_head: u32) -> u32 {
    return lane_groups_at + place / PACK_GROUP * GROUP_WORDS + kv_head * K_GROUP_WORDS;
}
fn values_at(place: u32, kv_head: u32) -> u32 {
    return lane_groups_at + place / PACK_GROUP * GROUP_WORDS + N_KV_HEADS * K_GROUP_WORDS + kv_head * V_GROUP_WORDS;
}

// Scale and zero of a pair of key channels.
struct Scales {
    scale: vec2<f32>,
    zero: vec2<f32>,
}
fn key_scales(at: u32, channel: u32) -> Scales {
    let word = lane_word + at + K_CODE_WORDS + channel;
    let a = unpack2x16float(arena[word]);
    let b = unpack2x16float(arena[word + 1u]);
    return Scales(vec2<f32>(a.x, b.x), vec2<f32>(a.y, b.y));
}
fn key_words(at: u32, vector: u32, e: u32) -> vec2<u32> {
    let word = lane_word + at + vector / K_PER_WORD * 8u + e;
    return vec2<u32>(arena[word], arena[word + 1u]);
}
fn key_codes(words: vec2<u32>, vector: u32) -> vec2<f32> {
    return vec2<f32>((words >> vec2<u32>(vector % K_PER_WORD * K_BITS)) & vec2<u32>((1u << K_BITS) - 1u));
}

// Adds the scores of keys in groups. A word is read once for all codes in it, and the scales once for all keys of a thread:
// these are neighbours, and so lie in two groups at most.
fn add_packed_scores(kv_head: u32) {
    var any = false;
    var first = 0u;
    var last = 0u;
    for (var i = 0u; i < KEYS; i++) {
        if (key_source[i] == RECENT_IN_GROUP) {
            last = keys_at(key_place[i], kv_head);
            first = select(last, first, any);
            any = true;
        }
    }
    if (any) {
        for (var block = 0u; block < VECTORS / 2u; block += K_BLOCK) {
            for (var e = 0u; e < 8u; e += 2u) {
                var low: array<vec2<u32>, KEYS>;
                var high: array<vec2<u32>, KEYS>;
                for (var i = 0u; i < KEYS; i++) {
                    let vector = key_place[i] % PACK_GROUP * VECTORS + block;
                    let at = select(first, keys_at(key_place[i], kv_head), key_source[i] == RECENT_IN_GROUP);
                    low[i] = key_words(at, vector, e);
                    if (!K_TOGETHER) { high[i] = key_words(at, vector + VECTORS / 2u, e); }
                }
                for (var v = block; v < block + K_BLOCK; v++) {
                    let c = v * 8u + e;
                    var q_low: array<vec2<f32>, GROUP>;
                    var q_high: array<vec2<f32>, GROUP>;
                    for (var g = 0u; g < GROUP; g++) {
                        let q = (GROUP + g) * HEAD_DIM + c;
                        q_low[g] = vec2<f32>(query[q], query[q + 1u]);
                        q_high[g] = vec2<f32>(query[q + HALF], query[q + HALF + 1u]);
                    }
                    let first_low = key_scales(first, c);
                    let first_high = key_scales(first, c + HALF);
                    let last_low = key_scales(last, c);
                    let last_high = key_scales(last, c + HALF);
                    for (var i = 0u; i < KEYS; i++) {
                        if (key_source[i] == RECENT_IN_GROUP) {
                            let vector = key_place[i] % PACK_GROUP * VECTORS + v;
                            let of_first = vec2<bool>(keys_at(key_place[i], kv_head) == first);
                            let a = fma(
                                key_codes(low[i], vector),
                                select(last_low.scale, first_low.scale, of_first),
                                select(last_low.zero, first_low.zero, of_first),
                            );
                            var words = low[i];
                            if (!K_TOGETHER) { words = high[i]; }
                            let b = fma(
                                key_codes(words, vector + VECTORS / 2u),
                                select(last_high.scale, first_high.scale, of_first),
                                select(last_high.zero, first_high.zero, of_first),
                            );
                            add_score(i, a, b, c, &q_low, &q_high);
                        }
                    }
                }
            }
        }
    }
}

// Adds the values of keys `first_key` to `end_key` of the tile, which lie in groups, at pairs of channels from `channel` on.
fn add_packed_values(kv_head: u32, channel: u32, first_key: u32, end_key: u32) {
    for (var n = first_key; n < end_key; n++) {
        let at = values_at(place[n], kv_head);
        let token = place[n] % PACK_GROUP;
        var words = vec2<u32>(0u);
        var parameters = vec2<f32>(0.0);
        for (var i = 0u; i < PAIRS; i++) {
            let vector = token * VECTORS + channel / 8u + i * V_STEP;
            if (!V_TOGETHER || i * V_STEP % V_PER_WORD == 0u) {
                let word = lane_word + at + vector / V_PER_WORD * 8u + channel % 8u;
                words = vec2<u32>(arena[word], arena[word + 1u]);
            }
            let its_group = (channel + i * 2u * THREADS) / PACK_GROUP;
            if (!V_ONE_SCALE || i * 2u * THREADS % PACK_GROUP == 0u) {
                parameters = unpack2x16float(arena[lane_word + at + V_CODE_WORDS + its_group * PACK_GROUP + token]);
            }
            let codes = (words >> vec2<u32>(vector % V_PER_WORD * V_BITS)) & vec2<u32>((1u << V_BITS) - 1u);
            add_value(n, i, fma(vec2<f32>(codes), vec2<f32>(parameters.x), vec2<f32>(parameters.y)));
        }
    }
}
