//! GGUF weight files, version 2 and 3, read as a stream.
//!
//! Bytes go in as they arrive, in pieces of any size; the header comes out once, whole and checked,
//! then the tensors' data in file order. Only the header is ever kept (1.4 MB for SmolLM2, 2.1 MB
//! while it is read), and nothing of the tensors. No count or size in the file is believed before the
//! bytes that it promises are there, so what a lying file can allocate is bounded by what was received.
//!
//! Layout: `GGUF`, version, number of tensors, number of metadata pairs; the pairs; one description
//! a tensor; zeros up to the alignment; the tensors, each followed by zeros up to the alignment.

use std::collections::HashSet;
use std::error::Error;

use metadata::Scalar;
pub use metadata::{FromValue, Metadata, MetadataError, NumberArray, StringArray, Value};

mod metadata;

/// Most metadata pairs of a file; real ones have 20 to 60.
pub const MAX_PAIRS: u64 = 1 << 16;
/// Most tensors of a file; a model of 126 layers has about 1,200.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Most bytes of one string in the metadata; chat templates take up to 20 kB.
pub const MAX_STRING: u64 = 1 << 20;
/// Most bytes of a metadata key (the format's own limit) and of a tensor's name.
pub const MAX_NAME: u64 = (1 << 16) - 1;
/// Most bytes of the whole header; vocabularies of 256k tokens take about 12 MB.
pub const MAX_HEADER: u64 = 64 << 20;
/// Most dimensions of a tensor (the format's own limit).
pub const MAX_DIMS: u32 = 4;
/// Largest alignment of the data; files have 32.
pub const MAX_ALIGNMENT: u32 = 1 << 16;

/// Header bytes copied at a time.
const PIECE: usize = 64 << 10;
/// Magic, version and the two counts. The verdict on the magic waits for all of it.
const PREAMBLE: usize = 24;
const DEFAULT_ALIGNMENT: u32 = 32;

/// Why a file was refused. Every message names the place and what to do.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("this is {what}, not a GGUF model: check the address or the path")]
    NotGguf { what: String },
    #[error("GGUF version {found} is not supported: convert the model again, to version 2 or 3")]
    Version { found: u32 },
    #[error("the file ends in its header, after {have} bytes: at least {missing} bytes are missing; download it again")]
    HeaderTruncated { have: u64, missing: u64 },
    #[error("the file ends after {have} of {total} bytes: {missing} bytes are missing; download it again")]
    Truncated { have: u64, total: u64, missing: u64 },
    #[error("{what} is {found}, more than the {limit} that are accepted: the file is damaged, download it again")]
    Limit { what: String, found: u64, limit: u64 },
    #[error("metadata `{key}`: {problem}; the file is damaged, download or convert it again")]
    Pair { key: String, problem: String },
    #[error("{what} at byte {at} is not UTF-8 text: the file is damaged, download it again")]
    Text { what: String, at: u64 },
    #[error("tensor `{name}`: {problem}; the file is damaged, download or convert it again")]
    Tensor { name: String, problem: String },
    #[error("tensor `{name}` is stored as {kind}, which is not supported: use a Q4_1, Q4_0, Q8_0, F16 or F32 file")]
    Unsupported { name: String, kind: String },
    #[error("byte {at} of the file should be a zero of padding and is {found}: the file is damaged, download it again")]
    Padding { at: u64, found: u8 },
    #[error(
        "the file goes on after its last tensor, which ends at byte {total}: this is not the file that its header describes, download it again"
    )]
    Trailing { total: u64 },
    /// What the [`Sink`] answered.
    #[error(transparent)]
    Sink(#[from] Box<dyn Error + Send + Sync>),
    #[error("this file was already refused: start again with a new reader")]
    AlreadyFailed,
}

