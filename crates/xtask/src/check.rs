//! `cargo xtask test`: every check, the cheapest first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::pack::Pack;
use crate::repo::{self, Repo};
use crate::server::Server;
use crate::{budget, demo, model, page, tidy, tools, wasm};

/// One check.
struct Step {
    name: &'static str,
    run: fn(&Repo) -> Result<()>,
}

/// In the order in which they run: what needs no Burn comes first.
const STEPS: [Step; 16] = [
    Step { name: "fmt", run: |repo| repo::run(&mut repo.cargo(&["fmt", "--all", "--check"])) },
    Step { name: "tidy", run: tidy::check },
    Step { name: "golden", run: golden },
    Step { name: "clippy-light", run: |repo| LIGHT.iter().try_for_each(|light| clippy(repo, light)) },
    Step { name: "test-light", run: test_light },
    Step { name: "npm", run: npm },
    Step { name: "page-types", run: |repo| repo::run(&mut repo.npm(&["run", "check"])) },
    Step { name: "page-build", run: |repo| page::build(repo) },
    Step { name: "page-budget", run: |repo| budget::hold(&page::sizes(repo, &Pack::read(repo)?)?) },
    Step { name: "page-specs", run: page_specs },
    Step { name: "clippy", run: |repo| clippy(repo, &HEAVY) },
    Step {
        name: "build",
        run: |repo| repo::run(&mut cargo_heavy(repo, "build", &["--bins", "--examples", "--tests"])),
    },
    Step { name: "test", run: test_heavy },
    Step { name: "fuzz", run: fuzz },
    Step { name: "wasm", run: build_wasm },
    Step { name: "browser", run: browser },
];

/// One at a time: together they would have other features than `cargo xtask`, and build its dependencies anew.
const LIGHT: [[&str; 4]; 2] = [["--profile", "xtask", "-p", "xtask"], ["--profile", "xtask", "-p", "policy"]];

/// All members but `xtask`, with one set of features: asking for fewer of them at a time would build Burn anew.
const HEAVY: [&str; 4] = ["--release", "--workspace", "--exclude", "xtask"];

/// A question for the program and the page, and the cache that both answer it with.
const QUESTION: &str = "Explain rain to a child.";
const ANSWER_TOKENS: usize = 24;

/// Runs the steps of these names, or all of them, and prints how long each took.
///
/// # Errors
/// Where a name is unknown, and where a step fails; the later ones do not run.
pub(crate) fn run(repo: Repo, names: &[String]) -> Result<()> {
    let steps = select(names)?;
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for step in &steps {
        if outcome.is_err() {
            rows.push(format!("{:<14}{:>8}  not run", step.name, ""));
            continue;
        }
        eprintln!("\n== {}", step.name);
        let start = Instant::now();
        outcome = (step.run)(&repo).with_context(|| format!("the step `{}` failed", step.name));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        rows.push(format!("{:<14}{:>8}  {verdict}", step.name, clock(start.elapsed())));
    }
    println!("\n{}", rows.join("\n"));
    outcome
}

fn select(names: &[String]) -> Result<Vec<&'static Step>> {
    static ALL: [Step; STEPS.len()] = STEPS;
    if let Some(unknown) = names.iter().find(|name| ALL.iter().all(|step| step.name != **name)) {
        let known: Vec<&str> = ALL.iter().map(|step| step.name).collect();
        bail!("there is no step `{unknown}`; the steps are {}", known.join(", "));
    }
    Ok(ALL.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name)).collect())
}

/// Minutes and seconds, with a tenth.
fn clock(duration: Duration) -> String {
    let tenths = (duration.as_millis() + 50) / 100;
    format!("{}:{:02}.{}", tenths / 600, tenths / 10 % 60, tenths % 10)
}

fn clippy(repo: &Repo, which: &[&str]) -> Result<()> {
    let mut command = repo.cargo(&["clippy", "--all-targets"]);
    repo::run(command.args(which).args(["--", "-D", "warnings"]))
}

pub(crate) fn cargo_heavy(repo: &Repo, subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = repo.cargo(&[subcommand]);
    command.args(HEAVY).args(arguments);
    command
}

fn test_light(repo: &Repo) -> Result<()> {
    LIGHT.iter().try_for_each(|light| repo::run(repo.cargo(&["test"]).args(light)))
}

/// What is stored of the kernels' self-test is what its independent program writes.
fn golden(repo: &Repo) -> Result<()> {
    repo::run(Command::new("python3").arg(repo.path("tests/golden/self_test.py")).arg("--check"))
}

fn npm(repo: &Repo) -> Result<()> {
    tools::check_node()?;
    tools::install_node_modules(repo)
}

