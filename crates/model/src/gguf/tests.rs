//! The reader on true files, on every truncation, and on one lie at a time.

#[path = "../../examples/fuzz_gguf/file.rs"]
pub(crate) mod file;

use self::file::{Field, File, Tensor};
use super::*;
use proptest::prelude::*;

/// What a sink was given: how many headers, and each tensor's bytes.
#[derive(Debug, Default, PartialEq)]
struct Events {
    headers: usize,
    /// In the order in which they came.
    data: Vec<(usize, Vec<u8>)>,
}

impl Sink for Events {
    fn header(&mut self, _: &Header) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert!(self.data.is_empty(), "the header comes before the data");
        self.headers += 1;
        Ok(())
    }

    fn data(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert!(!bytes.is_empty());
        match self.data.last_mut() {
            Some((last, data)) if *last == tensor => data.extend_from_slice(bytes),
            _ => self.data.push((tensor, bytes.to_vec())),
        }
        Ok(())
    }
}

/// Reads `bytes` in pieces that end at `cuts`.
fn read(bytes: &[u8], cuts: &[usize]) -> (Events, Result<Header, GgufError>) {
    let mut events = Events::default();
    let mut reader = Reader::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        if let Err(error) = reader.push(&bytes[start..end], &mut events) {
            assert!(matches!(reader.push(&[], &mut events), Err(GgufError::AlreadyFailed)));
            assert!(matches!(reader.finish(), Err(GgufError::AlreadyFailed)));
            return (events, Err(error));
        }
        start = end;
    }
    (events, reader.finish())
}

#[track_caller]
fn refused(bytes: &[u8]) -> String {
    let (events, result) = read(bytes, &[]);
    let message = result.expect_err("the file lies").to_string();
    let every: Vec<usize> = (0..bytes.len()).collect();
    let (byte_by_byte, result) = read(bytes, &every);
    assert_eq!(result.expect_err("the file lies").to_string(), message);
    assert_eq!(byte_by_byte, events);
    message
}

/// The message for the sample file after `change`; nothing of its data may have been believed.
#[track_caller]
fn lie(change: impl FnOnce(&mut File)) -> String {
    let mut file = File::sample();
    change(&mut file);
    let bytes = file.write().bytes;
    assert_eq!(read(&bytes, &[]).0, Events::default(), "refused before the header is announced");
    refused(&bytes)
}

#[test]
fn a_true_file_comes_out_as_it_went_in() {
    for version in [2, 3] {
        let file = File { version, ..File::sample() };
        let written = file.write();
        let (events, header) = read(&written.bytes, &[]);
        let header = header.unwrap();
        assert_eq!(header.version, version);
        assert_eq!(header.data_offset, written.data_offset as u64);
        assert_eq!(header.file_bytes, written.bytes.len() as u64);
        assert_eq!(events.headers, 1);
        let data: Vec<_> = file.tensors.iter().map(|tensor| tensor.data.clone()).enumerate().collect();
        assert_eq!(events.data, data);
        let kinds = [TensorKind::Q8_0, TensorKind::F32, TensorKind::F16, TensorKind::Q4_1, TensorKind::Q4_0];
        for ((info, tensor), kind) in header.tensors.iter().zip(&file.tensors).zip(kinds) {
            assert_eq!(
                (&info.name, &info.dims, info.kind, info.bytes),
                (&tensor.name, &tensor.dims, kind, tensor.data.len() as u64)
            );
        }
    }
}

