//! Conversations to text, by the template that a weight file brings.
//!
//! Templates are Jinja, rendered as the `transformers` library does: `trim_blocks`, `lstrip_blocks`,
//! `raise_exception`. A model without a template is an error, not a guess: its turns would be marked
//! in a way that it never saw.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, context};
use serde::{Deserialize, Serialize};

use crate::gguf::{Header, MetadataError, StringArray};
use crate::tokenizer::{Tokenizer, TokenizerError};

const NAME: &str = "chat_template";

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// Its name in templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// Names of control tokens that a template or a turn needs; empty where a model has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenNames {
    /// `bos_token` in templates.
    pub bos: String,
    /// `eos_token` in templates.
    pub eos: String,
    /// The token with which the model ends its answer: `<|im_end|>` for SmolLM2.
    pub end_of_turn: String,
}

/// Why a conversation cannot be written down. Every message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(
        "the model has no chat template (`tokenizer.chat_template`): use an instruct model, or generate from plain text"
    )]
    Missing,
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("the model's chat template cannot be read: {0}; use another model file")]
    Template(String),
    #[error(
        "the chat template does not take this conversation: {0}; begin a new conversation or use another model file"
    )]
    Render(String),
    #[error("the conversation ends with no answer, so nothing can follow it: answer first")]
    NotAnswered,
    #[error("the chat template does not end an answer with `{end_of_turn}`: use another model file")]
    NoEnd { end_of_turn: String },
    #[error(
        "the chat template changes turns that are already in the cache: begin a new conversation or use another model file"
    )]
    Rewrites,
    #[error(
        "the chat template does not begin each turn with one control token, so turns cannot be told apart: \
         drop tokens one by one, or use another model file"
    )]
    NoOpening,
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: TokenNames,
}

impl ChatTemplate {
    /// Takes the source of a template. `strftime_now` is not defined, as the library has no clock:
    /// templates that know it ask first, and have a date of their own.
    pub fn new(source: &str, tokens: TokenNames) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| ChatError::Template(describe(&error)))?);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| ChatError::Template(describe(&error)))?;
        Ok(Self { environment, tokens })
    }

    /// Takes template and token names from a weight file.
    pub fn from_gguf(header: &Header) -> Result<Self, ChatError> {
        let metadata = &header.metadata;
        let source = metadata.get("tokenizer.chat_template")?.ok_or(ChatError::Missing)?;
        let names: Option<&StringArray> = metadata.get("tokenizer.ggml.tokens")?;
        let name = |key: &str| -> Result<Option<String>, MetadataError> {
            let id = metadata.get::<u32>(key)?;
            Ok(names.zip(id).and_then(|(names, id)| names.get(id as usize)).map(str::to_owned))
        };
        let eos = name("tokenizer.ggml.eos_token_id")?.unwrap_or_default();
        let end_of_turn = name("tokenizer.ggml.eot_token_id")?.unwrap_or_else(|| eos.clone());
        let bos = name("tokenizer.ggml.bos_token_id")?.unwrap_or_default();
        Self::new(source, TokenNames { bos, eos, end_of_turn })
    }

    /// The whole conversation as text; `add_generation_prompt` begins the model's next answer.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.name(), content => message.content.as_str() })
            .collect();
        let context = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            bos_token => self.tokens.bos.as_str(),
            eos_token => self.tokens.eos.as_str(),
        };
        let template = self.environment.get_template(NAME).map_err(|error| ChatError::Template(describe(&error)))?;
        template.render(context).map_err(|error| ChatError::Render(describe(&error)))
    }

    /// The name of the token with which the model ends its answer.
    pub fn end_of_turn(&self) -> &str {
        &self.tokens.end_of_turn
    }
}

/// The text to feed after the token that ended the last answer of `before`, so that the model then
/// answers `after`, which begins with all of `before`.
///
/// The stream so far is `render(before without the answer, true)`, the answer and the end token.
/// With what is returned it is exactly `render(after, true)`. The newline that a template writes
/// behind the end token comes first. With an empty `before` it is the whole rendering.
pub fn next_turn(template: &ChatTemplate, before: &[Message], after: &[Message]) -> Result<String, ChatError> {
    let whole = template.render(after, true)?;
    let (asked, end_of_turn) = match before {
        [] => return Ok(whole),
        [asked @ .., Message { role: Role::Assistant, .. }] => (asked, template.end_of_turn()),
        _ => return Err(ChatError::NotAnswered),
    };
    let fed = template.render(asked, true)?;
    let closed = template.render(before, false)?;
    let answer = closed.strip_prefix(&fed).ok_or(ChatError::Rewrites)?;
    let rest = whole.strip_prefix(&closed).ok_or(ChatError::Rewrites)?;
    match answer.rsplit_once(end_of_turn) {
        Some((_, tail)) if !end_of_turn.is_empty() => Ok(tail.to_owned() + rest),
        _ => Err(ChatError::NoEnd { end_of_turn: end_of_turn.to_owned() }),
    }
}

/// The control token that begins every turn, that of the next answer too, and the tokens of the system prompt that the
/// template puts first where the conversation has none.
///
/// # Errors
/// There is no such token.
pub fn opening(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<(u32, usize), ChatError> {
    let say = |role: Role| Message::new(role, "a");
    let ids = |messages: &[Message], begin_answer: bool| -> Result<Vec<u32>, ChatError> {
        Ok(tokenizer.encode(&template.render(messages, begin_answer)?)?)
    };
    let one = ids(&[say(Role::User)], false)?;
    let asked = ids(&[say(Role::User)], true)?;
    let three = ids(&[say(Role::User), say(Role::Assistant), say(Role::User)], false)?;
    let count = |ids: &[u32], opening: u32| ids.iter().filter(|id| **id == opening).count();
    let begins_turns = |id: u32| {
        tokenizer.special(id) && count(&asked, id) == count(&one, id) + 1 && count(&three, id) == count(&one, id) + 2
    };
    let opening = one.iter().copied().find(|id| begins_turns(*id)).ok_or(ChatError::NoOpening)?;
    let mut starts = one.iter().enumerate().filter(|(_, id)| **id == opening).map(|(at, _)| at);
    // The first of two turns is the template's own.
    Ok((opening, starts.nth(1).unwrap_or(0)))
}

/// What a template says of itself, without the engine's words around it.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

#[cfg(test)]
mod tests;
