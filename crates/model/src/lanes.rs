//! Streams side by side: every lane reads a token a step, all in one forward, and what each of them thought of it is told.
//!
//! A lane's next token is the next of a given text, the one that another lane reads, or one that it chooses itself.

use crate::sampler::{Sampler, SamplerError, Settings};
use crate::session::{Fed, LaneFeed, Session, SessionError, Want};
use kernels::step::LayerHead;
use std::ops::Range;

/// Who says what a lane reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A text, to its end.
    Forced(Vec<u32>),
    /// What that lane reads, at the same step.
    Follow(usize),
    /// A beginning, then what the lane itself chooses, until it chooses one of `ends`, which is not read, or has chosen
    /// `most`.
    Free { prompt: Vec<u32>, settings: Settings, ends: Vec<u32>, most: usize },
}

/// Why lanes cannot run.
#[derive(Debug, thiserror::Error)]
pub enum LanesError {
    #[error("{0}")]
    Session(#[from] SessionError),
    #[error("{0}")]
    Sampler(#[from] SamplerError),
    #[error("there are {sources} sources for {lanes} lanes: give each lane one")]
    Count { sources: usize, lanes: usize },
    #[error("lane {lane} follows lane {leader}, which leads nowhere: let it follow one that is forced or free")]
    Follow { lane: usize, leader: usize },
    #[error("lane {0} has no token to begin with: give it a text or a prompt")]
    Empty(usize),
    #[error("recompute keeps no sinks: leave out the text of its sinks, or use another policy")]
    RecomputeSinks,
    #[error("the sinks' text has {tokens} tokens and the cache {slots} slots: shorten it, or raise sinks or recent")]
    Sinks { tokens: usize, slots: u64 },
}

/// What a lane did in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneStep {
    /// The token that it read.
    pub token: u32,
    /// -ln p of that token, as the lane saw it before; none for the first.
    pub nll: Option<f32>,
    /// Stream indices that left the cache.
    pub evicted: Option<Range<u64>>,
    /// Attention on the sinks, `[layers * n_heads]`.
    pub sink_mass: Vec<f32>,
    /// Attention on the first four slots, `[layers * n_heads]`.
    pub first_mass: Vec<f32>,
    /// Attention of the layer and head that were asked for, on each slot in use.
    pub probs: Option<Vec<f32>>,
    /// Slots in use.
    pub held: u64,
    /// The token's own: the last of those.
    pub slot: u64,
    /// The likeliest next token by the model itself, and its probability.
    pub best: Option<(u32, f32)>,
    /// It was the lane's last.
    pub ended: bool,
    /// Milliseconds, where the lane was fed by itself.
    pub ms: Option<f64>,
}

/// Lanes at work.
pub struct Lanes {
    session: Session,
    lanes: Vec<Lane>,
}

struct Lane {
    voice: Voice,
    /// -ln p of the token that comes next.
    nll: Option<f32>,
}

/// What a lane gives the next token, where that is not known yet.
struct Logits {
    log_sum_exp: f32,
    candidates: Vec<(u32, f32)>,
}

enum Voice {
    Forced {
        text: Vec<u32>,
        at: usize,
    },
    /// The lane at the head of those that follow each other.
    Follow(usize),
    Free {
        prompt: Vec<u32>,
        at: usize,
        sampler: Box<Sampler>,
        ends: Vec<u32>,
        most: usize,
        chosen: Option<u32>,
    },
}

impl Voice {
    /// The token that is read `ahead` steps from now, as far as that is known.
    fn token(&self, ahead: usize) -> Option<u32> {
        match self {
            Self::Forced { text, at } => text.get(at + ahead).copied(),
            Self::Follow(_) => None,
            Self::Free { prompt, at, chosen, .. } => {
                let chosen = if at + ahead == prompt.len().max(*at) { *chosen } else { None };
                prompt.get(at + ahead).copied().or(chosen)
            }
        }
    }
}

impl Lanes {
    /// A source for each lane of `session`.
    ///
    /// # Errors
    /// Another number of sources, an empty text, lanes that follow each other in a circle, bad settings.
    pub fn new(session: Session, sources: Vec<Source>) -> Result<Self, LanesError> {
        if sources.len() != session.lanes() {
            return Err(LanesError::Count { sources: sources.len(), lanes: session.lanes() });
        }
        let heads: Vec<Option<usize>> = (0..sources.len()).map(|lane| head_of(&sources, lane)).collect();
        let mut lanes = Vec::new();
        for (lane, source) in sources.into_iter().enumerate() {
            let voice = match source {
                Source::Follow(leader) => Voice::Follow(heads[lane].ok_or(LanesError::Follow { lane, leader })?),
                Source::Forced(text) if !text.is_empty() => Voice::Forced { text, at: 0 },
                Source::Free { prompt, settings, ends, most } if !prompt.is_empty() => {
                    let sampler = Box::new(Sampler::new(settings)?);
                    Voice::Free { prompt, at: 0, sampler, ends, most, chosen: None }
                }
                Source::Forced(_) | Source::Free { .. } => return Err(LanesError::Empty(lane)),
            };
            lanes.push(Lane { voice, nll: None });
        }
        Ok(Self { session, lanes })
    }

