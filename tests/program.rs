//! The program with input that lies: a sentence that names the thing and the remedy, and an exit code from 1 to 99.

use std::path::{Path, PathBuf};
use std::process::Command;
use tests::runs::Policies;
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
    let cut = file("cut.json", br#"{"format": "sinkstream-run", "version": 1, "title": "#);
    let recorded = file("never.json", b"");
    let base = ["record", "--model", &model, "--setting", "dense", "--out", &recorded];
    let [both, beyond, zero, gpu, empty, none] = [
        ["--text", &text, "--prompt", "Hi"],
        ["--text", &text, "--from", "99"],
        ["--text", &text, "--every", "0"],
        ["--text", &text, "--device", "gpu"],
        ["--prompt", " ", "--max", "3"],
        ["--prompt", "Hi", "--top-p", "0"],
    ]
    .map(|more| [&base[..], &more[..]].concat());
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
        (&["record", "--model", &model, "--setting", "dense", "--out", "x"], &["--text"]),
        (&["record", "--model", &model, "--text", &text, "--out", "x"], &["--setting"]),
        (&both, &["--prompt"]),
        (&beyond, &["0 tokens", "two or more"]),
        (&zero, &["--every", "1 or more"]),
        (&gpu, &["on the CPU"]),
        (&empty, &["empty"]),
        (&none, &["top_p"]),
        (&["replay", "nothing.json"], &["nothing.json"]),
        (&["replay", &page], &["page.gguf", "no recorded run"]),
        (&["replay", &no_array], &["no.json", "no recorded run"]),
        (&["replay", &model], &["not UTF-8"]),
        (&["replay", &cut], &["cut.json", "too early"]),
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

/// A recorded run says what single runs say, and is read back with the same table.
#[test]
fn what_is_recorded_is_replayed() {
    let model = file("record.gguf", &Tiny::default().gguf());
    let text = file("record.txt", "Some \"text\" to read, é and again. ".repeat(6).as_bytes());
    let out = file("run.json", b"");
    let table = file("run.csv", b"");
    let lanes = ["window:40", "sinks:4+36,kv=int4", r"sinks:4+36,text=\n\n", "dense", "recompute:40"];
    let mut arguments =
        vec!["record", "--model", &model, "--text", &text, "--out", &out, "--from", "3", "--heads", "16"];
    arguments.extend(["--again", "8", "--timed", "16", "--title", "one"]);
    arguments.extend(lanes.iter().flat_map(|lane| ["--setting", lane]));
    last(&arguments);
    let told = last(&["replay", &out, "--csv", &table]);
    let csv = std::fs::read_to_string(&table).expect("written");
    let run: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).expect("written")).expect("JSON");
    assert_eq!((&run["title"], &run["count"], &told["count"]), (&"one".into(), &207.into(), &207.into()));
    assert_eq!(run["text"]["name"], text.rsplit('/').next().expect("a name"));
    let names: Vec<&str> = run["lanes"].as_array().expect("lanes").iter().filter_map(|l| l["name"].as_str()).collect();
    assert_eq!(names, ["window 40", "sinks 4+36 int4", r#"sinks 4+36 text "\n\n""#, "dense", "recompute 40"]);
    let left: Vec<_> =
        told["lanes"].as_array().expect("lanes").iter().map(|lane| lane["first_left"].as_u64()).collect();
    assert_eq!(left, [Some(40), Some(40), Some(38), None, Some(40)]);
    // The program's other commands read the same tokens, without the first three.
    let ids: Vec<u32> = serde_json::from_value(run["tokens"].clone()).expect("ids");
    let tokens = file("record.json", serde_json::to_string(&ids).expect("JSON").as_bytes());
    let alone = file("alone.csv", b"");
    for (lane, flags) in [
        &["--policy", "window", "--recent", "40"][..],
        &["--sinks", "4", "--recent", "36", "--kv", "int4"],
        &["--sinks", "4", "--recent", "36", "--sink-text", r"\n\n"],
        &["--policy", "dense"],
        &["--policy", "recompute", "--recent", "40"],
    ]
    .into_iter()
    .enumerate()
    {
        let perplexity = ["perplexity", "--model", &model, "--tokens", &tokens, "--csv", &alone];
        let report = last(&[&perplexity[..], flags].concat());
        let single = std::fs::read_to_string(&alone).expect("written");
        let (header, rows) = single.split_once('\n').expect("rows");
        let column = format!("nll_{}", names[lane].replace(' ', "_"));
        let quoted = format!("\"{}\"", column.replace('"', "\"\""));
        let column = if column.contains('"') { quoted } else { column };
        assert_eq!(header, format!("i,token_id,token,{column},evicted_from,evicted_to"));
        assert!(csv.lines().next().is_some_and(|header| header.contains(&column)), "{csv}");
        let left = left[lane].unwrap_or(999) as usize;
        let nll = run["lanes"][lane]["nll"].as_array().expect("losses");
        assert_eq!(nll.len(), 206);
        let mut measured = 0;
        for (i, row) in rows.lines().enumerate() {
            let fields: Vec<&str> = row.rsplitn(4, ',').collect();
            assert_eq!(!fields[0].is_empty() && !fields[1].is_empty(), i >= left, "{row}");
            let own: f64 = fields[2].parse().expect("a number");
            let Some(beside) = nll[i].as_f64() else { continue };
            assert!((own - beside).abs() < 2e-3, "{} at {i}: {own} alone, {beside} beside others", names[lane]);
            assert!(csv.lines().any(|line| line.starts_with(&format!("{i},{},", ids[i + 1]))));
            measured += 1;
        }
        assert_eq!(measured, if lane == 4 { 206 / 8 } else { 206 });
        let mean = run["lanes"][lane]["summary"][0]["mean_nll"].as_f64().expect("a mean");
        let alone = report["mean_nll"].as_f64().expect("a mean");
        assert!(lane == 4 || (mean - alone).abs() < 1e-3, "{}: {mean} and {alone}", names[lane]);
    }

    let free = |flags: &[&str]| {
        let record = ["record", "--model", &model, "--prompt", "Hi", "--out", &out, "--max", "50", "--seed", "2"];
        last(&[&record[..], flags].concat());
        last(&["replay", &out, "--csv", &table]);
        let run = std::fs::read_to_string(&out).expect("written");
        serde_json::from_str::<serde_json::Value>(&run).expect("JSON")
    };
    let run = free(&["--setting", "window:40", "--setting", "dense", "--setting", "recompute:200"]);
    assert_eq!((&run["mode"], &run["sampler"]["seed"]), (&"free".into(), &2.into()));
    let tokens = |lane: usize| serde_json::from_value::<Vec<u32>>(run["lanes"][lane]["tokens"].clone()).expect("ids");
    assert_eq!(tokens(1), tokens(2), "nothing has left either");
    let prompt = run["prompt"].as_u64().expect("a number") as usize;
    assert!(prompt > 20 && tokens(0).len() <= prompt + 50);
    assert_eq!(tokens(0)[..prompt], tokens(1)[..prompt]);
    let numbers = [
        "record",
        "--model",
        &model,
        "--text",
        &text,
        "--out",
        &out,
        "--numbers",
        "--every",
        "8",
        "--setting",
        "window:40",
    ];
    last(&numbers);
    last(&["replay", &out, "--csv", &table]);
    let csv = std::fs::read_to_string(&table).expect("written");
    assert!(csv.starts_with("i,token_id,token,nll_window_40,evicted_from,evicted_to\n0,,,") && csv.contains("\n8,,,"));
    let run = std::fs::read_to_string(&out).expect("written");
    assert!(run.contains("\"vocab\":{}") && run.contains("\"tokens\":null"), "no word of the text");
}

/// The runs that are committed are read, and what they say of themselves is what their losses say.
#[test]
fn the_committed_runs_are_whole() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("web/runs")).expect("the runs are there") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name == "index.json") {
            continue;
        }
        count += 1;
        let told = last(&["replay", &path.to_string_lossy()]);
        let run: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).expect("read")).expect("JSON");
        let every = run["every"].as_u64().expect("a number") as usize;
        for (lane, told) in run["lanes"].as_array().expect("lanes").iter().zip(told["lanes"].as_array().expect("lanes"))
        {
            let nll: Vec<Option<f64>> = serde_json::from_value(lane["nll"].clone()).expect("losses");
            for range in told["summary"].as_array().expect("ranges") {
                let (from, to) = (range["from"].as_u64().expect("a number"), range["to"].as_u64().expect("a number"));
                let part = &nll[from as usize / every..(to as usize).div_ceil(every)];
                let measured: Vec<f64> = part.iter().filter_map(|nll| *nll).collect();
                let mean = measured.iter().sum::<f64>() / measured.len() as f64;
                let said = range["mean_nll"].as_f64().expect("a mean");
                assert!((mean - said).abs() < 1e-3, "{}: {mean}, and it says {said}", path.display());
                let perplexity = range["perplexity"].as_f64().expect("a number");
                assert!((perplexity / said.exp() - 1.0).abs() < 1e-3);
            }
        }
    }
    assert!(count >= 11, "{count} runs");
}

