//! Lanes side by side, and the ablations of a lane.

use crate::identities::{ROUNDING, ROUNDING_F16};
use kernels::{NO_SINK_LOGIT, Storage};
use model::device::Place;
use model::lanes::{LaneStep, Lanes, LanesError, Source};
use model::sampler::Settings;
use model::session::{CacheSettings, Fed, LaneFeed, Model, Session, SessionError, Softmax, Turns, Want};
use policy::{Policy, Positions};
use proptest::prelude::*;
use std::rc::Rc;
use tests::{Random, Tiny, alone, golden, load, read_all, real_model};

fn tiny(tiny: Tiny) -> Rc<Model> {
    load(&tiny.gguf(), Place::cpu()).expect("a tiny model loads").0
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(300) as u32).collect()
}

/// Lanes of every kind, dense ones between those that do not grow.
fn mixed() -> Vec<CacheSettings> {
    let sinks = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 28 });
    let turns = Some(Turns { opening: 7, pinned: 9 });
    vec![
        CacheSettings::new(Policy::Window { recent: 20 }),
        CacheSettings::new(Policy::Dense),
        sinks,
        CacheSettings::new(Policy::Dense).stored_as(Storage::F32),
        CacheSettings { positions: Positions::Stream, ..sinks }.stored_as(Storage::F32),
        CacheSettings { softmax: Softmax::One, ..sinks },
        CacheSettings { zero_sinks: true, ..sinks }.stored_as(Storage::F32),
        CacheSettings { turns, ..sinks },
    ]
}

/// Reads a text in each lane, in forwards of all lanes.
fn read_lanes(session: &mut Session, texts: &[Vec<u32>]) -> Vec<Vec<Fed>> {
    let mut done = vec![0; texts.len()];
    let mut all = vec![Vec::new(); texts.len()];
    while done.iter().zip(texts).any(|(done, text)| *done < text.len()) {
        let feeds: Vec<LaneFeed<'_>> = texts
            .iter()
            .enumerate()
            .map(|(lane, text)| {
                let (tokens, forced) = (&text[done[lane]..], &text[text.len().min(done[lane] + 1)..]);
                LaneFeed { lane, tokens, want: Want::All { forced } }
            })
            .collect();
        for (lane, fed) in pollster::block_on(session.feed(&feeds)).expect("fed").into_iter().enumerate() {
            done[lane] += fed.taken;
            all[lane].push(fed);
        }
    }
    all
}

#[test]
fn lanes_together_are_lanes_alone() {
    let model = tiny(Tiny::default());
    let settings = mixed();
    // Lanes end at different times, and dense ones grow while others hold something.
    let texts: Vec<Vec<u32>> = (0..settings.len()).map(|lane| tokens(lane as u64, 310 - 17 * lane)).collect();
    for rows in [1, 5 * settings.len()] {
        let mut together = Session::with_lanes(Rc::clone(&model), &settings, rows).expect("the lanes fit");
        let all = read_lanes(&mut together, &texts);
        for (lane, (settings, text)) in settings.iter().zip(&texts).enumerate() {
            let chunk = (rows / 8).max(1);
            let mut single = Session::new(Rc::clone(&model), *settings, chunk).expect("the lane fits");
            let fed = read_lanes(&mut single, std::slice::from_ref(text)).remove(0);
            for (a, b) in all[lane].iter().zip(&fed) {
                assert_eq!(a, b, "lane {lane}, {rows} rows");
            }
            assert!(all[lane][fed.len()..].iter().all(|fed| fed.taken == 0 && fed.rows.is_empty()));
            let (a, b) = (together.lane(lane), single.lane(0));
            assert_eq!((a.stream().fed(), a.stream().held()), (b.stream().fed(), b.stream().held()));
            assert_eq!((a.settings(), a.slots(), a.bytes()), (b.settings(), b.slots(), b.bytes()));
            assert_eq!(a.bytes(), a.shape().bytes(a.slots()));
        }
        let bytes: u64 = (0..settings.len()).map(|lane| together.lane(lane).bytes()).sum();
        assert_eq!(together.cache_bytes(), bytes);
        assert_eq!(together.cache_buffers(), 2 * model.config.layers, "one arena a layer and format");
    }
}

