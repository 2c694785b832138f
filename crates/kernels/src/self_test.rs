//! Each kernel on small, awkward inputs, against stored answers: several browsers and GPUs compute garbage in silence, so
//! this runs before a model is loaded.
//!
//! `tests/golden/self_test.py` computed the answers in double precision, without any of this crate's code, and describes
//! the cases; it draws the same inputs in the same order. `self_test.txt` is what it wrote.

use crate::packed::Codec;
use crate::step::{self, LaneStep, LayerHead, ReportLayout, RowStep, StepLayout, StepWriter};
use crate::{
    AttendBuffers, AttendParams, AttendTables, CacheFormat, Epilogue, FloatBuffer, Grid, HeadParams, Heads,
    LinearParams, Matrix, MatrixShape, NO_SINK_LOGIT, Storage, WordBuffer, append, attend, embed, floats, head, linear,
    part_len, words,
};
use burn::tensor::{Device, Int, Tensor};
use half::f16;
use std::future::{Future, poll_fn};
use std::task::Poll;

const STORED: &str = include_str!("self_test.txt");

/// What one kernel answered, beside what is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The kernel and the case, and the device's error if there was one.
    pub name: String,
    /// The largest difference from a stored value; infinite where a value is missing or no number.
    pub error: f64,
    /// The largest difference that rounding explains; 0 where bits must agree.
    pub tolerance: f64,
}

impl Check {
    /// Whether the kernel can be trusted.
    pub fn ok(&self) -> bool {
        self.error.is_finite() && self.error <= self.tolerance
    }
}

/// Runs every kernel on `device`. `grid` is how its shaders spread their work; none on the CPU. An error of the device is
/// a failed check. Nothing blocks.
pub async fn run(device: &Device, grid: Option<Grid>) -> Vec<Check> {
    let place = Place { device, grid };
    let (names, outputs): (Vec<_>, Vec<_>) = place.launch_all().into_iter().unzip();
    let answers = join(outputs.into_iter().map(Output::values).collect()).await;
    names.into_iter().zip(answers).map(|(name, answer)| check(STORED, name, answer)).collect()
}

/// Compares with what `stored` has under the name.
fn check(stored: &str, name: String, answer: Result<Vec<f64>, String>) -> Check {
    let failed = |why: &str| Check { name: format!("{name} ({why})"), error: f64::INFINITY, tolerance: 0.0 };
    let Some((tolerance, expected)) = find(stored, &name) else {
        return failed("no stored answer: run tests/golden/self_test.py");
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return failed(&error),
    };
    if answer.len() != expected.len() {
        return failed(&format!("{} values where {} are stored", answer.len(), expected.len()));
    }
    let differences = answer.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    // `max` would pass over a NaN.
    let error = differences.map(|d| if d.is_nan() { f64::INFINITY } else { d }).fold(0.0, f64::max);
    Check { name, error, tolerance }
}

/// Tolerance and values of the line `name: tolerance: values`.
fn find(stored: &str, name: &str) -> Option<(f64, Vec<f64>)> {
    let rest = stored.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    let (tolerance, values) = rest.split_once(": ")?;
    let values = values.split(' ').map(|value| value.parse().ok()).collect::<Option<_>>()?;
    Some((tolerance.parse().ok()?, values))
}

/// Waits for all at once: a browser that answers reads on a slow timer is waited for once, not for each.
async fn join<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(move |context| {
        for (future, result) in all.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *result = Some(value);
            }
        }
        if all.iter().any(|(_, result)| result.is_none()) {
            return Poll::Pending;
        }
        Poll::Ready(all.iter_mut().filter_map(|(_, result)| result.take()).collect())
    })
    .await
}

/// Turns what a kernel left in a buffer into the values that are compared.
type Reading<T> = Box<dyn Fn(&[T]) -> Vec<f64>>;

/// A buffer that a kernel wrote, and how its contents become the values that are compared.
enum Output {
    Floats(Tensor<1>, Reading<f32>),
    Words(Tensor<1, Int>, Reading<u32>),
}

impl Output {
    async fn values(self) -> Result<Vec<f64>, String> {
        match self {
            Self::Floats(tensor, values) => {
                let data = tensor.into_data_async().await.map_err(|error| error.to_string())?;
                Ok(values(&data.try_to_vec::<f32>().map_err(|error| format!("{error:?}"))?))
            }
            Self::Words(tensor, values) => {
                let data = tensor.into_data_async().await.map_err(|error| error.to_string())?;
                Ok(values(&data.try_to_vec::<u32>().map_err(|error| format!("{error:?}"))?))
            }
        }
    }
}

