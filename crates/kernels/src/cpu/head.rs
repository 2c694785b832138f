//! The last kernel of a forward: a row of logits becomes a row of the report.

use super::simd::{self, Kernel, Simd, dispatch};
use super::threads::{self, Disjoint};
use crate::step::{
    FORCED_AT, LOG_SUM_EXP_AT, MASSES_AT, MAX_PENALTIES, ReportLayout, StepView, TOP, TOP_IDS_AT, TOP_LOGITS_AT,
};

/// Writes, for each of the head's rows, the log-sum-exp of its logits, the forced id's logit, and the [`TOP`] best ids
/// with their logits after the repetition penalty (`l > 0 ? l / p : l * p`), best first, ties by id.
///
/// # Shapes
/// - logits: `[head_rows, vocab]`
/// - report: `[rows, stride]`
///
/// # Panics
/// If a slice is shorter than the step needs.
pub fn head(logits: &[f32], vocab: usize, step: StepView<'_>, layout: ReportLayout, report: &mut [f32]) {
    let report = Disjoint::new(report);
    threads::run(step.head_rows(), |i| {
        let row = step.head_first() + i;
        // SAFETY: parts have different rows.
        let report = unsafe { report.range(row * layout.stride()..row * layout.stride() + MASSES_AT) };
        dispatch(Row { logits: &logits[i * vocab..(i + 1) * vocab], step, row, report });
    });
}

/// As many best logits before the penalty as hold the [`TOP`] best after it, whatever ids are penalized.
const KEPT: usize = TOP + MAX_PENALTIES;

struct Row<'a> {
    logits: &'a [f32],
    step: StepView<'a>,
    row: usize,
    report: &'a mut [f32],
}

impl Kernel for Row<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let row = self.step.row(self.row);
        self.report[LOG_SUM_EXP_AT] = log_sum_exp(s, self.logits);
        let logit = |id: u32| self.logits.get(id as usize).copied();
        self.report[FORCED_AT] = row.forced.and_then(logit).unwrap_or(0.0);
        let mut ranked = best(s, self.logits);
        ranked.retain(|(_, id)| !row.penalty_ids.contains(id));
        for &id in row.penalty_ids {
            if let Some(logit) = logit(id) {
                ranked.push((if logit > 0.0 { logit / row.penalty } else { logit * row.penalty }, id));
            }
        }
        ranked.sort_unstable_by(better);
        let (ids, logits) = self.report[TOP_IDS_AT..].split_at_mut(TOP_LOGITS_AT - TOP_IDS_AT);
        for n in 0..TOP {
            let (logit, id) = ranked.get(n).map_or((f32::NEG_INFINITY, -1.0), |&(logit, id)| (logit, id as f32));
            (ids[n], logits[n]) = (id, logit);
        }
    }
}

/// The better logit first, then the smaller id.
fn better(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    // Adding 0 makes -0 equal to 0.
    (b.0 + 0.0).total_cmp(&(a.0 + 0.0)).then(a.1.cmp(&b.1))
}

#[inline(always)]
fn log_sum_exp<S: Simd>(s: S, logits: &[f32]) -> f32 {
    let (eights, rest) = logits.as_chunks::<8>();
    let mut greatest = s.splat(f32::NEG_INFINITY);
    for x in eights {
        greatest = s.max(s.load(x), greatest);
    }
    let greatest = rest.iter().fold(s.greatest(greatest), |a, &b| a.max(b));
    let mut total = 0.0;
    for eights in eights.chunks(32) {
        let mut sum = s.splat(0.0);
        for x in eights {
            sum = s.add(sum, simd::exp(s, s.sub(s.load(x), s.splat(greatest))));
        }
        total += f64::from(simd::sum(s, sum));
    }
    total += rest.iter().map(|&x| f64::from(x - greatest).exp()).sum::<f64>();
    (f64::from(greatest) + total.ln()) as f32
}

/// The [`KEPT`] best logits (all, where there are fewer), unsorted.
#[inline(always)]
fn best<S: Simd>(s: S, logits: &[f32]) -> Vec<(f32, u32)> {
    const ROOM: usize = 8 * KEPT;
    let mut kept: Vec<(f32, u32)> = Vec::with_capacity(ROOM + 64);
    let mut threshold = f32::NEG_INFINITY;
    // Ids ascend, so a logit that equals the threshold comes too late.
    for (n, chunk) in logits.chunks(64).enumerate() {
        let mut any = kept.len() < KEPT;
        for x in chunk.as_chunks::<8>().0 {
            any |= s.any_greater(s.load(x), s.splat(threshold));
        }
        if !any && chunk.len() == 64 {
            continue;
        }
        for (i, &logit) in chunk.iter().enumerate() {
            if logit > threshold || kept.len() < KEPT {
                kept.push((logit, (64 * n + i) as u32));
            }
        }
        if kept.len() >= ROOM {
            kept.select_nth_unstable_by(KEPT - 1, better);
            kept.truncate(KEPT);
            threshold = kept[KEPT - 1].0;
        }
    }
    if kept.len() > KEPT {
        kept.select_nth_unstable_by(KEPT - 1, better);
        kept.truncate(KEPT);
    }
    kept
}