#[test]
fn a_lane_may_rest() {
    let model = tiny(Tiny::default());
    let settings = mixed();
    let text = tokens(3, 60);
    let mut session = Session::with_lanes(Rc::clone(&model), &settings, 16).expect("the lanes fit");
    let want = Want::All { forced: &[] };
    for token in &text {
        pollster::block_on(session.feed(&[LaneFeed { lane: 2, tokens: &[*token], want }])).expect("fed");
    }
    let feed = |lane| LaneFeed { lane, tokens: &[5], want };
    let fed = pollster::block_on(session.feed(&[feed(6), feed(2)])).expect("fed");
    let mut single = Session::new(Rc::clone(&model), settings[2], 16).expect("the lane fits");
    for token in &text {
        pollster::block_on(single.feed_one(&[*token], want)).expect("fed");
    }
    assert_eq!(fed[1], pollster::block_on(single.feed_one(&[5], want)).expect("fed"));
    let mut fresh = Session::new(model, settings[6], 16).expect("the lane fits");
    assert_eq!(fed[0], pollster::block_on(fresh.feed_one(&[5], want)).expect("fed"));
}

#[test]
fn lanes_that_cannot_be() {
    let model = tiny(Tiny::default());
    let refused = |settings: &[CacheSettings]| {
        let session = Session::with_lanes(Rc::clone(&model), settings, 16);
        session.expect_err("the lanes are refused").to_string()
    };
    let dense = CacheSettings::new(Policy::Dense);
    let recompute = CacheSettings::new(Policy::Recompute { recent: 8 });
    assert!(refused(&[dense, recompute]).contains("run it alone"));
    assert!(refused(&[]).contains("one lane or more"));
    let turns = |opening| Some(Turns { opening, pinned: 0 });
    assert!(refused(&[CacheSettings { turns: turns(7), ..recompute }]).contains("no turns to keep whole"));
    assert!(refused(&[CacheSettings { turns: turns(300), ..dense }]).contains("300"));
    assert!(refused(&[CacheSettings::new(Policy::Recompute { recent: 4097 })]).contains("recompute would read 4097"));
    let pinned = Some(Turns { opening: 7, pinned: 90 });
    let long = CacheSettings { turns: pinned, ..CacheSettings::new(Policy::Sinks { sinks: 4, recent: 4010 }) };
    assert!(refused(&[long]).contains("4100"), "the pinned prompt counts");

    let mut session = Session::with_lanes(Rc::clone(&model), &[dense, dense], 16).expect("the lanes fit");
    let feed = |lane| LaneFeed { lane, tokens: &[1][..], want: Want::Nothing };
    for feeds in [vec![feed(2)], vec![feed(1), feed(1)]] {
        let error = pollster::block_on(session.feed(&feeds)).expect_err("no such lane");
        assert!(matches!(error, SessionError::Lane(_)));
    }
    let bad = LaneFeed { lane: 1, tokens: &[300], want: Want::Nothing };
    assert!(pollster::block_on(session.feed(&[feed(0), bad])).is_err());
    assert_eq!(session.lane(0).stream().fed(), 0, "all or none are fed");
    assert!(pollster::block_on(session.nll_of(&[(0, 1)])).is_err(), "nothing was fed");

    let lanes = |sources| {
        let session = Session::with_lanes(Rc::clone(&model), &[dense, dense], 16).expect("the lanes fit");
        Lanes::new(session, sources).err().expect("the sources are refused")
    };
    let forced = || Source::Forced(vec![1, 2]);
    assert!(matches!(lanes(vec![forced()]), LanesError::Count { sources: 1, lanes: 2 }));
    assert!(matches!(lanes(vec![forced(), Source::Forced(Vec::new())]), LanesError::Empty(1)));
    assert!(matches!(lanes(vec![Source::Follow(1), Source::Follow(0)]), LanesError::Follow { lane: 0, leader: 1 }));
    assert!(matches!(lanes(vec![forced(), Source::Follow(2)]), LanesError::Follow { lane: 1, leader: 2 }));
    let hot = Settings { temperature: -1.0, ..Settings::default() };
    let free = Source::Free { prompt: vec![1], settings: hot, ends: Vec::new(), most: usize::MAX };
    assert!(matches!(lanes(vec![forced(), free]), LanesError::Sampler(_)));
}

/// Steps until every lane is at its end, or `most`.
fn run(model: &Rc<Model>, settings: &[CacheSettings], sources: Vec<Source>, most: usize) -> Vec<Vec<LaneStep>> {
    let session = Session::with_lanes(Rc::clone(model), settings, 16).expect("the lanes fit");
    let mut lanes = Lanes::new(session, sources).expect("the sources fit");
    let mut all = vec![Vec::new(); settings.len()];
    for _ in 0..most {
        let steps = pollster::block_on(lanes.step()).expect("a step");
        if steps.iter().all(Option::is_none) {
            break;
        }
        for (all, step) in all.iter_mut().zip(steps) {
            all.extend(step);
        }
    }
    all
}

