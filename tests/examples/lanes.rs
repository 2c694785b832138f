//! Three lanes (window, sinks, dense) in one forward against one lane, the real model, a token of each lane a step:
//! `cargo run --release -p tests --example lanes [-- TOKENS]`
//!
//! Steps alternate, so that whatever else the machine does slows both; the ratio is that of the medians.

use model::device::Place;
use model::session::{CacheSettings, LaneFeed, Session, Want};
use policy::Policy;
use std::rc::Rc;
use std::time::Instant;
use tests::{Random, real_model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens: usize = std::env::args().nth(1).map_or(Ok(200), |count| count.parse())?;
    let (model, _) = real_model(Place::cpu());
    let sinks = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 252 });
    let window = CacheSettings::new(Policy::Window { recent: 256 });
    let three = [window, sinks, CacheSettings::new(Policy::Dense)];
    let mut one = Session::new(Rc::clone(&model), sinks, 1)?;
    let mut all = Session::with_lanes(Rc::clone(&model), &three, 3)?;
    // As far as where the caches are full.
    one.pretend(256, 1)?;
    all.pretend(256, 1)?;
    let mut random = Random(1);
    let mut times = [Vec::new(), Vec::new()];
    let vocab = model.config.vocab as u64;
    for _ in 0..tokens {
        let [tokens, forced] = [(); 2].map(|()| [random.below(vocab) as u32]);
        for (session, times) in [&mut one, &mut all].into_iter().zip(&mut times) {
            let want = Want::All { forced: &forced };
            let feeds: Vec<LaneFeed<'_>> =
                (0..session.lanes()).map(|lane| LaneFeed { lane, tokens: &tokens, want }).collect();
            let started = Instant::now();
            pollster::block_on(session.feed(&feeds))?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [one, three] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!("one lane    {one:>8.2} ms a step");
    println!("three lanes {three:>8.2} ms a step");
    println!("{{\"one_ms\": {one:.3}, \"three_ms\": {three:.3}, \"ratio\": {:.3}}}", three / one);
    Ok(())
}
