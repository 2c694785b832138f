//! Bytes in closed form, for comparison with the buffers that were really allocated.

/// How one cached value is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Storage {
    /// 4 bytes.
    F32,
    /// 2 bytes, the default.
    #[default]
    F16,
}

/// The shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    pub layers: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub storage: Storage,
}

impl Storage {
    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl CacheShape {
    /// Bytes that one token takes in all layers: K and V of every KV head.
    pub fn bytes_per_token(self) -> u64 {
        2 * u64::from(self.layers) * u64::from(self.n_kv_heads) * u64::from(self.head_dim) * self.storage.bytes()
    }

    /// Bytes of a cache of `slots` tokens.
    pub fn bytes(self, slots: u64) -> u64 {
        slots * self.bytes_per_token()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smollm2_takes_23_040_bytes_a_token_in_f16() {
        let shape = CacheShape { layers: 30, n_kv_heads: 3, head_dim: 64, storage: Storage::F16 };
        assert_eq!(shape.bytes_per_token(), 23_040);
        assert_eq!(shape.bytes(1024), 23_592_960);
        assert_eq!(CacheShape { storage: Storage::F32, ..shape }.bytes(256), 11_796_480);
    }
}
