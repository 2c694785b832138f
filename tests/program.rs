//! The program with input that lies: a sentence that names the thing and the remedy, and an exit code from 1 to 99.

use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Tiny, root};

/// The program beside this test binary.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let folder = test.parent().and_then(Path::parent).expect("deps/ is in the profile's folder");
    let program = folder.join("sinkstream");
    assert!(program.exists(), "{} is missing: `cargo build --release --workspace --exclude xtask`", program.display());
    program
}

fn file(name: &str, bytes: &[u8]) -> String {
    let path = std::env::temp_dir().join(format!("sinkstream-test-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("a temporary file");
    path.to_string_lossy().into_owned()
}

/// Runs the program and returns what it says, after checking that it fails as it should.
fn fails(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(program())
        .current_dir(root())
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(code.is_some_and(|code| (1..=99).contains(&code)), "{arguments:?}: {code:?}\n{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn each_lie_gets_a_sentence() {
    let good = Tiny::default().gguf();
    let model = file("good.gguf", &good);
    let truncated = file("truncated.gguf", &good[..good.len() - 100]);
    let page = file("page.gguf", b"<!doctype html><html><body>404</body></html>");
    let text = file("text.txt", b"Some text to read.");
    let short = file("short.txt", b"x");
    let no_array = file("no.json", b"{\"tokens\": \"none\"}");
    let far = file("far.json", b"[1, 2, 300]");
    let with_logits = Tiny { sink_logits: Some(0.5), ..Tiny::default() }.gguf();
    let learned = file("learned.gguf", &with_logits);
    let begun = file("begun.gguf", &with_logits[..with_logits.len() - 10_000]);
    let cases: &[(&[&str], &[&str])] = &[
        (&["generate", "--model", "nothing.gguf", "--prompt", "Hi"], &["nothing.gguf", "cargo xtask demo"]),
        (&["generate", "--model", &truncated, "--prompt", "Hi"], &["truncated.gguf", "100 bytes", "download"]),
        (&["generate", "--model", &page, "--prompt", "Hi"], &["HTML", "address"]),
        (&["generate", "--model", &model, "--prompt", " "], &["prompt is empty", "--prompt"]),
        (&["generate", "--model", &model, "--prompt", "Hi", "--temperature", "-1"], &["temperature"]),
        (&["generate", "--model", &model, "--prompt", "Hi", "--recent", "0"], &["recent is 0", "1 or more"]),
        (&["generate", "--model", &model, "--prompt", "Hi", "--sinks", "5000"], &["6020", "4096"]),
        (&["perplexity", "--model", &model, "--text", &short], &["1 tokens", "two or more"]),
        (&["perplexity", "--model", &model, "--text", &text, "--chunk", "0"], &["--chunk is 0", "1 or more"]),
        (&["perplexity", "--model", &model, "--tokens", &no_array], &["no.json", "array of token ids"]),
        (&["perplexity", "--model", &model, "--tokens", &far], &["300"]),
        (&["perplexity", "--model", &model, "--text", &text, "--kv", "int4"], &["not there yet", "f16"]),
        (&["perplexity", "--model", &model, "--text", &text, "--softmax", "one", "--recent", "0"], &["recent is 0"]),
        (&["perplexity", "--model", &learned, "--text", &text, "--softmax", "one"], &["softmax one", "plain"]),
        // The weights are not all there, but nobody gets as far as that.
        (&["perplexity", "--model", &begun, "--text", &text, "--softmax", "one"], &["softmax one", "plain"]),
        (&["perplexity", "--model", &begun, "--tokens", &far], &["token 300", "vocabulary has 300"]),
        (&["perplexity", "--model", &begun, "--text", &short], &["1 tokens", "two or more"]),
        (
            &["perplexity", "--model", &begun, "--text", &text, "--policy", "recompute", "--recent", "4097"],
            &["4097", "4096", "recompute"],
        ),
        (
            &["perplexity", "--model", &begun, "--text", &text, "--recent", "3", "--sink-text", "12345678"],
            &["8 tokens", "7 slots", "--recent"],
        ),
        (
            &["perplexity", "--model", &begun, "--text", &text, "--policy", "recompute", "--sink-tokens", "[1]"],
            &["no sinks", "--policy"],
        ),
        (&["perplexity", "--model", &model, "--text", &text, "--sink-text", "\\q"], &["\\q", "\\n"]),
        (&["perplexity", "--model", &model, "--text", &text, "--sink-tokens", "7"], &["--sink-tokens", "[198,198]"]),
        (&["perplexity", "--model", &model, "--text", &text, "--sink-tokens", "[300]"], &["token 300"]),
        (&["generate", "--model", &model, "--prompt", "Hi", "--turns", "--policy", "dense"], &["--turns", "sinks"]),
        (&["generate", "--model", &model, "--prompt", "Hi", "--turns", "--policy", "recompute"], &["no turns"]),
        (&["perplexity", "--model", &model], &["--text"]),
        (&["tokenize", "--model", &model, "--file", "nothing.txt"], &["nothing.txt"]),
    ];
    for (arguments, words) in cases {
        let said = fails(arguments, &[]);
        for word in *words {
            assert!(said.contains(word), "{arguments:?} said: {said}");
        }
    }
}

#[test]
fn no_adapter() {
    let model = file("gpu.gguf", &Tiny::default().gguf());
    let none = [
        ("VK_DRIVER_FILES", "/nonexistent"),
        ("VK_ICD_FILENAMES", "/nonexistent"),
        ("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent"),
    ];
    let said = fails(&["generate", "--model", &model, "--device", "gpu", "--prompt", "Hi"], &none);
    assert!(said.contains("no GPU") && said.contains("CPU"), "{said}");
}

#[test]
fn the_last_line_is_json() {
    let model = file("last.gguf", &Tiny::default().gguf());
    let text = file("last.txt", b"Some text to read, with a newline at its end.\n");
    let last = |arguments: &[&str]| -> serde_json::Value {
        let output = Command::new(program()).args(arguments).output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stdout = String::from_utf8(output.stdout).expect("UTF-8");
        serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON")
    };
    let ids = last(&["tokenize", "--model", &model, "--file", &text]);
    assert_eq!(ids.as_array().map(Vec::len), Some(46), "one id a byte, the newline too");
    let per_token = file("nll.json", b"");
    let report = last(&["perplexity", "--model", &model, "--text", &text, "--per-token", &per_token, "--recent", "20"]);
    for key in
        ["tokens", "mean_nll", "perplexity", "cache_bytes", "tokens_per_second", "sink_mass_per_layer", "settings"]
    {
        assert!(report.get(key).is_some(), "{key} is missing in {report}");
    }
    let written: Vec<f64> =
        serde_json::from_str(&std::fs::read_to_string(&per_token).expect("written")).expect("an array");
    assert_eq!(written.len(), 45);
    let mean = written.iter().sum::<f64>() / 45.0;
    assert!((mean - report["mean_nll"].as_f64().expect("a number")).abs() < 1e-9);
    let sinks = |flag: &str, value: &str| -> (serde_json::Value, String) {
        let flags = ["--per-token", &per_token, "--recent", "20", flag, value];
        let report = last(&[&["perplexity", "--model", &model, "--text", &text][..], &flags].concat());
        (report, std::fs::read_to_string(&per_token).expect("written"))
    };
    let (by_text, nll) = sinks("--sink-text", r"\n\n\x41\u{42}");
    let newline = by_text["sink_tokens"][0].as_u64().expect("an id");
    assert_eq!(by_text["sink_tokens"].as_array().map(Vec::len), Some(4), "each character is a token");
    assert_eq!(by_text["sink_tokens"][1].as_u64(), Some(newline));
    let (by_tokens, same) = sinks("--sink-tokens", &by_text["sink_tokens"].to_string());
    assert_eq!((nll.as_str(), by_tokens["tokens"].as_u64()), (same.as_str(), Some(46)), "the sinks are not counted");
    let with: Vec<f64> = serde_json::from_str(&nll).expect("an array");
    assert_eq!(with.len(), 45);
    assert_ne!(with, written);
    let (zeros, _) = sinks("--zero-sinks", "--softmax=one");
    assert_eq!((&zeros["settings"]["zero_sinks"], &zeros["settings"]["softmax"]), (&true.into(), &"one".into()));
    let (again, _) = sinks("--policy", "recompute");
    assert_eq!(again["settings"]["policy"], "recompute");
    let answer = last(&["generate", "--model", &model, "--prompt", "Hi", "--max", "5", "--temperature", "0"]);
    assert!(answer["ids"].as_array().is_some_and(|ids| ids.len() <= 5));
}
