//! `sinkstream replay`: what a recorded run says.

use crate::Failure;
use crate::run::{LossRange, Run, health};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A run that `sinkstream record` or the page wrote.
    file: PathBuf,
    /// Also writes the losses as a table, the same as the page's and as `perplexity --csv`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let run = Run::read(&args.file)?;
    if let Some(path) = &args.csv {
        std::fs::write(path, run.csv()).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    }
    print(&run);
    let lanes = run.lanes.iter().enumerate().map(|(number, lane)| {
        let health = health(&run, number);
        json!({
            "name": lane.name,
            "summary": lane.summary,
            "bytes": lane.bytes.last().map(|(_, parts)| parts.total()),
            "first_left": lane.first_left(number, &run.marks),
            "health": health.map_or("steady", |(kind, _)| kind),
            "since": health.map(|(_, since)| since),
        })
    });
    println!("{}", json!({ "title": run.title, "count": run.count, "lanes": lanes.collect::<Vec<_>>() }));
    Ok(())
}

/// The run in a table: a line for each lane and range.
pub fn print(run: &Run) {
    let what = match (&run.text, run.every) {
        (None, _) => format!("{} tokens, {} of them a prompt", run.count, run.prompt),
        (Some(text), 1) => format!("{} tokens of {} from {} on", run.count, text.name, run.start),
        (Some(text), every) => format!("{} tokens of {} from {} on, means of {every}", run.count, text.name, run.start),
    };
    println!("{}: {what}; {}, {}, {}", run.title, run.model.name, run.made.by, run.made.date);
    let name =
        |name: &str| name.chars().map(|letter| if letter.is_control() { '.' } else { letter }).collect::<String>();
    let wide = run.lanes.iter().map(|lane| lane.name.chars().count()).max().unwrap_or(0).max(4);
    println!(
        "{:<wide$} {:>13} {:>9} {:>11} {:>12} {:>10}  health",
        "lane", "losses", "mean", "perplexity", "bytes", "first left"
    );
    let number =
        |value: Option<f64>, decimals: usize| value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"));
    for (at, lane) in run.lanes.iter().enumerate() {
        let bytes = lane.bytes.last().map_or("-".to_owned(), |(_, parts)| parts.total().to_string());
        let left = lane.first_left(at, &run.marks).map_or("-".to_owned(), |i| i.to_string());
        let health = health(run, at).map_or("steady".to_owned(), |(kind, since)| format!("{kind} since token {since}"));
        for (line, LossRange { from, to, mean_nll, perplexity }) in lane.summary.iter().enumerate() {
            let losses = format!("{from}-{}", to.saturating_sub(1));
            let (mean, perplexity) = (number(*mean_nll, 4), number(*perplexity, 2));
            let name = name(&lane.name);
            if line == 0 {
                println!("{name:<wide$} {losses:>13} {mean:>9} {perplexity:>11} {bytes:>12} {left:>10}  {health}");
            } else {
                println!("{:<wide$} {losses:>13} {mean:>9} {perplexity:>11}", "");
            }
        }
    }
}
