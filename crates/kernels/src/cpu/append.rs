//! A chunk's keys and values into the cache; and when its tail is full, all of that into groups.

use super::Heads;
use super::simd::{Kernel, Simd, dispatch};
use super::threads::{self, Disjoint};
use crate::cache::{CacheFormat, CacheLayout, Spot};
use crate::step::{LaneStep, StepView};

/// Writes the keys and values of the rows of an arena's lanes to their slots, then packs what the step says. Of a chunk
/// longer than the ring only the last tokens are written: no slot twice. Runs after the chunk's attention.
///
/// # Shapes
/// - qkv: `[rows, qkv_cols]`, of all lanes
/// - arena: as [`CacheLayout`] says, of each lane, of this layer
///
/// # Panics
/// If a slice is shorter than the step needs.
pub fn append(heads: Heads, format: CacheFormat, step: StepView<'_>, store: u32, qkv: &[f32], arena: &mut [u32]) {
    for (_, lane) in step.lanes_of(store) {
        let layout = format.layout(heads, lane.sinks as usize, lane.recent as usize);
        let arena = &mut arena[lane.at as usize..][..layout.words()];
        let end = lane.start + lane.rows;
        for row in 0..lane.rows {
            let index = lane.start + row;
            if index >= lane.sinks && index as usize + layout.ring() < end as usize {
                continue;
            }
            // Nothing of this chunk is packed before it has been in the ring.
            let Some(Spot::Slot(to)) = layout.spot(index as usize, 0) else { continue };
            let from = (lane.row0 + row) as usize * heads.qkv_cols() + heads.q_cols();
            layout.encode_slot(&qkv[from..from + 2 * heads.kv_cols()], &mut arena[to..to + layout.slot_words()]);
        }
        pack(&layout, &lane, arena);
    }
}

/// Packs the tokens `lane.packed..lane.packs_to`, whole groups that lie in the tail.
fn pack(layout: &CacheLayout, lane: &LaneStep, arena: &mut [u32]) {
    let Heads { n_kv_heads, head_dim, .. } = layout.heads;
    let (group, packs_to) = (layout.format.group, lane.packs_to as usize);
    if packs_to <= lane.packed as usize {
        return;
    }
    // Where the tail has more groups than there is room for, the first of them have been seen for the last time.
    let first = (lane.packed as usize).max(packs_to.saturating_sub(layout.groups() * group));
    for first in (first..packs_to).step_by(group) {
        let mut tokens: Vec<Vec<f32>> = Vec::with_capacity(group);
        for index in first..first + group {
            let Some(slot) = layout.spot(index, 0) else { return };
            tokens.push(layout.decode(arena, slot));
        }
        let Some(Spot::Group { at, .. }) = layout.spot(first, packs_to) else { return };
        let words = Disjoint::new(&mut arena[at..at + layout.group_words()]);
        threads::run(2 * n_kv_heads, |part| {
            let (kv_head, keys) = (part / 2, part % 2 == 0);
            let (at, len) = if keys {
                (kv_head * layout.group_key_words(), layout.group_key_words())
            } else {
                (layout.group_values_at(kv_head), layout.group_value_words())
            };
            // SAFETY: heads have different parts of a group, and so have keys and values.
            let words = unsafe { words.range(at..at + len) };
            let column = if keys { 0 } else { layout.heads.kv_cols() } + kv_head * head_dim;
            let values = tokens.iter().flat_map(|token| &token[column..column + head_dim]).copied().collect();
            dispatch(Pack { layout, keys, values, words });
        });
    }
}

/// A head's keys, or values, of a group: compiled for each instruction set, since rounding is slow without.
struct Pack<'a> {
    layout: &'a CacheLayout,
    keys: bool,
    values: Vec<f32>,
    words: &'a mut [u32],
}

impl Kernel for Pack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        if self.keys {
            self.layout.pack_keys(&self.values, self.words);
        } else {
            self.layout.pack_values(&self.values, self.words);
        }
    }
}
