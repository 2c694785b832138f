//! Where K and V live. The only type that owns them.

use crate::config::Config;
use burn::tensor::{DType, Device, Tensor};
use kernels::{Storage, WordBuffer};

/// The caches of all lanes. Lanes that store values alike share one arena a layer, so that one kernel serves them all.
#[derive(Debug)]
pub struct Store {
    formats: Vec<Format>,
    lanes: Vec<Place>,
}

/// The arenas of one storage format, one a layer.
#[derive(Debug)]
struct Format {
    storage: Storage,
    slot_words: usize,
    arenas: Vec<WordBuffer>,
}

/// A lane's part of each arena of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the format.
    pub format: usize,
    /// First word.
    pub at: usize,
    /// Places for tokens.
    pub slots: u64,
}

impl Store {
    /// Empty caches, one for each storage format and number of slots.
    pub fn new(config: &Config, lanes: impl IntoIterator<Item = (Storage, u64)>, device: &Device) -> Self {
        let mut formats: Vec<Format> = Vec::new();
        let mut words: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for (storage, slots) in lanes {
            let format = formats.iter().position(|format| format.storage == storage).unwrap_or_else(|| {
                formats.push(Format { storage, slot_words: storage.slot_words(config.heads), arenas: Vec::new() });
                words.push(0);
                formats.len() - 1
            });
            places.push(Place { format, at: words[format], slots });
            words[format] += slots as usize * formats[format].slot_words;
        }
        for (format, words) in formats.iter_mut().zip(words) {
            format.arenas = (0..config.layers).map(|_| WordBuffer::zeros(words, device)).collect();
        }
        Self { formats, lanes: places }
    }

    /// Where a lane lies.
    pub fn place(&self, lane: usize) -> Place {
        self.lanes[lane]
    }

    /// The storage formats in use, and the most slots of a lane of each.
    pub fn formats(&self) -> impl Iterator<Item = (Storage, u64)> {
        self.formats.iter().enumerate().map(|(number, format)| {
            let slots = self.lanes.iter().filter(|lane| lane.format == number).map(|lane| lane.slots);
            (format.storage, slots.max().unwrap_or(0))
        })
    }

    /// The most slots of any lane.
    pub fn most_slots(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.slots).max().unwrap_or(0)
    }

    /// Bytes of all buffers, as they are.
    pub fn bytes(&self) -> u64 {
        self.formats.iter().flat_map(|format| &format.arenas).map(|arena| 4 * arena.len() as u64).sum()
    }

    /// Bytes of a lane's part of the buffers: it ends where the next lane of the format begins, or the buffer ends.
    pub fn lane_bytes(&self, lane: usize) -> u64 {
        let Place { format, at, .. } = self.lanes[lane];
        let later = self.lanes.iter().filter(|other| other.format == format && other.at > at).map(|other| other.at);
        let next = later.min();
        self.formats[format].arenas.iter().map(|arena| 4 * (next.unwrap_or(arena.len()) - at) as u64).sum()
    }

    /// Number of buffers.
    pub fn buffers(&self) -> usize {
        self.formats.iter().map(|format| format.arenas.len()).sum()
    }

    /// Makes room for `slots` tokens in a lane; the others keep what they hold. Slots keep their places, so this is for
    /// caches that do not wrap.
    pub fn grow(&mut self, lane: usize, slots: u64, device: &Device) {
        let Place { format: number, at, slots: before } = self.lanes[lane];
        let format = &mut self.formats[number];
        let end = at + before as usize * format.slot_words;
        let added = slots.saturating_sub(before) as usize * format.slot_words;
        for arena in &mut format.arenas {
            let len = arena.len();
            arena.update(|old| {
                let room = Tensor::zeros([added], (device, DType::U32));
                if end == len {
                    return Tensor::cat(vec![old, room], 0);
                }
                Tensor::cat(vec![old.clone().narrow(0, 0, end), room, old.narrow(0, end, len - end)], 0)
            });
        }
        self.lanes[lane].slots = slots.max(before);
        for other in self.lanes.iter_mut().filter(|other| other.format == number && other.at >= end) {
            other.at += added;
        }
    }

    /// Fills every slot of every lane with numbers from -1 to 1 that depend on the seed, the lane and the layer.
    pub fn fill(&mut self, seed: u64) {
        for (number, format) in self.formats.iter_mut().enumerate() {
            for (layer, arena) in format.arenas.iter_mut().enumerate() {
                let mut words = Vec::with_capacity(arena.len());
                for (lane, place) in self.lanes.iter().enumerate().filter(|(_, place)| place.format == number) {
                    let mut state = seed ^ (lane as u64) << 40 ^ (layer as u64) << 48;
                    let mut next = || unit(&mut state);
                    words.extend((0..place.slots as usize * format.slot_words).map(|_| match format.storage {
                        Storage::F32 => next().to_bits(),
                        Storage::F16 => {
                            u32::from(half::f16::from_f32(next()).to_bits())
                                | u32::from(half::f16::from_f32(next()).to_bits()) << 16
                        }
                    }));
                }
                arena.write(words);
            }
        }
    }

    /// The arena of a format and layer, for a kernel that reads.
    pub fn arena(&self, format: usize, layer: usize) -> &WordBuffer {
        &self.formats[format].arenas[layer]
    }

    /// The arena of a format and layer, for a kernel that writes.
    pub fn arena_mut(&mut self, format: usize, layer: usize) -> &mut WordBuffer {
        &mut self.formats[format].arenas[layer]
    }
}

/// The next number, from -1 to 1 (Steele, Lea and Flood's SplitMix64).
fn unit(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
