//! `sinkstream perplexity`: how well the model predicts a text under a cache policy.

use crate::Failure;
use crate::load::{Progress, load};
use crate::settings::{CacheArgs, ModelArgs};
use crate::tokenize::read_text;
use clap::Args;
use model::session::{Session, Want};
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
    let given = match &args.tokens {
        Some(path) => Some(read_tokens(path)?),
        None => None,
    };
    let (model, header) = load(&args.model)?;
    let mut tokens = match (given, &args.text) {
        (Some(tokens), _) => tokens,
        (None, Some(path)) => Tokenizer::from_gguf(&header)?.encode(&read_text(path)?)?,
        (None, None) => Vec::new(),
    };
    drop(header);
    tokens.truncate(args.limit.unwrap_or(usize::MAX));
    if tokens.len() < 2 {
        return Err(format!("the text has {} tokens: two or more are needed", tokens.len()).into());
    }
    let mut session = Session::new(model, settings, args.chunk)?;
    let mut nll = Vec::with_capacity(tokens.len() - 1);
    let n_heads = session.model().config.heads.n_heads;
    // Over the tokens for which another has left; over all while none has.
    let mut mass = vec![0.0f64; session.model().config.layers];
    let mut mass_tokens = 0u64;
    let capacity = settings.policy.capacity().unwrap_or(u64::MAX);
    let first_full = if capacity < tokens.len() as u64 { capacity as usize } else { 0 };
    let mut progress = Progress::new("reading the text", tokens.len() as u64);
    let started = Instant::now();
    let mut done = 0;
    while done < tokens.len() {
        let fed = pollster::block_on(session.feed_one(&tokens[done..], Want::All { forced: &tokens[done + 1..] }))?;
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
        "chunk": args.chunk,
        "device": format!("{:?}", args.model.device).to_lowercase(),
    });
    println!("{line}");
    Ok(())
}

fn read_tokens(path: &std::path::Path) -> Result<Vec<u32>, Failure> {
    let problem = |what: &str| format!("{}: {what}", path.display());
    let value: serde_json::Value =
        serde_json::from_str(&read_text(path)?).map_err(|error| problem(&format!("no JSON: {error}")))?;
    let list = value.get("tokens").unwrap_or(&value);
    serde_json::from_value(list.clone())
        .map_err(|_| problem("needs a JSON array of token ids, or an object with one under `tokens`").into())
}
