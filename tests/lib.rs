//! What the tests share: small random models as GGUF files, the real model, and the golden values.

pub mod runs;

use model::device::Place;
use model::gguf::Header;
use model::session::{CacheSettings, Model, Session, Want};
use model::transformer::RowReport;
use model::weights::{Loader, WeightsError};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The checkout's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A golden file, parsed.
///
/// # Panics
/// It is not there, or of another shape.
pub fn golden<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = root().join("tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The real model's file.
///
/// # Panics
/// It is not there.
pub fn real_model_path() -> PathBuf {
    let path = root().join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.exists(), "{} is missing: `cargo xtask demo` or `cargo xtask test` fetches it", path.display());
    path
}

/// The machine, for tests that keep all its cores busy: two at a time take far longer than one after the other, since the
/// kernels' threads wait awake for each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    // A test that failed with it has left nothing behind.
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The real model at `place`.
///
/// # Panics
/// It is not there, or damaged.
pub fn real_model(place: Place) -> (Rc<Model>, Header) {
    let bytes = std::fs::read(real_model_path()).expect("the model can be read");
    load(&bytes, place).expect("the model is whole")
}

/// A model from the bytes of a file.
///
/// # Errors
/// The file is refused.
pub fn load(bytes: &[u8], place: Place) -> Result<(Rc<Model>, Header), WeightsError> {
    let mut loader = Loader::new(place.device.clone());
    for piece in bytes.chunks(1 << 20) {
        loader.push(piece)?;
    }
    let (config, header, weights) = loader.finish()?;
    Ok((Rc::new(Model { config, weights, place }), header))
}

/// Negative log-likelihood of every token after the first, and the reports of all rows, with `chunk` tokens at a time.
///
/// # Panics
/// The settings do not fit the model.
pub fn read_all(
    model: &Rc<Model>,
    settings: CacheSettings,
    tokens: &[u32],
    chunk: usize,
) -> (Vec<f64>, Vec<RowReport>) {
    let mut session = Session::new(Rc::clone(model), settings, chunk).expect("the settings fit the model");
    let mut rows = Vec::new();
    while rows.len() < tokens.len() {
        let want = Want::All { forced: &tokens[rows.len() + 1..] };
        let fed = pollster::block_on(session.feed_one(&tokens[rows.len()..], want)).expect("the tokens can be fed");
        rows.extend(fed.rows);
    }
    let nll = rows[..rows.len() - 1].iter().map(|row| f64::from(row.log_sum_exp) - f64::from(row.forced)).collect();
    (nll, rows)
}

/// A stream of numbers that is the same everywhere (Steele, Lea and Flood's SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }
}

/// How a matrix is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Q8_0,
    Q4_0,
    Q4_1,
}

/// A small Llama with random weights.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    pub layers: u32,
    pub d_model: u32,
    pub d_ff: u32,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub vocab: u32,
    pub kind: Kind,
    /// Of the queries' projection alone, so that the fused matrix has parts of two kinds.
    pub query_kind: Kind,
    pub tied: bool,
    /// The logit that every head has learned.
    pub sink_logits: Option<f32>,
    pub seed: u64,
}

impl Default for Tiny {
    fn default() -> Self {
        Self {
            layers: 2,
            d_model: 64,
            d_ff: 96,
            n_heads: 4,
            n_kv_heads: 2,
            vocab: 300,
            kind: Kind::Q4_1,
            query_kind: Kind::Q4_1,
            tied: true,
            sink_logits: None,
            seed: 1,
        }
    }
}

impl Tiny {
    /// The GGUF file, with a byte-level tokenizer and a chat template of its own.
    pub fn gguf(&self) -> Vec<u8> {
        let mut random = Random(self.seed);
        let mut file = Gguf::default();
        file.text("general.architecture", "llama");
        file.text("general.name", "tiny");
        for (key, value) in [
            ("llama.block_count", self.layers),
            ("llama.context_length", 4096),
            ("llama.embedding_length", self.d_model),
            ("llama.feed_forward_length", self.d_ff),
            ("llama.attention.head_count", self.n_heads),
            ("llama.attention.head_count_kv", self.n_kv_heads),
            ("llama.rope.dimension_count", self.d_model / self.n_heads),
        ] {
            file.number(key, value);
        }
        file.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
        file.float("llama.rope.freq_base", 10_000.0);
        self.tokenizer(&mut file);
        let (d, ff, vocab) = (self.d_model, self.d_ff, self.vocab);
        let head_dim = d / self.n_heads;
        let kv = head_dim * self.n_kv_heads;
        let mut matrix = |name: &str, rows: u32, cols: u32, kind: Kind, scale: f32| {
            let values: Vec<f32> = (0..rows * cols).map(|_| random.unit() * scale).collect();
            file.tensor(name, &[u64::from(cols), u64::from(rows)], kind, &values);
        };
        matrix("token_embd.weight", vocab, d, self.kind, 0.6);
        if !self.tied {
            matrix("output.weight", vocab, d, self.kind, 0.3);
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            matrix(&name("attn_q"), d, d, self.query_kind, 0.25);
            matrix(&name("attn_k"), kv, d, self.kind, 0.25);
            matrix(&name("attn_v"), kv, d, self.kind, 0.3);
            matrix(&name("attn_output"), d, d, self.kind, 0.3);
            matrix(&name("ffn_gate"), ff, d, self.kind, 0.3);
            matrix(&name("ffn_up"), ff, d, self.kind, 0.3);
            matrix(&name("ffn_down"), d, ff, self.kind, 0.3);
        }
        let mut gain = |name: &str| {
            let values: Vec<f32> = (0..d).map(|_| 1.0 + 0.2 * random.unit()).collect();
            file.tensor(name, &[u64::from(d)], Kind::F32, &values);
        };
        for layer in 0..self.layers {
            gain(&format!("blk.{layer}.attn_norm.weight"));
            gain(&format!("blk.{layer}.ffn_norm.weight"));
        }
        gain("output_norm.weight");
        if let Some(logit) = self.sink_logits {
            for layer in 0..self.layers {
                let values = vec![logit; self.n_heads as usize];
                file.tensor(&format!("blk.{layer}.attn_sinks.weight"), &[u64::from(self.n_heads)], Kind::F32, &values);
            }
        }
        file.finish()
    }

