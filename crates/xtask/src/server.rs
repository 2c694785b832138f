//! A static file server on 127.0.0.1 for the page, its module and the models.
//!
//! Byte ranges, entity tags, dates and types are `tower-http`'s; the headers here make the page as safe as on a real
//! host. Nothing needs cross-origin isolation, and none is set: what works here works on any static host.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tower_http::services::{ServeDir, ServeFile};
use tower_http::set_header::SetResponseHeaderLayer;

use crate::model;

/// Compiling wasm is allowed, evaluating text is not. Models may come from any HTTPS host and from this machine
/// (`?model=URL`).
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
     img-src 'self' data: blob:; connect-src 'self' https: http://localhost:* http://127.0.0.1:*; \
     object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The folders behind the addresses.
pub(crate) struct Site {
    /// `/`
    pub(crate) page: PathBuf,
    /// `/pkg/`
    pub(crate) pkg: PathBuf,
    /// `/models/`
    pub(crate) models: PathBuf,
    /// The file behind the default model's address in `/models/`.
    pub(crate) model: PathBuf,
}

/// A port that is taken already, so that a clash shows before minutes of building.
pub(crate) struct Port(TcpListener);

impl Port {
    /// Takes `port` on 127.0.0.1; 0 takes any free one.
    ///
    /// # Errors
    /// Where another program has it; the message says what to do.
    pub(crate) fn take(port: u16) -> Result<Port> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(Port).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                anyhow::anyhow!("port {port} is in use: stop the program that has it, or choose another with --port")
            }
            io::ErrorKind::PermissionDenied => {
                anyhow::anyhow!("port {port} is not for ordinary users: choose one above 1023 with --port")
            }
            _ => anyhow::anyhow!("cannot listen on port {port} of 127.0.0.1: {error}"),
        })
    }

    /// Serves the site until the server is dropped.
    ///
    /// # Errors
    /// Where the operating system gives no threads or no sockets.
    pub(crate) fn serve(self, site: Site) -> Result<Server> {
        let Port(listener) = self;
        let address = listener.local_addr().context("the port has no address")?;
        listener.set_nonblocking(true).context("the port cannot be read without blocking")?;
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_io()
            .build()
            .context("cannot start the server's threads")?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).context("cannot start the server")?
        };
        let task = runtime.spawn(async move { axum::serve(listener, router(site)).await });
        Ok(Server { address, runtime: Some(runtime), task })
    }
}

/// A running server. Dropping it stops it.
pub(crate) struct Server {
    address: SocketAddr,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Takes a port and serves the site on it.
    ///
    /// # Errors
    /// See [`Port::take`] and [`Port::serve`].
    pub(crate) fn start(port: u16, site: Site) -> Result<Server> {
        Port::take(port)?.serve(site)
    }

    /// The page's address, with a slash at its end.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Serves for as long as the process lives.
    ///
    /// # Errors
    /// Where the server ends by itself.
    pub(crate) fn wait(mut self) -> Result<()> {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(&mut self.task).context("the server broke down")?.context("the server stopped")?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            // Without waiting for the browser: a kept-alive connection may stay open for a minute.
            runtime.shutdown_background();
        }
    }
}