/// Folds by `n`: the value `j` is the sum of `(i + 1) / n * values[j * n + i]`.
fn fold(values: &[f32], n: usize) -> Vec<f64> {
    let weight = |i: usize| (i + 1) as f64 / n as f64;
    values.chunks(n).map(|chunk| chunk.iter().enumerate().map(|(i, &v)| weight(i) * f64::from(v)).sum()).collect()
}

/// A hash of each `n` words.
fn hashes(words: &[u32], n: usize) -> Vec<f64> {
    let hash = |chunk: &[u32]| chunk.iter().fold(0u32, |h, &word| h.wrapping_mul(31).wrapping_add(word));
    words.chunks(n).map(|chunk| f64::from(hash(chunk))).collect()
}

/// The script's generator of inputs.
struct Draws(u32);

impl Draws {
    fn new(case: usize) -> Self {
        Self((case as u32 + 1).wrapping_mul(0x9E37_79B9))
    }

    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0
    }

    fn word(&mut self) -> u32 {
        self.next() >> 16 << 16 | self.next() >> 16
    }

    /// In [-1, 1), 24 bits.
    fn value(&mut self) -> f32 {
        ((self.next() >> 8) as f32 - 8_388_608.0) / 8_388_608.0
    }

    /// In [-1, 1), 11 bits.
    fn half(&mut self) -> f32 {
        ((self.next() >> 21) as f32 - 1024.0) / 1024.0
    }

    fn values(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| size * self.value()).collect()
    }

    /// A packed matrix of garbage, in its padding rows, too.
    fn matrix(&mut self, shape: MatrixShape, device: &Device) -> Matrix {
        let MatrixShape { codec, rows, cols } = shape;
        let code_words = (0..codec.words(rows, cols)).map(|_| match codec {
            Codec::Q4 | Codec::Q8 => self.word(),
            Codec::F16 => self.some_half() | self.some_half() << 16,
            Codec::F32 => (self.value() / 4.0).to_bits(),
        });
        let code_words = code_words.collect();
        let scales = (0..codec.scale_words(rows, cols)).map(|_| match codec {
            Codec::Q4 => self.fraction(0x2000) | self.fraction(0xAC00) << 16,
            Codec::Q8 => self.fraction(0x1400) | self.fraction(0x1400) << 16,
            Codec::F16 | Codec::F32 => 0,
        });
        Matrix { words: words(code_words, device), scales: words(scales.collect(), device), shape }
    }

    /// The half of sign and exponent `base`, with a drawn fraction.
    fn fraction(&mut self, base: u32) -> u32 {
        base | self.next() >> 22
    }

    /// A half of 2^-7 to 2^-3, of either sign.
    fn some_half(&mut self) -> u32 {
        let bits = self.next();
        bits >> 31 << 15 | (8 + (bits >> 29 & 3)) << 10 | bits >> 19 & 1023
    }

    /// K and V of a token; values that halves hold exactly where `storage` is halves, whichever way a device rounds.
    fn kv(&mut self, storage: Storage, heads: Heads) -> Vec<f32> {
        (0..2 * heads.kv_cols()).map(|_| 2.0 * self.stored(storage)).collect()
    }

    /// The rows that come out of the fused projection.
    fn qkv(&mut self, storage: Storage, heads: Heads) -> Vec<f32> {
        let mut all = Vec::new();
        for _ in 0..ROWS {
            all.extend((0..heads.q_cols()).map(|_| 4.0 * self.stored(storage)));
            all.extend(self.kv(storage, heads));
        }
        all
    }

    fn stored(&mut self, storage: Storage) -> f32 {
        if storage == Storage::F32 { self.value() } else { self.half() }
    }
}

/// Rows of the step in all cases but some of [`LINEAR`].
const ROWS: usize = 5;
/// The lane under test, and its first row. The rows before are those of lane 0.
const LANE: usize = 1;
const ROW0: usize = 1;
/// The arena of the lane under test; the other lane lies in another, if the case does not say that they share it.
const STORE: u32 = 1;
const REPORT: ReportLayout = ReportLayout { layers: 2, heads: 6 };
const LAYER: usize = 1;
/// The head whose probs are asked for.
const HEAD: usize = 4;
const EPS: f32 = 1e-5;
const VOCAB: usize = 300;

struct Linear {
    codec: Codec,
    epilogue: Epilogue,
    norm: bool,
    /// Rows of the step, and how many are in use.
    rows: [usize; 2],
    /// First head row and their number, where only those are multiplied.
    head: Option<[usize; 2]>,
    matrix: [usize; 2],
    /// Whether the first row has one value that is too great for half precision when squared.
    great: bool,
}

