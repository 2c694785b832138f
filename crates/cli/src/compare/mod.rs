//! `sinkstream compare`: one text, several caches, one pass.
//!
//! All caches are lanes of one forward and read the same tokens. `recompute` cannot be one, so it reads beside them, at every
//! so many positions.

mod chart;
mod results;
mod setting;

use crate::Failure;
use crate::load::{Progress, load};
use crate::settings::ModelArgs;
use crate::text::TextArgs;
use clap::Args;
use model::config::Config;
use model::gguf::Header;
use model::session::{CacheSettings, LaneFeed, Model, Session, Want};
use results::{CLOSE, ROLLING, Recovery, Series, recovery};
use serde_json::json;
pub use setting::Setting;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// Tokens read alone by each lane, to time them.
const TIMED: usize = 15;

#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// A strategy: dense, window:256, sinks:4+252 or recompute:256, then any of ,stream ,softmax1 ,zero ,kv=f32
    /// ,text=\n\n\n\n. Repeat it; without it: those six that the papers compare.
    #[arg(long = "setting", value_name = "STRATEGY")]
    settings: Vec<Setting>,
    /// Tokens of each lane that go through the model together. Never changes a result.
    #[arg(long, default_value_t = 128)]
    chunk: usize,
    /// recompute reads its window again at every so many positions.
    #[arg(long, default_value_t = 32)]
    every: usize,
    /// Also prints the perplexities of the ranges that begin at these positions.
    #[arg(long, value_delimiter = ',', value_name = "POSITIONS")]
    ranges: Vec<usize>,
    /// Writes PREFIX.json, PREFIX.csv and PREFIX.svg.
    #[arg(long, value_name = "PREFIX", default_value = "compare")]
    out: PathBuf,
}

/// The strategies of StreamingLLM's figures, at one capacity, and the paper's sinks of newlines.
const DEFAULT: [&str; 6] =
    ["dense", "window:256", "sinks:4+252", "sinks:4+252,stream", r"sinks:4+252,text=\n\n\n\n", "recompute:256"];

