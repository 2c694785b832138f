//! Where K and V live. The only type that owns them.

use crate::config::Config;
use burn::tensor::{DType, Device, Tensor};
use kernels::{Storage, WordBuffer};

/// The cache of one stream: one arena a layer, `slots` places in each.
#[derive(Debug)]
pub struct Store {
    arenas: Vec<WordBuffer>,
    slots: u64,
    slot_words: usize,
    storage: Storage,
}

impl Store {
    /// An empty cache with room for `slots` tokens.
    pub fn new(config: &Config, storage: Storage, slots: u64, device: &Device) -> Self {
        let slot_words = storage.slot_words(config.heads);
        let arenas = (0..config.layers).map(|_| WordBuffer::zeros(slots as usize * slot_words, device)).collect();
        Self { arenas, slots, slot_words, storage }
    }

    /// Places for tokens.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// How values are kept.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Bytes of the buffers, as they are.
    pub fn bytes(&self) -> u64 {
        self.arenas.iter().map(|arena| 4 * arena.len() as u64).sum()
    }

    /// Number of buffers.
    pub fn buffers(&self) -> usize {
        self.arenas.len()
    }

    /// Makes room for `slots` tokens. Slots keep their places, so this is for caches that do not wrap.
    pub fn grow(&mut self, slots: u64, device: &Device) {
        let added = slots.saturating_sub(self.slots) as usize * self.slot_words;
        for arena in &mut self.arenas {
            arena.update(|old| Tensor::cat(vec![old, Tensor::zeros([added], (device, DType::U32))], 0));
        }
        self.slots = self.slots.max(slots);
    }

    /// The arena of a layer, for a kernel that reads.
    pub fn arena(&self, layer: usize) -> &WordBuffer {
        &self.arenas[layer]
    }

    /// The arena of a layer, for a kernel that writes.
    pub fn arena_mut(&mut self, layer: usize) -> &mut WordBuffer {
        &mut self.arenas[layer]
    }
}
