use model::chat::{Message, Role};
use model::device::Place;
use model::generate::{Conversation, Event, GenerateError, Reason, Text};
use model::sampler::Settings;
use model::session::{CacheSettings, Model, Session};
use policy::Policy;
use std::rc::Rc;
use tests::{Tiny, load, real_model};

fn conversation(model: &Rc<Model>, policy: Policy) -> Conversation {
    let settings = CacheSettings::new(policy);
    Conversation::new(Session::new(Rc::clone(model), settings, 32).expect("the cache fits"))
}

/// Ids, text and the reason of the end; and what left the cache while the prompt was read.
fn answer(conversation: &mut Conversation, text: &Text) -> (Vec<u32>, String, Reason, u64) {
    let (mut ids, mut whole, mut left) = (Vec::new(), String::new(), 0);
    loop {
        match pollster::block_on(conversation.step(text)).expect("a step") {
            Event::Prompt { evicted, .. } => left += evicted.map_or(0, |range| range.end - range.start),
            Event::Token { id, slot, text, .. } => {
                assert_eq!(slot + 1, conversation.session().stream().held());
                ids.push(id);
                whole.push_str(&text);
            }
            Event::End { reason, text } => return (ids, whole + &text, reason, left),
        }
    }
}

#[test]
fn the_real_model_answers_and_its_turns_are_closed() {
    let _alone = tests::alone();
    let (model, header) = real_model(Place::cpu());
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut conversation = conversation(&model, Policy::Sinks { sinks: 4, recent: 1020 });
    conversation.send(&text, "What is the capital of France?", &Settings::greedy(), 40).expect("sent");
    let (_, first, reason, _) = answer(&mut conversation, &text);
    assert!(first.contains("Paris"), "{first:?}");
    assert_eq!(reason, Reason::End);
    conversation.send(&text, "And of Italy?", &Settings::greedy(), 40).expect("sent");
    let (ids, _, reason, _) = answer(&mut conversation, &text);
    // What went through the model is the rendering of the whole conversation, whose last answer is not closed yet.
    let mut messages = conversation.messages().to_vec();
    assert_eq!(messages.len(), 4);
    let rendering = {
        let last = messages.pop().expect("an answer");
        text.template.render(&messages, true).expect("renders") + &last.content
    };
    let all = text.tokenizer.encode(&rendering).expect("encodes");
    assert_eq!(conversation.session().stream().fed(), all.len() as u64);
    assert!(all.ends_with(&ids));
    assert_eq!(reason, Reason::End);
}

#[test]
fn a_prompt_longer_than_the_cache_streams_through_and_says_what_left() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut conversation = conversation(&model, Policy::Sinks { sinks: 4, recent: 28 });
    let long = "A long message. ".repeat(20);
    conversation.send(&text, &long, &Settings::greedy(), 5).expect("sent");
    let (ids, _, _, left) = answer(&mut conversation, &text);
    let fed = conversation.session().stream().fed();
    assert!(fed > 300);
    assert_eq!(left, fed - ids.len() as u64 - 32);
    assert_eq!(conversation.session().stream().held(), 32);
}

/// Whole turns leave a conversation: what is kept begins where a turn begins, and the system prompt stays.
#[test]
fn a_conversation_loses_whole_turns() {
    let _alone = tests::alone();
    let (model, header) = real_model(Place::cpu());
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let turns = text.turns().expect("the template marks turns");
    let settings = CacheSettings { turns: Some(turns), ..CacheSettings::new(Policy::Sinks { sinks: 4, recent: 40 }) };
    let session = Session::new(Rc::clone(&model), settings, 32).expect("the cache fits");
    assert_eq!(session.settings().policy, Policy::Sinks { sinks: turns.pinned, recent: 40 });
    let mut conversation = Conversation::new(session);
    let mut left: Vec<(std::ops::Range<u64>, std::ops::Range<u64>)> = Vec::new();
    for question in ["What is the capital of France?", "And of Italy?", "And of Spain?", "And of Greece?"] {
        conversation.send(&text, question, &Settings::greedy(), 24).expect("sent");
        while let Event::Prompt { evicted, evicted_turns, .. } | Event::Token { evicted, evicted_turns, .. } =
            pollster::block_on(conversation.step(&text)).expect("a step")
        {
            left.extend(evicted.zip(evicted_turns));
        }
    }
    let mut messages = conversation.messages().to_vec();
    let last = messages.pop().expect("an answer");
    let rendering = text.template.render(&messages, true).expect("renders") + &last.content;
    let ids = text.tokenizer.encode(&rendering).expect("encodes");
    assert!(!left.is_empty());
    // Turn 0 is the system's, which stays.
    let (mut token, mut turn) = (u64::from(turns.pinned), 1);
    for (tokens, numbers) in left {
        assert_eq!((tokens.start, numbers.start), (token, turn));
        (token, turn) = (tokens.end, numbers.end);
        assert_eq!(ids[token as usize], turns.opening);
        let begun = ids[..token as usize].iter().filter(|id| **id == turns.opening).count();
        assert_eq!(begun as u64, turn);
    }
    assert!(turn >= 4, "{turn} turns are gone");
}

