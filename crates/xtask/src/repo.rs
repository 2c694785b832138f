//! Where things are, and how other programs are run from there.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The checkout that a command works on.
pub(crate) struct Repo {
    /// The folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Where cargo builds: `target/`, or the folder that the environment or cargo's settings name.
    pub(crate) target: PathBuf,
    /// The members and what they depend on.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) license: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One entry of a member's dependency tables.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
}

impl Repo {
    /// Asks cargo about the checkout that this program was started from.
    ///
    /// # Errors
    /// Where cargo does not run, or does not answer as documented.
    pub(crate) fn find() -> Result<Repo> {
        // Cargo sets the variable when it runs this program; the constant serves a direct start.
        let manifest =
            env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(manifest.join("Cargo.toml"))
            .output()
            .context("`cargo metadata` does not start: put cargo on the PATH")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        #[derive(Deserialize)]
        struct Metadata {
            workspace_root: PathBuf,
            target_directory: PathBuf,
            packages: Vec<Package>,
        }
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).context("`cargo metadata` printed something unexpected")?;
        Ok(Repo { root: metadata.workspace_root, target: metadata.target_directory, packages: metadata.packages })
    }

    /// A path inside the checkout.
    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// `path` as a reader of the output wants it: relative where it lies in the checkout.
    pub(crate) fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// `cargo`, to be run in the root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// `npm`, to be run in `web/`.
    pub(crate) fn npm(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" });
        command.args(arguments).current_dir(self.path("web"));
        command
    }

    /// A program that cargo has built in the release profile: `name`, or `examples/name`.
    pub(crate) fn release_program(&self, name: &str) -> Result<PathBuf> {
        let path = self.target.join("release").join(name).with_extension(env::consts::EXE_EXTENSION);
        if !path.is_file() {
            bail!("{} is not built: run `cargo xtask test build`", self.show(&path));
        }
        Ok(path)
    }
}

/// The cargo that runs this program, so that one toolchain does everything.
fn cargo() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Prints the command, runs it with its output shown as it comes, and waits.
///
/// # Errors
/// Where the program does not start, or ends with anything but success; the message names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("`{line}` does not start: is it installed?"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
