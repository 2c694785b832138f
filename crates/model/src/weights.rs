//! From a weight file's bytes, as they arrive, to packed matrices on the device.
//!
//! Every tensor has a place: a norm's gain, or some octets of rows of a matrix. Query, key and value rows share one
//! matrix, gate and up rows alternate octet by octet in another, so that one kernel reads each. Rows are packed as they
//! come, eight at a time (a head at a time where RoPE's layout asks for another order), and a matrix goes to the device
//! when its last part is there: besides the matrices under way nothing is held twice.

use crate::config::{Config, ConfigError, RopeLayout, SINK_LOGITS};
use crate::gguf::{Header, Reader, Sink, TensorInfo, TensorKind};
use burn::tensor::{Device, Int, Tensor};
use kernels::packed::{Codec, Format, OCTET, octets, pack_octet};
use kernels::{Matrix, MatrixShape};
use std::collections::HashMap;
use std::error::Error;

/// One transformer layer.
#[derive(Debug)]
pub struct Layer {
    pub attention_norm: Tensor<1>,
    /// `[(n_heads + 2 n_kv_heads) * head_dim, d_model]`
    pub qkv: Matrix,
    /// `[n_heads]`: a logit in each head's denominator; [`kernels::NO_SINK_LOGIT`] where none was learned.
    pub sink_logits: Tensor<1>,
    /// `[d_model, n_heads * head_dim]`
    pub attention_out: Matrix,
    pub feed_forward_norm: Tensor<1>,
    /// `[2 * d_ff, d_model]`, octets of gate and up in turn
    pub gate_up: Matrix,
    /// `[d_model, d_ff]`
    pub down: Matrix,
}

/// All weights, on the device.
#[derive(Debug)]
pub struct Weights {
    /// `[vocab, d_model]`
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub norm: Tensor<1>,
    /// `[vocab, d_model]`; none: the embedding is used (tied weights).
    pub output: Option<Matrix>,
    /// Bytes of all matrices and gains.
    pub bytes: u64,
    checksums: Vec<(String, u64)>,
}

/// Why a file could not be made a model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("{0}")]
    Gguf(#[from] crate::gguf::GgufError),
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("tensor `{0}` has no place in a Llama model: use another file")]
    Unknown(String),
    #[error("tensor `{0}` is missing: the file is not complete, download or convert it again")]
    Missing(String),
    #[error("tensor `{name}` has dimensions {found:?} where the metadata ask for {needed:?}: convert the model again")]
    Shape { name: String, found: Vec<u64>, needed: Vec<u64> },
    #[error("tensor `{name}`: {problem}")]
    Tensor { name: String, problem: String },
    #[error(
        "tensor `{0}` does not read back from the device as it was written: the memory of the GPU is not to be trusted; use the CPU"
    )]
    Corrupt(String),
}

/// A matrix, or a gain, of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Slot {
    Embedding,
    Output,
    Norm,
    AttentionNorm(usize),
    Qkv(usize),
    SinkLogits(usize),
    AttentionOut(usize),
    FeedForwardNorm(usize),
    GateUp(usize),
    Down(usize),
}

/// Where a tensor's octets go: octet i of the tensor is octet `first + i * stride` of the slot.
#[derive(Clone, Copy, Debug)]
struct Place {
    slot: Slot,
    rows: usize,
    /// None: a vector.
    cols: Option<usize>,
    first: usize,
    stride: usize,
    /// Rows that have to be reordered within each head.
    turned: bool,
}

/// A tensor that is arriving.
#[derive(Debug)]
struct Incoming {
    place: Place,
    /// Bytes of rows that do not make up a whole unit yet.
    pending: Vec<u8>,
    rows_done: usize,
}

/// A matrix or a gain that is not complete yet.
#[derive(Debug)]
struct Building {
    shape: MatrixShape,
    words: Vec<u32>,
    scales: Vec<u32>,
    gain: Vec<f32>,
    rows_missing: usize,
}

/// Builds [`Weights`] from the bytes of a GGUF file.
pub struct Loader {
    bytes: u64,
    reader: Reader,
    builder: Builder,
}

#[derive(Debug)]
struct Builder {
    device: Device,
    config: Option<Config>,
    places: Vec<Place>,
    kinds: Vec<Format>,
    incoming: HashMap<usize, Incoming>,
    building: HashMap<Slot, Building>,
    matrices: HashMap<Slot, Matrix>,
    gains: HashMap<Slot, Tensor<1>>,
    bytes: u64,
    checksums: Vec<(Slot, u64)>,
}

