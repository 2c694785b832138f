//! Token ids to rows of the embedding table.

use crate::packed::{Packed, dequant_row};

/// Writes the table's row of each id.
///
/// # Shapes
/// - table: `[vocab, cols]`
/// - out: `[ids.len(), cols]`
///
/// # Panics
/// If an id is outside the table or `out` has another length.
pub fn embed(table: &Packed<'_>, ids: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), ids.len() * table.cols, "one row of the table an id");
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(table.cols)) {
        dequant_row(table, id as usize, out);
    }
}