/// The moment that the page begins with, against the independent program: a cache in f16 rounds a little.
#[test]
fn the_recorded_hero_is_the_reference_s() {
    let Policies { tokens, runs, .. } = tests::golden("policies.json");
    let run = std::fs::read_to_string(root().join("web/runs/hero.json")).expect("it is committed");
    let run: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    let ids: Vec<u32> = serde_json::from_value(run["tokens"].clone()).expect("ids");
    assert_eq!(ids, tokens[..ids.len()]);
    let nll = |name: &str| -> Vec<f64> {
        let lanes = run["lanes"].as_array().expect("lanes");
        let lane = lanes.iter().find(|lane| lane["name"] == name).expect("the lane");
        serde_json::from_value(lane["nll"].clone()).expect("losses")
    };
    for (name, reference) in [("dense", "dense"), ("sinks 4+252", "sinks_4_252")] {
        let (own, reference) = (nll(name), runs[reference].nll.as_ref().expect("losses"));
        let worst = own.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let mean = own.iter().zip(reference).map(|(a, b)| a - b).sum::<f64>() / own.len() as f64;
        assert!(worst < 8e-3 && mean.abs() < 2e-4, "{name}: {worst} at most, {mean} in the mean");
    }
    // What `policies.json` says of it in words: window 5.14 nats, sinks 0.09.
    assert!((nll("window 256")[256] - 5.14).abs() < 0.01 && (nll("sinks 4+252")[256] - 0.09).abs() < 0.01);
}
