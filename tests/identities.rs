use kernels::Storage;
use model::device::Place;
use model::session::{CacheSettings, Model};
use policy::{Packing, Policy, Positions};
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

/// The median of the differences.
pub fn median_difference(a: &[f64], b: &[f64]) -> f64 {
    let mut differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    differences.sort_by(f64::total_cmp);
    differences[differences.len() / 2]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_chunk_equals_its_tokens(
        sinks in 0u32..6,
        recent in 1u32..40,
        chunk in 2usize..70,
        length in 2usize..150,
        seed in 0u64..1000,
        stream in any::<bool>(),
        storage in 0..6usize,
        groups in 1u32..4,
        tails in 1u32..3,
        dense in any::<bool>(),
    ) {
        let model = tiny(Tiny { seed, ..Tiny::default() });
        let policy = if dense { Policy::Dense } else { Policy::Sinks { sinks, recent } };
        let positions = if stream { Positions::Stream } else { Positions::Slot };
        let storage = Storage::ALL[storage];
        let packing = Packing { group: 8 * groups, tail: 8 * groups * tails, exact: sinks };
        let settings = CacheSettings { packing, ..settings(policy, positions, storage) };
        let tokens = tokens(seed, length);
        let (whole, whole_rows) = read_all(&model, settings, &tokens, chunk);
        let (single, single_rows) = read_all(&model, settings, &tokens, 1);
        // A value beside the border of two codes may get either; a wrong view would do far more in most of the tokens.
        let tolerance = match storage {
            Storage::F32 => ROUNDING,
            Storage::F16 => ROUNDING_F16,
            Storage::BF16 | Storage::INT8 => 4.0 * ROUNDING_F16,
            _ => 1.0,
        };
        prop_assert!(largest_difference(&whole, &single) < tolerance);
        let median = median_difference(&whole, &single);
        prop_assert!(median < ROUNDING_F16, "median {median}");
        for (a, b) in whole_rows.iter().zip(&single_rows) {
            for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                let tolerance = match storage {
                    Storage::F32 => 3e-4,
                    Storage::F16 => 5e-3,
                    Storage::BF16 | Storage::INT8 => 3e-2,
                    _ => 0.2,
                };
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

/// The closed form of `policy` against the buffers, for every storage, also K and V apart; a dense cache as it grows.
#[test]
fn bytes_counted_are_bytes_allocated() {
    let model = tiny(Tiny::default());
    let alike = Storage::ALL.map(|storage| [storage; 2]);
    let apart = [[Storage::INT8, Storage::INT2], [Storage::F16, Storage::INT4], [Storage::INT4, Storage::BF16]];
    for [keys, values] in alike.into_iter().chain(apart) {
        for policy in [Policy::Dense, Policy::Window { recent: 33 }, Policy::Sinks { sinks: 4, recent: 77 }] {
            for packing in [Packing::default(), Packing { group: 24, tail: 48, exact: 7 }] {
                let settings = CacheSettings { keys, values, packing, ..CacheSettings::new(policy) };
                let mut session = model::session::Session::new(Rc::clone(&model), settings, 16).expect("fits");
                let mut fed = 0;
                let tokens = tokens(10, 300);
                while fed < tokens.len() {
                    let want = model::session::Want::Nothing;
                    fed += pollster::block_on(session.feed_one(&tokens[fed..], want)).expect("fed").taken;
                    let parts = session.cache_shape().parts(session.slots());
                    assert_eq!(session.cache_bytes(), parts.total(), "{keys}, {values}, {policy:?}: {parts:?}");
                    if let Some(capacity) = policy.capacity() {
                        assert_eq!(session.slots(), capacity);
                    }
                }
            }
        }
    }
}

/// Lanes of different formats beside each other see what each sees alone.
#[test]
fn packed_lanes_share_a_forward() {
    let model = tiny(Tiny::default());
    let tokens = tokens(11, 200);
    let policy = Policy::Sinks { sinks: 4, recent: 60 };
    let lanes = [Storage::INT8, Storage::F16, Storage::INT8, Storage::INT2].map(|storage| {
        let packing = Packing { group: 16, tail: 48, exact: 0 };
        CacheSettings { packing, ..settings(policy, Positions::Slot, storage) }
    });
    let mut session = model::session::Session::with_lanes(Rc::clone(&model), &lanes, 100).expect("fits");
    let mut rows = vec![Vec::new(); lanes.len()];
    while rows.iter().any(|rows: &Vec<_>| rows.len() < tokens.len()) {
        let done: Vec<usize> = rows.iter().map(Vec::len).collect();
        let feeds = done.iter().enumerate().filter(|(_, done)| **done < tokens.len()).map(|(lane, &done)| {
            let want = model::session::Want::All { forced: &tokens[done + 1..] };
            model::session::LaneFeed { lane, tokens: &tokens[done..], want }
        });
        let feeds: Vec<_> = feeds.collect();
        let fed = pollster::block_on(session.feed(&feeds)).expect("fed");
        for (feed, fed) in feeds.iter().zip(fed) {
            rows[feed.lane].extend(fed.rows);
        }
    }
    for (settings, rows) in lanes.into_iter().zip(rows) {
        let nll = |rows: &[model::transformer::RowReport]| -> Vec<f64> {
            rows[..rows.len() - 1].iter().map(|row| f64::from(row.log_sum_exp) - f64::from(row.forced)).collect()
        };
        let (alone, _) = read_all(&model, settings, &tokens, 25);
        let median = median_difference(&nll(&rows), &alone);
        assert!(median < ROUNDING_F16, "{}: {median}", settings.keys);
    }
}

/// Fewer bits, more error; and all of them near full precision.
#[test]
fn packed_caches_are_near_full_precision() {
    let model = tiny(Tiny::default());
    let tokens = tokens(12, 300);
    let run = |storage, policy| read_all(&model, settings(policy, Positions::Slot, storage), &tokens, 40).0;
    for policy in [Policy::Dense, Policy::Sinks { sinks: 4, recent: 100 }] {
        let exact = run(Storage::F32, policy);
        let mean = |storage| {
            let nll = run(storage, policy);
            nll.iter().zip(&exact).map(|(a, b)| (a - b).abs()).sum::<f64>() / nll.len() as f64
        };
        let [half, eight, four, two] = [Storage::F16, Storage::INT8, Storage::INT4, Storage::INT2].map(mean);
        assert!(half < eight && eight < four && four < two, "{policy:?}: {half}, {eight}, {four}, {two}");
        assert!(eight < 0.03 && four < 0.3 && two < 2.0, "{policy:?}: {eight}, {four}, {two}");
    }
}

/// A packed recompute, and groups that do not fit, are refused with a remedy.
#[test]
fn settings_that_cannot_be_packed_are_refused() {
    let model = tiny(Tiny::default());
    let refused = |settings| {
        let session = model::session::Session::new(Rc::clone(&model), settings, 4);
        session.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let packed = settings(Policy::Recompute { recent: 9 }, Positions::Slot, Storage::INT4);
    assert!(refused(packed).contains("recompute keeps nothing"));
    let packing = Packing { group: 12, ..Packing::default() };
    let packed = CacheSettings { packing, ..settings(Policy::Dense, Positions::Slot, Storage::INT4) };
    assert!(refused(packed).contains("multiple of 8"));
}

/// What K and V of whole groups become, written the plain way: `tokens` of `[2, kv_heads, head_dim]`, in groups of 32.
fn packed_plainly(tokens: &[Vec<f32>], head_dim: usize, levels: f32) -> Vec<Vec<f32>> {
    let half = |x: f32| half::f16::from_f32(x).to_f32();
    let cols = tokens[0].len() / 2;
    let mut out = tokens.to_vec();
    let pack = |values: &[f32]| -> Vec<f32> {
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (scale, zero) = (half((most - least) / levels), half(least));
        let value = |x: &f32| ((x - zero) / scale).round_ties_even().clamp(0.0, levels) * scale + zero;
        values.iter().map(value).collect()
    };
    for first in (0..tokens.len()).step_by(32) {
        for c in 0..cols {
            let column: Vec<f32> = tokens[first..first + 32].iter().map(|token| half(token[c])).collect();
            for (i, value) in pack(&column).into_iter().enumerate() {
                out[first + i][c] = value;
            }
        }
        for token in first..first + 32 {
            for at in (cols..2 * cols).step_by(head_dim.min(32)) {
                let row: Vec<f32> = tokens[token][at..at + head_dim.min(32)].iter().map(|x| half(*x)).collect();
                out[token][at..at + row.len()].copy_from_slice(&pack(&row));
            }
        }
    }
    out
}

/// A lane in full precision beside it has the K and V of the first layer, which depend on the token alone.
#[test]
fn a_hundred_thousand_tokens_through_packed_sinks() {
    let model = tiny(Tiny::default());
    let policy = Policy::Sinks { sinks: 4, recent: 124 };
    let lanes = [Storage::F32, Storage::INT4].map(|storage| settings(policy, Positions::Slot, storage));
    let mut session = model::session::Session::with_lanes(Rc::clone(&model), &lanes, 64).expect("fits");
    let mut random = Random(13);
    let bytes = session.lane(1).bytes();
    let mut fed = 0u64;
    while fed < 100_000 {
        let until = session.lane(1).stream().until_packed().expect("the lane packs");
        let count = 32.min(until).min(100_000 - fed);
        let tokens: Vec<u32> = (0..count).map(|_| random.below(300) as u32).collect();
        let want = model::session::Want::Last { penalty: 1.0, penalized: &[] };
        let feeds = [0, 1].map(|lane| model::session::LaneFeed { lane, tokens: &tokens, want });
        for fed in pollster::block_on(session.feed(&feeds)).expect("fed") {
            let row = fed.rows.last().expect("a row");
            assert!(row.log_sum_exp.is_finite() && row.candidates.iter().all(|(_, logit)| logit.is_finite()));
        }
        fed += count;
    }
    let lane = session.lane(1);
    assert_eq!((lane.bytes(), lane.stream().held(), lane.stream().fed()), (bytes, 128, 100_000));
    assert_eq!(bytes, lane.shape().bytes(128));
    let exact = pollster::block_on(session.cached(0, 0)).expect("read");
    let kept = pollster::block_on(session.cached(1, 0)).expect("read");
    assert_eq!(kept.len(), 124);
    // The groups of which everything is still seen.
    let whole = (0..exact.len()).find(|i| (exact[*i].index - 4).is_multiple_of(32)).expect("a group begins");
    let groups: Vec<_> = exact[whole..].iter().zip(&kept[whole..]).take_while(|(_, kept)| kept.packed).collect();
    assert!(groups.len() >= 64 && groups.len().is_multiple_of(32), "{}", groups.len());
    let plain: Vec<Vec<f32>> = groups.iter().map(|(exact, _)| exact.keys_and_values.clone()).collect();
    let plain = packed_plainly(&plain, model.config.heads.head_dim, 15.0);
    let mut off = 0;
    for ((exact, kept), plain) in groups.iter().zip(&plain) {
        assert_eq!(exact.index, kept.index);
        off += kept.keys_and_values.iter().zip(plain).filter(|(a, b)| (*a - *b).abs() > 1e-5).count();
    }
    assert_eq!(off, 0, "values that are not as a plain store has them");
}

/// Storage changes by reading the text again: nothing of a conversation that fits is lost, there and back.
#[test]
fn another_storage_reads_the_text_again() {
    let model = tiny(Tiny::default());
    let policy = Policy::Sinks { sinks: 4, recent: 124 };
    let tokens = tokens(14, 110);
    let read = |storage| {
        let settings = settings(policy, Positions::Slot, storage);
        let mut session = model::session::Session::new(Rc::clone(&model), settings, 16).expect("fits");
        let mut rows = Vec::new();
        let mut fed = 0;
        while fed < tokens.len() {
            let want = model::session::Want::Last { penalty: 1.0, penalized: &[] };
            let piece = pollster::block_on(session.feed_one(&tokens[fed..], want)).expect("fed");
            fed += piece.taken;
            rows = piece.rows;
        }
        assert_eq!((session.stream().held(), session.stream().fed()), (110, 110), "{storage}");
        rows.pop().expect("a row")
    };
    let [before, between, after] = [Storage::F16, Storage::INT8, Storage::F16].map(read);
    assert_eq!(before, after);
    assert_ne!(before, between);
    assert!((before.candidates[0].1 - between.candidates[0].1).abs() < 0.1);
}