#[test]
fn metadata_is_typed() {
    let header = read(&File::sample().write().bytes, &[]).1.unwrap();
    let metadata = &header.metadata;
    assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.require::<u32>("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.require::<u64>("long").unwrap(), 5_000_000_000);
    assert_eq!(metadata.require::<f32>("llama.rope.freq_base").unwrap(), 100_000.0);
    assert_eq!(metadata.get::<bool>("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
    assert_eq!(metadata.get::<bool>("no such key").unwrap(), None);
    assert_eq!(metadata.require::<Vec<i32>>("tokenizer.ggml.token_type").unwrap(), [3, 1, 1, 1, 1]);
    let tokens: &StringArray = metadata.require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), ["<|end|>", "a", "", "Ġé", "ab"]);
    assert_eq!((tokens.get(3), tokens.get(5)), (Some("Ġé"), None));
    assert_eq!(metadata.iter().count(), 8);

    let message = |error: MetadataError| error.to_string();
    assert_eq!(
        message(metadata.require::<u32>("long").unwrap_err()),
        "metadata `long` is the integer 5000000000 where an integer from 0 to 2^32-1 is needed: \
         convert the model again, or use another file"
    );
    assert_eq!(
        message(metadata.require::<&str>("missing").unwrap_err()),
        "the file has no metadata `missing` (a string): convert the model again, or use another file"
    );
}

#[test]
fn truncated_at_any_byte() {
    let written = File::sample().write();
    let (total, data_offset) = (written.bytes.len(), written.data_offset);
    let header_end = written.bytes[..data_offset].iter().rposition(|byte| *byte != 0).unwrap();
    let whole = read(&written.bytes, &[]).0;
    for have in 0..total {
        let (events, result) = read(&written.bytes[..have], &[]);
        match result.expect_err("the file is cut") {
            GgufError::Truncated { have: stated, total: stated_total, missing } => {
                assert!(have > header_end);
                assert_eq!((stated, stated_total, missing), (have as u64, total as u64, (total - have) as u64));
                let came: usize = events.data.iter().map(|(_, data)| data.len()).sum();
                assert!(came <= have.saturating_sub(data_offset));
                for ((index, data), (whole_index, whole_data)) in events.data.iter().zip(&whole.data) {
                    assert_eq!(index, whole_index);
                    assert!(whole_data.starts_with(data));
                }
            }
            GgufError::HeaderTruncated { have: stated, missing } => {
                assert!(have < data_offset && events.headers == 0);
                assert_eq!(stated, have as u64);
                assert!(missing > 0 && have as u64 + missing <= data_offset as u64, "at byte {have}: {missing}");
            }
            other => panic!("at byte {have}: {other}"),
        }
    }
    let cut = |have: usize| read(&written.bytes[..have], &[]).1.unwrap_err().to_string();
    assert_eq!(
        cut(total - 5),
        format!("the file ends after {} of {total} bytes: 5 bytes are missing; download it again", total - 5)
    );
    assert_eq!(cut(20), "the file ends in its header, after 20 bytes: at least 4 bytes are missing; download it again");
}

#[test]
fn what_is_no_gguf_is_named() {
    let message = |bytes: &[u8]| refused(bytes);
    assert_eq!(
        message(b"\n<!DOCTYPE html><html><head><title>404"),
        "this is an HTML page, not a GGUF model: check the address or the path"
    );
    assert!(message(b"{\"error\": \"Repository not found\"}").contains("JSON text"));
    assert!(message(b"Not Found").contains("plain text"));
    assert!(message(b"PK\x03\x04\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").contains("zip archive"));
    assert!(message(b"version https://git-lfs.github.com/spec/v1\n").contains("Git LFS pointer"));
    assert!(message(b"\x10\0\0\0\0\0\0\0{\"__metadata__\": {}}").contains("safetensors"));
    assert!(message(&[0xde; 40]).contains("the bytes de de de de"));
    assert!(message(b"ggml").contains("plain text"));
    assert!(message(b"GGUX").contains("plain text"));
    assert!(message(b"").contains("after 0 bytes: at least 24 bytes are missing"));
}

#[test]
fn versions() {
    assert!(lie(|file| file.version = 1).contains("GGUF version 1 is not supported"));
    assert!(lie(|file| file.version = 4).contains("GGUF version 4 is not supported"));
    assert!(lie(|file| file.version = 3u32.swap_bytes()).contains("big-endian"));
}

#[test]
fn lying_counts() {
    let huge = lie(|file| file.false_counts = Some((5, u64::MAX)));
    assert!(huge.contains("the number of metadata pairs is 18446744073709551615, more than the 65536"), "{huge}");
    let huge = lie(|file| file.false_counts = Some((u64::MAX, 8)));
    assert!(huge.contains("the number of tensors is 18446744073709551615"), "{huge}");
    // One pair too few: the pair is read as a tensor. One too many: a tensor is read as a pair.
    assert!(lie(|file| file.false_counts = Some((5, 7))).contains("tensor `long`"));
    let shifted = lie(|file| file.false_counts = Some((5, 9)));
    assert!(shifted.contains("the length of a tensor's name at byte 458"), "{shifted}");
    // One tensor too few: what is left of the header is no padding, or the data end too early.
    let bytes = File { false_counts: Some((4, 8)), ..File::sample() }.write().bytes;
    assert!(refused(&bytes).contains("should be a zero of padding"));
    let bytes = File { false_counts: Some((6, 8)), ..File::sample() }.write().bytes;
    assert!(refused(&bytes).contains("tensor `"));
}

#[test]
fn lying_arrays_and_strings() {
    let pair = |kind: u32, bytes: Vec<u8>| lie(|file| file.pairs.insert(3, ("x".to_owned(), Field::Raw(kind, bytes))));
    let array = |element: u32, count: u64| [element.to_le_bytes().as_slice(), &count.to_le_bytes()].concat();
    let huge = pair(9, array(8, u64::MAX));
    assert!(huge.contains("the number of elements of `x` is 18446744073709551615, more than the 8388608"), "{huge}");
    assert!(pair(9, array(0, MAX_HEADER + 1)).contains("the number of elements of `x`"));
    assert!(pair(9, array(9, 1)).contains("an array holds arrays"));
    assert!(pair(9, array(13, 1)).contains("no value type 13"));
    assert!(pair(99, vec![0]).contains("no value type 99"));
    let huge = pair(8, u64::MAX.to_le_bytes().to_vec());
    assert!(
        huge.contains("the length of the text of `x` at byte ") && huge.contains("more than the 1048576"),
        "{huge}"
    );
    assert!(pair(8, [2u64.to_le_bytes().as_slice(), &[0xc3, 0x28]].concat()).contains("the text of `x` at byte "));
    let mut bytes = File::sample().write().bytes;
    bytes[32] = 0xff;
    assert_eq!(refused(&bytes), "a metadata key at byte 24 is not UTF-8 text: the file is damaged, download it again");
    assert!(pair(7, vec![2]).contains("metadata `x`: a boolean is 2"));
    assert!(pair(9, [array(7, 2), vec![1, 9]].concat()).contains("a boolean is 9"));
    let long_key = lie(|file| file.pairs[0].0 = "k".repeat(1 << 16));
    assert!(long_key.contains("the length of a metadata key at byte 24 is 65536"), "{long_key}");
    let twice = lie(|file| file.pairs[1].0 = "general.architecture".to_owned());
    assert!(twice.contains("metadata `general.architecture`: the key appears twice"), "{twice}");
    for alignment in [0, 24, MAX_ALIGNMENT * 2] {
        let message = lie(|file| file.pairs.push(("general.alignment".to_owned(), Field::U32(alignment))));
        assert!(message.contains("no power of two"), "{message}");
    }
}

#[test]
fn a_header_without_end() {
    // The count is allowed, the bytes would be too many.
    let mut file = File::sample();
    let strings = vec!["y".repeat(1 << 16); 1100];
    file.pairs.push(("x".to_owned(), Field::Strings(strings)));
    let message = read(&file.write().bytes, &[]).1.unwrap_err().to_string();
    assert!(message.contains("the size of the header in bytes") && message.contains("67108864"), "{message}");
}

#[test]
fn lying_tensors() {
    let tensor = |change: fn(&mut Tensor)| lie(|file| change(&mut file.tensors[3]));
    let offset = tensor(|tensor| tensor.false_offset = Some(193));
    assert!(offset.contains("tensor `q4_1`: the data should start at offset 192 and start at 193"), "{offset}");
    assert!(tensor(|tensor| tensor.false_offset = Some(0)).contains("the data should start at offset"));
    assert!(tensor(|tensor| tensor.false_offset = Some(1 << 40)).contains("the data should start at offset"));
    assert!(tensor(|tensor| tensor.false_offset = Some(u64::MAX)).contains("the data should start at offset"));
    // A size that lies moves the place where the next tensor should be.
    assert!(tensor(|tensor| tensor.dims = vec![64, 4]).contains("tensor `q4_0`"));
    assert!(tensor(|tensor| tensor.dims = vec![1 << 63, 1 << 63]).contains("is beyond any file"));
    assert!(tensor(|tensor| tensor.dims = vec![32, u64::MAX / 32]).contains("tensor `q4_0`: the data should"));
    assert!(tensor(|tensor| tensor.dims = vec![48]).contains("a row of 48 values is not whole blocks of 32"));
    assert!(tensor(|tensor| tensor.dims = vec![64, 0]).contains("is 0"));
    assert!(tensor(|tensor| tensor.dims = vec![]).contains("0 dimensions"));
    assert!(tensor(|tensor| tensor.dims = vec![32; 5]).contains("5 dimensions"));
    assert!(tensor(|tensor| tensor.name = "norm".to_owned()).contains("tensor `norm`: the name appears twice"));
    assert!(tensor(|tensor| tensor.name = String::new()).contains("is empty"));
    assert_eq!(
        tensor(|tensor| tensor.kind = 12),
        "tensor `q4_1` is stored as Q4_K, which is not supported: use a Q4_1, Q4_0, Q8_0, F16 or F32 file"
    );
    assert!(tensor(|tensor| tensor.kind = 6).contains("Q5_0"));
    assert!(tensor(|tensor| tensor.kind = 1000).contains("type number 1000"));
    let end = lie(|file| (file.tensors[4].kind, file.tensors[4].dims) = (1, vec![(1 << 63) - 1]));
    assert!(end.contains("beyond any file"), "{end}");
    // The last tensor's size has no next one that it could contradict: the file is too short for it.
    let mut file = File::sample();
    file.tensors[4].dims = vec![32, 1000];
    assert!(refused(&file.write().bytes).contains("17982 bytes are missing"));
}

#[test]
fn data_may_come_in_another_order_than_their_descriptions() {
    let mut file = File::sample();
    file.tensors.truncate(2);
    let (norm, embedding) = (Tensor::new("norm", &[5], 0, 20, 50), Tensor::new("embedding", &[32], 8, 34, 7));
    file.tensors = vec![
        Tensor { data: norm.data.clone(), false_offset: Some(64), ..embedding.clone() },
        Tensor { data: [vec![0; 32], embedding.data.clone()].concat(), false_offset: Some(0), ..norm.clone() },
    ];
    // In the file: 20 bytes of `norm`, padding to 64 (32 zeros too many), then `embedding`.
    let message = refused(&file.write().bytes);
    assert!(message.contains("tensor `embedding`: the data should start at offset 32 and start at 64"), "{message}");
    file.tensors[0].false_offset = Some(32);
    file.tensors[1].data = embedding.data.clone();
    let (events, header) = read(&file.write().bytes, &[]);
    let names: Vec<_> = header.unwrap().tensors.into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["norm", "embedding"]);
    assert_eq!(events.data, [(0, norm.data), (1, embedding.data)]);
}

