//! Sizes of what a visitor downloads, held to the budgets of `wasm-pack.toml`.

use std::io::{self, Write};

use anyhow::{Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;

/// One line of the table.
pub(crate) struct Size {
    pub(crate) what: String,
    /// Bytes as they lie on the disk.
    pub(crate) raw: u64,
    /// Bytes after gzip at its best level.
    pub(crate) gzip: u64,
    /// The limit for `gzip`, in bytes.
    pub(crate) budget: u64,
}

/// Prints the sizes.
///
/// # Errors
/// Where one is over its budget.
pub(crate) fn hold(sizes: &[Size]) -> Result<()> {
    println!("{:<28}{:>14}{:>14}{:>14}", "", "raw", "gzip", "budget");
    for Size { what, raw, gzip, budget } in sizes {
        println!("{what:<28}{:>14}{:>14}{:>14}", grouped(*raw), grouped(*gzip), grouped(*budget));
    }
    for Size { what, gzip, budget, .. } in sizes {
        if gzip > budget {
            bail!(
                "{what} is {} bytes over its budget of {} (gzip): make it smaller, or raise the budget in {} and say why",
                grouped(gzip - budget),
                grouped(*budget),
                crate::pack::FILE
            );
        }
    }
    Ok(())
}

/// How many bytes gzip leaves of `bytes` at its best level.
pub(crate) fn gzip_length(bytes: &[u8]) -> io::Result<u64> {
    let mut encoder = GzEncoder::new(Counter(0), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.0)
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// 1234567 as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(gzip: u64) -> Size {
        Size { what: "module".into(), raw: 5000, gzip, budget: 1000 }
    }

    #[test]
    fn a_budget_holds_to_the_byte() {
        hold(&[size(1000)]).unwrap();
        let message = hold(&[size(10), size(2235)]).expect_err("over the budget").to_string();
        assert!(message.contains("1,235 bytes over its budget of 1,000"), "{message}");
    }

    #[test]
    fn gzip_shrinks_what_repeats_and_nothing_else() {
        // RFC 1952: 18 bytes of frame; RFC 1951: an empty stream of one fixed block is 2 bytes.
        assert_eq!(gzip_length(b"").unwrap(), 20);
        assert!(gzip_length(&[7; 100_000]).unwrap() < 200);
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        assert!(gzip_length(&noise).unwrap() >= 10_000);
    }

    #[test]
    fn thousands_are_grouped() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (98_362_432, "98,362,432")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
