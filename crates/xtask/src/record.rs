//! Records the runs that the page plays without a model, with the program itself, and writes their index.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::budget::{self, Size};
use crate::repo::{self, Repo};
use crate::{check, model};

/// Where the runs lie, and their index.
const FOLDER: &str = "web/runs";
const INDEX: &str = "index.json";
/// Bytes after gzip: of one run, and of all.
const RUN_BUDGET: u64 = 30_000;
const ALL_BUDGET: u64 = 150_000;
/// The text that belongs to this project.
const STORY: &str = "tests/golden/story.txt";

/// What a run is of.
enum Source {
    /// The story, read by all lanes.
    Story,
    /// A book that is not ours, of which only numbers are kept.
    Book,
    /// A question, which each lane answers. Of the seeds 1 to 10 the first: with all of them the two texts are the same until
    /// the first token is gone.
    Question(&'static str),
    /// The story, read by caches that only `sinkstream kivi` has.
    Kivi,
}

/// One run.
struct Recipe {
    /// As in the page's address.
    name: &'static str,
    title: &'static str,
    source: Source,
    lanes: &'static [&'static str],
    /// What else the program is told.
    more: &'static [&'static str],
}

const RECIPES: [Recipe; 11] = [
    Recipe {
        name: "lighthouse",
        title: "A story without end",
        source: Source::Question("Tell me a very long story about a lighthouse keeper. Never stop."),
        lanes: &["window:128", "sinks:4+124"],
        more: &[
            "--seed",
            "1",
            "--temperature",
            "0.8",
            "--top-p",
            "0.95",
            "--penalty",
            "1.2",
            "--max",
            "280",
            "--heads",
            "32",
        ],
    },
    Recipe {
        name: "hero",
        title: "The first word leaves",
        source: Source::Story,
        lanes: &["window:256", "sinks:4+252", "dense"],
        more: &["--limit", "513", "--heads", "64"],
    },
    Recipe {
        name: "take-sinks-away",
        title: "Take the sinks away",
        source: Source::Story,
        lanes: &["window:128", "sinks:4+124", "dense", "recompute:128"],
        more: &["--limit", "641"],
    },
    Recipe {
        name: "how-many",
        title: "One sink or eight",
        source: Source::Story,
        lanes: &["window:256", "sinks:1+255", "sinks:4+252", "sinks:8+248"],
        more: &["--limit", "641", "--heads", "192"],
    },
    Recipe {
        name: "newlines",
        title: "Four newlines as sinks",
        source: Source::Story,
        lanes: &["window:256", "sinks:4+252", r"sinks:4+252,text=\n\n\n\n", "dense"],
        more: &["--limit", "641", "--heads", "192"],
    },
    Recipe {
        name: "softmax1",
        title: "A softmax that may say nothing",
        source: Source::Story,
        lanes: &["window:256", "window:256,softmax1", "sinks:4+252", "dense"],
        more: &["--limit", "641", "--heads", "192"],
    },
    Recipe {
        name: "stream-positions",
        title: "Original positions",
        source: Source::Story,
        lanes: &["sinks:4+252", "sinks:4+252,stream", "dense"],
        more: &["--limit", "641", "--heads", "192"],
    },
    Recipe {
        name: "two-bits",
        title: "A two-bit cache",
        source: Source::Story,
        lanes: &["sinks:4+252", "sinks:4+252,kv=int8", "sinks:4+252,kv=int4", "sinks:4+252,kv=int2"],
        more: &["--limit", "641", "--heads", "192"],
    },
    Recipe {
        name: "tiny",
        title: "A window smaller than a sentence",
        source: Source::Story,
        lanes: &["window:16", "sinks:4+12", "dense"],
        more: &["--limit", "513", "--heads", "192"],
    },
    Recipe {
        name: "past-8192",
        title: "Past the trained length",
        source: Source::Book,
        lanes: &["window:256", "sinks:4+252", "dense"],
        more: &[
            "--limit",
            "12289",
            "--numbers",
            "--every",
            "16",
            "--heads",
            "0",
            "--timed",
            "512",
            "--ranges",
            "256,8192,10240",
        ],
    },
    Recipe {
        name: "wrong-axis",
        title: "Scales the wrong way round",
        source: Source::Kivi,
        lanes: &[],
        more: &["--limit", "513", "--greedy", "0"],
    },
];

/// Of a run's file, what the index repeats.
#[derive(Deserialize)]
struct Run {
    title: String,
    count: u64,
    lanes: Vec<Lane>,
}

#[derive(Deserialize, Serialize)]
struct Lane {
    name: String,
    summary: serde_json::Value,
}

#[derive(Serialize)]
struct Index {
    format: &'static str,
    version: u32,
    runs: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    file: String,
    title: String,
    bytes: usize,
    count: u64,
    lanes: Vec<Lane>,
}

