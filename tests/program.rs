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

/// Runs the program and returns its last line.
fn last(arguments: &[&str]) -> serde_json::Value {
    let output = Command::new(program()).args(arguments).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON")
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
        (
            &["perplexity", "--model", &model, "--text", &text, "--kv", "int4", "--tail", "40"],
            &["tail is 40", "multiple"],
        ),
        (
            &["perplexity", "--model", &model, "--text", &text, "--kv", "int4", "--group", "20"],
            &["group is 20", "of 8"],
        ),
        (&["perplexity", "--model", &model, "--text", &text, "--policy", "recompute", "--kv", "int8"], &["f32, f16"]),
        (&["kivi", "--model", &model, "--text", &text, "--device", "gpu"], &["the CPU alone"]),
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
        (&["compare", "--model", &model, "--text", &short], &["1 tokens", "two or more"]),
        (&["compare", "--model", &model, "--text", &text, "--chunk", "0"], &["--chunk", "1 or more"]),
        (&["compare", "--model", &model, "--text", &text, "--setting", "sinks:4"], &["sinks:4", "two numbers"]),
        (&["compare", "--model", &begun, "--text", &text, "--setting", "dense,softmax1"], &["learned"]),
        (&["compare", "--model", &begun, "--text", &text, "--setting", "recompute:5000"], &["5000", "4096"]),
        (
            &["compare", "--model", &begun, "--text", &text, "--setting", "sinks:1+2,text=1234"],
            &["4 tokens", "3 slots"],
        ),
        (&["compare", "--model", &model, "--text", &text, "--out", "/nowhere/at/all"], &["/nowhere/at/all.csv"]),
        (&["bench", "--model", &model, "--capacity", "4"], &["--capacity 4", "5 or more"]),
        (&["bench", "--model", &begun, "--capacity", "5000"], &["5000", "4096"]),
        (&["bench", "--model", &model, "--steps", "0"], &["--steps", "1 or more"]),
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

/// The table's numbers are those of single runs, the figure and the files say the same.
#[test]
fn compare_and_bench() {
    let model = file("compare.gguf", &Tiny::default().gguf());
    let text = file("compare.txt", &b"Some text to read, again and again. ".repeat(6));
    let out = file("compare", b"");
    let settings =
        ["dense", "window:40", "sinks:4+36,stream", r"sinks:4+36,text=abcd", "recompute:40", "sinks:4+36,kv=int4"];
    let mut arguments = vec!["compare", "--model", &model, "--text", &text, "--out", &out, "--every", "1"];
    arguments.extend(settings.iter().flat_map(|setting| ["--setting", setting]));
    let report = last(&arguments);
    assert_eq!(report["tokens"], 216);
    assert_eq!((&report["before"][1], &report["after"][0]), (&36.into(), &40.into()));
    let whole: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}.json")).expect("written")).expect("JSON");
    let single: [&[&str]; 6] = [
        &["--policy", "dense"],
        &["--policy", "window", "--recent", "40"],
        &["--sinks", "4", "--recent", "36", "--positions", "stream"],
        &["--sinks", "4", "--recent", "36", "--sink-text", "abcd"],
        &["--policy", "recompute", "--recent", "40"],
        &["--sinks", "4", "--recent", "36", "--kv", "int4"],
    ];
    let csv = std::fs::read_to_string(format!("{out}.csv")).expect("written");
    assert_eq!(csv.lines().count(), 216);
    let per_token = file("alone.json", b"");
    for ((setting, flags), strategy) in
        settings.iter().zip(single).zip(report["strategies"].as_array().expect("an array"))
    {
        let mut arguments = vec!["perplexity", "--model", &model, "--text", &text, "--per-token", &per_token];
        arguments.extend(flags);
        let alone = last(&arguments);
        assert_eq!(
            strategy["cache_bytes"],
            if *setting == "dense" { strategy["cache_bytes"].clone() } else { alone["cache_bytes"].clone() }
        );
        let alone: Vec<f64> =
            serde_json::from_str(&std::fs::read_to_string(&per_token).expect("written")).expect("an array");
        let name = strategy["strategy"].as_str().expect("a name");
        let beside: Vec<f64> = serde_json::from_value(whole["losses"][name].clone()).expect("a loss a token");
        assert_eq!(beside.len(), alone.len());
        for (at, (beside, alone)) in beside.iter().zip(&alone).enumerate() {
            // Halves in the cache: what is summed in another order may round to its neighbour.
            assert!((beside - alone).abs() < 2e-3, "{setting} at {at}: {beside} beside others, {alone} alone");
        }
        let after = (alone[40..].iter().sum::<f64>() / (alone.len() - 40) as f64).exp();
        assert!((strategy["perplexity_after"].as_f64().expect("a number") / after - 1.0).abs() < 1e-3);
    }
    let figure = std::fs::read_to_string(format!("{out}.svg")).expect("written");
    assert!(figure.contains("first eviction, 40") && figure.ends_with("</svg>\n"));
    let bench = last(&[
        "bench",
        "--model",
        &model,
        "--capacity",
        "16",
        "--position",
        "100,4000000",
        "--steps",
        "3",
        "--again",
        "1",
    ]);
    // Sinks, window and recompute at two positions, dense at one.
    assert_eq!(bench["bench"].as_array().map(Vec::len), Some(7));
    let bytes = |at: usize| bench["bench"][at]["cache_bytes"].as_u64();
    assert!(bytes(0).is_some() && (0..6).all(|at| bytes(at) == bytes(0)), "{bench}");
}

/// Of every storage: bytes as the closed form has them, and a loss that grows as the bits get fewer.
#[test]
fn kivi_measures_every_storage() {
    let model = file("kivi.gguf", &Tiny::default().gguf());
    let text = file("kivi.txt", "It was a bright cold day, and the clocks said so. ".repeat(6).as_bytes());
    let line = last(&["kivi", "--model", &model, "--text", &text, "--recent", "60", "--greedy", "9"]);
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for policy in ["dense", "sinks"] {
        let results = line["results"].as_array().expect("results");
        let result = results.iter().find(|result| result["policy"] == policy).expect("the policy's");
        let storages = result["storages"].as_array().expect("storages");
        let names: Vec<_> = storages.iter().filter_map(|row| row["kv"].as_str()).collect();
        assert_eq!(names, ["f32", "f16", "int8", "int4", "int2"]);
        let kl: Vec<f64> = storages.iter().map(|row| number(&row["kl"])).collect();
        assert!(kl[0].abs() < 1e-9 && kl[1] < kl[2] && kl[2] < kl[3] && kl[3] < kl[4], "{policy}: {kl:?}");
        assert_eq!(number(&storages[0]["top_1"]), 1.0);
        assert_eq!(storages[0]["greedy_prefix"], serde_json::json!([9]));
        let errors = |row: &serde_json::Value| number(&row["relative_error_of_keys"][1]);
        assert!(errors(&storages[2]) < errors(&storages[3]) && errors(&storages[3]) < errors(&storages[4]));
    }
    // Two heads of 16 channels: 2 * 2 * 16 * (2 * 4 + 2 * 32 + 256 * (4 / 8 + 4 / 32)) bytes, and a scale and a zero for
    // each 16 channels of V instead of 32, in two layers.
    let int4 = line["bytes"].as_array().and_then(|rows| rows.iter().find(|row| row["kv"] == "int4")).expect("int4");
    assert_eq!(number(&int4["total"]), 2.0 * (64.0 * (8.0 + 64.0 + 256.0 * 0.625) + 2.0 * 256.0 * 4.0 * 0.5));
}
