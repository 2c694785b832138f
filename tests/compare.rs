//! Comparisons: what the page asks for, step by step.

use crate::identities::ROUNDING;
use kernels::Storage;
use model::compare::{Comparison, Lane, Reading, Report, Step};
use model::device::Place;
use model::lanes::LanesError;
use model::sampler::Settings;
use model::session::{CacheSettings, LaneFeed, Model, Session, Want};
use model::tokenizer::Tokenizer;
use policy::Policy;
use std::rc::Rc;
use tests::runs::Policies;
use tests::{Random, Tiny, alone, golden, load, read_all, real_model};

/// A clock that goes on by 1 ms whenever it is looked at.
fn now() -> f64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static TICKS: AtomicU64 = AtomicU64::new(0);
    TICKS.fetch_add(1, Ordering::Relaxed) as f64
}

fn tiny() -> (Rc<Model>, Tokenizer) {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    (model, Tokenizer::from_gguf(&header).expect("a tokenizer"))
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(256) as u32).collect()
}

fn lane(policy: Policy) -> Lane {
    Lane { cache: CacheSettings::new(policy).stored_as(Storage::F32), before: Vec::new() }
}

fn window(recent: u32) -> Lane {
    lane(Policy::Window { recent })
}

fn sinks(sinks: u32, recent: u32) -> Lane {
    lane(Policy::Sinks { sinks, recent })
}

fn recompute(recent: u32) -> Lane {
    lane(Policy::Recompute { recent })
}

/// A free reading of at most `most` own tokens.
fn free(prompt: Vec<u32>, most: usize) -> Reading {
    let settings = Settings { temperature: 1.0, repetition_penalty: 1.2, seed: 5, ..Settings::default() };
    Reading::Free { prompt, settings, ends: Vec::new(), most }
}

/// Steps of the lanes that share a forward, to the end, and then of the others. The reports of each lane.
fn run(model: &Rc<Model>, tokenizer: &Tokenizer, lanes: &[Lane], reading: &Reading, every: usize) -> Vec<Vec<Report>> {
    let mut comparison = Comparison::new(model, lanes, reading, 16).expect("it begins");
    let mut all = vec![Vec::new(); lanes.len()];
    let mut take = |step: Step| {
        for (all, report) in all.iter_mut().zip(step.lanes) {
            all.extend(report);
        }
        step.done
    };
    while !take(pollster::block_on(comparison.step(tokenizer, None, now)).expect("a step")) {}
    while let Some(step) = pollster::block_on(comparison.step_again(tokenizer, every, now)).expect("a step") {
        take(step);
    }
    all
}

#[test]
fn forced_lanes_lose_what_single_runs_lose() {
    let (model, tokenizer) = tiny();
    let text = tokens(1, 90);
    let lanes = [window(20), sinks(4, 16), lane(Policy::Dense), recompute(12)];
    let reports = run(&model, &tokenizer, &lanes, &Reading::Forced(text.clone()), 1);
    for (lane, reports) in lanes[..3].iter().zip(&reports) {
        let (nll, rows) = read_all(&model, lane.cache, &text, 1);
        assert_eq!(reports.len(), text.len());
        for (i, report) in reports.iter().enumerate() {
            assert_eq!((report.index, report.token, report.ended), (i as u64, text[i], false));
            assert_eq!((&report.sink_mass, &report.first_mass), (&rows[i].sink_mass, &rows[i].first_mass));
            let known = report.nll.map(f64::from);
            assert!(i == 0 && known.is_none() || (known.expect("known") - nll[i - 1]).abs() < 1e-5);
            let (id, _, p) = report.best.clone().expect("a likeliest token");
            let logit = rows[i].candidates[0];
            assert_eq!(id, logit.0);
            assert!((p - (logit.1 - rows[i].log_sum_exp).exp()).abs() < 1e-6);
            // Fifteen together, and one by itself.
            assert_eq!(report.ms.is_some(), i % 16 == 15);
        }
        let said: String = reports.iter().map(|report| report.text.as_str()).collect();
        let bytes: Vec<u8> = text.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        assert_eq!(said, String::from_utf8_lossy(&bytes));
    }
    let held = |lane: usize, i: usize| (reports[lane][i].held, reports[lane][i].capacity, reports[lane][i].sinks);
    assert_eq!(
        (held(0, 19), held(0, 20), held(1, 2), held(1, 60)),
        ((20, 20, 0), (20, 20, 0), (3, 20, 3), (20, 20, 4))
    );
    assert_eq!((&reports[0][20].evicted, &reports[1][20].evicted), (&Some(0..1), &Some(4..5)));
    assert_eq!(held(2, 89), (90, 256, 0));
    // Read again at every position: the loss of each token but the first.
    let (nll, _) = read_all(&model, lanes[3].cache, &text, 16);
    assert_eq!(reports[3].len(), text.len() - 1);
    for (i, report) in reports[3].iter().enumerate() {
        assert_eq!((report.index, report.token), (i as u64 + 1, text[i + 1]));
        assert!((f64::from(report.nll.expect("known")) - nll[i]).abs() < ROUNDING);
        assert!(report.ms.is_some() && report.best.is_none());
    }
    let said: String = reports[3].iter().map(|report| report.text.as_str()).collect();
    let other: String = reports[0].iter().map(|report| report.text.as_str()).collect();
    assert_eq!(said, other, "what was skipped is in the text");
}

