//! Holds the real model to a file of golden runs, of a book for example, that is not part of this repository:
//! `cargo run --release -p tests --example runs -- FILE.json`
//!
//! The file has the shape of golden/policies.json, whose tolerances it keeps: 2e-3 a token and 2e-4 of the mean in full
//! precision, the file's own of the means of packed caches.

use model::device::Place;
use model::session::CacheSettings;
use std::rc::Rc;
use tests::runs::{Policies, Run};
use tests::{read_all, real_model};

const CHUNK: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("say which file: `-- FILE.json`")?;
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let golden: Policies = serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
    let (model, _) = real_model(Place::cpu());
    let mut failed = Vec::new();
    println!("{:<26} {:>10} {:>10} {:>10}", "run", "worst", "of mean", "allowed");
    let mut check = |name: &str, settings: CacheSettings, run: &Run, allowed: f64| {
        let (nll, _) = read_all(&Rc::clone(&model), settings, &golden.tokens, CHUNK);
        let mean = (nll.iter().sum::<f64>() / nll.len() as f64 - run.mean).abs();
        let apart = run
            .nll
            .as_ref()
            .map(|golden| nll.iter().zip(golden).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max));
        let worst = apart.map_or("-".to_owned(), |apart| format!("{apart:.1e}"));
        println!("{name:<26} {worst:>10} {mean:>10.1e} {allowed:>10.1e}");
        if mean > allowed || apart.is_some_and(|apart| apart > 2e-3) {
            failed.push(name.to_owned());
        }
    };
    for (name, settings, run) in golden.full_precision() {
        check(name, settings, run, 2e-4);
    }
    for (name, settings, run, allowed) in golden.packed() {
        check(name, settings, run, allowed);
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("outside their tolerances: {}", failed.join(", ")).into()) }
}
