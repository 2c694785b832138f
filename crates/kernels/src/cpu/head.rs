//! The last kernel of a forward: a row of logits becomes a row of the report.

use crate::step::{FORCED_AT, LOG_SUM_EXP_AT, ReportLayout, StepView, TOP, TOP_IDS_AT, TOP_LOGITS_AT};

/// Writes, for each of the head's rows, the log-sum-exp of its logits, the forced id's logit, and
/// the [`TOP`] best ids with their logits after the repetition penalty (`l > 0 ? l / p : l * p`),
/// best first, ties by id.
///
/// # Shapes
/// - logits: `[head_rows, vocab]`
/// - report: `[rows, stride]`
///
/// # Panics
/// If a slice is shorter than the step needs.
pub fn head(logits: &[f32], vocab: usize, step: StepView<'_>, layout: ReportLayout, report: &mut [f32]) {
    for i in 0..step.head_rows() {
        let row = step.head_first() + i;
        let logits = &logits[i * vocab..(i + 1) * vocab];
        let report = &mut report[row * layout.stride()..][..layout.stride()];
        let row = step.row(row);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        report[LOG_SUM_EXP_AT] = (f64::from(max) + sum.ln()) as f32;
        report[FORCED_AT] = row.forced.and_then(|id| logits.get(id as usize)).copied().unwrap_or(0.0);
        let mut ranked: Vec<(f32, u32)> = logits
            .iter()
            .zip(0..)
            .map(|(&l, id)| if row.penalty_ids.contains(&id) { (penalize(l, row.penalty), id) } else { (l, id) })
            .collect();
        ranked.sort_by(|a, b| (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1)));
        ranked.resize(vocab.max(TOP), (f32::NEG_INFINITY, u32::MAX));
        for (n, &(logit, id)) in ranked.iter().take(TOP).enumerate() {
            report[TOP_IDS_AT + n] = if id == u32::MAX { -1.0 } else { id as f32 };
            report[TOP_LOGITS_AT + n] = logit;
        }
    }
}

fn penalize(logit: f32, penalty: f32) -> f32 {
    if logit > 0.0 { logit / penalty } else { logit * penalty }
}
