//! Bytes of tokens to text, as they come, without ever showing half a character.

/// Turns a stream of bytes into text.
///
/// A character whose last bytes have not come yet waits; bytes that no further byte can complete
/// become U+FFFD at once. All that `push` and `flush` give, joined, is
/// [`String::from_utf8_lossy`] of all bytes, however they were cut.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// The beginning of a character: three bytes at most between calls.
    waiting: Vec<u8>,
}

impl Detokenizer {
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `bytes` complete; may be empty.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.waiting.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.waiting.as_slice();
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            rest = &rest[chunk.valid().len()..];
            // Only the last bytes can be a character that is not complete.
            if chunk.invalid().len() == rest.len() && is_incomplete(rest) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &rest[chunk.invalid().len()..];
            }
        }
        let used = self.waiting.len() - rest.len();
        self.waiting.drain(..used);
        text
    }

    /// Ends the stream: U+FFFD if it ends within a character.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.waiting).into_owned();
        self.waiting.clear();
        text
    }
}

/// Whether `bytes` begin one character and do not end it.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(bytes: &[&[u8]]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new();
        let mut texts: Vec<String> = bytes.iter().map(|piece| detokenizer.push(piece)).collect();
        texts.push(detokenizer.flush());
        texts
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        assert_eq!(pieces(&[b"a\xf0", b"\x9f", b"\x8e", b"\x89b"]), ["a", "", "", "🎉b", ""]);
    }

    #[test]
    fn what_cannot_be_completed_does_not_wait() {
        assert_eq!(pieces(&[b"\xff", b"x"]), ["\u{fffd}", "x", ""]);
        assert_eq!(pieces(&[b"\xe2\x82", b"a"]), ["", "\u{fffd}a", ""]);
        // E0 must be followed by A0 to BF: two replacements, as nothing can follow E0 80.
        assert_eq!(pieces(&[b"\xe0", b"\x80"]), ["", "\u{fffd}\u{fffd}", ""]);
        assert_eq!(pieces(&[b"\xed\xa0"]), ["\u{fffd}\u{fffd}", ""]);
    }

    #[test]
    fn a_stream_may_end_within_a_character() {
        assert_eq!(pieces(&[b"ok \xf0\x9f\x8e"]), ["ok ", "\u{fffd}"]);
    }

    /// Bytes that meet every rule of UTF-8 often.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let interesting = prop::sample::select(vec![
            0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2, 0xdf, 0xe0, 0xe2, 0xed, 0xef, 0xf0, 0xf3, 0xf4,
            0xf5,
        ]);
        prop::collection::vec(prop_oneof![3 => interesting, 1 => any::<u8>()], 0..24)
    }

    proptest! {
        #[test]
        fn any_cut_of_any_bytes_gives_the_same_text(bytes in bytes(), mut cuts in prop::collection::vec(0usize..24, 0..24)) {
            cuts.retain(|cut| *cut <= bytes.len());
            cuts.sort_unstable();
            let mut detokenizer = Detokenizer::new();
            let (mut text, mut start) = (String::new(), 0);
            for end in cuts.into_iter().chain([bytes.len()]) {
                text += &detokenizer.push(&bytes[start..end]);
                start = end;
            }
            text += &detokenizer.flush();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn text_is_given_as_soon_as_it_is_complete(text in "\\PC{0,12}") {
            let mut detokenizer = Detokenizer::new();
            let mut given = String::new();
            for (index, byte) in text.bytes().enumerate() {
                given += &detokenizer.push(&[byte]);
                let whole = (0..=index + 1).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
                prop_assert_eq!(&given, &text[..whole]);
            }
        }
    }
}