#[test]
fn stop_between_two_steps_keeps_the_stream_well_formed() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    for steps in [0, 1, 2, 6] {
        let mut conversation = conversation(&model, Policy::Dense);
        conversation.send(&text, &"Hello there. ".repeat(10), &Settings::greedy(), 0).expect("sent");
        for _ in 0..steps {
            pollster::block_on(conversation.step(&text)).expect("a step");
        }
        assert!(matches!(conversation.stop(), Event::End { reason: Reason::Stopped, .. }));
        conversation.send(&text, "Again", &Settings::greedy(), 3).expect("sent");
        answer(&mut conversation, &text);
        let roles: Vec<Role> = conversation.messages().iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::User, Role::Assistant]);
    }
}

/// Pieces of a prompt tell their ids and text, which joined are the rendering, wherever a piece or a stop cuts a character.
#[test]
fn a_prompt_says_what_it_reads() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let messages = [Message::new(Role::User, "Rain 🎉 and 日本, ".repeat(12))];
    let rendering = text.template.render(&messages, true).expect("renders");
    for stopped in [None, Some(1), Some(3)] {
        let mut conversation = conversation(&model, Policy::Sinks { sinks: 4, recent: 60 });
        conversation.send(&text, &messages[0].content, &Settings::greedy(), 0).expect("sent");
        let (mut ids, mut read, mut steps) = (Vec::new(), String::new(), 0);
        while let Event::Prompt { tokens, .. } = pollster::block_on(conversation.step(&text)).expect("a step") {
            for (id, piece) in tokens {
                ids.push(id);
                read.push_str(&piece);
            }
            steps += 1;
            assert_eq!(conversation.session().stream().fed(), ids.len() as u64);
            if Some(steps) == stopped {
                conversation.stop();
                conversation.proceed(&Settings::greedy(), 0).expect("it was stopped");
            }
        }
        assert!(steps > 3, "{steps} pieces");
        assert_eq!(read, rendering);
        assert_eq!(ids, text.tokenizer.encode(&rendering).expect("encodes"));
    }
}

/// A conversation that never ends remembers as much as one of a few turns, and its turns are the same text.
#[test]
fn a_conversation_does_not_grow() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut conversation = conversation(&model, Policy::Sinks { sinks: 4, recent: 60 });
    let mut read = Vec::new();
    for _ in 0..30 {
        let before = conversation.session().stream().fed();
        conversation.send(&text, "Hello", &Settings::greedy(), 1).expect("sent");
        answer(&mut conversation, &text);
        read.push(conversation.session().stream().fed() - before);
        assert!(conversation.messages().len() <= 17, "{} messages", conversation.messages().len());
        assert_eq!(conversation.messages()[0].role, Role::User);
    }
    assert_eq!(read[2..], vec![read[1]; 28], "every turn has the same tokens");
    let warm = Settings { temperature: 1.0, top_p: 1.0, seed: 3, ..Settings::default() };
    conversation.send(&text, "Hello", &warm, 20_000).expect("sent");
    answer(&mut conversation, &text);
    let longest = conversation.messages().iter().map(|message| message.content.len()).max();
    assert!(longest.is_some_and(|bytes| bytes <= 8192 + 64), "{longest:?} bytes");
}

#[test]
fn the_same_seed_writes_the_same_and_the_penalty_is_felt() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let run = |settings: Settings| {
        let mut conversation = conversation(&model, Policy::Sinks { sinks: 4, recent: 60 });
        conversation.send(&text, "Hello", &settings, 40).expect("sent");
        answer(&mut conversation, &text).0
    };
    let warm = Settings { temperature: 1.0, top_p: 1.0, seed: 7, ..Settings::default() };
    assert_eq!(run(warm), run(warm));
    assert_ne!(run(warm), run(Settings { seed: 8, ..warm }));
    let greedy = run(Settings::greedy());
    let penalized = run(Settings { repetition_penalty: 5.0, ..Settings::greedy() });
    let distinct = |ids: &[u32]| ids.iter().collect::<std::collections::HashSet<_>>().len() as f64 / ids.len() as f64;
    assert!(distinct(&penalized) > distinct(&greedy), "{greedy:?} and {penalized:?}");
}

#[test]
fn nothing_to_say() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut conversation = conversation(&model, Policy::Dense);
    for message in ["", "  \n"] {
        let refused = conversation.send(&text, message, &Settings::greedy(), 5);
        assert!(matches!(refused, Err(GenerateError::Empty)));
    }
    let bad = Settings { temperature: f32::NAN, ..Settings::default() };
    assert!(conversation.send(&text, "Hello", &bad, 5).is_err());
    assert_eq!(conversation.messages(), &[] as &[Message]);
}

