//! The boundary to the page: plain objects cross it, in the shapes of `types.d.ts`. No tensors, no callbacks, no HTML.
//!
//! [`Engine`] is one model, and one conversation or one comparison. Its methods must not be called while a promise of another is pending:
//! wasm-bindgen holds the object for as long. The worker asks for one step at a time and looks at its flag in between.

#![cfg(target_family = "wasm")]

mod objects;
mod self_test;

use js_sys::{Error, Uint8Array};
use model::chat::Message;
use model::compare::{Comparison, Lane};
use model::device::Place;
use model::generate::{Conversation, Text};
use model::session::{Model, Session};
use model::weights::Loader;
use model::words::LaneWords;
use objects::{AttentionHeadJs, CompareInfo, CompareSource, LaneHeadJs, LoadProgress, ModelInfo, SendOptions};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

unsafe extern "C" {
    /// Runs the constructors of all static registries, of which cubecl has thousands.
    fn __wasm_call_ctors();
}

/// Runs once, when the module is instantiated.
#[wasm_bindgen(start)]
fn start() {
    // SAFETY: the linker defines it, and nothing has run before. Once it is called here, the linker no longer wraps every
    // export so that each call from JavaScript runs all constructors first: 6 ms a call.
    unsafe { __wasm_call_ctors() }
    console_error_panic_hook::set_once();
}

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("../types.d.ts");

/// Tokens of a prompt that go through the model together; more would make Stop slow to answer.
const CHUNK: usize = 32;
/// Bytes of a page of linear memory.
const PAGE: u64 = 65_536;

fn failure(error: impl ToString) -> JsValue {
    Error::new(&error.to_string()).into()
}

/// See `types.d.ts`.
#[wasm_bindgen(skip_typescript)]
pub struct Engine {
    place: Place,
    loader: Option<Loader>,
    model: Option<Rc<Model>>,
    text: Option<Text>,
    conversation: Option<Conversation>,
    comparison: Option<Comparison>,
}

#[wasm_bindgen]
impl Engine {
    /// Starts the device. Once per worker. `software`: the adapter is a CPU in disguise.
    #[wasm_bindgen(skip_typescript)]
    pub async fn create(backend: String, software: bool) -> Result<Engine, JsValue> {
        let place = match backend.as_str() {
            "webgpu" => Place::gpu(Some(software)).await.map_err(failure)?.0,
            "cpu" => Place::cpu(),
            other => return Err(failure(format!("there is no backend `{other}`: use webgpu or cpu"))),
        };
        Ok(Engine { place, loader: None, model: None, text: None, conversation: None, comparison: None })
    }

