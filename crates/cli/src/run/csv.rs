//! The losses of lanes as a table; its form is told in `crates/wasm/run.d.ts`.

use super::{Mode, Ramp, Run, TokenText, rounded};
use std::borrow::Cow;

/// One lane's columns.
pub struct Column<'a> {
    pub name: &'a str,
    pub nll: &'a [Option<f64>],
    /// What the lane read: one more than it has losses; none where that is not told.
    pub tokens: Option<&'a [u32]>,
    /// What left with each token, `[from, to)`.
    pub evicted: Vec<Option<[i64; 2]>>,
}

/// The table. `text` is that of a token; lanes that read the same share the columns of tokens. A loss is the mean of `every`.
pub fn csv<'t>(columns: &[Column<'_>], shared: bool, every: usize, text: impl Fn(u32) -> Cow<'t, str>) -> String {
    let slug = |name: &str| name.split_whitespace().collect::<Vec<_>>().join("_");
    let shared = shared || columns.len() < 2;
    let speakers = if shared { &columns[..columns.len().min(1)] } else { columns };
    let evicting: Vec<&Column<'_>> =
        columns.iter().filter(|column| column.evicted.iter().any(Option::is_some)).collect();
    let mut header = vec!["i".to_owned()];
    let mut add = |what: &[&str], name: Option<&str>| {
        header.extend(
            what.iter().map(|what| field(&name.map_or((*what).to_owned(), |name| format!("{what}_{}", slug(name))))),
        );
    };
    speakers.iter().for_each(|column| add(&["token_id", "token"], Some(column.name).filter(|_| !shared)));
    columns.iter().for_each(|column| add(&["nll"], Some(column.name)));
    match &evicting[..] {
        [] | [_] => add(&["evicted_from", "evicted_to"], None),
        several => several.iter().for_each(|column| add(&["evicted_from", "evicted_to"], Some(column.name))),
    }
    let mut out = header.join(",") + "\n";
    for row in 0..columns.iter().map(|column| column.nll.len()).max().unwrap_or(0) {
        let mut line = vec![(row * every).to_string()];
        for column in speakers {
            match column.tokens.and_then(|tokens| tokens.get(row + 1)) {
                Some(id) => line.extend([id.to_string(), field(&text(*id))]),
                None => line.extend([String::new(), String::new()]),
            }
        }
        for column in columns {
            let nll = column.nll.get(row).copied().flatten();
            // Never a negative zero.
            line.push(nll.map_or(String::new(), |nll| (rounded(nll, 4) + 0.0).to_string()));
        }
        for column in &evicting {
            match column.evicted.get(row * every).copied().flatten() {
                Some(range) => line.extend(range.map(|index| index.to_string())),
                None => line.extend([String::new(), String::new()]),
            }
        }
        if evicting.is_empty() {
            line.extend([String::new(), String::new()]);
        }
        out += &line.join(",");
        out += "\n";
    }
    out
}

impl Run {
    /// The table of its losses.
    pub fn csv(&self) -> String {
        let columns: Vec<Column<'_>> = self
            .lanes
            .iter()
            .map(|lane| Column {
                name: &lane.name,
                nll: &lane.nll,
                tokens: lane.tokens(self.tokens.as_deref()),
                evicted: evictions(&lane.oldest, lane.nll.len() * self.every),
            })
            .collect();
        let text = |id: u32| {
            let bytes = self.vocab.get(&id).and_then(TokenText::bytes).unwrap_or_default();
            Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
        };
        csv(&columns, self.mode == Mode::Forced, self.every, text)
    }
}

/// What left with each of `count` tokens, by the oldest that was there after it.
fn evictions(oldest: &Ramp, count: usize) -> Vec<Option<[i64; 2]>> {
    let mut entries = oldest.iter().peekable();
    let [mut from, mut value, mut step] = [0; 3];
    let mut last: Option<i64> = None;
    (0..count as i64)
        .map(|i| {
            while let Some(entry) = entries.next_if(|entry| entry[0] <= i) {
                [from, value, step] = *entry;
            }
            let now = value.saturating_add(step.saturating_mul(i - from));
            last.replace(now).filter(|before| *before < now).map(|before| [before, now])
        })
        .collect()
}

/// In quotes where it must be.
fn field(text: &str) -> String {
    let edge = |letter: Option<char>| letter.is_some_and(char::is_whitespace);
    if text.contains([',', '"', '\n', '\r']) || edge(text.chars().next()) || edge(text.chars().next_back()) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
