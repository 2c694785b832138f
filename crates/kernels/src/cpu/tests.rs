//! The kernels against the plainest f64 loops, which share no code with them.

use super::*;
use crate::NO_SINK_LOGIT;
use crate::cache::{Bits, Float};
use crate::packed::{Codec, Format, OCTET, Packed, octets, pack_octet, pack_octet_f32};
use crate::step::*;
use crate::{CacheFormat, Storage};
use half::f16;

/// A small generator, so that every run tests the same numbers.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32
    }

    fn below(&mut self, n: u32) -> u32 {
        self.bits() % n
    }

    fn uniform(&mut self) -> f64 {
        f64::from(self.bits()) / 2f64.powi(31) - 1.0
    }

    /// Variance 1, nearly normal.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() / 2.0
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal() as f32).collect()
    }
}

/// A matrix as GGUF bytes, as the values they mean, and packed.
struct Matrix {
    rows: usize,
    cols: usize,
    codec: Codec,
    values: Vec<f64>,
    words: Vec<u32>,
    scales: Vec<u32>,
}

impl Matrix {
    fn random(format: Format, codec: Codec, rows: usize, cols: usize, random: &mut Random) -> Self {
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for _ in 0..rows * cols / 32 {
            let half = |x: f64| f16::from_f64(x);
            let d = half(0.02 + 0.01 * random.uniform());
            match format {
                Format::F32 => {
                    for _ in 0..32 {
                        let value = random.normal() as f32 * 0.1;
                        bytes.extend(value.to_le_bytes());
                        values.push(f64::from(value));
                    }
                }
                Format::F16 => {
                    for _ in 0..32 {
                        let value = half(random.normal() * 0.1);
                        bytes.extend(value.to_le_bytes());
                        values.push(value.to_f64());
                    }
                }
                Format::Q8_0 => {
                    bytes.extend(d.to_le_bytes());
                    for _ in 0..32 {
                        let code = random.bits() as i8;
                        bytes.extend(code.to_le_bytes());
                        values.push(d.to_f64() * f64::from(code));
                    }
                }
                Format::Q4_0 | Format::Q4_1 => {
                    bytes.extend(d.to_le_bytes());
                    let mut m = d.to_f64() * -8.0;
                    if format == Format::Q4_1 {
                        let minimum = half(-0.15 + 0.05 * random.uniform());
                        bytes.extend(minimum.to_le_bytes());
                        m = minimum.to_f64();
                    }
                    let codes: Vec<u8> = (0..32).map(|_| random.below(16) as u8).collect();
                    bytes.extend((0..16).map(|i| codes[i] | codes[16 + i] << 4));
                    values.extend(codes.iter().map(|&code| d.to_f64() * f64::from(code) + m));
                }
            }
        }
        let mut words = vec![0; codec.words(rows, cols)];
        let mut scales = vec![0; codec.scale_words(rows, cols)];
        let row_bytes = format.row_bytes(cols);
        let (n_words, n_scales) = (codec.words_per_octet(cols), codec.scale_words_per_octet(cols));
        for octet in 0..octets(rows) {
            let row = |r: usize| bytes.chunks_exact(row_bytes).nth(octet * 8 + r).unwrap_or(&[]);
            pack_octet(
                codec,
                format,
                cols,
                std::array::from_fn(row),
                &mut words[octet * n_words..][..n_words],
                &mut scales[octet * n_scales..][..n_scales],
            )
            .unwrap();
        }
        Matrix { rows, cols, codec, values, words, scales }
    }

    fn packed(&self) -> Packed<'_> {
        Packed::new(self.codec, self.rows, self.cols, &self.words, &self.scales).unwrap()
    }
}

const FORMATS: [(Format, Codec); 9] = [
    (Format::Q4_1, Codec::Q4),
    (Format::Q4_0, Codec::Q4),
    (Format::Q8_0, Codec::Q8),
    (Format::F16, Codec::F16),
    (Format::F32, Codec::F32),
    (Format::Q4_1, Codec::F32),
    (Format::Q4_0, Codec::F32),
    (Format::Q8_0, Codec::F32),
    (Format::F16, Codec::F32),
];

const ARITHMETICS: [Arithmetic; 2] = [Arithmetic::Single, Arithmetic::Rounded];

/// `(y, sum |w x|)` of a row, both after the norm.
fn reference_linear(m: &Matrix, row: usize, x: &[f32], norm: Option<Norm<'_>>) -> (f64, f64) {
    let mut scale = 1.0;
    if let Some(norm) = norm {
        let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
        scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
    }
    let (mut sum, mut absolute) = (0.0, 0.0);
    for (k, &x) in x.iter().enumerate() {
        let gain = norm.map_or(1.0, |norm| f64::from(norm.gain[k]));
        let term = m.values[row * m.cols + k] * f64::from(x) * gain * scale;
        sum += term;
        absolute += term.abs();
    }
    (sum, absolute)
}

