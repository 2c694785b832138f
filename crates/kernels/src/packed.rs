//! Weights as both backends read them: quantized, in octets of eight interleaved rows.
//!
//! A matrix has `rows x cols` values (output x input). Rows are padded with zeros to a multiple of
//! [`OCTET`]; columns must be a multiple of [`BLOCK`]. With `blocks = cols / 32`,
//! `octet = row / 8` and `r = row % 8`, the word `j` of a row's block lies at
//! `((octet * blocks + block) * W + j) * 8 + r`, `W` being [`Codec::words_per_block`]:
//!
//! - `Q4`: byte `b` of word `j` holds the code of column `4j + b` in its low nibble and that of
//!   column `16 + 4j + b` in its high nibble.
//! - `Q8`: byte `b` of word `j` is the signed code of column `4j + b`.
//! - `F16`: the low half is column `2j`, the high half column `2j + 1`.
//! - `F32`: the bits of column `j`.
//!
//! Scales are apart. `Q4`: one word a row and block at `(octet * blocks + block) * 8 + r`, f16 `d`
//! in the low half and f16 `m` in the high half; a value is `d * code + m`. `Q8`: f16 `d` of row
//! `r` in half `r & 1` of the word at `(octet * blocks + block) * 4 + r / 2`; a value is
//! `d * code`. `F16` and `F32` have two unused words, since an empty buffer cannot be bound.

use half::f16;

/// Columns that share a scale.
pub const BLOCK: usize = 32;
/// Rows that are interleaved.
pub const OCTET: usize = 8;

/// How the words of a packed matrix encode its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// 4-bit codes, scale and minimum per row and block.
    Q4,
    /// 8-bit signed codes, scale per row and block.
    Q8,
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl Codec {
    /// Words that one row's block of 32 columns takes.
    pub const fn words_per_block(self) -> usize {
        match self {
            Codec::Q4 => 4,
            Codec::Q8 => 8,
            Codec::F16 => 16,
            Codec::F32 => 32,
        }
    }

    /// Scale words that a block of eight rows takes.
    pub const fn scale_words_per_octet_block(self) -> usize {
        match self {
            Codec::Q4 => 8,
            Codec::Q8 => 4,
            Codec::F16 | Codec::F32 => 0,
        }
    }

    /// Code words of a whole matrix, padding rows included.
    pub const fn words(self, rows: usize, cols: usize) -> usize {
        octets(rows) * self.words_per_octet(cols)
    }

    /// Scale words of a whole matrix; 2, unused, for the formats without scales: the least that a shader binds.
    pub const fn scale_words(self, rows: usize, cols: usize) -> usize {
        match self {
            Codec::F16 | Codec::F32 => 2,
            Codec::Q4 | Codec::Q8 => octets(rows) * self.scale_words_per_octet(cols),
        }
    }

    /// Code words of eight rows.
    pub const fn words_per_octet(self, cols: usize) -> usize {
        cols / BLOCK * self.words_per_block() * OCTET
    }

    /// Scale words of eight rows; 0 for the formats without scales.
    pub const fn scale_words_per_octet(self, cols: usize) -> usize {
        cols / BLOCK * self.scale_words_per_octet_block()
    }
}

/// Octets that `rows` rows take.
pub const fn octets(rows: usize) -> usize {
    rows.div_ceil(OCTET)
}

/// The GGUF tensor formats that can be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Single precision, 4 bytes a value.
    F32,
    /// Half precision, 2 bytes a value.
    F16,
    /// 34-byte blocks: f16 `d`, 32 signed bytes; `d * code`.
    Q8_0,
    /// 18-byte blocks: f16 `d`, 16 bytes of nibbles; `d * (code - 8)`.
    Q4_0,
    /// 20-byte blocks: f16 `d`, f16 `m`, 16 bytes of nibbles; `d * code + m`.
    Q4_1,
}

impl Format {
    /// The codec that keeps this format's values without loss.
    pub const fn codec(self) -> Codec {
        match self {
            Format::F32 => Codec::F32,
            Format::F16 => Codec::F16,
            Format::Q8_0 => Codec::Q8,
            Format::Q4_0 | Format::Q4_1 => Codec::Q4,
        }
    }

    /// Bytes of 32 columns of one row.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 128,
            Format::F16 => 64,
            Format::Q8_0 => 34,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
        }
    }

    /// Bytes of a row of `cols` columns (a multiple of 32).
    pub const fn row_bytes(self, cols: usize) -> usize {
        cols / BLOCK * self.block_bytes()
    }
}

/// Why a matrix could not be packed or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackError {
    /// The number of columns is zero or not a multiple of 32.
    Columns(usize),
    /// The codec can hold neither the format itself nor its values.
    Codec(Format, Codec),
    /// A buffer has the wrong length: what it is, its length, the length it needs.
    Length(&'static str, usize, usize),
}

