//! The next token, drawn from the model's best candidates.
//!
//! The model's last kernel gives the log-sum-exp of all its logits and the 64 best of them, after the
//! repetition penalty. The order of what follows is fixed: `top_k`, `top_p`, `min_p`, temperature,
//! draw. `top_p` and `min_p` look at the probabilities that the model itself gives, over the whole
//! vocabulary and at temperature 1. So what they keep does not depend on the temperature: a high
//! one makes the kept tokens more alike and lets no others in.
//!
//! The same seed gives the same tokens wherever the logits are the same. Weights are `f64`, whose
//! `exp` may differ in the last bit between platforms: a draw within 1e-15 of a border between two
//! tokens could fall on the other side, about once in 1e13 draws.

use crate::session::Want;
use std::collections::VecDeque;

/// Candidates that the model gives, and so the largest `top_k`.
pub const MAX_CANDIDATES: usize = 64;
/// Largest number of last tokens that the repetition penalty looks at.
pub const MAX_PENALTY_LAST: usize = 64;

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Logits are divided by it. 0 takes the best token every time.
    pub temperature: f32,
    /// Only the best `top_k` tokens; 0 means [`MAX_CANDIDATES`].
    pub top_k: usize,
    /// Only the fewest best tokens whose probabilities reach `top_p` together; 1 keeps all.
    pub top_p: f32,
    /// Only tokens at least `min_p` times as probable as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides the logit of a recent token if it is positive, multiplies it if not; 1 is none.
    pub repetition_penalty: f32,
    /// How many last tokens the penalty is for.
    pub penalty_last: usize,
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalty_last: MAX_PENALTY_LAST,
            seed: 0,
        }
    }
}

impl Settings {
    /// The best token every time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    fn check(&self) -> Result<(), SamplerError> {
        let bad = |name, value: f64, range| Err(SamplerError::Setting { name, value, range });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return bad("temperature", self.temperature.into(), "0 or more");
        }
        if self.top_k > MAX_CANDIDATES {
            return bad("top_k", self.top_k as f64, "from 0 to 64");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p", self.top_p.into(), "more than 0 and at most 1");
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return bad("min_p", self.min_p.into(), "from 0 to 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty >= 1.0) {
            return bad("repetition_penalty", self.repetition_penalty.into(), "1 or more");
        }
        if self.penalty_last > MAX_PENALTY_LAST {
            return bad("penalty_last", self.penalty_last as f64, "from 0 to 64");
        }
        Ok(())
    }
}

/// Why there is no sampler, or no token.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplerError {
    #[error("{name} is {value}: use {range}")]
    Setting { name: &'static str, value: f64, range: &'static str },
    #[error(
        "the model gave no token to choose from, or numbers that are none: the device computes wrongly, use the CPU"
    )]
    Candidates,
}

/// A token and what it was worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub id: u32,
    /// -ln of the probability that the model gave the token, in nats, before any filter and at
    /// temperature 1; where the penalty touched the token, of its penalised logit.
    pub nll: f32,
    /// The probability with which this draw took it: 1 for the only token left.
    pub prob: f32,
}

/// Chooses tokens. One per stream.
pub struct Sampler {
    settings: Settings,
    random: SplitMix64,
    /// The last tokens, oldest first.
    recent: VecDeque<u32>,
    /// The different ones among them.
    penalty_ids: Vec<u32>,
    /// Of the candidates that are left; kept for its allocation.
    weights: Vec<f64>,
}

