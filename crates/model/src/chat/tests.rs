//! Renderings against another Jinja's, and turns against whole conversations.

use super::*;
use crate::gguf::tests::file::{Field, File};
use crate::gguf::tests::{default_model_header, header_of};
use crate::tokenizer::Tokenizer;

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                      '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                      {% endif %}";

fn tokens() -> TokenNames {
    TokenNames { bos: "<s>".to_owned(), eos: "</s>".to_owned(), end_of_turn: "<|im_end|>".to_owned() }
}

fn rendered(source: &str, messages: &[Message]) -> Result<String, String> {
    let template = ChatTemplate::new(source, tokens()).map_err(|error| error.to_string())?;
    template.render(messages, true).map_err(|error| error.to_string())
}

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

fn assistant(text: &str) -> Message {
    Message::new(Role::Assistant, text)
}

#[test]
fn renderings_of_another_jinja() {
    #[derive(Deserialize)]
    struct Case {
        messages: Vec<Message>,
        add_generation_prompt: bool,
        text: String,
    }
    #[derive(Deserialize)]
    struct Golden {
        chats: Vec<Case>,
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/text.json");
    let golden: Golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(golden.chats.len(), 12);
    let template = ChatTemplate::from_gguf(&default_model_header()).unwrap();
    assert_eq!(template.end_of_turn(), "<|im_end|>");
    for case in golden.chats {
        assert_eq!(template.render(&case.messages, case.add_generation_prompt).unwrap(), case.text);
    }
}

#[test]
fn turns_fed_one_by_one_are_the_conversation() {
    let header = default_model_header();
    let template = ChatTemplate::from_gguf(&header).unwrap();
    let tokenizer = Tokenizer::from_gguf(&header).unwrap();
    let end = tokenizer.special_id(template.end_of_turn()).unwrap();
    let turns = [
        ("What is 2+2?", "4."),
        ("And 3+3?\n", "3+3 is 6, and 30+30 is 60."),
        ("  Write a poem, naïve café 🎉", "Roses are red,\nviolets are blue.\n\n- A poem"),
        ("", ""),
        ("bye", "Bye!"),
    ];
    let (mut messages, mut before) = (Vec::new(), Vec::new());
    let (mut text, mut ids) = (String::new(), Vec::new());
    for (question, answer) in turns {
        messages.push(user(question));
        let next = next_turn(&template, &before, &messages).unwrap();
        assert_eq!(next.starts_with("\n<|im_start|>user\n"), !before.is_empty(), "the newline comes first");
        text += &next;
        ids.extend(tokenizer.encode(&next).unwrap());
        let whole = template.render(&messages, true).unwrap();
        assert_eq!(text, whole);
        assert_eq!(ids, tokenizer.encode(&whole).unwrap());

        text += &(answer.to_owned() + template.end_of_turn());
        ids.extend(tokenizer.encode(answer).unwrap());
        ids.push(end);
        messages.push(assistant(answer));
        before = messages.clone();
    }
}

#[test]
fn a_turn_needs_an_answer_and_its_end() {
    let template = ChatTemplate::new(CHATML, tokens()).unwrap();
    let (question, answer, next) = (user("a"), assistant("b"), user("c"));
    let message = |template: &ChatTemplate, before: &[Message], after: &[Message]| {
        next_turn(template, before, after).expect_err("this cannot follow").to_string()
    };
    let after = [question.clone(), answer.clone(), next.clone()];
    assert_eq!(
        next_turn(&template, &after[..2], &after).unwrap(),
        "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(message(&template, &after[..1], &after).contains("ends with no answer"));
    assert!(message(&template, &after[..2], &after[..1]).contains("changes turns that are already in the cache"));

    let no_end = "{% for message in messages %}<|im_end|>{{ message.role }}: {{ message.content }}\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_end|>assistant: {% endif %}";
    let template = ChatTemplate::new(no_end, tokens()).unwrap();
    assert!(message(&template, &after[..2], &after).contains("does not end an answer with `<|im_end|>`"));

    let only_last = "{{ messages[-1].content }}<|im_end|>";
    let template = ChatTemplate::new(only_last, tokens()).unwrap();
    assert!(message(&template, &after[..2], &after).contains("changes turns that are already in the cache"));
}

#[test]
fn blocks_take_their_line_with_them() {
    // As Jinja2 with trim_blocks and lstrip_blocks: neither the indent nor the newline of a block stays.
    let source = "{%- for message in messages %}\n    {%- if true %}\n  {% set text = message.content %}\n{{ text }}\n  \
                  {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(rendered(source, &[user("a"), user("b")]).unwrap(), "a\nb\nend");
    assert_eq!(rendered("{{ bos_token }}|{{ eos_token }}|{{ tools }}", &[]).unwrap(), "<s>|</s>|");
    assert_eq!(rendered("{{ messages[0].content | trim }}", &[user(" <b>&'\" ")]).unwrap(), "<b>&'\"", "not escaped");
}

#[test]
fn a_template_may_refuse() {
    let source =
        "{% if messages[0].role != 'user' %}\n{{ raise_exception('A system message is not supported') }}{% endif %}";
    assert_eq!(rendered(source, &[user("a")]).unwrap(), "");
    assert_eq!(
        rendered(source, &[Message::new(Role::System, "a")]).unwrap_err(),
        "the chat template does not take this conversation: A system message is not supported (line 2); \
         begin a new conversation or use another model file"
    );
}

#[test]
fn bad_templates() {
    let syntax = rendered("{% for message in %}", &[]).unwrap_err();
    assert!(
        syntax.starts_with("the model's chat template cannot be read: ") && syntax.contains("(line 1)"),
        "{syntax}"
    );
    let method = rendered("{{ messages[0].content.no_such_method() }}", &[user("a")]).unwrap_err();
    assert!(method.contains("no_such_method"), "{method}");
    let filter = rendered("{{ messages | no_such_filter }}", &[]).unwrap_err();
    assert!(filter.contains("no_such_filter"), "{filter}");

    let none = ChatTemplate::from_gguf(&header_of(&File::sample())).err().unwrap().to_string();
    assert!(none.starts_with("the model has no chat template"), "{none}");
    let mut file = File::sample();
    file.pairs.push(("tokenizer.chat_template".to_owned(), Field::U32(1)));
    let number = ChatTemplate::from_gguf(&header_of(&file)).err().unwrap().to_string();
    assert!(number.starts_with("metadata `tokenizer.chat_template` is the integer 1"), "{number}");
}

#[test]
fn the_end_of_a_turn_comes_before_the_end_of_a_text() {
    let with = |pairs: &[(&str, u32)]| {
        let mut file = File::sample();
        file.pairs.push(("tokenizer.chat_template".to_owned(), Field::from(CHATML)));
        file.pairs.extend(pairs.iter().map(|(key, id)| (format!("tokenizer.ggml.{key}"), Field::U32(*id))));
        ChatTemplate::from_gguf(&header_of(&file)).unwrap().end_of_turn().to_owned()
    };
    assert_eq!(with(&[("eos_token_id", 1), ("eot_token_id", 0)]), "<|end|>");
    assert_eq!(with(&[("eos_token_id", 0)]), "<|end|>");
    assert_eq!(with(&[("eos_token_id", 99)]), "");
}

#[test]
fn turns_begin_with_one_control_token() {
    let header = default_model_header();
    let tokenizer = Tokenizer::from_gguf(&header).unwrap();
    let start = tokenizer.special_id("<|im_start|>").unwrap();
    let template = ChatTemplate::from_gguf(&header).unwrap();
    let (token, pinned) = opening(&template, &tokenizer).unwrap();
    assert_eq!(token, start);
    let ids = tokenizer.encode(&template.render(&[user("Hello")], true).unwrap()).unwrap();
    assert_eq!(ids[pinned], start);
    let system = tokenizer
        .encode("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n");
    assert_eq!(ids[..pinned], system.unwrap());

    let of = |source: &str| opening(&ChatTemplate::new(source, tokens()).unwrap(), &tokenizer);
    assert_eq!(of(CHATML).unwrap(), (start, 0), "no system prompt of its own");
    let plain = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                 {% if add_generation_prompt %}assistant: {% endif %}";
    let error = of(plain).unwrap_err().to_string();
    assert!(error.contains("one control token") && error.contains("one by one"), "{error}");
    let only_users = "{% for message in messages %}{% if message.role == 'user' %}<|im_start|>{% endif %}\
                      {{ message.content }}{% endfor %}";
    assert!(of(only_users).is_err());
}
