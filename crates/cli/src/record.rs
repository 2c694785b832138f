//! `sinkstream record`: one text, or one question, and several caches; all that figures need of them in one file.

use crate::Failure;
use crate::compare::Setting;
use crate::load::{Progress, load};
use crate::run::{
    FORMAT, LaneRecorder, Made, Mark, MarkKind, Mode, ModelWords, Recorded, Run, SamplerWords, TextWords, VERSION,
    rounded,
};
use crate::settings::{DeviceName, ModelArgs};
use crate::text::check_ids;
use crate::tokenize::read_text;
use crate::write::SamplerArgs;
use clap::Args;
use model::compare::{Comparison, Lane, Reading};
use model::config::Config;
use model::generate::Text;
use model::gguf::Header;
use model::session::{LaneFeed, Model, Session, Want};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Tokens of each lane that go through the model together, where they are not timed.
const CHUNK: usize = 64;

#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text file, which all lanes read.
    #[arg(long, conflicts_with = "prompt", required_unless_present = "prompt")]
    text: Option<PathBuf>,
    /// Leaves out so many tokens of the text.
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// Reads at most so many tokens of the text.
    #[arg(long)]
    limit: Option<usize>,
    /// A question, which each lane answers in its own words.
    #[arg(long)]
    prompt: Option<String>,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 256)]
    max: usize,
    #[command(flatten)]
    sampler: SamplerArgs,
    /// A lane, as in compare. Repeat it.
    #[arg(long = "setting", value_name = "STRATEGY", required = true)]
    settings: Vec<Setting>,
    /// A lane that recomputes reads its window again at every so many positions of the text.
    #[arg(long, default_value_t = 32)]
    again: usize,
    /// Keeps losses as means of so many.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Leaves out the tokens and their text.
    #[arg(long)]
    numbers: bool,
    /// Where the ranges begin of which losses are summed up; without it: where all caches are full.
    #[arg(long, value_delimiter = ',', value_name = "POSITIONS")]
    ranges: Vec<usize>,
    /// Each lane reads every so many tokens one alone, to time it; in a text.
    #[arg(long, default_value_t = 64)]
    timed: usize,
    /// Keeps the attention of each head of every so many tokens; 0: never.
    #[arg(long, default_value_t = 128)]
    heads: usize,
    /// The run's name; without it, the file's.
    #[arg(long)]
    title: Option<String>,
    /// The commit that this program was built from, for the file.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// The file that is written.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// What the header was enough for.
struct Prepared {
    text: Text,
    reading: Reading,
    sinks: Vec<Vec<u32>>,
}

/// What was recorded of the lanes: losses by the token that they are of, less one; free lanes' tokens, and whether they ended.
struct Lanes {
    recorders: Vec<LaneRecorder>,
    losses: Vec<Vec<Option<f64>>>,
    tokens: Vec<Option<Vec<u32>>>,
    ended: Vec<bool>,
}

pub fn run(args: &RecordArgs) -> Result<(), Failure> {
    if args.model.device != DeviceName::Cpu {
        return Err("runs are recorded on the CPU, where they come out the same again: leave out --device".into());
    }
    if args.again == 0 || args.every == 0 || args.timed < 2 {
        return Err("--again and --every count tokens: use 1 or more; and 2 or more for --timed".into());
    }
    let prepare = |header: &Header| -> Result<Prepared, Failure> {
        let config = Config::from_gguf(header)?;
        let sinks = args.settings.iter().map(|setting| setting.prepare(header, &config)).collect::<Result<_, _>>()?;
        let text = Text::from_gguf(header)?;
        let reading = reading(args, &text, &config)?;
        Ok(Prepared { text, reading, sinks })
    };
    let (model, header, Prepared { text, reading, sinks }) = load(&args.model, prepare)?;
    drop(header);
    let mut recorders = Vec::new();
    for (setting, sinks) in args.settings.iter().zip(&sinks) {
        let shape = Session::new(Rc::clone(&model), setting.cache, 1)?.cache_shape();
        let heads = [model.config.layers, model.config.heads.n_heads];
        let sink_text = setting.sink_text.as_deref();
        recorders.push(LaneRecorder::new(setting.cache, sink_text, shape, sinks.len(), args.heads, heads));
    }
    let lanes = match &reading {
        Reading::Forced(tokens) => forced(&model, args, &sinks, tokens, recorders)?,
        Reading::Free { .. } => free(&model, args, &sinks, &reading, &text, recorders)?,
    };
    let run = assemble(args, &model, &reading, &text, lanes)?;
    write(&args.out, &run)
}

