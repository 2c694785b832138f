//! Times of single kernels on the GPU, at the shapes of SmolLM2-135M:
//! `cargo run --release -p kernels --example bench_gpu [-- ROWS]`

use burn::tensor::Device;
use kernels::packed::Codec;
use kernels::step::{LaneStep, ReportLayout, RowStep, StepLayout, StepWriter};
use kernels::{
    AttendBuffers, AttendParams, AttendTables, CacheFormat, Epilogue, FloatBuffer, Grid, HeadParams, Heads,
    LinearParams, Matrix, MatrixShape, Storage, WordBuffer,
};
use std::time::Instant;

const REPEATS: u32 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: usize = std::env::args().nth(1).map_or(Ok(1), |rows| rows.parse())?;
    let device = Device::wgpu_options().init()?;
    let heads = Heads { n_heads: 9, n_kv_heads: 3, head_dim: 64 };
    let layout = StepLayout { lanes: 1, rows, head_dim: 64 };
    let report = ReportLayout { layers: 1, heads: 9 };
    let step = step_of(layout, &device, 256, CacheFormat::of(Storage::F16));
    let gain = kernels::floats(vec![1.0; 1536], &device);
    let mut total = 0.0;
    println!("{rows} rows; ms a launch, and for all layers");
    for grid in [Grid::Software, Grid::Gpu] {
        println!("{grid:?}");
        for (name, matrix_rows, cols, codec, epilogue, eps, head) in [
            ("qkv", 960, 576, Codec::Q4, Epilogue::Store, true, false),
            ("attention out", 576, 576, Codec::Q4, Epilogue::Add, false, false),
            ("gate, up", 3072, 576, Codec::Q4, Epilogue::SiluGate, true, false),
            ("down", 576, 1536, Codec::Q4, Epilogue::Add, false, false),
            ("head", 49_152, 576, Codec::Q8, Epilogue::Store, true, true),
        ] {
            let shape = MatrixShape { codec, rows: matrix_rows, cols };
            let matrix = Matrix {
                words: kernels::words(vec![0x1234_5678; codec.words(matrix_rows, cols)], &device),
                scales: kernels::words(vec![0x1000_1000; codec.scale_words(matrix_rows, cols)], &device),
                shape,
            };
            let head_rows = if head { rows.min(32) } else { rows };
            let x = FloatBuffer::zeros(rows * cols, &device);
            let mut out = FloatBuffer::zeros(head_rows * matrix_rows, &device);
            let eps = eps.then_some(1e-5f32.to_bits());
            let params = LinearParams { matrix: shape, epilogue, eps, head, step: layout, rows: head_rows, grid };
            let ms = time(&device, || kernels::linear(&x, &matrix, &gain, &step, &mut out, params));
            let count = if head { rows.div_ceil(32) } else { 30 };
            total += ms * count as f64;
            println!("{name:<16} {ms:>9.3} {:>9.1}", ms * count as f64);
        }
    }
    let storages = [Storage::F32, Storage::F16, Storage::INT8, Storage::INT4, Storage::INT2];
    for (keys, storage, grid) in [256, 1024, 8192].into_iter().flat_map(|keys| {
        [Grid::Software, Grid::Gpu].into_iter().flat_map(move |grid| storages.map(|storage| (keys, storage, grid)))
    }) {
        let format = CacheFormat::of(storage);
        let step = step_of(layout, &device, keys, format);
        let params = AttendParams { heads, format, keys, slots: keys, store: 0, layer: 0, step: layout, report, grid };
        let qkv = FloatBuffer::zeros(rows * heads.qkv_cols(), &device);
        let mut arena = WordBuffer::zeros(format.layout(heads, 4, keys - 4).words(), &device);
        let rope = kernels::floats(vec![0.5; (keys + rows) * 64], &device);
        let sink_logits = kernels::floats(vec![kernels::NO_SINK_LOGIT; heads.n_heads], &device);
        let mut part = FloatBuffer::zeros(kernels::part_len(heads, layout, keys, true), &device);
        let mut out = FloatBuffer::zeros(rows * heads.q_cols(), &device);
        let mut masses = FloatBuffer::zeros(rows * report.stride(), &device);
        let ms = time(&device, || {
            let to = AttendBuffers { part: &mut part, out: &mut out, report: &mut masses };
            kernels::attend(&qkv, &arena, AttendTables { rope: &rope, sink_logits: &sink_logits }, &step, to, params);
        });
        println!("attend {:<4} {keys:<4} {:<8} {ms:>9.3} {:>9.1}", storage.to_string(), format!("{grid:?}"), ms * 30.0);
        if grid == Grid::Gpu {
            let ms = time(&device, || kernels::append(&qkv, &step, &mut arena, params));
            println!("append {:<4} {keys:<13} {ms:>9.3} {:>9.1}", storage.to_string(), ms * 30.0);
        }
    }
    let head_rows = rows.min(32);
    let params = HeadParams { vocab: 49_152, rows: head_rows, step: layout, report };
    let mut logits = FloatBuffer::zeros(head_rows * 49_152, &device);
    let mut masses = FloatBuffer::zeros(rows * report.stride(), &device);
    let ms = time(&device, || kernels::head(&mut logits, &step, &mut masses, params));
    println!("best of logits   {ms:>9.3}");
    println!("linear layers of both grids: {total:.1} ms");
    Ok(())
}

/// A step far into a stream, of a cache of `keys` tokens that is full; nothing is packed in it.
fn step_of(layout: StepLayout, device: &Device, keys: usize, format: CacheFormat) -> WordBuffer {
    let mut words = vec![0; layout.words()];
    let mut writer = StepWriter::new(layout, &mut words);
    writer.global(layout.rows, 0, layout.rows.min(32));
    let rows = layout.rows as u32;
    let (sinks, recent, start) = (4, keys as u32 - 4, 20_004);
    let packed = if format.packs() { sinks + (start - sinks) / 32 * 32 } else { 0 };
    let base = start + 1 - recent;
    let lane = LaneStep { rows, start, base, sinks, recent, packed, packs_to: packed, ..LaneStep::default() };
    writer.lane(0, &lane);
    let rotation = vec![0.5; layout.head_dim / 2];
    for row in 0..layout.rows {
        let index = start + row as u32;
        let row_step = RowStep {
            token: 0,
            forced: None,
            index,
            first: index + 1 - recent,
            sinks_held: sinks,
            held: keys as u32,
            penalty: 1.0,
            penalty_ids: &[],
            cos: &rotation,
            sin: &rotation,
        };
        writer.row(row, &row_step);
    }
    let mut step = WordBuffer::zeros(words.len(), device);
    step.write(words);
    step
}

/// The least milliseconds of a launch.
fn time(device: &Device, mut launch: impl FnMut()) -> f64 {
    launch();
    device.sync().expect("the device answers");
    let mut least = f64::MAX;
    for _ in 0..REPEATS {
        let started = Instant::now();
        launch();
        device.sync().expect("the device answers");
        least = least.min(started.elapsed().as_secs_f64() * 1e3);
    }
    least
}
