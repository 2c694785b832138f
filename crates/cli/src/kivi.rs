//! `sinkstream kivi`: what packing the cache costs and saves, beside a twin in full precision that reads the same tokens.

use crate::Failure;
use crate::load::{Progress, load};
use crate::record::{made, model_words, text_words, title, write};
use crate::run::{FORMAT, KeyRanges, Keys, LaneRecorder, Mode, Recorded, Run, VERSION};
use crate::settings::{DeviceName, ModelArgs};
use crate::text::TextArgs;
use clap::Args;
use model::Storage;
use model::cache::{Bits, scale_and_zero};
use model::config::Config;
use model::gguf::Header;
use model::policy::{CacheShape, Packing, Policy};
use model::session::{CacheSettings, Cached, LaneFeed, Model, Session, Want};
use model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Lane 0 is the twin in full precision.
const STORAGES: [Storage; 5] = [Storage::F32, Storage::F16, Storage::INT8, Storage::INT4, Storage::INT2];
/// Tokens of each lane that go through the model together: all logits of at most 32 rows are kept.
const CHUNK: usize = 32 / STORAGES.len();
/// Tokens that are read where nothing else is asked for.
const LIMIT: usize = 2048;
/// Capacities of the table of bytes.
const CAPACITIES: [u64; 3] = [256, 1024, 8192];
/// Where greedy continuations begin, and tokens that are read before.
const PROMPTS: [usize; 2] = [0, 600];
const PROMPT: usize = 192;
/// Layers whose key ranges a recorded run tells.
const TOLD_LAYERS: [usize; 4] = [0, 10, 20, 29];

#[derive(Debug, Args)]
pub struct KiviArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// First tokens that never leave and are never packed, in the dense cache too.
    #[arg(long, default_value_t = 4)]
    sinks: u32,
    /// Last tokens that the cache with sinks keeps.
    #[arg(long, default_value_t = 252)]
    recent: u32,
    /// Tokens (K) or channels (V) that share a scale: a multiple of 8.
    #[arg(long, default_value_t = 32)]
    group: u32,
    /// Last tokens that are not packed yet: a multiple of the group.
    #[arg(long, default_value_t = 32)]
    tail: u32,
    /// Tokens of each greedy continuation, after the tokens 0 to 191 and 600 to 791 of the text; 0 leaves them out.
    #[arg(long, default_value_t = 192)]
    greedy: usize,
    /// Writes a run, as `sinkstream record` does: the dense cache in full precision, in 4 and in 2 bits, and with the keys'
    /// scales the wrong way round.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The recorded run's name; without it, the file's.
    #[arg(long)]
    title: Option<String>,
    /// The commit that this program was built from, for the recorded run.
    #[arg(long, default_value = "unknown")]
    commit: String,
}

/// One stream beside the others.
struct Lane {
    name: String,
    settings: CacheSettings,
    ablation: Option<Ablation>,
}

/// Another way to pack, which is not one of the cache's: each group is read back, packed and unpacked in f32.
#[derive(Clone, Copy)]
struct Ablation {
    bits: Bits,
    /// Keys share their scales by token, as values do.
    by_token: bool,
    /// Keys are rotated before they are packed.
    rotated: bool,
}

/// What was measured of a lane.
struct Row {
    name: String,
    storage: Storage,
    /// None of a way that no cache keeps.
    bytes: Option<(u64, f64)>,
    perplexity: f64,
    kl: f64,
    top_1: f64,
    /// Tokens of each continuation until the first that differs from full precision.
    greedy: Vec<usize>,
    /// Relative errors of keys and of values, a layer.
    errors: Vec<[f64; 2]>,
    /// What a recorded run tells of the lane, and its losses.
    recorder: LaneRecorder,
    losses: Vec<Option<f64>>,
}