#[rustfmt::skip]
const LINEAR: [Linear; 12] = {
    use Codec::*;
    use Epilogue::*;
    [
        Linear { codec: Q4, epilogue: Store, norm: true, rows: [5, 5], head: None, matrix: [13, 160], great: true },
        Linear { codec: Q4, epilogue: Add, norm: false, rows: [1, 1], head: None, matrix: [24, 96], great: false },
        Linear { codec: Q4, epilogue: SiluGate, norm: true, rows: [5, 3], head: None, matrix: [32, 96], great: false },
        Linear { codec: Q8, epilogue: Store, norm: true, rows: [5, 5], head: Some([3, 2]), matrix: [24, 96], great: false },
        Linear { codec: Q8, epilogue: Add, norm: false, rows: [5, 5], head: None, matrix: [13, 160], great: false },
        Linear { codec: Q8, epilogue: SiluGate, norm: true, rows: [1, 1], head: None, matrix: [32, 160], great: false },
        Linear { codec: F16, epilogue: Store, norm: false, rows: [1, 1], head: None, matrix: [24, 160], great: false },
        Linear { codec: F16, epilogue: Add, norm: true, rows: [5, 5], head: None, matrix: [13, 96], great: true },
        Linear { codec: F16, epilogue: SiluGate, norm: false, rows: [5, 5], head: None, matrix: [32, 96], great: false },
        Linear { codec: F32, epilogue: Store, norm: true, rows: [1, 1], head: None, matrix: [13, 96], great: false },
        Linear { codec: F32, epilogue: Add, norm: true, rows: [5, 2], head: None, matrix: [24, 160], great: false },
        Linear { codec: F32, epilogue: SiluGate, norm: false, rows: [1, 1], head: None, matrix: [32, 160], great: false },
    ]
};

const CODECS: [Codec; 4] = [Codec::Q4, Codec::Q8, Codec::F16, Codec::F32];
const EMBED_IDS: [u32; 4] = [0, 23, 9, 13];

struct Attend {
    name: &'static str,
    storage: Storage,
    head_dim: usize,
    sinks: u32,
    recent: u32,
    /// Stream index of the chunk's first row.
    start: u32,
    rows: u32,
    /// The end of a turn evicted what came before.
    evicted: u32,
    /// Sinks are as far as the stream says, not as their slots say.
    far: bool,
    /// Lane 0 shares the arena: one sink, a ring of three, and its row is token 7.
    shared: bool,
    /// The flags of the lane under test.
    flags: u32,
    /// Each head has an extra logit.
    learned: bool,
}

impl Attend {
    const fn new(name: &'static str, storage: Storage, head_dim: usize, cache: [u32; 2], tokens: [u32; 2]) -> Self {
        let ([sinks, recent], [start, rows]) = (cache, tokens);
        Self {
            name,
            storage,
            head_dim,
            sinks,
            recent,
            start,
            rows,
            evicted: 0,
            far: false,
            shared: false,
            flags: 0,
            learned: false,
        }
    }
}

/// A lane of a case.
struct LaneCase {
    row0: u32,
    rows: u32,
    sinks: u32,
    recent: u32,
    start: u32,
}

const ATTEND: [Attend; 9] = {
    [
        Attend::new("wrapped", Storage::F32, 32, [2, 5], [11, 4]),
        Attend::new("sinks in the chunk", Storage::F32, 32, [2, 5], [0, 4]),
        Attend::new("two tiles", Storage::F32, 32, [2, 70], [100, 2]),
        Attend { evicted: 9, ..Attend::new("after a turn", Storage::F16, 64, [2, 5], [11, 4]) },
        Attend { far: true, ..Attend::new("far sinks", Storage::F16, 64, [2, 5], [4_000_003, 1]) },
        Attend::new("window", Storage::F16, 64, [0, 3], [11, 4]),
        Attend { shared: true, ..Attend::new("two lanes", Storage::F16, 64, [2, 5], [11, 4]) },
        Attend { flags: step::SOFTMAX_ONE, ..Attend::new("softmax one", Storage::F32, 32, [2, 5], [11, 4]) },
        Attend {
            flags: step::ZERO_SINKS,
            learned: true,
            ..Attend::new("learned logits and sinks without values", Storage::F32, 32, [2, 70], [100, 2])
        },
    ]
};
/// Keys that attention has room for: two of its tiles.
const KEYS: usize = 128;
const POSITIONS: u32 = 128;

struct Append {
    name: &'static str,
    storage: Storage,
    head_dim: usize,
    recent: u32,
    start: u32,
    /// Values need rounding, so that devices may differ in the last bit.
    rounded: bool,
}

