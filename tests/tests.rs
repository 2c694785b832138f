//! The tests that need more than one crate, in one binary: every binary links Burn anew.

/// Files and settings that lie.
mod bad_input;
/// Conversations.
mod chat;
/// What the page asks for when lanes stand side by side.
mod compare;
/// Against values from independent programs.
mod golden;
/// The same on a GPU; natively, with no card, on a Vulkan driver that runs on the CPU.
mod gpu;
/// Things that must be equal: a chunk and its tokens, sinks and dense until full, a window and no sinks.
mod identities;
/// Streams side by side, and the ablations.
mod lanes;
/// The probs of one layer and head.
mod probs;
/// The program as people call it.
mod program;
/// The arrows between the rooms, and the README's path of a token.
mod structure;