fn router(site: Site) -> Router {
    let files = |folder| ServeDir::new(folder).append_index_html_on_directories(false);
    Router::new()
        .route_service(&format!("/{}/{}", model::FOLDER, model::DEFAULT.name), ServeFile::new(site.model))
        .nest_service(&format!("/{}", model::FOLDER), files(site.models))
        .nest_service("/pkg", files(site.pkg))
        .fallback_service(ServeDir::new(site.page))
        .layer(always(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY))
        .layer(always(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        // Asks again each time, and the entity tag answers: a rebuilt module is never stale, a model is read once.
        .layer(always(header::CACHE_CONTROL, "no-cache"))
}

fn always(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use tempfile::TempDir;

    use super::*;

    /// A site with one file of each kind, and a secret beside it that no address may reach.
    fn start() -> (Server, TempDir) {
        let root = tempfile::tempdir().unwrap();
        for folder in ["page", "page/assets", "pkg", "models"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let files = [
            ("secret", "secret"),
            ("page/index.html", "<!doctype html>"),
            ("page/assets/main.js", "export {}"),
            ("page/assets/main.css", "body {}"),
            ("page/assets/data.json", "{}"),
            ("pkg/wasm.js", "export {}"),
            ("pkg/wasm_bg.wasm", "\0asm"),
            ("models/other.gguf", "0123456789"),
            ("elsewhere.gguf", "GGUF"),
        ];
        for (name, text) in files {
            fs::write(root.path().join(name), text).unwrap();
        }
        let site = Site {
            page: root.path().join("page"),
            pkg: root.path().join("pkg"),
            models: root.path().join("models"),
            model: root.path().join("elsewhere.gguf"),
        };
        (Server::start(0, site).unwrap(), root)
    }

    struct Answer {
        status: u16,
        head: String,
        body: String,
    }

    impl Answer {
        #[track_caller]
        fn has(&self, line: &str) {
            assert!(self.head.lines().any(|other| other == line), "no `{line}` in:\n{}", self.head);
        }
    }

    /// Sends the request as written: a client library would tidy the path.
    fn ask(server: &Server, method: &str, path: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(server.address).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Answer { status: head[9..12].parse().unwrap(), head: head.replace('\r', ""), body: body.to_owned() }
    }

    fn get(server: &Server, path: &str) -> Answer {
        ask(server, "GET", path, "")
    }

    #[test]
    fn each_address_has_its_file_type_and_headers() {
        let (server, _root) = start();
        let cases = [
            ("/", "text/html", "<!doctype html>"),
            ("/index.html?backend=cpu", "text/html", "<!doctype html>"),
            ("/assets/main.js", "text/javascript", "export {}"),
            ("/assets/main.css", "text/css", "body {}"),
            ("/assets/data.json", "application/json", "{}"),
            ("/pkg/wasm.js", "text/javascript", "export {}"),
            ("/pkg/wasm_bg.wasm", "application/wasm", "\0asm"),
            ("/models/other.gguf", "application/octet-stream", "0123456789"),
            ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "application/octet-stream", "GGUF"),
        ];
        for (path, kind, body) in cases {
            let answer = get(&server, path);
            assert_eq!((answer.status, answer.body.as_str()), (200, body), "{path}");
            answer.has(&format!("content-type: {kind}"));
            answer.has(&format!("content-length: {}", body.len()));
            answer.has("accept-ranges: bytes");
            answer.has("cache-control: no-cache");
            answer.has("x-content-type-options: nosniff");
            answer.has(&format!("content-security-policy: {CONTENT_SECURITY_POLICY}"));
            let head = ask(&server, "HEAD", path, "");
            assert_eq!((head.status, head.body.as_str()), (200, ""), "HEAD {path}");
            head.has(&format!("content-length: {}", body.len()));
        }
    }

    #[test]
    fn ranges_are_exact() {
        let (server, _root) = start();
        let cases = [
            ("bytes=0-3", "0123", "bytes 0-3/10"),
            ("bytes=4-6", "456", "bytes 4-6/10"),
            ("bytes=7-", "789", "bytes 7-9/10"),
            ("bytes=-2", "89", "bytes 8-9/10"),
            ("bytes=8-99", "89", "bytes 8-9/10"),
        ];
        for (range, body, content_range) in cases {
            let answer = ask(&server, "GET", "/models/other.gguf", &format!("Range: {range}\r\n"));
            assert_eq!((answer.status, answer.body.as_str()), (206, body), "{range}");
            answer.has(&format!("content-range: {content_range}"));
            answer.has(&format!("content-length: {}", body.len()));
        }
        for range in ["bytes=10-", "bytes=6-4", "bytes=x-y"] {
            let answer = ask(&server, "GET", "/models/other.gguf", &format!("Range: {range}\r\n"));
            assert_eq!(answer.status, 416, "{range}");
            answer.has("content-range: bytes */10");
        }
    }

    #[test]
    fn what_the_browser_has_is_not_sent_again() {
        let (server, _root) = start();
        let first = get(&server, "/models/other.gguf");
        let value = |name: &str| {
            let line = first.head.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in:\n{}", first.head)).to_owned()
        };
        let tag = value("etag: ");
        let date = value("last-modified: ");
        for condition in [format!("If-None-Match: {tag}\r\n"), format!("If-Modified-Since: {date}\r\n")] {
            let again = ask(&server, "GET", "/models/other.gguf", &condition);
            assert_eq!((again.status, again.body.as_str()), (304, ""), "{condition}");
        }
        let changed = ask(&server, "GET", "/models/other.gguf", "If-None-Match: \"other\"\r\n");
        assert_eq!(changed.status, 200);
    }

    #[test]
    fn nothing_outside_the_folders_is_reachable() {
        let (server, _root) = start();
        let paths = [
            "/../secret",
            "/assets/../../secret",
            "/%2e%2e/secret",
            "/..%2fsecret",
            "/models/../../secret",
            "/models/%2e%2e/secret",
            "/models/..%2fsecret",
            "/pkg/..%5c..%5csecret",
            "//secret",
            "/secret",
            "/models/",
            "/pkg/",
        ];
        for path in paths {
            let answer = get(&server, path);
            assert!((400..500).contains(&answer.status), "{path}: {}", answer.head);
            assert!(!answer.body.contains("secret"), "{path}");
        }
    }

    #[test]
    fn other_methods_are_refused() {
        let (server, _root) = start();
        for path in ["/", "/models/other.gguf"] {
            assert_eq!(ask(&server, "POST", path, "Content-Length: 0\r\n").status, 405, "{path}");
        }
    }

    #[test]
    fn a_port_in_use_is_named_with_the_remedy() {
        let (server, _root) = start();
        let port = server.address.port();
        let message = Port::take(port).err().expect("taken").to_string();
        assert_eq!(
            message,
            format!("port {port} is in use: stop the program that has it, or choose another with --port")
        );
        drop(server);
    }
}