    /// Runs each kernel on stored inputs.
    #[wasm_bindgen(skip_typescript)]
    pub async fn self_test(&self) -> Result<JsValue, JsValue> {
        objects::plain(&self_test::run(&self.place).await)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn load_begin(&mut self) {
        // The old model's memory is needed for the new one.
        self.conversation = None;
        self.comparison = None;
        self.model = None;
        self.text = None;
        self.loader = Some(Loader::new(self.place.device.clone()));
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn load_push(&mut self, bytes: &Uint8Array) -> Result<JsValue, JsValue> {
        let loader = self.loader.as_mut().ok_or_else(|| failure("nothing is being loaded: call load_begin first"))?;
        // In pieces: a piece is held twice.
        for piece in 0..bytes.length().div_ceil(PIECE) {
            let piece = bytes.subarray(piece * PIECE, ((piece + 1) * PIECE).min(bytes.length()));
            if let Err(error) = loader.push(&piece.to_vec()) {
                self.loader = None;
                return Err(failure(error));
            }
        }
        objects::plain(&LoadProgress::of(loader))
    }

    #[wasm_bindgen(skip_typescript)]
    pub async fn load_end(&mut self) -> Result<JsValue, JsValue> {
        let loader = self.loader.take().ok_or_else(|| failure("nothing is being loaded: call load_begin first"))?;
        let (config, header, weights) = loader.finish().map_err(failure)?;
        let text = Text::from_gguf(&header).map_err(failure)?;
        drop(header);
        if self.place.grid.is_some() {
            weights.verify().await.map_err(failure)?;
        }
        let info = ModelInfo::of(&config, &weights);
        self.text = Some(text);
        self.model = Some(Rc::new(Model { config, weights, place: self.place.clone() }));
        objects::plain(&info)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn reset(&mut self, settings: JsValue) -> Result<JsValue, JsValue> {
        let settings: LaneWords = serde_wasm_bindgen::from_value(settings).map_err(failure)?;
        let (Some(model), Some(text)) = (self.model.clone(), self.text.as_ref()) else { return Err(no_model()) };
        let settings = settings.settings(Some(text)).map_err(failure)?;
        // First the old cache goes, then the new one comes.
        self.conversation = None;
        self.comparison = None;
        let session = Session::new(model, settings, CHUNK).map_err(failure)?;
        let conversation = self.conversation.insert(Conversation::new(session));
        objects::plain(&objects::CacheState::of(conversation.session()))
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn send(&mut self, message: &str, options: JsValue) -> Result<(), JsValue> {
        let options: SendOptions = serde_wasm_bindgen::from_value(options).map_err(failure)?;
        let (Some(conversation), Some(text)) = (self.conversation.as_mut(), self.text.as_ref()) else {
            return Err(no_model());
        };
        conversation.send(text, message, &options.sampler.settings(), options.max_tokens).map_err(failure)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn proceed(&mut self, options: JsValue) -> Result<(), JsValue> {
        let options: SendOptions = serde_wasm_bindgen::from_value(options).map_err(failure)?;
        let conversation = self.conversation.as_mut().ok_or_else(no_model)?;
        conversation.proceed(&options.sampler.settings(), options.max_tokens).map_err(failure)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn resume(&mut self, messages: JsValue, options: JsValue, write: bool) -> Result<JsValue, JsValue> {
        let messages: Vec<Message> = serde_wasm_bindgen::from_value(messages).map_err(failure)?;
        let options: SendOptions = serde_wasm_bindgen::from_value(options).map_err(failure)?;
        let (Some(conversation), Some(text)) = (self.conversation.as_mut(), self.text.as_ref()) else {
            return Err(no_model());
        };
        let places = conversation.resume(text, &messages, &options.sampler.settings(), options.max_tokens, write);
        let places = places.map_err(failure)?;
        objects::plain(&places.into_iter().map(|place| place.map(|p| [p.start, p.end])).collect::<Vec<_>>())
    }

    #[wasm_bindgen(skip_typescript)]
    pub async fn next(&mut self, attention: JsValue) -> Result<JsValue, JsValue> {
        let asked: Option<AttentionHeadJs> = serde_wasm_bindgen::from_value(attention).map_err(failure)?;
        let (Some(conversation), Some(text)) = (self.conversation.as_mut(), self.text.as_ref()) else {
            return Err(no_model());
        };
        conversation.ask(asked.map(Into::into)).map_err(failure)?;
        let started = objects::now();
        let event = conversation.step(text).await.map_err(failure)?;
        objects::step(&event, conversation.session(), objects::now() - started)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn stop(&mut self) -> Result<JsValue, JsValue> {
        let conversation = self.conversation.as_mut().ok_or_else(no_model)?;
        let event = conversation.stop();
        objects::step(&event, conversation.session(), 0.0)
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn compare(&mut self, lanes: JsValue, source: JsValue) -> Result<JsValue, JsValue> {
        let lanes: Vec<LaneWords> = serde_wasm_bindgen::from_value(lanes).map_err(failure)?;
        let source: CompareSource = serde_wasm_bindgen::from_value(source).map_err(failure)?;
        let (Some(model), Some(text)) = (self.model.clone(), self.text.as_ref()) else { return Err(no_model()) };
        let lanes: Vec<Lane> =
            lanes.iter().map(|words| objects::lane(words, text)).collect::<Result<_, _>>().map_err(failure)?;
        let reading = source.reading(text).map_err(failure)?;
        // What was there goes first: the memory is needed.
        self.conversation = None;
        self.comparison = None;
        let comparison = Comparison::new(&model, &lanes, &reading, CHUNK).map_err(failure)?;
        objects::plain(&CompareInfo::of(self.comparison.insert(comparison), &reading))
    }

    #[wasm_bindgen(skip_typescript)]
    pub async fn compare_next(&mut self, attention: JsValue) -> Result<JsValue, JsValue> {
        let asked: Option<LaneHeadJs> = serde_wasm_bindgen::from_value(attention).map_err(failure)?;
        let (Some(comparison), Some(text)) = (self.comparison.as_mut(), self.text.as_ref()) else {
            return Err(no_comparison());
        };
        let started = objects::now();
        let step = comparison.step(&text.tokenizer, asked.map(Into::into), objects::now).await.map_err(failure)?;
        objects::compare_step(&step, objects::now() - started)
    }

    #[wasm_bindgen(skip_typescript)]
    pub async fn compare_again(&mut self, every: usize) -> Result<JsValue, JsValue> {
        let (Some(comparison), Some(text)) = (self.comparison.as_mut(), self.text.as_ref()) else {
            return Err(no_comparison());
        };
        let started = objects::now();
        let step = comparison.step_again(&text.tokenizer, every, objects::now).await.map_err(failure)?;
        step.map_or(Ok(JsValue::NULL), |step| objects::compare_step(&step, objects::now() - started))
    }

    #[wasm_bindgen(skip_typescript)]
    pub fn compare_end(&mut self) {
        self.comparison = None;
    }
}

/// Bytes of the file that are copied into the module at a time.
const PIECE: u32 = 1 << 20;

fn no_comparison() -> JsValue {
    failure("there is no comparison yet: begin one with compare")
}

fn no_model() -> JsValue {
    failure("there is no model yet: load one first")
}

/// Bytes of the module's linear memory.
#[wasm_bindgen(skip_typescript)]
pub fn memory_bytes() -> f64 {
    (core::arch::wasm32::memory_size(0) as u64 * PAGE) as f64
}

/// What this module was built from.
#[wasm_bindgen(skip_typescript)]
pub fn versions() -> Result<JsValue, JsValue> {
    objects::plain(&objects::Versions::default())
}
