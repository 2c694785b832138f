//! A conversation: messages in, events out, one step at a time so that the caller can stop between any two.

use crate::chat::{ChatError, ChatTemplate, Message, Role, next_turn, opening};
use crate::detokenize::Detokenizer;
use crate::gguf::Header;
use crate::sampler::{MAX_PENALTY_LAST, Sampler, SamplerError, Settings};
use crate::session::{Fed, Session, SessionError, Turns};
use crate::tokenizer::{Tokenizer, TokenizerError};
use kernels::step::LayerHead;
use policy::Policy;
use std::ops::Range;

/// What turns text into tokens and back.
pub struct Text {
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
}

impl Text {
    /// From a weight file's metadata.
    ///
    /// # Errors
    /// The file has no tokenizer or no chat template, or one of a kind that is not known here.
    pub fn from_gguf(header: &Header) -> Result<Self, GenerateError> {
        Ok(Self { tokenizer: Tokenizer::from_gguf(header)?, template: ChatTemplate::from_gguf(header)? })
    }

    /// The ids of a question as the template writes it, up to where the answer begins.
    ///
    /// # Errors
    /// An empty question, or one that the template refuses.
    pub fn question(&self, question: &str) -> Result<Vec<u32>, GenerateError> {
        if question.trim().is_empty() {
            return Err(GenerateError::Empty);
        }
        let messages = [Message::new(Role::User, question)];
        Ok(self.tokenizer.encode(&next_turn(&self.template, &[], &messages)?)?)
    }