#[rustfmt::skip]
const APPEND: [Append; 3] = {
    [
        Append { name: "wrapped", storage: Storage::F32, head_dim: 32, recent: 5, start: 11, rounded: false },
        Append { name: "wrapped", storage: Storage::F16, head_dim: 64, recent: 5, start: 11, rounded: false },
        Append { name: "longer than the ring, rounded", storage: Storage::F16, head_dim: 64, recent: 2, start: 1, rounded: true },
    ]
};

/// Storage, and what one step of a code is worth.
const PACKED: [(Storage, f32); 3] =
    [(Storage::INT8, 1.0 / 32.0), (Storage::INT4, 1.0 / 8.0), (Storage::INT2, 1.0 / 2.0)];

/// `[cos, sin]` of a position's angles, `head_dim / 2` each.
fn rotation(position: u32, head_dim: usize) -> [Vec<f32>; 2] {
    let half = head_dim / 2;
    let angle = |i: usize| f64::from(position) * 10_000f64.powf(-(i as f64) / half as f64);
    let all = |f: fn(f64) -> f64| (0..half).map(|i| f(angle(i)) as f32).collect();
    [all(f64::cos), all(f64::sin)]
}

/// A lane's slots as words of the arena.
fn stored_words(storage: Storage, values: &[f32]) -> Vec<u32> {
    let mut words = vec![0; storage.float.words(values.len())];
    storage.float.encode(values, &mut words);
    words
}

fn lower(name: impl std::fmt::Debug) -> String {
    format!("{name:?}").to_lowercase()
}

/// Where the kernels run.
struct Place<'a> {
    device: &'a Device,
    grid: Option<Grid>,
}

