//! Times the CPU kernels on the shapes of SmolLM2-135M: `cargo run --release -p kernels --example bench_cpu`.
//!
//! A table for people, one JSON line last. Milliseconds are those of a whole token (30 layers and the head): the sums of
//! each kernel's least time, so that a machine that does other work too gives usable numbers. The weights are larger than
//! most caches, and each pass reads all. `RAYON_NUM_THREADS` sets the threads; a word after `--` leaves only what has it in
//! its name: weights, best, attention, int4.

use kernels::cpu::{Attend, Attended, Epilogue, Heads, Norm, append, attend, head, linear};
use kernels::packed::{Codec, Packed};
use kernels::step::{LaneStep, ReportLayout, RowStep, StepLayout, StepView, StepWriter};
use kernels::{CacheFormat, NO_SINK_LOGIT, Storage};
use std::hint::black_box;
use std::time::Instant;

const LAYERS: usize = 30;
const VOCAB: usize = 49_152;
const D_MODEL: usize = 576;
const D_HIDDEN: usize = 1536;
const HEADS: Heads = Heads { n_heads: 9, n_kv_heads: 3, head_dim: 64 };

struct Matrix {
    codec: Codec,
    rows: usize,
    cols: usize,
    words: Vec<u32>,
    scales: Vec<u32>,
}

impl Matrix {
    fn random(codec: Codec, rows: usize, cols: usize) -> Self {
        let mut state = 1u32;
        let mut words = vec![0; codec.words(rows, cols)];
        for word in &mut words {
            state = state.wrapping_mul(0x915F_77F5).wrapping_add(1);
            *word = state ^ state >> 16;
        }
        // d = 0.01 and m = -0.08 as halves for Q4; two scales of 0.0005 for Q8.
        let scale = if codec == Codec::Q4 { 0xAD1F_211F } else { 0x1019_1019 };
        Matrix { codec, rows, cols, words, scales: vec![scale; codec.scale_words(rows, cols)] }
    }

    fn packed(&self) -> Packed<'_> {
        Packed::new(self.codec, self.rows, self.cols, &self.words, &self.scales).expect("the shapes are right")
    }
}