#[test]
fn who_follows_reads_what_is_forced() {
    let model = tiny(Tiny::default());
    let settings = mixed();
    let text = tokens(11, 70);
    let mut sources = vec![Source::Follow(1); settings.len()];
    sources[1] = Source::Forced(text.clone());
    // One that follows who follows.
    sources[3] = Source::Follow(0);
    let follow = run(&model, &settings, sources, 100);
    let forced = run(&model, &settings, vec![Source::Forced(text.clone()); settings.len()], 100);
    assert_eq!(follow, forced);
    for (lane, settings) in forced.iter().zip(settings) {
        let (nll, rows) = read_all(&model, settings, &text, 1);
        assert_eq!(lane.len(), text.len());
        assert_eq!(lane[0].nll, None);
        for (i, step) in lane.iter().enumerate() {
            assert_eq!((step.token, &step.sink_mass), (text[i], &rows[i].sink_mass));
            assert!(i == 0 || (f64::from(step.nll.expect("known")) - nll[i - 1]).abs() < 1e-5);
        }
    }
}

#[test]
fn who_follows_a_free_lane_says_what_it_thinks_of_its_choices() {
    let model = tiny(Tiny::default());
    let settings = mixed();
    // At a high temperature many choices are not among the 64 best of the others.
    let free = |temperature, repetition_penalty, ends| {
        let settings = Settings { temperature, top_p: 1.0, repetition_penalty, seed: 4, ..Settings::default() };
        Source::Free { prompt: vec![3, 1, 4], settings, ends, most: usize::MAX }
    };
    let mut sources = vec![Source::Follow(2); settings.len()];
    sources[2] = free(3.0, 1.3, Vec::new());
    let lanes = run(&model, &settings, sources, 60);
    let text: Vec<u32> = lanes[2].iter().map(|step| step.token).collect();
    assert_eq!((text.len(), &text[..3]), (60, &[3, 1, 4][..]));
    let mut surprises = 0;
    let again = run(&model, &settings, vec![Source::Forced(text); settings.len()], 60);
    for (lane, again) in lanes.iter().zip(&again) {
        for (a, b) in lane.iter().zip(again) {
            let difference = a.nll.unwrap_or(0.0) - b.nll.unwrap_or(0.0);
            assert!(difference.abs() < 1e-4, "{:?} and {:?}", a.nll, b.nll);
            assert_eq!((a.token, a.held, &a.first_mass), (b.token, b.held, &b.first_mass));
            surprises += usize::from(a.nll.is_some_and(|nll| nll > 6.0));
        }
    }
    assert!(surprises > 20, "only {surprises} choices were far from what a lane would have said");
    // An end is not read, and ends all that follow.
    let end = lanes[2][10].token;
    let first = lanes[2].iter().skip(3).position(|step| step.token == end).expect("it is there") + 3;
    let mut sources = vec![Source::Follow(2); settings.len()];
    sources[2] = free(3.0, 1.3, vec![end]);
    assert!(run(&model, &settings, sources, 60).iter().all(|lane| lane.len() == first));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The identity for what `identities` does not vary: turns, softmax one, sinks without values.
    #[test]
    fn a_chunk_equals_its_tokens_with_turns_and_ablations(
        sinks in 0u32..6,
        recent in 1u32..40,
        chunk in 2usize..70,
        length in 2usize..150,
        seed in 0u64..1000,
        stream in any::<bool>(),
        half in any::<bool>(),
        one in any::<bool>(),
        zero_sinks in any::<bool>(),
        pinned in prop::option::of(0u32..12),
        learned in any::<bool>(),
    ) {
        let sink_logits = (learned && !one).then_some(1.5);
        let model = tiny(Tiny { seed, sink_logits, ..Tiny::default() });
        let settings = CacheSettings {
            policy: Policy::Sinks { sinks, recent },
            positions: if stream { Positions::Stream } else { Positions::Slot },
            softmax: if one { Softmax::One } else { Softmax::Plain },
            zero_sinks,
            turns: pinned.map(|pinned| Turns { opening: 7, pinned }),
            ..CacheSettings::new(Policy::Dense)
        };
        let settings = settings.stored_as(if half { Storage::F16 } else { Storage::F32 });
        let mut random = Random(seed);
        // A turn of eight tokens on average.
        let tokens: Vec<u32> = (0..length).map(|_| {
            if random.below(8) == 0 { 7 } else { random.below(300) as u32 }
        }).collect();
        let (whole, whole_rows) = read_all(&model, settings, &tokens, chunk);
        let (single, single_rows) = read_all(&model, settings, &tokens, 1);
        let tolerance = if half { ROUNDING_F16 } else { ROUNDING };
        for (a, b) in whole.iter().zip(&single) {
            prop_assert!((a - b).abs() < tolerance, "{a} and {b}");
        }
        for (a, b) in whole_rows.iter().zip(&single_rows) {
            for (a, b) in a.sink_mass.iter().zip(&b.sink_mass).chain(a.first_mass.iter().zip(&b.first_mass)) {
                let tolerance = if half { 5e-3 } else { 3e-4 };
                prop_assert!((a - b).abs() < tolerance);
            }
        }
    }
}

