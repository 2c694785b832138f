//! `sinkstream generate` and `sinkstream chat`: the model writes.

use crate::Failure;
use crate::load::load;
use crate::settings::{CacheArgs, ModelArgs};
use clap::Args;
use model::config::Config;
use model::generate::{Conversation, Event, Reason, Text};
use model::policy::Policy;
use model::sampler::Settings;
use model::session::{CacheSettings, Session};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};
use std::ops::Range;
use std::time::Instant;

/// Tokens of a prompt that go through the model together.
const CHUNK: usize = 128;

#[derive(Clone, Debug, Args)]
pub struct SamplerArgs {
    /// 0 takes the best token every time.
    #[arg(long, default_value_t = 0.7, allow_negative_numbers = true)]
    temperature: f32,
    /// Only the best so many tokens, at most 64; 0 is 64.
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// For the last 64 tokens; 1 is none.
    #[arg(long, default_value_t = 1.1)]
    penalty: f32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl SamplerArgs {
    pub fn settings(&self) -> Settings {
        Settings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.penalty,
            seed: self.seed,
            ..Settings::default()
        }
    }
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The message to answer.
    #[arg(long)]
    prompt: String,
    /// Feed the prompt as it is, without the chat template.
    #[arg(long)]
    raw: bool,
    /// Most tokens of the answer; 0: until the model ends it.
    #[arg(long, default_value_t = 256)]
    max: usize,
    #[command(flatten)]
    cache: CacheArgs,
    /// Make room by whole turns of the chat, and keep its system prompt for ever.
    #[arg(long)]
    turns: bool,
    #[command(flatten)]
    sampler: SamplerArgs,
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Most tokens of one answer; 0: until the model ends it.
    #[arg(long, default_value_t = 0)]
    max: usize,
    #[command(flatten)]
    cache: CacheArgs,
    /// Make room by whole turns, and keep the system prompt for ever.
    #[arg(long)]
    turns: bool,
    #[command(flatten)]
    sampler: SamplerArgs,
}

/// What an answer was made of.
struct Answer {
    text: String,
    ids: Vec<u32>,
    reason: Reason,
    seconds: f64,
}

/// Writes one answer to stdout as it comes.
fn answer(conversation: &mut Conversation, text: &Text) -> Result<Answer, Failure> {
    let mut stdout = std::io::stdout().lock();
    let mut whole = String::new();
    let mut ids = Vec::new();
    let mut decoding = None;
    let mut dropped = Vec::new();
    loop {
        match pollster::block_on(conversation.step(text))? {
            Event::Prompt { done, total, evicted, evicted_turns, .. } => {
                if let Some(said) = left(evicted, evicted_turns) {
                    eprintln!("the cache is full: {said} ({done} of {total} read)");
                }
            }
            Event::Token { id, text: piece, evicted_turns, evicted, .. } => {
                decoding.get_or_insert_with(Instant::now);
                if evicted_turns.is_some() {
                    dropped.extend(left(evicted, evicted_turns));
                }
                ids.push(id);
                whole.push_str(&piece);
                stdout.write_all(piece.as_bytes())?;
                stdout.flush()?;
            }
            Event::End { reason, text: piece } => {
                whole.push_str(&piece);
                writeln!(stdout, "{piece}")?;
                for said in dropped {
                    eprintln!("the cache was full: {said}");
                }
                let seconds = decoding.map_or(0.0, |started| started.elapsed().as_secs_f64());
                return Ok(Answer { text: whole, ids, reason, seconds });
            }
        }
    }
}

/// What left the cache, in words.
fn left(tokens: Option<Range<u64>>, turns: Option<Range<u64>>) -> Option<String> {
    let inclusive = |range: Range<u64>| (range.start, range.end - 1);
    let (from, to) = inclusive(tokens?);
    Some(match turns.map(inclusive) {
        Some((first, last)) => format!("tokens {from} to {to}, turns {first} to {last}, have left it"),
        None => format!("tokens {from} to {to} have left it"),
    })
}

fn start(model: &ModelArgs, cache: &CacheArgs, turns: bool) -> Result<(Conversation, Text), Failure> {
    let settings = cache.settings()?;
    if turns && matches!(settings.policy, Policy::Dense) {
        return Err("--turns says what leaves, and dense keeps everything: use --policy sinks or window".into());
    }
    let (model, _, (settings, text)) = load(model, |header| {
        let text = Text::from_gguf(header)?;
        let settings = CacheSettings { turns: if turns { Some(text.turns()?) } else { None }, ..settings };
        settings.check(&Config::from_gguf(header)?)?;
        Ok((settings, text))
    })?;
    Ok((Conversation::new(Session::new(model, settings, CHUNK)?), text))
}

pub fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    if args.prompt.trim().is_empty() {
        return Err("the prompt is empty: write something after --prompt".into());
    }
    let (mut conversation, text) = start(&args.model, &args.cache, args.turns)?;
    let settings = args.sampler.settings();
    if args.raw {
        conversation.send_raw(&text, &args.prompt, &settings, args.max)?;
    } else {
        conversation.send(&text, &args.prompt, &settings, args.max)?;
    }
    let answer = answer(&mut conversation, &text)?;
    let reason = match answer.reason {
        Reason::End => "end",
        Reason::Length => "length",
        Reason::Stopped => "stopped",
    };
    // The clock starts with the first token, which is read before it is counted.
    let per_second = answer.ids.len().saturating_sub(1) as f64 / answer.seconds.max(f64::MIN_POSITIVE);
    let line = json!({
        "text": answer.text,
        "ids": answer.ids,
        "reason": reason,
        "stream": conversation.session().stream().fed(),
        "held": conversation.session().stream().held(),
        "cache_bytes": conversation.session().cache_bytes(),
        "tokens_per_second": per_second,
        "settings": args.cache.json(&conversation.session().settings()),
    });
    println!("{line}");
    Ok(())
}

pub fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let (mut conversation, text) = start(&args.model, &args.cache, args.turns)?;
    let mut settings = args.sampler.settings();
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        eprintln!("Write a message and press Enter. An empty line, or Ctrl+D, ends the chat.");
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if terminal {
            eprint!("> ");
        }
        let Some(line) = lines.next().transpose()? else { return Ok(()) };
        if line.trim().is_empty() {
            return Ok(());
        }
        conversation.send(&text, &line, &settings, args.max)?;
        answer(&mut conversation, &text)?;
        // Another draw for the next answer, still the same for the same seed and messages.
        settings.seed = settings.seed.wrapping_add(1);
        let session = conversation.session();
        eprintln!(
            "[{} of {} slots, {} bytes, {} tokens read]",
            session.stream().held(),
            session.slots(),
            session.cache_bytes(),
            session.stream().fed()
        );
    }
}
