use std::collections::{BTreeMap, BTreeSet};
use tests::root;

/// Which rooms a room may know.
const ARROWS: &[(&str, &[&str])] = &[
    ("policy", &[]),
    ("kernels", &[]),
    ("model", &["policy", "kernels"]),
    ("cli", &["model"]),
    ("wasm", &["model"]),
    ("xtask", &[]),
];

#[test]
fn arrows_point_as_drawn() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(room, knows)| (*room, knows.iter().copied().collect())).collect();
    let rooms: BTreeSet<String> = std::fs::read_dir(root().join("crates"))
        .expect("crates/ is there")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(rooms, allowed.keys().map(|room| (*room).to_owned()).collect());
    for (room, may) in &allowed {
        let manifest =
            std::fs::read_to_string(root().join("crates").join(room).join("Cargo.toml")).expect("a manifest");
        let known: BTreeSet<&str> = manifest
            .lines()
            .filter_map(|line| line.split_once(['.', ' ', '=']).map(|(name, _)| name.trim()))
            .filter(|name| allowed.contains_key(name))
            .collect();
        assert!(known.is_subset(may), "{room} knows {known:?}, and may know {may:?}");
    }
}

/// The module's code is imported in the worker alone; the page only passes its address on. What else is imported late is a
/// file of the page, by its name.
#[test]
fn only_the_worker_imports_the_module() {
    let mut importers = Vec::new();
    let mut folders = vec![root().join("web/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("web/src is there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path).is_ok_and(|text| imports_an_address(&text)) {
                importers.push(path.file_name().expect("a name").to_string_lossy().into_owned());
            }
        }
    }
    assert_eq!(importers, ["worker.ts"]);
}

/// Whether anything is imported that is not named in quotes.
fn imports_an_address(text: &str) -> bool {
    text.split("import(").skip(1).any(|rest| !rest.trim_start().starts_with(['"', '\'', '`']))
}

/// The README's table of the path of a token: every file it names is there.
#[test]
fn the_path_of_a_token_is_real() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md is there");
    let section = readme.split("## The path of a token").nth(1).expect("the section is there");
    let table = section.split("\n## ").next().unwrap_or(section);
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
    assert!(rows.len() >= 10, "the path has {} steps", rows.len());
    for row in rows {
        let files: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|name| name.contains('/')).collect();
        assert!(!files.is_empty(), "no file in: {row}");
        for file in files {
            assert!(root().join(file).exists(), "{file} is not there, but the README names it");
        }
    }
}

/// The versions that the module tells for bug reports are those that are locked.
#[test]
fn told_versions_are_locked_versions() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is there");
    let told = std::fs::read_to_string(root().join("crates/wasm/src/objects.rs")).expect("objects.rs is there");
    for package in ["burn", "cubecl", "wgpu"] {
        let entry = format!("name = \"{package}\"\nversion = \"");
        let version = lock.split(&entry).nth(1).and_then(|rest| rest.split('"').next()).expect("the package is locked");
        assert!(told.contains(&format!("{package}: \"{version}\"")), "{package} {version} is locked");
    }
}
