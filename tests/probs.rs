//! The probs of one layer and head, on request.

use kernels::Storage;
use model::LayerHead;
use model::config::Config;
use model::device::Place;
use model::generate::{Conversation, Event, Text};
use model::lanes::{Lanes, Source};
use model::sampler::Settings;
use model::session::{CacheSettings, Fed, LaneFeed, LaneView, Model, Session, Softmax, Turns, Want};
use policy::{Packing, Policy, Positions};
use std::rc::Rc;
use tests::{Random, Tiny, load};

/// Lanes of every kind of cache, of capacities far apart, so that no two have their probs at like places by chance.
pub fn lanes() -> Vec<CacheSettings> {
    let sinks = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 28 });
    let packing = Packing { group: 8, tail: 16, exact: 4 };
    let packed = |settings: CacheSettings, keys, values| CacheSettings { keys, values, packing, ..settings };
    vec![
        sinks,
        CacheSettings::new(Policy::Dense).stored_as(Storage::F32),
        packed(sinks, Storage::INT4, Storage::INT4),
        CacheSettings { positions: Positions::Stream, ..CacheSettings::new(Policy::Sinks { sinks: 9, recent: 90 }) },
        packed(CacheSettings::new(Policy::Window { recent: 21 }), Storage::INT8, Storage::BF16),
        CacheSettings { softmax: Softmax::One, ..sinks }.stored_as(Storage::BF16),
        CacheSettings { turns: Some(Turns { opening: 7, pinned: 6 }), zero_sinks: true, ..sinks },
        packed(CacheSettings::new(Policy::Dense), Storage::INT2, Storage::INT2),
    ]
}

/// The probs of a feed's last row, which sees `held` keys, once they agree with what else is reported of that row.
pub fn probs_of(fed: &Fed, lane: LaneView<'_>, held: u64, config: &Config, asked: LayerHead) -> Vec<f32> {
    let settings = lane.settings();
    let (row, before) = fed.rows.split_last().expect("a row is reported");
    assert!(before.iter().all(|row| row.probs.is_none()), "only the last row has probs");
    let probs = row.probs.clone().expect("probs were asked for");
    let what = format!("{settings:?}, {asked:?}, {held} held");
    assert_eq!(probs.len() as u64, held, "{what}");
    assert!(probs.iter().all(|p| (0.0..=1.0).contains(p)), "{what}: {probs:?}");
    let sum = |n: usize| probs.iter().take(n).map(|p| f64::from(*p)).sum::<f64>();
    let at = asked.layer * config.heads.n_heads + asked.head;
    let sinks = lane.stream().sinks() as usize;
    for (n, mass) in [(sinks, row.sink_mass[at]), (4, row.first_mass[at])] {
        assert!((sum(n) - f64::from(mass)).abs() < 1e-5, "{what}: the first {n} have {}, not {mass}", sum(n));
    }
    match settings.softmax {
        Softmax::Plain => assert!((sum(probs.len()) - 1.0).abs() < 1e-5, "{what}: {} in all", sum(probs.len())),
        Softmax::One => assert!(sum(probs.len()) < 1.0, "{what}: nothing is left for the extra logit"),
    }
    probs
}

/// Another head for each step.
pub fn ask_in_turn(step: usize, config: &Config) -> LayerHead {
    LayerHead { layer: step % config.layers, head: step / 2 % config.heads.n_heads }
}

fn tiny() -> Rc<Model> {
    load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads").0
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(40) as u32).collect()
}

#[test]
fn probs_agree_with_the_masses_in_every_cache() {
    let model = tiny();
    let tokens = tokens(21, 150);
    for settings in lanes().into_iter().chain([CacheSettings::new(Policy::Recompute { recent: 19 })]) {
        for chunk in [1, 7, 40] {
            let mut session = Session::new(Rc::clone(&model), settings, chunk).expect("the settings fit");
            let mut fed = 0;
            for step in 0.. {
                if fed == tokens.len() {
                    break;
                }
                let asked = ask_in_turn(step, &model.config);
                session.ask(Some(asked)).expect("the head is there");
                let want = if step % 3 == 0 { Want::Nothing } else { Want::All { forced: &tokens[fed + 1..] } };
                let piece = pollster::block_on(session.feed_one(&tokens[fed..], want)).expect("fed");
                fed += piece.taken;
                // What is read again sees the last tokens alone.
                let held = match settings.policy {
                    Policy::Recompute { recent } => u64::from(recent).min(fed as u64),
                    _ => session.stream().held(),
                };
                if matches!(settings.policy, Policy::Recompute { .. }) && piece.rows.len() > 1 {
                    assert!(piece.rows.iter().all(|row| row.probs.is_some()), "each row is the last of a forward");
                } else {
                    probs_of(&piece, session.lane(0), held, &model.config, asked);
                }
            }
        }
    }
}

#[test]
fn a_chunk_and_its_tokens_have_the_same_probs() {
    let model = tiny();
    let tokens = tokens(22, 120);
    let asked = LayerHead { layer: 1, head: 3 };
    let settings = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 50 }).stored_as(Storage::F32);
    let [single, whole] = [1, 40].map(|chunk| {
        let mut session = Session::new(Rc::clone(&model), settings, chunk).expect("the settings fit");
        session.ask(Some(asked)).expect("the head is there");
        let mut last = Vec::new();
        for fed in (0..tokens.len()).step_by(chunk) {
            let piece = pollster::block_on(session.feed_one(&tokens[fed..], Want::Nothing)).expect("fed");
            let held = session.stream().held();
            last.push(probs_of(&piece, session.lane(0), held, &model.config, asked));
        }
        last
    });
    for (whole, single) in whole.iter().zip(single.iter().skip(39).step_by(40)) {
        let worst = whole.iter().zip(single).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(whole.len() == single.len() && worst < 3e-4, "{worst}");
    }
}

