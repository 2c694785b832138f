//! Feeds damaged and lying weight files to the reader, the tokenizer and the chat template.
//!
//! `cargo run --release -p model --example fuzz_gguf -- [--seconds 60] [--seed 0] [--cases N]`
//!
//! Each case takes a true file, damages it in one to four places and reads it in random pieces. It
//! fails if something panics, if more than [`ALLOWED_FIXED`] + [`ALLOWED_A_BYTE`] times the bytes
//! received are allocated at once, or if an accepted file's data were not delivered whole. Then the
//! exit code is 1 and the last line names the seed that repeats the case alone.

mod file;

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use file::{Field, File, Tensor};
use model::chat::{ChatTemplate, Message, Role};
use model::gguf::{Header, Reader, Sink};
use model::tokenizer::Tokenizer;
use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// What a reader may hold however few bytes came.
const ALLOWED_FIXED: usize = 16 << 10;
/// What it may hold for each byte that came: descriptions of tensors are larger in memory than in a
/// file, and vectors double.
const ALLOWED_A_BYTE: usize = 8;

/// The system's allocator, with a count of what is allocated.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged; the counters do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `pointer` came from `alloc` above, and so from the system, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz_gguf: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let (mut seconds, mut seed, mut cases) = (60, 0, u64::MAX);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let place = match name.as_str() {
            "--seconds" => &mut seconds,
            "--seed" => &mut seed,
            "--cases" => &mut cases,
            _ => return Err(format!("{name} is unknown: use --seconds, --seed or --cases, each with a number").into()),
        };
        let value = arguments.next().and_then(|value| value.parse().ok());
        *place = value.ok_or_else(|| format!("{name} needs a whole number"))?;
    }

    let bases = base_files();
    let start = Instant::now();
    let (mut done, mut accepted, mut most) = (0, 0, 0.0);
    while done < cases && start.elapsed() < Duration::from_secs(seconds) {
        let case_seed = seed + done;
        let outcome = catch_unwind(AssertUnwindSafe(|| one_case(case_seed, &bases)))
            .unwrap_or_else(|_| Err("it panicked".to_owned()))
            .map_err(|problem| format!("{problem}; repeat with --seed {case_seed} --cases 1"))?;
        accepted += u64::from(outcome.accepted);
        most = f64::max(most, outcome.share_of_allowed);
        done += 1;
    }
    println!(
        "fuzz_gguf: {done} files in {:.1} s from seed {seed}: {accepted} accepted, {} refused, none panicked; \
         at most {:.0} % of the allowed memory",
        start.elapsed().as_secs_f64(),
        done - accepted,
        100.0 * most
    );
    // A run in which all files fare alike tests nothing.
    if done >= 1000 && (accepted == 0 || accepted == done) {
        return Err("all files fared alike: the damage is too strong or too weak, mend `damage`".into());
    }
    Ok(())
}

struct Outcome {
    accepted: bool,
    /// Peak of the reader's memory, as a part of what is allowed.
    share_of_allowed: f64,
}

/// A valid file, and where its integers are.
struct Base {
    bytes: Vec<u8>,
    integers: Vec<(usize, usize)>,
}

fn base_files() -> Vec<Base> {
    let strings = |list: &[&str]| Field::Strings(list.iter().map(|text| (*text).to_owned()).collect());
    let mut chat = File::sample();
    chat.pairs = [
        ("tokenizer.ggml.model", Field::from("gpt2")),
        ("tokenizer.ggml.pre", Field::from("smollm")),
        ("tokenizer.ggml.tokens", strings(&["<|im_end|>", "a", "b", "1", "Ġ", "ab", "Ġab", "<tool>"])),
        ("tokenizer.ggml.token_type", Field::I32s(vec![3, 1, 1, 1, 1, 1, 1, 4])),
        ("tokenizer.ggml.merges", strings(&["a b", "Ġ ab"])),
        ("tokenizer.ggml.eos_token_id", Field::U32(0)),
        (
            "tokenizer.chat_template",
            Field::from(
                "{% for message in messages %}{{ message['role'] + message['content'] }}<|im_end|>{% endfor %}",
            ),
        ),
    ]
    .map(|(key, field)| (key.to_owned(), field))
    .to_vec();
    let mut old = File { version: 2, alignment: 64, ..File::sample() };
    old.pairs.push(("general.alignment".to_owned(), Field::U32(64)));
    let header_only = File { tensors: Vec::new(), ..File::sample() };
    let mut many = File::sample();
    many.tensors = (0..100).map(|index| Tensor::new(&format!("t{index}"), &[8], 0, 32, index)).collect();
    [File::sample(), chat, old, header_only, many]
        .map(|file| {
            let written = file.write();
            assert!(written.data_offset <= written.bytes.len());
            Base { bytes: written.bytes, integers: written.integers }
        })
        .into()
}

