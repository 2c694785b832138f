//! What a step costs with each way to keep the cache, for the real model with a full cache:
//! `cargo run --release -p tests --example steps [-- CAPACITY STEPS [cpu|gpu]]`
//!
//! Steps of all ways take turns, so that a machine that does other work too gives ratios that can be used. Milliseconds are
//! the least and the median.

use model::Storage;
use model::device::Place;
use model::session::{CacheSettings, Session, Want};
use policy::Policy;
use std::rc::Rc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let capacity: u32 = args.next().map_or(Ok(1024), |word| word.parse())?;
    let steps: usize = args.next().map_or(Ok(60), |word| word.parse())?;
    let place = match args.next().as_deref() {
        None | Some("cpu") => Place::cpu(),
        Some("gpu") => pollster::block_on(Place::gpu(None))?.0,
        Some(other) => return Err(format!("there is no device `{other}`: use cpu or gpu").into()),
    };
    let (model, _) = tests::real_model(place);
    let policy = Policy::Sinks { sinks: 4, recent: capacity - 4 };
    let storages = [Storage::F32, Storage::F16, Storage::INT8, Storage::INT4, Storage::INT2];
    let mut sessions = Vec::new();
    for storage in storages {
        let mut session = Session::new(Rc::clone(&model), CacheSettings::new(policy).stored_as(storage), 1)?;
        session.pretend(20_000, 7)?;
        sessions.push(session);
    }
    let mut times = vec![Vec::new(); sessions.len()];
    for step in 0..steps {
        for (session, times) in sessions.iter_mut().zip(&mut times) {
            let want = Want::Last { penalty: 1.0, penalized: &[] };
            let started = Instant::now();
            pollster::block_on(session.feed_one(&[step as u32 % 1000], want))?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    for times in &mut times {
        times.sort_by(f64::total_cmp);
    }
    println!("{capacity} tokens: {:>11} {:>9} {:>9}", "least ms", "median", "to f32");
    for (storage, times_of) in storages.iter().zip(&times) {
        let (least, median) = (times_of[0], times_of[steps / 2]);
        println!("{:<12} {least:>11.3} {median:>9.3} {:>9.3}", storage.to_string(), median / times[0][steps / 2]);
    }
    Ok(())
}
