//! What the model needs and Burn does not have, or does not have fast: packed linear layers, attention over sinks and a
//! ring, and the head that boils 49,152 logits down to what sampling needs.
//!
//! One trait, [`Ops`], has two implementations: `gpu` launches the WGSL in `shaders/`, `flex` calls the functions of
//! [`cpu`], which are at once the CPU backend and the twins that the shaders are checked against. Same names on both
//! sides. The kernels know no policy: what each token sees stands in the [`step`] buffer.
//!
//! A kernel that changes a buffer takes it by value and returns it. On the CPU no clone of it may be alive, or the whole
//! buffer would be copied ([`flex`] asserts that); on the GPU it is written in place.

pub mod cache;
pub mod cpu;
mod flex;
mod gpu;
pub mod packed;
pub mod self_test;
pub mod step;

pub use cache::{CacheFormat, Storage};
pub use cpu::{Epilogue, Heads};
pub use gpu::{Kernel, Recording, part_len};

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Dispatch, backend_extension};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use packed::Codec;
use step::{ReportLayout, StepLayout};

/// How the shaders spread their work. Results differ only by rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grid {
    /// Threads share a row's columns and add up in workgroup memory.
    Gpu,
    /// One thread a row and no barrier: for adapters that are a CPU in disguise, where barriers are slow.
    Software,
}

/// The part of a matrix that is no tensor: `rows` outputs, `cols` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    pub codec: Codec,
    pub rows: usize,
    pub cols: usize,
}

/// A linear layer's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearParams {
    pub matrix: MatrixShape,
    pub epilogue: Epilogue,
    /// Bits of the RMSNorm's epsilon; none: no norm. Bits, so that the constants can name a compiled kernel.
    pub eps: Option<u32>,
    /// Only the step's head rows of `x` are multiplied.
    pub head: bool,
    pub step: StepLayout,
    /// Rows that `out` has room for.
    pub rows: usize,
    pub grid: Grid,
}

/// The extra logit of a denominator that has none: its share is 0.
pub const NO_SINK_LOGIT: f32 = -3.0e38;

/// Attention's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttendParams {
    pub heads: Heads,
    pub format: CacheFormat,
    /// The most keys that a row sees.
    pub keys: usize,
    /// The most keys that a row of any arena sees: `part` has room for as many probs of each lane.
    pub slots: usize,
    /// The arena, as [`step::LaneStep::store`] names it.
    pub store: u32,
    pub layer: usize,
    pub step: StepLayout,
    pub report: ReportLayout,
    pub grid: Grid,
}

/// Constants of the head's last kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadParams {
    pub vocab: usize,
    /// Rows that `logits` has room for.
    pub rows: usize,
    pub step: StepLayout,
    pub report: ReportLayout,
}

/// The kernels. Every buffer is flat; shapes are in the parameters.
#[expect(clippy::too_many_arguments, reason = "a kernel has as many buffers as it has")]
#[backend_extension(Cube, Flex)]
pub trait Ops: burn::backend::Backend {
    /// Overwrites the front of `buffer` with `words`.
    fn write(buffer: IntTensor<Self>, words: Vec<u32>) -> IntTensor<Self>;

    /// `x[row] = table[id of the row]`. `x`: `[rows, cols]`.
    fn embed(
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        x: FloatTensor<Self>,
        matrix: MatrixShape,
        layout: StepLayout,
    ) -> FloatTensor<Self>;

    /// `out = epilogue(W norm(x))`. `x`: `[rows, cols]`, `gain`: `[cols]` (any tensor where there is no norm), `out`:
    /// `[rows, matrix rows]`, half as wide for [`Epilogue::SiluGate`].
    fn linear(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        gain: FloatTensor<Self>,
        out: FloatTensor<Self>,
        params: LinearParams,
    ) -> FloatTensor<Self>;