#[test]
fn linear_is_the_f64_product() {
    let mut random = Random(1);
    for (format, codec) in FORMATS {
        // 21 rows leave a padded, odd octet; 19 tokens leave odd tiles of tokens.
        for (rows, cols, tokens) in [(21, 96, 1), (40, 576, 2), (24, 1536, 7), (21, 576, 19)] {
            let m = Matrix::random(format, codec, rows, cols, &mut random);
            let mut x = random.normals(tokens * cols);
            x[5] = 2.0e4; // As the first token's residual in SmolLM2.
            let gain = random.normals(cols);
            let norms = [None, Some(Norm { gain: &gain, eps: 1e-5 })];
            for (arithmetic, norm) in ARITHMETICS.into_iter().flat_map(|a| norms.map(|norm| (a, norm))) {
                let before = random.normals(tokens * rows);
                let mut stored = before.clone();
                linear_by(arithmetic, &x, tokens, norm, &m.packed(), &mut stored, Epilogue::Store);
                let mut added = before.clone();
                linear_by(arithmetic, &x, tokens, norm, &m.packed(), &mut added, Epilogue::Add);
                for (i, before) in before.into_iter().enumerate() {
                    let (token, row) = (i / rows, i % rows);
                    let x = &x[token * cols..(token + 1) * cols];
                    let (y, absolute) = reference_linear(&m, row, x, norm);
                    let what = format!("{arithmetic:?}, {format:?} as {codec:?}, {cols} columns, token {token}");
                    let tolerance = absolute
                        * match arithmetic {
                            // Columns are added one by one; those that follow the great value lose more.
                            Arithmetic::Single if token == 0 => 3e-6,
                            Arithmetic::Single => 1e-6,
                            Arithmetic::Rounded => 1e-5,
                        };
                    let error = (f64::from(stored[i]) - y).abs();
                    assert!(error <= tolerance, "{what}, row {row}: {error:e} of {absolute:e}");
                    let error = (f64::from(added[i]) - y - f64::from(before)).abs();
                    assert!(error <= tolerance + 1e-6, "{what}, row {row}: {error:e} of {absolute:e}");
                }
            }
        }
    }
}

#[test]
fn linear_gates() {
    let mut random = Random(2);
    for tokens in [1, 6] {
        let m = Matrix::random(Format::Q4_1, Codec::Q4, 48, 288, &mut random);
        let x = random.normals(tokens * m.cols);
        let mut out = vec![f32::NAN; tokens * 24];
        linear(&x, tokens, None, &m.packed(), &mut out, Epilogue::SiluGate);
        for (i, out) in out.into_iter().enumerate() {
            let (token, col) = (i / 24, i % 24);
            let x = &x[token * m.cols..(token + 1) * m.cols];
            let gate_row = col / 8 * 16 + col % 8;
            let (gate, gate_size) = reference_linear(&m, gate_row, x, None);
            let (up, up_size) = reference_linear(&m, gate_row + 8, x, None);
            let expected = gate / (1.0 + (-gate).exp()) * up;
            // The slope of SiLU is at most 1.1.
            let tolerance = 1e-5 * (gate_size * up.abs() * 1.1 + up_size * gate.abs());
            assert!((f64::from(out) - expected).abs() <= tolerance, "{out} for {expected}");
        }
    }
}

/// A forward of many rows gives what forwards of one row give, to the bit.
#[test]
fn linear_of_a_chunk_is_that_of_its_rows() {
    let mut random = Random(3);
    for (format, codec) in FORMATS {
        let m = Matrix::random(format, codec, 72, 576, &mut random);
        let x = random.normals(19 * m.cols);
        let gain = random.normals(m.cols);
        let norm = Some(Norm { gain: &gain, eps: 1e-5 });
        for (arithmetic, rows) in ARITHMETICS.into_iter().flat_map(|a| [2, 3, 4, 5, 13, 19].map(|rows| (a, rows))) {
            let x = &x[..rows * m.cols];
            let mut whole = vec![0.0; rows * m.rows];
            linear_by(arithmetic, x, rows, norm, &m.packed(), &mut whole, Epilogue::Store);
            for (x, whole) in x.chunks(m.cols).zip(whole.chunks(m.rows)) {
                let mut single = vec![0.0; m.rows];
                linear_by(arithmetic, x, 1, norm, &m.packed(), &mut single, Epilogue::Store);
                assert_eq!(single, whole, "{arithmetic:?}, {format:?} as {codec:?}");
            }
        }
    }
}

#[test]
fn embed_writes_the_row() {
    let mut random = Random(4);
    for (format, codec) in FORMATS {
        let m = Matrix::random(format, codec, 21, 64, &mut random);
        let ids = [20, 0, 13];
        let mut out = vec![0.0; ids.len() * m.cols];
        embed(&m.packed(), &ids, &mut out);
        for (i, out) in out.into_iter().enumerate() {
            let expected = m.values[ids[i / m.cols] as usize * m.cols + i % m.cols];
            // The codes are exact; d * code + m is rounded once or twice.
            assert!((f64::from(out) - expected).abs() <= expected.abs() * 1e-7 + 3e-8);
        }
    }
}

#[test]
fn f32_rows_pack_as_their_bytes_do() {
    let mut random = Random(5);
    let values = random.normals(3 * 64);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut from_bytes = vec![7; Codec::F32.words_per_octet(64)];
    let mut from_values = from_bytes.clone();
    let row = |r: usize| bytes.chunks_exact(256).nth(r).unwrap_or(&[]);
    let rows = std::array::from_fn(row);
    pack_octet(Codec::F32, Format::F32, 64, rows, &mut from_bytes, &mut []).unwrap();
    let row = |r: usize| values.chunks_exact(64).nth(r).unwrap_or(&[]);
    pack_octet_f32(64, std::array::from_fn(row), &mut from_values).unwrap();
    assert_eq!(from_bytes, from_values);
    assert_eq!(from_values[2 * OCTET + 1], values[64 + 2].to_bits());
}