#[test]
fn only_padding_may_follow() {
    let bytes = File::sample().write().bytes;
    let aligned = bytes.len().next_multiple_of(32);
    let longer = |length: usize| {
        let mut longer = bytes.clone();
        longer.resize(length, 0);
        longer
    };
    for length in bytes.len()..=aligned {
        assert!(read(&longer(length), &[]).1.is_ok());
    }
    let message = refused(&longer(aligned + 1));
    assert!(message.contains(&format!("its last tensor, which ends at byte {}", bytes.len())), "{message}");
    let mut wrong = longer(aligned);
    wrong[aligned - 1] = 7;
    assert_eq!(
        refused(&wrong),
        format!(
            "byte {} of the file should be a zero of padding and is 7: the file is damaged, download it again",
            aligned - 1
        )
    );
}

#[test]
fn a_header_alone_is_a_file() {
    let mut file = File::sample();
    file.tensors.clear();
    let written = file.write();
    let header_bytes = written.bytes.len() - written.bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let (events, header) = read(&written.bytes, &[]);
    assert!(header.unwrap().file_bytes >= header_bytes as u64);
    assert_eq!((events.headers, events.data.len()), (1, 0));
}

#[test]
fn a_sink_that_refuses_stops_the_reader() {
    struct Full(bool);
    impl Sink for Full {
        fn header(&mut self, _: &Header) -> Result<(), Box<dyn Error + Send + Sync>> {
            if self.0 { Err("no room for the model".into()) } else { Ok(()) }
        }
        fn data(&mut self, _: usize, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
            Err("no room for a tensor".into())
        }
    }
    let bytes = File::sample().write().bytes;
    for (at_header, message) in [(true, "no room for the model"), (false, "no room for a tensor")] {
        let mut reader = Reader::new();
        assert_eq!(reader.push(&bytes, &mut Full(at_header)).unwrap_err().to_string(), message);
        assert!(matches!(reader.finish(), Err(GgufError::AlreadyFailed)));
    }
}