/// Writes a run, and says how it came out.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, run: &Run) -> Result<(), Failure> {
    std::fs::write(path, serde_json::to_string(run)? + "\n")
        .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    crate::replay::print(run);
    println!("{}", json!({ "written": path.display().to_string(), "count": run.count, "lanes": run.lanes.len() }));
    Ok(())
}

fn reading(args: &RecordArgs, text: &Text, config: &Config) -> Result<Reading, Failure> {
    if let Some(prompt) = &args.prompt {
        let settings = args.sampler.settings();
        let ends = text.tokenizer.eos().to_vec();
        return Ok(Reading::Free { prompt: text.question(prompt)?, settings, ends, most: args.max });
    }
    let path = args.text.as_deref().ok_or("give a text with --text, or a question with --prompt")?;
    let all = text.tokenizer.encode(&read_text(path)?)?;
    let limit = args.limit.unwrap_or(usize::MAX);
    let tokens: Vec<u32> = all.into_iter().skip(args.from).take(limit).collect();
    if tokens.len() < 2 {
        return Err(format!("{} tokens of the text are left: two or more are needed", tokens.len()).into());
    }
    check_ids(&tokens, config)?;
    Ok(Reading::Forced(tokens))
}

/// All lanes read a text.
fn forced(
    model: &Rc<Model>,
    args: &RecordArgs,
    sinks: &[Vec<u32>],
    tokens: &[u32],
    mut recorders: Vec<LaneRecorder>,
) -> Result<Lanes, Failure> {
    let mut losses = vec![Vec::with_capacity(tokens.len()); recorders.len()];
    let shared: Vec<usize> = (0..recorders.len()).filter(|at| !args.settings[*at].recomputes()).collect();
    if !shared.is_empty() {
        let caches: Vec<_> = shared.iter().map(|at| args.settings[*at].cache).collect();
        let mut session = Session::with_lanes(Rc::clone(model), &caches, CHUNK * caches.len())?;
        for (lane, &at) in shared.iter().enumerate() {
            pollster::block_on(session.read(lane, &sinks[at]))?;
        }
        let mut progress = Progress::new("reading the text", tokens.len() as u64);
        let mut done = vec![0; shared.len()];
        let mut record = |feeds: &[LaneFeed<'_>], session: &mut Session, timed: bool| -> Result<Vec<usize>, Failure> {
            let started = Instant::now();
            let fed = pollster::block_on(session.feed(feeds))?;
            let ms = timed.then(|| started.elapsed().as_secs_f64() * 1e3);
            for (feed, fed) in feeds.iter().zip(&fed) {
                for row in &fed.rows {
                    let best = row.candidates.first().map(|(id, logit)| (*id, (logit - row.log_sum_exp).exp()));
                    let (sink_mass, first_mass) = (&row.sink_mass[..], &row.first_mass[..]);
                    recorders[shared[feed.lane]].read(Recorded { sink_mass, first_mass, best, ms });
                    losses[shared[feed.lane]].push(Some(f64::from(row.log_sum_exp) - f64::from(row.forced)));
                }
            }
            Ok(fed.iter().map(|fed| fed.taken).collect())
        };
        let feed = |lane: usize, from: usize, to: usize| {
            let want = Want::All { forced: &tokens[from + 1..] };
            LaneFeed { lane, tokens: &tokens[from..to], want }
        };
        while done.iter().any(|done| *done < tokens.len()) {
            let behind = done.iter().copied().min().unwrap_or(0);
            let to = tokens.len().min((behind + 1).next_multiple_of(args.timed) - 1);
            let feeds: Vec<LaneFeed<'_>> = done
                .iter()
                .enumerate()
                .filter(|(_, done)| **done < to)
                .map(|(lane, done)| feed(lane, *done, to))
                .collect();
            if feeds.is_empty() {
                for (lane, done) in done.iter_mut().enumerate() {
                    record(&[feed(lane, *done, *done + 1)], &mut session, true)?;
                    *done += 1;
                }
            } else {
                for (feed, taken) in feeds.iter().zip(record(&feeds, &mut session, false)?) {
                    done[feed.lane] += taken;
                }
            }
            progress.show(behind as u64);
        }
        progress.end();
    }
    for at in (0..recorders.len()).filter(|at| args.settings[*at].recomputes()) {
        let recent = args.settings[at].cache.policy.recent().unwrap_or(1) as usize;
        let mut session = Session::new(Rc::clone(model), args.settings[at].cache, recent.max(args.again))?;
        let mut progress = Progress::new("reading it again and again", tokens.len() as u64);
        losses[at] = vec![None; tokens.len()];
        for last in (args.again - 1..tokens.len() - 1).step_by(args.again) {
            let started = Instant::now();
            let read = &tokens[last + 1 - args.again..=last];
            let fed = pollster::block_on(session.feed_one(read, Want::Next { forced: tokens[last + 1] }))?;
            let ms = Some(started.elapsed().as_secs_f64() * 1e3);
            let Some(row) = fed.rows.first() else { continue };
            losses[at][last] = Some(f64::from(row.log_sum_exp) - f64::from(row.forced));
            (1..args.again).for_each(|_| recorders[at].read(Recorded::default()));
            let best = row.candidates.first().map(|(id, logit)| (*id, (logit - row.log_sum_exp).exp()));
            recorders[at].read(Recorded { sink_mass: &row.sink_mass, first_mass: &row.first_mass, best, ms });
            progress.show(last as u64);
        }
        let read = (tokens.len() - 1) / args.again * args.again;
        (read..tokens.len()).for_each(|_| recorders[at].read(Recorded::default()));
        progress.end();
    }
    losses.iter_mut().for_each(|losses| losses.truncate(tokens.len() - 1));
    let (tokens, ended) = (vec![None; recorders.len()], vec![false; recorders.len()]);
    Ok(Lanes { recorders, losses, tokens, ended })
}

