//! The forward pass: tokens of a chunk in, a report for each row out.
//!
//! Everything that a forward writes lies in a [`Workspace`] that is allocated once, and everything that changes from one
//! forward to the next is in its step buffer, so that a step can be recorded and replayed.

use crate::config::Config;
use crate::device::Place;
use crate::store::Store;
use crate::weights::{Layer, Weights};
use burn::tensor::{Device, Tensor};
use kernels::step::{self, LaneStep, LayerHead, ReportLayout, RowStep, StepLayout, StepView, StepWriter};
use kernels::{
    AttendBuffers, AttendParams, AttendTables, Epilogue, FloatBuffer, Grid, HeadParams, LinearParams, Matrix,
    Recording, WordBuffer,
};
use policy::{Chunk, Positions};
use std::ops::Range;

/// Rows whose logits exist at the same time; more rows go through the head in turns.
const HEAD_ROWS: usize = 32;
/// A conversation of a few tokens is not worth a recording.
const STEPS_BEFORE_RECORDING: u32 = 2;

/// What one forward reads for one lane.
#[derive(Clone, Debug)]
pub struct LaneInput<'a> {
    /// Number of the lane.
    pub lane: usize,
    pub tokens: &'a [u32],
    /// Ids whose logits are wanted: of the token after each row, from row `forced_from` on.
    pub forced: &'a [u32],
    pub forced_from: usize,
    /// The views of the rows.
    pub chunk: Chunk,
    pub positions: Positions,
    pub sinks: u32,
    /// The tokens below this stream index that are no sinks are packed when the rows have been read.
    pub packs_to: u64,
    /// [`step::SOFTMAX_ONE`] and [`step::ZERO_SINKS`].
    pub flags: u32,
    /// Repetition penalty and the distinct ids that it applies to.
    pub penalty: f32,
    pub penalized: &'a [u32],
    /// Rows of the lane whose logits are wanted.
    pub head: Range<usize>,
}

/// The answer for one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowReport {
    /// Log-sum-exp of all logits, in nats.
    pub log_sum_exp: f32,
    /// The forced token's logit.
    pub forced: f32,
    /// The 64 best ids and their logits after the penalty, best first.
    pub candidates: Vec<(u32, f32)>,
    /// Attention on the sinks, `[layers * n_heads]`.
    pub sink_mass: Vec<f32>,
    /// Attention on the first four slots, `[layers * n_heads]`.
    pub first_mass: Vec<f32>,
    /// Attention of the layer and head that were asked for, on each key that the row sees: sinks, then recent tokens, oldest
    /// first. Of the last row of each lane.
    pub probs: Option<Vec<f32>>,
}

/// Buffers of a forward of up to `rows` rows.
#[derive(Debug)]
pub struct Workspace {
    rows: usize,
    /// The most keys that a row sees.
    slots: usize,
    layout: StepLayout,
    report_layout: ReportLayout,
    grid: Grid,
    words: Vec<u32>,
    step: WordBuffer,
    x: FloatBuffer,
    qkv: FloatBuffer,
    attended: FloatBuffer,
    hidden: FloatBuffer,
    logits: FloatBuffer,
    part: FloatBuffer,
    report: FloatBuffer,
    /// The launches of a step, once they have run often enough to be worth it.
    recording: Recorded,
}

/// A step that repeats is recorded when it comes again.
#[derive(Debug)]
enum Recorded {
    /// So many steps ran.
    NotYet(u32),
    Ready(Recording),
    /// The CPU, or a device that cannot.
    Never,
}