pub fn run(args: &KiviArgs) -> Result<(), Failure> {
    if args.model.device != DeviceName::Cpu {
        return Err("kivi compares all logits, which the CPU alone keeps: leave out --device".into());
    }
    let packing = Packing { group: args.group, tail: args.tail, exact: args.sinks };
    packing.check()?;
    let policies = [Policy::Dense, Policy::Sinks { sinks: args.sinks, recent: args.recent }];
    let stored = |policy, storage| CacheSettings { packing, ..CacheSettings::new(policy) }.stored_as(storage);
    let prepare = |header: &Header| -> Result<(Vec<u32>, Tokenizer), Failure> {
        let config = Config::from_gguf(header)?;
        for policy in policies {
            STORAGES.into_iter().try_for_each(|storage| stored(policy, storage).check(&config))?;
        }
        Ok((args.text.read_at_most(LIMIT, header, &config)?, Tokenizer::from_gguf(header)?))
    };
    let (model, header, (tokens, tokenizer)) = load(&args.model, prepare)?;
    drop(header);
    let mut results = Vec::new();
    let (mut recorded, mut told_ranges) = (Vec::new(), Vec::new());
    for policy in policies {
        let name = if policy == Policy::Dense { "dense" } else { "sinks" };
        let lane =
            |storage: Storage| Lane { name: storage.to_string(), settings: stored(policy, storage), ablation: None };
        let lanes = STORAGES.map(lane);
        let (rows, ranges) = measure(&model, &lanes, &tokens, args.greedy)?;
        show(name, &rows, args.greedy);
        results.push(json!({ "policy": name, "storages": rows.iter().map(Row::json).collect::<Vec<_>>() }));
        if policy == Policy::Dense {
            results.push(show_layers(&rows, &ranges));
            let lanes = ablations(stored(policy, Storage::F32));
            let (other, _) = measure(&model, &lanes, &tokens, 0)?;
            show("dense, keys packed in other ways", &other[1..], 0);
            results.push(json!({ "ablations": other[1..].iter().map(Row::json).collect::<Vec<_>>() }));
            let told = |name: &str| ["f32", "int4", "int2", "int4, by token", "int2, by token"].contains(&name);
            told_ranges = ranges;
            recorded.extend(rows.into_iter().chain(other.into_iter().skip(1)).filter(|row| told(&row.name)));
        }
    }
    if let Some(path) = &args.record {
        record(args, path, &model, &tokenizer, tokens.clone(), recorded, &told_ranges)?;
    }
    let shape = Session::new(Rc::clone(&model), stored(policies[1], Storage::F32), 1)?.cache_shape();
    let bytes = show_bytes(shape, tokens.len() as u64);
    let line = json!({
        "tokens": tokens.len(),
        "sinks": args.sinks,
        "recent": args.recent,
        "group": args.group,
        "tail": args.tail,
        "results": results,
        "bytes": bytes,
    });
    println!("{line}");
    Ok(())
}

/// Writes the recorded run.
fn record(
    args: &KiviArgs,
    path: &Path,
    model: &Model,
    tokenizer: &Tokenizer,
    tokens: Vec<u32>,
    rows: Vec<Row>,
    ranges: &[Vec<f32>],
) -> Result<(), Failure> {
    let lanes = rows.into_iter().map(|row| row.recorder.finish(None, false, &row.losses, 1, &[], &[]));
    let run = Run {
        format: FORMAT.to_owned(),
        version: VERSION,
        title: title(args.title.as_deref(), path),
        made: made(&args.commit),
        model: model_words(&args.model.model, &model.config)?,
        mode: Mode::Forced,
        sampler: None,
        text: args.text.path().map(text_words).transpose()?,
        start: 0,
        count: tokens.len(),
        prompt: 0,
        every: 1,
        vocab: BTreeMap::new(),
        tokens: Some(tokens),
        lanes: lanes.collect(),
        marks: Vec::new(),
        key_ranges: TOLD_LAYERS
            .into_iter()
            .filter_map(|layer| {
                let tenths = |range: &f32| f64::from((range * 10.0).round()) / 10.0;
                Some(KeyRanges { layer, ranges: ranges.get(layer)?.iter().map(tenths).collect() })
            })
            .collect(),
    };
    write(path, &run.spelled(tokenizer))
}

