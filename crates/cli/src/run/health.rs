//! How a lane does: whether it repeats itself, or has lost the thread. By the rules, and the numbers, of `web/src/run.ts`.

use super::{Lane, Mode, Run};
use std::collections::{BTreeSet, VecDeque};

/// Tokens that are looked at for repetition, and of a rolling loss.
const LAST: usize = 64;
/// Tokens of a phrase.
const PHRASE: usize = 4;
/// Letters of a word that is none, and of one that is suspicious: two of those within so many tokens.
const LETTERS: usize = 18;
const MANY_LETTERS: usize = 16;
const NEAR: usize = 128;
/// A forced lane is lost when its rolling loss has been so many nats above the reference lane's for so many tokens.
const BEHIND: f64 = 0.7;
const RUNNING: usize = 64;

/// What is the matter with a lane, and from which token on; none if nothing is, or the run doesn't tell.
pub fn health(run: &Run, number: usize) -> Option<(&'static str, usize)> {
    let lane = run.lanes.get(number)?;
    match run.mode {
        // A lane that recomputes skips most positions: its losses are too few for a mean.
        Mode::Forced if run.every == 1 && lane.settings.policy != "recompute" => {
            let reference = reference(run).filter(|reference| *reference != number)?;
            lost(lane, &run.lanes[reference]).map(|at| ("losing the thread", at))
        }
        Mode::Forced => None,
        Mode::Free => {
            let tokens = lane.tokens.as_deref()?;
            let repeats = repeats(tokens).map(|at| ("repeating itself", at));
            let babbles = babbles(run, tokens).map(|at| ("losing the thread", at));
            [repeats, babbles].into_iter().flatten().min_by_key(|(_, at)| *at)
        }
    }
}

/// The lane that losses are compared with: dense, or else sinks.
pub fn reference(run: &Run) -> Option<usize> {
    let first = |policy: &str| run.lanes.iter().position(|lane| lane.settings.policy == policy);
    first("dense").or_else(|| first("sinks"))
}

/// Where fewer than half of the phrases among the last tokens are different ones.
fn repeats(tokens: &[u32]) -> Option<usize> {
    let phrases = LAST - PHRASE + 1;
    let window = |last: &[u32]| last.windows(PHRASE).collect::<BTreeSet<_>>().len() * 2 < phrases;
    tokens.windows(LAST).position(window).map(|at| at + LAST - 1)
}

/// Where a run of letters is too long for a word. Of Latin script alone.
fn babbles(run: &Run, tokens: &[u32]) -> Option<usize> {
    let mut letters = 0;
    let mut long: VecDeque<usize> = VecDeque::new();
    for (at, id) in tokens.iter().enumerate() {
        let bytes = run.vocab.get(id).and_then(super::TokenText::bytes).unwrap_or_default();
        for letter in String::from_utf8_lossy(&bytes).chars() {
            // Up to the end of Latin Extended-B.
            letters = if letter.is_alphabetic() && letter < '\u{250}' { letters + 1 } else { 0 };
            if letters == MANY_LETTERS {
                long.push_back(at);
            }
            while long.front().is_some_and(|first| first + NEAR <= at) {
                long.pop_front();
            }
            if letters >= LETTERS || long.len() >= 2 {
                return Some(at);
            }
        }
    }
    None
}

/// Where the rolling loss has been too far above the reference's for long enough.
fn lost(lane: &Lane, reference: &Lane) -> Option<usize> {
    let mut last: VecDeque<f64> = VecDeque::with_capacity(LAST);
    let mut running = 0;
    for (at, (own, other)) in lane.nll.iter().zip(&reference.nll).enumerate() {
        let (Some(own), Some(other)) = (own, other) else { continue };
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(own - other);
        let behind = last.len() == LAST && last.iter().sum::<f64>() / LAST as f64 >= BEHIND;
        running = if behind { running + 1 } else { 0 };
        if running == RUNNING {
            // The loss is of the token after.
            return Some(at + 1);
        }
    }
    None
}
