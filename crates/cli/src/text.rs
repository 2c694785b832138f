//! What a measuring command reads: a text or token ids, and what replaces the sinks.

use crate::Failure;
use crate::tokenize::read_text;
use clap::Args;
use model::config::Config;
use model::gguf::Header;
use model::policy::Policy;
use model::session::{CacheSettings, SessionError};
use model::tokenizer::Tokenizer;
use std::path::PathBuf;

/// The text that is read.
#[derive(Debug, Args)]
pub struct TextArgs {
    /// A text file.
    #[arg(long, required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// A JSON array of token ids, or an object with such an array under `tokens`.
    #[arg(long, conflicts_with = "text")]
    tokens: Option<PathBuf>,
    /// Read at most this many tokens.
    #[arg(long)]
    limit: Option<usize>,
}

impl TextArgs {
    /// The text's file; none where ids were given.
    pub fn path(&self) -> Option<&std::path::Path> {
        self.text.as_deref()
    }

    /// The ids, two or more, checked against the model's vocabulary.
    ///
    /// # Errors
    /// No such file, none of that kind, too short, an id out of range.
    pub fn read(&self, header: &Header, config: &Config) -> Result<Vec<u32>, Failure> {
        self.read_at_most(usize::MAX, header, config)
    }

    /// The same, but no more than `most` where the limit is not given.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_at_most(&self, most: usize, header: &Header, config: &Config) -> Result<Vec<u32>, Failure> {
        let mut tokens = match (&self.tokens, &self.text) {
            (Some(path), _) => read_tokens(path)?,
            (None, Some(path)) => Tokenizer::from_gguf(header)?.encode(&read_text(path)?)?,
            (None, None) => Vec::new(),
        };
        tokens.truncate(self.limit.unwrap_or(most));
        if tokens.len() < 2 {
            return Err(format!("the text has {} tokens: two or more are needed", tokens.len()).into());
        }
        check_ids(&tokens, config)?;
        Ok(tokens)
    }
}

/// Whether the vocabulary has all ids.
///
/// # Errors
/// Names the first that it has not.
pub fn check_ids(ids: &[u32], config: &Config) -> Result<(), Failure> {
    match ids.iter().find(|id| **id as usize >= config.vocab) {
        Some(&id) => Err(SessionError::Token { id, vocab: config.vocab }.into()),
        None => Ok(()),
    }
}

/// What stands before the text must stay in the cache with it.
///
/// # Errors
/// It would not.
pub fn check_sinks(settings: &CacheSettings, sinks: &[u32]) -> Result<(), Failure> {
    match (settings.policy, settings.policy.capacity()) {
        (Policy::Recompute { .. }, _) if !sinks.is_empty() => {
            Err("recompute keeps no sinks: leave out --sink-text and --sink-tokens, or use another --policy".into())
        }
        (_, Some(capacity)) if sinks.len() as u64 > capacity => Err(format!(
            "the sinks' text has {} tokens and the cache {capacity} slots: shorten it, or raise --sinks or --recent",
            sinks.len()
        )
        .into()),
        _ => Ok(()),
    }
}

/// Ids from the command line.
///
/// # Errors
/// No JSON array of ids.
pub fn parse_sink_tokens(json: &str) -> Result<Vec<u32>, Failure> {
    serde_json::from_str(json)
        .map_err(|_| format!("--sink-tokens is `{json}`: give a JSON array of token ids, like [198,198]").into())
}

/// Resolves the escapes of a text from the command line.
///
/// # Errors
/// An escape that is none.
pub fn unescape(text: &str) -> Result<String, Failure> {
    let bad = |escape: &str| -> Failure {
        format!("--sink-text has the escape `{escape}`: use \\n, \\t, \\\\, \\xNN or \\u{{N}}").into()
    };
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let mut characters = escaped.chars();
        rest = match characters.next() {
            Some('n') => {
                bytes.push(b'\n');
                characters.as_str()
            }
            Some('t') => {
                bytes.push(b'\t');
                characters.as_str()
            }
            Some('\\') => {
                bytes.push(b'\\');
                characters.as_str()
            }
            Some('x') => {
                let digits = escaped.get(1..3).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let digits = digits.ok_or_else(|| bad("\\x"))?;
                bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad("\\x"))?);
                &escaped[3..]
            }
            Some('u') => {
                let body = escaped[1..].strip_prefix('{').and_then(|body| body.split_once('}'));
                let (digits, after) = body.ok_or_else(|| bad("\\u"))?;
                let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                let character = code.ok_or_else(|| bad(&format!("\\u{{{digits}}}")))?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                after
            }
            other => return Err(bad(&format!("\\{}", other.map(String::from).unwrap_or_default()))),
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).map_err(|_| "--sink-text is no text: its bytes are not UTF-8".into())
}

/// Ids from a file.
///
/// # Errors
/// It cannot be read, or holds something else.
pub fn read_tokens(path: &std::path::Path) -> Result<Vec<u32>, Failure> {
    let problem = |what: &str| format!("{}: {what}", path.display());
    let value: serde_json::Value =
        serde_json::from_str(&read_text(path)?).map_err(|error| problem(&format!("no JSON: {error}")))?;
    let list = value.get("tokens").unwrap_or(&value);
    serde_json::from_value(list.clone())
        .map_err(|_| problem("needs a JSON array of token ids, or an object with one under `tokens`").into())
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes() {
        for (text, expected) in [
            ("", ""),
            ("plain é", "plain é"),
            (r"\n\n\n\n", "\n\n\n\n"),
            (r"a\tb\\n", "a\tb\\n"),
            (r"\x41\xc3\xa9\u{1F389}\u{e9}z", "Aé🎉éz"),
        ] {
            assert_eq!(unescape(text).unwrap(), expected, "{text}");
        }
        for text in [r"\", r"\q", r"\x4", r"\x+1", r"\xé", r"\u41", r"\u{41", r"\u{110000}", r"\u{}", r"\xff"] {
            let error = unescape(text).unwrap_err().to_string();
            assert!(error.contains("--sink-text"), "{text}: {error}");
        }
    }
}
