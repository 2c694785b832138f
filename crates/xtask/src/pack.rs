//! `wasm-pack.toml`: the one place that says how the WebAssembly module is built.

use std::fs;
use std::path::{Component, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::repo::Repo;

/// The file's name, in the root of the checkout.
pub(crate) const FILE: &str = "wasm-pack.toml";

/// The settings as written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Pack {
    /// The package to build; also the stem of the files that come out.
    #[serde(rename = "crate")]
    pub(crate) package: String,
    /// How the page loads the module.
    pub(crate) target: Target,
    /// A cargo profile of the root manifest.
    pub(crate) profile: String,
    /// Compiler flags for the wasm target, in place of any that the environment sets.
    pub(crate) rustflags: Vec<String>,
    /// Where the module goes, relative to the root.
    pub(crate) out_dir: PathBuf,
    /// How to shrink the module once more; absent means not at all.
    pub(crate) wasm_opt: Option<WasmOpt>,
    pub(crate) budgets: Budgets,
}

/// The shapes of wasm-bindgen's output that the page can load.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Target {
    /// An ES module with an init function.
    Web,
}

/// A run of Binaryen's optimiser.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WasmOpt {
    /// The command line, features named one by one.
    pub(crate) flags: Vec<String>,
}

/// Limits in bytes after gzip.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Budgets {
    pub(crate) wasm_gzip: u64,
    /// What a visitor waits for: the page, its style sheet, and the scripts that it names.
    pub(crate) page_start_gzip: u64,
    /// Everything that the page loads besides the module, the model and recorded runs.
    pub(crate) page_gzip: u64,
    /// All recorded runs.
    pub(crate) runs_gzip: u64,
}

impl Pack {
    /// Reads the file of this checkout.
    ///
    /// # Errors
    /// Where it cannot be read, or [`Pack::parse`] refuses it.
    pub(crate) fn read(repo: &Repo) -> Result<Pack> {
        let path = repo.path(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Pack::parse(&text)
    }

    /// Parses and checks the file's text.
    ///
    /// # Errors
    /// For a missing or unknown key, a value of the wrong type, an `out-dir` that leaves the checkout, or flags that
    /// switch on every wasm feature.
    pub(crate) fn parse(text: &str) -> Result<Pack> {
        let pack: Pack = toml::from_str(text).with_context(|| format!("{FILE} is not as expected"))?;
        let inside = pack.out_dir.components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || pack.out_dir.as_os_str().is_empty() {
            bail!("{FILE}: out-dir = {:?} must be a folder inside the checkout, such as \"web/pkg\"", pack.out_dir);
        }
        if let Some(flag) = pack.wasm_opt.iter().flat_map(|opt| &opt.flags).find(|flag| is_all_features(flag)) {
            bail!("{FILE}: {flag} makes a module that Chrome refuses: name each feature, such as --enable-simd");
        }
        Ok(pack)
    }
}

fn is_all_features(flag: &str) -> bool {
    matches!(flag, "--all-features" | "-all")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        crate = "wasm"
        target = "web"
        profile = "wasm"
        rustflags = ["-C", "target-feature=+simd128"]
        out-dir = "web/pkg"
        [budgets]
        wasm-gzip = 4_000_000
        page-start-gzip = 60_000
        page-gzip = 100_000
        runs-gzip = 150_000
    "#;

    #[track_caller]
    fn refused(from: &str, to: &str, words: &str) {
        assert!(GOOD.contains(from));
        let error = Pack::parse(&GOOD.replace(from, to)).expect_err("must be refused");
        let message = format!("{error:#}");
        assert!(message.contains(FILE) && message.contains(words), "{message}");
    }

    #[test]
    fn reads_every_key() {
        let pack = Pack::parse(GOOD).unwrap();
        assert_eq!(pack.package, "wasm");
        assert!(matches!(pack.target, Target::Web));
        assert_eq!(pack.rustflags, ["-C", "target-feature=+simd128"]);
        assert_eq!(pack.out_dir, PathBuf::from("web/pkg"));
        assert!(pack.wasm_opt.is_none());
        let budgets = pack.budgets;
        assert_eq!((budgets.wasm_gzip, budgets.page_start_gzip), (4_000_000, 60_000));
        assert_eq!((budgets.page_gzip, budgets.runs_gzip), (100_000, 150_000));
    }

    #[test]
    fn names_what_is_wrong() {
        refused("profile = \"wasm\"", "", "profile");
        refused("crate =", "krate =", "krate");
        refused("page-gzip = 100_000", "page-gzip = \"60 kB\"", "60 kB");
        refused("runs-gzip = 150_000", "runs-gzip = -1", "-1");
        refused("\"web\"", "\"bundler\"", "bundler");
        refused("[budgets]", "[budget]", "budget");
        refused("\"web/pkg\"", "\"../pkg\"", "inside the checkout");
        refused("\"web/pkg\"", "\"/pkg\"", "inside the checkout");
        refused("\"web/pkg\"", "\"\"", "inside the checkout");
        refused("[budgets]", "[wasm-opt]\nflags = [\"-Oz\", \"--all-features\"]\n[budgets]", "--enable-simd");
        refused("target =", "target = =", "target");
    }
}
