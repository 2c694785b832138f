//! Text in, text out: tokenizer, weight files, transformer, cache, sampling, chat.
//!
//! No files and no printing: bytes come in, events go out. Whoever calls owns the outside world. Everything that may
//! wait for a device is async, since in a browser nothing may block.
//!
//! The path of a token: [`tokenizer`] → [`session`] (asks `policy` what the token sees) → [`transformer`] (launches
//! `kernels` on the [`weights`] and the [`store`]) → [`sampler`] → [`detokenize`]. Streams side by side:
//! [`lanes`], and what is told of them: [`compare`].

pub mod chat;
pub mod compare;
pub mod config;
pub mod detokenize;
pub mod device;
pub mod generate;
pub mod gguf;
pub mod lanes;
pub mod sampler;
pub mod session;
pub mod store;
pub mod tokenizer;
pub mod transformer;
pub mod weights;
pub mod words;

/// What callers need of the rooms below, so that they know this one alone.
pub use kernels::step::LayerHead;
pub use kernels::{Storage, cache, self_test};
pub use policy;