impl Place<'_> {
    /// Launches everything, in the script's order, and waits for nothing.
    fn launch_all(&self) -> Vec<(String, Output)> {
        let mut outputs = Vec::new();
        let mut cases = 0..;
        let mut draws = || Draws::new(cases.next().unwrap_or(0));
        for case in &LINEAR {
            outputs.push(self.linear(case, draws()));
        }
        for codec in CODECS {
            outputs.push(self.embed(codec, draws()));
        }
        for case in &ATTEND {
            outputs.extend(self.attend(case, draws()));
        }
        for case in &APPEND {
            outputs.push(self.append(case, draws()));
        }
        for (storage, unit) in PACKED {
            outputs.extend(self.packed(storage, unit, draws()));
        }
        outputs.extend(self.head(draws()));
        outputs
    }

    fn params(&self, heads: Heads, storage: Storage, step: StepLayout) -> AttendParams {
        let grid = self.grid.unwrap_or(Grid::Software);
        AttendParams {
            heads,
            format: CacheFormat::of(storage),
            keys: KEYS,
            slots: KEYS,
            store: STORE,
            layer: LAYER,
            step,
            report: REPORT,
            grid,
        }
    }

    fn floats(&self, values: Vec<f32>) -> FloatBuffer {
        FloatBuffer::of(values, self.device)
    }

    fn words(&self, values: Vec<u32>) -> WordBuffer {
        WordBuffer(Some(words(values, self.device)))
    }

    fn step(&self, layout: StepLayout, write: impl FnOnce(&mut StepWriter<'_>)) -> WordBuffer {
        let mut buffer = vec![0; layout.words()];
        write(&mut StepWriter::new(layout, &mut buffer));
        self.words(buffer)
    }

    fn linear(&self, case: &Linear, mut draws: Draws) -> (String, Output) {
        let ([rows, used], [matrix_rows, cols]) = (case.rows, case.matrix);
        let shape = MatrixShape { codec: case.codec, rows: matrix_rows, cols };
        let matrix = draws.matrix(shape, self.device);
        let mut x = draws.values(rows * cols, 2.0);
        let gain = floats(draws.values(cols, 2.0), self.device);
        let width = if case.epilogue == Epilogue::SiluGate { matrix_rows / 2 } else { matrix_rows };
        let mut out = self.floats(draws.values(rows * width, 1.0));
        if case.great {
            x[5] = 20_000.0;
        }
        let layout = StepLayout { lanes: 2, rows, head_dim: 32 };
        let [first, count] = case.head.unwrap_or_default();
        let params = LinearParams {
            matrix: shape,
            epilogue: case.epilogue,
            eps: case.norm.then_some(EPS.to_bits()),
            head: case.head.is_some(),
            step: layout,
            rows,
            grid: self.grid.unwrap_or(Grid::Software),
        };
        let step = self.step(layout, |step| step.global(used, first, count));
        linear(&self.floats(x), &matrix, &gain, &step, &mut out, params);
        let epilogue = match case.epilogue {
            Epilogue::Store => "store",
            Epilogue::Add => "add",
            Epilogue::SiluGate => "gate",
        };
        let name = format!("linear {} {epilogue}", lower(case.codec));
        (name, Output::Floats(out.read(), Box::new(|out| fold(out, 1))))
    }

    fn embed(&self, codec: Codec, mut draws: Draws) -> (String, Output) {
        let table = draws.matrix(MatrixShape { codec, rows: 24, cols: 96 }, self.device);
        let mut x = self.floats(draws.values(ROWS * 96, 1.0));
        let layout = StepLayout { lanes: 2, rows: ROWS, head_dim: 32 };
        let step = self.step(layout, |step| {
            step.global(EMBED_IDS.len(), 0, 0);
            for (row, token) in EMBED_IDS.into_iter().enumerate() {
                step.row(row, &RowStep { token, ..idle(&[0.0; 16]) });
            }
        });
        embed(&table, &step, &mut x, layout);
        (format!("embed {}", lower(codec)), Output::Floats(x.read(), Box::new(|x| fold(x, 4))))
    }

    fn attend(&self, case: &Attend, mut draws: Draws) -> [(String, Output); 3] {
        let &Attend { storage, head_dim, sinks, recent, start, .. } = case;
        let heads = Heads { n_heads: REPORT.heads, n_kv_heads: 2, head_dim };
        let layout = StepLayout { lanes: 2, rows: ROWS, head_dim };
        let slot_values = 2 * heads.kv_cols();
        let tested = LaneCase { row0: ROW0 as u32, rows: case.rows, sinks, recent, start };
        let other = LaneCase { row0: 0, rows: ROW0 as u32, sinks: 1, recent: 3, start: 7 };
        let lanes = if case.shared { vec![other, tested] } else { vec![tested] };
        let mut slots = Vec::new();
        for lane in &lanes {
            let at = slots.len();
            slots.resize(at + (lane.sinks + lane.recent) as usize * slot_values, 0.0);
            let recent = lane.sinks.max(lane.start.saturating_sub(lane.recent))..lane.start;
            for index in (0..lane.sinks.min(lane.start)).chain(recent) {
                let ring = index.saturating_sub(lane.sinks) % lane.recent;
                let slot = if index < lane.sinks { index } else { lane.sinks + ring };
                slots[at + slot as usize * slot_values..][..slot_values].copy_from_slice(&draws.kv(storage, heads));
            }
        }
        let qkv = self.floats(draws.qkv(storage, heads));
        let mut out = self.floats(draws.values(ROWS * heads.q_cols(), 1.0));
        let masses = draws.values(ROWS * REPORT.layers * REPORT.heads * 2, 1.0);
        let sink_logits =
            if case.learned { draws.values(heads.n_heads, 4.0) } else { vec![NO_SINK_LOGIT; heads.n_heads] };
        let mut report = vec![0.0; ROWS * REPORT.stride()];
        let mass_cols = REPORT.stride() - step::MASSES_AT;
        for (row, masses) in report.chunks_exact_mut(REPORT.stride()).zip(masses.chunks_exact(mass_cols)) {
            row[step::MASSES_AT..].copy_from_slice(masses);
        }
        let mut report = self.floats(report);
        let mut part = FloatBuffer::zeros(part_len(heads, layout, KEYS, self.grid.is_some()), self.device);
        let rope = (0..POSITIONS).flat_map(|position| rotation(position, head_dim).concat()).collect();

        let step = self.step(layout, |step| {
            step.global(ROW0 + case.rows as usize, 0, 0);
            step.ask(LayerHead { layer: LAYER, head: HEAD });
            step.lane(0, &LaneStep { rows: ROW0 as u32, ..LaneStep::default() });
            let mut at = 0;
            for (lane, number) in lanes.iter().zip(2 - lanes.len()..) {
                let &LaneCase { row0, rows, sinks, recent, start } = lane;
                let first_of = |t: u32| sinks.max((t + 1).saturating_sub(recent)).max(case.evicted);
                let (base, store) = (first_of(start), STORE);
                let flags = if number == LANE { case.flags } else { 0 };
                step.lane(
                    number,
                    &LaneStep { row0, rows, start, base, sinks, recent, at, store, flags, ..LaneStep::default() },
                );
                at += (sinks + recent) * CacheFormat::of(storage).layout(heads, 0, 0).slot_words() as u32;
                for row in 0..rows {
                    let t = start + row;
                    let sinks_held = sinks.min(t + 1);
                    let held = sinks_held + (t + 1).saturating_sub(first_of(t));
                    let [cos, sin] = rotation(if case.far { t } else { held - 1 }, head_dim);
                    let view = RowStep { index: t, first: first_of(t), sinks_held, held, ..idle(&cos) };
                    step.row((row0 + row) as usize, &RowStep { sin: &sin, ..view });
                }
            }
        });
        let arena = self.words(stored_words(storage, &slots));
        let to = AttendBuffers { part: &mut part, out: &mut out, report: &mut report };
        let params = self.params(heads, storage, layout);
        let tables = AttendTables { rope: &floats(rope, self.device), sink_logits: &floats(sink_logits, self.device) };
        attend(&qkv, &arena, tables, &step, to, params);

        let last = start + case.rows - 1;
        let held = sinks.min(last + 1)
            + (last + 1).saturating_sub(sinks.max((last + 1).saturating_sub(recent)).max(case.evicted));
        let name = format!("attend {} {}", storage, case.name);
        let masses = |report: &[f32]| {
            let rows = report.chunks_exact(REPORT.stride());
            fold(&rows.flat_map(|row| &row[step::MASSES_AT..]).copied().collect::<Vec<_>>(), 2)
        };
        [
            (name.clone(), Output::Floats(out.read(), Box::new(move |out| fold(out, head_dim / 4)))),
            (format!("{name}, masses"), Output::Floats(report.read(), Box::new(masses))),
            (format!("{name}, probs"), Output::Floats(part.read(), Box::new(move |part| probs(part, held)))),
        ]
    }

    fn append(&self, case: &Append, mut draws: Draws) -> (String, Output) {
        let &Append { storage, head_dim, recent, start, rounded, .. } = case;
        let heads = Heads { n_heads: REPORT.heads, n_kv_heads: 2, head_dim };
        let layout = StepLayout { lanes: 2, rows: ROWS, head_dim };
        let (sinks, rows) = (2, 4);
        let slot_words = CacheFormat::of(storage).layout(heads, 0, 0).slot_words() as u32;
        // The first slot belongs to another lane.
        let slots: Vec<f32> = (0..1 + sinks + recent).flat_map(|_| draws.kv(storage, heads)).collect();
        let mut qkv = draws.qkv(if rounded { Storage::F32 } else { storage }, heads);
        if !rounded {
            qkv[ROW0 * heads.qkv_cols() + heads.q_cols()] = 1.0e5;
        }
        let step = self.step(layout, |step| {
            step.global(ROW0 + rows as usize, 0, 0);
            step.lane(0, &LaneStep { rows: ROW0 as u32, ..LaneStep::default() });
            let base = start.max(sinks);
            let lane = LaneStep { row0: ROW0 as u32, rows, start, base, sinks, recent, ..LaneStep::default() };
            step.lane(LANE, &LaneStep { at: slot_words, store: STORE, ..lane });
        });
        let mut arena = self.words(stored_words(storage, &slots));
        append(&self.floats(qkv), &step, &mut arena, self.params(heads, storage, layout));

        let values: Reading<u32> = if rounded {
            Box::new(|words| {
                let halves = words.iter().flat_map(|&word| [word as u16, (word >> 16) as u16]);
                fold(&halves.map(|bits| f16::from_bits(bits).to_f32()).collect::<Vec<_>>(), 4)
            })
        } else {
            Box::new(|words| hashes(words, 16))
        };
        (format!("append {} {}", storage, case.name), Output::Words(arena.read(), values))
    }

    fn packed(&self, storage: Storage, unit: f32, mut draws: Draws) -> [(String, Output); 4] {
        let head_dim = 32;
        let heads = Heads { n_heads: REPORT.heads, n_kv_heads: 2, head_dim };
        let step_layout = StepLayout { lanes: 2, rows: ROWS, head_dim };
        let format = CacheFormat::new(storage, storage, 8, 8);
        let params = AttendParams { format, ..self.params(heads, storage, step_layout) };
        let (sinks, recent, tail) = (2, 12, 8);
        let bits = storage.bits.map_or(0, |bits| bits.count() as u32);
        let (largest, middle) = ((1u32 << bits) - 1, 1u32 << (bits - 1));
        let mut row_of = |index: u32| {
            let mut row: Vec<f32> = (0..heads.q_cols()).map(|_| 4.0 * draws.half()).collect();
            for c in 0..2 * heads.kv_cols() {
                let code = draws.next() >> (32 - bits);
                let place = if c < heads.kv_cols() { (index + tail - sinks) % tail } else { c as u32 % 8 };
                let code = match place {
                    0 => 0,
                    1 => largest,
                    _ => code,
                };
                row.push((code as f32 - middle as f32) * unit);
            }
            row
        };
        let layout = format.layout(heads, sinks as usize, recent as usize);
        let mut arena = WordBuffer::zeros(layout.words(), self.device);
        let packed = |fed: u32| sinks + fed.saturating_sub(sinks) / tail * tail;
        let mut start = 0;
        let mut chunk = |rows: u32| {
            let first_of = |t: u32| sinks.max((t + 1).saturating_sub(recent));
            let step = self.step(step_layout, |step| {
                step.global(ROW0 + rows as usize, 0, 0);
                step.ask(LayerHead { layer: LAYER, head: HEAD });
                step.lane(0, &LaneStep { rows: ROW0 as u32, ..LaneStep::default() });
                let lane = LaneStep {
                    row0: ROW0 as u32,
                    rows,
                    start,
                    base: first_of(start),
                    sinks,
                    recent,
                    ..LaneStep::default()
                };
                let (packed, packs_to) = (packed(start), packed(start + rows));
                step.lane(LANE, &LaneStep { store: STORE, packed, packs_to, ..lane });
                for row in 0..rows {
                    let t = start + row;
                    let sinks_held = sinks.min(t + 1);
                    let held = sinks_held + (t + 1).saturating_sub(first_of(t));
                    let [cos, sin] = rotation(held - 1, head_dim);
                    let view = RowStep { index: t, first: first_of(t), sinks_held, held, ..idle(&cos) };
                    step.row(ROW0 + row as usize, &RowStep { sin: &sin, ..view });
                }
            });
            let mut qkv = vec![0.0; ROWS * heads.qkv_cols()];
            for row in 0..rows {
                let at = (ROW0 + row as usize) * heads.qkv_cols();
                qkv[at..at + heads.qkv_cols()].copy_from_slice(&row_of(start + row));
            }
            start += rows;
            (self.floats(qkv), step)
        };
        for rows in [2, 4, 4, 4, 4] {
            let (qkv, step) = chunk(rows);
            append(&qkv, &step, &mut arena, params);
        }
        let (qkv, step) = chunk(4);
        let mut out = FloatBuffer::zeros(ROWS * heads.q_cols(), self.device);
        let mut report = FloatBuffer::zeros(ROWS * REPORT.stride(), self.device);
        let mut part = FloatBuffer::zeros(part_len(heads, step_layout, KEYS, self.grid.is_some()), self.device);
        let rope = (0..POSITIONS).flat_map(|position| rotation(position, head_dim).concat()).collect();
        let sink_logits = floats(vec![NO_SINK_LOGIT; heads.n_heads], self.device);
        let tables = AttendTables { rope: &floats(rope, self.device), sink_logits: &sink_logits };
        attend(
            &qkv,
            &arena,
            tables,
            &step,
            AttendBuffers { part: &mut part, out: &mut out, report: &mut report },
            params,
        );

        let first_out = ROW0 * heads.q_cols();
        let held = sinks + recent;
        let masses = |report: &[f32]| {
            let rows = report.chunks_exact(REPORT.stride()).skip(ROW0).take(4);
            let of_layer = |row: &[f32]| row[REPORT.mass_at(LAYER, 0)..][..2 * REPORT.heads].to_vec();
            fold(&rows.flat_map(of_layer).collect::<Vec<_>>(), 2)
        };
        let name = format!("attend {storage} packed");
        [
            (format!("packed {storage}"), Output::Words(arena.read(), Box::new(|words| hashes(words, 16)))),
            (name.clone(), Output::Floats(out.read(), Box::new(move |out| fold(&out[first_out..], head_dim / 4)))),
            (format!("{name}, masses"), Output::Floats(report.read(), Box::new(masses))),
            (format!("{name}, probs"), Output::Floats(part.read(), Box::new(move |part| probs(part, held)))),
        ]
    }

    fn head(&self, mut draws: Draws) -> [(String, Output); 3] {
        let layout = StepLayout { lanes: 2, rows: ROWS, head_dim: 32 };
        let (first, rows) = (1, 3);
        let mut logits: Vec<f32> = (0..ROWS * VOCAB).map(|_| ((draws.next() >> 24) as f32 - 128.0) / 16.0).collect();
        for logit in &mut logits[2 * VOCAB..3 * VOCAB] {
            *logit -= 12.0;
        }
        let many: Vec<u32> = (0..64).map(|i| 3 * i + 1).collect();
        let step = self.step(layout, |step| {
            step.global(ROWS, first, rows);
            let turn = [0.0; 16];
            let cases: [(f32, &[u32], Option<u32>); 3] =
                [(2.0, &[7, 31, 299, 100, 0], Some(31)), (1.0, &[], None), (2.0, &many, Some(299))];
            for (row, (penalty, penalty_ids, forced)) in cases.into_iter().enumerate() {
                step.row(first + row, &RowStep { penalty, penalty_ids, forced, ..idle(&turn) });
            }
        });
        let mut report = FloatBuffer::zeros(ROWS * REPORT.stride(), self.device);
        let params = HeadParams { vocab: VOCAB, rows: ROWS, step: layout, report: REPORT };
        head(&mut self.floats(logits), &step, &mut report, params);

        let output = |name: &str, of_row: fn(&[f32]) -> Vec<f64>| {
            let values = move |report: &[f32]| {
                report.chunks_exact(REPORT.stride()).skip(first).take(rows).flat_map(of_row).collect()
            };
            (format!("head, {name}"), Output::Floats(report.read(), Box::new(values)))
        };
        [
            output("log-sum-exp and forced", |row| vec![row[step::LOG_SUM_EXP_AT].into(), row[step::FORCED_AT].into()]),
            output("best ids", |row| best(row).into_iter().map(|(id, _)| id.into()).collect()),
            output("best logits", |row| best(row).into_iter().map(|(_, logit)| logit.into()).collect()),
        ]
    }
}