impl Loader {
    /// A loader that puts the weights on `device`.
    pub fn new(device: Device) -> Self {
        let builder = Builder {
            device,
            config: None,
            places: Vec::new(),
            kinds: Vec::new(),
            incoming: HashMap::new(),
            building: HashMap::new(),
            matrices: HashMap::new(),
            gains: HashMap::new(),
            bytes: 0,
            checksums: Vec::new(),
        };
        Self { bytes: 0, reader: Reader::new(), builder }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// The file lies, is of a kind that does not run here, or is no model at all.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        self.reader.push(bytes, &mut self.builder)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes taken so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// The header, once it is complete.
    pub fn header(&self) -> Option<&Header> {
        self.reader.header()
    }

    /// Tensors that are complete.
    pub fn tensors_read(&self) -> usize {
        self.reader.tensors_read()
    }

    /// The model's shape, header and weights.
    ///
    /// # Errors
    /// Bytes or tensors are missing.
    pub fn finish(self) -> Result<(Config, Header, Weights), WeightsError> {
        let header = self.reader.finish()?;
        let mut builder = self.builder;
        let config = builder.config.take().ok_or_else(|| WeightsError::Missing("token_embd.weight".to_owned()))?;
        let weights = builder.weights(&config)?;
        Ok((config, header, weights))
    }
}

impl Sink for Builder {
    fn header(&mut self, header: &Header) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.plan(header)?)
    }

    fn data(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.take(tensor, bytes)?)
    }
}

impl Builder {
    /// Finds every tensor's place and makes room for every matrix's format.
    fn plan(&mut self, header: &Header) -> Result<(), WeightsError> {
        let config = Config::from_gguf(header)?;
        let by_name: HashMap<&str, &TensorInfo> = header.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let needed = needed_tensors(&config);
        for (name, optional, _) in &needed {
            if !optional && !by_name.contains_key(name.as_str()) {
                return Err(WeightsError::Missing(name.clone()));
            }
        }
        let places: HashMap<&str, Place> = needed.iter().map(|(name, _, place)| (name.as_str(), *place)).collect();
        for tensor in &header.tensors {
            let place = *places.get(tensor.name.as_str()).ok_or_else(|| WeightsError::Unknown(tensor.name.clone()))?;
            let needed = match place.cols {
                Some(cols) => vec![cols as u64, place.rows as u64],
                None => vec![place.rows as u64],
            };
            if tensor.dims != needed {
                return Err(WeightsError::Shape { name: tensor.name.clone(), found: tensor.dims.clone(), needed });
            }
            let format = format_of(tensor.kind);
            if place.cols.is_none() && format != Format::F32 {
                let problem = format!("vectors must be F32, not {:?}: convert the model again", tensor.kind);
                return Err(WeightsError::Tensor { name: tensor.name.clone(), problem });
            }
            self.places.push(place);
            self.kinds.push(format);
            let added = place.rows;
            let cols = place.cols.unwrap_or(0);
            self.building
                .entry(place.slot)
                .and_modify(|building| {
                    building.shape.rows += added;
                    building.rows_missing += added;
                    // Parts of different formats have only single precision in common.
                    if building.shape.codec != format.codec() {
                        building.shape.codec = Codec::F32;
                    }
                })
                .or_insert_with(|| Building {
                    shape: MatrixShape { codec: format.codec(), rows: added, cols },
                    words: Vec::new(),
                    scales: Vec::new(),
                    gain: Vec::new(),
                    rows_missing: added,
                });
        }
        self.config = Some(config);
        Ok(())
    }

    /// Takes a piece of a tensor.
    fn take(&mut self, tensor: usize, mut bytes: &[u8]) -> Result<(), WeightsError> {
        let (Some(&place), Some(&format), Some(config)) =
            (self.places.get(tensor), self.kinds.get(tensor), self.config.as_ref())
        else {
            return Err(WeightsError::Missing("token_embd.weight".to_owned()));
        };
        let (head_dim, layout) = (config.heads.head_dim, config.rope_layout);
        let unit_rows = if place.turned { head_dim } else { OCTET };
        let incoming =
            self.incoming.entry(tensor).or_insert_with(|| Incoming { place, pending: Vec::new(), rows_done: 0 });
        let building =
            self.building.get_mut(&place.slot).ok_or_else(|| WeightsError::Missing(format!("{:?}", place.slot)))?;
        let Some(cols) = place.cols else {
            incoming.pending.extend_from_slice(bytes);
            let values = incoming.pending.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            if incoming.pending.len() == place.rows * 4 {
                building.gain = values.collect();
                building.rows_missing = 0;
                self.incoming.remove(&tensor);
                self.upload(place.slot);
            }
            return Ok(());
        };
        if building.words.is_empty() {
            let MatrixShape { codec, rows, cols } = building.shape;
            building.words = vec![0; codec.words(rows, cols)];
            building.scales = vec![0; codec.scale_words(rows, cols)];
        }
        let row_bytes = format.row_bytes(cols);
        while !bytes.is_empty() {
            let unit_rows = unit_rows.min(place.rows - incoming.rows_done);
            let unit = unit_rows * row_bytes;
            let wanted = unit - incoming.pending.len();
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            bytes = later;
            // Whole units are packed from where they lie.
            let rows = if incoming.pending.is_empty() && now.len() == unit {
                now
            } else {
                incoming.pending.extend_from_slice(now);
                if incoming.pending.len() < unit {
                    break;
                }
                &incoming.pending[..]
            };
            incoming
                .place
                .pack(format, rows, incoming.rows_done, building, layout)
                .map_err(|problem| WeightsError::Tensor { name: format!("{:?}", place.slot), problem })?;
            incoming.pending.clear();
            incoming.rows_done += unit_rows;
            building.rows_missing -= unit_rows;
        }
        if incoming.rows_done == place.rows {
            self.incoming.remove(&tensor);
        }
        if building.rows_missing == 0 {
            self.upload(place.slot);
        }
        Ok(())
    }

