//! The kernels on a GPU: which WGSL files make up each, its constants, bindings and grid.
//!
//! A kernel's text is a preamble of `const` lines and files of `shaders/`, one after the other, so that every file stays
//! plain WGSL. The constants are part of the kernel's id: what changes per step is in the step buffer, and what differs
//! between layers of one shape (store and layer) in the `info` binding, so that recorded launches can be replayed.

use crate::cache::{Bits, CacheLayout, Float};
use crate::packed::Codec;
use crate::step::StepLayout;
use crate::{AttendParams, CacheFormat, Epilogue, Grid, HeadParams, Heads, LinearParams, MatrixShape, Ops, Storage};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_wgpu::{CubeBackend, CubeTensor, KernelSource, SourceKernel, SourceTemplate};
use cubecl::prelude::{ExecutionMode, KernelId};
use cubecl::server::{KernelArguments, MetadataBindingInfo};
use cubecl::{CubeCount, CubeDim};
use std::fmt::Write;

/// Keys that one workgroup of `attend.wgsl` takes.
const TILE: usize = 64;
/// Threads of most kernels' workgroups.
const THREADS: usize = 64;
/// The widest grid that is promised in one direction is 65,535.
const GRID_X: usize = 32_768;

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../../../shaders/", $name, ".wgsl"))
    };
}

/// A kernel with its constants; two with the same constants share one compiled pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    Embed(MatrixShape, StepLayout),
    Linear(LinearParams),
    /// Store and layer are not part of it.
    Attend(AttendParams),
    Merge(AttendParams),
    Append(AttendParams),
    Head(HeadParams),
}

impl Kernel {
    /// The whole WGSL text.
    pub fn wgsl(&self) -> String {
        let (constants, parts) = match self {
            Self::Embed(matrix, step) => {
                (vec![("COLS", matrix.cols)], (*step, vec![codec(matrix.codec), shader!("embed")]))
            }
            Self::Linear(p) => {
                let spread = Spread::of(p);
                let mut parts = vec![codec(p.matrix.codec), shader!("linear")];
                parts.push(if spread.slots == 1 { shader!("sum_one") } else { shader!("sum_shared") });
                parts.push(if p.eps.is_some() { shader!("norm_rms") } else { shader!("norm_none") });
                parts.push(match p.epilogue {
                    Epilogue::Store => shader!("store_plain"),
                    Epilogue::Add => shader!("store_add"),
                    Epilogue::SiluGate => shader!("store_gate"),
                });
                let constants = vec![
                    ("MATRIX_ROWS", p.matrix.rows),
                    ("COLS", p.matrix.cols),
                    ("SLOTS", spread.slots),
                    ("UNITS", spread.units),
                    ("HALVES", spread.halves),
                    ("TOKENS", spread.tokens),
                    ("PARTS", spread.parts),
                    ("GRID_X", spread.groups.min(GRID_X)),
                    ("HEAD", usize::from(p.head)),
                ];
                (constants, (p.step, parts))
            }
            Self::Attend(p) => {
                let mut constants = heads(p);
                constants.push(("TILES", tiles(p)));
                constants.push(("SLOTS", p.slots));
                constants.push(("THREADS", attend_threads(p)));
                let mut parts = vec![shader!("attend")];
                match alike(p.format) {
                    Some(storage) => parts.extend([storage, shader!("slots")]),
                    None => {
                        constants.extend(cache_parts(p));
                        parts.extend([shader!("parts"), shader!("parts_load")]);
                    }
                }
                (constants, (p.step, parts))
            }
            Self::Merge(p) => {
                let mut constants = heads(p);
                constants.push(("TILES", tiles(p)));
                constants.push(("SLOTS", p.slots));
                constants.push(("REPORT", p.report.stride()));
                constants.push(("MASSES", crate::step::MASSES_AT));
                (constants, (p.step, vec![shader!("merge")]))
            }
            Self::Append(p) => {
                let mut constants = heads(p);
                let parts = match (alike(p.format), p.format.keys.float) {
                    (Some(_), Float::F32) => vec![shader!("put_f32"), shader!("append")],
                    (Some(_), _) => vec![shader!("put_f16"), shader!("append")],
                    (None, _) => {
                        constants.extend(cache_parts(p));
                        vec![shader!("parts"), shader!("append_parts")]
                    }
                };
                (constants, (p.step, parts))
            }
            Self::Head(p) => (vec![("VOCAB", p.vocab), ("REPORT", p.report.stride())], (p.step, vec![shader!("head")])),
        };
        let (step, parts) = parts;
        let mut text = String::new();
        let all = constants.into_iter().chain([("LANES", step.lanes), ("ROWS", step.rows)]);
        let named_head_dim = matches!(self, Self::Attend(_) | Self::Merge(_) | Self::Append(_));
        for (name, value) in all.chain((!named_head_dim).then_some(("HEAD_DIM", step.head_dim))) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        if let Self::Linear(LinearParams { eps: Some(bits), .. }) = self {
            let _ = writeln!(text, "const EPS: f32 = {:e};", f32::from_bits(*bits));
        }
        for part in std::iter::once(shader!("step")).chain(parts) {
            text.push('\n');
            text.push_str(part);
        }
        text
    }

