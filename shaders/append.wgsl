// Writes the chunk's K and V into the cache, K un-rotated: a sink into its slot, a recent token into the ring. Of a chunk
// that is longer than the ring only the last tokens are written, so that no slot is written twice.
// Preamble: N_HEADS, N_KV_HEADS, HEAD_DIM, LANES, ROWS. Needs step.wgsl and put_*.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;   // (rows, (n_heads + 2 n_kv_heads) * head_dim)
@group(0) @binding(1) var<storage, read_write> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<u32>; // of each lane (slots, K and V, n_kv_heads, head_dim) values
@group(0) @binding(3) var<uniform> info: vec4<u32>;               // store

const SLOT: u32 = 2u * N_KV_HEADS * HEAD_DIM;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let pair = id.x;
    let row = id.y;
    let lane = lane_of(row, info.x);
    if (lane == LANES || pair >= SLOT / 2u) { return; }
    let sinks = lane_sinks(lane);
    let recent = lane_recent(lane);
    let index = lane_start(lane) + row - lane_row0(lane);
    let end = lane_start(lane) + lane_rows(lane);
    var slot = index;
    if (index >= sinks) {
        if (end - index > recent) { return; }
        slot = sinks + (index - sinks) % recent;
    }
    let at = row * (N_HEADS + 2u * N_KV_HEADS) * HEAD_DIM + N_HEADS * HEAD_DIM + 2u * pair;
    put(lane_first_word(lane) * VALUES_PER_WORD + slot * SLOT + 2u * pair, vec2<f32>(qkv[at], qkv[at + 1u]));
}