pub fn run(args: &CompareArgs) -> Result<(), Failure> {
    if args.chunk == 0 || args.every == 0 {
        return Err("--chunk and --every count tokens: use 1 or more".into());
    }
    let settings = if args.settings.is_empty() {
        DEFAULT.iter().map(|written| written.parse()).collect::<Result<Vec<Setting>, String>>()?
    } else {
        args.settings.clone()
    };
    let prepare = |header: &Header| -> Result<(Vec<u32>, Vec<Vec<u32>>), Failure> {
        let config = Config::from_gguf(header)?;
        let sinks = settings.iter().map(|setting| setting.prepare(header, &config)).collect::<Result<_, _>>()?;
        Ok((args.text.read(header, &config)?, sinks))
    };
    let (model, header, (tokens, sinks)) = load(&args.model, prepare)?;
    drop(header);
    let trained = model.config.trained_length as usize;
    let mut series = lanes(&model, &settings, &sinks, &tokens, args.chunk)?;
    for (setting, series) in settings.iter().zip(&mut series).filter(|(setting, _)| setting.recomputes()) {
        *series = recompute(&model, setting, &tokens, args.every)?;
    }
    let ranges = Ranges::new(&series, tokens.len(), trained);
    let recoveries = recoveries(&model, &series, &tokens, args.chunk)?;
    print(&series, &recoveries, &ranges);
    print_ranges(&series, &args.ranges, tokens.len() - 1);
    let line = summary(args, &settings, &series, &recoveries, &ranges, tokens.len());
    let write = |extension: &str, text: String| -> Result<(), Failure> {
        let path = with_extension(&args.out, extension);
        std::fs::write(&path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
    };
    write("csv", csv(&series))?;
    let mut whole = line.clone();
    whole["losses"] =
        series.iter().map(|one| (one.name.clone(), json!(one.nll))).collect::<serde_json::Map<_, _>>().into();
    write("json", serde_json::to_string(&whole)?)?;
    write("svg", chart::svg(&series, trained))?;
    println!("written: {0}.json, {0}.csv, {0}.svg", args.out.display());
    println!("{line}");
    Ok(())
}

/// `path` with a dot and `extension` behind it, whatever dots it has.
fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Reads the text with all caches that can share a forward; the series of others stay empty.
fn lanes(
    model: &Rc<Model>,
    settings: &[Setting],
    sinks: &[Vec<u32>],
    tokens: &[u32],
    chunk: usize,
) -> Result<Vec<Series>, Failure> {
    let mut series: Vec<Series> = settings
        .iter()
        .zip(sinks)
        .map(|(setting, sinks)| Series {
            name: setting.name.clone(),
            nll: Vec::new(),
            eviction: setting.eviction(sinks.len()),
            milliseconds: 0.0,
            bytes: 0,
        })
        .collect();
    let shared: Vec<usize> = (0..settings.len()).filter(|at| !settings[*at].recomputes()).collect();
    if shared.is_empty() {
        return Ok(series);
    }
    let caches: Vec<CacheSettings> = shared.iter().map(|at| settings[*at].cache).collect();
    let mut session = Session::with_lanes(Rc::clone(model), &caches, chunk * caches.len())?;
    for (lane, &at) in shared.iter().enumerate() {
        pollster::block_on(session.read(lane, &sinks[at]))?;
    }
    let mut progress = Progress::new("reading the text", tokens.len() as u64);
    // Lanes that pack take fewer tokens at a time than others, so each has its own place in the text.
    let mut done = vec![0; shared.len()];
    while let Some(behind) = done.iter().copied().min().filter(|done| *done < tokens.len()) {
        progress.show(behind as u64);
        let unfinished = done.iter().enumerate().filter(|(_, done)| **done < tokens.len());
        let feeds: Vec<LaneFeed<'_>> = unfinished
            .map(|(lane, &done)| LaneFeed {
                lane,
                tokens: &tokens[done..],
                want: Want::All { forced: &tokens[done + 1..] },
            })
            .collect();
        for (feed, fed) in feeds.iter().zip(pollster::block_on(session.feed(&feeds))?) {
            done[feed.lane] += fed.taken;
            let losses = fed.rows.iter().map(|row| Some(f64::from(row.log_sum_exp) - f64::from(row.forced)));
            series[shared[feed.lane]].nll.extend(losses);
        }
    }
    progress.end();
    let times = time(&mut session, shared.len(), tokens)?;
    for (lane, &at) in shared.iter().enumerate() {
        series[at].nll.truncate(tokens.len() - 1);
        series[at].bytes = session.lane(lane).bytes();
        series[at].milliseconds = times[lane];
    }
    Ok(series)
}

/// Milliseconds of a token that a lane reads alone, its cache as it is: the median of some that alternate with the others'.
fn time(session: &mut Session, lanes: usize, tokens: &[u32]) -> Result<Vec<f64>, Failure> {
    let mut times = vec![Vec::new(); lanes];
    for token in tokens.iter().cycle().take(TIMED) {
        for (lane, times) in times.iter_mut().enumerate() {
            let want = Want::Last { penalty: 1.0, penalized: &[] };
            let started = Instant::now();
            pollster::block_on(session.feed(&[LaneFeed { lane, tokens: &[*token], want }]))?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Reads the window again at every `every`-th position, from position 0.
fn recompute(model: &Rc<Model>, setting: &Setting, tokens: &[u32], every: usize) -> Result<Series, Failure> {
    let recent = setting.cache.policy.recent().unwrap_or(1) as usize;
    let mut session = Session::new(Rc::clone(model), setting.cache, recent.max(every))?;
    let mut nll = vec![None; tokens.len() - 1];
    let mut times = Vec::new();
    let mut progress = Progress::new("reading it again and again", nll.len() as u64);
    let mut read = 0;
    for at in (every - 1..nll.len()).step_by(every) {
        let started = Instant::now();
        let fed = pollster::block_on(session.feed_one(&tokens[read..=at], Want::Next { forced: tokens[at + 1] }))?;
        if at >= recent {
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        read += fed.taken;
        nll[at] = fed.rows.first().map(|row| f64::from(row.log_sum_exp) - f64::from(row.forced));
        progress.show(at as u64);
    }
    progress.end();
    let name = format!("{} every {every}", setting.name);
    let eviction = setting.eviction(0);
    Ok(Series { name, nll, eviction, milliseconds: median(times), bytes: session.cache_bytes() })
}

/// How each cache took its first eviction, against a cache that keeps all, which is read for that if it is not among them.
fn recoveries(model: &Rc<Model>, series: &[Series], tokens: &[u32], chunk: usize) -> Result<Vec<Recovery>, Failure> {
    let dense = match series.iter().find(|one| one.eviction.is_none()) {
        Some(dense) => dense.clone(),
        None => {
            let dense = "dense".parse::<Setting>()?;
            lanes(model, &[dense], &[Vec::new()], tokens, chunk)?.remove(0)
        }
    };
    Ok(series.iter().map(|one| recovery(one, &dense)).collect())
}

/// The positions over which perplexities are taken, the same for all.
struct Ranges {
    /// Before any cache is full.
    before: std::ops::Range<usize>,
    /// Once all are.
    after: std::ops::Range<usize>,
    /// Of these, those past the length that the model was trained on.
    past: std::ops::Range<usize>,
}

impl Ranges {
    fn new(series: &[Series], tokens: usize, trained: usize) -> Self {
        let losses = tokens - 1;
        let evictions = || series.iter().filter_map(|one| one.eviction);
        let first = evictions().min().unwrap_or(losses).min(losses);
        let last = evictions().max().unwrap_or(losses).min(losses);
        Self { before: 0..first, after: last..losses, past: trained.min(losses)..losses }
    }
}

fn print(series: &[Series], recoveries: &[Recovery], ranges: &Ranges) {
    let wide = series.iter().map(|one| one.name.len()).max().unwrap_or(0).max("strategy".len());
    let Ranges { before, after, past } = ranges;
    println!(
        "perplexity before any cache is full (tokens {} to {}), after all are ({} to {}), past the trained length ({}); \
         recovery: tokens from the eviction until the mean loss of {ROLLING} is within {CLOSE} nat of dense",
        before.start,
        before.end,
        after.start,
        after.end,
        if past.is_empty() { "not reached".to_owned() } else { format!("from {}", past.start) },
    );
    println!(
        "{:<wide$} {:>12} {:>12} {:>9} {:>9} {:>9} {:>10}",
        "strategy", "ms a token", "memory", "before", "after", "past", "recovery"
    );
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for (one, recovery) in series.iter().zip(recoveries) {
        let recovery = match recovery {
            Recovery::NoEviction | Recovery::Sampled => "-".to_owned(),
            Recovery::Unharmed => "0".to_owned(),
            Recovery::After(tokens) => tokens.to_string(),
            Recovery::Never => "never".to_owned(),
        };
        println!(
            "{:<wide$} {:>12.2} {:>12} {:>9} {:>9} {:>9} {recovery:>10}",
            one.name,
            one.milliseconds,
            one.bytes,
            number(one.perplexity(before.clone())),
            number(one.perplexity(after.clone())),
            number(one.perplexity(past.clone())),
        );
    }
}

/// The perplexities from each of `starts` to the next, the last to the end.
fn print_ranges(series: &[Series], starts: &[usize], end: usize) {
    if starts.is_empty() {
        return;
    }
    let wide = series.iter().map(|one| one.name.len()).max().unwrap_or(0).max("perplexity".len());
    let ranges = || starts.iter().zip(starts.iter().skip(1).chain([&end])).map(|(start, next)| *start..*next);
    let named = ranges().map(|range| format!(" {:>14}", format!("{}-{}", range.start, range.end.saturating_sub(1))));
    println!("{:<wide$}{}", "perplexity", named.collect::<String>());
    for one in series {
        let shown = ranges().map(|range| one.perplexity(range).map_or("-".to_owned(), |value| format!("{value:.2}")));
        println!("{:<wide$}{}", one.name, shown.map(|value| format!(" {value:>14}")).collect::<String>());
    }
}

fn summary(
    args: &CompareArgs,
    settings: &[Setting],
    series: &[Series],
    recoveries: &[Recovery],
    ranges: &Ranges,
    tokens: usize,
) -> serde_json::Value {
    let strategies = settings.iter().zip(series).zip(recoveries).map(|((setting, one), recovery)| {
        json!({
            "strategy": one.name,
            "setting": setting.name,
            "milliseconds_per_token": one.milliseconds,
            "cache_bytes": one.bytes,
            "first_eviction": one.eviction,
            "perplexity_before": one.perplexity(ranges.before.clone()),
            "perplexity_after": one.perplexity(ranges.after.clone()),
            "perplexity_past_trained_length": one.perplexity(ranges.past.clone()),
            "recovery": match recovery {
                Recovery::NoEviction => json!("no eviction"),
                Recovery::Sampled => json!("sampled"),
                Recovery::Unharmed => json!(0),
                Recovery::After(tokens) => json!(tokens),
                Recovery::Never => json!("never"),
            },
        })
    });
    json!({
        "tokens": tokens,
        "before": [ranges.before.start, ranges.before.end],
        "after": [ranges.after.start, ranges.after.end],
        "past_trained_length": [ranges.past.start, ranges.past.end],
        "strategies": strategies.collect::<Vec<_>>(),
        "device": format!("{:?}", args.model.device).to_lowercase(),
    })
}

/// A row a position: its losses, empty where there is none.
fn csv(series: &[Series]) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let mut out = String::from("position");
    for one in series {
        out += ",";
        out += &quoted(&one.name);
    }
    out += "\n";
    let rows = series.iter().map(|one| one.nll.len()).max().unwrap_or(0);
    for row in 0..rows {
        // Writing to a string cannot fail.
        let _ = write!(out, "{row}");
        for one in series {
            match one.nll.get(row).copied().flatten() {
                Some(nll) => {
                    let _ = write!(out, ",{nll:.6}");
                }
                None => out += ",",
            }
        }
        out += "\n";
    }
    out
}