/// What attention gave.
#[derive(Default)]
struct Given {
    out: Vec<f32>,
    /// `[row][head]`.
    masses: Vec<[f32; 2]>,
    /// Of the last row of each chunk: the row, the head that was asked for, and its probs.
    probs: Vec<(u32, usize, Vec<f32>)>,
}

/// A stream of random queries, keys and values through a cache of one layer.
struct Stream {
    heads: Heads,
    format: CacheFormat,
    sinks: u32,
    recent: u32,
    /// `positions: stream` instead of `slot`.
    stream_positions: bool,
    /// The lane's.
    flags: u32,
    /// Head `h` has an extra logit of `h - 3`.
    learned: bool,
}

const PLAIN: Stream = Stream {
    heads: SMOL,
    format: CacheFormat::of(Storage::F32),
    sinks: 0,
    recent: 1,
    stream_positions: false,
    flags: 0,
    learned: false,
};

impl Stream {
    fn angles(&self, position: f64) -> (Vec<f64>, Vec<f64>) {
        let half = self.heads.head_dim / 2;
        (0..half)
            .map(|i| (position * 1e4f64.powf(-(i as f64) / half as f64)).sin_cos())
            .map(|(sin, cos)| (cos, sin))
            .unzip()
    }

    /// The tokens below which all but sinks are packed when `fed` tokens have been read.
    fn packed(&self, fed: u32) -> u32 {
        self.sinks
            + fed.saturating_sub(self.sinks).checked_div(self.format.tail as u32).unwrap_or(0) * self.format.tail as u32
    }

    /// Chunks, cut where tokens are packed.
    fn cut(&self, chunks: &[u32]) -> Vec<u32> {
        let mut fed = 0;
        let mut cut = Vec::new();
        for &chunk in chunks {
            let mut rows = 0;
            for _ in 0..chunk {
                rows += 1;
                fed += 1;
                if self.packed(fed) > self.packed(fed - 1) {
                    cut.push(rows);
                    rows = 0;
                }
            }
            cut.extend((rows > 0).then_some(rows));
        }
        cut
    }

    /// Whether a column of `qkv` is a key's, a value's, or else a query's.
    fn storage_of(&self, column: usize) -> Option<Storage> {
        let keys_at = self.heads.q_cols();
        let values_at = keys_at + self.heads.kv_cols();
        (column >= keys_at).then_some(if column < values_at { self.format.keys } else { self.format.values })
    }

    /// What is kept of `qkv` as floats.
    fn rounded(&self, qkv: &[f32]) -> Vec<f32> {
        let round =
            |(i, &x): (usize, &f32)| match self.storage_of(i % self.heads.qkv_cols()).map(|storage| storage.float) {
                None | Some(Float::F32) => x,
                Some(Float::F16) => f16::from_f32(x).to_f32(),
                Some(Float::Bf16) => half::bf16::from_f32(x).to_f32(),
            };
        qkv.iter().enumerate().map(round).collect()
    }

    /// What is kept of `rounded` once it is packed: codes of values between the least and the most of their group.
    fn unpacked(&self, rounded: &[f32]) -> Vec<f32> {
        let cols = self.heads.qkv_cols();
        let values_at = self.heads.q_cols() + self.heads.kv_cols();
        let size = self.format.group.max(1);
        let mut out = rounded.to_vec();
        for i in 0..rounded.len() {
            let (index, column) = (i / cols, i % cols);
            let Some(bits) = self.storage_of(column).and_then(|storage| storage.bits) else { continue };
            let Some(recent) = index.checked_sub(self.sinks as usize) else { continue };
            let group: Vec<f32> = if column < values_at {
                let first = index - recent % size;
                (first..first + size).filter_map(|index| rounded.get(index * cols + column)).copied().collect()
            } else {
                let channel = (column - values_at) % self.heads.head_dim;
                let first = channel / size * size;
                rounded[i - channel..][first..(first + size).min(self.heads.head_dim)].to_vec()
            };
            let least = group.iter().copied().fold(f32::INFINITY, f32::min);
            let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let levels = match bits {
                Bits::Eight => 255.0,
                Bits::Four => 15.0,
                Bits::Two => 3.0,
            };
            let scale = f16::from_f32((most - least) / levels).to_f32();
            let zero = f16::from_f32(least).to_f32();
            let code = ((rounded[i] - zero) / scale).round_ties_even().clamp(0.0, levels);
            out[i] = code * scale + zero;
        }
        out
    }

