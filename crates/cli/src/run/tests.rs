use super::*;
use std::path::PathBuf;

/// A forced run of two lanes over five tokens, and a free one.
const FORCED: &str = r#"{
  "format": "sinkstream-run", "version": 1, "title": "small",
  "made": { "by": "sinkstream 0.1.0", "commit": "abc", "date": "2026-01-31", "backend": "cpu", "adapter": null, "command": "" },
  "model": { "name": "m", "file": "m.gguf", "sha256": "00", "layers": 2, "n_heads": 1, "n_kv_heads": 1, "head_dim": 2,
             "trained_length": 100, "new": "ignored" },
  "mode": "forced", "sampler": null, "text": { "name": "t.txt", "sha256": "11" },
  "start": 0, "count": 5, "prompt": 0, "every": 1,
  "vocab": { "1": "a", "2": " \"b\"", "3": { "b64": "/w==" } },
  "tokens": [1, 2, 3, 1, 2],
  "lanes": [
    { "name": "window 3", "settings": { "policy": "window", "sinks": 0, "recent": 3, "kv": "f16" }, "keys": null,
      "tokens": null, "ended": false, "nll": [1.5, null, 0.25, 3], "ms": { "every": 2, "values": [1.25, null] },
      "held": [[0, 1, 1], [3, 3, 0]], "capacity": [[0, 3, 0]], "tail": [[0, 0, 0]], "oldest": [[0, 0, 0], [3, 1, 1]],
      "bytes": [[0, { "sinks": 0, "codes": 24, "scales": 0, "tail": 0, "slack": 0 }]],
      "sink_mass": null, "first_mass": { "every": 2, "values": [0.5, 0.25] },
      "heads": { "every": 2, "shape": [2, 1], "u8": "AP+AQA==" }, "best": [[3, 2, 0.75]],
      "summary": [{ "from": 0, "to": 4, "mean_nll": 1.5833, "perplexity": 4.871 }] },
    { "name": "sinks 1+2 text \"\\n\"",
      "settings": { "policy": "sinks", "sinks": 1, "recent": 2, "kv": "f16", "sink_text": "\n" }, "keys": null,
      "tokens": null, "ended": false, "nll": [1.5, 2, 0.25, 0.00004], "ms": null,
      "held": [[0, 2, 1], [1, 3, 0]], "capacity": [[0, 3, 0]], "tail": [[0, 0, 0]], "oldest": [[0, 0, 0], [2, 1, 1]],
      "bytes": [[0, { "sinks": 8, "codes": 16, "scales": 0, "tail": 0, "slack": 0 }]],
      "sink_mass": null, "first_mass": null, "heads": null, "best": [], "summary": [] }
  ],
  "marks": [{ "i": 2, "lane": 1, "kind": "first_left" }, { "i": 3, "lane": 0, "kind": "first_left" }],
  "key_ranges": [{ "layer": 1, "ranges": [0.5, 12.5] }]
}"#;

fn changed(from: &str, to: &str) -> String {
    assert!(FORCED.contains(from), "{from}");
    FORCED.replacen(from, to, 1)
}

#[test]
fn a_run_is_read_and_written_again() {
    let run = Run::parse(FORCED).expect("a run");
    assert_eq!(run.lanes[0].first_left(0, &run.marks), Some(3));
    let again = Run::parse(&serde_json::to_string(&run).expect("JSON")).expect("a run");
    assert_eq!(again, run);
}