/// Reads the text with a lane for each storage; and the range of each K channel of the twin, `[layers][kv_cols]`.
fn measure(
    model: &Rc<Model>,
    all: &[Lane],
    tokens: &[u32],
    greedy: usize,
) -> Result<(Vec<Row>, Vec<Vec<f32>>), Failure> {
    let settings: Vec<CacheSettings> = all.iter().map(|lane| lane.settings).collect();
    let mut greedy_prefixes = vec![Vec::new(); settings.len()];
    for first in PROMPTS.into_iter().filter(|first| greedy > 0 && first + PROMPT <= tokens.len()) {
        let texts = continuations(model, &settings, &tokens[first..first + PROMPT], greedy)?;
        for (prefixes, text) in greedy_prefixes.iter_mut().zip(&texts) {
            prefixes.push(text.iter().zip(&texts[0]).take_while(|(a, b)| a == b).count());
        }
    }
    let vocab = model.config.vocab;
    let lanes = settings.len();
    let mut session = Session::with_lanes(Rc::clone(model), &settings, CHUNK * lanes)?;
    let (mut kl, mut same) = (vec![0.0; lanes], vec![0usize; lanes]);
    let mut losses = vec![Vec::with_capacity(tokens.len()); lanes];
    let mut recorders: Vec<LaneRecorder> =
        all.iter().enumerate().map(|(i, lane)| lane.recorder(session.lane(i).shape(), &model.config)).collect();
    let mut progress = Progress::new("reading the text", tokens.len() as u64);
    let packing = settings.first().map_or_else(Packing::default, |settings| settings.packing);
    let (tail, exact) = (packing.tail as usize, packing.exact as usize);
    let mut done = 0;
    while done < tokens.len() {
        // All lanes go in step, so none may pack before the others.
        let until = tail - done.saturating_sub(exact) % tail + exact.saturating_sub(done);
        let end = tokens.len().min(done + CHUNK.min(until));
        let want = Want::All { forced: &tokens[done + 1..tokens.len().min(end + 1)] };
        let feeds: Vec<_> = (0..lanes).map(|lane| LaneFeed { lane, tokens: &tokens[done..end], want }).collect();
        let fed = pollster::block_on(session.feed(&feeds))?;
        let logits = pollster::block_on(session.logits())?;
        let counted = end.min(tokens.len() - 1) - done;
        let row = |lane: usize, i: usize| &logits[(lane * (end - done) + i) * vocab..][..vocab];
        for (lane, fed) in fed.iter().enumerate() {
            for report in &fed.rows {
                let (sink_mass, first_mass) = (&report.sink_mass[..], &report.first_mass[..]);
                recorders[lane].read(Recorded { sink_mass, first_mass, ..Recorded::default() });
            }
            for report in fed.rows.iter().take(counted) {
                losses[lane].push(Some(f64::from(report.log_sum_exp) - f64::from(report.forced)));
            }
            for i in 0..end - done {
                let (divergence, agree) = compare(row(0, i), row(lane, i));
                kl[lane] += divergence;
                same[lane] += usize::from(agree);
            }
        }
        done = end;
        if done > exact && (done - exact).is_multiple_of(tail) {
            for (lane, ablation) in all.iter().enumerate().filter_map(|(i, lane)| Some((i, lane.ablation?))) {
                for layer in 0..model.config.layers {
                    let mut tokens = pollster::block_on(session.cached(lane, layer))?;
                    let tail = tokens.split_off(tokens.len().saturating_sub(tail));
                    let packed = ablation.pack(&model.config, packing.group as usize, tail);
                    pollster::block_on(session.overwrite(lane, layer, &packed))?;
                }
            }
        }
        progress.show(done as u64);
    }
    progress.end();
    let first = exact as u64;
    let packed = first + (tokens.len().saturating_sub(exact) / tail * tail) as u64;
    let layers = model.config.layers;
    let mut errors = vec![Vec::with_capacity(layers); lanes];
    let mut ranges = Vec::with_capacity(layers);
    for layer in 0..layers {
        let exact = pollster::block_on(session.cached(0, layer))?;
        let kv_cols = model.config.heads.kv_cols();
        ranges.push((0..kv_cols).map(|c| range(exact.iter().map(|token| token.keys_and_values[c]))).collect());
        for (lane, errors) in errors.iter_mut().enumerate() {
            let kept = pollster::block_on(session.cached(lane, layer))?;
            let packs = settings[lane].format().packs() || all[lane].ablation.is_some();
            // A dense cache in full precision counts no token as a sink.
            let kept = kept.iter().filter(|token| (first..packed).contains(&token.index) || !packs);
            let held = exact.first().map_or(0, |token| token.index);
            let pairs: Vec<_> = kept.map(|kept| (&exact[(kept.index - held) as usize], kept)).collect();
            let error = |part: std::ops::Range<usize>| {
                let (mut off, mut all) = (0.0, 0.0);
                for (exact, kept) in &pairs {
                    for (a, b) in exact.keys_and_values[part.clone()].iter().zip(&kept.keys_and_values[part.clone()]) {
                        off += f64::from(a - b).powi(2);
                        all += f64::from(*a).powi(2);
                    }
                }
                if all > 0.0 { (off / all).sqrt() } else { 0.0 }
            };
            errors.push([error(0..kv_cols), error(kv_cols..2 * kv_cols)]);
        }
    }
    let (count, counted) = (tokens.len() as f64, (tokens.len() - 1) as f64);
    let lanes = all.iter().zip(errors).zip(greedy_prefixes).zip(recorders).zip(losses).enumerate();
    let rows = lanes.map(|(lane, ((((Lane { name, settings, ablation }, errors), greedy), recorder), losses))| Row {
        name: name.clone(),
        storage: settings.keys,
        bytes: ablation.is_none().then(|| (session.lane(lane).bytes(), session.lane(lane).shape().bytes_per_token())),
        perplexity: (losses.iter().flatten().sum::<f64>() / counted).exp(),
        kl: kl[lane] / count,
        top_1: same[lane] as f64 / count,
        greedy,
        errors,
        recorder,
        losses,
    });
    Ok((rows.collect(), ranges))
}