impl Sampler {
    pub fn new(settings: Settings) -> Result<Self, SamplerError> {
        settings.check()?;
        Ok(Self {
            settings,
            random: SplitMix64(settings.seed),
            recent: VecDeque::with_capacity(MAX_PENALTY_LAST),
            penalty_ids: Vec::with_capacity(MAX_PENALTY_LAST),
            weights: Vec::with_capacity(MAX_CANDIDATES),
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tells the sampler of a token of the stream, of the prompt or chosen, for the penalty.
    pub fn accept(&mut self, id: u32) {
        if self.settings.penalty_last == 0 {
            return;
        }
        if self.recent.len() == self.settings.penalty_last {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
        self.penalty_ids.clear();
        for id in &self.recent {
            if !self.penalty_ids.contains(id) {
                self.penalty_ids.push(*id);
            }
        }
    }

    /// The tokens that the model must penalise at its next step: each once, 64 at most.
    pub fn penalty_ids(&self) -> &[u32] {
        &self.penalty_ids
    }

    /// Chooses from `candidates`: ids and logits after the penalty, best first, equal ones by id.
    /// `lse` is the log-sum-exp of all logits, before it. Does not [`accept`](Self::accept).
    ///
    /// # Errors
    /// If there are no candidates, if they are not in order, or if a number is none.
    pub fn sample(&mut self, lse: f32, candidates: &[(u32, f32)]) -> Result<Choice, SamplerError> {
        let ordered = candidates.is_sorted_by(|(id, logit), (next_id, next_logit)| {
            logit > next_logit || (logit == next_logit && id < next_id)
        });
        let (best, worst) = match candidates {
            [best, .., worst] => (best.1, worst.1),
            [only] => (only.1, only.1),
            [] => return Err(SamplerError::Candidates),
        };
        // Sorted, so that no number between the two is a NaN.
        if !ordered || !lse.is_finite() || !best.is_finite() || worst.is_nan() {
            return Err(SamplerError::Candidates);
        }

        let kept = match self.settings.temperature {
            0.0 => 1,
            _ => self.kept(lse, candidates),
        };
        let temperature = f64::from(self.settings.temperature);
        self.weights.clear();
        self.weights.extend(candidates.iter().take(kept).map(|(_, logit)| match *logit == best {
            // At temperature 0 nothing else is left, and 0/0 is not 1.
            true => 1.0,
            false => ((f64::from(*logit) - f64::from(best)) / temperature).exp(),
        }));
        let total: f64 = self.weights.iter().sum();
        let index = if kept == 1 { 0 } else { draw(&self.weights, self.random.unit() * total) };
        let (id, logit) = candidates[index];
        Ok(Choice { id, nll: lse - logit, prob: (self.weights[index] / total) as f32 })
    }

    /// -ln p of a choice as the model itself gave it, without the penalty, in nats.
    pub fn model_nll(&self, lse: f32, choice: &Choice) -> f32 {
        let penalty = self.settings.repetition_penalty;
        let logit = lse - choice.nll;
        match (self.penalty_ids.contains(&choice.id), logit > 0.0) {
            (false, _) => choice.nll,
            (true, true) => lse - logit * penalty,
            (true, false) => lse - logit / penalty,
        }
    }

    /// The likeliest of the candidates as the model itself gave them, without the penalty, and its probability; all of them
    /// but those that the penalty has pushed out.
    pub fn best(&self, lse: f32, candidates: &[(u32, f32)]) -> Option<(u32, f32)> {
        let nll = |id: u32, logit: f32| self.model_nll(lse, &Choice { id, nll: lse - logit, prob: 1.0 });
        let all = candidates.iter().map(|(id, logit)| (*id, (-nll(*id, *logit)).exp()));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What to ask of a feed after which this chooses.
    pub fn want(&self) -> Want<'_> {
        let penalty = self.settings.repetition_penalty;
        Want::Last { penalty, penalized: if penalty == 1.0 { &[] } else { &self.penalty_ids } }
    }

    /// How many of the candidates the three filters leave: one at least.
    fn kept(&self, lse: f32, candidates: &[(u32, f32)]) -> usize {
        let Settings { top_k, top_p, min_p, .. } = self.settings;
        let top_k = if top_k == 0 { MAX_CANDIDATES } else { top_k };
        let prob = |logit: f32| (f64::from(logit) - f64::from(lse)).exp();
        let least = f64::from(min_p) * candidates.first().map_or(0.0, |(_, logit)| prob(*logit));
        let mut reached = 0.0;
        let mut kept = 0;
        for (_, logit) in candidates.iter().take(top_k) {
            let prob = prob(*logit);
            if kept > 0 && (reached >= f64::from(top_p) || prob < least) {
                break;
            }
            reached += prob;
            kept += 1;
        }
        kept
    }
}

/// The first index at which the weights add up to more than `point`; never one of weight 0.
fn draw(weights: &[f64], point: f64) -> usize {
    let mut reached = 0.0;
    let mut last = 0;
    for (index, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        reached += weight;
        last = index;
        if point < reached {
            break;
        }
    }
    last
}

/// Steele, Lea and Flood's SplitMix64 (2014): a counter through a mixer. Small, the same everywhere,
/// and more than good enough to choose words; not for secrets.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to less than 1, in steps of 2^-53.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
