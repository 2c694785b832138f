//! The tokenizer against ids from an independent program, on small vocabularies worked by hand, and
//! on bad ones.

use super::*;
use crate::gguf::tests::file::{Field, File};
use crate::gguf::tests::{default_model_header, header_of};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

static MODEL: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf(&default_model_header()).unwrap());

/// Text and ids, from `tests/golden/text.json`.
fn golden() -> Vec<(String, Vec<u32>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = golden["tokens"].as_array().unwrap();
    assert_eq!(cases.len(), 30);
    let ids = |case: &Value| serde_json::from_value(case["ids"].clone()).unwrap();
    cases.iter().map(|case| (case["text"].as_str().unwrap().to_owned(), ids(case))).collect()
}

fn text_of(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| tokenizer.token_bytes(*id).to_vec()).collect()
}

#[test]
fn ids_of_an_independent_encoder() {
    for (text, ids) in golden() {
        assert_eq!(MODEL.encode(&text).unwrap(), ids, "{text:?}");
        assert_eq!(text_of(&MODEL, &ids), text.as_bytes(), "{text:?}");
    }
}

#[test]
fn the_same_ids_from_a_tokenizer_json() {
    let header = default_model_header();
    let strings = |key| header.metadata.require::<&StringArray>(key).unwrap();
    let tokens = strings("tokenizer.ggml.tokens");
    let vocab: HashMap<&str, usize> = tokens.iter().zip(0..).collect();
    let merges: Vec<&str> = strings("tokenizer.ggml.merges").iter().collect();
    let added: Vec<Value> = (0..17)
        .map(|id| json!({"id": id, "content": tokens.get(id), "special": true, "normalized": false, "lstrip": false}))
        .collect();
    let digits = json!({"type": "Digits", "individual_digits": true});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "vocab": vocab, "merges": merges},
    });
    let tokenizer = Tokenizer::from_tokenizer_json(file.to_string().as_bytes()).unwrap();
    for (text, ids) in golden() {
        assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{text:?}");
    }
    assert_eq!((tokenizer.vocab_size(), tokenizer.eos(), tokenizer.bos()), (49152, &[0, 2][..], None));
}

#[test]
fn control_tokens_of_the_default_model() {
    assert_eq!(MODEL.vocab_size(), 49152);
    assert_eq!(MODEL.eos(), [0, 2]);
    assert_eq!(MODEL.bos(), None);
    assert_eq!((0..49152).filter(|id| MODEL.special(*id)).collect::<Vec<_>>(), (0..17).collect::<Vec<_>>());
    assert_eq!(MODEL.special_id("<|im_end|>"), Some(2));
    assert_eq!(MODEL.special_id("the"), None);
    assert_eq!(MODEL.token_bytes(2), b"<|im_end|>");
    assert_eq!(MODEL.token_bytes(22342), b"\n\n\n\n");
    assert!(!MODEL.special(49152) && MODEL.token_bytes(49152).is_empty() && MODEL.token_bytes(u32::MAX).is_empty());
}

#[test]
fn four_newlines_are_one_token() {
    assert_eq!(MODEL.encode("\n\n\n\n").unwrap(), [22342]);
}

#[test]
fn a_long_text_without_spaces_is_encoded() {
    let text = "a".repeat(1 << 17);
    assert_eq!(text_of(&MODEL, &MODEL.encode(&text).unwrap()), text.as_bytes());
}

proptest! {
    #[test]
    fn ids_give_the_text_back(text in r"[\PC\n\t\r <|>a-z0-9]{0,60}") {
        // Bytes for which this vocabulary has no token; see `encode`.
        let missing = |byte: u8| matches!(byte, 0xc0 | 0xc1 | 0xf1.. | 4 | 6 | 19 | 20 | 22 | 29) && !matches!(byte, 0xf3 | 0xf4);
        let bytes: Vec<u8> = text.bytes().filter(|byte| !missing(*byte)).collect();
        prop_assert_eq!(text_of(&MODEL, &MODEL.encode(&text).unwrap()), bytes);
    }
}

/// The tokenizer of a file with these tokens.
fn small(change: impl FnOnce(&mut Vec<(String, Field)>)) -> Result<Tokenizer, TokenizerError> {
    let strings = |list: &[&str]| Field::Strings(list.iter().map(|text| (*text).to_owned()).collect());
    let mut pairs = [
        ("tokenizer.ggml.model", Field::from("gpt2")),
        ("tokenizer.ggml.pre", Field::from("smollm")),
        ("tokenizer.ggml.tokens", strings(&["<|im_end|>", "a", "b", "1", "Ġ", "ab", "Ġab", "11", "<tool>", "é"])),
        ("tokenizer.ggml.token_type", Field::I32s(vec![3, 1, 1, 1, 1, 1, 1, 1, 4, 1])),
        ("tokenizer.ggml.merges", strings(&["a b", "Ġ ab", "1 1"])),
        ("tokenizer.ggml.eos_token_id", Field::U32(0)),
    ]
    .map(|(key, field)| (key.to_owned(), field))
    .to_vec();
    change(&mut pairs);
    Tokenizer::from_gguf(&header_of(&File { pairs, tensors: Vec::new(), ..File::sample() }))
}

/// The message after `key` was given another value, or none.
#[track_caller]
fn refused(key: &str, field: Option<Field>) -> String {
    let result = small(|pairs| {
        pairs.retain(|(name, _)| name != key);
        pairs.extend(field.map(|field| (key.to_owned(), field)));
    });
    result.err().expect("the tokenizer is wrong").to_string()
}