    /// The model and the caches.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Asks for the probs of a layer and head from now on, or no longer.
    ///
    /// # Errors
    /// The model has no such layer or head.
    pub fn ask(&mut self, asked: Option<LayerHead>) -> Result<(), LanesError> {
        Ok(self.session.ask(asked)?)
    }

    /// Feeds one token to each lane that has one, all in one forward, and reports of each; none of a lane that is at its end.
    ///
    /// # Errors
    /// A token outside the vocabulary, a dense cache at its limit, a lost device.
    pub async fn step(&mut self) -> Result<Vec<Option<LaneStep>>, LanesError> {
        let tokens = self.tokens();
        let which: Vec<usize> = (0..tokens.len()).filter(|lane| tokens[*lane].is_some()).collect();
        let mut steps = self.read(&which, &tokens).await?;
        self.mark_ends(&mut steps);
        Ok(steps)
    }

    /// The same with each lane in a forward of its own, so that each has its time: the difference of two calls of `now`, in
    /// milliseconds.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn step_apart(&mut self, now: fn() -> f64) -> Result<Vec<Option<LaneStep>>, LanesError> {
        let tokens = self.tokens();
        let mut steps: Vec<Option<LaneStep>> = tokens.iter().map(|_| None).collect();
        // Those that follow come last, when it is known what they will read next.
        let follows = |lane: &usize| matches!(self.lanes[*lane].voice, Voice::Follow(_));
        let (last, mut order): (Vec<usize>, Vec<usize>) =
            (0..tokens.len()).filter(|lane| tokens[*lane].is_some()).partition(follows);
        order.extend(last);
        for lane in order {
            let started = now();
            steps[lane] = self.read(&[lane], &tokens).await?.swap_remove(lane);
            if let Some(step) = &mut steps[lane] {
                step.ms = Some(now() - started);
            }
        }
        self.mark_ends(&mut steps);
        Ok(steps)
    }