#[test]
fn every_integer_of_the_header_may_lie() {
    let written = File::sample().write();
    let mut refusals = 0;
    for (place, size) in &written.integers {
        for lie in [0, 1, 3, 7, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, 1 << 63, u64::MAX - 31, u64::MAX] {
            let mut bytes = written.bytes.clone();
            bytes[*place..place + size].copy_from_slice(&lie.to_le_bytes()[..*size]);
            refusals += usize::from(read(&bytes, &[]).1.is_err());
        }
    }
    // Nearly all contradict something; a version of 3 or the value of a pair do not.
    assert!(refusals > written.integers.len() * 8, "{refusals} of {}", written.integers.len() * 10);
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(cuts in prop::collection::vec(0usize..1000, 0..40)) {
        let bytes = File::sample().write().bytes;
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).collect();
        cuts.sort_unstable();
        let (events, header) = read(&bytes, &cuts);
        let (whole_events, whole_header) = read(&bytes, &[]);
        prop_assert_eq!(events, whole_events);
        prop_assert_eq!(header.unwrap(), whole_header.unwrap());
    }
}

/// The header of a small file, for tests of what is built from it.
pub(crate) fn header_of(file: &File) -> Header {
    read(&file.write().bytes, &[]).1.unwrap()
}

/// The header of the default model, for tests that need a real one.
pub(crate) fn default_model_header() -> Header {
    use std::io::Read;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut file = std::fs::File::open(path).unwrap_or_else(|error| {
        panic!("this test needs the default model at {path} ({error}): `cargo xtask demo` fetches it")
    });
    struct HeaderOnly(Option<Header>);
    impl Sink for HeaderOnly {
        fn header(&mut self, header: &Header) -> Result<(), Box<dyn Error + Send + Sync>> {
            self.0 = Some(header.clone());
            Ok(())
        }
        fn data(&mut self, _: usize, _: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
            Ok(())
        }
    }
    let (mut reader, mut sink, mut piece) = (Reader::new(), HeaderOnly(None), vec![0; 1 << 16]);
    loop {
        let count = file.read(&mut piece).unwrap();
        reader.push(&piece[..count], &mut sink).unwrap();
        match sink.0 {
            Some(header) => return header,
            None => assert!(count > 0, "the model file ends in its header: `cargo xtask demo` fetches it again"),
        }
    }
}

#[test]
fn the_default_model_is_read() {
    let header = default_model_header();
    // Facts of the published file, counted by another reader.
    assert_eq!((header.version, header.tensors.len(), header.metadata.iter().count()), (3, 272, 33));
    assert_eq!((header.data_offset, header.file_bytes), (1_785_664, 98_362_432));
    let of_kind = |kind| header.tensors.iter().filter(|tensor| tensor.kind == kind).count();
    assert_eq!((of_kind(TensorKind::F32), of_kind(TensorKind::Q4_1), of_kind(TensorKind::Q8_0)), (61, 210, 1));
    let first = &header.tensors[0];
    assert_eq!((first.name.as_str(), first.dims.as_slice(), first.offset), ("token_embd.weight", &[576, 49152][..], 0));
    assert_eq!(header.metadata.require::<f32>("llama.rope.freq_base").unwrap(), 100_000.0);
}