    /// Moves a complete matrix or gain to the device.
    fn upload(&mut self, slot: Slot) {
        let Some(done) = self.building.remove(&slot) else { return };
        if done.shape.cols == 0 {
            self.bytes += done.gain.len() as u64 * 4;
            self.gains.insert(slot, kernels::floats(done.gain, &self.device));
            return;
        }
        self.bytes += (done.words.len() + done.scales.len()) as u64 * 4;
        self.checksums.push((slot, checksum(&done.words) ^ checksum(&done.scales).rotate_left(1)));
        let words = kernels::words(done.words, &self.device);
        let scales = kernels::words(done.scales, &self.device);
        self.matrices.insert(slot, Matrix { words, scales, shape: done.shape });
    }

    fn weights(mut self, config: &Config) -> Result<Weights, WeightsError> {
        let layers = (0..config.layers)
            .map(|layer| {
                Ok(Layer {
                    attention_norm: self.gain(Slot::AttentionNorm(layer))?,
                    qkv: self.matrix(Slot::Qkv(layer))?,
                    sink_logits: self.gains.remove(&Slot::SinkLogits(layer)).unwrap_or_else(|| {
                        kernels::floats(vec![kernels::NO_SINK_LOGIT; config.heads.n_heads], &self.device)
                    }),
                    attention_out: self.matrix(Slot::AttentionOut(layer))?,
                    feed_forward_norm: self.gain(Slot::FeedForwardNorm(layer))?,
                    gate_up: self.matrix(Slot::GateUp(layer))?,
                    down: self.matrix(Slot::Down(layer))?,
                })
            })
            .collect::<Result<Vec<_>, WeightsError>>()?;
        Ok(Weights {
            embedding: self.matrix(Slot::Embedding)?,
            layers,
            norm: self.gain(Slot::Norm)?,
            output: self.matrices.remove(&Slot::Output),
            bytes: self.bytes,
            checksums: self.checksums.into_iter().map(|(slot, sum)| (format!("{slot:?}"), sum)).collect(),
        })
    }

    fn matrix(&mut self, slot: Slot) -> Result<Matrix, WeightsError> {
        self.matrices.remove(&slot).ok_or_else(|| WeightsError::Missing(format!("{slot:?}")))
    }

    fn gain(&mut self, slot: Slot) -> Result<Tensor<1>, WeightsError> {
        self.gains.remove(&slot).ok_or_else(|| WeightsError::Missing(format!("{slot:?}")))
    }
}