    /// How a cache finds turns, for one that drops whole ones: by the template's opening token. The template's own system
    /// prompt is pinned, if it has one.
    ///
    /// # Errors
    /// Turns of this template do not begin with one control token.
    pub fn turns(&self) -> Result<Turns, GenerateError> {
        let (opening, pinned) = opening(&self.template, &self.tokenizer)?;
        Ok(Turns { opening, pinned: u32::try_from(pinned).unwrap_or(u32::MAX) })
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("{0}")]
    Tokenizer(#[from] TokenizerError),
    #[error("{0}")]
    Chat(#[from] ChatError),
    #[error("{0}")]
    Sampler(#[from] SamplerError),
    #[error("{0}")]
    Session(#[from] SessionError),
    #[error("the message is empty: write something")]
    Empty,
    #[error("the model gave no probabilities: its weights are damaged, load the model again")]
    NoCandidates,
    #[error("the conversation has no answer that could be gone on with: send a message")]
    NoAnswer,
    #[error("the conversation cannot be read again: a cache that has read something already must be emptied first")]
    NotEmpty,
    #[error("the conversation ends with a question and no answer is wanted: leave the question out")]
    Unanswered,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model closed its turn.
    End,
    /// The wanted number of tokens is there.
    Length,
    /// Somebody stopped it.
    Stopped,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A piece of the prompt went through the model.
    Prompt {
        done: usize,
        total: usize,
        /// The piece's tokens: their ids, and the text that became complete with each.
        tokens: Vec<(u32, String)>,
        /// Stream indices that left the cache, and the numbers of the turns that ended with them, where turns count.
        evicted: Option<Range<u64>>,
        evicted_turns: Option<Range<u64>>,
        sink_mass: Vec<f32>,
        /// Of the piece's last token, as [`RowReport::probs`](crate::transformer::RowReport::probs).
        probs: Option<Vec<f32>>,
    },
    /// A token was chosen and read.
    Token {
        id: u32,
        /// Its slot: the last of those in use.
        slot: u64,
        /// Text that became complete with it.
        text: String,
        /// -ln p of it before any filter of the sampler, in nats.
        nll: f32,
        evicted: Option<Range<u64>>,
        evicted_turns: Option<Range<u64>>,
        sink_mass: Vec<f32>,
        first_mass: Vec<f32>,
        /// As [`RowReport::probs`](crate::transformer::RowReport::probs).
        probs: Option<Vec<f32>>,
    },
    /// The answer is over; the text that was still incomplete.
    End { reason: Reason, text: String },
}

/// Probabilities of the next token.
#[derive(Debug)]
struct Next {
    log_sum_exp: f32,
    candidates: Vec<(u32, f32)>,
}

/// The answer that is being written.
struct Answer {
    prompt: Vec<u32>,
    fed: usize,
    next: Option<Next>,
    sampler: Sampler,
    detokenizer: Detokenizer,
    text: String,
    tokens: usize,
    max_tokens: usize,
    /// The prompt is all there is to do.
    reads_only: bool,
}

/// Messages that are remembered. A turn's text follows from the last one; what lies further back is there for templates that
/// look at it, and must not grow with the stream.
const REMEMBERED: usize = 16;
/// Bytes that are remembered of an answer, its end, for the same reason.
const REMEMBERED_BYTES: usize = 4096;

/// A conversation with a model.
pub struct Conversation {
    session: Session,
    messages: Vec<Message>,
    answer: Option<Answer>,
    /// The last ids of the stream, for the penalty of an answer that begins.
    recent: Vec<u32>,
    /// What was not read of a prompt that was stopped.
    unread: Vec<u32>,
    /// The text of what is read.
    prompts: Detokenizer,
    /// What follows the last token that was read, for an answer that is gone on with.
    next: Option<Next>,
}

impl Conversation {
    /// Nothing said yet.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            messages: Vec::new(),
            answer: None,
            recent: Vec::new(),
            unread: Vec::new(),
            prompts: Detokenizer::new(),
            next: None,
        }
    }

    /// The stream and its cache.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Asks for the probs of a layer and head from now on, or no longer.
    ///
    /// # Errors
    /// The model has no such layer or head.
    pub fn ask(&mut self, asked: Option<LayerHead>) -> Result<(), GenerateError> {
        Ok(self.session.ask(asked)?)
    }

    /// What was said lately: the system prompt, and the last messages, of long answers the end.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Takes a message; [`Self::step`] then reads it and writes the answer. `max_tokens` 0 means no limit.
    ///
    /// # Errors
    /// An empty message, bad settings, a template that refuses the message.
    pub fn send(
        &mut self,
        text: &Text,
        message: &str,
        settings: &Settings,
        max_tokens: usize,
    ) -> Result<(), GenerateError> {
        if message.trim().is_empty() {
            return Err(GenerateError::Empty);
        }
        let sampler = Sampler::new(*settings)?;
        self.close();
        let mut messages = self.messages.clone();
        messages.push(Message::new(Role::User, message));
        // The answer before ended at its end token, which has not been read yet.
        let mut turn = if self.messages.is_empty() { "" } else { text.template.end_of_turn() }.to_owned();
        turn.push_str(&next_turn(&text.template, &self.messages, &messages)?);
        let prompt = text.tokenizer.encode(&turn)?;
        self.messages = messages;
        self.forget();
        self.begin(prompt, sampler, max_tokens)
    }

    /// Takes a text as it is, without a chat template.
    ///
    /// # Errors
    /// An empty text, bad settings.
    pub fn send_raw(
        &mut self,
        text: &Text,
        raw: &str,
        settings: &Settings,
        max_tokens: usize,
    ) -> Result<(), GenerateError> {
        let prompt = text.tokenizer.encode(raw)?;
        self.begin(prompt, Sampler::new(*settings)?, max_tokens)
    }

    /// Goes on with the last answer where it was stopped or cut at its limit; [`Self::step`] writes it.
    ///
    /// # Errors
    /// There is no such answer, or the model had closed it; bad settings.
    pub fn proceed(&mut self, settings: &Settings, max_tokens: usize) -> Result<(), GenerateError> {
        let sampler = Sampler::new(*settings)?;
        self.close();
        if self.next.is_none() && self.unread.is_empty() {
            return Err(GenerateError::NoAnswer);
        }
        let Some(Message { role: Role::Assistant, content }) = self.messages.last().cloned() else {
            return Err(GenerateError::NoAnswer);
        };
        self.messages.pop();
        let next = self.next.take();
        let mut answer = self.answer(Vec::new(), sampler, max_tokens);
        (answer.next, answer.text) = (next, content);
        self.answer = Some(answer);
        Ok(())
    }

    /// Takes a conversation that another stream has held; [`Self::step`] then reads as much of it as the cache will hold: the
    /// first tokens for the sinks, and the last turns. With `write` an answer follows, to the last message or, where that is
    /// an answer, as its continuation. Returns where in the stream each message lies, `None` for those left out.
    ///
    /// # Errors
    /// The stream is not empty, no message, a question at the end where nothing is to be written, bad settings, a template
    /// that refuses the conversation.
    pub fn resume(
        &mut self,
        text: &Text,
        messages: &[Message],
        settings: &Settings,
        max_tokens: usize,
        write: bool,
    ) -> Result<Vec<Option<Range<u64>>>, GenerateError> {
        let sampler = Sampler::new(*settings)?;
        if self.session.stream().fed() > 0 || self.answer.is_some() || !self.messages.is_empty() {
            return Err(GenerateError::NotEmpty);
        }
        let (asked, begun) = match messages {
            [] => return Err(GenerateError::Empty),
            [asked @ .., Message { role: Role::Assistant, content }] => (asked, content.as_str()),
            _ if write => (messages, ""),
            _ => return Err(GenerateError::Unanswered),
        };
        let pieces = pieces(text, messages, asked, begun)?;
        let policy = self.session.settings().policy;
        let (prompt, places) = refill(&pieces, policy);
        self.messages = asked.to_vec();
        self.begin(prompt, sampler, max_tokens)?;
        if let Some(answer) = self.answer.as_mut() {
            begun.clone_into(&mut answer.text);
            answer.reads_only = !write;
        }
        Ok(places)
    }

    fn begin(&mut self, prompt: Vec<u32>, sampler: Sampler, max_tokens: usize) -> Result<(), GenerateError> {
        if prompt.is_empty() {
            return Err(GenerateError::Empty);
        }
        self.answer = Some(self.answer(prompt, sampler, max_tokens));
        Ok(())
    }

    fn answer(&mut self, prompt: Vec<u32>, mut sampler: Sampler, max_tokens: usize) -> Answer {
        for &id in &self.recent {
            sampler.accept(id);
        }
        let mut all = std::mem::take(&mut self.unread);
        all.extend(prompt);
        Answer {
            prompt: all,
            fed: 0,
            next: None,
            sampler,
            detokenizer: Detokenizer::new(),
            text: String::new(),
            tokens: 0,
            max_tokens,
            reads_only: false,
        }
    }

    /// Reads one piece of the prompt, or chooses and reads one token. After [`Event::End`] there is nothing left to do.
    ///
    /// # Errors
    /// A lost device, a dense cache at its limit. The text so far stays.
    pub async fn step(&mut self, text: &Text) -> Result<Event, GenerateError> {
        let Some(answer) = self.answer.as_mut() else {
            return Ok(Event::End { reason: Reason::Stopped, text: String::new() });
        };
        let Some(next) = answer.next.take() else {
            return self.read_prompt(text).await;
        };
        if answer.reads_only || (answer.max_tokens > 0 && answer.tokens >= answer.max_tokens) {
            let reason = if answer.reads_only { Reason::Stopped } else { Reason::Length };
            answer.next = Some(next);
            return Ok(self.end(reason));
        }
        let choice = answer.sampler.sample(next.log_sum_exp, &next.candidates)?;
        if text.tokenizer.eos().contains(&choice.id) {
            return Ok(self.end(Reason::End));
        }
        let nll = answer.sampler.model_nll(next.log_sum_exp, &choice);
        let fed = self.read(&[choice.id]).await?;
        let Some(answer) = self.answer.as_mut() else { return Err(GenerateError::NoCandidates) };
        answer.tokens += 1;
        let piece = answer.detokenizer.push(text.tokenizer.token_bytes(choice.id));
        answer.text.push_str(&piece);
        if answer.text.len() > 2 * REMEMBERED_BYTES {
            let start = answer.text.ceil_char_boundary(answer.text.len() - REMEMBERED_BYTES);
            answer.text.drain(..start);
        }
        let row = fed.rows.into_iter().next_back().ok_or(GenerateError::NoCandidates)?;
        answer.next = Some(Next { log_sum_exp: row.log_sum_exp, candidates: row.candidates });
        Ok(Event::Token {
            id: choice.id,
            slot: self.session.stream().held() - 1,
            text: piece,
            nll,
            evicted: fed.evicted,
            evicted_turns: fed.evicted_turns,
            sink_mass: row.sink_mass,
            first_mass: row.first_mass,
            probs: row.probs,
        })
    }

    /// Ends the answer that is being written; what it said so far stays in the conversation.
    pub fn stop(&mut self) -> Event {
        self.end(Reason::Stopped)
    }

    async fn read_prompt(&mut self, text: &Text) -> Result<Event, GenerateError> {
        let Some(answer) = self.answer.as_ref() else { return Err(GenerateError::Empty) };
        let (prompt, at) = (answer.prompt.clone(), answer.fed);
        let fed = self.read(&prompt[at..]).await?;
        let Some(answer) = self.answer.as_mut() else { return Err(GenerateError::Empty) };
        answer.fed += fed.taken;
        let piece = &prompt[at..answer.fed];
        let tokens = piece.iter().map(|id| (*id, self.prompts.push(text.tokenizer.token_bytes(*id)))).collect();
        let row = fed.rows.into_iter().next_back().ok_or(GenerateError::NoCandidates)?;
        if answer.fed == answer.prompt.len() {
            answer.next = Some(Next { log_sum_exp: row.log_sum_exp, candidates: row.candidates });
        }
        Ok(Event::Prompt {
            done: answer.fed,
            total: answer.prompt.len(),
            tokens,
            evicted: fed.evicted,
            evicted_turns: fed.evicted_turns,
            sink_mass: row.sink_mass,
            probs: row.probs,
        })
    }

    /// Feeds tokens of the prompt, or the one that was chosen; the penalty of the next choice counts them.
    async fn read(&mut self, tokens: &[u32]) -> Result<Fed, GenerateError> {
        let Some(answer) = self.answer.as_mut() else { return Err(GenerateError::Empty) };
        let taken = self.session.chunk(tokens);
        for &id in taken {
            answer.sampler.accept(id);
        }
        let fed = self.session.feed_one(tokens, answer.sampler.want()).await?;
        self.recent.extend_from_slice(taken);
        let extra = self.recent.len().saturating_sub(MAX_PENALTY_LAST);
        self.recent.drain(..extra);
        Ok(fed)
    }

    fn end(&mut self, reason: Reason) -> Event {
        let text = self.close();
        Event::End { reason, text }
    }

    /// Drops the oldest exchanges, but not the system prompt.
    fn forget(&mut self) {
        let system = usize::from(self.messages.first().is_some_and(|message| message.role == Role::System));
        while self.messages.len() > system + REMEMBERED {
            let next = self.messages.iter().skip(system + 1).position(|message| message.role == Role::User);
            let Some(next) = next else { return };
            self.messages.drain(system..system + 1 + next);
        }
    }

    /// Moves the answer into the conversation.
    fn close(&mut self) -> String {
        let Some(mut answer) = self.answer.take() else { return String::new() };
        let rest = answer.detokenizer.flush();
        answer.text.push_str(&rest);
        self.unread = answer.prompt.split_off(answer.fed);
        self.next = answer.next;
        if self.messages.last().is_some_and(|message| message.role == Role::User) {
            self.messages.push(Message::new(Role::Assistant, answer.text));
        }
        rest
    }
}

/// The ids of each message as the template writes it, the last one with what comes before an answer or the answer itself.
/// Turns begin with control tokens, so that pieces by themselves have the ids that they have in the whole.
fn pieces(text: &Text, messages: &[Message], asked: &[Message], begun: &str) -> Result<Vec<Vec<u32>>, GenerateError> {
    let whole = text.template.render(asked, true)? + begun;
    let mut ends = Vec::with_capacity(messages.len());
    for count in 1..messages.len() {
        let part = text.template.render(&messages[..count], false)?;
        if !whole.starts_with(&part) {
            return Err(ChatError::Rewrites.into());
        }
        ends.push(part.len());
    }
    ends.push(whole.len());
    let mut at = 0;
    let mut pieces = Vec::with_capacity(ends.len());
    for end in ends {
        pieces.push(text.tokenizer.encode(&whole[at..end])?);
        at = end;
    }
    Ok(pieces)
}

/// What a cache that begins anew reads of `pieces`, and where each then lies: all of it if it fits, else the first tokens
/// for the sinks and the longest row of last pieces that the rest holds; of one that is too long itself, its end.
fn refill(pieces: &[Vec<u32>], policy: Policy) -> (Vec<u32>, Vec<Option<Range<u64>>>) {
    let whole = pieces.concat();
    let (sinks, recent) = match policy {
        Policy::Dense => (0, usize::MAX),
        Policy::Window { recent } | Policy::Recompute { recent } => (0, recent as usize),
        Policy::Sinks { sinks, recent } => (sinks as usize, recent as usize),
    };
    let mut first = 0;
    let mut begins = 0;
    if whole.len() > sinks.saturating_add(recent) {
        let mut room = recent;
        first = pieces.len();
        while first > 0 && pieces[first - 1].len() <= room {
            first -= 1;
            room -= pieces[first].len();
        }
        begins = pieces[..first].iter().map(Vec::len).sum();
        if first == pieces.len() {
            first -= 1;
            begins = whole.len() - recent;
        }
    }
    // Where the sinks reach into what is kept anyway, nothing is read twice.
    let head = sinks.min(begins);
    let mut prompt = whole[..head].to_vec();
    prompt.extend_from_slice(&whole[begins..]);
    let mut at = 0;
    let places = pieces.iter().enumerate().map(|(i, piece)| {
        let end = at + piece.len();
        let from = at.max(begins);
        at = end;
        (i >= first).then(|| ((from - begins + head) as u64)..((end - begins + head) as u64))
    });
    let places = places.collect();
    (prompt, places)
}