/// Where a [`Reader`] delivers. An error of the sink stops the reader.
pub trait Sink {
    /// Called once, when the metadata and all tensor descriptions are there and checked, before any data.
    fn header(&mut self, header: &Header) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// The next bytes of `header.tensors[tensor]`: in file order, in pieces of any size but 0, each byte once.
    fn data(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    F32,
    F16,
    /// Blocks of 32: f16 scale, 32 signed bytes.
    Q8_0,
    /// Blocks of 32: f16 scale, 32 codes of 4 bits, 8 is zero.
    Q4_0,
    /// Blocks of 32: f16 scale, f16 minimum, 32 codes of 4 bits.
    Q4_1,
}

impl TensorKind {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            _ => return None,
        })
    }

    /// Values that share a block; a row (`dims[0]`) is a whole number of blocks.
    pub fn block_values(self) -> u64 {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 => 32,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
        }
    }
}

/// The name of a storage type that exists and is not supported here, for the message.
fn unsupported_kind(id: u32) -> String {
    let name = match id {
        6 => "Q5_0",
        7 => "Q5_1",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        30 => "BF16",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("type number {id}"),
    };
    name.to_owned()
}

/// One tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// Fastest first: a matrix is `[columns, rows]`. One to four, none of them 0.
    pub dims: Vec<u64>,
    pub kind: TensorKind,
    /// Bytes from [`Header::data_offset`]; a multiple of the alignment.
    pub offset: u64,
    /// Size of the data, without padding.
    pub bytes: u64,
}

/// All that a file says before its data.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    pub version: u32,
    pub metadata: Metadata,
    /// In the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// Where the first tensor's data starts in the file.
    pub data_offset: u64,
    /// Where the last tensor's data ends. Zeros up to the alignment may follow.
    pub file_bytes: u64,
}

const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Why parsing paused.
enum Stop {
    /// The item under the cursor needs this many bytes more.
    More(u64),
    Bad(GgufError),
}

impl From<GgufError> for Stop {
    fn from(error: GgufError) -> Self {
        Self::Bad(error)
    }
}

/// Reads one item of the header out of the bytes that are there.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Of `bytes[0]` in the file.
    start: u64,
    /// The metadata key whose value is read, for messages; empty outside of values.
    key: &'a str,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], Stop> {
        let have = (self.bytes.len() - self.at) as u64;
        if have < count {
            return Err(Stop::More(count - have));
        }
        let (taken, _) = self.bytes[self.at..].split_at(count as usize);
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A string of at most `limit` bytes; `what` it is, for messages.
    fn string(&mut self, what: &str, limit: u64) -> Result<&'a str, Stop> {
        let at = self.place();
        let name = |key: &str| if key.is_empty() { what.to_owned() } else { format!("{what} of `{key}`") };
        let length = self.u64()?;
        if length > limit {
            let what = format!("the length of {} at byte {at}", name(self.key));
            return Err(GgufError::Limit { what, found: length, limit }.into());
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::Text { what: name(self.key), at }.into())
    }

    /// Where the cursor is in the file.
    fn place(&self) -> u64 {
        self.start + self.at as u64
    }

    fn bad_pair(&self, problem: String) -> Stop {
        GgufError::Pair { key: self.key.to_owned(), problem }.into()
    }
}

/// A metadata array of which some elements may still have to come.
struct OpenArray {
    key: String,
    left: u64,
    value: OpenValue,
}

enum OpenValue {
    Numbers(NumberArray),
    Strings(StringArray),
}

impl OpenValue {
    /// The complete array, without the room it had to grow.
    fn close(self) -> Value {
        match self {
            Self::Numbers(array) => Value::Numbers(array.shrunk()),
            Self::Strings(array) => Value::Strings(array.shrunk()),
        }
    }
}

enum Stage {
    Preamble,
    Pairs,
    Array(OpenArray),
    Tensors,
    Data,
    Failed,
}