impl Place {
    /// Packs whole rows, the first of which is row `first_row` of the tensor.
    fn pack(
        &self,
        format: Format,
        rows: &[u8],
        first_row: usize,
        building: &mut Building,
        layout: RopeLayout,
    ) -> Result<(), String> {
        let MatrixShape { codec, cols, .. } = building.shape;
        let row_bytes = format.row_bytes(cols);
        let count = rows.len() / row_bytes;
        let (words_each, scales_each) = (codec.words_per_octet(cols), codec.scale_words_per_octet(cols));
        for octet in 0..count.div_ceil(OCTET) {
            let row = |r: usize| -> &[u8] {
                let wanted = octet * OCTET + r;
                let from = match layout {
                    RopeLayout::Interleaved if self.turned => interleaved(wanted, count),
                    _ => wanted,
                };
                rows.get(from * row_bytes..(from + 1) * row_bytes).unwrap_or(&[])
            };
            let to = self.first + (first_row / OCTET + octet) * self.stride;
            let words = &mut building.words[to * words_each..(to + 1) * words_each];
            let scales = &mut building.scales[to * scales_each..(to + 1) * scales_each];
            let eight: [&[u8]; OCTET] = std::array::from_fn(row);
            pack_octet(codec, format, cols, eight, words, scales).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// The row of an interleaved head that holds row `wanted` of a half-split one.
fn interleaved(wanted: usize, head_dim: usize) -> usize {
    let half = head_dim / 2;
    if wanted < half { 2 * wanted } else { 2 * (wanted - half) + 1 }
}

fn format_of(kind: TensorKind) -> Format {
    match kind {
        TensorKind::F32 => Format::F32,
        TensorKind::F16 => Format::F16,
        TensorKind::Q8_0 => Format::Q8_0,
        TensorKind::Q4_0 => Format::Q4_0,
        TensorKind::Q4_1 => Format::Q4_1,
    }
}

/// Every tensor of a Llama model: name, whether it may be missing, place.
fn needed_tensors(config: &Config) -> Vec<(String, bool, Place)> {
    let (d, ff, vocab) = (config.d_model, config.d_ff, config.vocab);
    let (q, kv) = (config.heads.q_cols(), config.heads.kv_cols());
    let matrix = |slot, rows, cols| Place { slot, rows, cols: Some(cols), first: 0, stride: 1, turned: false };
    let vector = |slot, rows| Place { slot, rows, cols: None, first: 0, stride: 1, turned: false };
    let gain = |slot| vector(slot, d);
    let mut needed = vec![
        ("token_embd.weight".to_owned(), false, matrix(Slot::Embedding, vocab, d)),
        ("output.weight".to_owned(), true, matrix(Slot::Output, vocab, d)),
        ("output_norm.weight".to_owned(), false, gain(Slot::Norm)),
    ];
    for layer in 0..config.layers {
        let qkv =
            |rows, first_row, turned| Place { first: octets(first_row), turned, ..matrix(Slot::Qkv(layer), rows, d) };
        let gate_up = |first| Place { first, stride: 2, ..matrix(Slot::GateUp(layer), ff, d) };
        let logits = vector(Slot::SinkLogits(layer), config.heads.n_heads);
        needed.push((format!("blk.{layer}.{SINK_LOGITS}.weight"), true, logits));
        let parts = [
            ("attn_norm", gain(Slot::AttentionNorm(layer))),
            ("attn_q", qkv(q, 0, true)),
            ("attn_k", qkv(kv, q, true)),
            ("attn_v", qkv(kv, q + kv, false)),
            ("attn_output", matrix(Slot::AttentionOut(layer), d, q)),
            ("ffn_norm", gain(Slot::FeedForwardNorm(layer))),
            ("ffn_gate", gate_up(0)),
            ("ffn_up", gate_up(1)),
            ("ffn_down", matrix(Slot::Down(layer), d, ff)),
        ];
        needed.extend(parts.map(|(part, place)| (format!("blk.{layer}.{part}.weight"), false, place)));
    }
    needed
}

/// FNV-1a over words: enough to see memory that does not keep what it is given.
fn checksum(words: &[u32]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| (sum ^ u64::from(*word)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Weights {
    /// The matrix of the last projection.
    pub fn head(&self) -> &Matrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Reads every matrix back once and compares its checksum with that of what was sent.
    ///
    /// # Errors
    /// The first matrix that differs or cannot be read.
    pub async fn verify(&self) -> Result<(), WeightsError> {
        let mut matrices: HashMap<String, &Matrix> = HashMap::new();
        matrices.insert(format!("{:?}", Slot::Embedding), &self.embedding);
        if let Some(output) = &self.output {
            matrices.insert(format!("{:?}", Slot::Output), output);
        }
        for (i, layer) in self.layers.iter().enumerate() {
            matrices.insert(format!("{:?}", Slot::Qkv(i)), &layer.qkv);
            matrices.insert(format!("{:?}", Slot::AttentionOut(i)), &layer.attention_out);
            matrices.insert(format!("{:?}", Slot::GateUp(i)), &layer.gate_up);
            matrices.insert(format!("{:?}", Slot::Down(i)), &layer.down);
        }
        for (name, sent) in &self.checksums {
            let corrupt = || WeightsError::Corrupt(name.clone());
            let matrix = matrices.get(name).ok_or_else(corrupt)?;
            let words = read_words(&matrix.words).await.ok_or_else(corrupt)?;
            let scales = read_words(&matrix.scales).await.ok_or_else(corrupt)?;
            if checksum(&words) ^ checksum(&scales).rotate_left(1) != *sent {
                return Err(corrupt());
            }
        }
        Ok(())
    }
}

async fn read_words(tensor: &Tensor<1, Int>) -> Option<Vec<u32>> {
    tensor.clone().into_data_async().await.ok()?.try_to_vec::<u32>().ok()
}
