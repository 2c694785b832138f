//! A comparison: one text, or one question, and several caches that read it in step. Those that recompute cannot share a
//! forward; they read behind the others, at a pace of their own.

use crate::detokenize::Detokenizer;
use crate::lanes::{LaneStep, Lanes, LanesError, Source, likeliest};
use crate::sampler::{Sampler, Settings};
use crate::session::{CacheSettings, LaneFeed, LaneView, Model, Session, Want};
use crate::tokenizer::Tokenizer;
use kernels::step::LayerHead;
use policy::{CacheBytes, Policy};
use std::ops::Range;
use std::rc::Rc;

/// Every so many steps each lane reads its token by itself, so that it has a time of its own.
const APART: u64 = 16;

/// One cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    pub cache: CacheSettings,
    /// Read before the stream, to become the sinks. Not counted in it.
    pub before: Vec<u32>,
}

/// What all lanes read.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// A text, to its end.
    Forced(Vec<u32>),
    /// A question, and then what each lane writes itself, until it chooses one of `ends` or has written `most` tokens.
    Free { prompt: Vec<u32>, settings: Settings, ends: Vec<u32>, most: usize },
}

impl Reading {
    /// The text's tokens, or the prompt's.
    pub fn tokens(&self) -> &[u32] {
        match self {
            Self::Forced(tokens) | Self::Free { prompt: tokens, .. } => tokens,
        }
    }

    fn source(&self) -> Source {
        match self.clone() {
            Self::Forced(text) => Source::Forced(text),
            Self::Free { prompt, settings, ends, most } => Source::Free { prompt, settings, ends, most },
        }
    }
}

/// What a lane did. Indices count tokens of the stream; the first is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The token that it read, or, of a forced lane that recomputes, the one whose loss it told.
    pub index: u64,
    pub token: u32,
    /// Text that became complete since the lane's last report.
    pub text: String,
    /// -ln p of that token as the lane saw it before, nats.
    pub nll: Option<f32>,
    /// The likeliest next token, its text and its probability.
    pub best: Option<(u32, String, f32)>,
    /// A free lane's last.
    pub ended: bool,
    /// Milliseconds of the token read by itself.
    pub ms: Option<f64>,
    /// Slots in use; of the sinks; and of what is not packed yet.
    pub held: u64,
    pub sinks: u64,
    pub tail: u64,
    /// All slots, and what they take.
    pub capacity: u64,
    pub bytes: CacheBytes,
    pub evicted: Option<Range<u64>>,
    /// Attention on the sinks and on the first four slots, `[layers * n_heads]`.
    pub sink_mass: Vec<f32>,
    pub first_mass: Vec<f32>,
    /// Attention of the head that was asked for, on each slot in use.
    pub probs: Option<Vec<f32>>,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// A lane each; none of one that did nothing.
    pub lanes: Vec<Option<Report>>,
    /// Lanes of this kind, in step or behind, have nothing left to read.
    pub done: bool,
}

/// Lanes at work.
pub struct Comparison {
    /// Those that share a forward, and the number of each in the whole.
    shared: Option<Lanes>,
    numbers: Vec<usize>,
    again: Vec<Again>,
    lanes: usize,
    /// What those that share a forward read before, until they have.
    before: Option<Vec<Vec<u32>>>,
    /// Tokens of those, for each lane of the whole.
    own: Vec<u64>,
    texts: Vec<Detokenizer>,
    free: bool,
    steps: u64,
    /// Tokens that the lane which is furthest has read.
    ahead: u64,
}

/// A lane that reads its window again for each token.
struct Again {
    number: usize,
    session: Session,
    voice: Voice,
}

enum Voice {
    Forced(Vec<u32>),
    Free { prompt: Vec<u32>, sampler: Box<Sampler>, ends: Vec<u32>, most: usize, next: Option<(u32, f32)>, ended: bool },
}

impl Comparison {
    /// Empty caches, nothing read yet. At most `chunk` tokens of a text before the stream go through the model together.
    ///
    /// # Errors
    /// No lane, settings that do not fit the model or each other, nothing to read.
    pub fn new(model: &Rc<Model>, lanes: &[Lane], reading: &Reading, chunk: usize) -> Result<Self, LanesError> {
        for Lane { cache, before } in lanes {
            match cache.policy.capacity() {
                _ if before.is_empty() => {}
                _ if recomputes(cache) => return Err(LanesError::RecomputeSinks),
                Some(slots) if before.len() as u64 > slots => {
                    return Err(LanesError::Sinks { tokens: before.len(), slots });
                }
                _ => {}
            }
        }
        if reading.tokens().is_empty() {
            return Err(LanesError::Empty(0));
        }
        let numbers: Vec<usize> = (0..lanes.len()).filter(|lane| !recomputes(&lanes[*lane].cache)).collect();
        let mut again = Vec::new();
        for (number, Lane { cache, .. }) in lanes.iter().enumerate().filter(|(_, lane)| recomputes(&lane.cache)) {
            let rows = cache.policy.recent().unwrap_or(1) as usize;
            let session = Session::new(Rc::clone(model), *cache, rows.max(chunk))?;
            again.push(Again { number, session, voice: Voice::new(reading)? });
        }
        let shared = if numbers.is_empty() && !again.is_empty() {
            None
        } else {
            let caches: Vec<CacheSettings> = numbers.iter().map(|lane| lanes[*lane].cache).collect();
            let session = Session::with_lanes(Rc::clone(model), &caches, chunk)?;
            Some(Lanes::new(session, vec![reading.source(); numbers.len()])?)
        };
        Ok(Self {
            shared,
            before: Some(numbers.iter().map(|lane| lanes[*lane].before.clone()).collect()),
            numbers,
            again,
            lanes: lanes.len(),
            own: lanes.iter().map(|lane| lane.before.len() as u64).collect(),
            texts: lanes.iter().map(|_| Detokenizer::new()).collect(),
            free: matches!(reading, Reading::Free { .. }),
            steps: 0,
            ahead: 0,
        })
    }