#[test]
fn recompute_is_behind_and_skips() {
    let (model, tokenizer) = tiny();
    let text = tokens(2, 60);
    let lanes = [window(20), recompute(12), recompute(30)];
    let mut comparison = Comparison::new(&model, &lanes, &Reading::Forced(text.clone()), 16).expect("it begins");
    assert_eq!(comparison.shared(), [true, false, false]);
    let again = |comparison: &mut Comparison, every| {
        let step = pollster::block_on(comparison.step_again(&tokenizer, every, now)).expect("a step")?;
        let told = |lane: usize| step.lanes[lane].as_ref().map(|report| report.index);
        Some((told(1).or(told(2)).expect("one of them"), told(1).is_some(), step.done))
    };
    assert_eq!(again(&mut comparison, 8), None, "nothing was read yet");
    for _ in 0..9 {
        pollster::block_on(comparison.step(&tokenizer, None, now)).expect("a step");
    }
    // Token 8 is known, and its loss after token 7.
    assert_eq!(again(&mut comparison, 8), Some((8, true, false)));
    assert_eq!(again(&mut comparison, 8), Some((8, false, false)));
    assert_eq!(again(&mut comparison, 8), None);
    while !pollster::block_on(comparison.step(&tokenizer, None, now)).expect("a step").done {}
    let mut told = Vec::new();
    while let Some((index, first, done)) = again(&mut comparison, 8) {
        told.push((index, first, done));
    }
    let expected: Vec<_> = (2..=7).flat_map(|k| [(8 * k, true, false), (8 * k, false, k == 7)]).collect();
    assert_eq!(told, expected);

    // The losses are those of a fresh cache that reads the last tokens.
    let reports = run(&model, &tokenizer, &lanes, &Reading::Forced(text.clone()), 8).swap_remove(1);
    for report in reports {
        let end = report.index as usize;
        let part = &text[end.saturating_sub(12)..=end];
        let (nll, _) = read_all(&model, lane(Policy::Dense).cache, part, 1);
        assert!((f64::from(report.nll.expect("known")) - nll[nll.len() - 1]).abs() < ROUNDING, "token {end}");
    }
    // Without any other lane it goes to the end by itself.
    let mut single = Comparison::new(&model, &lanes[1..2], &Reading::Forced(text), 16).expect("it begins");
    assert!(pollster::block_on(single.step(&tokenizer, None, now)).expect("a step").done);
    let mut count = 0;
    while pollster::block_on(single.step_again(&tokenizer, 8, now)).expect("a step").is_some() {
        count += 1;
    }
    assert_eq!(count, 7);
}