#[test]
fn a_learned_logit_of_zero_is_softmax_one() {
    let text = tokens(12, 80);
    let run = |sink_logits, softmax| {
        let model = tiny(Tiny { sink_logits, ..Tiny::default() });
        let policy = Policy::Sinks { sinks: 4, recent: 20 };
        read_all(&model, CacheSettings { softmax, ..CacheSettings::new(policy) }, &text, 9)
    };
    let plain = run(None, Softmax::Plain);
    let one = run(None, Softmax::One);
    assert_eq!(run(Some(0.0), Softmax::Plain), one);
    assert_eq!(run(Some(NO_SINK_LOGIT), Softmax::Plain), plain);
    assert_ne!(plain.0, one.0);
    // The first token has one key, whose share is p / (p + 1); where the logit is great nothing is left for keys.
    let mass = |rows: &[model::transformer::RowReport]| rows[0].sink_mass[0];
    assert!((mass(&plain.1) - 1.0).abs() < 1e-6 && mass(&one.1) > 0.1 && mass(&one.1) < 0.9);
    assert!(mass(&run(Some(30.0), Softmax::Plain).1) < 1e-6);
}

#[test]
fn softmax_one_is_refused_where_logits_are_learned() {
    let model = tiny(Tiny { sink_logits: Some(0.5), ..Tiny::default() });
    assert!(model.config.learned_sinks);
    let settings = CacheSettings { softmax: Softmax::One, ..CacheSettings::new(Policy::Dense) };
    let error = Session::new(Rc::clone(&model), settings, 8).expect_err("both").to_string();
    assert!(error.contains("softmax one") && error.contains("plain"), "{error}");
    assert!(Session::new(model, CacheSettings::new(Policy::Dense), 8).is_ok());
}

#[test]
fn sinks_without_values_still_take_attention() {
    let model = tiny(Tiny { layers: 1, ..Tiny::default() });
    let text = tokens(13, 60);
    let run = |policy, zero_sinks| {
        let settings = CacheSettings { zero_sinks, ..CacheSettings::new(policy) }.stored_as(Storage::F32);
        read_all(&model, settings, &text, 7)
    };
    let sinks = Policy::Sinks { sinks: 4, recent: 20 };
    let (plain, zeros) = (run(sinks, false), run(sinks, true));
    // In the only layer attention is the same, to the bit; what comes of it is not.
    for (a, b) in plain.1.iter().zip(&zeros.1) {
        assert_eq!((&a.sink_mass, &a.first_mass), (&b.sink_mass, &b.first_mass));
        assert!(a.log_sum_exp != b.log_sum_exp);
    }
    let window = Policy::Window { recent: 20 };
    assert_eq!(run(window, false), run(window, true), "a window has no sinks");
}

