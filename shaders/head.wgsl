// Of one row of logits: the log-sum-exp of all, the forced token's logit, and the 64 best after the repetition penalty,
// in no particular order (the host sorts them). The 64th best is found by radix selection, eight bits a pass, on keys
// that sort as the floats do. One workgroup a row.
// Preamble: VOCAB, REPORT, LANES, ROWS, HEAD_DIM. Needs step.wgsl.

@group(0) @binding(0) var<storage, read_write> logits: array<f32>; // (head rows, vocab)
@group(0) @binding(1) var<storage, read_write> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> report: array<f32>; // (rows, REPORT): lse, forced, 64 ids, 64 logits, ..

const THREADS: u32 = 256u;
const BEST: u32 = 64u;

var<workgroup> largest: array<f32, THREADS>;
var<workgroup> sums: array<f32, THREADS>;
var<workgroup> histogram: array<atomic<u32>, 256>;
var<workgroup> chosen: u32;        // the key's bits found so far
var<workgroup> wanted: u32;        // how many are still wanted at or below them
var<workgroup> taken: atomic<u32>;

fn key(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let live = group.x < step_head_rows();
    let row = step_head_first() + select(0u, group.x, live);
    let logits_at = select(0u, group.x, live) * VOCAB;
    let report_at = row * REPORT;
    let size = select(0u, VOCAB, live);

    // log-sum-exp
    var top = -3.0e38;
    for (var i = thread; i < size; i += THREADS) { top = max(top, logits[logits_at + i]); }
    largest[thread] = top;
    for (var width = THREADS / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (thread < width) { largest[thread] = max(largest[thread], largest[thread + width]); }
    }
    workgroupBarrier();
    top = largest[0];
    var sum = 0.0;
    for (var i = thread; i < size; i += THREADS) { sum += exp(logits[logits_at + i] - top); }
    sums[thread] = sum;
    for (var width = THREADS / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (thread < width) { sums[thread] += sums[thread + width]; }
    }
    if (thread == 0u && live) {
        report[report_at] = top + log(sums[0]);
        let forced = row_forced(row);
        report[report_at + 1u] = 0.0;
        if (forced < VOCAB) { report[report_at + 1u] = logits[logits_at + forced]; }
        chosen = 0u;
        wanted = min(BEST, VOCAB);
        atomicStore(&taken, 0u);
    }
    if (live && thread < BEST) {
        report[report_at + 2u + thread] = -1.0;
        report[report_at + 2u + BEST + thread] = -3.0e38;
    }
    // The forced logit is read before the penalty changes it.
    storageBarrier();
    workgroupBarrier();
    if (live) {
        let penalty = row_penalty(row);
        for (var i = thread; i < row_penalized(row); i += THREADS) {
            let at = logits_at + row_penalized_id(row, i);
            let v = logits[at];
            logits[at] = select(v * penalty, v / penalty, v > 0.0);
        }
    }
    storageBarrier();
    workgroupBarrier();

    for (var shift = 24u; ; shift -= 8u) {
        atomicStore(&histogram[thread], 0u);
        let prefix = chosen;
        workgroupBarrier();
        for (var i = thread; i < size; i += THREADS) {
            let k = key(logits[logits_at + i]);
            // Shifting by 32 is not defined, hence in two steps.
            if (((k ^ prefix) >> shift) >> 8u == 0u) { atomicAdd(&histogram[(k >> shift) & 255u], 1u); }
        }
        workgroupBarrier();
        if (thread == 0u) {
            var left = wanted;
            var bin = 255u;
            while (bin > 0u && atomicLoad(&histogram[bin]) < left) {
                left -= atomicLoad(&histogram[bin]);
                bin -= 1u;
            }
            wanted = left;
            chosen = prefix | (bin << shift);
        }
        workgroupBarrier();
        if (shift == 0u) { break; }
    }
    let threshold = chosen;
    for (var i = thread; i < size; i += THREADS) {
        let v = logits[logits_at + i];
        if (key(v) > threshold) { take(report_at, i, v); }
    }
    // Of those equal to the 64th best the lowest ids count: almost always there is just the one.
    if (thread == 0u && live) {
        var left = wanted;
        if (atomicLoad(&histogram[threshold & 255u]) == 1u) { left = 0u; }
        for (var i = 0u; i < size && left > 0u; i++) {
            let v = logits[logits_at + i];
            if (key(v) == threshold) {
                take(report_at, i, v);
                left -= 1u;
            }
        }
    }
    if (atomicLoad(&histogram[threshold & 255u]) == 1u) {
        for (var i = thread; i < size; i += THREADS) {
            let v = logits[logits_at + i];
            if (key(v) == threshold) { take(report_at, i, v); }
        }
    }
}

fn take(report_at: u32, id: u32, v: f32) {
    let at = atomicAdd(&taken, 1u);
    report[report_at + 2u + at] = f32(id);
    report[report_at + 2u + BEST + at] = v;
}
