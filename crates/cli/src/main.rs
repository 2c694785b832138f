//! The native program. A table or a text for people, and for every measuring command one JSON line last.

mod bench;
mod compare;
mod kivi;
mod load;
mod perplexity;
mod record;
mod replay;
mod run;
mod settings;
mod text;
mod tokenize;
mod write;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A language model that talks without end, and shows why it can.
#[derive(Debug, Parser)]
#[command(name = "sinkstream", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer one prompt.
    Generate(write::GenerateArgs),
    /// Talk in the terminal, for as long as you like.
    Chat(write::ChatArgs),
    /// Print the token ids of a text as a JSON array.
    Tokenize(tokenize::TokenizeArgs),
    /// Measure how well the model predicts a text, token by token, under a cache policy.
    Perplexity(perplexity::PerplexityArgs),
    /// Read one text with several caches at once, and compare what they lose.
    Compare(compare::CompareArgs),
    /// Record one text or one question with several caches, for the figures of the page.
    Record(record::RecordArgs),
    /// Say what a recorded run says.
    Replay(replay::ReplayArgs),
    /// Time a token by policy, capacity and stream position.
    Bench(bench::BenchArgs),
    /// Measure what packing the cache to 8, 4 and 2 bits costs and saves, beside a twin in full precision. On the CPU.
    Kivi(kivi::KiviArgs),
}

/// What went wrong, as a sentence that names the thing and the remedy.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Generate(args) => write::generate(&args),
        Command::Chat(args) => write::chat(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Kivi(args) => kivi::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sinkstream: {failure}");
            ExitCode::FAILURE
        }
    }
}