    fn tokenizer(&self, file: &mut Gguf) {
        // GPT-2's printable stand-ins for the 256 bytes, then control tokens up to the vocabulary's size.
        let plain = |b: &u32| (33..=126).contains(b) || (161..=172).contains(b) || (174..=255).contains(b);
        let mut bytes: Vec<u32> = (0..256).filter(plain).collect();
        let others = (0..256).filter(|b| !plain(b)).count() as u32;
        bytes.extend((0..others).map(|n| 256 + n));
        let mut tokens: Vec<String> = bytes.into_iter().filter_map(char::from_u32).map(String::from).collect();
        tokens.push("<|endoftext|>".to_owned());
        tokens.push("<|im_start|>".to_owned());
        tokens.push("<|im_end|>".to_owned());
        tokens.extend((tokens.len() as u32..self.vocab).map(|id| format!("<|{id}|>")));
        tokens.truncate(self.vocab as usize);
        let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect();
        file.text("tokenizer.ggml.model", "gpt2");
        file.text("tokenizer.ggml.pre", "smollm");
        file.texts("tokenizer.ggml.tokens", &tokens);
        file.integers("tokenizer.ggml.token_type", &types);
        file.texts("tokenizer.ggml.merges", &[]);
        file.number("tokenizer.ggml.bos_token_id", 257);
        file.number("tokenizer.ggml.eos_token_id", 258);
        file.text(
            "tokenizer.chat_template",
            "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' \
             + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        );
    }
}

/// Writes a GGUF file, version 3.
#[derive(Debug, Default)]
pub struct Gguf {
    pairs: Vec<u8>,
    pair_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

const ALIGNMENT: usize = 32;

impl Gguf {
    fn string(to: &mut Vec<u8>, text: &str) {
        to.extend((text.len() as u64).to_le_bytes());
        to.extend(text.as_bytes());
    }

    fn pair(&mut self, key: &str, kind: u32) {
        Self::string(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pair_count += 1;
    }

    /// A string.
    pub fn text(&mut self, key: &str, value: &str) {
        self.pair(key, 8);
        Self::string(&mut self.pairs, value);
    }

    /// A u32.
    pub fn number(&mut self, key: &str, value: u32) {
        self.pair(key, 4);
        self.pairs.extend(value.to_le_bytes());
    }

    /// An f32.
    pub fn float(&mut self, key: &str, value: f32) {
        self.pair(key, 6);
        self.pairs.extend(value.to_le_bytes());
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.pair(key, 9);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend((len as u64).to_le_bytes());
    }

    /// An array of strings.
    pub fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, 8, values.len());
        for value in values {
            Self::string(&mut self.pairs, value);
        }
    }

    /// An array of i32.
    pub fn integers(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len());
        self.pairs.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// A tensor; `dims` begin with the columns.
    pub fn tensor(&mut self, name: &str, dims: &[u64], kind: Kind, values: &[f32]) {
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        Self::string(&mut self.infos, name);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        self.infos.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        let id: u32 = match kind {
            Kind::F32 => 0,
            Kind::F16 => 1,
            Kind::Q4_0 => 2,
            Kind::Q4_1 => 3,
            Kind::Q8_0 => 8,
        };
        self.infos.extend(id.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.tensor_count += 1;
        match kind {
            Kind::F32 => self.data.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Kind::F16 => {
                self.data.extend(values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()));
            }
            Kind::Q8_0 | Kind::Q4_0 | Kind::Q4_1 => {
                values.chunks_exact(32).for_each(|block| quantize(block, kind, &mut self.data));
            }
        }
    }

    /// The whole file.
    pub fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.pair_count.to_le_bytes());
        file.extend(self.pairs);
        file.extend(self.infos);
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(self.data);
        file
    }
}

/// Quantizes 32 values the plain way.
fn quantize(block: &[f32], kind: Kind, to: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let least = block.iter().copied().fold(f32::INFINITY, f32::min);
    let most = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (scale, offset, range) = match kind {
        Kind::Q8_0 => (largest / 127.0, 0.0, (-127.0, 127.0)),
        Kind::Q4_0 => (largest / 8.0, -8.0 * largest / 8.0, (0.0, 15.0)),
        _ => ((most - least) / 15.0, least, (0.0, 15.0)),
    };
    to.extend(half::f16::from_f32(scale).to_le_bytes());
    if kind == Kind::Q4_1 {
        to.extend(half::f16::from_f32(offset).to_le_bytes());
    }
    let code = |value: &f32| ((value - offset) / scale).round().clamp(range.0, range.1);
    if kind == Kind::Q8_0 {
        to.extend(block.iter().map(|value| code(value) as i8 as u8));
    } else {
        to.extend((0..16).map(|i| code(&block[i]) as u8 | (code(&block[i + 16]) as u8) << 4));
    }
}
