use crate::golden::{Policies, check_logits};
use crate::identities::{ROUNDING, ROUNDING_F16};
use kernels::Storage;
use model::device::Place;
use model::session::{CacheSettings, Session, Want};
use policy::{Policy, Positions};
use std::rc::Rc;
use tests::{Kind, Random, Tiny, golden, load, read_all, real_model};

/// One GPU a process, and tensors of one device in one thread: all of it is one test.
#[test]
fn the_gpu_agrees() {
    let _alone = tests::alone();
    let (place, adapter) = pollster::block_on(Place::gpu(None))
        .expect("a Vulkan driver is there: `apt-get install mesa-vulkan-drivers` has one that runs on the CPU");
    println!("on {} (software: {})", adapter.name, adapter.software);
    for check in pollster::block_on(kernels::self_test::run(&place.device, place.grid)) {
        println!("{:<40} {:.2e} of {:.2e}", check.name, check.error, check.tolerance);
        assert!(check.ok(), "{}", check.name);
    }
    twins(&place);
    replays(&place);
    real(&place);
}

/// Random models of every format, both grids, both storages: the GPU against the CPU.
fn twins(place: &Place) {
    let mut random = Random(3);
    let tokens: Vec<u32> = (0..90).map(|_| random.below(300) as u32).collect();
    for (kind, storage, grid) in [
        (Kind::Q4_1, Storage::F16, kernels::Grid::Software),
        (Kind::Q4_0, Storage::F32, kernels::Grid::Gpu),
        (Kind::Q8_0, Storage::F32, kernels::Grid::Software),
        (Kind::F16, Storage::F16, kernels::Grid::Gpu),
        (Kind::F32, Storage::F32, kernels::Grid::Gpu),
    ] {
        let bytes = Tiny { kind, query_kind: kind, ..Tiny::default() }.gguf();
        let (cpu, _) = load(&bytes, Place::cpu()).expect("a tiny model loads");
        let (gpu, _) = load(&bytes, Place { grid: Some(grid), ..place.clone() }).expect("a tiny model loads");
        pollster::block_on(gpu.weights.verify()).expect("what was written reads back");
        for (policy, positions, chunk) in [
            (Policy::Sinks { sinks: 4, recent: 20 }, Positions::Slot, 1),
            (Policy::Sinks { sinks: 4, recent: 20 }, Positions::Stream, 33),
            (Policy::Window { recent: 70 }, Positions::Slot, 7),
            (Policy::Dense, Positions::Slot, 16),
        ] {
            let settings = CacheSettings { positions, ..CacheSettings::new(policy) }.stored_as(storage);
            let (a, a_rows) = read_all(&cpu, settings, &tokens, chunk);
            let (b, b_rows) = read_all(&gpu, settings, &tokens, chunk);
            let tolerance = if storage == Storage::F16 { ROUNDING_F16 } else { ROUNDING };
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                assert!((a - b).abs() < tolerance, "{kind:?} {grid:?} {policy:?} chunk {chunk} token {i}: {a} and {b}");
            }
            for (a, b) in a_rows.iter().zip(&b_rows) {
                let ids = |row: &model::transformer::RowReport| -> Vec<u32> {
                    row.candidates.iter().take(3).map(|(id, _)| *id).collect()
                };
                if a.candidates.windows(2).take(4).all(|pair| pair[0].1 - pair[1].1 > 0.02) {
                    assert_eq!(ids(a), ids(b));
                }
                assert_eq!(a.candidates.len(), b.candidates.len());
                for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                    assert!((a - b).abs() < 5e-3);
                }
            }
        }
    }
}

/// Single tokens are soon read by replaying a recording, which twins() has compared with the CPU; a dense cache that grows
/// takes new buffers, and so a new recording.
fn replays(place: &Place) {
    let (model, _) = load(&Tiny::default().gguf(), place.clone()).expect("a tiny model loads");
    let settings = CacheSettings::new(Policy::Dense);
    let mut session = Session::new(model, settings, 8).expect("fits");
    let want = Want::Last { penalty: 1.0, penalized: &[] };
    for (token, replays) in [(0, false), (1, false), (2, true), (100, true), (255, true), (256, false), (260, true)] {
        while session.stream().fed() <= token {
            pollster::block_on(session.feed_one(&[7], want)).expect("fed");
        }
        assert_eq!(session.replays(), replays, "after token {token}");
    }
}

/// The real model: logits, and the first 256 tokens of every run in full precision.
fn real(place: &Place) {
    let (model, _) = real_model(place.clone());
    check_logits(&model);
    let policies: Policies = golden("policies.json");
    let tokens = &policies.tokens[..257];
    println!("{:<14} {:>10}", "run", "worst");
    for (name, settings, run) in policies.full_precision() {
        let (nll, _) = read_all(&Rc::clone(&model), settings, tokens, 64);
        let expected = run.nll.as_ref().expect("full-precision runs have every token");
        let worst = nll.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{name:<14} {worst:>10.2e}");
        assert!(worst <= 4e-3, "{name}: {worst}");
    }
}