fn test_heavy(repo: &Repo) -> Result<()> {
    model::ensure(repo)?;
    repo::run(&mut cargo_heavy(repo, "test", &[]))
}

/// Half a minute of damaged weight files against the reader.
fn fuzz(repo: &Repo) -> Result<()> {
    let program = repo.release_program("examples/fuzz_gguf")?;
    repo::run(Command::new(program).args(["--seconds", "30"]))
}

fn build_wasm(repo: &Repo) -> Result<()> {
    tools::ensure_wasm_target()?;
    let pack = Pack::read(repo)?;
    let module = wasm::build(repo, &pack, false)?;
    budget::hold(&[wasm::size(&module, &pack)?])
}

/// The page with an engine of the specs' own.
fn page_specs(repo: &Repo) -> Result<()> {
    let model = repo.path(model::FOLDER).join(model::DEFAULT.name);
    specs(repo, "test", model, &[])
}

/// The page with the real module and model must write what the program writes.
fn browser(repo: &Repo) -> Result<()> {
    let model = model::ensure(repo)?;
    let answer = repo.target.join("greedy.json");
    fs::write(&answer, greedy_answer(repo, &model)?).with_context(|| format!("cannot write {}", answer.display()))?;
    specs(repo, "test:real", model, &[("SINKSTREAM_GREEDY", answer)])
}

/// Runs one of the page's npm scripts that measure with the real model, and print a table.
///
/// # Errors
/// Where the model is not there, and where a measurement is not what it must be.
pub(crate) fn bench(repo: &Repo, script: &str) -> Result<()> {
    specs(repo, script, model::ensure(repo)?, &[])
}

/// Serves the checkout and runs one of the page's npm scripts against it.
fn specs(repo: &Repo, script: &str, model: PathBuf, variables: &[(&str, PathBuf)]) -> Result<()> {
    let chromium = tools::find_chromium()?;
    let server = Server::start(0, demo::site(repo, &Pack::read(repo)?, model))?;
    let mut command = repo.npm(&["run", script]);
    command.env("CHROMIUM", chromium).env("SINKSTREAM_URL", server.url());
    for (name, value) in variables {
        command.env(name, value);
    }
    repo::run(&mut command)
}

/// What the program says last about an answer.
#[derive(Serialize, Deserialize)]
struct Answer {
    text: String,
    ids: Vec<u32>,
}

/// Asks the program [`QUESTION`] at temperature 0, and returns its answer as JSON.
fn greedy_answer(repo: &Repo, model: &Path) -> Result<String> {
    let output = Command::new(repo.release_program("sinkstream")?)
        .args(["generate", "--prompt", QUESTION, "--max", &ANSWER_TOKENS.to_string(), "--temperature", "0"])
        .args(["--penalty", "1"])
        .args(["--policy", "sinks", "--sinks", "4", "--recent", "252", "--kv", "f16", "--device", "cpu", "--model"])
        .arg(model)
        .stderr(Stdio::inherit())
        .output()
        .context("`sinkstream generate` does not start")?;
    if !output.status.success() {
        bail!("`sinkstream generate` failed ({})", output.status);
    }
    let text = String::from_utf8(output.stdout).context("`sinkstream generate` printed no UTF-8")?;
    let last = text.lines().last().unwrap_or_default();
    let answer: Answer = serde_json::from_str(last)
        .with_context(|| format!("the last line of `sinkstream generate` has no `text` and `ids`: {last}"))?;
    if answer.ids.len() != ANSWER_TOKENS {
        bail!("`sinkstream generate --max {ANSWER_TOKENS}` answered with {} tokens", answer.ids.len());
    }
    Ok(serde_json::to_string(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_and_keep_their_order() {
        let names = |chosen: &[&str]| -> Result<Vec<&str>> {
            let chosen: Vec<String> = chosen.iter().map(|name| name.to_string()).collect();
            Ok(select(&chosen)?.iter().map(|step| step.name).collect())
        };
        assert_eq!(names(&[]).unwrap().len(), STEPS.len());
        assert_eq!(names(&["tidy", "fmt"]).unwrap(), ["fmt", "tidy"]);
        let message = names(&["fmt", "fuss"]).expect_err("unknown").to_string();
        assert!(message.contains("`fuss`") && message.contains("fuzz"), "{message}");
    }

    #[test]
    fn times_are_rounded_to_tenths() {
        let cases = [(0, "0:00.0"), (49, "0:00.0"), (50, "0:00.1"), (59_960, "1:00.0"), (754_321, "12:34.3")];
        for (milliseconds, text) in cases {
            assert_eq!(clock(Duration::from_millis(milliseconds)), text);
        }
    }
}