/// Each lane writes.
fn free(
    model: &Rc<Model>,
    args: &RecordArgs,
    sinks: &[Vec<u32>],
    reading: &Reading,
    text: &Text,
    mut recorders: Vec<LaneRecorder>,
) -> Result<Lanes, Failure> {
    let lanes: Vec<Lane> = args
        .settings
        .iter()
        .zip(sinks)
        .map(|(setting, sinks)| Lane { cache: setting.cache, before: sinks.clone() })
        .collect();
    let mut comparison = Comparison::new(model, &lanes, reading, CHUNK)?;
    let prompt = reading.tokens();
    let mut progress = Progress::new("writing", (prompt.len() + args.max) as u64);
    let mut losses = vec![Vec::new(); lanes.len()];
    let mut tokens = vec![Vec::new(); lanes.len()];
    let mut ended = vec![false; lanes.len()];
    let mut behind = false;
    loop {
        let step = if behind {
            pollster::block_on(comparison.step_again(&text.tokenizer, 1, now))?
        } else {
            Some(pollster::block_on(comparison.step(&text.tokenizer, None, now))?)
        };
        let Some(step) = step else { break };
        for (lane, report) in step.lanes.into_iter().enumerate() {
            let Some(report) = report else { continue };
            // Of a question that was read at once only the last token was looked at.
            for skipped in prompt.iter().take(report.index as usize).skip(tokens[lane].len()) {
                tokens[lane].push(*skipped);
                losses[lane].push(None);
                recorders[lane].read(Recorded::default());
            }
            tokens[lane].push(report.token);
            losses[lane].push(report.nll.map(f64::from));
            recorders[lane].read(Recorded {
                sink_mass: &report.sink_mass,
                first_mass: &report.first_mass,
                best: report.best.map(|(id, _, p)| (id, p)),
                ms: report.ms,
            });
            ended[lane] = report.ended && tokens[lane].len() < prompt.len() + args.max;
            progress.show(report.index);
        }
        behind |= step.done;
    }
    progress.end();
    // The first token's is of nothing.
    losses.iter_mut().for_each(|losses| drop(losses.drain(..losses.len().min(1))));
    Ok(Lanes { recorders, losses, tokens: tokens.into_iter().map(Some).collect(), ended })
}

/// Milliseconds since this was first asked.
fn now() -> f64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e3
}

