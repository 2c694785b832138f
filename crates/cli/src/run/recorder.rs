//! Makes the columns of a lane, token by token.

use super::{BASE64, Keys, Lane, LossRange, Parts, Ramp, Sampled, SampledHeads, rounded};
use base64::Engine as _;
use model::policy::{CacheShape, Policy, Stream};
use model::session::{CacheSettings, DENSE_SLOTS};
use model::words::LaneWords;

/// Means over layers and heads are kept of every so many tokens.
const MASS_EVERY: usize = 8;
/// Tokens before and after a mark of which the likeliest next one is kept.
const BEST_BEFORE: usize = 4;
const BEST_AFTER: usize = 12;

/// What was seen of one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recorded<'a> {
    /// Attention on the sinks and on the first four slots, `[layers * n_heads]`; empty where it was not measured.
    pub sink_mass: &'a [f32],
    pub first_mass: &'a [f32],
    pub best: Option<(u32, f32)>,
    pub ms: Option<f64>,
}

/// One lane on its way.
pub struct LaneRecorder {
    words: LaneWords,
    keys: Option<Keys>,
    policy: Policy,
    /// A twin of the cache's own, which tells what each token finds.
    stream: Stream,
    shape: CacheShape,
    /// Tokens of the sinks' own text.
    own: u64,
    read: usize,
    first_left: Option<usize>,
    held: Ramp,
    capacity: Ramp,
    tail: Ramp,
    oldest: Ramp,
    bytes: Vec<(usize, Parts)>,
    ms: Vec<Option<f64>>,
    /// Of each token, where it was measured.
    sinks: Vec<Option<f64>>,
    firsts: Vec<Option<f64>>,
    heads_every: usize,
    heads_shape: [usize; 2],
    heads: Vec<u8>,
    best: Vec<(usize, u32, f64)>,
}

impl LaneRecorder {
    /// A cache of this shape that has read the sinks' text, if there is one, of `own` tokens; the attention of each head is
    /// kept of every `heads_every` tokens, never if that is 0.
    pub fn new(
        settings: CacheSettings,
        sink_text: Option<&str>,
        shape: CacheShape,
        own: usize,
        heads_every: usize,
        heads_shape: [usize; 2],
    ) -> Self {
        let mut stream = settings.stream();
        stream.feed(own as u32);
        Self {
            words: LaneWords::of(&settings, sink_text),
            keys: None,
            policy: settings.policy,
            stream,
            shape,
            own: own as u64,
            read: 0,
            first_left: None,
            held: Ramp::new(),
            capacity: Ramp::new(),
            tail: Ramp::new(),
            oldest: Ramp::new(),
            bytes: Vec::new(),
            ms: Vec::new(),
            sinks: Vec::new(),
            firsts: Vec::new(),
            heads_every,
            heads_shape,
            heads: Vec::new(),
            best: Vec::new(),
        }
    }

    /// The same lane with its keys packed as no cache does it.
    pub fn keys(self, keys: Option<Keys>) -> Self {
        Self { keys, ..self }
    }

    /// The lane has read one more token.
    pub fn read(&mut self, seen: Recorded<'_>) {
        let i = self.read;
        self.read += 1;
        for view in self.stream.feed(1).views {
            if view.evicted.is_some() && self.first_left.is_none() {
                self.first_left = Some(i);
            }
            push(&mut self.oldest, i, view.first as i64 - self.own as i64);
        }
        let fed = self.stream.fed();
        let held = self.stream.held();
        push(&mut self.held, i, held as i64);
        let capacity = self.policy.capacity().unwrap_or_else(|| DENSE_SLOTS.max(fed.next_power_of_two()));
        push(&mut self.capacity, i, capacity as i64);
        let sinks = fed.min(self.stream.sinks().into());
        let tail = if self.shape.packs() { fed.saturating_sub(self.stream.packed()).min(held - sinks) } else { 0 };
        push(&mut self.tail, i, tail as i64);
        let parts = self.shape.parts(capacity).into();
        if self.bytes.last().is_none_or(|last| last.1 != parts) {
            self.bytes.push((i, parts));
        }
        let mean = |mass: &[f32]| {
            (!mass.is_empty()).then(|| mass.iter().map(|share| f64::from(*share)).sum::<f64>() / mass.len() as f64)
        };
        self.sinks.push(mean(seen.sink_mass).filter(|_| self.stream.sinks() > 0));
        self.firsts.push(mean(seen.first_mass));
        self.ms.push(seen.ms);
        if self.heads_every > 0 && self.read.is_multiple_of(self.heads_every) {
            let heads = if self.stream.sinks() > 0 { seen.sink_mass } else { seen.first_mass };
            let share = |share: &f32| (share * 255.0).round().clamp(0.0, 255.0) as u8;
            self.heads.extend(heads.iter().map(share));
        }
        self.best.extend(seen.best.map(|(id, p)| (i, id, rounded(p.into(), 4))));
    }