    fn threads(&self) -> u32 {
        let threads = match self {
            Self::Linear(p) => {
                let spread = Spread::of(p);
                spread.slots * spread.units
            }
            Self::Attend(p) => attend_threads(p),
            Self::Head(_) => 256,
            _ => THREADS,
        };
        threads as u32
    }

    /// The kernel's id must not name what only `info` carries.
    fn shared(self) -> Self {
        let anywhere = |p: AttendParams| AttendParams { store: 0, layer: 0, ..p };
        match self {
            Self::Attend(p) => Self::Attend(anywhere(p)),
            Self::Merge(p) => Self::Merge(anywhere(p)),
            Self::Append(p) => Self::Append(anywhere(p)),
            other => other,
        }
    }
}

impl KernelSource for Kernel {
    fn source(&self) -> SourceTemplate {
        SourceTemplate::new(self.wgsl())
    }

    fn id(&self) -> KernelId {
        // Every index is bounded in the shaders themselves.
        KernelId::new::<Self>().info(self.clone()).mode(ExecutionMode::Unchecked)
    }

    fn lang(&self) -> &'static str {
        "wgsl"
    }
}

fn codec(codec: Codec) -> &'static str {
    match codec {
        Codec::Q4 => shader!("codec_q4"),
        Codec::Q8 => shader!("codec_q8"),
        Codec::F16 => shader!("codec_f16"),
        Codec::F32 => shader!("codec_f32"),
    }
}

/// How K and V are read where they are kept alike, as f32 or f16 and not packed: the common case has shaders of its own.
fn alike(format: CacheFormat) -> Option<&'static str> {
    match (format.keys == format.values && !format.packs()).then_some(format.keys.float)? {
        Float::F32 => Some(shader!("storage_f32")),
        Float::F16 => Some(shader!("storage_f16")),
        Float::Bf16 => None,
    }
}

/// The constants of `parts.wgsl`.
fn cache_parts(p: &AttendParams) -> Vec<(&'static str, usize)> {
    let format = p.format;
    let layout = format.layout(p.heads, 0, 0);
    let float = |storage: Storage| match storage.float {
        Float::F32 => 0,
        Float::F16 => 1,
        Float::Bf16 => 2,
    };
    let bits = |storage: Storage| storage.bits.map_or(0, Bits::count);
    let mut constants = vec![
        ("PACKS", usize::from(format.packs())),
        ("PACK_GROUP", format.group.max(1)),
        ("TAIL", format.tail.max(1)),
        ("K_FLOAT", float(format.keys)),
        ("V_FLOAT", float(format.values)),
        ("K_BITS", bits(format.keys)),
        ("V_BITS", bits(format.values)),
        ("K_WORDS", layout.key_words()),
        ("V_WORDS", layout.value_words()),
    ];
    let in_group = |words: fn(&CacheLayout) -> usize| if format.packs() { words(&layout) } else { 0 };
    constants.extend([
        ("K_CODE_WORDS", in_group(|layout| layout.code_words(layout.format.keys))),
        ("V_CODE_WORDS", in_group(|layout| layout.code_words(layout.format.values))),
        ("K_GROUP_WORDS", in_group(CacheLayout::group_key_words)),
        ("V_GROUP_WORDS", in_group(CacheLayout::group_value_words)),
    ]);
    constants
}

fn heads(p: &AttendParams) -> Vec<(&'static str, usize)> {
    vec![("N_HEADS", p.heads.n_heads), ("N_KV_HEADS", p.heads.n_kv_heads), ("HEAD_DIM", p.heads.head_dim)]
}

/// Threads that share a tile. A software adapter loads for each thread apart, so fewer with more to do are faster.
fn attend_threads(p: &AttendParams) -> usize {
    match p.grid {
        Grid::Gpu => TILE,
        Grid::Software => 8,
    }
}

fn tiles(p: &AttendParams) -> usize {
    p.keys.div_ceil(TILE)
}