#[test]
fn free_lanes_are_one_until_something_leaves() {
    let (model, tokenizer) = tiny();
    let lanes = [window(40), sinks(4, 36), lane(Policy::Dense), recompute(200)];
    let reading = free(tokens(3, 9), 100);
    let reports = run(&model, &tokenizer, &lanes, &reading, 1);
    let read = |lane: usize| reports[lane].iter().map(|report| report.token).collect::<Vec<_>>();
    assert!(reports[..3].iter().all(|lane| lane.len() == 109));
    // Token 40 pushes out the first; what is chosen after it may differ.
    assert_eq!(read(0)[..41], read(2)[..41]);
    assert_eq!(read(1)[..41], read(2)[..41]);
    assert_ne!(read(0), read(2));
    assert_eq!(reports[0].iter().find_map(|report| report.evicted.clone()), Some(0..1));
    for lane in &reports {
        let ended: Vec<bool> = lane.iter().map(|report| report.ended).collect();
        assert_eq!(ended.iter().position(|ended| *ended), Some(ended.len() - 1), "the last token is said to be it");
    }
    // One that never lets go of anything writes what dense writes; its first report is of the whole prompt.
    assert_eq!((reports[3].len(), reports[3][0].index, reports[3][0].nll), (101, 8, None));
    assert_eq!(read(3)[1..], read(2)[9..]);
    let text = |lane: usize| reports[lane].iter().map(|report| report.text.as_str()).collect::<String>();
    assert_eq!(text(3), text(2));
    for (again, dense) in reports[3][1..].iter().zip(&reports[2][9..]) {
        assert!((again.nll.expect("known") - dense.nll.expect("known")).abs() < 1e-4);
        let (a, b) = (again.best.clone().expect("known"), dense.best.clone().expect("known"));
        assert!(a.0 == b.0 && (a.2 - b.2).abs() < 1e-4);
    }
    // An end is not read.
    let end = read(2)[20];
    let first = read(2)[9..].iter().position(|token| *token == end).expect("it is there") + 9;
    let Reading::Free { prompt, settings, most, .. } = reading else { unreachable!("it is free") };
    let reading = Reading::Free { prompt, settings, ends: vec![end], most };
    let reports = run(&model, &tokenizer, &lanes[2..], &reading, 1);
    assert_eq!((reports[0].len(), reports[1].len()), (first, first - 8));
    assert!(reports.iter().all(|lane| lane.last().is_some_and(|report| report.ended)));
}

#[test]
fn a_text_of_the_sinks_does_not_count() {
    let (model, tokenizer) = tiny();
    let text = tokens(4, 60);
    let before = vec![10, 11, 12, 13];
    let lanes = [Lane { before: before.clone(), ..sinks(4, 16) }, sinks(4, 16), lane(Policy::Dense)];
    let reports = run(&model, &tokenizer, &lanes, &Reading::Forced(text.clone()), 1);
    let mut session = Session::new(Rc::clone(&model), lanes[0].cache, 8).expect("it fits");
    pollster::block_on(session.feed_one(&before, Want::Nothing)).expect("fed");
    for (i, report) in reports[0].iter().enumerate() {
        let want = Want::All { forced: &text[i + 1..] };
        let feed = LaneFeed { lane: 0, tokens: &text[i..=i], want };
        let fed = pollster::block_on(session.feed(&[feed])).expect("fed").remove(0);
        assert_eq!((report.index, report.held, report.sinks), (i as u64, (i as u64 + 5).min(20), 4));
        assert_eq!(report.evicted, (i >= 16).then(|| i as u64 - 16..i as u64 - 15));
        if let Some(next) = reports[0].get(i + 1) {
            let nll = fed.rows[0].log_sum_exp - fed.rows[0].forced;
            assert!((next.nll.expect("known") - nll).abs() < 1e-5);
        }
    }
    assert_eq!(reports[1][20].evicted, Some(4..5));
}

#[test]
fn parts_and_tail_are_those_of_the_cache() {
    let (model, tokenizer) = tiny();
    let mut packed = sinks(4, 60);
    packed.cache = packed.cache.stored_as(Storage::INT4);
    let text = tokens(5, 120);
    let reports = run(&model, &tokenizer, &[packed.clone(), window(20)], &Reading::Forced(text), 1);
    let session = Session::new(model, packed.cache, 1).expect("it fits");
    for (i, report) in reports[0].iter().enumerate() {
        // Four sinks, then 32 places that are packed when they are full.
        assert_eq!(report.tail, (i as u64 + 1).saturating_sub(4) % 32, "token {i}");
        assert_eq!(report.bytes.total(), session.cache_bytes());
        assert!(report.bytes.tail > 0 && report.bytes.scales > 0);
    }
    assert!(reports[1].iter().all(|report| report.tail == 0 && report.bytes.total() == report.bytes.codes));
}