fn assemble(args: &RecordArgs, model: &Model, reading: &Reading, text: &Text, lanes: Lanes) -> Result<Run, Failure> {
    let Lanes { recorders, losses, tokens, ended } = lanes;
    let count = losses.iter().map(|losses| losses.len() + 1).max().unwrap_or(0);
    let marks = marks(&recorders, count, model.config.trained_length as usize);
    let places: Vec<usize> = if args.numbers { Vec::new() } else { marks.iter().map(|mark| mark.i).collect() };
    let starts = if args.ranges.is_empty() {
        recorders.iter().filter_map(LaneRecorder::first_left).max().into_iter().collect()
    } else {
        args.ranges.clone()
    };
    let ends = starts.iter().skip(1).copied().chain([count - 1]);
    let ranges: Vec<(usize, usize)> = starts.iter().copied().zip(ends).filter(|(from, to)| from < to).collect();
    let lanes = recorders.into_iter().zip(losses).zip(tokens).zip(ended);
    let lanes = lanes
        .map(|(((recorder, losses), tokens), ended)| {
            recorder.finish(tokens, ended, &losses, args.every, &places, &ranges)
        })
        .collect();
    let (mode, shared, prompt, sampler) = match reading {
        Reading::Forced(tokens) => (Mode::Forced, Some(tokens.clone()).filter(|_| !args.numbers), 0, None),
        Reading::Free { prompt, settings, .. } => (Mode::Free, None, prompt.len(), Some(sampler_words(settings))),
    };
    let run = Run {
        format: FORMAT.to_owned(),
        version: VERSION,
        title: title(args.title.as_deref(), &args.out),
        made: made(&args.commit),
        model: model_words(&args.model.model, &model.config)?,
        mode,
        sampler,
        text: args.text.as_deref().map(text_words).transpose()?,
        start: args.from,
        count,
        prompt,
        every: args.every,
        vocab: BTreeMap::new(),
        tokens: shared,
        lanes,
        marks,
        key_ranges: Vec::new(),
    };
    Ok(run.spelled(&text.tokenizer))
}

/// Where the first token left each lane, and where the trained length ends, if it is reached.
pub fn marks(recorders: &[LaneRecorder], count: usize, trained: usize) -> Vec<Mark> {
    let lefts = recorders.iter().enumerate().filter_map(|(lane, recorder)| {
        Some(Mark { i: recorder.first_left()?, lane: Some(lane), kind: MarkKind::FirstLeft })
    });
    let mut marks: Vec<Mark> = lefts.collect();
    marks.extend((trained < count).then_some(Mark { i: trained, lane: None, kind: MarkKind::Trained }));
    marks.sort_by_key(|mark| mark.i);
    marks
}

/// The one that was given, or the file's name.
pub fn title(given: Option<&str>, out: &Path) -> String {
    given.map_or_else(|| out.file_stem().unwrap_or_default().to_string_lossy().into_owned(), str::to_owned)
}

/// The text in a run's words.
///
/// # Errors
/// Its file cannot be read again.
pub fn text_words(path: &Path) -> Result<TextWords, Failure> {
    Ok(TextWords { name: last_name(path), sha256: sha256(path)? })
}

fn sampler_words(settings: &model::sampler::Settings) -> SamplerWords {
    // The shortest decimal of an f32 is that of the f64 which was meant.
    let decimal = |number: f32| rounded(number.into(), 6);
    SamplerWords {
        temperature: decimal(settings.temperature),
        top_k: settings.top_k as u32,
        top_p: decimal(settings.top_p),
        min_p: decimal(settings.min_p),
        repetition_penalty: decimal(settings.repetition_penalty),
        seed: settings.seed,
    }
}

/// By whom, when and how, as the command line has it.
pub fn made(commit: &str) -> Made {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let words = std::env::args().skip(1).map(|word| {
        // Where a file lies on this machine is nobody's business.
        let word = if Path::new(&word).is_absolute() { last_name(Path::new(&word)) } else { word };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:+,=".contains(letter);
        if !word.is_empty() && word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    });
    Made {
        by: format!("sinkstream {}", env!("CARGO_PKG_VERSION")),
        commit: commit.to_owned(),
        date: date(days as i64),
        backend: "cpu".to_owned(),
        adapter: None,
        command: std::iter::once("sinkstream".to_owned()).chain(words).collect::<Vec<_>>().join(" "),
    }
}

/// The model in a run's words.
///
/// # Errors
/// Its file cannot be read again.
pub fn model_words(path: &Path, config: &Config) -> Result<ModelWords, Failure> {
    Ok(ModelWords {
        name: config.name.clone(),
        file: last_name(path),
        sha256: sha256(path)?,
        layers: config.layers,
        n_heads: config.heads.n_heads,
        n_kv_heads: config.heads.n_kv_heads,
        head_dim: config.heads.head_dim,
        trained_length: config.trained_length as usize,
    })
}

fn last_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// In hex.
fn sha256(path: &Path) -> Result<String, Failure> {
    let unread = |error| format!("{} cannot be read: {error}", path.display());
    Ok(Sha256::digest(std::fs::read(path).map_err(unread)?).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The date so many days after the first of January 1970, as `2026-01-31`.
fn date(days: i64) -> String {
    // Years begin in March here, so that the leap day is a year's last.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + i64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_are_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_787, "2026-11-30"),
        ] {
            assert_eq!(super::date(days), date);
        }
    }
}
