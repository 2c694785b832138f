//! Builds the WebAssembly module: cargo, wasm-bindgen as a library, and the optimiser where it is asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use wasm_bindgen_cli_support::Bindgen;
use wasmparser::{KnownCustom, Name, Parser, Payload};

use crate::budget::{self, Size};
use crate::pack::{Pack, Target};
use crate::repo::{self, Repo};

/// The triple that browsers run.
pub(crate) const TRIPLE: &str = "wasm32-unknown-unknown";

/// Builds the module into `out-dir`, with the names of its functions or without, and returns the path of its `.wasm` file.
///
/// # Errors
/// Where a tool fails, or the linker has wrapped the exports (see [`check_exports`]).
pub(crate) fn build(repo: &Repo, pack: &Pack, names: bool) -> Result<PathBuf> {
    let Pack { package, profile, .. } = pack;
    repo::run(
        repo.cargo(&["build", "--package", package, "--target", TRIPLE, "--profile", profile])
            // The strongest of cargo's sources of flags: the module is the same whatever RUSTFLAGS says.
            .env("CARGO_ENCODED_RUSTFLAGS", pack.rustflags.join("\u{1f}")),
    )?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let linked = repo.target.join(TRIPLE).join(folder).join(format!("{}.wasm", package.replace('-', "_")));
    let bytes = fs::read(&linked).with_context(|| format!("cannot read what cargo built, {}", linked.display()))?;
    check_exports(&bytes)?;

    let out_dir = repo.path(&pack.out_dir);
    let mut bindgen = Bindgen::new();
    bindgen.input_bytes(package, bytes).typescript(true).remove_name_section(!names).remove_producers_section(true);
    match pack.target {
        Target::Web => bindgen.web(true)?,
    };
    bindgen.generate(&out_dir).context("wasm-bindgen refused the module")?;

    let module = out_dir.join(format!("{package}_bg.wasm"));
    if let Some(wasm_opt) = &pack.wasm_opt {
        optimise(repo, &module, &wasm_opt.flags)?;
    }
    Ok(module)
}

/// The module's line in the table of sizes.
///
/// # Errors
/// Where the file cannot be read.
pub(crate) fn size(module: &Path, pack: &Pack) -> Result<Size> {
    let bytes = fs::read(module)
        .with_context(|| format!("cannot read {}: build it with `cargo xtask wasm`", module.display()))?;
    let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let gzip = budget::gzip_length(&bytes)?;
    Ok(Size { what: name, raw: bytes.len() as u64, gzip, budget: pack.budgets.wasm_gzip })
}

/// Refuses a module whose exports run every static constructor at every call from JavaScript.
///
/// Where nothing calls `__wasm_call_ctors`, the linker wraps each export in a `NAME.command_export` that does, and
/// with thousands of constructors an operation takes milliseconds. The crate declares and calls it once, and the
/// wrappers are not made.
///
/// # Errors
/// Where a wrapper is found, and where function names are absent, so that none could be.
pub(crate) fn check_exports(module: &[u8]) -> Result<()> {
    let mut named = 0;
    for payload in Parser::new(0).parse_all(module) {
        let Payload::CustomSection(section) = payload.context("cargo built a module that does not parse")? else {
            continue;
        };
        let KnownCustom::Name(names) = section.as_known() else {
            continue;
        };
        for name in names {
            let Name::Function(functions) = name? else {
                continue;
            };
            for function in functions {
                let function = function?.name;
                named += 1;
                if function.ends_with(".command_export") {
                    bail!(
                        "the module has `{function}`: every call from JavaScript would run all static constructors; \
                         call `__wasm_call_ctors` once in the start function"
                    );
                }
            }
        }
    }
    if named == 0 {
        bail!("the module has no function names to check for wrapped exports: set `strip = false` in its profile");
    }
    Ok(())
}

fn optimise(repo: &Repo, module: &Path, flags: &[String]) -> Result<()> {
    let script = repo.path("web/node_modules/binaryen/bin/wasm-opt");
    if !script.is_file() {
        bail!(
            "{} asks for wasm-opt, which is not there: run `npm install --save-dev binaryen` in web/",
            crate::pack::FILE
        );
    }
    let smaller = module.with_extension("opt");
    repo::run(
        Command::new("node").arg(script).args(flags).arg(module).arg("-o").arg(&smaller).current_dir(&repo.root),
    )?;
    fs::rename(&smaller, module).with_context(|| format!("cannot replace {}", repo.show(module)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with one custom `name` section that names its functions, written out by the binary format's rules.
    fn module(names: &[&str]) -> Vec<u8> {
        let mut map = vec![names.len() as u8];
        for (index, name) in names.iter().enumerate() {
            map.extend([index as u8, name.len() as u8]);
            map.extend(name.as_bytes());
        }
        let mut section = vec![4];
        section.extend(b"name");
        section.extend([1, map.len() as u8]);
        section.extend(map);
        let mut module = b"\0asm\x01\0\0\0".to_vec();
        module.extend([0, section.len() as u8]);
        module.extend(section);
        module
    }

    #[test]
    fn wrapped_exports_are_refused() {
        check_exports(&module(&["main", "step"])).unwrap();
        let message = check_exports(&module(&["main", "step.command_export"])).expect_err("wrapped").to_string();
        assert!(message.contains("`step.command_export`") && message.contains("__wasm_call_ctors"), "{message}");
    }

    #[test]
    fn a_module_without_names_cannot_pass() {
        let message = check_exports(b"\0asm\x01\0\0\0").expect_err("no names").to_string();
        assert!(message.contains("strip = false"), "{message}");
        assert!(check_exports(b"<!doctype html>").is_err());
        let whole = module(&["main"]);
        assert!(check_exports(&whole[..whole.len() - 3]).is_err());
    }
}