/// Counts the data.
struct Counter {
    bytes: Vec<u64>,
}

impl Sink for Counter {
    fn header(&mut self, header: &Header) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes = vec![0; header.tensors.len()];
        Ok(())
    }

    fn data(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.bytes[tensor] += bytes.len() as u64;
        Ok(())
    }
}

fn one_case(seed: u64, bases: &[Base]) -> Result<Outcome, String> {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let base = &bases[random.random_range(0..bases.len())];
    let mut bytes = base.bytes.clone();
    for _ in 0..random.random_range(1..=4) {
        damage(&mut bytes, &base.integers, &mut random);
    }

    let mut share_of_allowed: f64 = 0.0;
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let mut sink = Counter { bytes: Vec::new() };
    let mut reader = Reader::new();
    let mut given = 0;
    let mut failed = false;
    while given < bytes.len() && !failed {
        let most = if random.random_bool(0.5) { 16 } else { bytes.len() };
        let end = bytes.len().min(given + random.random_range(1..=most));
        failed = reader.push(&bytes[given..end], &mut sink).is_err();
        given = end;
        let (used, allowed) = (PEAK.load(Relaxed) - before, ALLOWED_FIXED + ALLOWED_A_BYTE * given);
        share_of_allowed = share_of_allowed.max(used as f64 / allowed as f64);
        if used > allowed {
            return Err(format!("{used} bytes were allocated for {given} bytes received, {allowed} are allowed"));
        }
    }
    let header = match reader.finish() {
        Ok(_) if failed => return Err("a file was accepted after an error".to_owned()),
        Ok(header) => header,
        Err(_) => return Ok(Outcome { accepted: false, share_of_allowed }),
    };
    if !header.tensors.iter().map(|tensor| tensor.bytes).eq(sink.bytes.iter().copied()) {
        return Err("a file was accepted and its data were not delivered whole".to_owned());
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&header)
        && let Ok(ids) = tokenizer.encode("ab 1<|im_end|>é")
        && ids.iter().any(|id| *id as usize >= tokenizer.vocab_size())
    {
        return Err("an id is beyond the vocabulary".to_owned());
    }
    if let Ok(template) = ChatTemplate::from_gguf(&header) {
        // Any answer will do; what counts is that there is one.
        let _: Result<_, _> = template.render(&[Message::new(Role::User, "a")], true);
    }
    Ok(Outcome { accepted: true, share_of_allowed })
}

/// Changes one thing.
fn damage(bytes: &mut Vec<u8>, integers: &[(usize, usize)], random: &mut TestRng) {
    if bytes.is_empty() {
        return;
    }
    let place = random.random_range(0..bytes.len());
    let end = random.random_range(place..=bytes.len().min(place + 64));
    match random.random_range(0..8) {
        0 => bytes[place] ^= 1 << random.random_range(0..8),
        1 => bytes[place] = random.random(),
        2 | 3 => {
            let (place, size) = integers[random.random_range(0..integers.len())];
            if let Some(integer) = bytes.get_mut(place..place + size) {
                let lie = lying_integer(random);
                integer.copy_from_slice(&lie.to_le_bytes()[..size]);
            }
        }
        4 => bytes.truncate(place),
        5 => drop(bytes.drain(place..end)),
        6 => {
            let piece = bytes[place..end].to_vec();
            let to = random.random_range(0..=bytes.len());
            bytes.splice(to..to, piece);
        }
        _ => {
            let piece = bytes[place..end].to_vec();
            let to = random.random_range(0..=bytes.len() - piece.len());
            bytes[to..to + piece.len()].copy_from_slice(&piece);
        }
    }
}

/// A number near a border where arithmetic goes wrong, or a small one.
fn lying_integer(random: &mut TestRng) -> u64 {
    let border = [0, 1 << 16, 1 << 20, 1 << 31, 1 << 32, 1 << 62, 1 << 63][random.random_range(0..7)];
    match random.random_range(0..4) {
        0 => random.random_range(0..40),
        1 => u64::MAX / random.random_range(1..=64),
        _ => border + random.random_range(0..3) - u64::from(border > 0),
    }
}
