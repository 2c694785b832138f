//! A chunk's keys and values into the cache.

use super::{Heads, Storage};
use crate::step::{LaneStep, StepView};
use half::f16;

/// Writes the keys and values of the rows of an arena's lanes to their slots. Of a chunk longer than
/// the ring only the last `recent` tokens are written: no slot twice. Runs after the chunk's attention.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: `[sinks + recent, slot_words]` of each lane, of this layer
///
/// # Panics
/// If a slice is shorter than the step needs.
pub fn append(heads: Heads, storage: Storage, step: StepView<'_>, store: u32, qkv: &[f32], arena: &mut [u32]) {
    let slot_words = storage.slot_words(heads);
    for lane in step.lanes_of(store) {
        let end = lane.start + lane.rows;
        for row in 0..lane.rows {
            let index = lane.start + row;
            if index >= lane.sinks && index + lane.recent < end {
                continue;
            }
            let Some(slot) = slot_of(&lane, index) else { continue };
            let from = (lane.row0 + row) as usize * heads.qkv_cols() + heads.q_cols();
            let to = lane.at as usize + slot * slot_words;
            encode(storage, &qkv[from..from + 2 * heads.kv_cols()], &mut arena[to..to + slot_words]);
        }
    }
}

/// The slot of a stream index; none where the lane has no ring and the index is no sink.
pub(super) fn slot_of(lane: &LaneStep, index: u32) -> Option<usize> {
    if index < lane.sinks {
        return Some(index as usize);
    }
    let ring = (index - lane.sinks).checked_rem(lane.recent)?;
    Some((lane.sinks + ring) as usize)
}

/// Rounds the keys and values of a token to storage precision.
pub(super) fn encode(storage: Storage, values: &[f32], words: &mut [u32]) {
    match storage {
        Storage::F32 => {
            for (word, value) in words.iter_mut().zip(values) {
                *word = value.to_bits();
            }
        }
        Storage::F16 => {
            let half = |x: f32| u32::from(f16::from_f32(x.clamp(-65504.0, 65504.0)).to_bits());
            for (word, pair) in words.iter_mut().zip(values.chunks_exact(2)) {
                *word = half(pair[0]) | half(pair[1]) << 16;
            }
        }
    }
}
