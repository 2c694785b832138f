use kernels::Storage;
use model::device::Place;
use model::session::{CacheSettings, Model};
use policy::{Policy, Positions};
use proptest::prelude::*;
use std::rc::Rc;
use tests::{Kind, Random, Tiny, load, read_all};

/// What other orders of sums may change in a loss, in nats, of a model whose losses are around 8: activations are rounded
/// to 16 bits before each product, and a sum that ends on the other side of a border moves all that follows.
pub const ROUNDING: f64 = 3e-3;
/// The same where K and V are rounded to f16 as well. A wrong view moves losses by 0.1 and more.
pub const ROUNDING_F16: f64 = 3e-2;

fn tiny(tiny: Tiny) -> Rc<Model> {
    load(&tiny.gguf(), Place::cpu()).expect("a tiny model loads").0
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(300) as u32).collect()
}

fn settings(policy: Policy, positions: Positions, storage: Storage) -> CacheSettings {
    CacheSettings { positions, ..CacheSettings::new(policy) }.stored_as(storage)
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_chunk_equals_its_tokens(
        sinks in 0u32..6,
        recent in 1u32..40,
        chunk in 2usize..70,
        length in 2usize..150,
        seed in 0u64..1000,
        stream in any::<bool>(),
        half in any::<bool>(),
        dense in any::<bool>(),
    ) {
        let model = tiny(Tiny { seed, ..Tiny::default() });
        let policy = if dense { Policy::Dense } else { Policy::Sinks { sinks, recent } };
        let positions = if stream { Positions::Stream } else { Positions::Slot };
        let settings = settings(policy, positions, if half { Storage::F16 } else { Storage::F32 });
        let tokens = tokens(seed, length);
        let (whole, whole_rows) = read_all(&model, settings, &tokens, chunk);
        let (single, single_rows) = read_all(&model, settings, &tokens, 1);
        let tolerance = if half { ROUNDING_F16 } else { ROUNDING };
        prop_assert!(largest_difference(&whole, &single) < tolerance);
        for (a, b) in whole_rows.iter().zip(&single_rows) {
            for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                let tolerance = if half { 5e-3 } else { 3e-4 };
                prop_assert!((a - b).abs() < tolerance);
            }
        }
    }
}

#[test]
fn sinks_equal_dense_until_the_cache_is_full() {
    let model = tiny(Tiny::default());
    let tokens = tokens(5, 120);
    let run = |policy, chunk| read_all(&model, settings(policy, Positions::Slot, Storage::F32), &tokens, chunk).0;
    let dense = run(Policy::Dense, 16);
    let sinks = run(Policy::Sinks { sinks: 4, recent: 60 }, 16);
    assert!(largest_difference(&dense[..64], &sinks[..64]) < ROUNDING);
    assert!(largest_difference(&dense[64..], &sinks[64..]) > 1e-2, "nothing changed when the cache was full");
}

#[test]
fn a_window_equals_no_sinks() {
    let model = tiny(Tiny::default());
    let tokens = tokens(6, 100);
    let run = |policy| read_all(&model, settings(policy, Positions::Slot, Storage::F16), &tokens, 9).0;
    assert_eq!(run(Policy::Window { recent: 20 }), run(Policy::Sinks { sinks: 0, recent: 20 }));
}

#[test]
fn positions_agree_while_nothing_has_left() {
    let model = tiny(Tiny::default());
    let tokens = tokens(7, 40);
    let policy = Policy::Sinks { sinks: 4, recent: 60 };
    let run = |positions| read_all(&model, settings(policy, positions, Storage::F32), &tokens, 8).0;
    assert_eq!(run(Positions::Slot), run(Positions::Stream));
}

#[test]
fn every_format_of_weights_runs_and_mixes() {
    let tokens = tokens(8, 30);
    for kind in [Kind::F32, Kind::F16, Kind::Q8_0, Kind::Q4_0, Kind::Q4_1] {
        for (query_kind, tied) in [(kind, true), (Kind::F32, false), (Kind::Q8_0, true)] {
            let model = tiny(Tiny { kind, query_kind, tied, ..Tiny::default() });
            let settings = settings(Policy::Dense, Positions::Slot, Storage::F32);
            let (nll, _) = read_all(&model, settings, &tokens, 7);
            assert!(nll.iter().all(|nll| nll.is_finite() && *nll > 0.0), "{kind:?} with {query_kind:?}: {nll:?}");
        }
    }
}

#[test]
fn formats_of_the_same_weights_agree() {
    let tokens = tokens(9, 30);
    let run = |kind| {
        let model = tiny(Tiny { kind, query_kind: kind, ..Tiny::default() });
        read_all(&model, settings(Policy::Dense, Positions::Slot, Storage::F32), &tokens, 7).0
    };
    let exact = run(Kind::F32);
    let mean = |kind| {
        let nll = run(kind);
        nll.iter().zip(&exact).map(|(a, b)| (a - b).abs()).sum::<f64>() / nll.len() as f64
    };
    let (half, eight, four) = (mean(Kind::F16), mean(Kind::Q8_0), mean(Kind::Q4_1));
    assert!(half < 0.02 && eight < 0.2 && four < 2.0, "f16 {half}, q8 {eight}, q4 {four}");
    assert!(half < eight && eight < four, "fewer bits, more error: f16 {half}, q8 {eight}, q4 {four}");
}

#[test]
fn bytes_counted_are_bytes_allocated() {
    let model = tiny(Tiny::default());
    for storage in [Storage::F32, Storage::F16] {
        for policy in [Policy::Dense, Policy::Window { recent: 33 }, Policy::Sinks { sinks: 4, recent: 77 }] {
            let settings = settings(policy, Positions::Slot, storage);
            let mut session = model::session::Session::new(Rc::clone(&model), settings, 16).expect("fits");
            let mut fed = 0;
            let tokens = tokens(10, 300);
            while fed < tokens.len() {
                let want = model::session::Want::Nothing;
                fed += pollster::block_on(session.feed_one(&tokens[fed..], want)).expect("fed").taken;
                assert_eq!(session.cache_bytes(), session.cache_shape().bytes(session.slots()));
                if let Some(capacity) = policy.capacity() {
                    assert_eq!(session.slots(), capacity);
                }
            }
        }
    }
}