/// Values of attention's scratch for caches of at most `slots` slots. First, `[lanes, slots]`, the probs that a step asks
/// for, of each lane's last row: sinks, then recent keys, oldest first. Then, on a GPU, a tile's largest score, three sums
/// and its V for every row, head and tile.
pub fn part_len(heads: Heads, step: StepLayout, slots: usize, gpu: bool) -> usize {
    let tiles = if gpu { step.rows * heads.n_heads * slots.div_ceil(TILE) * (4 + heads.head_dim) } else { 0 };
    step.lanes * slots + tiles
}

/// How a linear layer is spread over threads.
struct Spread {
    /// Threads that share the columns.
    slots: usize,
    /// Threads of a workgroup side by side along the rows.
    units: usize,
    /// Half octets of rows that a thread takes.
    halves: usize,
    /// Rows of x that a thread takes.
    tokens: usize,
    /// Matrices that alternate.
    parts: usize,
    /// Workgroups for all rows of the matrix.
    groups: usize,
}

impl Spread {
    fn of(p: &LinearParams) -> Self {
        let parts = if p.epilogue == Epilogue::SiluGate { 2 } else { 1 };
        // A software adapter loads for each thread apart: the more sums share a load the better.
        let (slots, units, halves, tokens) = match p.grid {
            Grid::Gpu => (32, 2, 1, p.rows.min(4)),
            Grid::Software => (1, 8, 2, p.rows.min(8)),
        };
        let places = p.matrix.rows.div_ceil(8) * 2 / parts / halves;
        Self { slots, units, halves, tokens, parts, groups: places.div_ceil(units) }
    }
}

/// Launches `kernel` over `grid`; `info` is bound last where it is given.
fn launch(kernel: Kernel, grid: [usize; 3], buffers: &[&CubeTensor], info: Option<[usize; 2]>) {
    let mut args =
        KernelArguments::new().with_buffers(buffers.iter().map(|tensor| tensor.handle.clone().binding()).collect());
    if let Some([store, layer]) = info {
        // One vec4<u32>, as two words of 64 bits.
        args = args.with_info(MetadataBindingInfo::custom(vec![(store as u64) | (layer as u64) << 32, 0]));
    }
    let kernel = kernel.shared();
    let dim = CubeDim::new_1d(kernel.threads());
    let [x, y, z] = grid.map(|n| n as u32);
    buffers[0].client.launch(Box::new(SourceKernel::new(kernel, dim)), CubeCount::Static(x, y, z), args);
}

impl Ops for CubeBackend {
    fn write(buffer: IntTensor<Self>, words: Vec<u32>) -> IntTensor<Self> {
        // Where the data are shorter than the buffer they are written to, cubecl clears the rest.
        let rest = buffer.handle.size_in_used() - 4 * words.len() as u64;
        let front = buffer.handle.clone().offset_end(rest);
        buffer.client.write(&front, cubecl::bytes::Bytes::from_elems(words));
        buffer
    }

    fn embed(
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        x: FloatTensor<Self>,
        matrix: MatrixShape,
        layout: StepLayout,
    ) -> FloatTensor<Self> {
        let grid = [(matrix.cols / 8).div_ceil(THREADS), layout.rows, 1];
        launch(Kernel::Embed(matrix, layout), grid, &[&words, &scales, &step, &x], None);
        x
    }

    fn linear(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: IntTensor<Self>,
        step: IntTensor<Self>,
        gain: FloatTensor<Self>,
        out: FloatTensor<Self>,
        params: LinearParams,
    ) -> FloatTensor<Self> {
        let spread = Spread::of(&params);
        let grid = [spread.groups.min(GRID_X), spread.groups.div_ceil(GRID_X), params.rows.div_ceil(spread.tokens)];
        let mut buffers = vec![&x, &words, &scales, &step, &out];
        if params.eps.is_some() {
            buffers.push(&gain);
        }
        launch(Kernel::Linear(params), grid, &buffers, None);
        out
    }

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
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let info = Some([params.store as usize, params.layer]);
        let rows = params.step.rows;
        let grid = [tiles(&params), params.heads.n_kv_heads, rows];
        launch(Kernel::Attend(params), grid, &[&qkv, &step, &arena, &rope, &part], info);
        let grid = [params.heads.n_heads, rows, 1];
        launch(Kernel::Merge(params), grid, &[&part, &step, &out, &report, &sink_logits], info);
        (part, out, report)
    }

    fn append(
        qkv: FloatTensor<Self>,
        step: IntTensor<Self>,
        arena: IntTensor<Self>,
        params: AttendParams,
    ) -> IntTensor<Self> {
        let CacheFormat { group, tail, .. } = params.format;
        // A row in `append_parts.wgsl` for each head's K and V of each group of the tails of all lanes.
        let packing = 2 * params.heads.n_kv_heads * tail.checked_div(group).unwrap_or(0) * params.step.lanes;
        let grid = [params.heads.kv_cols().div_ceil(THREADS), params.step.rows + packing, 1];
        launch(Kernel::Append(params), grid, &[&qkv, &step, &arena], Some([params.store as usize, 0]));
        arena
    }

    fn head(
        logits: FloatTensor<Self>,
        step: IntTensor<Self>,
        report: FloatTensor<Self>,
        params: HeadParams,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch(Kernel::Head(params), [params.rows, 1, 1], &[&logits, &step, &report], None);
        (logits, report)
    }

    fn rehearse(step: IntTensor<Self>) -> bool {
        step.client.graph_prepare().is_ok()
    }

    fn record(step: IntTensor<Self>) -> bool {
        step.client.flush().is_ok() && step.client.start_capture().is_ok()
    }

    fn recorded(step: IntTensor<Self>) -> Option<Recording> {
        step.client.stop_capture().ok().map(Recording)
    }
}