/// The probs of the lane under test, of a row that sees `held` keys, from attention's scratch.
fn probs(part: &[f32], held: u32) -> Vec<f64> {
    fold(&part[LANE * KEYS..][..held as usize], 1)
}

/// The candidates of a report's row, sorted here: a GPU leaves them in any order.
fn best(row: &[f32]) -> Vec<(f32, f32)> {
    let logits = &row[step::TOP_LOGITS_AT..][..step::TOP];
    let mut best: Vec<_> = row[step::TOP_IDS_AT..][..step::TOP].iter().copied().zip(logits.iter().copied()).collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.total_cmp(&b.0)));
    best
}

/// A row of which a kernel needs nothing but what is set.
fn idle(turn: &[f32]) -> RowStep<'_> {
    RowStep {
        token: 0,
        forced: None,
        index: 0,
        first: 0,
        sinks_held: 0,
        held: 0,
        penalty: 1.0,
        penalty_ids: &[],
        cos: turn,
        sin: turn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    /// On the CPU nothing is ever waited for.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("the CPU made us wait"),
        }
    }

    fn answers() -> Vec<(String, Vec<f64>)> {
        let device = Device::flex();
        let all = Place { device: &device, grid: None }.launch_all();
        all.into_iter().map(|(name, output)| (name, now(output.values()).unwrap())).collect()
    }

    #[test]
    fn the_cpu_passes_every_check() {
        let checks = now(run(&Device::flex(), None));
        let failed: Vec<_> = checks.iter().filter(|check| !check.ok()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        let mut names: Vec<_> = checks.iter().map(|check| check.name.as_str()).collect();
        names.sort_unstable();
        let mut stored: Vec<_> = STORED.lines().filter_map(|line| line.split(": ").next()).collect();
        stored.sort_unstable();
        assert_eq!(names, stored, "every stored answer is checked, once");
    }

    #[test]
    fn every_value_counts() {
        for (name, answer) in answers() {
            let (tolerance, expected) = find(STORED, &name).unwrap();
            let mut sorted = expected.clone();
            sorted.sort_by(f64::total_cmp);
            let spread = sorted[sorted.len() - 1] - sorted[0];
            assert!(tolerance <= 1e-3 * spread, "{name} tolerates {tolerance:e} in values spread over {spread:e}");
            for i in 0..expected.len() {
                // Four times the tolerance, or the smallest difference of two whole numbers.
                let change = if tolerance > 0.0 { 4.0 * tolerance } else { 1.0 };
                for wrong in [expected[i] + change, f64::NAN] {
                    let mut changed = expected.clone();
                    changed[i] = wrong;
                    let values: Vec<_> = changed.iter().map(f64::to_string).collect();
                    let line = format!("{name}: {tolerance}: {}", values.join(" "));
                    let check = check(&line, name.clone(), Ok(answer.clone()));
                    assert!(!check.ok(), "{name} passes with value {i} changed to {wrong}");
                }
            }
        }
    }

    #[test]
    fn what_is_missing_fails() {
        let stored = "a: 1e-3: 1 2\nb: oops: 1\n";
        let pass = |name: &str, answer: Result<Vec<f64>, String>| check(stored, name.into(), answer).ok();
        assert!(pass("a", Ok(vec![1.0, 2.0005])));
        assert!(!pass("a", Ok(vec![1.0])));
        assert!(!pass("a", Ok(vec![1.0, f64::NAN])));
        assert!(!pass("a", Err("the device is lost".into())));
        assert!(!pass("b", Ok(vec![1.0])));
        assert!(!pass("c", Ok(vec![1.0])));
    }

    /// A fold lets no single error vanish.
    #[test]
    fn folds_and_hashes() {
        assert_eq!(fold(&[1.0, 2.0, 4.0, 8.0], 2), [0.5 + 2.0, 2.0 + 8.0]);
        assert_eq!(hashes(&[1, 2, u32::MAX], 2), [33.0, 4_294_967_295.0]);
    }
}