/// -ln p of the token after each of some places, by recompute; and by a fresh dense cache that reads the last R tokens.
fn recompute(model: &Rc<Model>, text: &[u32], recent: u32, places: &[usize], chunk: usize) -> Vec<[f64; 2]> {
    let storage = Storage::F32;
    let settings = |policy| CacheSettings::new(policy).stored_as(storage);
    let mut again = Session::new(Rc::clone(model), settings(Policy::Recompute { recent }), chunk).expect("fits");
    let nll = |fed: Fed| {
        let row = fed.rows.into_iter().next_back().expect("a row");
        f64::from(row.log_sum_exp) - f64::from(row.forced)
    };
    let mut at = 0;
    let mut both = Vec::new();
    for &place in places {
        while at < place {
            at += pollster::block_on(again.feed_one(&text[at..place], Want::Nothing)).expect("fed").taken;
        }
        let want = Want::All { forced: &text[place + 1..place + 2] };
        let again_nll = nll(pollster::block_on(again.feed_one(&text[place..=place], want)).expect("fed"));
        at += 1;
        let first = (place + 1).saturating_sub(recent as usize);
        let mut dense = Session::new(Rc::clone(model), settings(Policy::Dense), 64).expect("fits");
        for piece in text[first..place].chunks(64) {
            pollster::block_on(dense.feed_one(piece, Want::Nothing)).expect("fed");
        }
        both.push([again_nll, nll(pollster::block_on(dense.feed_one(&text[place..=place], want)).expect("fed"))]);
    }
    both
}

#[test]
fn recompute_is_dense_on_the_last_tokens() {
    let model = tiny(Tiny::default());
    let text = tokens(14, 130);
    for (recent, chunk) in [(1, 4), (5, 1), (30, 8), (30, 64), (200, 16)] {
        let places: Vec<usize> = (0..129).step_by(8).collect();
        for [again, dense] in recompute(&model, &text, recent, &places, chunk) {
            assert!((again - dense).abs() < ROUNDING, "R {recent}, chunk {chunk}: {again} and {dense}");
        }
    }
    // Every token in one feed is every token in a feed of its own.
    let settings = CacheSettings::new(Policy::Recompute { recent: 12 });
    let (whole, _) = read_all(&model, settings, &text[..40], 16);
    let mut session = Session::new(Rc::clone(&model), settings, 16).expect("fits");
    let mut single = Vec::new();
    for i in 0..39 {
        let want = Want::All { forced: &text[i + 1..i + 2] };
        let fed = pollster::block_on(session.feed_one(&text[i..=i], want)).expect("fed");
        assert_eq!(fed.evicted, (i >= 12).then(|| i as u64 - 12..i as u64 - 11));
        single.push(f64::from(fed.rows[0].log_sum_exp) - f64::from(fed.rows[0].forced));
    }
    assert_eq!(whole, single);
    assert_eq!((session.stream().fed(), session.stream().held()), (39, 12));
    assert_eq!(session.cache_bytes(), session.cache_shape().bytes(12));
}

#[derive(serde::Deserialize)]
struct Story {
    tokens: Vec<u32>,
}

#[test]
fn recompute_is_dense_on_the_last_tokens_of_a_real_text() {
    let _alone = alone();
    let (model, _) = real_model(Place::cpu());
    let text = golden::<Story>("policies.json").tokens;
    let places: Vec<usize> = (0..16).map(|i| 40 + i * (text.len() - 42) / 15).collect();
    let mut worst = 0.0f64;
    for [again, dense] in recompute(&model, &text, 128, &places, 128) {
        worst = worst.max((again - dense).abs());
    }
    println!("recompute against dense, 16 places: largest difference {worst:.2e}");
    assert!(worst <= 2e-3);
}

/// Turns leave whole: what is kept begins at a turn, and nothing of the sinks leaves.
#[test]
fn turns_leave_whole_and_the_pinned_prompt_stays() {
    let model = tiny(Tiny::default());
    let settings = CacheSettings {
        turns: Some(Turns { opening: 7, pinned: 9 }),
        ..CacheSettings::new(Policy::Sinks { sinks: 4, recent: 30 })
    };
    let mut session = Session::new(Rc::clone(&model), settings, 16).expect("fits");
    assert_eq!(session.settings().policy, Policy::Sinks { sinks: 9, recent: 30 });
    assert_eq!(session.slots(), 39);
    // Turns of 5, 12 and 19 tokens in turn, none longer than the ring.
    let mut text: Vec<u32> = tokens(15, 9).into_iter().map(|id| if id == 7 { 8 } else { id }).collect();
    let mut random = Random(16);
    for turn in 0..20 {
        text.push(7);
        text.extend((1..5 + 7 * (turn % 3)).map(|_| 8 + random.below(200) as u32));
    }
    let (mut read, mut tokens_left, mut turns_left) = (0, 9, 0);
    while read < text.len() {
        let fed = pollster::block_on(session.feed_one(&text[read..], Want::Nothing)).expect("fed");
        read += fed.taken;
        let Some(evicted) = fed.evicted else { continue };
        assert_eq!(evicted.start, tokens_left);
        tokens_left = evicted.end;
        assert_eq!(text[evicted.end as usize], 7, "what is kept begins with a turn");
        let turns = fed.evicted_turns.expect("whole turns");
        assert_eq!(turns.start, turns_left);
        turns_left = turns.end;
        let ended = text[9..evicted.end as usize].iter().filter(|id| **id == 7).count();
        assert_eq!(turns_left, ended as u64);
        assert!(session.stream().held() <= 39);
    }
    assert!(turns_left > 10);
}

