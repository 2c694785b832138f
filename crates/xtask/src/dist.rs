//! The page as a folder for a static host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::pack::Pack;
use crate::repo::Repo;
use crate::{budget, demo, model, page, tools, wasm};

/// Tells hosts that build sites with Jekyll to serve all files as they are, and this command that the folder is its own.
const MARK: &str = ".nojekyll";

/// Builds page and module and puts them into `out`, with `model` under the default model's name where one is given.
///
/// # Errors
/// Where a build fails, something is over its budget, `out` holds anything that this command did not put there, or a
/// file cannot be written.
pub(crate) fn dist(repo: &Repo, out: &Path, model: Option<&Path>) -> Result<()> {
    let model = model.map(demo::existing).transpose()?;
    let out = repo.path(out);
    claim(&out)?;
    let pack = Pack::read(repo)?;
    tools::check_node()?;
    tools::ensure_wasm_target()?;
    tools::ensure_node_modules(repo)?;
    page::build(repo)?;
    let module = wasm::build(repo, &pack, false)?;
    let [start, all, runs] = page::sizes(repo, &pack)?;
    budget::hold(&[start, all, runs, wasm::size(&module, &pack)?])?;
    assemble(&repo.path(page::FOLDER), &repo.path(&pack.out_dir), model.as_deref(), &out)?;
    println!("{}: put its content on any static host", repo.show(&out));
    Ok(())
}

/// Makes `out` an empty folder of this command.
fn claim(out: &Path) -> Result<()> {
    if out.exists() {
        let empty = out.is_dir() && fs::read_dir(out)?.next().is_none();
        if !empty && !out.join(MARK).is_file() {
            bail!("{} holds other things: name an empty or a new folder with --out", out.display());
        }
        fs::remove_dir_all(out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make the folder {}", out.display()))?;
    fs::write(out.join(MARK), "").with_context(|| format!("cannot write in {}", out.display()))
}

fn assemble(page: &Path, pkg: &Path, model: Option<&Path>, out: &Path) -> Result<()> {
    copy_below(page, out, &|_| true)?;
    // Types are for those who build upon the package.
    copy_below(pkg, &out.join("pkg"), &|name| name.ends_with(".js") || name.ends_with(".wasm"))?;
    if let Some(model) = model {
        let to = out.join(model::FOLDER).join(model::DEFAULT.name);
        copy(model, &to)?;
    }
    Ok(())
}

fn copy_below(from: &Path, to: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path: PathBuf = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            bail!("{} has a name that is not UTF-8: delete it and build again", path.display());
        };
        if path.is_dir() {
            copy_below(&path, &to.join(name), wanted)?;
        } else if wanted(name) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/"));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn page_module_and_model_lie_where_the_page_looks_for_them() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for (name, text) in [
            ("page/index.html", "page"),
            ("page/sw.js", "sw"),
            ("page/assets/index.js", "js"),
            ("pkg/wasm.js", "js"),
            ("pkg/wasm_bg.wasm", "wasm"),
            ("pkg/wasm.d.ts", "types"),
            ("m.gguf", "GGUF"),
        ] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), text).unwrap();
        }
        let out = at("out");
        claim(&out).unwrap();
        assemble(&at("page"), &at("pkg"), Some(&at("m.gguf")), &out).unwrap();
        let model = format!("models/{}", model::DEFAULT.name);
        let wanted = [MARK, "assets/index.js", "index.html", &model, "pkg/wasm.js", "pkg/wasm_bg.wasm", "sw.js"];
        assert_eq!(names(&out), wanted);
        // Again, without a model: nothing of the first time is left.
        claim(&out).unwrap();
        assemble(&at("page"), &at("pkg"), None, &out).unwrap();
        assert!(!out.join(model).exists() && out.join("index.html").exists());
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("letter"), "dear").unwrap();
        let message = claim(folder.path()).expect_err("not ours").to_string();
        assert!(message.contains("holds other things") && message.contains("--out"), "{message}");
        assert_eq!(names(folder.path()), ["letter"]);
    }
}
