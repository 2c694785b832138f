//! Each rule on an example that is worked by hand.

use super::*;

/// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 of tokens 10, 11, 12, 13, 14, and their log-sum-exp.
fn halves() -> (f32, Vec<(u32, f32)>) {
    let lse = 3.0;
    let probs = [0.5f32, 0.25, 0.125, 0.0625, 0.0625];
    (lse, (10..).zip(probs.map(|prob| prob.ln() + lse)).collect())
}

/// How many of `halves` are left, from the ids that 2,000 draws at temperature 1 give.
#[track_caller]
fn left(change: impl FnOnce(&mut Settings)) -> usize {
    let mut settings = Settings { temperature: 1.0, top_p: 1.0, ..Settings::default() };
    change(&mut settings);
    let mut sampler = Sampler::new(settings).unwrap();
    let (lse, candidates) = halves();
    let mut seen: Vec<u32> = (0..2000).map(|_| sampler.sample(lse, &candidates).unwrap().id).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (10..10 + seen.len() as u32).collect::<Vec<_>>(), "the best ones");
    seen.len()
}

#[test]
fn greedy_takes_the_first() {
    let mut sampler = Sampler::new(Settings::greedy()).unwrap();
    let (lse, candidates) = halves();
    for _ in 0..100 {
        let choice = sampler.sample(lse, &candidates).unwrap();
        assert_eq!((choice.id, choice.prob), (10, 1.0));
        assert!((choice.nll - std::f32::consts::LN_2).abs() < 1e-6);
    }
    // Equal logits come by id, and the first is taken.
    assert_eq!(sampler.sample(0.0, &[(3, -1.0), (7, -1.0)]).unwrap().id, 3);
}

#[test]
fn top_k() {
    assert_eq!(left(|settings| settings.top_k = 1), 1);
    assert_eq!(left(|settings| settings.top_k = 3), 3);
    assert_eq!(left(|settings| settings.top_k = 0), 5);
    assert_eq!(left(|settings| settings.top_k = 64), 5);
}

#[test]
fn top_p() {
    // 0.5; 0.75; 0.875; 0.9375; 1. Rounding of f32 logits is far below the steps between.
    assert_eq!(left(|settings| settings.top_p = 0.01), 1);
    assert_eq!(left(|settings| settings.top_p = 0.49), 1);
    assert_eq!(left(|settings| settings.top_p = 0.51), 2);
    assert_eq!(left(|settings| settings.top_p = 0.8), 3);
    assert_eq!(left(|settings| settings.top_p = 0.93), 4);
    assert_eq!(left(|settings| settings.top_p = 0.99), 5);
}

#[test]
fn top_p_is_of_the_whole_vocabulary() {
    // Two candidates with 0.3 and 0.2; the rest of the vocabulary has the other half. Together they
    // do not reach 0.6, so both stay; of the two alone, the first would have been 0.6 already.
    let settings = Settings { temperature: 1.0, top_p: 0.55, ..Settings::default() };
    let mut sampler = Sampler::new(settings).unwrap();
    let candidates = [(1, 0.3f32.ln()), (2, 0.2f32.ln())];
    let seconds = (0..1000).filter(|_| sampler.sample(0.0, &candidates).unwrap().id == 2).count();
    assert!(seconds > 0);
}

#[test]
fn min_p() {
    // Relative to 0.5.
    assert_eq!(left(|settings| settings.min_p = 1.0), 1);
    assert_eq!(left(|settings| settings.min_p = 0.51), 1);
    assert_eq!(left(|settings| settings.min_p = 0.49), 2);
    assert_eq!(left(|settings| settings.min_p = 0.2), 3);
    assert_eq!(left(|settings| settings.min_p = 0.12), 5);
    assert_eq!(left(|settings| settings.min_p = 0.0), 5);
}

#[test]
fn filters_do_not_see_the_temperature() {
    // At temperature 100 the five are nearly alike, and at 0.01 all but the first vanish.
    assert_eq!(left(|settings| (settings.temperature, settings.top_p) = (100.0, 0.51)), 2);
    assert_eq!(left(|settings| (settings.temperature, settings.min_p) = (100.0, 0.2)), 3);
    assert_eq!(left(|settings| settings.temperature = 0.01), 1);
}

#[test]
fn frequencies() {
    // Temperature 2 takes the square root: 2 to 1 between one and the next but one.
    for (temperature, weights) in [(1.0, [8.0, 4.0, 2.0, 1.0, 1.0]), (2.0, [8f64, 4.0, 2.0, 1.0, 1.0].map(f64::sqrt))] {
        let mut sampler = Sampler::new(Settings { temperature, top_p: 1.0, seed: 1, ..Settings::default() }).unwrap();
        let (lse, candidates) = halves();
        let mut counts = [0; 5];
        for _ in 0..10_000 {
            let choice = sampler.sample(lse, &candidates).unwrap();
            let index = (choice.id - 10) as usize;
            counts[index] += 1;
            let expected = weights[index] / weights.iter().sum::<f64>();
            assert!((f64::from(choice.prob) - expected).abs() < 1e-6);
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            let prob = weight / weights.iter().sum::<f64>();
            // Four standard deviations.
            let bound = 4.0 * (10_000.0 * prob * (1.0 - prob)).sqrt();
            assert!((f64::from(count) - 10_000.0 * prob).abs() < bound, "{count} of 10,000 at {prob}");
        }
    }
}

