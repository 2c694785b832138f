// Adds up the shares of SLOTS threads in workgroup memory; slot 0 gets the sums.

var<workgroup> shared_acc: array<vec4<f32>, SUMS * UNITS * SLOTS>;
var<workgroup> shared_ss: array<f32, TOKENS * UNITS * SLOTS>;

fn combine(sums: ptr<function, Sums>, unit: u32, slot: u32) {
    let mine = slot * UNITS + unit;
    for (var i = 0u; i < SUMS; i++) { shared_acc[i * UNITS * SLOTS + mine] = (*sums).acc[i]; }
    for (var t = 0u; t < TOKENS; t++) { shared_ss[t * UNITS * SLOTS + mine] = (*sums).ss[t]; }
    for (var width = SLOTS / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (slot < width) {
            let other = mine + width * UNITS;
            for (var i = 0u; i < SUMS; i++) {
                shared_acc[i * UNITS * SLOTS + mine] += shared_acc[i * UNITS * SLOTS + other];
            }
            for (var t = 0u; t < TOKENS; t++) {
                shared_ss[t * UNITS * SLOTS + mine] += shared_ss[t * UNITS * SLOTS + other];
            }
        }
    }
    if (slot == 0u) {
        for (var i = 0u; i < SUMS; i++) { (*sums).acc[i] = shared_acc[i * UNITS * SLOTS + mine]; }
        for (var t = 0u; t < TOKENS; t++) { (*sums).ss[t] = shared_ss[t * UNITS * SLOTS + mine]; }
    }
}