    /// Feeds `qkv` in chunks of the given sizes. `first(t)` is the oldest recent index that token t sees. Every chunk asks
    /// for the probs of another head, some of a layer that is not this one.
    fn feed(&self, qkv: &[f32], chunks: &[u32], first: &dyn Fn(u32) -> u32) -> Given {
        let hd = self.heads.head_dim;
        let layout = self.format.layout(self.heads, self.sinks as usize, self.recent as usize);
        let mut arena = vec![u32::MAX; layout.words()];
        let rope: Vec<f32> = (0..self.sinks + self.recent + 300)
            .flat_map(|p| {
                let (cos, sin) = self.angles(f64::from(p));
                cos.into_iter().chain(sin).map(|x| x as f32)
            })
            .collect();
        let report_layout = ReportLayout { layers: 2, heads: self.heads.n_heads };
        let sink_logits: Vec<f32> =
            (0..self.heads.n_heads).map(|head| if self.learned { head as f32 - 3.0 } else { NO_SINK_LOGIT }).collect();
        let mut given = Given::default();
        let mut start = 0;
        for (number, rows) in self.cut(chunks).into_iter().enumerate() {
            // A second lane that rests, and rows of another lane before ours.
            let row0 = 2;
            let all = (row0 + rows) as usize;
            let layout = StepLayout { lanes: 2, rows: all, head_dim: hd };
            let mut words = vec![0; layout.words()];
            let mut writer = StepWriter::new(layout, &mut words);
            writer.global(all, 0, 0);
            let asked = LayerHead { layer: usize::from(number % 4 != 3), head: number % self.heads.n_heads };
            if number % 4 != 2 {
                writer.ask(asked);
            }
            let base = (start..start + rows).map(first).min().unwrap().max(self.sinks);
            let lane = LaneStep {
                row0,
                rows,
                start,
                base,
                sinks: self.sinks,
                recent: self.recent,
                packed: self.packed(start),
                packs_to: self.packed(start + rows),
                flags: self.flags,
                ..LaneStep::default()
            };
            writer.lane(1, &lane);
            for local in 0..rows {
                let t = start + local;
                let sinks_held = self.sinks.min(t + 1);
                let held = sinks_held + (t + 1).saturating_sub(first(t).max(self.sinks));
                let position = if self.stream_positions { t } else { held - 1 };
                let (cos, sin) = self.angles(f64::from(position));
                writer.row(
                    (row0 + local) as usize,
                    &RowStep {
                        token: 0,
                        forced: None,
                        index: t,
                        first: first(t),
                        sinks_held,
                        held,
                        penalty: 1.0,
                        penalty_ids: &[],
                        cos: &cos.into_iter().map(|x| x as f32).collect::<Vec<_>>(),
                        sin: &sin.into_iter().map(|x| x as f32).collect::<Vec<_>>(),
                    },
                );
            }
            let step = StepView::new(layout, &words);
            let cols = self.heads.qkv_cols();
            let mut chunk = vec![f32::NAN; row0 as usize * cols];
            chunk.extend(&qkv[start as usize * cols..(start + rows) as usize * cols]);
            let mut out = vec![0.0; all * self.heads.q_cols()];
            let mut report = vec![0.0; all * report_layout.stride()];
            let slots = (self.sinks + self.recent) as usize;
            let mut probs = vec![f32::NAN; 2 * slots];
            let attention = Attend {
                heads: self.heads,
                format: self.format,
                rope: &rope,
                step,
                store: 0,
                sink_logits: &sink_logits,
                layer: 1,
                report: report_layout,
                slots,
            };
            let to = Attended { out: &mut out, report: &mut report, probs: &mut probs };
            attend(&attention, &chunk, &arena, to);
            append(self.heads, self.format, step, 0, &chunk, &mut arena);
            given.out.extend(&out[row0 as usize * self.heads.q_cols()..]);
            let written = if number % 4 < 2 { step.row(all - 1).held as usize } else { 0 };
            let (probs, rest) = probs[slots..].split_at(written);
            assert!(rest.iter().all(|x| x.is_nan()), "more is written than is seen and was asked for");
            if written > 0 {
                given.probs.push((start + rows - 1, asked.head, probs.to_vec()));
            }
            for row in row0 as usize..all {
                for head in 0..self.heads.n_heads {
                    let at = row * report_layout.stride() + report_layout.mass_at(1, head);
                    given.masses.push([report[at], report[at + 1]]);
                }
            }
            start += rows;
        }
        given
    }

    /// The literal definition: keys by slot, each rotated by its own position. Output, masses, probs.
    fn reference(
        &self,
        [rounded, unpacked]: [&[f32]; 2],
        t: u32,
        head: usize,
        first: u32,
    ) -> (Vec<f64>, [f64; 2], Vec<f64>) {
        let hd = self.heads.head_dim;
        let kv_head = head * self.heads.n_kv_heads / self.heads.n_heads;
        let value = |index: u32, column: usize| {
            let packed = index >= self.sinks && index < self.packed(t);
            f64::from(if packed { unpacked } else { rounded }[index as usize * self.heads.qkv_cols() + column])
        };
        let rotated = |index: u32, column: usize, position: u32| -> Vec<f64> {
            let (cos, sin) = self.angles(f64::from(position));
            let x: Vec<f64> = (0..hd).map(|i| value(index, column + i)).collect();
            (0..hd)
                .map(|i| {
                    if i < hd / 2 {
                        x[i] * cos[i] - x[i + hd / 2] * sin[i]
                    } else {
                        x[i] * cos[i - hd / 2] + x[i - hd / 2] * sin[i - hd / 2]
                    }
                })
                .collect()
        };
        let keys: Vec<u32> = (0..=t).filter(|&i| i < self.sinks || i >= first).collect();
        let sinks_held = keys.iter().filter(|&&i| i < self.sinks).count();
        let position_of = |n: usize| if self.stream_positions { keys[n] } else { n as u32 };
        let q = rotated(t, head * hd, position_of(keys.len() - 1));
        let k_column = self.heads.q_cols() + kv_head * hd;
        let weights: Vec<f64> = keys
            .iter()
            .enumerate()
            .map(|(n, &i)| {
                let k = rotated(i, k_column, position_of(n));
                let score: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                (score / (hd as f64).sqrt()).exp()
            })
            .collect();
        let mut sum: f64 = weights.iter().sum();
        sum += match (self.flags & SOFTMAX_ONE != 0, self.learned) {
            (true, _) => 1.0,
            (false, true) => (head as f64 - 3.0).exp(),
            (false, false) => 0.0,
        };
        let counts = |index: u32| index >= self.sinks || self.flags & ZERO_SINKS == 0;
        let out = (0..hd)
            .map(|c| {
                let v = k_column + self.heads.kv_cols() + c;
                let values = keys.iter().zip(&weights).filter(|(i, _)| counts(**i)).map(|(&i, w)| w * value(i, v));
                values.sum::<f64>() / sum
            })
            .collect();
        let mass = |n: usize| weights.iter().take(n).sum::<f64>() / sum;
        (out, [mass(sinks_held), mass(4)], weights.iter().map(|w| w / sum).collect())
    }

