// How attention reads a cache of parts.wgsl. `lane_groups_at` is the first word of the lane's groups.

fn load_key(place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if ((place & IN_CHUNK) != 0u) {
        let i = (place & ~IN_CHUNK) * QKV + (N_HEADS + kv_head) * HEAD_DIM + channel;
        return stored(K_FLOAT, vec2<f32>(qkv[i], qkv[i + 1u]));
    }
    if (PACKS == 1u && (place & IN_GROUP) != 0u) {
        let at = lane_groups_at + (place & ~IN_GROUP) / PACK_GROUP * GROUP_WORDS + kv_head * K_GROUP_WORDS;
        let token = (place & ~IN_GROUP) % PACK_GROUP;
        if (K_BITS == 0u) { return load_floats(K_FLOAT, at + token * K_WORDS, channel); }
        let p = lane_word + at + K_CODE_WORDS + channel;
        let first = unpack2x16float(arena[p]);
        let second = unpack2x16float(arena[p + 1u]);
        return fma(load_codes(K_BITS, at, token, channel), vec2<f32>(first.x, second.x), vec2<f32>(first.y, second.y));
    }
    return load_floats(K_FLOAT, place + kv_head * K_WORDS, channel);
}

fn load_value(place: u32, kv_head: u32, channel: u32) -> vec2<f32> {
    if ((place & IN_CHUNK) != 0u) {
        let i = (place & ~IN_CHUNK) * QKV + (N_HEADS + N_KV_HEADS + kv_head) * HEAD_DIM + channel;
        return stored(V_FLOAT, vec2<f32>(qkv[i], qkv[i + 1u]));
    }
    if (PACKS == 1u && (place & IN_GROUP) != 0u) {
        let at = lane_groups_at + (place & ~IN_GROUP) / PACK_GROUP * GROUP_WORDS + N_KV_HEADS * K_GROUP_WORDS
            + kv_head * V_GROUP_WORDS;
        let token = (place & ~IN_GROUP) % PACK_GROUP;
        if (V_BITS == 0u) { return load_floats(V_FLOAT, at + token * V_WORDS, channel); }
        let p = unpack2x16float(arena[lane_word + at + V_CODE_WORDS + channel / PACK_GROUP * PACK_GROUP + token]);
        return fma(load_codes(V_BITS, at, token, channel), vec2<f32>(p.x), vec2<f32>(p.y));
    }
    return load_floats(V_FLOAT, place + N_KV_HEADS * K_WORDS + kv_head * V_WORDS, channel);
}