    /// Whether each lane is read in the others' forward.
    pub fn shared(&self) -> Vec<bool> {
        (0..self.lanes).map(|lane| self.numbers.contains(&lane)).collect()
    }

    /// One token of each lane that does not recompute, in one forward or, every sixteenth time, in forwards of their own.
    /// With the probs of a lane's layer and head, if one is named. `now` gives milliseconds from some moment.
    ///
    /// # Errors
    /// The model has no such layer or head, a token outside the vocabulary, a dense cache at its limit, a lost device.
    pub async fn step(
        &mut self,
        tokenizer: &Tokenizer,
        asked: Option<(usize, LayerHead)>,
        now: fn() -> f64,
    ) -> Result<Step, LanesError> {
        let mut reports = vec![None; self.lanes];
        let Some(shared) = &mut self.shared else { return Ok(Step { lanes: reports, done: true }) };
        if let Some(before) = self.before.take() {
            for (lane, tokens) in before.iter().enumerate() {
                shared.before(lane, tokens).await?;
            }
        }
        shared.ask(asked.filter(|(lane, _)| self.numbers.contains(lane)).map(|(_, head)| head))?;
        self.steps += 1;
        let apart = self.steps.is_multiple_of(APART);
        let steps = if apart { shared.step_apart(now).await? } else { shared.step().await? };
        for ((lane, &number), step) in self.numbers.iter().enumerate().zip(steps) {
            let Some(mut step) = step else { continue };
            if asked.is_none_or(|(lane, _)| lane != number) {
                step.probs = None;
            }
            let view = shared.session().lane(lane);
            let index = view.stream().fed() - 1 - self.own[number];
            self.ahead = self.ahead.max(index + 1);
            let text = &mut self.texts[number];
            let piece = piece(text, tokenizer, &[step.token], step.ended);
            step.ended &= self.free;
            reports[number] = Some(report(step, index, piece, view, self.own[number], tokenizer));
        }
        Ok(Step { lanes: reports, done: shared.done() })
    }

    /// Of the lanes that recompute the one that is furthest behind: forced, the loss of the token `every` further on; free, its
    /// next token, of which the first report is of the whole question. None where that would go past the others, or there is
    /// nothing left for it, or no such lane.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn step_again(
        &mut self,
        tokenizer: &Tokenizer,
        every: usize,
        now: fn() -> f64,
    ) -> Result<Option<Step>, LanesError> {
        let ahead = match &self.shared {
            Some(shared) if !shared.done() => self.ahead,
            _ => u64::MAX,
        };
        let every = every.max(1);
        let behind = self.again.iter_mut().filter(|lane| lane.reach(every).is_some_and(|reach| reach <= ahead));
        let Some(lane) = behind.min_by_key(|lane| lane.session.stream().fed()) else { return Ok(None) };
        let number = lane.number;
        let started = now();
        let (mut step, read) = lane.step(every).await?;
        step.ms = Some(now() - started);
        let index = match lane.voice {
            Voice::Forced(_) => lane.session.stream().fed(),
            Voice::Free { .. } => lane.session.stream().fed() - 1,
        };
        let piece = piece(&mut self.texts[number], tokenizer, &read, step.ended);
        step.ended &= self.free;
        let mut reports = vec![None; self.lanes];
        reports[number] = Some(report(step, index, piece, lane.session.lane(0), 0, tokenizer));
        let done = self.again.iter().all(|lane| lane.reach(every).is_none());
        Ok(Some(Step { lanes: reports, done }))
    }
}

fn recomputes(cache: &CacheSettings) -> bool {
    matches!(cache.policy, Policy::Recompute { .. })
}

/// The text that `tokens` complete; all that waits, if they are the last.
fn piece(text: &mut Detokenizer, tokenizer: &Tokenizer, tokens: &[u32], last: bool) -> String {
    let mut piece: String = tokens.iter().map(|token| text.push(tokenizer.token_bytes(*token))).collect();
    if last {
        piece.push_str(&text.flush());
    }
    piece
}