    fn check(&self, chunks: &[u32], first: &dyn Fn(u32) -> u32) {
        let mut random = Random(6);
        let tokens: u32 = chunks.iter().sum();
        let qkv = random.normals(tokens as usize * self.heads.qkv_cols());
        let Given { out, masses, probs } = self.feed(&qkv, chunks, first);
        assert!(!probs.is_empty());
        let rounded = self.rounded(&qkv);
        let unpacked = self.unpacked(&rounded);
        for t in 0..tokens {
            for head in 0..self.heads.n_heads {
                let (expected, expected_masses, expected_probs) =
                    self.reference([&rounded, &unpacked], t, head, first(t));
                let what = format!(
                    "{:?}, {:?}, S={}, R={}, chunks {chunks:?}, token {t}, head {head}",
                    self.heads, self.format, self.sinks, self.recent
                );
                let at = t as usize * self.heads.q_cols() + head * self.heads.head_dim;
                for (c, expected) in expected.into_iter().enumerate() {
                    let error = (f64::from(out[at + c]) - expected).abs();
                    assert!(error <= 1e-5, "{what}, channel {c}: off by {error:e}");
                }
                let got = masses[t as usize * self.heads.n_heads + head];
                for (got, expected) in got.into_iter().zip(expected_masses) {
                    let error = (f64::from(got) - expected).abs();
                    assert!(error <= 1e-6, "{what}: mass off by {error:e}");
                }
                for (_, _, probs) in probs.iter().filter(|(row, asked, _)| (*row, *asked) == (t, head)) {
                    assert_eq!(probs.len(), expected_probs.len(), "{what}");
                    for (n, (got, expected)) in probs.iter().zip(&expected_probs).enumerate() {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(error <= 1e-6, "{what}: prob {n} off by {error:e}");
                    }
                }
            }
        }
    }
}

const SMOL: Heads = Heads { n_heads: 9, n_kv_heads: 3, head_dim: 64 };

#[test]
fn attend_is_the_f64_definition() {
    let wide = Heads { n_heads: 8, n_kv_heads: 1, head_dim: 16 };
    let plain = Heads { n_heads: 2, n_kv_heads: 2, head_dim: 80 };
    for (heads, storage) in [
        (SMOL, Storage::F16),
        (SMOL, Storage::F32),
        (wide, Storage::F16),
        (plain, Storage::F32),
        (plain, Storage::F16),
        (SMOL, Storage::BF16),
    ] {
        for (sinks, recent) in [(0, 8), (4, 12), (2, 29), (3, 1)] {
            let stream = Stream { heads, format: CacheFormat::of(storage), sinks, recent, ..PLAIN };
            let first = |t: u32| (t + 1).saturating_sub(recent);
            stream.check(&[1; 45], &first);
            stream.check(&[2, 1, 7, 31, 4], &first);
            stream.check(&[45], &first);
        }
    }
}

#[test]
fn attend_by_stream_positions() {
    let stream = Stream {
        heads: SMOL,
        format: CacheFormat::of(Storage::F16),
        sinks: 4,
        recent: 8,
        stream_positions: true,
        ..PLAIN
    };
    stream.check(&[1, 5, 1, 30], &|t| (t + 1).saturating_sub(8));
}

#[test]
fn attend_with_one_more_logit_and_with_sinks_that_add_nothing() {
    for (flags, learned) in [(SOFTMAX_ONE, false), (0, true), (ZERO_SINKS, false), (ZERO_SINKS, true), (3, false)] {
        for (sinks, recent) in [(4, 12), (9, 100), (0, 5)] {
            for storage in [Storage::F16, Storage::F32] {
                let format = CacheFormat::of(storage);
                let stream = Stream { format, sinks, recent, flags, learned, ..PLAIN };
                let first = |t: u32| (t + 1).saturating_sub(recent);
                stream.check(&[1; 120], &first);
                stream.check(&[2, 1, 7, 41, 4], &first);
            }
        }
    }
}