    /// The token with which the first left.
    pub fn first_left(&self) -> Option<usize> {
        self.first_left
    }

    /// The lane, with its losses, the positions at which something happened in any lane, and the ranges it is about. Losses
    /// are told as means of `every`.
    pub fn finish(
        self,
        tokens: Option<Vec<u32>>,
        ended: bool,
        losses: &[Option<f64>],
        every: usize,
        marks: &[usize],
        ranges: &[(usize, usize)],
    ) -> Lane {
        let mean = |losses: &[Option<f64>]| {
            let measured: Vec<f64> = losses.iter().filter_map(|nll| *nll).collect();
            (!measured.is_empty()).then(|| rounded(measured.iter().sum::<f64>() / measured.len() as f64, 4) + 0.0)
        };
        let near =
            |i: usize| marks.iter().any(|mark| (*mark..mark + BEST_BEFORE + BEST_AFTER).contains(&(i + BEST_BEFORE)));
        let mut summary = vec![LossRange::of(losses, 0, losses.len())];
        summary.extend(ranges.iter().map(|(from, to)| LossRange::of(losses, *from, *to)));
        let whole = self.heads_shape[0] * self.heads_shape[1];
        let heads = (self.heads_every > 0 && self.heads.len() == self.read / self.heads_every * whole)
            .then(|| SampledHeads { every: self.heads_every, shape: self.heads_shape, u8: BASE64.encode(&self.heads) });
        Lane {
            name: match self.keys {
                None => self.words.name(),
                Some(Keys::ByToken) => self.words.name() + " keys by token",
                Some(Keys::Rotated) => self.words.name() + " keys rotated",
            },
            settings: self.words,
            keys: self.keys,
            tokens,
            ended,
            nll: losses.chunks(every).map(mean).collect(),
            ms: sampled(&self.ms, 1, 2),
            held: self.held,
            capacity: self.capacity,
            tail: self.tail,
            oldest: self.oldest,
            bytes: self.bytes,
            sink_mass: sampled(&self.sinks, MASS_EVERY * every, 3),
            first_mass: sampled(&self.firsts, MASS_EVERY * every, 3),
            heads,
            best: self.best.into_iter().filter(|(i, ..)| near(*i)).collect(),
            summary,
        }
    }
}

/// The values of every `least` tokens, or of as many as lie between the first two that were measured; none if none was.
fn sampled(values: &[Option<f64>], least: usize, decimals: i32) -> Option<Sampled> {
    let first = values.iter().position(Option::is_some)?;
    let every = (first + 1).max(least);
    let values = values.chunks_exact(every).map(|chunk| chunk.last().copied().flatten());
    Some(Sampled { every, values: values.map(|value| value.map(|value| rounded(value, decimals))).collect() })
}

/// Goes on with a ramp, whose last entry may still be without a step.
fn push(ramp: &mut Ramp, i: usize, value: i64) {
    let i = i as i64;
    match ramp.last_mut() {
        Some([at, from, step]) if *from + *step * (i - *at) == value => {}
        Some([at, from, step]) if *step == 0 && i == *at + 1 => *step = value - *from,
        _ => ramp.push([i, value, 0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader makes of a ramp: `Ramp` of `run.d.ts`, word for word.
    fn at(ramp: &Ramp, j: i64) -> i64 {
        let [i, value, step] = ramp.iter().rev().find(|entry| entry[0] <= j).expect("an entry");
        value + step * (j - i)
    }

    #[test]
    fn ramps_give_back_what_was_pushed() {
        let numbers: [&[i64]; 4] = [
            &[1, 2, 3, 4, 5, 5, 5, 5],
            &[0, 0, 0, 1, 2, 3, 0, 1, 2, 3, 0],
            &[4, 4, 4, 5, 6, 7, 8],
            &[256, 256, 256, 512, 512, 9],
        ];
        for numbers in numbers {
            let mut ramp = Ramp::new();
            numbers.iter().enumerate().for_each(|(i, number)| push(&mut ramp, i, *number));
            let back: Vec<i64> = (0..numbers.len()).map(|i| at(&ramp, i as i64)).collect();
            assert_eq!(back, numbers);
            assert!(ramp.len() < numbers.len() / 2 + 1, "{ramp:?}");
        }
    }

    #[test]
    fn what_was_measured_here_and_there_is_sampled_so() {
        let some = |at: usize| (at % 4 == 3).then_some(at as f64 / 8.0);
        let values: Vec<Option<f64>> = (0..18).map(some).collect();
        let expected = Sampled { every: 4, values: vec![Some(0.38), Some(0.88), Some(1.38), Some(1.88)] };
        assert_eq!(sampled(&values, 1, 2), Some(expected));
        assert_eq!(sampled(&[None, None], 1, 2), None);
        let all: Vec<Option<f64>> = (0..5).map(|i| Some(f64::from(i))).collect();
        assert_eq!(sampled(&all, 2, 0).map(|all| all.values), Some(vec![Some(1.0), Some(3.0)]));
    }
}
