use model::device::Place;
use model::session::{CacheSettings, Session, SessionError, Want};
use model::weights::WeightsError;
use policy::Policy;
use std::rc::Rc;
use tests::{Gguf, Kind, Tiny, load};

fn refused(bytes: &[u8]) -> String {
    match load(bytes, Place::cpu()) {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => error.to_string(),
    }
}

/// The tiny model's file with every occurrence of one name replaced by another of the same length.
fn renamed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = Tiny::default().gguf();
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

#[test]
fn a_tensor_without_a_place_or_a_place_without_a_tensor() {
    let message = refused(&renamed("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight"));
    assert!(message.contains("blk.1.ffn_up.weight") && message.contains("missing"), "{message}");
    let mut extra = Tiny { layers: 1, ..Tiny::default() }.gguf();
    // One layer more than the metadata say.
    let two = Tiny::default().gguf();
    let key = b"llama.block_count";
    let at = |bytes: &[u8]| bytes.windows(key.len()).position(|window| window == key).expect("the key") + key.len() + 4;
    let place = at(&two);
    extra.clone_from(&two);
    extra[place..place + 4].copy_from_slice(&1u32.to_le_bytes());
    let message = refused(&extra);
    assert!(message.contains("blk.1.") && message.contains("no place"), "{message}");
}

#[test]
fn another_architecture() {
    let message = refused(&renamed("llama", "gemma"));
    assert!(message.contains("gemma") && message.contains("llama"), "{message}");
}

#[test]
fn a_shape_that_the_metadata_do_not_ask_for() {
    let mut file = Gguf::default();
    file.text("general.architecture", "llama");
    for (key, value) in [
        ("llama.block_count", 1),
        ("llama.context_length", 4096),
        ("llama.embedding_length", 64),
        ("llama.feed_forward_length", 96),
        ("llama.attention.head_count", 4),
    ] {
        file.number(key, value);
    }
    file.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    file.tensor("token_embd.weight", &[64, 8], Kind::F32, &[0.0; 512]);
    file.tensor("output_norm.weight", &[32], Kind::F32, &[0.0; 32]);
    let message = refused(&file.finish());
    assert!(message.contains("missing"), "{message}");

    let good = Tiny::default().gguf();
    let key = b"llama.feed_forward_length";
    let at = good.windows(key.len()).position(|window| window == key).expect("the key") + key.len() + 4;
    let mut lying = good;
    lying[at..at + 4].copy_from_slice(&128u32.to_le_bytes());
    let message = refused(&lying);
    assert!(message.contains("ffn_") && message.contains("128"), "{message}");
}

#[test]
fn a_width_that_cannot_be_packed_or_heads_that_cannot_share() {
    let change = |key: &str, value: u32| {
        let mut bytes = Tiny::default().gguf();
        let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).expect("the key") + key.len() + 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        refused(&bytes)
    };
    for (key, value) in [
        ("llama.embedding_length", 65),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", 0),
        ("llama.block_count", 0),
        ("llama.block_count", u32::MAX),
        ("llama.rope.dimension_count", 8),
    ] {
        let message = change(key, value);
        assert!(message.contains("llama."), "{key} = {value}: {message}");
    }
}

#[test]
fn truncated_a_model_is_refused_wherever_it_ends() {
    let bytes = Tiny { d_ff: 32, vocab: 264, ..Tiny::default() }.gguf();
    for end in (0..bytes.len()).step_by(61).chain([0, 3, 4, 23, bytes.len() - 1]) {
        let message = refused(&bytes[..end]);
        assert!(message.contains("download"), "{end}: {message}");
    }
}

#[test]
fn an_html_page_in_place_of_the_file() {
    let message =
        refused(b"<!doctype html><html><head><title>404 Not Found</title></head><body>Not here</body></html>");
    assert!(message.contains("HTML") && message.contains("address"), "{message}");
}

#[test]
fn no_tokenizer() {
    let (_, header) =
        load(&renamed("tokenizer.ggml.model", "tokenizer.ggml.xxxxx"), Place::cpu()).expect("weights are whole");
    let error = model::generate::Text::from_gguf(&header).err().expect("no tokenizer");
    assert!(error.to_string().contains("tokenizer"), "{error}");
}

#[test]
fn a_cache_without_room() {
    let (model, _) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    for policy in [
        Policy::Window { recent: 0 },
        Policy::Sinks { sinks: 4, recent: 0 },
        Policy::Sinks { sinks: 4096, recent: 1 },
        Policy::Sinks { sinks: u32::MAX, recent: u32::MAX },
        Policy::Recompute { recent: 0 },
        Policy::Recompute { recent: 4097 },
    ] {
        let settings = CacheSettings::new(policy);
        let refused = Session::new(Rc::clone(&model), settings, 16);
        assert!(matches!(refused, Err(SessionError::Policy(_))), "{policy:?}");
    }
}

#[test]
fn a_token_that_does_not_exist() {
    let (model, _) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let settings = CacheSettings::new(Policy::Dense);
    let mut session = Session::new(model, settings, 16).expect("fits");
    let refused = pollster::block_on(session.feed_one(&[1, 300], Want::Nothing));
    assert!(matches!(refused, Err(SessionError::Token { id: 300, vocab: 300 })));
    assert_eq!(session.stream().fed(), 0, "nothing was fed");
}

#[test]
fn errors_are_one_type_with_a_sentence() {
    let error: WeightsError = load(b"GGUF", Place::cpu()).expect_err("four bytes are no model");
    assert!(error.to_string().len() > 20);
}
