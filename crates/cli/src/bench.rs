//! `sinkstream bench`: the time of a token by policy, capacity and stream position.
//!
//! Far positions are pretended: every slot is filled with drawn numbers, and the stream's counter set. Steps at the positions
//! of a policy and capacity alternate, so that what else the machine does falls on all alike.

use crate::Failure;
use crate::compare::median;
use crate::load::load;
use crate::settings::ModelArgs;
use clap::Args;
use model::config::Config;
use model::policy::Policy;
use model::session::{CacheSettings, DENSE_LIMIT, Model, Session, Want};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of the cache; of 4 sinks and the rest, of a window, or read again.
    #[arg(long, value_delimiter = ',', default_values_t = [256, 512, 1024, 2048])]
    capacity: Vec<u32>,
    /// Stream positions.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 1_000_000])]
    position: Vec<u64>,
    /// Steps at each position, of which the median counts.
    #[arg(long, default_value_t = 40)]
    steps: usize,
    /// Times that recompute reads its window.
    #[arg(long, default_value_t = 3)]
    again: usize,
}

const SINKS: u32 = 4;
/// Drawn numbers of the caches.
const SEED: u64 = 1;

/// One line of the table.
struct Timed {
    policy: &'static str,
    capacity: Option<u32>,
    position: u64,
    milliseconds: f64,
    bytes: u64,
    /// How many times the same tokens' sinks take.
    ratio: Option<f64>,
}

pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.steps == 0 || args.again == 0 {
        return Err("--steps and --again count tokens: use 1 or more".into());
    }
    if let Some(capacity) = args.capacity.iter().find(|capacity| **capacity <= SINKS) {
        return Err(
            format!("--capacity {capacity} has no room besides {SINKS} sinks: use {} or more", SINKS + 1).into()
        );
    }
    let (model, _, ()) = load(&args.model, |header| {
        let config = Config::from_gguf(header)?;
        for &recent in &args.capacity {
            Policy::Recompute { recent }.check(config.trained_length)?;
        }
        Ok(())
    })?;
    println!(
        "{:<10} {:>8} {:>10} {:>12} {:>12} {:>14}",
        "policy", "capacity", "position", "ms a token", "bytes", "times sinks"
    );
    let mut all = Vec::new();
    for &capacity in &args.capacity {
        let sinks = Policy::Sinks { sinks: SINKS, recent: capacity - SINKS };
        let window = Policy::Window { recent: capacity };
        let kept = time(&model, args, &[("sinks", sinks), ("window", window)], Some(capacity), &args.position)?;
        let (milliseconds, bytes) = recompute(&model, args, capacity)?;
        let again = kept.iter().filter(|timed| timed.policy == "sinks").map(|timed| Timed {
            policy: "recompute",
            capacity: Some(capacity),
            position: timed.position,
            milliseconds,
            bytes,
            ratio: Some(milliseconds / timed.milliseconds),
        });
        let again: Vec<Timed> = again.collect();
        kept.into_iter().chain(again).for_each(|timed| all.push(show(timed)));
    }
    // A cache that keeps everything cannot be pretended further than it goes.
    let near: Vec<u64> = args.position.iter().copied().filter(|at| at + args.steps as u64 <= DENSE_LIMIT).collect();
    time(&model, args, &[("dense", Policy::Dense)], None, &near)?.into_iter().for_each(|timed| all.push(show(timed)));
    println!("{}", json!({ "bench": all }));
    Ok(())
}

/// Steps of some policies at each position.
fn time(
    model: &Rc<Model>,
    args: &BenchArgs,
    policies: &[(&'static str, Policy)],
    capacity: Option<u32>,
    positions: &[u64],
) -> Result<Vec<Timed>, Failure> {
    let mut sessions = Vec::new();
    for (name, policy) in policies {
        for &position in positions {
            let mut session = Session::new(Rc::clone(model), CacheSettings::new(*policy), 1)?;
            session.pretend(position, SEED)?;
            sessions.push((*name, position, session, Vec::new()));
        }
    }
    // The first of each is not counted: it sets up what later ones use.
    for step in 0..=args.steps {
        for (_, _, session, times) in &mut sessions {
            let took = read(session, step)?;
            if step > 0 {
                times.push(took);
            }
        }
    }
    let timed = sessions.into_iter().map(|(policy, position, session, times)| Timed {
        policy,
        capacity,
        position,
        milliseconds: median(times),
        bytes: session.cache_bytes(),
        ratio: None,
    });
    Ok(timed.collect())
}

/// A token for which a whole window is read again: milliseconds, and the bytes of its cache. Its position does not matter.
fn recompute(model: &Rc<Model>, args: &BenchArgs, capacity: u32) -> Result<(f64, u64), Failure> {
    let settings = CacheSettings::new(Policy::Recompute { recent: capacity });
    let mut session = Session::new(Rc::clone(model), settings, capacity as usize)?;
    session.pretend(u64::from(capacity), SEED)?;
    read(&mut session, 0)?;
    let times = (0..args.again).map(|step| read(&mut session, step)).collect::<Result<Vec<f64>, Failure>>()?;
    Ok((median(times), session.cache_bytes()))
}

/// Milliseconds of a token whose successor is wanted.
fn read(session: &mut Session, step: usize) -> Result<f64, Failure> {
    let token = (step * 7919 % session.model().config.vocab) as u32;
    let started = Instant::now();
    pollster::block_on(session.feed_one(&[token], Want::Last { penalty: 1.0, penalized: &[] }))?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// Prints a line, and gives it for the JSON.
fn show(timed: Timed) -> Value {
    let Timed { policy, capacity, position, milliseconds, bytes, ratio } = timed;
    let capacity_text = capacity.map_or("-".to_owned(), |capacity| capacity.to_string());
    let ratio_text = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.1}"));
    println!("{policy:<10} {capacity_text:>8} {position:>10} {milliseconds:>12.3} {bytes:>12} {ratio_text:>14}");
    json!({
        "policy": policy,
        "capacity": capacity,
        "position": position,
        "milliseconds_per_token": milliseconds,
        "cache_bytes": bytes,
        "times_sinks": ratio,
    })
}