/// Records runs by these names, or all of them, and writes the index of all that are there.
///
/// # Errors
/// An unknown name, a step that fails, a run or all of them over their budget.
pub(crate) fn record(repo: &Repo, book: Option<&Path>, names: &[String]) -> Result<()> {
    if let Some(unknown) = names.iter().find(|name| RECIPES.iter().all(|recipe| recipe.name != **name)) {
        let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
        bail!("there is no run `{unknown}`; the runs are {}", known.join(", "));
    }
    model::ensure(repo)?;
    repo::run(&mut check::cargo_heavy(repo, "build", &["--bins"]))?;
    let commit = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).current_dir(&repo.root).output();
    let commit = commit.context("`git` does not start: put it on the PATH")?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    fs::create_dir_all(repo.path(FOLDER))?;
    for recipe in RECIPES.iter().filter(|recipe| names.is_empty() || names.iter().any(|name| name == recipe.name)) {
        let Some(mut command) = recipe.command(repo, book) else {
            eprintln!("{} stays as it is: name the book with --book", recipe.name);
            continue;
        };
        command.args(recipe.more).args(["--title", recipe.title, "--commit", &commit]);
        repo::run(&mut command)?;
    }
    index(repo)
}

impl Recipe {
    fn file(&self) -> String {
        format!("{}.json", self.name)
    }

    /// The program that records it; none where there is no book.
    fn command(&self, repo: &Repo, book: Option<&Path>) -> Option<Command> {
        let mut command = Command::new(repo.target.join("release").join("sinkstream"));
        command.current_dir(&repo.root);
        let out = format!("{FOLDER}/{}", self.file());
        match self.source {
            Source::Story => command.args(["record", "--text", STORY, "--out", &out]),
            Source::Book => command.args(["record", "--out", &out, "--text"]).arg(fs::canonicalize(book?).ok()?),
            Source::Question(question) => command.args(["record", "--prompt", question, "--out", &out]),
            Source::Kivi => command.args(["kivi", "--text", STORY, "--record", &out]),
        };
        for lane in self.lanes {
            command.args(["--setting", lane]);
        }
        Some(command)
    }
}

/// Writes the index, and holds the runs to their budgets.
fn index(repo: &Repo) -> Result<()> {
    let mut runs = Vec::new();
    let mut sizes = Vec::new();
    for recipe in &RECIPES {
        let file = recipe.file();
        let path = repo.path(FOLDER).join(&file);
        let bytes = fs::read(&path).with_context(|| format!("there is no {}: record it", repo.show(&path)))?;
        let Run { title, count, lanes } =
            serde_json::from_slice(&bytes).with_context(|| format!("{} is no run", repo.show(&path)))?;
        let gzip = budget::gzip_length(&bytes)?;
        sizes.push(Size { what: file.clone(), raw: bytes.len() as u64, gzip, budget: RUN_BUDGET });
        runs.push(Entry { name: recipe.name, file, title, bytes: bytes.len(), count, lanes });
    }
    let sum = |of: fn(&Size) -> u64| sizes.iter().map(of).sum();
    let (raw, gzip) = (sum(|size| size.raw), sum(|size| size.gzip));
    sizes.push(Size { what: "all runs".to_owned(), raw, gzip, budget: ALL_BUDGET });
    let index = Index { format: "sinkstream-runs", version: 1, runs };
    fs::write(repo.path(FOLDER).join(INDEX), serde_json::to_string_pretty(&index)? + "\n")?;
    budget::hold(&sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index says what the files say; a run that was recorded by hand is noticed.
    #[test]
    fn the_index_is_of_the_runs_that_are_there() {
        let repo = Repo::find().unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(repo.path(FOLDER).join(INDEX)).unwrap()).unwrap();
        let runs = index["runs"].as_array().unwrap();
        assert_eq!(runs.len(), RECIPES.len());
        for (entry, recipe) in runs.iter().zip(&RECIPES) {
            let bytes = fs::read(repo.path(FOLDER).join(recipe.file())).unwrap();
            let run: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!((&entry["name"], &entry["title"]), (&recipe.name.into(), &recipe.title.into()));
            assert_eq!((&entry["bytes"], &entry["count"]), (&bytes.len().into(), &run["count"]));
            let lanes = run["lanes"].as_array().unwrap();
            assert_eq!(entry["lanes"].as_array().unwrap().len(), lanes.len());
            for (told, lane) in entry["lanes"].as_array().unwrap().iter().zip(lanes) {
                assert_eq!((&told["name"], &told["summary"]), (&lane["name"], &lane["summary"]));
            }
            assert!(budget::gzip_length(&bytes).unwrap() <= RUN_BUDGET, "{}", recipe.name);
        }
    }

    #[test]
    fn names_of_runs_are_known() {
        let message = record(&Repo::find().unwrap(), None, &["england".to_owned()]).expect_err("unknown").to_string();
        assert!(message.contains("`england`") && message.contains("take-sinks-away"), "{message}");
    }
}