/// Takes a file's bytes as they arrive and gives its header and data to a [`Sink`].
///
/// The events depend on the bytes only, not on how they were cut into pieces (but for the pieces of
/// one tensor's data).
pub struct Reader {
    stage: Stage,
    /// Header bytes that are not understood yet: at most one item and a [`PIECE`].
    pending: Vec<u8>,
    /// Bytes of the file that are dealt with; those in `pending` are not.
    position: u64,
    /// At the end of `pending`, how many bytes the item that starts there still needs.
    needed: u64,
    pairs_left: u64,
    tensors_left: u64,
    header: Header,
    alignment: u64,
    /// The tensor whose data come next.
    tensor: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    pub fn new() -> Self {
        Self {
            stage: Stage::Preamble,
            pending: Vec::new(),
            position: 0,
            needed: PREAMBLE as u64,
            pairs_left: 0,
            tensors_left: 0,
            header: Header {
                version: 0,
                metadata: Metadata::default(),
                tensors: Vec::new(),
                data_offset: 0,
                file_bytes: 0,
            },
            alignment: DEFAULT_ALIGNMENT.into(),
            tensor: 0,
        }
    }

    /// Takes the next bytes of the file. After an error every call fails.
    pub fn push(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), GgufError> {
        let result = self.advance(bytes, sink);
        if result.is_err() {
            self.stage = Stage::Failed;
            self.pending = Vec::new();
        }
        result
    }

    /// The header, once it is complete and checked.
    pub fn header(&self) -> Option<&Header> {
        matches!(self.stage, Stage::Data).then_some(&self.header)
    }

    /// Tensors whose data have come whole.
    pub fn tensors_read(&self) -> usize {
        self.tensor
    }

    /// Checks that nothing is missing, and gives the header.
    pub fn finish(self) -> Result<Header, GgufError> {
        match self.stage {
            Stage::Failed => Err(GgufError::AlreadyFailed),
            Stage::Data if self.position >= self.header.file_bytes => Ok(self.header),
            Stage::Data => Err(GgufError::Truncated {
                have: self.position,
                total: self.header.file_bytes,
                missing: self.header.file_bytes - self.position,
            }),
            Stage::Preamble if !self.pending.starts_with(b"GGUF") && !b"GGUF".starts_with(&self.pending) => {
                Err(GgufError::NotGguf { what: what_it_looks_like(&self.pending) })
            }
            Stage::Preamble | Stage::Pairs | Stage::Array(_) | Stage::Tensors => Err(GgufError::HeaderTruncated {
                have: self.position + self.pending.len() as u64,
                missing: self.needed,
            }),
        }
    }

    fn advance(&mut self, mut bytes: &[u8], sink: &mut dyn Sink) -> Result<(), GgufError> {
        if matches!(self.stage, Stage::Failed) {
            return Err(GgufError::AlreadyFailed);
        }
        while !matches!(self.stage, Stage::Data) {
            if bytes.is_empty() {
                return Ok(());
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(PIECE));
            bytes = rest;
            self.pending.extend_from_slice(piece);
            self.parse_pending()?;
            if matches!(self.stage, Stage::Data) {
                sink.header(&self.header)?;
                let pending = std::mem::take(&mut self.pending);
                self.deliver(&pending, sink)?;
            }
        }
        self.deliver(bytes, sink)
    }

    /// Parses as many items as `pending` holds.
    fn parse_pending(&mut self) -> Result<(), GgufError> {
        let pending = std::mem::take(&mut self.pending);
        let mut used = 0;
        while !matches!(self.stage, Stage::Data) {
            let mut cursor = Cursor { bytes: &pending, at: used, start: self.position - used as u64, key: "" };
            match self.parse_item(&mut cursor) {
                Ok(()) => {
                    self.position += (cursor.at - used) as u64;
                    used = cursor.at;
                }
                Err(Stop::More(needed)) => {
                    self.needed = needed;
                    break;
                }
                Err(Stop::Bad(error)) => return Err(error),
            }
            if self.position > MAX_HEADER {
                let what = "the size of the header in bytes".to_owned();
                return Err(GgufError::Limit { what, found: self.position, limit: MAX_HEADER });
            }
        }
        self.pending = pending;
        self.pending.drain(..used);
        Ok(())
    }