    /// Feeds tokens to a lane that are no part of what its source says, before it begins.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn before(&mut self, lane: usize, tokens: &[u32]) -> Result<(), LanesError> {
        Ok(self.session.read(lane, tokens).await?)
    }

    /// Whether no lane has anything left to read.
    pub fn done(&self) -> bool {
        self.tokens().iter().all(Option::is_none)
    }

    /// What says what a lane reads: its own voice, or that of the lane which it follows.
    fn voice(&self, lane: usize) -> &Voice {
        match self.lanes[lane].voice {
            Voice::Follow(leader) => &self.lanes[leader].voice,
            ref own => own,
        }
    }

    /// What each lane reads next.
    fn tokens(&self) -> Vec<Option<u32>> {
        (0..self.lanes.len()).map(|lane| self.voice(lane).token(0)).collect()
    }

    fn mark_ends(&self, steps: &mut [Option<LaneStep>]) {
        for (lane, step) in steps.iter_mut().enumerate() {
            if let Some(step) = step {
                step.ended = self.voice(lane).token(0).is_none();
            }
        }
    }

    /// Feeds some lanes their `tokens` in one forward.
    async fn read(&mut self, which: &[usize], tokens: &[Option<u32>]) -> Result<Vec<Option<LaneStep>>, LanesError> {
        let nexts: Vec<Option<u32>> = (0..self.lanes.len())
            .map(|lane| match self.lanes[lane].voice {
                // It has gone on already.
                Voice::Follow(leader) if !which.contains(&leader) => self.lanes[leader].voice.token(0),
                _ => self.voice(lane).token(1),
            })
            .collect();
        let mut feeds = Vec::new();
        for &lane in which {
            let Some(token) = tokens[lane] else { continue };
            if let Voice::Free { sampler, .. } = &mut self.lanes[lane].voice {
                sampler.accept(token);
            }
            feeds.push((lane, token));
        }
        let wants = feeds.iter().map(|(lane, token)| {
            let want = match (&nexts[*lane], &self.lanes[*lane].voice) {
                (Some(next), _) => Want::All { forced: std::slice::from_ref(next) },
                (None, Voice::Free { sampler, .. }) => sampler.want(),
                (None, _) => Want::Last { penalty: 1.0, penalized: &[] },
            };
            LaneFeed { lane: *lane, tokens: std::slice::from_ref(token), want }
        });
        let wants: Vec<LaneFeed<'_>> = wants.collect();
        let fed = self.session.feed(&wants).await?;
        let mut steps: Vec<Option<LaneStep>> = self.lanes.iter().map(|_| None).collect();
        let mut rows: Vec<Option<Logits>> = self.lanes.iter().map(|_| None).collect();
        for ((lane, token), Fed { evicted, rows: reports, .. }) in feeds.into_iter().zip(fed) {
            let Some(row) = reports.into_iter().next_back() else { continue };
            let entry = &mut self.lanes[lane];
            let mut best = None;
            match &mut entry.voice {
                Voice::Forced { at, .. } => *at += 1,
                Voice::Free { at, chosen, sampler, .. } => {
                    *at += 1;
                    *chosen = None;
                    if nexts[lane].is_none() {
                        best = sampler.best(row.log_sum_exp, &row.candidates);
                    }
                }
                Voice::Follow(_) => {}
            }
            let best = best.or_else(|| likeliest(row.log_sum_exp, &row.candidates));
            let nll = entry.nll.take();
            if nexts[lane].is_some() {
                entry.nll = Some(row.log_sum_exp - row.forced);
            } else {
                rows[lane] = Some(Logits { log_sum_exp: row.log_sum_exp, candidates: row.candidates });
            }
            let held = self.session.lane(lane).stream().held();
            let (sink_mass, first_mass, probs) = (row.sink_mass, row.first_mass, row.probs);
            let slot = held - 1;
            steps[lane] = Some(LaneStep {
                token,
                nll,
                evicted,
                sink_mass,
                first_mass,
                probs,
                held,
                slot,
                best,
                ended: false,
                ms: None,
            });
        }
        self.choose(&rows).await?;
        Ok(steps)
    }

    /// Free lanes choose their next token, and those that follow them say what they thought of it.
    async fn choose(&mut self, rows: &[Option<Logits>]) -> Result<(), LanesError> {
        for (lane, row) in self.lanes.iter_mut().zip(rows) {
            let (Voice::Free { prompt, at, sampler, ends, most, chosen }, Some(row)) = (&mut lane.voice, row) else {
                continue;
            };
            if *at >= prompt.len().saturating_add(*most) {
                continue;
            }
            let choice = sampler.sample(row.log_sum_exp, &row.candidates)?;
            if !ends.contains(&choice.id) {
                *chosen = Some(choice.id);
                lane.nll = Some(sampler.model_nll(row.log_sum_exp, &choice));
            }
        }
        let mut unknown = Vec::new();
        for (lane, row) in rows.iter().enumerate() {
            let (Voice::Follow(leader), Some(row)) = (&self.lanes[lane].voice, row) else { continue };
            let Some(next) = self.lanes[*leader].voice.token(0) else { continue };
            match row.candidates.iter().find(|(id, _)| *id == next) {
                Some((_, logit)) => self.lanes[lane].nll = Some(row.log_sum_exp - logit),
                None => unknown.push((lane, next)),
            }
        }
        if !unknown.is_empty() {
            for ((lane, _), nll) in unknown.iter().zip(self.session.nll_of(&unknown).await?) {
                self.lanes[*lane].nll = Some(nll);
            }
        }
        Ok(())
    }
}

/// The best token of logits that no penalty has touched, and its probability.
pub(crate) fn likeliest(log_sum_exp: f32, candidates: &[(u32, f32)]) -> Option<(u32, f32)> {
    candidates.first().map(|(id, logit)| (*id, (logit - log_sum_exp).exp()))
}

/// The lane at the end of those that `lane` follows; none where they lead nowhere.
fn head_of(sources: &[Source], mut lane: usize) -> Option<usize> {
    for _ in sources {
        match sources.get(lane)? {
            Source::Follow(leader) => lane = *leader,
            _ => return Some(lane),
        }
    }
    None
}
