//! Small GGUF files, true and lying, for the tests of the reader and for its fuzz program.

/// A metadata value to write.
#[derive(Clone)]
pub enum Field {
    U32(u32),
    I32s(Vec<i32>),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    /// A type number and the value's bytes, right or wrong.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Field {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

/// A tensor to write. `kind` is the format's number: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 8 Q8_0.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
    /// Written in place of the true offset.
    pub false_offset: Option<u64>,
}

impl Tensor {
    /// A tensor whose data are `seed, seed + 1, ...`.
    pub fn new(name: &str, dims: &[u64], kind: u32, bytes: usize, seed: u8) -> Self {
        let data = (0..bytes).map(|index| seed.wrapping_add(index as u8)).collect();
        Self { name: name.to_owned(), dims: dims.to_vec(), kind, data, false_offset: None }
    }
}

/// A file to write.
#[derive(Clone)]
pub struct File {
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(String, Field)>,
    pub tensors: Vec<Tensor>,
    /// Written in place of the true numbers of tensors and pairs.
    pub false_counts: Option<(u64, u64)>,
}

/// A written file.
pub struct Written {
    pub bytes: Vec<u8>,
    /// Places and sizes (4 or 8 bytes) of the integers that steer the reader.
    pub integers: Vec<(usize, usize)>,
    /// Where the data start.
    pub data_offset: usize,
}

impl File {
    /// One tensor of each kind that is read, one pair of each type that models use.
    pub fn sample() -> Self {
        let strings = |list: &[&str]| Field::Strings(list.iter().map(|text| (*text).to_owned()).collect());
        let pairs = [
            ("general.architecture", Field::from("llama")),
            ("llama.block_count", Field::U32(2)),
            ("llama.rope.freq_base", Field::F32(100_000.0)),
            ("tokenizer.ggml.add_bos_token", Field::Bool(false)),
            ("tokenizer.ggml.tokens", strings(&["<|end|>", "a", "", "Ġé", "ab"])),
            ("tokenizer.ggml.token_type", Field::I32s(vec![3, 1, 1, 1, 1])),
            ("tokenizer.ggml.merges", strings(&["a b"])),
            ("long", Field::Raw(10, 5_000_000_000u64.to_le_bytes().to_vec())),
        ];
        let tensors = vec![
            Tensor::new("token_embd.weight", &[32, 3], 8, 102, 1),
            Tensor::new("norm", &[5], 0, 20, 50),
            Tensor::new("half", &[3, 2], 1, 12, 90),
            Tensor::new("q4_1", &[64, 2], 3, 80, 130),
            Tensor::new("q4_0", &[32], 2, 18, 200),
        ];
        Self {
            version: 3,
            alignment: 32,
            pairs: pairs.map(|(key, field)| (key.to_owned(), field)).to_vec(),
            tensors,
            false_counts: None,
        }
    }

    pub fn write(&self) -> Written {
        let mut out = Out::default();
        out.bytes.extend_from_slice(b"GGUF");
        out.u32(self.version);
        let counts = (self.tensors.len() as u64, self.pairs.len() as u64);
        let (tensors, pairs) = self.false_counts.unwrap_or(counts);
        out.u64(tensors);
        out.u64(pairs);
        for (key, field) in &self.pairs {
            out.string(key);
            out.field(field);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.string(&tensor.name);
            out.u32(tensor.dims.len() as u32);
            for dim in &tensor.dims {
                out.u64(*dim);
            }
            out.u32(tensor.kind);
            out.u64(tensor.false_offset.unwrap_or(offset));
            offset += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        let Out { mut bytes, integers } = out;
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        let data_offset = bytes.len();
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend_from_slice(&tensor.data);
        }
        Written { bytes, integers, data_offset }
    }
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    integers: Vec<(usize, usize)>,
}

impl Out {
    fn u32(&mut self, value: u32) {
        self.integers.push((self.bytes.len(), 4));
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.integers.push((self.bytes.len(), 8));
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn field(&mut self, field: &Field) {
        match field {
            Field::U32(value) => {
                self.u32(4);
                self.u32(*value);
            }
            Field::F32(value) => {
                self.u32(6);
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
            Field::Bool(value) => {
                self.u32(7);
                self.bytes.push((*value).into());
            }
            Field::String(text) => {
                self.u32(8);
                self.string(text);
            }
            Field::Strings(list) => {
                self.u32(9);
                self.u32(8);
                self.u64(list.len() as u64);
                for text in list {
                    self.string(text);
                }
            }
            Field::I32s(list) => {
                self.u32(9);
                self.u32(5);
                self.u64(list.len() as u64);
                for value in list {
                    self.bytes.extend_from_slice(&value.to_le_bytes());
                }
            }
            Field::Raw(kind, bytes) => {
                self.u32(*kind);
                self.bytes.extend_from_slice(bytes);
            }
        }
    }
}