/// `resume` on an empty stream, and what it then writes.
fn resumed(
    model: &Rc<Model>,
    text: &Text,
    policy: Policy,
    messages: &[Message],
    most: usize,
) -> (Conversation, Vec<u32>) {
    let mut conversation = conversation(model, policy);
    conversation.resume(text, messages, &Settings::greedy(), most, true).expect("resumed");
    let (ids, ..) = answer(&mut conversation, text);
    (conversation, ids)
}

#[test]
fn a_conversation_that_fits_is_read_again_as_it_was() {
    let _alone = tests::alone();
    // A random model writes bytes that are no text, which would not come back as the same ids.
    let (model, header) = real_model(Place::cpu());
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut kept = conversation(&model, Policy::Dense);
    kept.send(&text, "What is the capital of France?", &Settings::greedy(), 12).expect("sent");
    let (first, ..) = answer(&mut kept, &text);
    kept.send(&text, "And of Italy?", &Settings::greedy(), 12).expect("sent");
    let (second, ..) = answer(&mut kept, &text);

    // Asked again, and gone on with after three of the tokens.
    let (again, ids) = resumed(&model, &text, Policy::Dense, &kept.messages()[..3], 12);
    assert_eq!(ids, second);
    assert_eq!(again.messages(), kept.messages());
    assert_eq!(again.session().stream().fed(), kept.session().stream().fed());
    let mut cut = conversation(&model, Policy::Dense);
    cut.send(&text, "What is the capital of France?", &Settings::greedy(), 3).expect("sent");
    let (begun, ..) = answer(&mut cut, &text);
    cut.proceed(&Settings::greedy(), 9).expect("it was cut");
    let (rest, ..) = answer(&mut cut, &text);
    assert_eq!([begun, rest].concat(), first);
    assert_eq!(cut.messages(), &kept.messages()[..2]);
}

#[test]
fn a_long_conversation_is_read_from_a_turn_that_the_cache_holds() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let mut messages = vec![Message::new(Role::System, "Be brief.")];
    for i in 0..10 {
        messages.push(Message::new(Role::User, format!("Question {i} about the sea")));
        messages.push(Message::new(Role::Assistant, format!("Answer {i}: it is wide")));
    }
    let policy = Policy::Sinks { sinks: 4, recent: 124 };
    let mut conversation = conversation(&model, policy);
    let places = conversation.resume(&text, &messages, &Settings::greedy(), 0, false).expect("resumed");
    let (ids, _, reason, left) = answer(&mut conversation, &text);
    assert_eq!((ids.len(), reason, left), (0, Reason::Stopped, 0));
    let fed = conversation.session().stream().fed();
    assert!((64..=128).contains(&fed), "{fed} tokens");
    assert_eq!(conversation.messages(), messages);
    // Those left out come first, the rest lies without a gap behind the sinks.
    let first = places.iter().position(Option::is_some).expect("something was kept");
    assert!(first > 0 && first < messages.len());
    let mut at = 4;
    for place in &places[first..] {
        let place = place.clone().expect("no gap");
        assert_eq!(place.start, at);
        at = place.end;
    }
    assert_eq!(at, fed);
    // And it goes on.
    conversation.send(&text, "Again", &Settings::greedy(), 3).expect("sent");
    assert!(answer(&mut conversation, &text).0.len() <= 3);
}

#[test]
fn a_turn_that_is_longer_than_the_cache_keeps_its_end() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let messages = [Message::new(Role::User, "Hello"), Message::new(Role::Assistant, "word ".repeat(200))];
    let mut conversation = conversation(&model, Policy::Window { recent: 32 });
    let places = conversation.resume(&text, &messages, &Settings::greedy(), 0, false).expect("resumed");
    assert_eq!(places, [None, Some(0..32)]);
}

#[test]
fn what_cannot_be_read_again_is_refused() {
    let (model, header) = load(&Tiny::default().gguf(), Place::cpu()).expect("a tiny model loads");
    let text = Text::from_gguf(&header).expect("tokenizer and template");
    let greedy = Settings::greedy();
    let asked = [Message::new(Role::User, "Hello")];
    let mut conversation = conversation(&model, Policy::Dense);
    assert!(matches!(conversation.proceed(&greedy, 1), Err(GenerateError::NoAnswer)));
    assert!(matches!(conversation.resume(&text, &[], &greedy, 1, true), Err(GenerateError::Empty)));
    assert!(matches!(conversation.resume(&text, &asked, &greedy, 1, false), Err(GenerateError::Unanswered)));
    conversation.send(&text, "Hello", &greedy, 2).expect("sent");
    answer(&mut conversation, &text);
    assert!(matches!(conversation.resume(&text, &asked, &greedy, 1, true), Err(GenerateError::NotEmpty)));
}
