//! Text to token ids, and ids to bytes: byte-level byte-pair encoding, from a weight file's own
//! metadata or from a `tokenizer.json`.
//!
//! The `tokenizers` crate encodes. Bytes of tokens are kept here, packed, so that decoding is a
//! look-up; turning them into text without ever splitting a character is [`crate::detokenize`]'s.

use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, ModelWrapper};

use crate::gguf::{Header, MetadataError, StringArray};

/// Names of tokens that end an answer, where the file has them as control tokens.
const END_NAMES: [&str; 4] = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>"];
/// Most tokens of a vocabulary; the largest in use have 262,144.
const MAX_VOCAB: usize = 1 << 20;

/// Why there is no tokenizer, or no ids. Every message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(
        "the file has no tokenizer (no metadata `tokenizer.ggml.model`): use a complete model file, not one of weights alone"
    )]
    Missing,
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(
        "the tokenizer's {part} `{found}` is not supported: use a model with byte-level byte-pair encoding (`gpt2`) and the pre-tokenizer `smollm` or `gpt-2`"
    )]
    Unsupported { part: &'static str, found: String },
    #[error("the tokenizer is damaged: {0}; download or convert the model again")]
    Damaged(String),
    #[error("tokenizer.json cannot be read: {0}; use the file that was published with the model")]
    Json(#[from] serde_json::Error),
    #[error("this text cannot be encoded: {0}; shorten it or split it")]
    Encode(String),
}

/// A vocabulary with its rules.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    /// By id.
    special: Vec<bool>,
    eos: Vec<u32>,
    bos: Option<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer that a weight file describes.
    pub fn from_gguf(header: &Header) -> Result<Self, TokenizerError> {
        let metadata = &header.metadata;
        let model = metadata.get::<&str>("tokenizer.ggml.model")?.ok_or(TokenizerError::Missing)?;
        if model != "gpt2" {
            return Err(TokenizerError::Unsupported { part: "model", found: model.to_owned() });
        }
        let byte_level = ByteLevel::new(false, false, true);
        let pre_tokenizer = match metadata.require("tokenizer.ggml.pre")? {
            // Every digit stands alone, then the pattern of GPT-2.
            "smollm" => Sequence::new(vec![Digits::new(true).into(), byte_level.into()]).into(),
            "gpt-2" => byte_level.into(),
            other => return Err(TokenizerError::Unsupported { part: "pre-tokenizer", found: other.to_owned() }),
        };
        let tokens: &StringArray = metadata.require("tokenizer.ggml.tokens")?;
        let merges: &StringArray = metadata.require("tokenizer.ggml.merges")?;
        let types: Vec<i32> = metadata.require("tokenizer.ggml.token_type")?;
        if types.len() != tokens.len() {
            let problem = format!("it has {} tokens and the types of {}", tokens.len(), types.len());
            return Err(TokenizerError::Damaged(problem));
        }
        let roles = types.into_iter().enumerate().map(|(id, kind)| match kind {
            0..=2 | 5 | 6 => Ok(Role::Normal),
            3 => Ok(Role::Special),
            4 => Ok(Role::Added),
            other => Err(TokenizerError::Damaged(format!("token {id} has type {other} instead of 0 to 6"))),
        });
        let rules = Rules {
            tokens: tokens.iter().collect(),
            roles: roles.collect::<Result<_, _>>()?,
            merges: merges.iter().map(split_merge).collect::<Result<_, _>>()?,
            normalizer: None,
            pre_tokenizer,
            ignore_merges: false,
        };
        let mut eos = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
            if let Some(id) = metadata.get::<u32>(key)? {
                eos.push(rules.checked_id(id, key)?);
            }
        }
        let bos = match metadata.get("tokenizer.ggml.add_bos_token")?.unwrap_or(false) {
            true => {
                let key = "tokenizer.ggml.bos_token_id";
                Some(rules.checked_id(metadata.require(key)?, key)?)
            }
            false => None,
        };
        rules.build(eos, bos)
    }

    /// Builds a tokenizer from the text of a `tokenizer.json` whose model is byte-level byte-pair
    /// encoding. Such a file does not say which token begins a stream: [`bos`](Self::bos) is `None`.
    pub fn from_tokenizer_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: JsonFile = serde_json::from_slice(json)?;
        let model = &file.model;
        let unsupported = |part, found: &str| Err(TokenizerError::Unsupported { part, found: found.to_owned() });
        if model.kind != "BPE" {
            return unsupported("model", &model.kind);
        }
        if model.byte_fallback || model.dropout.is_some_and(|dropout| dropout != 0.0) {
            return unsupported("model", "BPE with byte_fallback or dropout");
        }
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) {
            return unsupported("model", "BPE with a prefix or a suffix of words");
        }
        match file.decoder.as_ref().map(|decoder| decoder.kind.as_str()) {
            Some("ByteLevel") => {}
            other => return unsupported("decoder", other.unwrap_or("none")),
        }
        let Some(pre_tokenizer) = file.pre_tokenizer else {
            return unsupported("pre-tokenizer", "none");
        };

        let mut named = model.vocab.iter().map(|(token, id)| (*id, token.as_str(), Role::Normal)).collect::<Vec<_>>();
        for token in &file.added_tokens {
            // An added token is often in the vocabulary, too.
            if model.vocab.get(&token.content) != Some(&token.id) {
                named.push((token.id, &token.content, Role::Normal));
            }
        }
        named.sort_unstable();
        for (expected, (id, token, _)) in (0..).zip(&named) {
            if *id != expected {
                let problem = format!("token `{token}` has id {id} where {expected} is the next one");
                return Err(TokenizerError::Damaged(problem));
            }
        }
        for token in &file.added_tokens {
            // In range: ids are dense, and this one is among them.
            named[token.id as usize].2 = if token.special { Role::Special } else { Role::Added };
        }
        let merges = model.merges.iter().map(|merge| match merge {
            JsonMerge::Pair(left, right) => Ok((left.as_str(), right.as_str())),
            JsonMerge::Text(text) => split_merge(text),
        });
        Rules {
            tokens: named.iter().map(|(_, token, _)| *token).collect(),
            roles: named.iter().map(|(.., role)| *role).collect(),
            merges: merges.collect::<Result<_, _>>()?,
            normalizer: file.normalizer,
            pre_tokenizer,
            ignore_merges: model.ignore_merges,
        }
        .build(Vec::new(), None)
    }

    /// The ids of `text`. Names of control tokens in it become those tokens; nothing is added in
    /// front or behind. A byte for which the vocabulary has no token is left out, as the model never
    /// saw one (for SmolLM2: six control characters, and characters above U+3FFFF).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.inner.encode_fast(text, false).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of each character on its own, one after the other: four newlines are four tokens, not one.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_characters(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        for character in text.chars() {
            ids.extend(self.encode(character.encode_utf8(&mut [0; 4]))?);
        }
        Ok(ids)
    }

    /// The bytes of a token's text; not always whole characters. Empty for an id beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// Whether a token is a control token, which a conversation does not show.
    pub fn special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The id of the control token of this name.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name).filter(|id| self.special(*id))
    }

    pub fn vocab_size(&self) -> usize {
        self.special.len()
    }

    /// Tokens at which an answer ends, in ascending order.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// The token that the model expects before all text; `None` if it wants none, as SmolLM2.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }
}

