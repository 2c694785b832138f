//! The kernels on the CPU: the native and the wasm CPU backend, and the twins of the WGSL kernels.
//!
//! Pure functions over slices, a file a kernel. Everything is f32 and row-major.

mod append;
mod attend;
mod embed;
mod head;
mod linear;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_avx2;
#[cfg(target_arch = "x86_64")]
mod simd_avx512;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod simd_portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd_wasm;
mod simd_wide;
#[cfg(test)]
mod tests;
mod threads;

pub use append::append;
pub use attend::{Attend, Attended, attend};
pub use embed::embed;
pub use head::head;
pub use linear::{Arithmetic, Epilogue, Norm, linear, linear_by};

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Channels of a head, a multiple of 16.
    pub head_dim: usize,
}

impl Heads {
    /// Values of a row of `qkv`: the queries, then the keys, then the values of all heads.
    pub const fn qkv_cols(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Values of a row of queries, or of the attention's output.
    pub const fn q_cols(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Values of a row of keys, or of values.
    pub const fn kv_cols(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Whether the kernels can run these heads; the sentence says what is wrong.
    ///
    /// # Errors
    /// If a number is zero, the query heads don't divide among the key/value heads, or the
    /// channels are no multiple of 16.
    pub fn check(&self) -> Result<(), String> {
        let Heads { n_heads, n_kv_heads, head_dim } = *self;
        if n_heads == 0 || n_kv_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(format!("{n_heads} query heads cannot share {n_kv_heads} key/value heads evenly"));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(16) {
            return Err(format!("heads have {head_dim} channels; only multiples of 16 work"));
        }
        Ok(())
    }
}
