//! The built page in `web/dist`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::budget::{self, Size};
use crate::pack::Pack;
use crate::repo::{self, Repo};

/// Where `npm run build` puts the page, relative to the root.
pub(crate) const FOLDER: &str = "web/dist";

/// Builds the page.
///
/// # Errors
/// Where npm fails.
pub(crate) fn build(repo: &Repo) -> Result<()> {
    repo::run(&mut repo.npm(&["run", "build"]))
}

/// Where the recorded runs lie in the built page.
const RUNS: &str = "runs";

/// The page's lines in the table of sizes, each file compressed by itself as a server does: what a visitor waits for, every
/// file but source maps and recorded runs, and these.
///
/// # Errors
/// Where the page is not built or cannot be read.
pub(crate) fn sizes(repo: &Repo, pack: &Pack) -> Result<[Size; 3]> {
    let folder = repo.path(FOLDER);
    let files = files_below(&folder)
        .with_context(|| format!("cannot read the page in {FOLDER}: build it with `npm run build` in web/"))?;
    let index = fs::read_to_string(folder.join("index.html"))
        .with_context(|| format!("the page in {FOLDER} has no index.html: build it with `npm run build` in web/"))?;
    let size = |what: String, budget| Size { what, raw: 0, gzip: 0, budget };
    let mut start = size(format!("{FOLDER} at the start"), pack.budgets.page_start_gzip);
    let mut all = size(FOLDER.into(), pack.budgets.page_gzip);
    let mut runs = size(format!("{FOLDER}/{RUNS}"), pack.budgets.runs_gzip);
    for file in files.iter().filter(|file| file.extension().is_none_or(|extension| extension != "map")) {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let gzip = budget::gzip_length(&bytes)?;
        let inside = file.strip_prefix(&folder)?;
        let add = |size: &mut Size| {
            size.raw += bytes.len() as u64;
            size.gzip += gzip;
        };
        if inside.starts_with(RUNS) {
            add(&mut runs);
            continue;
        }
        add(&mut all);
        let name = inside.to_string_lossy().replace('\\', "/");
        // What the page names in its head is fetched before it shows anything.
        if name == "index.html" || index.contains(&format!("\"./{name}\"")) {
            add(&mut start);
        }
    }
    Ok([start, all, runs])
}

fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}