/// What a token is to the encoder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Made by merges.
    Normal,
    /// Found in the text before anything else.
    Added,
    /// The same, and not shown.
    Special,
}

/// All that defines a tokenizer, borrowed from where it was read.
struct Rules<'a> {
    /// By id.
    tokens: Vec<&'a str>,
    roles: Vec<Role>,
    /// Best first.
    merges: Vec<(&'a str, &'a str)>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: PreTokenizerWrapper,
    ignore_merges: bool,
}

impl Rules<'_> {
    fn checked_id(&self, id: u32, key: &str) -> Result<u32, TokenizerError> {
        if id as usize >= self.tokens.len() {
            let problem = format!("`{key}` is {id}, but there are {} tokens", self.tokens.len());
            return Err(TokenizerError::Damaged(problem));
        }
        Ok(id)
    }

    /// `eos`: ids that are known to end an answer, beside those of [`END_NAMES`].
    fn build(self, mut eos: Vec<u32>, bos: Option<u32>) -> Result<Tokenizer, TokenizerError> {
        let damaged = |problem| Err(TokenizerError::Damaged(problem));
        if self.tokens.is_empty() || self.tokens.len() > MAX_VOCAB {
            return damaged(format!("it has {} tokens instead of 1 to {MAX_VOCAB}", self.tokens.len()));
        }
        let mut vocab = HashMap::with_capacity(self.tokens.len());
        for (id, token) in (0u32..).zip(&self.tokens) {
            if let Some(first) = vocab.insert(*token, id) {
                return damaged(format!("tokens {first} and {id} are both `{token}`"));
            }
        }
        // `BPE` trusts its merges: their result must be a token, or its buffer is too short.
        let mut merged = String::new();
        for (left, right) in &self.merges {
            merged.clear();
            merged.extend([*left, *right]);
            if [*left, *right, &merged].into_iter().any(|token| !vocab.contains_key(token)) {
                return damaged(format!("the merge of `{left}` and `{right}` names no tokens"));
            }
        }

        let ends = END_NAMES.iter().filter_map(|name| vocab.get(name).copied());
        eos.extend(ends.filter(|id| self.roles[*id as usize] == Role::Special));
        eos.sort_unstable();
        eos.dedup();

        let special: Vec<bool> = self.roles.iter().map(|role| *role == Role::Special).collect();
        let mut bytes = TokenBytes::default();
        let byte_of_char = byte_of_char();
        for (token, role) in self.tokens.iter().zip(&self.roles) {
            bytes.push(token, (*role == Role::Normal).then_some(&byte_of_char));
        }
        let added: Vec<AddedToken> = self
            .tokens
            .iter()
            .zip(&self.roles)
            .filter(|(token, role)| **role != Role::Normal && !token.is_empty())
            .map(|(token, role)| AddedToken::from(*token, *role == Role::Special).normalized(false))
            .collect();

        let vocab =
            vocab.into_iter().map(|(token, id)| (token.to_owned(), id)).collect::<tokenizers::models::bpe::Vocab>();
        let merges = self.merges.into_iter().map(|(left, right)| (left.to_owned(), right.to_owned())).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(self.ignore_merges)
            // Its cache is a thread-local that outlives the tokenizer; prompts are short.
            .cache_capacity(0)
            .build()
            .map_err(|error| TokenizerError::Damaged(error.to_string()))?;
        let mut inner = tokenizers::Tokenizer::new(ModelWrapper::BPE(bpe));
        inner.with_pre_tokenizer(Some(self.pre_tokenizer));
        inner
            .with_normalizer(self.normalizer)
            .and_then(|inner| inner.add_special_tokens(added))
            .map_err(|error| TokenizerError::Damaged(error.to_string()))?;
        Ok(Tokenizer { inner, bytes, special, eos, bos })
    }
}