/// A lane's report, `own` tokens before the stream not counted.
fn report(step: LaneStep, index: u64, text: String, lane: LaneView<'_>, own: u64, tokenizer: &Tokenizer) -> Report {
    let counted = |range: Range<u64>| range.start.saturating_sub(own)..range.end.saturating_sub(own);
    let words = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    Report {
        index,
        token: step.token,
        text,
        nll: step.nll,
        best: step.best.map(|(id, p)| (id, words(id), p)),
        ended: step.ended,
        ms: step.ms,
        held: lane.stream().held(),
        sinks: lane.sinks(),
        tail: lane.tail(),
        capacity: lane.slots(),
        bytes: lane.parts(),
        evicted: step.evicted.map(counted).filter(|range| !range.is_empty()),
        sink_mass: step.sink_mass,
        first_mass: step.first_mass,
        probs: step.probs,
    }
}

impl Voice {
    fn new(reading: &Reading) -> Result<Self, LanesError> {
        Ok(match reading.clone() {
            Reading::Forced(text) => Self::Forced(text),
            Reading::Free { prompt, settings, ends, most } => {
                let sampler = Box::new(Sampler::new(settings)?);
                Self::Free { prompt, sampler, ends, most, next: None, ended: false }
            }
        })
    }
}

impl Again {
    /// How many tokens of the stream are known once the next report is there; none where nothing is left.
    fn reach(&self, every: usize) -> Option<u64> {
        let fed = self.session.stream().fed();
        match &self.voice {
            // The token that is told of counts: it must be known.
            Voice::Forced(text) => Some(fed + every as u64 + 1).filter(|reach| *reach <= text.len() as u64),
            Voice::Free { ended: true, .. } => None,
            Voice::Free { prompt, .. } => Some((fed + 1).max(prompt.len() as u64)),
        }
    }

    /// Reads up to the next report, and what was read for it.
    async fn step(&mut self, every: usize) -> Result<(LaneStep, Vec<u32>), LanesError> {
        let fed = self.session.stream().fed() as usize;
        match &mut self.voice {
            Voice::Forced(text) => {
                let end = fed + every;
                let forced = text[end];
                let (evicted, row) = feed(&mut self.session, &text[fed..end], Want::Next { forced }).await?;
                let mut step = step_of(&self.session, forced, evicted, row.as_ref());
                step.nll = row.map(|row| row.log_sum_exp - row.forced);
                // What it thinks of the one after is for the next report to say.
                step.best = None;
                step.ended = end + 1 == text.len();
                let from = if fed == 0 { 0 } else { fed + 1 };
                Ok((step, text[from..=end].to_vec()))
            }
            Voice::Free { prompt, sampler, ends, most, next, ended } => {
                let chosen = next.take();
                let read = chosen.map_or_else(|| prompt.clone(), |(token, _)| vec![token]);
                read.iter().for_each(|token| sampler.accept(*token));
                let (evicted, row) = feed(&mut self.session, &read, sampler.want()).await?;
                let token = read.last().copied().unwrap_or_default();
                let mut step = step_of(&self.session, token, evicted, row.as_ref());
                step.nll = chosen.map(|(_, nll)| nll);
                if let Some(row) = row {
                    step.best = sampler.best(row.log_sum_exp, &row.candidates);
                    if fed + read.len() < prompt.len().saturating_add(*most) {
                        let choice = sampler.sample(row.log_sum_exp, &row.candidates)?;
                        let nll = sampler.model_nll(row.log_sum_exp, &choice);
                        *next = Some((choice.id, nll)).filter(|(id, _)| !ends.contains(id));
                    }
                }
                *ended = next.is_none();
                step.ended = *ended;
                Ok((step, read))
            }
        }
    }
}

type Row = crate::transformer::RowReport;

/// Feeds all of `tokens`; what left, and the last row.
async fn feed(
    session: &mut Session,
    tokens: &[u32],
    want: Want<'_>,
) -> Result<(Option<Range<u64>>, Option<Row>), LanesError> {
    let (mut left, mut evicted, mut row) = (tokens, None::<Range<u64>>, None);
    while !left.is_empty() {
        for fed in session.feed(&[LaneFeed { lane: 0, tokens: left, want }]).await? {
            left = &left[fed.taken..];
            evicted = match (evicted, fed.evicted) {
                (Some(before), Some(after)) => Some(before.start..after.end),
                (before, after) => before.or(after),
            };
            row = fed.rows.into_iter().next_back();
        }
    }
    Ok((evicted, row))
}

fn step_of(session: &Session, token: u32, evicted: Option<Range<u64>>, row: Option<&Row>) -> LaneStep {
    let held = session.stream().held();
    let mass = |of: fn(&Row) -> &Vec<f32>| row.map(|row| of(row).clone()).unwrap_or_default();
    LaneStep {
        token,
        nll: None,
        evicted,
        sink_mass: mass(|row| &row.sink_mass),
        first_mass: mass(|row| &row.first_mass),
        probs: None,
        held,
        slot: held.saturating_sub(1),
        best: row.and_then(|row| likeliest(row.log_sum_exp, &row.candidates)),
        ended: false,
        ms: None,
    }
}
