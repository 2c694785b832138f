//! The losses of lanes as a table; its form is told in `crates/wasm/run.d.ts`.

use super::{Run, rounded};
use std::borrow::Cow;

/// One lane's column.
pub struct Column<'a> {
    pub name: &'a str,
    pub nll: &'a [Option<f64>],
    /// What the lane read: one more than it has losses; none where that is not told.
    pub tokens: Option<&'a [u32]>,
}

/// The table. `text` is that of a token; lanes that read the same share the columns of tokens. A loss is the mean of `every`.
pub fn csv<'t>(columns: &[Column<'_>], shared: bool, every: usize, text: impl Fn(u32) -> Cow<'t, str>) -> String {
    let tokens = columns.first().and_then(|column| column.tokens);
    let mut header = vec!["i".to_owned()];
    if shared && tokens.is_some() {
        header.extend(["token_id".to_owned(), "token".to_owned()]);
    }
    for column in columns {
        if !shared {
            header.extend([heading("token_id", column.name), heading("token", column.name)]);
        }
        header.push(heading("nll", column.name));
    }
    let mut out = header.join(",") + "\n";
    let fields = |tokens: Option<&[u32]>, row: usize| match tokens.and_then(|tokens| tokens.get(row + 1)) {
        Some(id) => [id.to_string(), quoted(&text(*id))],
        None => [String::new(), String::new()],
    };
    for row in 0..columns.iter().map(|column| column.nll.len()).max().unwrap_or(0) {
        let mut line = vec![(row * every).to_string()];
        if shared && tokens.is_some() {
            line.extend(fields(tokens, row));
        }
        for column in columns {
            if !shared {
                line.extend(fields(column.tokens, row));
            }
            let nll = column.nll.get(row).copied().flatten();
            // Never a negative zero.
            line.push(nll.map_or(String::new(), |nll| (rounded(nll, 4) + 0.0).to_string()));
        }
        out += &line.join(",");
        out += "\n";
    }
    out
}

impl Run {
    /// The table of its losses.
    pub fn csv(&self) -> String {
        let lanes = self.lanes.iter();
        let columns: Vec<Column<'_>> = lanes
            .map(|lane| Column { name: &lane.name, nll: &lane.nll, tokens: lane.tokens(self.tokens.as_deref()) })
            .collect();
        let text = |id: u32| {
            let bytes = self.vocab.get(&id).and_then(super::TokenText::bytes).unwrap_or_default();
            Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
        };
        csv(&columns, self.mode == super::Mode::Forced, self.every, text)
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn heading(what: &str, name: &str) -> String {
    let heading = format!("{what} {name}");
    if heading.contains([',', '"', '\n', '\r']) { quoted(&heading) } else { heading }
}
