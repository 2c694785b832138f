//! Writes the small random model of the tests as a GGUF file, for the page's specs:
//! `cargo run --release -p tests --example tiny_model -- models/tiny.gguf`

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("say where: tiny_model models/tiny.gguf");
        return ExitCode::FAILURE;
    };
    match std::fs::write(&path, tests::Tiny::default().gguf()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path} cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}