impl std::fmt::Display for PackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PackError::Columns(cols) => {
                write!(f, "a weight matrix has {cols} columns; only multiples of {BLOCK} can be packed")
            }
            PackError::Codec(format, codec) => {
                write!(f, "weights in {format:?} cannot be packed as {codec:?}; use {:?} or F32", format.codec())
            }
            PackError::Length(what, is, needs) => {
                write!(f, "{what} holds {is} elements where {needs} are needed")
            }
        }
    }
}

impl std::error::Error for PackError {}

/// A packed matrix; the layout is described at the top of this module.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// What the words mean.
    pub codec: Codec,
    /// Outputs, without padding.
    pub rows: usize,
    /// Inputs, a multiple of 32.
    pub cols: usize,
    /// Codes, [`Codec::words`] of them.
    pub words: &'a [u32],
    /// Scales, [`Codec::scale_words`] of them.
    pub scales: &'a [u32],
}

impl<'a> Packed<'a> {
    /// A view of a packed matrix, checked once so that the kernels need not.
    ///
    /// # Errors
    /// If `cols` is no multiple of 32, or a slice is shorter than the shape needs.
    pub fn new(codec: Codec, rows: usize, cols: usize, words: &'a [u32], scales: &'a [u32]) -> Result<Self, PackError> {
        check_columns(cols)?;
        let packed = Packed { codec, rows, cols, words, scales };
        let needed = codec.words(rows, cols);
        if words.len() < needed {
            return Err(PackError::Length("a packed matrix's words", words.len(), needed));
        }
        let needed = octets(rows) * codec.scale_words_per_octet(cols);
        if scales.len() < needed {
            return Err(PackError::Length("a packed matrix's scales", scales.len(), needed));
        }
        Ok(packed)
    }

    /// Blocks of 32 columns in a row.
    pub const fn blocks(&self) -> usize {
        self.cols / BLOCK
    }

    /// The code words of eight rows.
    #[inline]
    pub fn octet_words(&self, octet: usize) -> &'a [u32] {
        let len = self.codec.words_per_octet(self.cols);
        &self.words[octet * len..(octet + 1) * len]
    }

    /// The scale words of eight rows; empty for the formats without scales.
    #[inline]
    pub fn octet_scales(&self, octet: usize) -> &'a [u32] {
        let len = self.codec.scale_words_per_octet(self.cols);
        &self.scales[octet * len..(octet + 1) * len]
    }
}

/// Packs eight whole rows of `cols` columns, given as GGUF bytes. An empty row is padding: zeros.
///
/// `codec` is the format's own ([`Format::codec`]) or [`Codec::F32`], which widens the values: a
/// fused matrix whose parts differ in format is kept in single precision.
///
/// # Errors
/// If `cols` is no multiple of 32, the codec does not fit the format, a row is neither empty nor
/// [`Format::row_bytes`] long, or an output is not [`Codec::words_per_octet`] (words) or
/// [`Codec::scale_words_per_octet`] (scales) long.
pub fn pack_octet(
    codec: Codec,
    format: Format,
    cols: usize,
    rows: [&[u8]; OCTET],
    words: &mut [u32],
    scales: &mut [u32],
) -> Result<(), PackError> {
    check_columns(cols)?;
    check_outputs(codec, cols, words, scales)?;
    if codec != format.codec() && codec != Codec::F32 {
        return Err(PackError::Codec(format, codec));
    }
    words.fill(0);
    scales.fill(0);
    for (r, row) in rows.into_iter().enumerate() {
        if row.is_empty() {
            continue;
        }
        if row.len() != format.row_bytes(cols) {
            return Err(PackError::Length("a row's bytes", row.len(), format.row_bytes(cols)));
        }
        for (block, bytes) in row.chunks_exact(format.block_bytes()).enumerate() {
            let block_words = codec.words_per_block();
            let words = &mut words[block * block_words * OCTET..][..block_words * OCTET];
            if codec == format.codec() {
                let block_scales = codec.scale_words_per_octet_block();
                let scales = &mut scales[block * block_scales..][..block_scales];
                pack_block(format, bytes, r, words, scales);
            } else {
                let mut values = [0.0; BLOCK];
                unpack_gguf_block(format, bytes, &mut values);
                for (j, value) in values.into_iter().enumerate() {
                    words[j * OCTET + r] = value.to_bits();
                }
            }
        }
    }
    Ok(())
}

/// Packs eight whole rows of single precision values as [`Codec::F32`]. An empty row is padding.
///
/// # Errors
/// As [`pack_octet`].
pub fn pack_octet_f32(cols: usize, rows: [&[f32]; OCTET], words: &mut [u32]) -> Result<(), PackError> {
    check_columns(cols)?;
    check_outputs(Codec::F32, cols, words, &[])?;
    words.fill(0);
    for (r, row) in rows.into_iter().enumerate() {
        if !row.is_empty() && row.len() != cols {
            return Err(PackError::Length("a row", row.len(), cols));
        }
        for (j, value) in row.iter().enumerate() {
            words[j * OCTET + r] = value.to_bits();
        }
    }
    Ok(())
}