/// The least milliseconds of several runs.
fn best(runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    let time = |_| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

struct Weights {
    layers: Vec<[Matrix; 4]>,
    head: Matrix,
}

/// All matrices of a forward of `rows` rows; milliseconds of the layers and of the head.
fn time_weights(weights: &Weights, rows: usize, runs: usize) -> (f64, f64) {
    let gain = vec![1.0; D_MODEL];
    let norm = Some(Norm { gain: &gain, eps: 1e-5 });
    let x: Vec<f32> = (0..rows * D_MODEL).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut residual = x.clone();
    let mut qkv = vec![0.0; rows * HEADS.qkv_cols()];
    let mut hidden = vec![0.0; rows * D_HIDDEN];
    let mut least = [f64::INFINITY; 4];
    for _ in 0..=runs {
        residual.copy_from_slice(&x);
        for [wqkv, wo, gate_up, down] in &weights.layers {
            let mut time = |kernel: usize, f: &mut dyn FnMut()| {
                let start = Instant::now();
                f();
                least[kernel] = least[kernel].min(start.elapsed().as_secs_f64() * 1e3);
            };
            time(0, &mut || linear(&residual, rows, norm, &wqkv.packed(), &mut qkv, Epilogue::Store));
            time(1, &mut || linear(&x, rows, None, &wo.packed(), &mut residual, Epilogue::Add));
            time(2, &mut || linear(&residual, rows, norm, &gate_up.packed(), &mut hidden, Epilogue::SiluGate));
            time(3, &mut || linear(&hidden, rows, None, &down.packed(), &mut residual, Epilogue::Add));
        }
    }
    let layers = least.iter().sum::<f64>() * LAYERS as f64;
    let mut logits = vec![0.0; rows * VOCAB];
    let logits_ms = best(runs, || linear(&x, rows, norm, &weights.head.packed(), &mut logits, Epilogue::Store));
    black_box(&logits);
    (layers, logits_ms)
}

/// Attention and append of `rows` rows after `older` tokens, all layers.
fn time_attention(storage: Storage, older: usize, rows: usize, runs: usize) -> f64 {
    let format = CacheFormat::of(storage);
    let (sinks, recent) = (4, (older + rows) as u32);
    let layout = StepLayout { lanes: 1, rows, head_dim: HEADS.head_dim };
    let mut words = vec![0; layout.words()];
    let mut writer = StepWriter::new(layout, &mut words);
    writer.global(rows, 0, 0);
    let start = older as u32;
    let packed = if format.packs() { sinks + (start - sinks) / 32 * 32 } else { 0 };
    let lane = LaneStep { rows: rows as u32, start, base: sinks, sinks, recent, packed, ..LaneStep::default() };
    writer.lane(0, &lane);
    let half = [0.5; 32];
    for row in 0..rows {
        let index = start + row as u32;
        writer.row(
            row,
            &RowStep {
                token: 0,
                forced: None,
                index,
                first: 0,
                sinks_held: sinks.min(index + 1),
                held: index + 1,
                penalty: 1.0,
                penalty_ids: &[],
                cos: &half,
                sin: &half,
            },
        );
    }
    let step = StepView::new(layout, &words);
    let rope: Vec<f32> = (0..(older + rows + 1) * HEADS.head_dim).map(|i| (i as f32).cos()).collect();
    let qkv: Vec<f32> = (0..rows * HEADS.qkv_cols()).map(|i| (i as f32 * 0.3).sin()).collect();
    let mut drawn = 0.0f32;
    let mut draw = || {
        drawn += 1.0;
        (drawn * 0.7).sin()
    };
    let layout = format.layout(HEADS, sinks as usize, recent as usize);
    let mut arenas = vec![layout.random(&mut draw); LAYERS];
    let report_layout = ReportLayout { layers: LAYERS, heads: HEADS.n_heads };
    let mut report = vec![0.0; rows * report_layout.stride()];
    let mut out = vec![0.0; rows * HEADS.q_cols()];
    let mut probs = vec![0.0; older + rows];
    let mut least = f64::INFINITY;
    for _ in 0..=runs {
        for (layer, arena) in arenas.iter_mut().enumerate() {
            let attention = Attend {
                heads: HEADS,
                format,
                rope: &rope,
                step,
                store: 0,
                sink_logits: &[NO_SINK_LOGIT; HEADS.n_heads],
                layer,
                report: report_layout,
                slots: older + rows,
            };
            let to = Attended { out: &mut out, report: &mut report, probs: &mut probs };
            let start = Instant::now();
            attend(&attention, &qkv, arena, to);
            append(HEADS, format, step, 0, &qkv, arena);
            least = least.min(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    least * LAYERS as f64
}

fn time_head(rows: usize, runs: usize) -> f64 {
    let layout = StepLayout { lanes: 1, rows, head_dim: HEADS.head_dim };
    let mut words = vec![0; layout.words()];
    StepWriter::new(layout, &mut words).global(rows, 0, rows);
    let logits: Vec<f32> = (0..rows * VOCAB).map(|i| (i as f32 * 0.77).sin() * 10.0).collect();
    let report_layout = ReportLayout { layers: LAYERS, heads: HEADS.n_heads };
    let mut report = vec![0.0; rows * report_layout.stride()];
    best(runs, || head(&logits, VOCAB, StepView::new(layout, &words), report_layout, &mut report))
}

fn main() {
    let layer = |_| {
        [
            Matrix::random(Codec::Q4, HEADS.qkv_cols(), D_MODEL),
            Matrix::random(Codec::Q4, D_MODEL, D_MODEL),
            Matrix::random(Codec::Q4, 2 * D_HIDDEN, D_MODEL),
            Matrix::random(Codec::Q4, D_MODEL, D_HIDDEN),
        ]
    };
    let weights = Weights { layers: (0..LAYERS).map(layer).collect(), head: Matrix::random(Codec::Q8, VOCAB, D_MODEL) };
    let mut json = Vec::new();
    let mut show = |name: &str, rows: usize, ms: f64| {
        let a_row = ms / rows as f64;
        println!("{name:<28} {rows:>4} rows {ms:>9.3} ms {a_row:>8.3} ms a row");
        json.push(format!("\"{name}, {rows} rows\": {a_row:.4}"));
    };
    let only = std::env::args().nth(1).unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    for (rows, runs) in
        [(1, 40), (2, 20), (3, 20), (4, 20), (32, 4), (256, 3)].into_iter().filter(|_| wanted("weights"))
    {
        let (layers, logits) = time_weights(&weights, rows, runs);
        show("weights of the layers", rows, layers);
        show("weights of the head", rows, logits);
    }
    for (rows, runs) in [(1, 60), (256, 3)].into_iter().filter(|_| wanted("log-sum-exp and best ids")) {
        show("log-sum-exp and best ids", rows, time_head(rows, runs));
    }
    let attention = [(255, 1, 60), (1023, 1, 60), (8191, 1, 10), (256, 32, 10), (256, 256, 3)];
    for (older, rows, runs) in attention {
        for storage in Storage::ALL.into_iter().filter(|storage| *storage != Storage::BF16) {
            let name = format!("attention {storage} after {older}");
            if wanted(&name) {
                show(&name, rows, time_attention(storage, older, rows, runs));
            }
        }
    }
    println!("{{{}}}", json.join(", "));
}
