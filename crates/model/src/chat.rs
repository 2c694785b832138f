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

    /// Gives the template a clock that stands: `strftime_now` answers with the date `unix_seconds`
    /// after 1970-01-01 00:00, in the caller's time zone.
    pub fn with_time(mut self, unix_seconds: i64) -> Self {
        let date = Date::from_days(unix_seconds.div_euclid(86_400));
        self.environment.add_function("strftime_now", move |format: String| date.format(&format));
        self
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

/// What a template says of itself, without the engine's words around it.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Date {
    year: i64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: i64,
}

impl Date {
    /// The date `days` after 1970-01-01. Years run from March here, so that a leap day is a year's
    /// last, and the months before a day follow from a straight line.
    fn from_days(days: i64) -> Self {
        const DAYS_OF_400_YEARS: i64 = 146_097;
        let since_0000_03_01 = days.saturating_add(719_468);
        let era = since_0000_03_01.div_euclid(DAYS_OF_400_YEARS);
        let day_of_era = since_0000_03_01.rem_euclid(DAYS_OF_400_YEARS);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        Self { year, month: month as usize, day }
    }

    /// `strftime` for the directives of a date.
    fn format(self, format: &str) -> Result<String, minijinja::Error> {
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let month_name = MONTHS.get(self.month - 1).copied().unwrap_or_default();
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            match characters.next() {
                Some('Y') => text += &self.year.to_string(),
                Some('m') => text += &format!("{:02}", self.month),
                Some('d') => text += &format!("{:02}", self.day),
                Some('B') => text += month_name,
                Some('b') => text += &month_name[..3],
                Some('%') => text.push('%'),
                other => {
                    let problem = format!("strftime_now knows %Y %m %d %B %b, not %{}", other.unwrap_or(' '));
                    return Err(minijinja::Error::new(ErrorKind::InvalidOperation, problem));
                }
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
