// A cache whose K and V are kept apart, or packed: slots of sinks, a ring of groups, and a ring of slots, as `CacheLayout`
// in crates/kernels/src/cache.rs lays them out. All places are words from the lane's first word.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM; PACKS (0 or 1), PACK_GROUP and TAIL (1 where nothing is packed); of K and of V their
// FLOAT (0: f32, 1: f16, 2: bf16), BITS (0: not packed), WORDS (of a head in a slot), CODE_WORDS and GROUP_WORDS (of a head
// in a group). Needs step.wgsl; the kernel has the buffers.

const SLOT_WORDS: u32 = N_KV_HEADS * (K_WORDS + V_WORDS);
const GROUP_WORDS: u32 = N_KV_HEADS * (K_GROUP_WORDS + V_GROUP_WORDS);
const CHANNEL_GROUPS: u32 = (HEAD_DIM + PACK_GROUP - 1u) / PACK_GROUP;
const F16_MAX: f32 = 65504.0;

fn lane_groups(lane: u32) -> u32 { return (lane_recent(lane) + PACK_GROUP - 1u) / PACK_GROUP; }
// The ring of slots: the tail, or all recent tokens.
fn ring_at(lane: u32) -> u32 {
    return lane_sinks(lane) * SLOT_WORDS + select(0u, lane_groups(lane) * GROUP_WORDS, PACKS == 1u);
}
fn ring_slot(lane: u32, index: u32) -> u32 {
    let ring = select(lane_recent(lane), TAIL, PACKS == 1u);
    return ring_at(lane) + (index - lane_sinks(lane)) % ring * SLOT_WORDS;
}
// The first word of the group of a token that is no sink.
fn group_at(lane: u32, index: u32) -> u32 {
    let sinks = lane_sinks(lane);
    return sinks * SLOT_WORDS + (index - sinks) / PACK_GROUP % lane_groups(lane) * GROUP_WORDS;
}

fn bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
// The word of two values, where a word holds two.
fn rounded(float: u32, v: vec2<f32>) -> u32 {
    if (float == 1u) { return pack2x16float(clamp(v, vec2<f32>(-F16_MAX), vec2<f32>(F16_MAX))); }
    return bf16(v.x) | (bf16(v.y) << 16u);
}
fn widened(float: u32, word: u32) -> vec2<f32> {
    if (float == 1u) { return unpack2x16float(word); }
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}
// What values become by being stored.
fn stored(float: u32, v: vec2<f32>) -> vec2<f32> {
    if (float == 0u) { return v; }
    return widened(float, rounded(float, v));
}
// Two neighbouring floats, of which the first is number `channel` (even) from word `at` on.
fn load_floats(float: u32, at: u32, channel: u32) -> vec2<f32> {
    let word = lane_word + at + select(channel / 2u, channel, float == 0u);
    if (float == 0u) { return vec2<f32>(bitcast<f32>(arena[word]), bitcast<f32>(arena[word + 1u])); }
    return widened(float, arena[word]);
}

// Two neighbouring codes of token `token` of a group, at `channel` (even), whose codes begin at word `at`.
fn load_codes(bits: u32, at: u32, token: u32, channel: u32) -> vec2<f32> {
    let per_word = 32u / max(bits, 1u);
    let vector = token * (HEAD_DIM / 8u) + channel / 8u;
    let word = lane_word + at + vector / per_word * 8u + channel % 8u;
    let codes = vec2<u32>(arena[word], arena[word + 1u]) >> vec2<u32>(vector % per_word * bits);
    return vec2<f32>(codes & vec2<u32>((1u << bits) - 1u));
}
