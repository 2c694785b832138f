//! `sinkstream perplexity`: how well the model predicts a text under a cache policy.

use crate::Failure;
use crate::load::{Progress, load};
use crate::run::{Column, csv};
use crate::settings::{CacheArgs, ModelArgs};
use crate::text::{TextArgs, check_ids, check_sinks, parse_sink_tokens, unescape};
use clap::Args;
use model::config::Config;
use model::gguf::Header;
use model::policy::{Policy, View};
use model::session::{Session, Want};
use model::tokenizer::Tokenizer;
use model::words::LaneWords;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
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
    /// Writes the same as a table with the text of the tokens, like `sinkstream replay --csv`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub fn run(args: &PerplexityArgs) -> Result<(), Failure> {
    let settings = args.cache.settings()?;
    if args.chunk == 0 {
        return Err("--chunk is 0: use 1 or more".into());
    }
    let sink_text = args.sink_text.as_deref().map(unescape).transpose()?;
    let sink_tokens = args.sink_tokens.as_deref().map(parse_sink_tokens).transpose()?;
    let prepare = |header: &Header| -> Result<(Vec<u32>, Vec<u32>, Tokenizer), Failure> {
        let config = Config::from_gguf(header)?;
        settings.check(&config)?;
        let tokenizer = Tokenizer::from_gguf(header)?;
        let sinks = match (sink_tokens, &sink_text) {
            (Some(ids), _) => ids,
            (None, Some(text)) => tokenizer.encode_characters(text)?,
            (None, None) => Vec::new(),
        };
        check_sinks(&settings, &sinks)?;
        check_ids(&sinks, &config)?;
        Ok((sinks, args.text.read(header, &config)?, tokenizer))
    };
    let (model, header, (sinks, tokens, tokenizer)) = load(&args.model, prepare)?;
    drop(header);
    let mut session = Session::new(model, settings, args.chunk)?;
    pollster::block_on(session.read(0, &sinks))?;
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
    if let Some(path) = &args.csv {
        let name = LaneWords::of(&settings, sink_text.as_deref()).name();
        let nll: Vec<Option<f64>> = nll.iter().copied().map(Some).collect();
        let mut stream = settings.stream();
        let own = sinks.len() as u64;
        stream.feed(sinks.len() as u32);
        let left = |view: View| view.evicted.map(|range| [range.start, range.end].map(|at| at as i64 - own as i64));
        let evicted = stream.feed(nll.len() as u32).views.into_iter().map(left).collect();
        let column = Column { name: &name, nll: &nll, tokens: Some(&tokens), evicted };
        let table = csv(&[column], true, 1, |id| String::from_utf8_lossy(tokenizer.token_bytes(id)));
        std::fs::write(path, table).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
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