    /// Attention of the rows of an arena's lanes over their views. `qkv`: `[rows, qkv]`, `arena`: each lane's
    /// part as [`cache::CacheLayout`] says, `rope`: `[positions, head_dim]`, `sink_logits`: `[n_heads]`, `out`: `[rows, n_heads *
    /// head_dim]`; `part`: as [`part_len`] says. Puts the attention on the sinks into `report`, and the probs that the step
    /// asks for, if they are of this layer, into `part`.
    fn attend(
        qkv: FloatTensor<Self>,
        arena: IntTensor<Self>,
        rope: FloatTensor<Self>,
        sink_logits: FloatTensor<Self>,
        step: IntTensor<Self>,
        part: FloatTensor<Self>,
        out: FloatTensor<Self>,
        report: FloatTensor<Self>,
        params: AttendParams,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Writes K and V of the rows of an arena's lanes into it, and packs what the step says.
    fn append(
        qkv: FloatTensor<Self>,
        step: IntTensor<Self>,
        arena: IntTensor<Self>,
        params: AttendParams,
    ) -> IntTensor<Self>;

    /// Log-sum-exp, the forced token's logit and the 64 best of each head row, into `report`. `logits` is scratch
    /// afterwards.
    fn head(
        logits: FloatTensor<Self>,
        step: IntTensor<Self>,
        report: FloatTensor<Self>,
        params: HeadParams,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Announces that the launches that follow are the rehearsal of a recording. False where nothing can be recorded.
    fn rehearse(step: IntTensor<Self>) -> bool;

    /// Records the launches that follow instead of running them. False where that is refused.
    fn record(step: IntTensor<Self>) -> bool;

    /// Ends a recording; none where something was launched that cannot be replayed.
    fn recorded(step: IntTensor<Self>) -> Option<Recording>;
}

/// A weight matrix in the packed layout of [`packed`], on a device.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub words: Tensor<1, Int>,
    pub scales: Tensor<1, Int>,
    pub shape: MatrixShape,
}

/// A buffer that kernels change: taken out and put back, so that no clone is alive while one runs.
#[derive(Debug)]
pub struct FloatBuffer(Option<Tensor<1>>);

/// The same for u32 words.
#[derive(Debug)]
pub struct WordBuffer(Option<Tensor<1, Int>>);

const TAKEN: &str = "a buffer is put back by the kernel that took it";

impl FloatBuffer {
    /// `len` zeros.
    pub fn zeros(len: usize, device: &Device) -> Self {
        Self(Some(Tensor::zeros([len], (device, DType::F32))))
    }

    /// These values.
    pub fn of(values: Vec<f32>, device: &Device) -> Self {
        Self(Some(floats(values, device)))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.as_ref().expect(TAKEN).dims()[0]
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A handle for a kernel that only reads, or for reading back.
    pub fn read(&self) -> Tensor<1> {
        self.0.clone().expect(TAKEN)
    }

    fn take(&mut self) -> FloatTensor<Dispatch> {
        self.0.take().expect(TAKEN).into_dispatch()
    }

    fn put(&mut self, tensor: FloatTensor<Dispatch>) {
        self.0 = Some(Tensor::from_dispatch(tensor));
    }
}

impl WordBuffer {
    /// `len` zeros.
    pub fn zeros(len: usize, device: &Device) -> Self {
        Self(Some(words(vec![0; len], device)))
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.0.as_ref().expect(TAKEN).dims()[0]
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A second handle on the same words, for a device on which that does no harm.
    pub fn alias(&self) -> Self {
        Self(self.0.clone())
    }

    /// Replaces the buffer by what `f` makes of it.
    pub fn update(&mut self, f: impl FnOnce(Tensor<1, Int>) -> Tensor<1, Int>) {
        self.0 = Some(f(self.0.take().expect(TAKEN)));
    }

    /// A handle for a kernel that only reads, or for reading back.
    pub fn read(&self) -> Tensor<1, Int> {
        self.0.clone().expect(TAKEN)
    }

    /// Overwrites the front with `values`.
    pub fn write(&mut self, values: Vec<u32>) {
        let taken = self.take();
        self.put(<Dispatch as Ops>::write(taken, values));
    }

    fn take(&mut self) -> IntTensor<Dispatch> {
        self.0.take().expect(TAKEN).into_dispatch()
    }

    fn put(&mut self, tensor: IntTensor<Dispatch>) {
        self.0 = Some(Tensor::from_dispatch(tensor));
    }
}

/// u32 words on a device.
pub fn words(values: Vec<u32>, device: &Device) -> Tensor<1, Int> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), (device, DType::U32))
}

