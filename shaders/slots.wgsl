// Where attention finds K and V in a cache of slots that keeps both alike.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM. Needs step.wgsl and storage_*.wgsl; attend.wgsl has the buffers.

const SLOT: u32 = 2u * N_KV_HEADS * HEAD_DIM;
const SLOT_WORDS: u32 = SLOT / VALUES_PER_WORD;

// Where the token of a stream index lies: its slot, or IN_CHUNK | row of qkv.
fn place_of(lane: u32, index: u32) -> u32 {
    let start = lane_start(lane);
    if (index >= start) { return IN_CHUNK | (lane_row0(lane) + index - start); }
    let sinks = lane_sinks(lane);
    if (index < sinks) { return index; }
    return sinks + (index - sinks) % lane_recent(lane);
}

// Two neighbouring values of K (part 0) or V (part 1) at `channel` (even) of a KV head.
fn load_kv(place: u32, part_of: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    let offset = (part_of * N_KV_HEADS + kv_head) * HEAD_DIM + channel;
    if ((place & IN_CHUNK) != 0u) {
        let i = (place & ~IN_CHUNK) * QKV + N_HEADS * HEAD_DIM + offset;
        return stored(vec2<f32>(qkv[i], qkv[i + 1u]));
    }
    return load_stored(lane_word * VALUES_PER_WORD + place * SLOT + offset);
}

fn load_key(place: u32, kv_head: u32, channel: u32) -> vec2<f32> { return load_kv(place, 0u, kv_head, channel); }
fn load_value(place: u32, kv_head: u32, channel: u32) -> vec2<f32> { return load_kv(place, 1u, kv_head, channel); }