    /// Parses one item whole, or leaves everything as it was and says how much is missing.
    fn parse_item(&mut self, cursor: &mut Cursor) -> Result<(), Stop> {
        match &mut self.stage {
            Stage::Preamble => self.parse_preamble(cursor),
            Stage::Pairs if self.pairs_left == 0 => {
                self.alignment = alignment(&self.header.metadata)?;
                self.stage = Stage::Tensors;
                Ok(())
            }
            Stage::Pairs => self.parse_pair(cursor),
            Stage::Array(array) => {
                parse_elements(array, cursor)?;
                if array.left == 0 {
                    let key = std::mem::take(&mut array.key);
                    let value = std::mem::replace(&mut array.value, OpenValue::Strings(StringArray::default()));
                    self.stage = Stage::Pairs;
                    self.insert_pair(key, value.close());
                }
                Ok(())
            }
            Stage::Tensors if self.tensors_left == 0 => self.close_header(),
            Stage::Tensors => {
                let info = parse_tensor_info(cursor)?;
                self.header.tensors.push(info);
                self.tensors_left -= 1;
                Ok(())
            }
            Stage::Data | Stage::Failed => Ok(()),
        }
    }

    fn parse_preamble(&mut self, cursor: &mut Cursor) -> Result<(), Stop> {
        let bytes: [u8; PREAMBLE] = cursor.array()?;
        if !bytes.starts_with(b"GGUF") {
            return Err(GgufError::NotGguf { what: what_it_looks_like(&bytes) }.into());
        }
        let mut fields = Cursor { bytes: &bytes, at: 4, start: 0, key: "" };
        let (version, tensors, pairs) = (fields.u32()?, fields.u64()?, fields.u64()?);
        if (2..=3).contains(&version.swap_bytes()) {
            let what = "a big-endian GGUF file (convert it again, little-endian)".to_owned();
            return Err(GgufError::NotGguf { what }.into());
        }
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { found: version }.into());
        }
        limit("the number of metadata pairs", pairs, MAX_PAIRS)?;
        limit("the number of tensors", tensors, MAX_TENSORS)?;
        self.header.version = version;
        self.pairs_left = pairs;
        self.tensors_left = tensors;
        self.stage = Stage::Pairs;
        Ok(())
    }

    /// Parses a pair, or the beginning of one whose value is an array.
    fn parse_pair(&mut self, cursor: &mut Cursor) -> Result<(), Stop> {
        let key = cursor.string("a metadata key", MAX_NAME)?;
        cursor.key = key;
        if self.header.metadata.contains(key) {
            return Err(cursor.bad_pair("the key appears twice".to_owned()));
        }
        let value = match cursor.u32()? {
            STRING => Value::String(cursor.string("the text", MAX_STRING)?.to_owned()),
            ARRAY => {
                let (element, left) = (cursor.u32()?, cursor.u64()?);
                let (value, least) = match (element, Scalar::from_id(element)) {
                    (_, Some(scalar)) => {
                        let array = NumberArray::new(scalar);
                        (OpenValue::Numbers(array), scalar.bytes() as u64)
                    }
                    (STRING, None) => (OpenValue::Strings(StringArray::default()), 8),
                    (ARRAY, None) => {
                        return Err(cursor.bad_pair("an array holds arrays, which no model needs".to_owned()));
                    }
                    (other, None) => return Err(cursor.bad_pair(format!("there is no value type {other}"))),
                };
                // Refused at once: an absurd count would otherwise swallow the tensors first.
                let most = MAX_HEADER / least;
                if left > most {
                    let what = format!("the number of elements of `{key}`");
                    return Err(GgufError::Limit { what, found: left, limit: most }.into());
                }
                self.stage = Stage::Array(OpenArray { key: key.to_owned(), left, value });
                return Ok(());
            }
            other => match Scalar::from_id(other) {
                Some(scalar) => scalar.read(cursor)?,
                None => return Err(cursor.bad_pair(format!("there is no value type {other}"))),
            },
        };
        let key = key.to_owned();
        self.insert_pair(key, value);
        Ok(())
    }

    fn insert_pair(&mut self, key: String, value: Value) {
        self.header.metadata.insert(key, value);
        self.pairs_left -= 1;
    }

    /// Checks the tensors against each other and fixes where the data are.
    fn close_header(&mut self) -> Result<(), Stop> {
        let tensors = &mut self.header.tensors;
        let mut names = HashSet::new();
        for tensor in tensors.iter() {
            if !names.insert(tensor.name.as_str()) {
                return Err(bad_tensor(&tensor.name, "the name appears twice".to_owned()));
            }
        }
        drop(names);

        tensors.sort_by_key(|tensor| tensor.offset);
        let overflow = |name: &str| bad_tensor(name, "the data would end beyond any file".to_owned());
        // Files are written without gaps, so that each offset follows from the sizes before it:
        // an offset or a size that lies shows here, before any data are believed.
        let (mut expected, mut end) = (0, 0);
        for tensor in tensors.iter() {
            if tensor.offset != expected {
                let problem = format!("the data should start at offset {expected} and start at {}", tensor.offset);
                return Err(bad_tensor(&tensor.name, problem));
            }
            end = tensor.offset.checked_add(tensor.bytes).ok_or_else(|| overflow(&tensor.name))?;
            expected = end.checked_next_multiple_of(self.alignment).ok_or_else(|| overflow(&tensor.name))?;
        }

        let header_bytes = self.position;
        self.header.data_offset = header_bytes.next_multiple_of(self.alignment);
        self.header.file_bytes = match tensors.last() {
            Some(last) => self.header.data_offset.checked_add(end).ok_or_else(|| overflow(&last.name))?,
            None => header_bytes,
        };
        if self.header.file_bytes.checked_next_multiple_of(self.alignment).is_none() {
            return Err(overflow("the last one"));
        }
        self.stage = Stage::Data;
        Ok(())
    }

    /// Gives data to the sink and checks the padding between.
    fn deliver(&mut self, mut bytes: &[u8], sink: &mut dyn Sink) -> Result<(), GgufError> {
        while !bytes.is_empty() {
            let next = self.header.tensors.get(self.tensor).map(|tensor| {
                let start = self.header.data_offset + tensor.offset;
                (start, start + tensor.bytes)
            });
            match next {
                Some((start, end)) if self.position >= start => {
                    let count = clamp_len(bytes, end - self.position);
                    let (data, rest) = bytes.split_at(count);
                    sink.data(self.tensor, data)?;
                    self.position += count as u64;
                    if self.position == end {
                        self.tensor += 1;
                    }
                    bytes = rest;
                }
                _ => {
                    let total = self.header.file_bytes;
                    let until = next.map_or(total.next_multiple_of(self.alignment), |(start, _)| start);
                    let count = clamp_len(bytes, until - self.position);
                    if count == 0 {
                        return Err(GgufError::Trailing { total });
                    }
                    let (padding, rest) = bytes.split_at(count);
                    if let Some(index) = padding.iter().position(|byte| *byte != 0) {
                        let found = padding[index];
                        return Err(GgufError::Padding { at: self.position + index as u64, found });
                    }
                    self.position += count as u64;
                    bytes = rest;
                }
            }
        }
        Ok(())
    }
}

