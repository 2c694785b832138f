//! Attention over sinks, ring and the chunk itself, with RoPE applied on read.

use super::append::{encode, slot_of};
use super::{Heads, Storage};
use crate::packed::halves;
use crate::step::{FIRST_KEYS, ReportLayout, StepView};

/// What an attention is over.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// The layer's heads.
    pub heads: Heads,
    /// How the arena keeps keys and values.
    pub storage: Storage,
    /// `[positions, head_dim]`: for each position cosines, then sines, `head_dim / 2` of each.
    /// Channel `i` turns with channel `i + head_dim / 2`.
    pub rope: &'a [f32],
    /// The step.
    pub step: StepView<'a>,
    /// The lane whose rows attend.
    pub lane: usize,
    /// The layer, for the report.
    pub layer: usize,
    /// The report's layout.
    pub report: ReportLayout,
}

/// Attention of a lane's rows. Keys older than the lane's first row come from the arena as it was
/// before the chunk; the chunk's own are rounded to storage precision first. The report's two
/// masses of each row and head of this layer are written.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: `[sinks + recent, slot_words]`, of this lane and layer
/// - out: `[rows, q_cols]`, of all lanes
/// - report: `[rows, stride]`, of all lanes
///
/// # Panics
/// If a slice is shorter than the step needs, or a recent key's angle is outside `rope`.
pub fn attend(a: &Attend<'_>, qkv: &[f32], arena: &[u32], out: &mut [f32], report: &mut [f32]) {
    let Heads { n_heads, n_kv_heads, head_dim } = a.heads;
    let lane = a.step.lane(a.lane);
    let slot_words = a.storage.slot_words(a.heads);
    let mut fresh = vec![0; slot_words];
    for local in 0..lane.rows {
        let row = (lane.row0 + local) as usize;
        let query = a.step.row(row);
        let sinks = query.sinks_held;
        let keys: Vec<u32> = (0..sinks).chain(query.first.max(lane.sinks)..query.index + 1).collect();
        let mut slots = Vec::new();
        for &index in &keys {
            let mut values = vec![0.0; 2 * a.heads.kv_cols()];
            let words = if index >= lane.start {
                let from = (lane.row0 + index - lane.start) as usize * a.heads.qkv_cols() + a.heads.q_cols();
                encode(a.storage, &qkv[from..from + values.len()], &mut fresh);
                &fresh[..]
            } else {
                let slot = slot_of(&lane, index).unwrap_or(0);
                &arena[slot * slot_words..][..slot_words]
            };
            match a.storage {
                Storage::F32 => values.copy_from_slice(bytemuck::cast_slice(words)),
                Storage::F16 => {
                    for (pair, word) in values.chunks_exact_mut(2).zip(words) {
                        (pair[0], pair[1]) = halves(*word);
                    }
                }
            }
            slots.push(values);
        }
        for head in 0..n_heads {
            let kv = head / (n_heads / n_kv_heads) * head_dim;
            let q = &qkv[row * a.heads.qkv_cols() + head * head_dim..][..head_dim];
            let at = |position: u32| a.rope[position as usize * head_dim..][..head_dim].split_at(head_dim / 2);
            let sink_q = rotate(q, (query.cos, query.sin));
            let recent_q =
                if query.index >= lane.sinks { rotate(q, at(query.index - lane.base)) } else { vec![0.0; head_dim] };
            let scores: Vec<f64> = keys
                .iter()
                .zip(&slots)
                .enumerate()
                .map(|(n, (&index, values))| {
                    let (position, q) =
                        if n < sinks as usize { (index, &sink_q) } else { (index - lane.base, &recent_q) };
                    let k = rotate(&values[kv..kv + head_dim], at(position));
                    let dot: f64 = q.iter().zip(&k).map(|(q, k)| f64::from(q * k)).sum();
                    dot / (head_dim as f64).sqrt()
                })
                .collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let probs: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = probs.iter().sum();
            let out = &mut out[row * a.heads.q_cols() + head * head_dim..][..head_dim];
            for (i, out) in out.iter_mut().enumerate() {
                let values = slots.iter().map(|v| f64::from(v[a.heads.kv_cols() + kv + i]));
                *out = (values.zip(&probs).map(|(v, p)| v * p).sum::<f64>() / sum) as f32;
            }
            let mass = |n: usize| (probs.iter().take(n).sum::<f64>() / sum) as f32;
            let at = row * a.report.stride() + a.report.mass_at(a.layer, head);
            report[at] = mass(sinks as usize);
            report[at + 1] = mass(FIRST_KEYS);
        }
    }
}

fn rotate(x: &[f32], (cos, sin): (&[f32], &[f32])) -> Vec<f32> {
    let half = x.len() / 2;
    let mut out = vec![0.0; x.len()];
    for i in 0..half {
        out[i] = x[i] * cos[i] - x[i + half] * sin[i];
        out[i + half] = x[i] * sin[i] + x[i + half] * cos[i];
    }
    out
}