/// The twin, and keys packed in ways that are worse.
fn ablations(settings: CacheSettings) -> [Lane; 5] {
    let lane = |name: &str, ablation| Lane { name: name.to_owned(), settings, ablation };
    let [int4, int2] = [Bits::Four, Bits::Two].map(|bits| Ablation { bits, by_token: false, rotated: false });
    [
        lane("f32", None),
        lane("int4, by token", Some(Ablation { by_token: true, ..int4 })),
        lane("int4, rotated", Some(Ablation { rotated: true, ..int4 })),
        lane("int2, by token", Some(Ablation { by_token: true, ..int2 })),
        lane("int2, rotated", Some(Ablation { rotated: true, ..int2 })),
    ]
}

impl Lane {
    /// What records it: an ablation as if its cache were packed, in as many bytes.
    fn recorder(&self, shape: CacheShape, config: &Config) -> LaneRecorder {
        let (settings, shape, keys) = match self.ablation {
            None => (self.settings, shape, None),
            Some(Ablation { bits, by_token, .. }) => {
                let (storage, stored) = match bits {
                    Bits::Eight => (Storage::INT8, 8),
                    Bits::Four => (Storage::INT4, 4),
                    Bits::Two => (Storage::INT2, 2),
                };
                let settings = self.settings.stored_as(storage);
                let shape = CacheShape { sinks: settings.stream().sinks(), ..shape };
                let keys = if by_token { Keys::ByToken } else { Keys::Rotated };
                (settings, shape.stored_as(model::policy::Storage::Packed { bits: stored }), Some(keys))
            }
        };
        let heads = [config.layers, config.heads.n_heads];
        LaneRecorder::new(settings, None, shape, 0, 0, heads).keys(keys)
    }
}

