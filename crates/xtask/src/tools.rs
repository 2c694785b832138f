//! What must be on the machine: each is installed where that is safe, else named with the remedy.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::repo::{self, Repo};
use crate::wasm::TRIPLE;

/// The oldest Node.js that the page's build runs on: major, minor. `web/package.json` asks for the same.
const NODE: (u32, u32) = (20, 19);

/// Names under which Chromium is installed.
const CHROMIUMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Adds the wasm target to the toolchain where it is missing.
///
/// # Errors
/// Where it is missing and rustup cannot add it.
pub(crate) fn ensure_wasm_target() -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TRIPLE])
        .output()
        .context("`rustc` does not start: install Rust with rustup")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && folder.is_dir() {
        return Ok(());
    }
    repo::run(Command::new("rustup").args(["target", "add", TRIPLE])).with_context(|| {
        format!("Rust's {TRIPLE} target is missing: install Rust with rustup, or add the target as your system does")
    })
}

/// Checks that Node.js is there and new enough.
///
/// # Errors
/// Where it is not; the message says which version is needed.
pub(crate) fn check_node() -> Result<()> {
    let (major, minor) = NODE;
    let remedy = format!("install Node.js {major}.{minor} or newer, and npm with it");
    let output =
        Command::new("node").arg("--version").output().with_context(|| format!("`node` does not start: {remedy}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match parse_node(&version) {
        Some(found) if found >= NODE => Ok(()),
        _ => bail!("Node.js {version} does not build the page: {remedy}"),
    }
}

/// `v20.19.4` as (20, 19).
fn parse_node(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Installs the page's packages where they are missing or older than the lock file.
///
/// # Errors
/// Where npm fails.
pub(crate) fn ensure_node_modules(repo: &Repo) -> Result<()> {
    let changed = |path: &str| -> Option<SystemTime> { fs::metadata(repo.path(path)).ok()?.modified().ok() };
    // npm writes the first file at the end of an installation.
    match (changed("web/node_modules/.package-lock.json"), changed("web/package-lock.json")) {
        (Some(installed), Some(locked)) if installed >= locked => Ok(()),
        _ => install_node_modules(repo),
    }
}

/// Installs the page's packages afresh, exactly as locked.
///
/// # Errors
/// Where npm fails.
pub(crate) fn install_node_modules(repo: &Repo) -> Result<()> {
    repo::run(&mut repo.npm(&["ci"])).context("the page's packages are not installed: is the network there?")
}

/// The Chromium that the page's specs drive: the one that the variable `CHROMIUM` names, or the first on the PATH.
///
/// # Errors
/// Where there is none.
pub(crate) fn find_chromium() -> Result<PathBuf> {
    if let Some(named) = env::var_os("CHROMIUM") {
        let path = PathBuf::from(named);
        if !path.is_file() {
            bail!("CHROMIUM names {}, which is not there", path.display());
        }
        return Ok(path);
    }
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    CHROMIUMS
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
        .context("no Chromium on the PATH: install it (`apt-get install chromium`), or name one in CHROMIUM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_versions_compare_as_numbers() {
        assert_eq!(parse_node("v20.19.4"), Some((20, 19)));
        assert!(parse_node("v20.9.0") < Some(NODE) && parse_node("v22.0.0") > Some(NODE));
        for wrong in ["", "20.19.4", "v20", "vx.1", "not found"] {
            assert_eq!(parse_node(wrong), None, "{wrong}");
        }
    }
}
