// Where attention finds K and V in a cache of slots that keeps both alike.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM. Needs step.wgsl and storage_*.wgsl; attend.wgsl has the buffers.

const SLOT: u32 = 2u * N_KV_HEADS * HEAD_DIM;
const SLOT_WORDS: u32 = SLOT / VALUES_PER_WORD;

// Where the token of a stream index lies.
fn source_of(lane: u32, index: u32) -> u32 { return select(FROM_SLOT, FROM_CHUNK, index >= lane_start(lane)); }
// Its row of qkv, or its slot.
fn place_of(lane: u32, index: u32) -> u32 {
    let start = lane_start(lane);
    if (index >= start) { return lane_row0(lane) + index - start; }
    let sinks = lane_sinks(lane);
    if (index < sinks) { return index; }
    return sinks + (index - sinks) % lane_recent(lane);
}

fn load_key(source: u32, place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if (source == FROM_CHUNK) { return stored(qkv_pair(place, N_HEADS + kv_head, channel)); }
    return load_stored(lane_word * VALUES_PER_WORD + place * SLOT + kv_head * HEAD_DIM + channel);
}
fn load_value(source: u32, place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if (source == FROM_CHUNK) { return stored(qkv_pair(place, N_HEADS + N_KV_HEADS + kv_head, channel)); }
    return load_stored(lane_word * VALUES_PER_WORD + place * SLOT + (N_KV_HEADS + kv_head) * HEAD_DIM + channel);
}

fn add_stored_scores(kv_head: u32) { add_scores(FROM_SLOT, kv_head); }
// Of the keys `first_key` to `end_key` of the tile, at pairs of channels from `channel` on.
fn add_stored_values(kv_head: u32, channel: u32, first_key: u32, end_key: u32) {
    add_values(FROM_SLOT, kv_head, channel, first_key, end_key);
}