impl Ablation {
    /// Packs and unpacks whole groups of tokens.
    fn pack(self, config: &Config, group: usize, mut tokens: Vec<Cached>) -> Vec<Cached> {
        let (head_dim, kv_cols) = (config.heads.head_dim, config.heads.kv_cols());
        let code = |values: &mut dyn Iterator<Item = &mut f32>| {
            let values: Vec<&mut f32> = values.collect();
            let (least, most) =
                values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), x| (a.min(**x), b.max(**x)));
            let (scale, zero) = scale_and_zero(self.bits.parameters(least, most));
            for x in values {
                *x = self.bits.code(*x, scale, zero) as f32 * scale + zero;
            }
        };
        let turn = |tokens: &mut [Cached], sign: f32| {
            for token in tokens {
                let rotation = config.rotation(token.index);
                let (cos, sin) = rotation.split_at(head_dim / 2);
                for head in token.keys_and_values[..kv_cols].chunks_exact_mut(head_dim) {
                    let (low, high) = head.split_at_mut(head_dim / 2);
                    for (((x, y), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                        (*x, *y) = (*x * cos - *y * sin * sign, *y * cos + *x * sin * sign);
                    }
                }
            }
        };
        if self.rotated {
            turn(&mut tokens, 1.0);
        }
        for tokens in tokens.chunks_mut(group) {
            for token in tokens.iter_mut() {
                let first = if self.by_token { 0 } else { kv_cols };
                for head in token.keys_and_values[first..].chunks_exact_mut(head_dim) {
                    for values in head.chunks_mut(group) {
                        code(&mut values.iter_mut());
                    }
                }
            }
            for c in 0..if self.by_token { 0 } else { kv_cols } {
                code(&mut tokens.iter_mut().map(|token| &mut token.keys_and_values[c]));
            }
        }
        if self.rotated {
            turn(&mut tokens, -1.0);
        }
        tokens
    }
}

/// What each lane writes, always the best token, after `prompt`.
fn continuations(
    model: &Rc<Model>,
    settings: &[CacheSettings],
    prompt: &[u32],
    count: usize,
) -> Result<Vec<Vec<u32>>, Failure> {
    let want = Want::Last { penalty: 1.0, penalized: &[] };
    let mut session = Session::with_lanes(Rc::clone(model), settings, 32 * settings.len())?;
    let mut texts = vec![Vec::with_capacity(count); settings.len()];
    for (lane, text) in texts.iter_mut().enumerate() {
        let mut fed = 0;
        while fed < prompt.len() {
            let feed = LaneFeed { lane, tokens: &prompt[fed..], want };
            for piece in pollster::block_on(session.feed(&[feed]))? {
                fed += piece.taken;
                if fed == prompt.len() {
                    text.extend(piece.rows.last().and_then(|row| row.candidates.first()).map(|best| best.0));
                }
            }
        }
    }
    for _ in 1..count {
        let last: Vec<u32> = texts.iter().filter_map(|text| text.last().copied()).collect();
        let feeds = last.iter().enumerate();
        let feeds: Vec<_> =
            feeds.map(|(lane, token)| LaneFeed { lane, tokens: std::slice::from_ref(token), want }).collect();
        for (text, fed) in texts.iter_mut().zip(pollster::block_on(session.feed(&feeds))?) {
            text.extend(fed.rows.last().and_then(|row| row.candidates.first()).map(|best| best.0));
        }
    }
    Ok(texts)
}

/// KL divergence in nats of `other` from `exact`, and whether both have the same best token.
fn compare(exact: &[f32], other: &[f32]) -> (f64, bool) {
    let best = |logits: &[f32]| {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let at = logits.iter().position(|logit| *logit == greatest);
        let sum: f64 = logits.iter().map(|logit| f64::from((logit - greatest).exp())).sum();
        (at, f64::from(greatest) + sum.ln())
    };
    let ((exact_best, exact_sum), (other_best, other_sum)) = (best(exact), best(other));
    let terms = exact.iter().zip(other).map(|(exact, other)| {
        let ln_p = f64::from(*exact) - exact_sum;
        f64::from((ln_p as f32).exp()) * (ln_p - f64::from(*other) + other_sum)
    });
    (terms.sum(), exact_best == other_best)
}

fn range(values: impl Iterator<Item = f32>) -> f32 {
    let (least, most) = values.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), x| (least.min(x), most.max(x)));
    (most - least).max(0.0)
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "kv": self.name,
            "bytes": self.bytes.map(|(bytes, _)| bytes),
            "bytes_per_token": self.bytes.map(|(_, per_token)| per_token),
            "perplexity": self.perplexity,
            "kl": self.kl,
            "top_1": self.top_1,
            "greedy_prefix": self.greedy,
            "relative_error_of_keys": self.errors.iter().map(|[keys, _]| keys).collect::<Vec<_>>(),
            "relative_error_of_values": self.errors.iter().map(|[_, values]| values).collect::<Vec<_>>(),
        })
    }
}