/// A turn is evicted: after token 20 nothing older than 17 is seen, though it is still held.
#[test]
fn attend_with_irregular_eviction() {
    let stream = Stream { heads: SMOL, format: CacheFormat::of(Storage::F16), sinks: 4, recent: 16, ..PLAIN };
    let first = |t: u32| (t + 1).saturating_sub(16).max(if t > 20 { 17 } else { 0 });
    stream.check(&[1; 40], &first);
    stream.check(&[11, 29], &first);
}

#[test]
fn attend_over_a_long_cache() {
    let stream = Stream { heads: SMOL, format: CacheFormat::of(Storage::F16), sinks: 4, recent: 300, ..PLAIN };
    stream.check(&[256, 100, 1, 1], &|t| (t + 1).saturating_sub(300));
}

/// Caches shorter and longer than the group and the tail; chunks that cross three packings; one KV head; channels that
/// are no multiple of the group; K and V kept apart.
#[test]
fn attend_over_packed_caches_is_the_f64_definition() {
    let wide = Heads { n_heads: 8, n_kv_heads: 1, head_dim: 16 };
    let plain = Heads { n_heads: 2, n_kv_heads: 2, head_dim: 80 };
    let alike = |storage, group, tail| CacheFormat::new(storage, storage, group, tail);
    for (heads, format) in [
        (SMOL, alike(Storage::INT8, 32, 32)),
        (SMOL, alike(Storage::INT4, 32, 32)),
        (SMOL, alike(Storage::INT2, 32, 32)),
        (SMOL, alike(Storage::INT4, 8, 24)),
        (SMOL, alike(Storage::INT2, 24, 48)),
        (wide, alike(Storage::INT2, 8, 8)),
        (wide, alike(Storage::INT4, 16, 16)),
        (plain, alike(Storage::INT8, 32, 64)),
        (plain, alike(Storage::INT4, 32, 32)),
        (plain, alike(Storage::INT2, 16, 32)),
        (SMOL, CacheFormat::new(Storage::INT8, Storage::INT2, 32, 32)),
        (SMOL, CacheFormat::new(Storage::F16, Storage::INT4, 32, 32)),
        (SMOL, CacheFormat::new(Storage::INT4, Storage::F32, 32, 32)),
        (SMOL, CacheFormat::new(Storage::BF16, Storage::INT8, 32, 32)),
    ] {
        for (sinks, recent) in [(0, 40), (4, 100), (3, 5), (2, 64)] {
            let stream = Stream { heads, format, sinks, recent, ..PLAIN };
            let first = |t: u32| (t + 1).saturating_sub(recent);
            stream.check(&[1; 140], &first);
            stream.check(&[99, 1, 1, 39], &first);
        }
    }
}

/// A stream whose tokens all have the same values keeps them exactly, and gives them back whatever the scores: codes, of
/// which all are 0 here, would give nothing.
#[test]
fn attention_reads_values_and_not_codes() {
    for storage in [Storage::INT8, Storage::INT4, Storage::INT2] {
        let stream = Stream { format: CacheFormat::of(storage), sinks: 4, recent: 90, ..PLAIN };
        let cols = SMOL.qkv_cols();
        let values_at = SMOL.q_cols() + SMOL.kv_cols();
        let mut random = Random(21);
        let qkv: Vec<f32> =
            (0..150 * cols).map(|i| if i % cols < values_at { random.normal() as f32 } else { 3.5 }).collect();
        let Given { out, .. } = stream.feed(&qkv, &[1; 150], &|t| (t + 1).saturating_sub(90));
        for x in out {
            assert!((x - 3.5).abs() <= 1e-5, "{storage}: {x}");
        }
    }
}

/// Tokens that all have the same key differ once they are rotated: packed before that, they have no range and come back
/// exactly, so that even two bits give the scores of floats.
#[test]
fn keys_are_packed_before_they_are_rotated() {
    let cols = SMOL.qkv_cols();
    let keys = SMOL.q_cols()..SMOL.q_cols() + SMOL.kv_cols();
    let mut random = Random(22);
    let mut qkv: Vec<f32> = (0..150 * cols).map(|_| random.normal() as f32).collect();
    // What a half holds exactly.
    let key: Vec<f32> = keys.clone().map(|c| f16::from_f32(qkv[c]).to_f32()).collect();
    for token in qkv.chunks_exact_mut(cols) {
        token[keys.clone()].copy_from_slice(&key);
    }
    let masses = |keys| {
        let format = CacheFormat::new(keys, Storage::F32, 32, 32);
        let stream = Stream { format, sinks: 4, recent: 90, ..PLAIN };
        stream.feed(&qkv, &[1; 150], &|t| (t + 1).saturating_sub(90)).masses
    };
    for (exact, packed) in masses(Storage::F32).iter().flatten().zip(masses(Storage::INT2).iter().flatten()) {
        assert!((exact - packed).abs() <= 1e-6, "{exact}, {packed}");
    }
}

/// Eviction inside a group, at its edge, and of whole groups, by turns.
#[test]
fn attend_over_packed_caches_with_irregular_eviction() {
    for edge in [35, 36, 37, 68, 90, 100] {
        let format = CacheFormat::new(Storage::INT4, Storage::INT4, 32, 32);
        let stream = Stream { heads: SMOL, format, sinks: 4, recent: 96, ..PLAIN };
        let first = |t: u32| (t + 1).saturating_sub(96).max(if t >= 110 { edge } else { 0 });
        stream.check(&[1; 150], &first);
        stream.check(&[64, 86], &first);
    }
}