/// Writes the values of one row to `out`, which is `cols` long.
///
/// # Panics
/// If `row` is outside the matrix or `out` has another length.
pub fn dequant_row(packed: &Packed<'_>, row: usize, out: &mut [f32]) {
    assert!(row < packed.rows, "row {row} of a matrix of {} rows", packed.rows);
    assert_eq!(out.len(), packed.cols, "a row has one value a column");
    let (octet, r) = (row / OCTET, row % OCTET);
    let words = packed.octet_words(octet);
    let scales = packed.octet_scales(octet);
    let block_words = packed.codec.words_per_block() * OCTET;
    let block_scales = packed.codec.scale_words_per_octet_block();
    for (block, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let words = &words[block * block_words..][..block_words];
        let scales = &scales[block * block_scales..][..block_scales];
        match packed.codec {
            Codec::Q4 => {
                let (d, m) = halves(scales[r]);
                for j in 0..4 {
                    for (b, byte) in words[j * OCTET + r].to_le_bytes().into_iter().enumerate() {
                        out[4 * j + b] = d * f32::from(byte & 15) + m;
                        out[16 + 4 * j + b] = d * f32::from(byte >> 4) + m;
                    }
                }
            }
            Codec::Q8 => {
                let pair = halves(scales[r / 2]);
                let d = if r & 1 == 0 { pair.0 } else { pair.1 };
                for j in 0..8 {
                    for (b, byte) in words[j * OCTET + r].to_le_bytes().into_iter().enumerate() {
                        out[4 * j + b] = d * f32::from(byte.cast_signed());
                    }
                }
            }
            Codec::F16 => {
                for j in 0..16 {
                    (out[2 * j], out[2 * j + 1]) = halves(words[j * OCTET + r]);
                }
            }
            Codec::F32 => {
                for (j, out) in out.iter_mut().enumerate() {
                    *out = f32::from_bits(words[j * OCTET + r]);
                }
            }
        }
    }
}

/// The two half-precision values of a word, low half first.
pub fn halves(word: u32) -> (f32, f32) {
    (f16::from_bits(word as u16).to_f32(), f16::from_bits((word >> 16) as u16).to_f32())
}

fn check_columns(cols: usize) -> Result<(), PackError> {
    if cols == 0 || !cols.is_multiple_of(BLOCK) {
        return Err(PackError::Columns(cols));
    }
    Ok(())
}

fn check_outputs(codec: Codec, cols: usize, words: &[u32], scales: &[u32]) -> Result<(), PackError> {
    let needed = codec.words_per_octet(cols);
    if words.len() != needed {
        return Err(PackError::Length("the words of an octet", words.len(), needed));
    }
    let needed = codec.scale_words_per_octet(cols);
    if scales.len() != needed {
        return Err(PackError::Length("the scales of an octet", scales.len(), needed));
    }
    Ok(())
}

/// Re-orders the bytes of one block into its octet's words; nothing is quantized again.
fn pack_block(format: Format, bytes: &[u8], r: usize, words: &mut [u32], scales: &mut [u32]) {
    let codes = match format {
        Format::F32 | Format::F16 => bytes,
        Format::Q8_0 => {
            let d = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            scales[r / 2] |= d << (16 * (r & 1));
            &bytes[2..]
        }
        Format::Q4_0 => {
            let d = f16::from_le_bytes([bytes[0], bytes[1]]);
            // Exact but where 8d leaves half precision, which no trained weight comes near.
            let m = f16::from_f32(-8.0 * d.to_f32());
            scales[r] = u32::from(d.to_bits()) | u32::from(m.to_bits()) << 16;
            &bytes[2..]
        }
        Format::Q4_1 => {
            scales[r] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            &bytes[4..]
        }
    };
    for (j, word) in codes.chunks_exact(4).enumerate() {
        words[j * OCTET + r] = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
}

/// The 32 values of a GGUF block.
fn unpack_gguf_block(format: Format, bytes: &[u8], out: &mut [f32; BLOCK]) {
    let half_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    match format {
        Format::F32 => {
            for (out, word) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *out = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            }
        }
        Format::F16 => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = half_at(2 * i);
            }
        }
        Format::Q8_0 => {
            let d = half_at(0);
            for (out, code) in out.iter_mut().zip(&bytes[2..]) {
                *out = d * f32::from(code.cast_signed());
            }
        }
        Format::Q4_0 | Format::Q4_1 => {
            let d = half_at(0);
            let (m, codes) = match format {
                Format::Q4_1 => (half_at(2), &bytes[4..]),
                _ => (-8.0 * d, &bytes[2..]),
            };
            for (i, code) in codes.iter().enumerate() {
                out[i] = d * f32::from(code & 15) + m;
                out[16 + i] = d * f32::from(code >> 4) + m;
            }
        }
    }
}