/// A step's launches, to be run again on the buffers that they were recorded with.
#[derive(Debug)]
pub struct Recording(cubecl::client::Graph);

impl Recording {
    /// Runs the launches. What changed since is in the step buffer. The buffers of the recording must be alive.
    ///
    /// # Errors
    /// The device refuses, since it is lost.
    pub fn replay(&self) -> Result<(), String> {
        // SAFETY: whoever records owns the buffers of the recording and drops the recording before them.
        unsafe { self.0.replay() }.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::ReportLayout;

    /// Every combination of files that the host can put together.
    fn kernels() -> Vec<Kernel> {
        let step = StepLayout { lanes: 2, rows: 5, head_dim: 64 };
        let report = ReportLayout { layers: 2, heads: 9 };
        let heads = Heads { n_heads: 9, n_kv_heads: 3, head_dim: 64 };
        let mut all = vec![Kernel::Head(HeadParams { vocab: 49_152, rows: 5, step, report })];
        for codec in [Codec::Q4, Codec::Q8, Codec::F16, Codec::F32] {
            let matrix = MatrixShape { codec, rows: 576, cols: 1536 };
            all.push(Kernel::Embed(matrix, step));
            for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::SiluGate] {
                for eps in [None, Some(1e-5f32.to_bits())] {
                    for (grid, head) in [(Grid::Gpu, false), (Grid::Software, true)] {
                        let params = LinearParams { matrix, epilogue, eps, head, step, rows: 5, grid };
                        all.push(Kernel::Linear(params));
                    }
                }
            }
        }
        let mut formats: Vec<CacheFormat> = Storage::ALL.map(CacheFormat::of).to_vec();
        formats.extend([
            CacheFormat::new(Storage::F32, Storage::F16, 32, 32),
            CacheFormat::new(Storage::INT8, Storage::BF16, 24, 48),
            CacheFormat::new(Storage::F16, Storage::INT2, 128, 128),
        ]);
        for format in formats {
            for grid in [Grid::Gpu, Grid::Software] {
                let params =
                    AttendParams { heads, format, keys: 300, slots: 400, store: 1, layer: 1, step, report, grid };
                all.extend([Kernel::Attend(params), Kernel::Merge(params), Kernel::Append(params)]);
            }
        }
        all
    }

    #[test]
    fn every_shader_is_valid_wgsl_and_fits_the_smallest_device() {
        // `unpack2x16float` is core WGSL; naga counts it apart.
        let core = naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        for kernel in kernels() {
            let text = kernel.wgsl();
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|error| panic!("{kernel:?}: {}", error.emit_to_string(&text)));
            let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), core);
            if let Err(error) = validator.validate(&module) {
                panic!("{kernel:?}: {}", error.emit_to_string(&text));
            }
            let mut layouter = naga::proc::Layouter::default();
            layouter.update(module.to_ctx()).expect("a valid module has a layout");
            let bytes = |space: naga::AddressSpace| -> u32 {
                let in_space = module.global_variables.iter().filter(|(_, global)| global.space == space);
                in_space.map(|(_, global)| layouter[global.ty].size).sum()
            };
            assert!(bytes(naga::AddressSpace::WorkGroup) <= 16_384, "{kernel:?} needs too much workgroup memory");
            assert!(kernel.threads() <= 256);
            let bindings = module.global_variables.iter().filter(|(_, global)| global.binding.is_some()).count();
            assert!(bindings <= 7, "{kernel:?} has {bindings} bindings");
        }
    }
}
