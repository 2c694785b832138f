//! `sinkstream tokenize`: text in, ids out.

use crate::Failure;
use clap::Args;
use model::tokenizer::Tokenizer;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// A GGUF file; only its tokenizer is read.
    #[arg(long, default_value = "models/SmolLM2-135M-Instruct.Q4_1.gguf")]
    model: PathBuf,
    #[arg(long, required_unless_present = "file")]
    text: Option<String>,
    /// Read as it is: no newline is trimmed.
    #[arg(long, conflicts_with = "text")]
    file: Option<PathBuf>,
}

pub fn run(args: &TokenizeArgs) -> Result<(), Failure> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => String::new(),
    };
    let tokenizer = Tokenizer::from_gguf(&crate::load::header(&args.model)?)?;
    println!("{}", serde_json::to_string(&tokenizer.encode(&text)?)?);
    Ok(())
}

/// A text file, as it is.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn read_text(path: &std::path::Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{} cannot be read as text: {error}", path.display()).into())
}