#[test]
fn a_seed_is_a_text() {
    let ids = |seed| {
        let mut sampler = Sampler::new(Settings { temperature: 1.0, top_p: 1.0, seed, ..Settings::default() }).unwrap();
        let (lse, candidates) = halves();
        (0..50).map(|_| sampler.sample(lse, &candidates).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(ids(7), ids(7));
    assert_ne!(ids(7), ids(8));
}

#[test]
fn random_numbers_as_published() {
    // The first outputs of the authors' program for seed 1234567.
    let mut random = SplitMix64(1_234_567);
    let published = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
    ];
    assert_eq!(published.map(|_| random.next()), published);
}

#[test]
fn the_end_of_the_draw_is_a_token_with_weight() {
    assert_eq!(draw(&[0.5, 0.5], 0.0), 0);
    assert_eq!(draw(&[0.5, 0.5], 0.5), 1);
    assert_eq!(draw(&[0.0, 1.0], 0.0), 1);
    // Where rounding puts the point at the very end.
    assert_eq!(draw(&[0.5, 0.5, 0.0], 1.0), 1);
}

#[test]
fn recent_tokens() {
    let mut sampler = Sampler::new(Settings { penalty_last: 3, ..Settings::default() }).unwrap();
    let mut life = Vec::new();
    for id in [5, 5, 6, 7, 8, 7] {
        sampler.accept(id);
        life.push(sampler.penalty_ids().to_vec());
    }
    let expected: [&[u32]; 6] = [&[5], &[5], &[5, 6], &[5, 6, 7], &[6, 7, 8], &[7, 8]];
    assert_eq!(life, expected);

    let mut none = Sampler::new(Settings { penalty_last: 0, ..Settings::default() }).unwrap();
    none.accept(5);
    assert!(none.penalty_ids().is_empty());

    let mut many = Sampler::new(Settings::default()).unwrap();
    (0..1000).for_each(|id| many.accept(id));
    assert_eq!(many.penalty_ids(), (936..1000).collect::<Vec<_>>());
}

#[test]
fn bad_settings() {
    let refused = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        Sampler::new(settings).err().map(|error| error.to_string())
    };
    let is = |message: &str| Some(message.to_owned());
    assert_eq!(refused(|settings| settings.temperature = -1.0), is("temperature is -1: use 0 or more"));
    assert_eq!(refused(|settings| settings.temperature = f32::NAN), is("temperature is NaN: use 0 or more"));
    assert_eq!(refused(|settings| settings.temperature = f32::INFINITY), is("temperature is inf: use 0 or more"));
    assert_eq!(refused(|settings| settings.top_k = 65), is("top_k is 65: use from 0 to 64"));
    assert_eq!(refused(|settings| settings.top_p = 0.0), is("top_p is 0: use more than 0 and at most 1"));
    assert_eq!(refused(|settings| settings.top_p = 1.5), is("top_p is 1.5: use more than 0 and at most 1"));
    assert_eq!(refused(|settings| settings.top_p = f32::NAN), is("top_p is NaN: use more than 0 and at most 1"));
    assert_eq!(refused(|settings| settings.min_p = -0.5), is("min_p is -0.5: use from 0 to 1"));
    assert_eq!(refused(|settings| settings.min_p = f32::NAN), is("min_p is NaN: use from 0 to 1"));
    assert_eq!(refused(|settings| settings.repetition_penalty = 0.5), is("repetition_penalty is 0.5: use 1 or more"));
    assert_eq!(refused(|settings| settings.penalty_last = 65), is("penalty_last is 65: use from 0 to 64"));
    assert_eq!(refused(|_| {}), None);
}

#[test]
fn bad_numbers_from_the_model() {
    let mut sampler = Sampler::new(Settings::default()).unwrap();
    let mut refused = |lse, candidates: &[(u32, f32)]| sampler.sample(lse, candidates) == Err(SamplerError::Candidates);
    assert!(refused(0.0, &[]));
    assert!(refused(f32::NAN, &[(0, -1.0)]));
    assert!(refused(f32::INFINITY, &[(0, -1.0)]));
    assert!(refused(0.0, &[(0, f32::NAN)]));
    assert!(refused(0.0, &[(0, f32::INFINITY)]));
    assert!(refused(0.0, &[(0, f32::NEG_INFINITY)]));
    assert!(refused(0.0, &[(0, -1.0), (1, f32::NAN), (2, -2.0)]));
    assert!(refused(0.0, &[(0, -2.0), (1, -1.0)]), "not in order");
    assert!(refused(0.0, &[(1, -1.0), (0, -1.0)]), "equal ones not by id");
    // A token that cannot come is no error, and does not come.
    for _ in 0..100 {
        assert_eq!(sampler.sample(0.0, &[(0, -1.0), (1, f32::NEG_INFINITY)]).unwrap().id, 0);
    }
}
