//! 20,000 tokens through a cache of 4 sinks and 124 recent tokens, on both backends: the buffers stay the same in number
//! and bytes, and a step at the end takes no longer than one at the beginning.
//! `cargo run --release -p tests --example endless [-- TOKENS]`
//!
//! Runs of the two backends alternate.

use model::device::Place;
use model::session::{CacheSettings, Session, Want};
use policy::Policy;
use std::rc::Rc;
use std::time::Instant;
use tests::{Random, Tiny, load};

const REPEATS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens: usize = std::env::args().nth(1).map_or(Ok(20_000), |count| count.parse())?;
    let bytes = Tiny::default().gguf();
    let mut places = vec![("cpu", Place::cpu())];
    match pollster::block_on(Place::gpu(None)) {
        Ok((place, adapter)) => {
            println!("gpu: {}", adapter.name);
            places.push(("gpu", place));
        }
        Err(error) => println!("gpu: {error}"),
    }
    println!(
        "{:<4} {:>3} {:>7} {:>6} {:>8}  median microseconds of a step, by tenths of the run",
        "", "run", "buffers", "bytes", "scratch"
    );
    let mut ratios = vec![Vec::new(); places.len()];
    for run in 0..REPEATS {
        for ((name, place), ratios) in places.iter().zip(&mut ratios) {
            let (model, _) = load(&bytes, place.clone())?;
            let settings = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 124 });
            let mut session = Session::new(Rc::clone(&model), settings, 32)?;
            let mut random = Random(run as u64);
            let mut times = Vec::with_capacity(tokens);
            let shape = |session: &Session| (session.cache_buffers(), session.cache_bytes(), session.workspace_bytes());
            let before = shape(&session);
            for _ in 0..tokens {
                let id = random.below(256) as u32;
                let started = Instant::now();
                pollster::block_on(session.feed_one(&[id], Want::Last { penalty: 1.0, penalized: &[] }))?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            let after = shape(&session);
            if before != after {
                return Err(format!("the buffers changed: {before:?}, then {after:?}").into());
            }
            let tenth = |n: usize| {
                let mut part = times[n * tokens / 10..(n + 1) * tokens / 10].to_vec();
                part.sort_by(f64::total_cmp);
                part[part.len() / 2]
            };
            let tenths: Vec<f64> = (0..10).map(tenth).collect();
            let shown: Vec<String> = tenths.iter().map(|micros| format!("{micros:>6.1}")).collect();
            println!("{name:<4} {run:>3} {:>7} {:>6} {:>8}  {}", after.0, after.1, after.2, shown.join(" "));
            ratios.push(tenths[9] / tenths[1]);
        }
    }
    for ((name, _), mut ratios) in places.iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("{name}: last tenth / second tenth, median of {REPEATS} runs: {:.3}", ratios[REPEATS / 2]);
    }
    Ok(())
}