#[test]
fn lanes_beside_each_other_each_have_their_probs() {
    let model = tiny();
    let settings = lanes();
    let texts: Vec<Vec<u32>> = (0..settings.len()).map(|lane| tokens(30 + lane as u64, 300)).collect();
    let mut session = Session::with_lanes(Rc::clone(&model), &settings, 160).expect("the lanes fit");
    let mut done = vec![0; texts.len()];
    for step in 0..60 {
        let asked = ask_in_turn(step, &model.config);
        session.ask(Some(asked)).expect("the head is there");
        let take = if step < 20 { 1 } else { 30 };
        // One lane rests, another one at each step.
        let feeds: Vec<LaneFeed<'_>> = (0..texts.len())
            .filter(|lane| lane % 8 != step % 8 && done[*lane] < texts[*lane].len())
            .map(|lane| {
                let rest = &texts[lane][done[lane]..];
                LaneFeed { lane, tokens: &rest[..take.min(rest.len())], want: Want::Nothing }
            })
            .collect();
        let fed = pollster::block_on(session.feed(&feeds)).expect("fed");
        for (feed, fed) in feeds.iter().zip(&fed) {
            done[feed.lane] += fed.taken;
            let lane = session.lane(feed.lane);
            probs_of(fed, lane, lane.stream().held(), &model.config, asked);
        }
    }
    assert!(done.iter().all(|done| *done > 200), "{done:?}");
}

#[test]
fn nobody_asks_or_asks_for_what_is_not_there() {
    let model = tiny();
    let mut session = Session::new(model, CacheSettings::new(Policy::Dense), 8).expect("the settings fit");
    let probs = |session: &mut Session| {
        let fed = pollster::block_on(session.feed_one(&[7, 8, 9], Want::Nothing)).expect("fed");
        fed.rows.last().expect("a row").probs.clone()
    };
    assert_eq!(probs(&mut session), None);
    let mut refused = |layer, head| {
        let refusal = session.ask(Some(LayerHead { layer, head })).expect_err("there is no such head");
        refusal.to_string()
    };
    assert_eq!(
        refused(2, 0),
        "there is no head 0 in layer 2: this model has 2 layers of 4 heads, and the first of each is 0"
    );
    assert!(refused(1, 4).contains("no head 4 in layer 1"));
    assert_eq!(probs(&mut session), None, "what is refused changes nothing");
    session.ask(Some(LayerHead { layer: 1, head: 3 })).expect("the last head");
    assert_eq!(probs(&mut session).map(|probs| probs.len()), Some(9));
    session.ask(Some(LayerHead { layer: 9, head: 9 })).expect_err("there is no such head");
    assert_eq!(probs(&mut session).map(|probs| probs.len()), Some(12), "what was asked before stays");
    session.ask(None).expect("nothing is always there");
    assert_eq!(probs(&mut session), None);
}

#[test]
fn conversations_and_lanes_pass_them_on() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("the file has a tokenizer");
    let settings = CacheSettings::new(Policy::Sinks { sinks: 4, recent: 28 });
    let session = Session::new(Rc::clone(&model), settings, 16).expect("the settings fit");
    let mut conversation = Conversation::new(session);
    conversation.send(&text, "Hello?", &Settings::default(), 4).expect("sent");
    let (mut asked, mut steps) = (None, [0; 2]);
    loop {
        conversation.ask(asked).expect("the head is there");
        let event = pollster::block_on(conversation.step(&text)).expect("a step");
        let held = conversation.session().stream().held() as usize;
        let probs = match event {
            Event::Prompt { probs, .. } => {
                steps[0] += 1;
                probs
            }
            Event::Token { probs, .. } => {
                steps[1] += 1;
                probs
            }
            Event::End { .. } => break,
        };
        assert_eq!(probs.map(|probs| probs.len()), asked.map(|_| held));
        asked = if asked.is_none() { Some(LayerHead { layer: 0, head: 2 }) } else { None };
    }
    assert!(steps[0] >= 2 && steps[1] >= 2, "{steps:?}");
    assert!(conversation.ask(Some(LayerHead { layer: 0, head: 4 })).is_err());

    let session = Session::with_lanes(model, &[settings, CacheSettings::new(Policy::Dense)], 2).expect("the lanes fit");
    let sources = vec![Source::Forced(tokens(23, 50)), Source::Follow(0)];
    let mut lanes = Lanes::new(session, sources).expect("each has a source");
    lanes.ask(Some(LayerHead { layer: 1, head: 0 })).expect("the head is there");
    for fed in 1..=50u64 {
        let steps = pollster::block_on(lanes.step()).expect("a step");
        let lengths =
            steps.into_iter().map(|step| step.and_then(|step| step.probs).map_or(0, |probs| probs.len() as u64));
        assert_eq!(lengths.collect::<Vec<_>>(), [fed.min(32), fed]);
    }
}
