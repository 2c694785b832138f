//! Reads a model from a file, with progress on a terminal.

use crate::Failure;
use crate::settings::{DeviceName, ModelArgs};
use model::device::Place;
use model::gguf::Header;
use model::session::Model;
use model::weights::Loader;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::Path;
use std::rc::Rc;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "there is no file {}: run `cargo xtask demo` once to fetch the default model, or give another with --model",
            path.display()
        )
        .into(),
        _ => format!("{} cannot be opened: {error}", path.display()).into(),
    })
}

/// The model on the device that was asked for, the file's header, and what `prepare` makes of that as soon as it is read,
/// so that nobody waits for the weights to hear of a mistake.
///
/// # Errors
/// No GPU, no file, or a file that is no model; each a sentence. And those of `prepare`.
pub fn load<T>(
    args: &ModelArgs,
    prepare: impl FnOnce(&Header) -> Result<T, Failure>,
) -> Result<(Rc<Model>, Header, T), Failure> {
    let mut file = open(&args.model)?;
    let place = match args.device {
        DeviceName::Cpu => Place::cpu(),
        DeviceName::Gpu => {
            let (place, adapter) = pollster::block_on(Place::gpu(None))?;
            eprintln!("on {}{}", adapter.name, if adapter.software { " (software)" } else { "" });
            place
        }
    };
    let total = file.metadata().map(|metadata| metadata.len()).unwrap_or(0);
    let mut loader = Loader::new(place.device.clone());
    let mut piece = vec![0; PIECE];
    let mut progress = Progress::new("reading the model", total);
    let mut done = 0;
    let mut prepare = Some(prepare);
    let mut prepared = None;
    let named = |error: &dyn std::fmt::Display| -> Failure { format!("{}: {error}", args.model.display()).into() };
    loop {
        let count = file.read(&mut piece).map_err(|error| named(&error))?;
        if count == 0 {
            break;
        }
        loader.push(&piece[..count]).map_err(|error| named(&error))?;
        if let Some(header) = loader.header()
            && let Some(prepare) = prepare.take()
        {
            prepared = Some(prepare(header)?);
        }
        done += count as u64;
        progress.show(done);
    }
    progress.end();
    let (config, header, weights) = loader.finish().map_err(|error| named(&error))?;
    // Whoever gives back weights has seen a header.
    let prepared = prepared.ok_or_else(|| named(&"no header: download it again"))?;
    if place.grid.is_some() {
        pollster::block_on(weights.verify())?;
    }
    Ok((Rc::new(Model { config, weights, place }), header, prepared))
}

/// Only the file's header, for commands that need no weights.
///
/// # Errors
/// No file, or a file that is no model.
pub fn header(path: &Path) -> Result<Header, Failure> {
    let mut file = open(path)?;
    let mut reader = model::gguf::Reader::new();
    let mut piece = vec![0; PIECE];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok(reader.finish().map_err(|error| format!("{}: {error}", path.display()))?);
        }
        reader.push(&piece[..count], &mut Nowhere).map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some(header) = reader.header() {
            return Ok(header.clone());
        }
    }
}

/// A sink for readers who want the header alone.
struct Nowhere;

impl model::gguf::Sink for Nowhere {
    fn header(&mut self, _: &Header) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }

    fn data(&mut self, _: usize, _: &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// A line on stderr that counts, where stderr is a terminal.
pub struct Progress {
    what: &'static str,
    total: u64,
    shown: u64,
    terminal: bool,
}

impl Progress {
    pub fn new(what: &'static str, total: u64) -> Self {
        Self { what, total, shown: u64::MAX, terminal: std::io::stderr().is_terminal() }
    }

    pub fn show(&mut self, done: u64) {
        let percent = (100 * done).checked_div(self.total).unwrap_or(0);
        if self.terminal && percent != self.shown {
            self.shown = percent;
            eprint!("\r{}: {percent} %", self.what);
        }
    }

    pub fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