/// The bits of packed words: a group's tokens go in as rows, and codes, scales and zeros come out as the golden file has
/// them. Sinks and tail are f32, so that values are not rounded before.
#[test]
fn append_packs_the_golden_vectors() {
    for case in crate::cache::golden::cases() {
        for (bits, expected) in &case.packed {
            let storage = Storage { float: Float::F32, bits: Some(*bits) };
            let format = CacheFormat::new(storage, storage, 32, 32);
            let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: case.channels };
            let layout = format.layout(heads, 0, 32);
            let step_layout = StepLayout { lanes: 1, rows: 32, head_dim: case.channels };
            let mut words = vec![0; step_layout.words()];
            let lane = LaneStep { rows: 32, recent: 32, packs_to: 32, ..LaneStep::default() };
            StepWriter::new(step_layout, &mut words).lane(0, &lane);
            let mut arena = vec![u32::MAX; layout.words()];
            append(heads, format, StepView::new(step_layout, &words), 0, &case.rows(), &mut arena);
            case.check(*bits, expected, &layout, &arena);
        }
    }
}

/// The whole life of a small cache: which token each slot holds after each chunk.
#[test]
fn append_fills_sinks_then_the_ring() {
    let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 16 };
    let format = CacheFormat::of(Storage::F16);
    let none = 99;
    let mut arena = vec![u32::from(f16::from_f32(99.0).to_bits()) * 0x1_0001; 5 * 16];
    let mut start = 0;
    for (rows, life) in [
        (1, [0, none, none, none, none]),
        (3, [0, 1, 2, 3, none]),
        (2, [0, 1, 5, 3, 4]),
        (1, [0, 1, 5, 6, 4]),
        (7, [0, 1, 11, 12, 13]),
        (4, [0, 1, 17, 15, 16]),
    ] {
        let layout = StepLayout { lanes: 1, rows, head_dim: 16 };
        let mut words = vec![0; layout.words()];
        let lane = LaneStep { row0: 0, rows: rows as u32, start, base: 0, sinks: 2, recent: 3, ..LaneStep::default() };
        StepWriter::new(layout, &mut words).lane(0, &lane);
        let qkv: Vec<f32> =
            (0..rows).flat_map(|row| std::iter::repeat_n(start as f32 + row as f32, heads.qkv_cols())).collect();
        append(heads, format, StepView::new(layout, &words), 0, &qkv, &mut arena);
        for (slot, token) in life.into_iter().enumerate() {
            let word = u32::from(f16::from_f32(token as f32).to_bits()) * 0x1_0001;
            assert_eq!(arena[slot * 16..][..16], [word; 16], "slot {slot} after {rows} rows");
        }
        start += rows as u32;
    }
}

#[test]
fn append_rounds_to_the_nearest_half() {
    let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 16 };
    let layout = StepLayout { lanes: 1, rows: 1, head_dim: 16 };
    let mut words = vec![0; layout.words()];
    let lane = LaneStep { row0: 0, rows: 1, start: 0, base: 0, sinks: 1, recent: 1, ..LaneStep::default() };
    StepWriter::new(layout, &mut words).lane(0, &lane);
    let mut qkv = vec![0.0; 48];
    // Ties to even, a subnormal, and what no half can hold.
    qkv[16..24].copy_from_slice(&[1.0, 1.000_488_3, 1.001_464_8, 5.960_464_5e-8, 1e6, -1e6, -0.0, 1.000_489]);
    let mut arena = vec![0; 32];
    append(heads, CacheFormat::of(Storage::F16), StepView::new(layout, &words), 0, &qkv, &mut arena);
    assert_eq!(arena[..4], [0x3C00_3C00, 0x0001_3C02, 0xFBFF_7BFF, 0x3C01_8000]);
}

fn run_head(logits: &[f32], forced: Option<u32>, penalty: f32, penalty_ids: &[u32]) -> Vec<f32> {
    let layout = StepLayout { lanes: 1, rows: 3, head_dim: 16 };
    let mut words = vec![0; layout.words()];
    let mut writer = StepWriter::new(layout, &mut words);
    writer.global(3, 2, 1);
    let row = RowStep {
        token: 0,
        forced,
        index: 0,
        first: 0,
        sinks_held: 0,
        held: 1,
        penalty,
        penalty_ids,
        cos: &[0.0; 8],
        sin: &[0.0; 8],
    };
    writer.row(2, &row);
    let report_layout = ReportLayout { layers: 1, heads: 1 };
    let mut report = vec![5.0; 3 * report_layout.stride()];
    let step = StepView::new(layout, &words);
    head(logits, logits.len(), step, report_layout, &mut report);
    assert!(report[..2 * report_layout.stride()].iter().all(|&x| x == 5.0), "other rows");
    assert!(report[2 * report_layout.stride() + MASSES_AT..].iter().all(|&x| x == 5.0), "masses");
    report[2 * report_layout.stride()..].to_vec()
}

