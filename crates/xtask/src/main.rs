//! Builds, serves and tests Sinkstream: `cargo xtask demo`, `cargo xtask test`, `cargo xtask dist`.
//!
//! Depends on no other member of the workspace, so that it is there in a minute, long before Burn is.

mod budget;
mod check;
mod demo;
mod dist;
mod model;
mod pack;
mod page;
mod record;
mod repo;
mod server;
mod tidy;
mod tools;
mod wasm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::repo::Repo;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, serve and test Sinkstream.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what is missing, build the module and the page, and serve them on this machine.
    Demo(ServeArguments),
    /// Serve what is built already.
    Serve(ServeArguments),
    /// Build a folder that any static host can serve, below any path and without special headers.
    Dist {
        /// Where it goes; what an earlier `dist` put there is replaced.
        #[arg(long, value_name = "PATH", default_value = "dist")]
        out: PathBuf,
        /// Put this GGUF file beside the page; without it the page fetches the default model from its hub.
        #[arg(long, value_name = "PATH")]
        model: Option<PathBuf>,
    },
    /// Build the WebAssembly module as wasm-pack.toml says, and hold it to its budget.
    Wasm {
        /// Keep the functions' names, for a browser's profiler: the module is larger, and held to no budget.
        #[arg(long)]
        names: bool,
    },
    /// Measure what is built already, in a browser, with the real model; on a quiet machine.
    Bench(BenchArguments),
    /// Record the runs that the page plays, with the default model on the CPU, and write their index.
    Record {
        /// Pride and Prejudice as a text file, for the run past the trained length; without it that run stays as it is.
        #[arg(long, value_name = "PATH")]
        book: Option<PathBuf>,
        /// Only these runs, by name; all of them where none is named.
        names: Vec<String>,
    },
    /// Run every check, the cheapest first.
    Test {
        /// Only these steps, by name; all of them where none is named.
        steps: Vec<String>,
    },
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct BenchArguments {
    /// The second visit to the page, from its address to the first token of an answer.
    #[arg(long)]
    start: bool,
    /// Three lanes in one forward beside one lane, on the CPU, in turns; a minute and a half.
    #[arg(long)]
    lanes: bool,
    /// How often the model tells a fact that is in its cache, and one that has left it; five minutes.
    #[arg(long)]
    facts: bool,
    /// The CPU engine beside wllama, the npm package of llama.cpp, on one thread each; five minutes.
    #[arg(long)]
    wllama: bool,
    /// A worker killed, a device destroyed, a tab closed, an answer stopped, each at many random moments; ten minutes.
    #[arg(long)]
    faults: bool,
    /// 3,000 tokens of a chat and 2,000 of a comparison on the page: memory, heap, nodes, and the time of a token.
    #[arg(long)]
    soak: bool,
}

impl BenchArguments {
    /// The npm scripts of what was asked for, the shortest first.
    fn scripts(&self) -> impl Iterator<Item = &'static str> {
        [
            (self.start, "start"),
            (self.lanes, "lanes"),
            (self.facts, "facts"),
            (self.wllama, "wllama"),
            (self.faults, "faults"),
            (self.soak, "soak"),
        ]
        .into_iter()
        .filter_map(|(asked, script)| asked.then_some(script))
    }
}

#[derive(clap::Args)]
struct ServeArguments {
    /// The port on 127.0.0.1; 0 takes any free one.
    #[arg(long, default_value_t = 8017)]
    port: u16,
    /// Serve this GGUF file in place of the default model.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let repo = Repo::find()?;
    match arguments.command {
        Command::Demo(serve) => demo::demo(&repo, serve.port, serve.model.as_deref()),
        Command::Serve(serve) => demo::serve(&repo, serve.port, serve.model.as_deref()),
        Command::Dist { out, model } => dist::dist(&repo, &out, model.as_deref()),
        Command::Wasm { names } => {
            let pack = pack::Pack::read(&repo)?;
            let built = wasm::build(&repo, &pack, names)?;
            if names { Ok(()) } else { budget::hold(&[wasm::size(&built, &pack)?]) }
        }
        Command::Bench(what) => what.scripts().try_for_each(|script| check::bench(&repo, script)),
        Command::Record { book, names } => record::record(&repo, book.as_deref(), &names),
        Command::Test { steps } => check::run(repo, &steps),
    }
}