fn show(name: &str, rows: &[Row], greedy: usize) {
    let of_f16 = rows.iter().find(|row| row.storage == Storage::F16).and_then(|row| row.bytes);
    println!("{name}");
    println!(
        "{:<14} {:>12} {:>11} {:>8} {:>11} {:>10} {:>7}  greedy prefix of {greedy}",
        "kv", "bytes", "per token", "to f16", "perplexity", "KL", "top-1"
    );
    for row in rows {
        let prefixes: Vec<String> = row.greedy.iter().map(usize::to_string).collect();
        let bytes = match row.bytes {
            Some((bytes, per_token)) => {
                let ratio = of_f16.map_or(0.0, |(half, _)| half as f64 / bytes as f64);
                format!("{bytes:>12} {per_token:>11.0} {ratio:>8.2}")
            }
            None => format!("{:>12} {:>11} {:>8}", "-", "-", "-"),
        };
        let (name, top_1) = (&row.name, 100.0 * row.top_1);
        let Row { perplexity, kl, .. } = row;
        println!("{name:<14} {bytes} {perplexity:>11.4} {kl:>10.6} {top_1:>6.2}%  {}", prefixes.join(" "));
    }
}

/// Relative errors of each layer, and the range of its K channels: a channel that is far wider than the others is why keys
/// share their scales by channel.
fn show_layers(rows: &[Row], ranges: &[Vec<f32>]) -> Value {
    let packed: Vec<&Row> = rows.iter().filter(|row| row.storage.bits.is_some()).collect();
    print!("{:<6}", "layer");
    for row in &packed {
        print!(" {:>9} {:>9}", format!("{} K", row.storage), format!("{} V", row.storage));
    }
    println!(" {:>14} {:>14} {:>8}", "K range median", "largest", "channel");
    let mut layers = Vec::new();
    for (layer, ranges) in ranges.iter().enumerate() {
        print!("{layer:<6}");
        for row in &packed {
            let [keys, values] = row.errors.get(layer).copied().unwrap_or_default();
            print!(" {:>8.2}% {:>8.2}%", 100.0 * keys, 100.0 * values);
        }
        let mut sorted = ranges.clone();
        sorted.sort_by(f32::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let largest = sorted.last().copied().unwrap_or(0.0);
        let channel = ranges.iter().position(|range| *range == largest).unwrap_or(0);
        println!(" {median:>14.2} {largest:>14.2} {channel:>8}");
        layers.push(json!({ "median": median, "largest": largest, "channel": channel, "ranges": ranges }));
    }
    json!({ "key_channels": layers })
}

/// What each part of a cache takes, in closed form.
fn show_bytes(shape: CacheShape, stream: u64) -> Value {
    use model::policy::Storage::{F16, Packed};
    println!(
        "{:<6} {:>8} {:>10} {:>11} {:>10} {:>9} {:>9} {:>11} {:>7} {:>11} {:>10}",
        "kv", "capacity", "sinks", "codes", "scales", "tail", "slack", "total", "to f16", "to f16 dense", "pays from"
    );
    let mut table = Vec::new();
    for capacity in CAPACITIES {
        for (name, storage) in
            [("f16", F16), ("int8", Packed { bits: 8 }), ("int4", Packed { bits: 4 }), ("int2", Packed { bits: 2 })]
        {
            let shape = shape.stored_as(storage);
            let parts = shape.parts(capacity);
            let half = shape.stored_as(F16);
            let ratio = half.bytes(capacity) as f64 / parts.total() as f64;
            let dense = half.bytes(stream) as f64 / parts.total() as f64;
            let from = shape.break_even(capacity);
            println!(
                "{name:<6} {capacity:>8} {:>10} {:>11} {:>10} {:>9} {:>9} {:>11} {ratio:>7.2} {dense:>11.2} {:>10}",
                parts.sinks,
                parts.codes,
                parts.scales,
                parts.tail,
                parts.slack,
                parts.total(),
                from.map_or("never".to_owned(), |from| from.to_string()),
            );
            table.push(json!({
                "kv": name,
                "capacity": capacity,
                "sinks": parts.sinks,
                "codes": parts.codes,
                "scales": parts.scales,
                "tail": parts.tail,
                "slack": parts.slack,
                "total": parts.total(),
                "ratio_to_f16": ratio,
                "ratio_to_f16_dense": dense,
                "pays_from": from,
            }));
        }
    }
    Value::Array(table)
}
