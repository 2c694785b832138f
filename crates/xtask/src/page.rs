//! The built page in `web/dist`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

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

/// The page's line in the table of sizes: every file but source maps, each compressed by itself as a server does.
///
/// # Errors
/// Where the page is not built or cannot be read.
pub(crate) fn size(repo: &Repo, pack: &Pack) -> Result<Size> {
    let folder = repo.path(FOLDER);
    let files = files_below(&folder)
        .with_context(|| format!("cannot read the page in {FOLDER}: build it with `npm run build` in web/"))?;
    let mut size = Size { what: FOLDER.into(), raw: 0, gzip: 0, budget: pack.budgets.page_gzip };
    for file in files.iter().filter(|file| file.extension().is_none_or(|extension| extension != "map")) {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        size.raw += bytes.len() as u64;
        size.gzip += budget::gzip_length(&bytes)?;
    }
    if size.raw == 0 {
        bail!("the page in {FOLDER} is empty: build it with `npm run build` in web/");
    }
    Ok(size)
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