/// f32 values on a device.
pub fn floats(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), (device, DType::F32))
}

/// Runs `launches` twice: once as usual, then recorded without running, so that from now on the recording can be replayed
/// instead. Nothing inside may allocate, read or write. None on the CPU, and where the device refuses.
pub fn record(step: &WordBuffer, mut launches: impl FnMut()) -> Option<Recording> {
    let recordable = <Dispatch as Ops>::rehearse(step.read().into_dispatch());
    launches();
    if !recordable || !<Dispatch as Ops>::record(step.read().into_dispatch()) {
        return None;
    }
    launches();
    <Dispatch as Ops>::recorded(step.read().into_dispatch())
}

/// See [`Ops::embed`].
pub fn embed(table: &Matrix, step: &WordBuffer, x: &mut FloatBuffer, layout: StepLayout) {
    let out = <Dispatch as Ops>::embed(
        table.words.clone().into_dispatch(),
        table.scales.clone().into_dispatch(),
        step.read().into_dispatch(),
        x.take(),
        table.shape,
        layout,
    );
    x.put(out);
}

/// See [`Ops::linear`].
pub fn linear(
    x: &FloatBuffer,
    matrix: &Matrix,
    gain: &Tensor<1>,
    step: &WordBuffer,
    out: &mut FloatBuffer,
    params: LinearParams,
) {
    let result = <Dispatch as Ops>::linear(
        x.read().into_dispatch(),
        matrix.words.clone().into_dispatch(),
        matrix.scales.clone().into_dispatch(),
        step.read().into_dispatch(),
        gain.clone().into_dispatch(),
        out.take(),
        params,
    );
    out.put(result);
}

/// What attention writes besides the cache.
#[derive(Debug)]
pub struct AttendBuffers<'a> {
    /// As [`part_len`] says.
    pub part: &'a mut FloatBuffer,
    pub out: &'a mut FloatBuffer,
    pub report: &'a mut FloatBuffer,
}

/// What attention reads beside queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct AttendTables<'a> {
    pub rope: &'a Tensor<1>,
    pub sink_logits: &'a Tensor<1>,
}

/// See [`Ops::attend`].
pub fn attend(
    qkv: &FloatBuffer,
    arena: &WordBuffer,
    tables: AttendTables<'_>,
    step: &WordBuffer,
    to: AttendBuffers<'_>,
    params: AttendParams,
) {
    let (part, out, report) = <Dispatch as Ops>::attend(
        qkv.read().into_dispatch(),
        arena.read().into_dispatch(),
        tables.rope.clone().into_dispatch(),
        tables.sink_logits.clone().into_dispatch(),
        step.read().into_dispatch(),
        to.part.take(),
        to.out.take(),
        to.report.take(),
        params,
    );
    to.part.put(part);
    to.out.put(out);
    to.report.put(report);
}

/// See [`Ops::append`].
pub fn append(qkv: &FloatBuffer, step: &WordBuffer, arena: &mut WordBuffer, params: AttendParams) {
    let out = <Dispatch as Ops>::append(qkv.read().into_dispatch(), step.read().into_dispatch(), arena.take(), params);
    arena.put(out);
}

/// See [`Ops::head`].
pub fn head(logits: &mut FloatBuffer, step: &WordBuffer, report: &mut FloatBuffer, params: HeadParams) {
    let (scratch, out) = <Dispatch as Ops>::head(logits.take(), step.read().into_dispatch(), report.take(), params);
    logits.put(scratch);
    report.put(out);
}