impl Workspace {
    /// Room for `rows` rows of `lanes` lanes whose caches have at most `slots` slots. `repeats`: most forwards launch the
    /// same, so that a recording is worth it.
    pub fn new(config: &Config, lanes: usize, rows: usize, slots: u64, repeats: bool, place: &Place) -> Self {
        let device = &place.device;
        let gpu = place.grid.is_some();
        let layout = StepLayout { lanes, rows, head_dim: config.heads.head_dim };
        let report_layout = ReportLayout { layers: config.layers, heads: config.heads.n_heads };
        let buffer = |cols: usize| FloatBuffer::zeros(rows * cols, device);
        Self {
            rows,
            slots: slots as usize,
            layout,
            report_layout,
            // The CPU does not look at it.
            grid: place.grid.unwrap_or(Grid::Software),
            words: vec![0; layout.words()],
            step: WordBuffer::zeros(layout.words(), device),
            x: buffer(config.d_model),
            qkv: buffer(config.heads.qkv_cols()),
            attended: buffer(config.heads.q_cols()),
            hidden: buffer(config.d_ff),
            logits: FloatBuffer::zeros(rows.min(HEAD_ROWS) * config.vocab, device),
            part: FloatBuffer::zeros(kernels::part_len(config.heads, layout, slots as usize, gpu), device),
            report: buffer(report_layout.stride()),
            recording: if gpu && repeats { Recorded::NotYet(0) } else { Recorded::Never },
        }
    }

    /// The most rows of a forward.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether steps are replayed.
    pub fn replays(&self) -> bool {
        matches!(self.recording, Recorded::Ready(_))
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let floats = [&self.x, &self.qkv, &self.attended, &self.hidden, &self.logits, &self.part, &self.report];
        4 * (floats.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + self.step.len() as u64)
    }

