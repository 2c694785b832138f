//! From a fresh clone to a page in the browser.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::budget::grouped;
use crate::pack::Pack;
use crate::repo::Repo;
use crate::server::{Port, Site};
use crate::{model, page, tools, wasm};

/// Installs what is missing, builds everything, and serves it.
///
/// # Errors
/// Where something is missing that cannot be installed, where a build fails, and where the port is taken.
pub(crate) fn demo(repo: &Repo, port: u16, named: Option<&Path>) -> Result<()> {
    // What fails at once comes before what takes minutes.
    let port = Port::take(port)?;
    let model = named.map(existing).transpose()?;
    let pack = Pack::read(repo)?;
    tools::check_node()?;
    tools::ensure_wasm_target()?;
    let model = match model {
        Some(path) => path,
        None => model::ensure(repo)?,
    };
    tools::ensure_node_modules(repo)?;
    page::build(repo)?;
    let module = wasm::build(repo, &pack, false)?;
    let size = wasm::size(&module, &pack)?;
    println!("{}: {} bytes, {} after gzip", repo.show(&module), grouped(size.raw), grouped(size.gzip));
    serve_built(repo, &pack, port, model)
}

/// Serves what is built already.
///
/// # Errors
/// Where the page or the module is not built, the model is not there, or the port is taken.
pub(crate) fn serve(repo: &Repo, port: u16, named: Option<&Path>) -> Result<()> {
    let port = Port::take(port)?;
    let pack = Pack::read(repo)?;
    let default = repo.path(model::FOLDER).join(model::DEFAULT.name);
    serve_built(repo, &pack, port, existing(named.unwrap_or(&default))?)
}

/// The folders of a checkout as the page sees them.
pub(crate) fn site(repo: &Repo, pack: &Pack, model: PathBuf) -> Site {
    Site { page: repo.path(page::FOLDER), pkg: repo.path(&pack.out_dir), models: repo.path(model::FOLDER), model }
}

fn serve_built(repo: &Repo, pack: &Pack, port: Port, model: PathBuf) -> Result<()> {
    let site = site(repo, pack, model);
    for built in [site.page.join("index.html"), site.pkg.join(format!("{}.js", pack.package))] {
        if !built.is_file() {
            bail!("{} is not built: run `cargo xtask demo`", repo.show(&built));
        }
    }
    println!("Serving the model {}. Ctrl+C stops the server.", repo.show(&site.model));
    let server = port.serve(site)?;
    println!("{}", server.url());
    server.wait()
}

/// The path of a model that a person named.
///
/// # Errors
/// Where no file is there.
pub(crate) fn existing(path: &Path) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("there is no model file at {}: `cargo xtask demo` fetches the default one", path.display());
    }
    Ok(path.to_owned())
}