/// The length of `bytes`, or `most` if that is less.
fn clamp_len(bytes: &[u8], most: u64) -> usize {
    usize::try_from(most).map_or(bytes.len(), |most| bytes.len().min(most))
}

fn limit(what: &str, found: u64, limit: u64) -> Result<(), GgufError> {
    if found > limit {
        return Err(GgufError::Limit { what: what.to_owned(), found, limit });
    }
    Ok(())
}

fn bad_tensor(name: &str, problem: String) -> Stop {
    GgufError::Tensor { name: name.to_owned(), problem }.into()
}

/// Parses the elements that are there, at least one of those that are left.
fn parse_elements(array: &mut OpenArray, cursor: &mut Cursor) -> Result<(), Stop> {
    let mut taken = 0;
    while array.left > 0 {
        let mut element = Cursor { key: &array.key, ..*cursor };
        let outcome = match &mut array.value {
            OpenValue::Strings(strings) => element.string("an element", MAX_STRING).map(|string| strings.push(string)),
            OpenValue::Numbers(numbers) => numbers.push(&mut element),
        };
        match outcome {
            Ok(()) => {}
            Err(Stop::More(_)) if taken > 0 => break,
            Err(stop) => return Err(stop),
        }
        cursor.at = element.at;
        taken += 1;
        array.left -= 1;
    }
    Ok(())
}