    /// Runs the rows of all lanes through the model and appends them to their caches. The reports are read with
    /// [`Self::report`], in the order of the rows, with the probs of the layer and head that are `asked` for.
    ///
    /// # Errors
    /// The device is lost.
    pub fn forward(
        &mut self,
        config: &Config,
        weights: &Weights,
        rope: &Tensor<1>,
        store: &mut Store,
        lanes: &[LaneInput<'_>],
        asked: Option<LayerHead>,
    ) -> Result<(), String> {
        let mut spans = head_spans(lanes).into_iter();
        let head = spans.next();
        self.write_step(config, store, lanes, head.clone().unwrap_or(0..0), asked);
        // A step without logits launches less than what is recorded.
        if head.is_none() || matches!(self.recording, Recorded::Never) {
            self.launch(config, weights, rope, store, head.is_some());
        } else {
            match &self.recording {
                Recorded::Ready(recording) => recording.replay()?,
                Recorded::NotYet(steps) if *steps < STEPS_BEFORE_RECORDING => {
                    self.recording = Recorded::NotYet(steps + 1);
                    self.launch(config, weights, rope, store, true);
                }
                _ => {
                    let step = self.step.alias();
                    let recording = kernels::record(&step, || self.launch(config, weights, rope, store, true));
                    self.recording = recording.map_or(Recorded::Never, Recorded::Ready);
                }
            }
        }
        let rows = lanes.iter().map(|lane| lane.tokens.len()).sum();
        for span in spans {
            StepWriter::reopen(self.layout, &mut self.words).global(rows, span.start, span.len());
            self.step.write(self.words[..step::GLOBAL_WORDS].to_vec());
            self.head(config, weights);
        }
        Ok(())
    }

    /// Asks for one more logit of rows of the last forward, `(row, id)`, rows in rising order; [`Self::report`] then has
    /// it as the forced one.
    pub fn look(&mut self, config: &Config, weights: &Weights, asked: &[(usize, u32)]) {
        let (Some((first, _)), Some((last, _))) = (asked.first(), asked.last()) else { return };
        let rows = self.words[0] as usize;
        for first in (*first..last + 1).step_by(HEAD_ROWS) {
            let mut writer = StepWriter::reopen(self.layout, &mut self.words);
            writer.global(rows, first, HEAD_ROWS.min(last + 1 - first));
            for (row, id) in asked {
                writer.force(*row, *id);
            }
            self.step.write(self.words[..self.layout.row_at(rows)].to_vec());
            self.head(config, weights);
        }
    }

    fn launch(&mut self, config: &Config, weights: &Weights, rope: &Tensor<1>, store: &mut Store, head: bool) {
        kernels::embed(&weights.embedding, &self.step, &mut self.x, self.layout);
        for (index, layer) in weights.layers.iter().enumerate() {
            self.layer(config, index, layer, rope, store);
        }
        if head {
            self.head(config, weights);
        }
    }

    fn layer(&mut self, config: &Config, index: usize, layer: &Layer, rope: &Tensor<1>, store: &mut Store) {
        let eps = Some(config.eps.to_bits());
        let norm = &layer.attention_norm;
        let params = self.linear(&layer.qkv, Epilogue::Store, eps);
        kernels::linear(&self.x, &layer.qkv, norm, &self.step, &mut self.qkv, params);
        let tables = AttendTables { rope, sink_logits: &layer.sink_logits };
        for (number, (format, slots)) in store.formats().collect::<Vec<_>>().into_iter().enumerate() {
            let attend = AttendParams {
                heads: config.heads,
                format,
                keys: slots as usize,
                slots: self.slots,
                store: number as u32,
                layer: index,
                step: self.layout,
                report: self.report_layout,
                grid: self.grid,
            };
            let to = AttendBuffers { part: &mut self.part, out: &mut self.attended, report: &mut self.report };
            kernels::attend(&self.qkv, store.arena(number, index), tables, &self.step, to, attend);
            kernels::append(&self.qkv, &self.step, store.arena_mut(number, index), attend);
        }
        let params = self.linear(&layer.attention_out, Epilogue::Add, None);
        kernels::linear(&self.attended, &layer.attention_out, norm, &self.step, &mut self.x, params);
        let norm = &layer.feed_forward_norm;
        let params = self.linear(&layer.gate_up, Epilogue::SiluGate, eps);
        kernels::linear(&self.x, &layer.gate_up, norm, &self.step, &mut self.hidden, params);
        let params = self.linear(&layer.down, Epilogue::Add, None);
        kernels::linear(&self.hidden, &layer.down, norm, &self.step, &mut self.x, params);
    }

    fn head(&mut self, config: &Config, weights: &Weights) {
        let rows = self.rows.min(HEAD_ROWS);
        let params = LinearParams {
            head: true,
            rows,
            ..self.linear(weights.head(), Epilogue::Store, Some(config.eps.to_bits()))
        };
        kernels::linear(&self.x, weights.head(), &weights.norm, &self.step, &mut self.logits, params);
        let params = HeadParams { vocab: config.vocab, rows, step: self.layout, report: self.report_layout };
        kernels::head(&mut self.logits, &self.step, &mut self.report, params);
    }

    fn linear(&self, matrix: &Matrix, epilogue: Epilogue, eps: Option<u32>) -> LinearParams {
        LinearParams {
            matrix: matrix.shape,
            epilogue,
            eps,
            head: false,
            step: self.layout,
            rows: self.rows,
            grid: self.grid,
        }
    }

    fn write_step(
        &mut self,
        config: &Config,
        store: &Store,
        lanes: &[LaneInput<'_>],
        head: Range<usize>,
        asked: Option<LayerHead>,
    ) {
        let mut writer = StepWriter::new(self.layout, &mut self.words);
        if let Some(asked) = asked {
            writer.ask(asked);
        }
        let mut row0 = 0;
        for input in lanes {
            let place = store.place(input.lane);
            // Stream indices live in 32 bits on the device; only differences of near ones are ever used.
            let lane = LaneStep {
                row0: row0 as u32,
                rows: input.tokens.len() as u32,
                start: input.chunk.start as u32,
                base: input.chunk.base as u32,
                sinks: input.sinks,
                recent: place.layout.recent as u32,
                at: place.at as u32,
                store: place.format as u32,
                flags: input.flags,
                packed: input.chunk.views.first().map_or(0, |view| view.packed) as u32,
                packs_to: input.packs_to as u32,
            };
            writer.lane(input.lane, &lane);
            for (row, (&token, view)) in input.tokens.iter().zip(&input.chunk.views).enumerate() {
                let rotation = config.rotation(input.positions.for_sinks(view));
                let (cos, sin) = rotation.split_at(config.heads.head_dim / 2);
                let forced = row.checked_sub(input.forced_from).and_then(|row| input.forced.get(row));
                let row_step = RowStep {
                    token,
                    forced: forced.copied(),
                    index: view.index as u32,
                    first: view.first as u32,
                    sinks_held: view.sinks,
                    held: view.held,
                    penalty: input.penalty,
                    penalty_ids: input.penalized,
                    cos,
                    sin,
                };
                writer.row(row0 + row, &row_step);
            }
            row0 += input.tokens.len();
        }
        writer.global(row0, head.start, head.len());
        // Rows that rest are not looked at.
        self.step.write(self.words[..self.layout.row_at(row0)].to_vec());
    }

    /// Reads the logits of all `rows` rows of the last forward, `[rows, vocab]`; none where there were more rows than the
    /// head takes in one turn, or not all of them were wanted.
    ///
    /// # Errors
    /// The device is lost.
    pub async fn logits(&self, vocab: usize, rows: usize) -> Result<Option<Vec<f32>>, String> {
        let [_, head_first, head_rows, ..] = self.words[..] else { return Ok(None) };
        if (head_first, head_rows) != (0, rows as u32) {
            return Ok(None);
        }
        let data = self.logits.read().into_data_async().await.map_err(|error| error.to_string())?;
        let mut values = data.try_to_vec::<f32>().map_err(|error| format!("{error:?}"))?;
        values.truncate(rows * vocab);
        Ok(Some(values))
    }

    /// Reads the reports of the first `rows` rows of the last forward: one small transfer, and one more for probs.
    ///
    /// # Errors
    /// The device is lost.
    pub async fn report(&self, rows: usize) -> Result<Vec<RowReport>, String> {
        let data = self.report.read().into_data_async().await.map_err(|error| error.to_string())?;
        let values = data.try_to_vec::<f32>().map_err(|error| format!("{error:?}"))?;
        let stride = self.report_layout.stride();
        let mut reports: Vec<RowReport> =
            values.chunks_exact(stride).take(rows).map(|row| self.read_row(row)).collect();
        let step = StepView::new(self.layout, &self.words);
        if step.asked().is_some() {
            let probs = self.part.read().narrow(0, 0, self.layout.lanes * self.slots);
            let data = probs.into_data_async().await.map_err(|error| error.to_string())?;
            let values = data.try_to_vec::<f32>().map_err(|error| format!("{error:?}"))?;
            for (number, probs) in values.chunks_exact(self.slots).enumerate() {
                let lane = step.lane(number);
                let Some(last) = (lane.row0 + lane.rows).checked_sub(1).filter(|_| lane.rows > 0) else { continue };
                if let Some(report) = reports.get_mut(last as usize) {
                    report.probs = Some(probs[..step.row(last as usize).held as usize].to_vec());
                }
            }
        }
        Ok(reports)
    }

    fn read_row(&self, row: &[f32]) -> RowReport {
        let ids = &row[step::TOP_IDS_AT..step::TOP_IDS_AT + step::TOP];
        let logits = &row[step::TOP_LOGITS_AT..step::TOP_LOGITS_AT + step::TOP];
        let mut candidates: Vec<(u32, f32)> =
            ids.iter().zip(logits).filter(|(id, _)| **id >= 0.0).map(|(id, logit)| (*id as u32, *logit)).collect();
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let masses = &row[step::MASSES_AT..];
        RowReport {
            log_sum_exp: row[step::LOG_SUM_EXP_AT],
            forced: row[step::FORCED_AT],
            candidates,
            sink_mass: masses.iter().step_by(2).copied().collect(),
            first_mass: masses.iter().skip(1).step_by(2).copied().collect(),
            probs: None,
        }
    }
}

/// The rows whose logits are wanted, in ranges of at most [`HEAD_ROWS`]. Where one range holds all of them, so be it: rows
/// in between cost less than another turn.
fn head_spans(lanes: &[LaneInput<'_>]) -> Vec<Range<usize>> {
    let mut wanted: Vec<Range<usize>> = Vec::new();
    let mut row0 = 0;
    for lane in lanes {
        let head = row0 + lane.head.start..row0 + lane.head.end;
        row0 += lane.tokens.len();
        match wanted.last_mut() {
            _ if head.is_empty() => {}
            Some(before) if before.end == head.start || head.end - before.start <= HEAD_ROWS => before.end = head.end,
            _ => wanted.push(head),
        }
    }
    let pieces = |range: Range<usize>| {
        range.clone().step_by(HEAD_ROWS).map(move |first| first..range.end.min(first + HEAD_ROWS))
    };
    wanted.into_iter().flat_map(pieces).collect()
}

/// Cosines and sines of positions `0..positions`, `[positions, head_dim]`.
pub fn rope_table(config: &Config, positions: u64, device: &Device) -> Tensor<1> {
    kernels::floats((0..positions).flat_map(|position| config.rotation(position)).collect(), device)
}