#[test]
fn far_into_a_stream_a_step_is_the_same() {
    let model = tiny(Tiny::default());
    let policy = Policy::Sinks { sinks: 4, recent: 28 };
    let text = tokens(17, 40);
    let far = |position: u64, positions, seed| {
        let settings = CacheSettings { positions, ..CacheSettings::new(policy) };
        let mut session = Session::new(Rc::clone(&model), settings, 16).expect("fits");
        session.pretend(position, seed).expect("it fits");
        assert_eq!((session.stream().fed(), session.stream().held()), (position, 32.min(position)));
        let mut rows = Vec::new();
        while rows.len() < text.len() {
            let want = Want::All { forced: &[] };
            let fed = pollster::block_on(session.feed_one(&text[rows.len()..], want)).expect("fed");
            assert_eq!(fed.evicted.map(|range| range.start), Some(position + rows.len() as u64 - 28));
            rows.extend(fed.rows);
        }
        assert_eq!(session.cache_bytes(), session.cache_shape().bytes(32));
        rows
    };
    // The ring is at the same place every 28 tokens.
    let near = far(4 + 28 * 3, Positions::Slot, 1);
    assert_eq!(far(4 + 28 * 142_857, Positions::Slot, 1), near);
    assert_ne!(far(4 + 28 * 3, Positions::Slot, 2), near, "another seed");
    // The sinks alone are further away.
    assert_ne!(far(4 + 28 * 142_857, Positions::Stream, 1), near);

    let mut dense = Session::new(Rc::clone(&model), CacheSettings::new(Policy::Dense), 16).expect("fits");
    dense.pretend(1000, 1).expect("it fits");
    assert_eq!((dense.stream().held(), dense.slots()), (1000, 1024));
    assert!(matches!(dense.pretend(40_000, 1), Err(SessionError::DenseFull)));
    pollster::block_on(dense.feed_one(&[1], Want::Last { penalty: 1.0, penalized: &[] })).expect("fed");
    assert!(pollster::block_on(dense.nll_of(&[(0, 1)])).is_ok());
    dense.pretend(2000, 1).expect("it fits");
    assert!(pollster::block_on(dense.nll_of(&[(0, 1)])).is_err(), "the step before is gone");
    let recompute = CacheSettings::new(Policy::Recompute { recent: 20 });
    let mut recompute = Session::new(Rc::clone(&model), recompute, 16).expect("fits");
    recompute.pretend(4_000_000, 1).expect("it fits");
    let fed = pollster::block_on(recompute.feed_one(&[1], Want::All { forced: &[] })).expect("fed");
    assert_eq!((fed.evicted, fed.rows.len()), (Some(3_999_980..3_999_981), 1));
}

/// Cosines and sines of far positions, as computed with forty digits.
#[test]
#[rustfmt::skip]
fn far_angles_are_right() {
    let (model, _) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    assert_eq!(model.config.heads.head_dim, 16);
    let expected: [(u64, [f64; 16]); 2] = [
        (
            4_000_000,
            [
                0.140_077_47, 0.579_714_45, 0.989_789_25, -0.398_059_97, 0.322_587_47, 0.490_077_8, -0.729_946_96, -0.407_779_62,
                -0.990_140_54, -0.814_819_7, -0.142_538_53, -0.917_359_39, 0.946_539_65, 0.871_678_69, -0.683_503_79, 0.913_080_37,
            ],
        ),
        (
            4_000_003,
            [
                0.001_052_99, 0.999_993_02, 0.987_704_8, -0.309_372_17, 0.294_050_39, 0.481_786_4, -0.727_893_16, -0.408_645_66,
                0.999_999_44, -0.003_734_81, 0.156_330_46, -0.950_941_03, 0.955_789_91, 0.876_288_68, -0.685_690_55, 0.912_693_11,
            ],
        ),
    ];
    for (position, expected) in expected {
        for (angle, expected) in model.config.rotation(position).into_iter().zip(expected) {
            assert!((f64::from(angle) - expected).abs() < 1e-7, "{position}: {angle}, not {expected}");
        }
    }
}
