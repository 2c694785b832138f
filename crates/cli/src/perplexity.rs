//! `sinkstream perplexity`: how well the model predicts a text under a cache policy.

use crate::Failure;
use crate::load::{Progress, load};
use crate::settings::{CacheArgs, ModelArgs};
use crate::tokenize::read_text;
use clap::Args;
use model::config::Config;
use model::gguf::Header;
use model::policy::Policy;
use model::session::{CacheSettings, Session, SessionError, Want};
use model::tokenizer::Tokenizer;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text file.
    #[arg(long, required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// A JSON array of token ids, or an object with such an array under `tokens`.
    #[arg(long, conflicts_with = "text")]
    tokens: Option<PathBuf>,
    /// Read at most this many tokens.
    #[arg(long)]
    limit: Option<usize>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Read before the text, to become the sinks, one character after the other; \n, \t, \\, \xNN and \u{N} are escapes.
    /// It is not counted.
    #[arg(long)]
    sink_text: Option<String>,
    /// The same as a JSON array of token ids.
    #[arg(long, conflicts_with = "sink_text")]
    sink_tokens: Option<String>,
    /// Tokens that go through the model together. Never changes a result.
    #[arg(long, default_value_t = 256)]
    chunk: usize,
    /// Writes every token's negative log-likelihood: a JSON array of nats, index i = -ln p(token i+1 | view after
    /// token i).
    #[arg(long)]
    per_token: Option<PathBuf>,
}

pub fn run(args: &PerplexityArgs) -> Result<(), Failure> {
    let settings = args.cache.settings()?;
    if args.chunk == 0 {
        return Err("--chunk is 0: use 1 or more".into());
    }
    let given = args.tokens.as_deref().map(read_tokens).transpose()?;
    let sink_text = args.sink_text.as_deref().map(unescape).transpose()?;
    let sink_tokens = args.sink_tokens.as_deref().map(parse_sink_tokens).transpose()?;
    let prepare = |header: &Header| -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let config = Config::from_gguf(header)?;
        settings.check(&config)?;
        let sinks = match (sink_tokens, sink_text) {
            (Some(ids), _) => ids,
            (None, Some(text)) => by_characters(&Tokenizer::from_gguf(header)?, &text)?,
            (None, None) => Vec::new(),
        };
        check_sinks(&settings, &sinks)?;
        let mut tokens = match (given, &args.text) {
            (Some(tokens), _) => tokens,
            (None, Some(path)) => Tokenizer::from_gguf(header)?.encode(&read_text(path)?)?,
            (None, None) => Vec::new(),
        };
        tokens.truncate(args.limit.unwrap_or(usize::MAX));
        if tokens.len() < 2 {
            return Err(format!("the text has {} tokens: two or more are needed", tokens.len()).into());
        }
        match sinks.iter().chain(&tokens).find(|id| **id as usize >= config.vocab) {
            Some(&id) => Err(SessionError::Token { id, vocab: config.vocab }.into()),
            None => Ok((sinks, tokens)),
        }
    };
    let (model, header, (sinks, tokens)) = load(&args.model, prepare)?;
    drop(header);
    let mut session = Session::new(model, settings, args.chunk)?;
    let mut read = 0;
    while read < sinks.len() {
        read += pollster::block_on(session.feed_one(&sinks[read..], Want::Nothing))?.taken;
    }
    let mut nll = Vec::with_capacity(tokens.len() - 1);
    let n_heads = session.model().config.heads.n_heads;
    // Over the tokens for which another has left; over all while none has.
    let mut mass = vec![0.0f64; session.model().config.layers];
    let mut mass_tokens = 0u64;
    let capacity = settings.policy.capacity().unwrap_or(u64::MAX);
    let full = capacity.saturating_sub(sinks.len() as u64);
    let first_full = if full < tokens.len() as u64 { full as usize } else { 0 };
    // Reading everything again is slow enough to show each token.
    let piece = if matches!(settings.policy, Policy::Recompute { .. }) { 1 } else { args.chunk };
    let mut progress = Progress::new("reading the text", tokens.len() as u64);
    let started = Instant::now();
    let mut done = 0;
    while done < tokens.len() {
        let end = tokens.len().min(done + piece);
        let want = Want::All { forced: &tokens[done + 1..] };
        let fed = pollster::block_on(session.feed_one(&tokens[done..end], want))?;
        for (index, row) in (done..).zip(&fed.rows) {
            if nll.len() + 1 < tokens.len() {
                nll.push(f64::from(row.log_sum_exp) - f64::from(row.forced));
            }
            if index < first_full {
                continue;
            }
            mass_tokens += 1;
            for (sum, heads) in mass.iter_mut().zip(row.sink_mass.chunks_exact(n_heads)) {
                *sum += heads.iter().map(|share| f64::from(*share)).sum::<f64>() / n_heads as f64;
            }
        }
        done += fed.taken;
        progress.show(done as u64);
    }
    let seconds = started.elapsed().as_secs_f64();
    progress.end();
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    if let Some(path) = &args.per_token {
        std::fs::write(path, serde_json::to_string(&nll)?)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    }
    let per_second = tokens.len() as f64 / seconds;
    println!("tokens        {:>12}", tokens.len());
    println!("perplexity    {:>12.4}", mean.exp());
    println!("mean nll      {mean:>12.5} nats");
    println!("cache         {:>12} bytes", session.cache_bytes());
    println!("speed         {per_second:>12.1} tokens/s");
    let line = json!({
        "tokens": tokens.len(),
        "mean_nll": mean,
        "perplexity": mean.exp(),
        "cache_bytes": session.cache_bytes(),
        "workspace_bytes": session.workspace_bytes(),
        "tokens_per_second": per_second,
        "sink_mass_per_layer": mass.iter().map(|sum| sum / mass_tokens as f64).collect::<Vec<_>>(),
        "settings": args.cache.json(&settings),
        "sink_tokens": sinks,
        "chunk": args.chunk,
        "device": format!("{:?}", args.model.device).to_lowercase(),
    });
    println!("{line}");
    Ok(())
}

/// What stands before the text must stay in the cache with it.
fn check_sinks(settings: &CacheSettings, sinks: &[u32]) -> Result<(), Failure> {
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

/// Every character on its own: four newlines are four tokens, not one.
fn by_characters(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    let mut ids = Vec::new();
    for character in text.chars() {
        ids.extend(tokenizer.encode(character.encode_utf8(&mut [0; 4]))?);
    }
    Ok(ids)
}

fn parse_sink_tokens(json: &str) -> Result<Vec<u32>, Failure> {
    serde_json::from_str(json)
        .map_err(|_| format!("--sink-tokens is `{json}`: give a JSON array of token ids, like [198,198]").into())
}

/// Resolves the escapes of a text from the command line.
fn unescape(text: &str) -> Result<String, Failure> {
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