#[test]
fn the_table_of_losses() {
    let run = Run::parse(FORCED).expect("a run");
    let expected = "i,token_id,token,nll_window_3,\"nll_sinks_1+2_text_\"\"\\n\"\"\",evicted_from_window_3,\
                    evicted_to_window_3,\"evicted_from_sinks_1+2_text_\"\"\\n\"\"\",\"evicted_to_sinks_1+2_text_\"\"\\n\"\"\"\n\
                    0,2,\" \"\"b\"\"\",1.5,1.5,,,,\n\
                    1,3,\u{fffd},,2,,,,\n\
                    2,1,a,0.25,0.25,,,0,1\n\
                    3,2,\" \"\"b\"\"\",3,0,0,1,1,2\n";
    assert_eq!(run.csv(), expected);
    let numbers = Run { tokens: None, every: 2, count: 9, ..run.clone() };
    assert!(numbers.csv().ends_with("\n6,,,3,0,3,4,4,5\n"), "{}", numbers.csv());
    let mut free = Run { mode: Mode::Free, tokens: None, ..run };
    free.lanes[0].tokens = Some(vec![1, 2, 3, 1, 2]);
    free.lanes[1].tokens = Some(vec![1, 3]);
    free.lanes[1].nll.truncate(1);
    free.lanes[1].name = "two".to_owned();
    free.lanes[1].oldest = vec![[0, 0, 0]];
    let expected = "i,token_id_window_3,token_window_3,token_id_two,token_two,nll_window_3,nll_two,evicted_from,evicted_to\n\
                    0,2,\" \"\"b\"\"\",3,\u{fffd},1.5,1.5,,\n\
                    1,3,\u{fffd},,,,,,\n";
    assert!(free.csv().starts_with(expected), "{}", free.csv());
}