fn parse_tensor_info(cursor: &mut Cursor) -> Result<TensorInfo, Stop> {
    let place = cursor.place();
    let name = cursor.string("a tensor's name", MAX_NAME)?;
    let bad = |problem| Err(bad_tensor(name, problem));
    if name.is_empty() {
        return bad(format!("the name at byte {place} is empty"));
    }
    let n_dims = cursor.u32()?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return bad(format!("it has {n_dims} dimensions instead of 1 to {MAX_DIMS}"));
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(cursor.u64()?);
    }
    let (kind, offset) = (cursor.u32()?, cursor.u64()?);
    let Some(kind) = TensorKind::from_id(kind) else {
        return Err(GgufError::Unsupported { name: name.to_owned(), kind: unsupported_kind(kind) }.into());
    };
    let Some(row) = dims.first().copied().filter(|_| !dims.contains(&0)) else {
        return bad(format!("a dimension of {dims:?} is 0"));
    };
    let block = kind.block_values();
    if !row.is_multiple_of(block) {
        return bad(format!("a row of {row} values is not whole blocks of {block}, as {kind:?} needs"));
    }
    // Values first: a count that overflows is a lie whatever the bytes of a block.
    let values = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let Some(bytes) = values.and_then(|values| (values / block).checked_mul(kind.block_bytes())) else {
        return bad(format!("its size {dims:?} is beyond any file"));
    };
    Ok(TensorInfo { name: name.to_owned(), dims, kind, offset, bytes })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let bad = |problem| GgufError::Pair { key: KEY.to_owned(), problem };
    let alignment = metadata.get::<u32>(KEY).map_err(|error| bad(error.to_string()))?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(bad(format!("{alignment} is no power of two from 1 to {MAX_ALIGNMENT}")));
    }
    Ok(alignment.into())
}

/// What a file is that does not start as a GGUF file does, from its first bytes.
fn what_it_looks_like(bytes: &[u8]) -> String {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let starts = |prefix: &[u8]| text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let name = if starts(b"<!doctype") || starts(b"<html") || starts(b"<head") || starts(b"<body") {
        "an HTML page"
    } else if starts(b"<") {
        "an HTML or XML page"
    } else if starts(b"{") || starts(b"[") {
        "JSON text"
    } else if starts(b"version https://git") {
        "a Git LFS pointer, a note in place of the file (fetch the file itself)"
    } else if starts(b"PK\x03\x04") {
        "a zip archive (a PyTorch file is one, too)"
    } else if starts(b"\x1f\x8b") {
        "a gzip archive (unpack it first)"
    } else if bytes.get(8) == Some(&b'{') {
        "a safetensors file (convert it to GGUF first)"
    } else if [b"lmgg".as_slice(), b"fmgg", b"tjgg", b"algg"].iter().any(|magic| bytes.starts_with(magic)) {
        "a model in a format older than GGUF (convert it again)"
    } else if !text.is_empty() && text.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        "plain text"
    } else {
        let start = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        return format!("a file that starts with the bytes {start}");
    };
    name.to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