#[test]
fn probs_are_of_the_lane_that_was_asked_for() {
    let (model, tokenizer) = tiny();
    let lanes = [window(20), sinks(4, 16), recompute(12)];
    let mut comparison = Comparison::new(&model, &lanes, &Reading::Forced(tokens(6, 40)), 16).expect("it begins");
    let head = |layer, head| model::LayerHead { layer, head };
    for i in 0..40u64 {
        let step = pollster::block_on(comparison.step(&tokenizer, Some((1, head(1, 2))), now)).expect("a step");
        let report = |lane: usize| step.lanes[lane].as_ref().expect("a report");
        assert_eq!(report(0).probs, None);
        let probs = report(1).probs.clone().expect("probs");
        assert_eq!(probs.len() as u64, (i + 1).min(20));
        assert!((probs.iter().sum::<f32>() - 1.0).abs() < 1e-4);
    }
    let mut other = Comparison::new(&model, &lanes, &Reading::Forced(tokens(6, 40)), 16).expect("it begins");
    assert!(pollster::block_on(other.step(&tokenizer, Some((1, head(1, 9))), now)).is_err());
    let step = pollster::block_on(other.step(&tokenizer, Some((2, head(1, 2))), now)).expect("a step");
    assert!(step.lanes.iter().flatten().all(|report| report.probs.is_none()), "that lane has no part in this step");
}

#[test]
fn comparisons_that_cannot_be() {
    let (model, _) = tiny();
    let refused =
        |lanes: &[Lane], reading: &Reading| Comparison::new(&model, lanes, reading, 16).err().expect("it is refused");
    let text = Reading::Forced(vec![1, 2, 3]);
    let with = |lane: Lane, count: usize| Lane { before: vec![7; count], ..lane };
    assert!(matches!(refused(&[with(recompute(8), 1)], &text), LanesError::RecomputeSinks));
    let long = refused(&[with(sinks(4, 4), 9)], &text);
    assert!(matches!(long, LanesError::Sinks { tokens: 9, slots: 8 }), "{long}");
    assert!(matches!(refused(&[window(8)], &Reading::Forced(Vec::new())), LanesError::Empty(0)));
    assert!(matches!(refused(&[], &text), LanesError::Session(_)));
    assert!(refused(&[recompute(5000)], &text).to_string().contains("5000"));
    let Reading::Free { prompt, settings, ends, most } = free(vec![1], 5) else { unreachable!("it is free") };
    let settings = Settings { temperature: -1.0, ..settings };
    let hot = Reading::Free { prompt, settings, ends, most };
    for lanes in [[window(8)], [recompute(8)]] {
        assert!(matches!(refused(&lanes, &hot), LanesError::Sampler(_)));
    }
}

/// The real model against the independent program, a token at a time, as in the browser.
#[test]
fn forced_lanes_lose_what_the_reference_loses() {
    let _alone = alone();
    let (model, header) = real_model(Place::cpu());
    let tokenizer = Tokenizer::from_gguf(&header).expect("a tokenizer");
    let Policies { tokens, runs, .. } = golden("policies.json");
    let lanes = [("window_128", window(128)), ("sinks_4_124", sinks(4, 124)), ("dense", lane(Policy::Dense))];
    let caches: Vec<Lane> = lanes.iter().map(|(_, lane)| lane.clone()).collect();
    let count = 300;
    let reports = run(&model, &tokenizer, &caches, &Reading::Forced(tokens[..count].to_vec()), 1);
    for ((name, _), reports) in lanes.iter().zip(&reports) {
        let nll = reports.iter().skip(1).map(|report| f64::from(report.nll.expect("known")));
        let worst = nll
            .zip(runs[*name].nll.as_ref().expect("losses"))
            .map(|(own, other)| (own - other).abs())
            .fold(0.0, f64::max);
        println!("{name}: largest difference {worst:.2e}");
        assert_eq!(reports.len(), count);
        assert!(worst <= 2e-3, "{name}: {worst}");
    }
}