#[test]
fn what_lies_is_refused_with_a_sentence() {
    let deep = "[".repeat(100_000);
    let cases: &[(String, &str)] = &[
        (String::new(), "too early"),
        (FORCED[..FORCED.len() / 2].to_owned(), "too early"),
        ("<!doctype html>".to_owned(), "no recorded run"),
        (deep, "no recorded run"),
        (r#"{"format": "sinkstream-runs", "version": 1}"#.to_owned(), "`sinkstream-runs`"),
        (changed(r#""version": 1"#, r#""version": 2"#), "newer program"),
        (changed(r#""version": 1"#, r#""version": -1"#), "no recorded run"),
        (changed(r#""mode": "forced""#, r#""mode": "forged""#), "a part of the run is wrong"),
        (changed(r#""mode": "forced""#, r#""mode": "free""#), "share their tokens"),
        (changed(r#""count": 5"#, r#""count": 6"#), "5 tokens of 6"),
        (changed(r#""count": 5"#, r#""count": 99999999999"#), "99999999999 tokens"),
        (changed(r#""every": 1,"#, r#""every": 0,"#), "means of 0"),
        (changed("[1.5, null, 0.25, 3]", "[1.5, null, 0.25]"), "3 losses"),
        (changed("[1.5, null, 0.25, 3]", "[1.5, null, 0.25, 1e999]"), "out of range"),
        (changed("[1, 2, 3, 1, 2]", "[1, 2, 3, 1, 4]"), "token 4"),
        (changed("[[0, 1, 1], [3, 3, 0]]", "[]"), "`held`"),
        (changed("[[0, 1, 1], [3, 3, 0]]", "[[0, 1, 1], [0, 3, 0]]"), "`held`"),
        (changed("[[0, 1, 1], [3, 3, 0]]", "[[0, 1, 9223372036854775807]]"), "`held`"),
        (changed(r#""bytes": [[0, { "sinks": 8"#, r#""bytes": [[1, { "sinks": 8"#), "`bytes`"),
        (changed(r#""values": [1.25, null]"#, r#""values": [1.25, null, 2]"#), "`ms`"),
        (changed(r#""values": [0.5, 0.25]"#, r#""values": [0.5, 7]"#), "`first_mass`"),
        (changed("AP+AQA==", "AP+A"), "`heads`"),
        (changed(r#""layers": 2"#, r#""layers": 18446744073709551615"#), "`heads`"),
        (changed("AP+AQA==", "&&&&"), "`heads`"),
        (changed("[[3, 2, 0.75]]", "[[3, 2, 1.75]]"), "likeliest"),
        (changed("[[3, 2, 0.75]]", "[[3, 9, 0.75]]"), "likeliest"),
        (changed(r#""i": 3, "lane": 0"#, r#""i": 3, "lane": 2"#), "a mark"),
        (changed(r#""i": 2, "lane": 1"#, r#""i": 4, "lane": 1"#), "not in order"),
        (changed(r#""b64": "/w==""#, r#""b64": "/w""#), "base64"),
        (changed(r#""policy": "window""#, r#""policy": "widow""#), "`widow`"),
        (changed(r#""layer": 1"#, r#""layer": 2"#), "`key_ranges`"),
        (changed("[0.5, 12.5]", "[0.5]"), "`key_ranges`"),
        (changed("[0.5, 12.5]", "[0.5, -1]"), "`key_ranges`"),
        (changed(r#""prompt": 0"#, r#""prompt": 6"#), "a prompt of 6"),
    ];
    for (text, word) in cases {
        let error = Run::parse(text).expect_err(word);
        assert!(error.contains(word), "{word}: {error}");
        assert!(error.len() < 400, "{error}");
    }
}

#[test]
fn a_lane_that_repeats_or_babbles_is_told() {
    let run = Run::parse(FORCED).expect("a run");
    let mut free = Run { mode: Mode::Free, tokens: None, prompt: 5, ..run.clone() };
    free.vocab = (0..40)
        .map(|id| (id, TokenText::Text(format!(" {}", "abcdefgh".repeat(2).split_at(id as usize % 9).0))))
        .collect();
    free.vocab.insert(50, TokenText::Text("abcdefghijklmnopqr".to_owned()));
    let told = |free: &mut Run, tokens: Vec<u32>| {
        free.lanes[0].tokens = Some([vec![1; 5], tokens].concat());
        health(free, 0)
    };
    let varied: Vec<u32> = (0..200).map(|i| i * i % 37).collect();
    assert_eq!(told(&mut free, varied.clone()), None);
    let mut repeated = varied.clone();
    repeated.extend([7; 64]);
    // Half of the 61 phrases of the last 64 tokens are the same once 32 tokens are: the first repeated phrase counts once.
    let (kind, since) = told(&mut free, repeated).expect("it repeats itself");
    assert_eq!(kind, "repeating itself");
    assert!((5 + 200 + 30..5 + 200 + 38).contains(&since), "{since}");
    let mut long = varied;
    long[120] = 50;
    assert_eq!(told(&mut free, long), Some(("losing the thread", 5 + 120)));

    // Forced: 45 of the last 64 losses are a nat more, which is 0.7 in the mean; and that for 64 tokens.
    let mut forced = Run { count: 301, tokens: None, ..run };
    forced.lanes[0].nll = (0..300).map(|i| Some(if i < 100 { 2.0 } else { 3.0 })).collect();
    forced.lanes[1].nll = vec![Some(2.0); 300];
    assert_eq!(health(&forced, 0), Some(("losing the thread", 100 + 45 + 63)));
    assert_eq!(health(&forced, 1), None);
}

/// `run.d.ts` and these types name the same fields, and what is committed is read by them.
#[test]
fn the_types_are_those_of_the_page() {
    let declared = std::fs::read_to_string(root().join("crates/wasm/run.d.ts")).expect("run.d.ts is there");
    let value: serde_json::Value = serde_json::from_str(FORCED).expect("JSON");
    let run = serde_json::to_value(Run::parse(FORCED).expect("a run")).expect("a value");
    let lane = &run["lanes"][0];
    for (interface, value) in [
        ("RecordedRun", &run),
        ("RecordedLane", lane),
        ("RecordedMark", &run["marks"][0]),
        ("RecordedRange", &lane["summary"][0]),
        ("KeyRanges", &run["key_ranges"][0]),
        ("Sampled", &lane["ms"]),
        ("SampledHeads", &lane["heads"]),
    ] {
        let body = declared.split(&format!("export interface {interface} {{")).nth(1).expect("it is declared");
        let body = body.split("\n}").next().expect("it ends");
        let fields: Vec<&str> = body
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.trim().split_once(':').map(|(name, _)| name.trim_end_matches('?')))
            .filter(|name| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_'))
            .collect();
        let own: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        let sorted = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.join(" ")
        };
        assert_eq!(sorted(fields), sorted(own), "{interface}");
    }
    // Nothing was dropped on the way but what no reader knows.
    assert_eq!(value["lanes"][1]["settings"], run["lanes"][1]["settings"]);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}