#[test]
fn a_vocabulary_worked_by_hand() {
    let tokenizer = small(|_| {}).unwrap();
    // Merges never cross digits; control and added tokens come out before anything else.
    assert_eq!(tokenizer.encode("ab ab11<|im_end|>a<tool>b").unwrap(), [5, 6, 3, 3, 0, 1, 8, 2]);
    assert_eq!((tokenizer.special(0), tokenizer.special(8), tokenizer.special(1)), (true, false, false));
    assert_eq!(tokenizer.token_bytes(6), b" ab");
    assert_eq!(tokenizer.token_bytes(8), b"<tool>");
    assert_eq!(tokenizer.token_bytes(9), [0xe9], "a character of the alphabet is a byte, not its UTF-8");
    assert_eq!(tokenizer.eos(), [0]);
    // There is no token for `c`: it is left out, before the merges.
    assert_eq!(tokenizer.encode("acb").unwrap(), [5]);

    let gpt2 = small(|pairs| pairs[1].1 = Field::from("gpt-2")).unwrap();
    assert_eq!(gpt2.encode("ab11").unwrap(), [5, 7]);
}

#[test]
fn a_token_outside_of_the_alphabet_is_its_own_text() {
    let strings = Field::Strings(vec!["日".to_owned(), "a".to_owned()]);
    let tokenizer = small(|pairs| {
        pairs[2].1 = strings;
        pairs[3].1 = Field::I32s(vec![1, 1]);
        pairs[4].1 = Field::Strings(Vec::new());
    })
    .unwrap();
    assert_eq!(tokenizer.token_bytes(0), "日".as_bytes());
    assert_eq!(tokenizer.token_bytes(1), b"a");
}

#[test]
fn the_first_token_is_named_only_where_it_is_wanted() {
    let with = |wanted: bool, id: u32| {
        small(|pairs| {
            pairs.push(("tokenizer.ggml.bos_token_id".to_owned(), Field::U32(id)));
            pairs.push(("tokenizer.ggml.add_bos_token".to_owned(), Field::Bool(wanted)));
        })
    };
    assert_eq!(with(true, 0).unwrap().bos(), Some(0));
    assert_eq!(with(false, 0).unwrap().bos(), None);
    assert!(with(true, 10).err().unwrap().to_string().contains("`tokenizer.ggml.bos_token_id` is 10"));
}

#[test]
fn bad_tokenizers() {
    let strings = |list: &[&str]| Some(Field::Strings(list.iter().map(|text| (*text).to_owned()).collect()));
    assert!(refused("tokenizer.ggml.model", None).starts_with("the file has no tokenizer"));
    assert!(refused("tokenizer.ggml.model", Some("llama".into())).contains("model `llama` is not supported"));
    assert!(
        refused("tokenizer.ggml.pre", Some("llama-bpe".into())).contains("pre-tokenizer `llama-bpe` is not supported")
    );
    for key in ["pre", "tokens", "merges", "token_type"] {
        let key = format!("tokenizer.ggml.{key}");
        assert!(refused(&key, None).starts_with(&format!("the file has no metadata `{key}`")));
        assert!(refused(&key, Some(Field::Bool(true))).starts_with(&format!("metadata `{key}` is the boolean true")));
    }
    assert!(refused("tokenizer.ggml.token_type", Some(Field::I32s(vec![1]))).contains("10 tokens and the types of 1"));
    assert!(refused("tokenizer.ggml.token_type", Some(Field::I32s(vec![9; 10]))).contains("token 0 has type 9"));
    assert!(refused("tokenizer.ggml.eos_token_id", Some(Field::U32(10))).contains("is 10, but there are 10 tokens"));
    assert!(refused("tokenizer.ggml.merges", strings(&["a b c"])).contains("`a b c` is not two tokens"));
    assert!(refused("tokenizer.ggml.merges", strings(&["ab"])).contains("`ab` is not two tokens"));
    // Both sides are tokens and the result is longer than any token.
    let merge = refused("tokenizer.ggml.merges", strings(&["<|im_end|> <tool>"]));
    assert!(merge.contains("the merge of `<|im_end|>` and `<tool>` names no tokens"), "{merge}");
    assert!(refused("tokenizer.ggml.tokens", strings(&["a"; 10])).contains("tokens 0 and 1 are both `a`"));
}

#[test]
fn bad_tokenizer_json() {
    let base = json!({
        "added_tokens": [{"id": 3, "content": "<|endoftext|>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    });
    let tokenizer = Tokenizer::from_tokenizer_json(base.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("abb<|endoftext|>a").unwrap(), [2, 1, 3, 0]);
    assert_eq!(tokenizer.eos(), [3]);

    let changed = |pointer: &str, value: Value| {
        let mut file = base.clone();
        match file.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => file["model"][pointer] = value,
        }
        Tokenizer::from_tokenizer_json(file.to_string().as_bytes()).err().expect("the file is wrong").to_string()
    };
    assert!(changed("type", json!("Unigram")).contains("`Unigram` is not supported"));
    assert!(changed("byte_fallback", json!(true)).contains("byte_fallback"));
    assert!(changed("end_of_word_suffix", json!("</w>")).contains("suffix"));
    assert!(changed("/decoder", json!({"type": "WordPiece"})).contains("decoder `WordPiece`"));
    assert!(changed("/pre_tokenizer", Value::Null).contains("pre-tokenizer `none`"));
    assert!(changed("/added_tokens/0/id", json!(4)).contains("has id 4 where 3 is the next one"));
    assert!(changed("/added_tokens/0/id", json!(u32::MAX)).contains("where 3 is the next one"));
    assert!(changed("/model/vocab/b", json!(0)).contains("has id 0 where 1"));
    assert!(changed("/model/merges", json!(["b b"])).contains("names no tokens"));
    let html = Tokenizer::from_tokenizer_json(b"<html>").err().unwrap().to_string();
    assert!(html.starts_with("tokenizer.json cannot be read"), "{html}");
}
