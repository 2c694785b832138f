//! What neither the compiler nor a linter holds, and what can be told without building anything.
//!
//! The arrows between the rooms and the README's path of a token are held by `tests/structure.rs`.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::pack::{self, Pack};
use crate::repo::{Package, Repo};
use crate::wasm::TRIPLE;

/// Rooms that build in seconds, for nothing of these is in them.
const LIGHT: [&str; 2] = ["policy", "xtask"];
/// What Burn's packages begin with, and the rooms that have it.
const HEAVY: [&str; 5] = ["burn", "cubecl", "wgpu", "kernels", "model"];

/// Checks everything here.
///
/// # Errors
/// All that is untidy, a line each.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut faults = Vec::new();
    faults.extend(licences(repo)?);
    faults.extend(weight(&repo.packages));
    faults.extend(wasm_settings(repo)?);
    let lock = read(repo, "web/package-lock.json")?;
    if lock.contains("\"resolved\"") {
        faults.push("web/package-lock.json names hosts: install with the settings of web/.npmrc".into());
    }
    if !faults.is_empty() {
        bail!("untidy:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn read(repo: &Repo, path: &str) -> Result<String> {
    fs::read_to_string(repo.path(path)).with_context(|| format!("cannot read {path}"))
}

fn licences(repo: &Repo) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (file, words) in [("LICENSE-MIT", "Permission is hereby granted"), ("LICENSE-APACHE", "Apache License")] {
        if !read(repo, file)?.contains(words) {
            faults.push(format!("{file} is not the licence that its name says"));
        }
    }
    for Package { name, license, .. } in &repo.packages {
        if license.as_deref() != Some("MIT OR Apache-2.0") {
            faults.push(format!("the package {name} does not say `license.workspace = true`"));
        }
    }
    Ok(faults)
}

fn weight(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for Package { name, dependencies, .. } in packages.iter().filter(|package| LIGHT.contains(&package.name.as_str())) {
        for dependency in dependencies.iter().filter(|other| HEAVY.iter().any(|heavy| other.name.starts_with(heavy))) {
            faults.push(format!("{name} must build in seconds, and {} takes minutes", dependency.name));
        }
    }
    faults
}

/// `wasm-pack.toml` says who reads it, and plain cargo builds the module with the same flags.
fn wasm_settings(repo: &Repo) -> Result<Vec<String>> {
    let text = read(repo, pack::FILE)?;
    let pack = Pack::parse(&text)?;
    let config: toml::Table = toml::from_str(&read(repo, ".cargo/config.toml")?)?;
    let cargo = config.get("target").and_then(|target| target.get(TRIPLE)).and_then(|target| target.get("rustflags"));
    let mut faults = Vec::new();
    if cargo != Some(&toml::Value::from(pack.rustflags)) {
        faults.push(format!("rustflags for wasm differ between {} and .cargo/config.toml", pack::FILE));
    }
    if !text.lines().next().is_some_and(|line| line.starts_with('#') && line.contains("xtask")) {
        faults.push(format!("the first line of {} must say that xtask reads it", pack::FILE));
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo::Dependency;

    #[test]
    fn light_rooms_are_free_of_burn() {
        let package = |name: &str, dependencies: &[&str]| {
            let dependencies = dependencies.iter().map(|name| Dependency { name: name.to_string() }).collect();
            Package { name: name.into(), license: None, dependencies }
        };
        let packages = [
            package("kernels", &["burn"]),
            package("policy", &["proptest", "burn-tensor"]),
            package("xtask", &["kernels", "clap"]),
        ];
        assert_eq!(
            weight(&packages),
            [
                "policy must build in seconds, and burn-tensor takes minutes",
                "xtask must build in seconds, and kernels takes minutes"
            ]
        );
    }
}
