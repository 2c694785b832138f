//! Where K and V live. The only type that owns them.

use crate::config::Config;
use burn::tensor::{DType, Device, Tensor};
use kernels::cache::CacheLayout;
use kernels::{CacheFormat, WordBuffer};

/// The caches of all lanes. Lanes that store values alike share one arena a layer, so that one kernel serves them all.
#[derive(Debug)]
pub struct Store {
    formats: Vec<Format>,
    lanes: Vec<Place>,
}

/// The arenas of one format, one a layer.
#[derive(Debug)]
struct Format {
    format: CacheFormat,
    arenas: Vec<WordBuffer>,
}

/// A lane's part of each arena of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the format.
    pub format: usize,
    /// First word.
    pub at: usize,
    /// What lies where from there on.
    pub layout: CacheLayout,
}

impl Place {
    /// Tokens that there is room for.
    pub fn slots(&self) -> u64 {
        (self.layout.sinks + self.layout.recent) as u64
    }
}

impl Store {
    /// Empty caches, one for each format, number of sinks and number of slots, the sinks among them.
    pub fn new(config: &Config, lanes: impl IntoIterator<Item = (CacheFormat, u32, u64)>, device: &Device) -> Self {
        let mut formats: Vec<Format> = Vec::new();
        let mut words: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for (format, sinks, slots) in lanes {
            let number = formats.iter().position(|known| known.format == format).unwrap_or_else(|| {
                formats.push(Format { format, arenas: Vec::new() });
                words.push(0);
                formats.len() - 1
            });
            let recent = slots.saturating_sub(u64::from(sinks)) as usize;
            let layout = format.layout(config.heads, sinks as usize, recent);
            places.push(Place { format: number, at: words[number], layout });
            words[number] += layout.words();
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

    /// The formats in use, and the most slots of a lane of each.
    pub fn formats(&self) -> impl Iterator<Item = (CacheFormat, u64)> {
        self.formats.iter().enumerate().map(|(number, format)| {
            let slots = self.lanes.iter().filter(|lane| lane.format == number).map(Place::slots);
            (format.format, slots.max().unwrap_or(0))
        })
    }

    /// The most slots of any lane.
    pub fn most_slots(&self) -> u64 {
        self.lanes.iter().map(Place::slots).max().unwrap_or(0)
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

    /// Makes room for `slots` tokens in a lane; the others keep what they hold. Tokens keep their places, so this is for
    /// caches that do not wrap.
    pub fn grow(&mut self, lane: usize, slots: u64, device: &Device) {
        let Place { format: number, at, layout: before } = self.lanes[lane];
        let layout = CacheLayout { recent: (slots as usize).saturating_sub(before.sinks).max(before.recent), ..before };
        // A tail stays behind the groups.
        let end = at + if before.format.packs() { before.ring_at() } else { before.words() };
        let added = layout.words() - before.words();
        for arena in &mut self.formats[number].arenas {
            let len = arena.len();
            arena.update(|old| {
                let room = Tensor::zeros([added], (device, DType::U32));
                if end == len {
                    return Tensor::cat(vec![old, room], 0);
                }
                Tensor::cat(vec![old.clone().narrow(0, 0, end), room, old.narrow(0, end, len - end)], 0)
            });
        }
        self.lanes[lane].layout = layout;
        for other in self.lanes.iter_mut().filter(|other| other.format == number && other.at > at) {
            other.at += added;
        }
    }

    /// Fills every place of every lane with numbers from -1 to 1 that depend on the seed, the lane and the layer.
    pub fn fill(&mut self, seed: u64) {
        for (number, format) in self.formats.iter_mut().enumerate() {
            for (layer, arena) in format.arenas.iter_mut().enumerate() {
                let mut words = Vec::with_capacity(arena.len());
                for (lane, place) in self.lanes.iter().enumerate().filter(|(_, place)| place.format == number) {
                    let mut state = seed ^ (lane as u64) << 40 ^ (layer as u64) << 48;
                    words.extend(place.layout.random(|| unit(&mut state)));
                }
                arena.write(words);
            }
        }
    }

    /// Reads a lane's part of a layer.
    ///
    /// # Errors
    /// The device is lost.
    pub async fn read(&self, lane: usize, layer: usize) -> Result<Vec<u32>, String> {
        let Place { format, at, layout } = self.lanes[lane];
        let part = self.formats[format].arenas[layer].read().narrow(0, at, layout.words());
        let data = part.into_data_async().await.map_err(|error| error.to_string())?;
        data.try_to_vec::<u32>().map_err(|error| format!("{error:?}"))
    }

    /// Overwrites a lane's part of a layer.
    pub fn write(&mut self, lane: usize, layer: usize, words: Vec<u32>, device: &Device) {
        let Place { format, at, layout } = self.lanes[lane];
        let part = kernels::words(words, device);
        self.formats[format].arenas[layer].update(|old| {
            let end = at + layout.words();
            let after = old.dims()[0] - end;
            let parts = [
                (at > 0).then(|| old.clone().narrow(0, 0, at)),
                Some(part),
                (after > 0).then(|| old.narrow(0, end, after)),
            ];
            Tensor::cat(parts.into_iter().flatten().collect(), 0)
        });
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