/// The two sides of a merge, which are written with one space between.
fn split_merge(merge: &str) -> Result<(&str, &str), TokenizerError> {
    match merge.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok((left, right)),
        _ => Err(TokenizerError::Damaged(format!("the merge `{merge}` is not two tokens"))),
    }
}

/// The bytes of every token, one after the other.
#[derive(Default)]
struct TokenBytes {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
}

impl TokenBytes {
    /// Adds the next token: as it is, or through the byte alphabet. A token with a character outside
    /// of the alphabet stands for itself.
    fn push(&mut self, token: &str, alphabet: Option<&HashMap<char, u8>>) {
        let start = self.bytes.len();
        let decoded = alphabet.is_some_and(|alphabet| {
            token.chars().all(|character| {
                let byte = alphabet.get(&character);
                self.bytes.extend(byte);
                byte.is_some()
            })
        });
        if !decoded {
            self.bytes.truncate(start);
            self.bytes.extend_from_slice(token.as_bytes());
        }
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(id).copied().unwrap_or(start);
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other bytes, in order,
/// for the characters from U+0100 on.
fn byte_of_char() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            let code = match byte {
                b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
                _ => {
                    next += 1;
                    next - 1
                }
            };
            (char::from_u32(code).unwrap_or_default(), byte)
        })
        .collect()
}

/// The parts of a `tokenizer.json` that matter here.
#[derive(Deserialize)]
struct JsonFile {
    model: JsonModel,
    #[serde(default)]
    added_tokens: Vec<JsonAddedToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    decoder: Option<JsonDecoder>,
}

#[derive(Deserialize)]
struct JsonDecoder {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct JsonModel {
    #[serde(rename = "type", default = "bpe")]
    kind: String,
    vocab: HashMap<String, u32>,
    merges: Vec<JsonMerge>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

fn bpe() -> String {
    "BPE".to_owned()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonMerge {
    Pair(String, String),
    Text(String),
}

#[derive(Deserialize)]
struct JsonAddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[cfg(test)]
mod tests;