#[test]
fn head_ranks_as_a_sort_does() {
    let mut random = Random(7);
    for vocab in [10, 64, 100, 5000, 49_152] {
        for round in 0..4 {
            // Rounds of few distinct values are rounds of many ties.
            let logits: Vec<f32> = (0..vocab)
                .map(|_| match round {
                    0 => random.normal() as f32 * 4.0,
                    1 => random.below(5) as f32 - 2.0,
                    2 => (random.normal() * 3.0).round() as f32,
                    _ => -100.0 + random.normal() as f32,
                })
                .collect();
            let mut ids: Vec<u32> = (0..vocab).collect();
            ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            let mut penalty_ids: Vec<u32> = ids.iter().copied().take(40).collect();
            penalty_ids.push(ids[ids.len() - 1]);
            penalty_ids.sort();
            penalty_ids.dedup();
            for penalty in [1.0, 1.3, 0.5] {
                let mut expected: Vec<(f32, u32)> = (0..vocab)
                    .map(|id| {
                        let l = logits[id as usize];
                        let penalized = if l > 0.0 { l / penalty } else { l * penalty };
                        (if penalty_ids.contains(&id) { penalized } else { l }, id)
                    })
                    .collect();
                expected.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
                let report = run_head(&logits, Some(3), penalty, &penalty_ids);
                let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
                let error = (f64::from(report[LOG_SUM_EXP_AT]) - sum.ln()).abs();
                assert!(error < 1e-5, "log-sum-exp off by {error:e}");
                assert_eq!(report[FORCED_AT], logits[3]);
                for n in 0..TOP {
                    let (logit, id) = expected.get(n).map_or((f32::NEG_INFINITY, -1.0), |e| (e.0, e.1 as f32));
                    assert_eq!(report[TOP_IDS_AT + n], id, "vocab {vocab}, place {n}");
                    assert_eq!(report[TOP_LOGITS_AT + n], logit, "vocab {vocab}, place {n}");
                }
            }
        }
    }
}

#[test]
fn head_without_a_forced_id() {
    let report = run_head(&[1.0, 2.0], None, 1.0, &[]);
    assert_eq!(report[FORCED_AT], 0.0);
    assert_eq!(report[TOP_IDS_AT..TOP_IDS_AT + 3], [1.0, 0.0, -1.0]);
    let report = run_head(&[1.0, 2.0], Some(7), 1.0, &[]);
    assert_eq!(report[FORCED_AT], 0.0, "an id outside the vocabulary");
}

#[test]
fn step_rows_read_as_written() {
    let layout = StepLayout { lanes: 2, rows: 2, head_dim: 16 };
    assert_eq!(layout.words(), 8 + 2 * 12 + 2 * (72 + 16));
    let mut words = vec![9; layout.words()];
    let _ = StepWriter::new(layout, &mut words);
    assert_eq!((StepView::new(layout, &words).asked(), &words[3..5]), (None, &[NO_ID; 2][..]));
    let mut writer = StepWriter::reopen(layout, &mut words);
    let lane = LaneStep {
        row0: 1,
        rows: 2,
        start: 3,
        base: 4,
        sinks: 5,
        recent: 6,
        at: 7,
        store: 8,
        flags: 9,
        packed: 10,
        packs_to: 11,
    };
    let row = RowStep {
        token: 1,
        forced: Some(2),
        index: 3,
        first: 4,
        sinks_held: 5,
        held: 6,
        penalty: 1.5,
        penalty_ids: &[8, 9],
        cos: &[0.25; 8],
        sin: &[0.75; 8],
    };
    let asked = LayerHead { layer: 7, head: 8 };
    writer.ask(asked);
    writer.global(2, 1, 1);
    writer.lane(1, &lane);
    writer.row(1, &row);
    let step = StepView::new(layout, &words);
    assert_eq!((step.rows(), step.head_first(), step.head_rows(), step.asked()), (2, 1, 1, Some(asked)));
    assert_eq!(step.lane(1), lane);
    assert_eq!(step.row(1), row);
    // The words themselves are the contract with the shaders.
    assert_eq!(words[..8], [2, 1, 1, 7, 8, 0, 0, 0]);
    assert_eq!(words[20..32], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0]);
    let at = 32 + 88;
    assert_eq!(words[at..at + 11], [1, 2, 3, 4, 5, 6, 1.5f32.to_bits(), 2, 8, 9, 0]);
    assert_eq!(words[at + 72 + 7..at + 72 + 9], [0.25f32.to_bits(), 0.75f32.to_bits()]);
}

#[test]
fn report_layout_is_the_contract() {
    let layout = ReportLayout { layers: 30, heads: 9 };
    assert_eq!((layout.mass_at(0, 0), layout.mass_at(2, 3)), (130, 130 + 2 * 21));
    assert_eq!(layout.stride(), 130 + 540);
}

#[test]
fn packing_refuses_what_does_not_fit() {
    let rows: [&[u8]; OCTET] = [&[]; OCTET];
    let error = pack_octet(Codec::Q4, Format::Q4_1, 33, rows, &mut [], &mut []).unwrap_err();
    assert!(error.to_string().contains("33 columns"));
    let mut words = [0; 64];
    let error = pack_octet(Codec::Q8, Format::Q4_1, 32, rows, &mut words, &mut [0; 4]).unwrap_err();
    assert!(error.to_string().contains("Q4_1"));
    let mut rows = rows;
    rows[3] = &[0; 19];
    let error = pack_octet(Codec::Q4, Format::Q4_1, 32, rows, &mut words[..32], &mut [0; 8]).unwrap_err();
    assert!(error.to_string().contains("19"));
    assert!(Packed::new(Codec::Q4, 9, 32, &[0; 32], &[0; 16]).is_err());
}
