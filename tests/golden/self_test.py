#!/usr/bin/env python3
"""What the kernels must answer in the self-test that runs before a model is loaded.

    python3 tests/golden/self_test.py           writes crates/kernels/src/self_test.txt
    python3 tests/golden/self_test.py --check   exits with 1 where the file differs

The plainest loops in double precision, after the contracts in crates/kernels/src/{packed,step,lib}.rs and without any of
that code, so that an error would have to be made twice. Inputs are not stored: `Draws` has a twin in
crates/kernels/src/self_test.rs, and both draw in the order that is written at each case.

A line is `name: tolerance: values`. A long output is folded: the value j of a fold by n is the sum over i < n of
(i + 1) / n * output[j * n + i], so every output counts. Words are folded to exact hashes, n words each.
"""

import math
import struct
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "crates/kernels/src/self_test.txt"

EPS = struct.unpack("<f", struct.pack("<f", 1e-5))[0]
N_HEADS, N_KV_HEADS = 6, 2
LAYERS, LAYER = 2, 1
# The head whose probs are asked for, of the last row of the lane under test.
HEAD_ASKED = 4
# Row 0 belongs to lane 0; the lane under test is lane 1 and starts at row 1. They share an arena where a case says so.
ROWS, ROW0 = 5, 1
VOCAB, BEST = 300, 64


class Draws:
    """A linear congruential generator modulo 2^32. Only high bits are used: the low ones have short periods."""

    def __init__(self, case):
        self.state = (case + 1) * 0x9E3779B9 % 2**32

    def next(self):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return self.state

    def word(self):
        high = self.next() >> 16
        return high << 16 | self.next() >> 16

    def value(self):
        """In [-1, 1), 24 bits: exact in single precision."""
        return ((self.next() >> 8) - 2**23) / 2**23

    def half(self):
        """In [-1, 1), 11 bits: exact in half precision, whichever way a device rounds."""
        return ((self.next() >> 21) - 1024) / 1024

    def values(self, n, size):
        return [size * self.value() for _ in range(n)]


def half_value(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def half_bits(value):
    return struct.unpack("<H", struct.pack("<e", max(-65504.0, min(65504.0, value))))[0]


def float_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def fold(values, n):
    assert len(values) % n == 0
    return [sum((i + 1) / n * values[at + i] for i in range(n)) for at in range(0, len(values), n)]


def hashes(words, n):
    assert len(words) % n == 0
    found = []
    for at in range(0, len(words), n):
        h = 0
        for word in words[at : at + n]:
            h = (h * 31 + word) % 2**32
        found.append(h)
    return found


LINES = []


def line(name, tolerance, values):
    """Eight digits: their rounding is far below any tolerance."""
    numbers = " ".join(str(v) if isinstance(v, int) else f"{v:.8g}" for v in values)
    LINES.append(f"{name}: {tolerance:.1e}: {numbers}")


# --- Packed matrices ---------------------------------------------------------------------------------------------------

WORDS_PER_BLOCK = {"q4": 4, "q8": 8, "f16": 16, "f32": 32}


def draw_matrix(draws, codec, rows, cols):
    """Draws all words, then all scales; returns the values [row][col]. Padding rows hold garbage, too.

    q4 and q8 words are any bits. f16: two halves, the low one first, of 2^-7 to 2^-3. f32: within a quarter of 0.
    Scales are halves with a drawn fraction: q4 d of 2^-7, m of -2^-4; q8 d of 2^-10, the low half first; else one 0.
    """
    per_block, blocks, octets = WORDS_PER_BLOCK[codec], cols // 32, -(-rows // 8)

    def fraction(base):
        return base | draws.next() >> 22

    def some_half():
        bits = draws.next()
        return (bits >> 31) << 15 | (8 + (bits >> 29 & 3)) << 10 | bits >> 19 & 1023

    words, scales = [], []
    for _ in range(octets * blocks * per_block * 8):
        if codec in ("q4", "q8"):
            words.append(draws.word())
        elif codec == "f16":
            low = some_half()
            words.append((low, some_half()))
        else:
            words.append(draws.value() / 4)
    if codec == "q4":
        for _ in range(octets * blocks * 8):
            d = fraction(0x2000)
            scales.append((d, fraction(0xAC00)))
    elif codec == "q8":
        for _ in range(octets * blocks * 4):
            low = fraction(0x1400)
            scales.append((low, fraction(0x1400)))

    def value(row, col):
        octet_block, r, c = row // 8 * blocks + col // 32, row % 8, col % 32

        def word(j):
            return words[(octet_block * per_block + j) * 8 + r]

        if codec == "q4":
            byte = word(c % 16 // 4) >> 8 * (c % 4) & 255
            code = byte & 15 if c < 16 else byte >> 4
            d, m = scales[octet_block * 8 + r]
            return half_value(d) * code + half_value(m)
        if codec == "q8":
            byte = word(c // 4) >> 8 * (c % 4) & 255
            code = byte - 256 if byte > 127 else byte
            return half_value(scales[octet_block * 4 + r // 2][r % 2]) * code
        if codec == "f16":
            return half_value(word(c // 2)[c % 2])
        return word(c)

    return [[value(row, col) for col in range(cols)] for row in range(rows)]


# codec, epilogue, norm, rows of the layout, rows in use, (first, rows) of the head, matrix rows, columns, a great value
LINEAR = [
    ("q4", "store", True, 5, 5, None, 13, 160, True),
    ("q4", "add", False, 1, 1, None, 24, 96, False),
    ("q4", "gate", True, 5, 3, None, 32, 96, False),
    ("q8", "store", True, 5, 5, (3, 2), 24, 96, False),
    ("q8", "add", False, 5, 5, None, 13, 160, False),
    ("q8", "gate", True, 1, 1, None, 32, 160, False),
    ("f16", "store", False, 1, 1, None, 24, 160, False),
    ("f16", "add", True, 5, 5, None, 13, 96, True),
    ("f16", "gate", False, 5, 5, None, 32, 96, False),
    ("f32", "store", True, 1, 1, None, 13, 96, False),
    ("f32", "add", True, 5, 2, None, 24, 160, False),
    ("f32", "gate", False, 1, 1, None, 32, 160, False),
]


def linear(case, codec, epilogue, norm, layout_rows, used, head, rows, cols, great):
    """Draws: matrix, x of twice a value, gain of twice a value, and what is in `out` before."""
    draws = Draws(case)
    w = draw_matrix(draws, codec, rows, cols)
    x = draws.values(layout_rows * cols, 2)
    gain = draws.values(cols, 2)
    width = rows // 2 if epilogue == "gate" else rows
    out = draws.values(layout_rows * width, 1)
    if great:
        x[5] = 20000.0  # As in the residual of SmolLM2's first token; its square is too much for half precision.
    first, count = head or (0, used)
    largest = 0.0
    for t in range(count):
        row = x[(first + t) * cols : (first + t + 1) * cols]
        factor = 1.0
        if norm:
            factor = 1 / math.sqrt(sum(v * v for v in row) / cols + EPS)
            row = [v * g for v, g in zip(row, gain)]

        def product(r):
            terms = [a * b * factor for a, b in zip(w[r], row)]
            return sum(terms), sum(abs(term) for term in terms)

        for r in range(width):
            if epilogue == "gate":
                # Octets alternate: eight gate rows, eight up rows.
                gate, gate_size = product(r // 8 * 16 + r % 8)
                up, up_size = product(r // 8 * 16 + 8 + r % 8)
                y = gate / (1 + math.exp(-gate)) * up
                # The slope of SiLU is at most 1.1.
                size = 1.1 * gate_size * abs(up) + up_size * abs(gate)
            else:
                y, size = product(r)
            largest = max(largest, size)
            at = t * width + r
            out[at] = out[at] + y if epilogue == "add" else y
    # Activations of 16 bits cost up to 1e-5 of the sum of |w x|, and three times that beside a great value.
    line(f"linear {codec} {epilogue}", 3e-5 * largest, out)


EMBED_IDS = [0, 23, 9, 13]


def embed(case, codec):
    """Draws: a table of 24 rows and 96 columns, and what is in `x` before. Four of five rows are in use."""
    draws = Draws(case)
    table = draw_matrix(draws, codec, 24, 96)
    x = draws.values(ROWS * 96, 1)
    for t, token in enumerate(EMBED_IDS):
        x[t * 96 : (t + 1) * 96] = table[token]
    line(f"embed {codec}", 2e-6, fold(x, 4))


# --- Attention ---------------------------------------------------------------------------------------------------------

# name, storage, head_dim, sinks, ring, first stream index of the chunk, rows, and what is special: what a turn's end
# evicted up to; far; another lane in the arena; softmax one; learned logits; sinks whose values are zero
ATTEND = [
    ("wrapped", "f32", 32, 2, 5, 11, 4, {}),
    ("sinks in the chunk", "f32", 32, 2, 5, 0, 4, {}),
    ("two tiles", "f32", 32, 2, 70, 100, 2, {}),
    ("after a turn", "f16", 64, 2, 5, 11, 4, {"evicted": 9}),
    ("far sinks", "f16", 64, 2, 5, 4_000_003, 1, {"far": True}),
    ("window", "f16", 64, 0, 3, 11, 4, {}),
    ("two lanes", "f16", 64, 2, 5, 11, 4, {"shared": True}),
    ("softmax one", "f32", 32, 2, 5, 11, 4, {"one": True}),
    ("learned logits and sinks without values", "f32", 32, 2, 70, 100, 2, {"learned": True, "zeros": True}),
]


def rotate(x, position):
    half = len(x) // 2
    out = [0.0] * len(x)
    for i in range(half):
        angle = position * 10000 ** (-i / half)
        c, s = math.cos(angle), math.sin(angle)
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i] * s + x[i + half] * c
    return out


def draw_qkv(draws, storage, head_dim):
    """A row: queries of four times a value, then keys and values of twice one. Halves where halves are stored."""
    one = draws.half if storage == "f16" else draws.value
    q = [4 * one() for _ in range(N_HEADS * head_dim)]
    return q + draw_kv(draws, storage, head_dim)


def draw_kv(draws, storage, head_dim):
    one = draws.half if storage == "f16" else draws.value
    return [2 * one() for _ in range(2 * N_KV_HEADS * head_dim)]


def attend(case, name, storage, head_dim, sinks, recent, start, rows, special):
    """Draws: K and V of each token that the other lane's cache still holds, where there is one, then those of the lane
    under test, in stream order; every row of qkv; what is in `out` before; what is in the report's masses before; where
    logits are learned, four times a value for each head.

    A cache is a plain list of tokens here, so slots and arenas play no part. Rotating by true positions is what counts: a
    recent key is as far as the stream says, a sink as far as its slot and the query's `held - 1` say, or, far, as the
    stream. An extra logit is one more term of the denominator, with no key and no value.
    """
    draws = Draws(case)
    q_cols, kv_cols = N_HEADS * head_dim, N_KV_HEADS * head_dim
    # First row, rows, sinks, ring, first token, and whether what is special holds for it. Lane 0 is at its token 7.
    lanes = [(0, 1, 1, 3, 7, False)] if "shared" in special else []
    lanes.append((ROW0, rows, sinks, recent, start, True))
    caches = []
    for _, _, s, r, t0, _ in lanes:
        kept = list(range(min(s, t0))) + list(range(max(s, t0 - r), t0))
        caches.append({index: draw_kv(draws, storage, head_dim) for index in kept})
    qkv = [draw_qkv(draws, storage, head_dim) for _ in range(ROWS)]
    out = draws.values(ROWS * q_cols, 1)
    masses = draws.values(ROWS * LAYERS * N_HEADS * 2, 1)
    learned = draws.values(N_HEADS, 4) if "learned" in special else None
    for cache, (row0, count, s, r, t0, tested) in zip(caches, lanes):
        for i in range(count):
            cache[t0 + i] = qkv[row0 + i][q_cols:]
        for row in range(row0, row0 + count):
            t = t0 + row - row0
            first = max(s, t - r + 1, special.get("evicted", 0))
            seen_sinks = list(range(min(s, t + 1)))
            view = seen_sinks + list(range(first, t + 1))
            for head in range(N_HEADS):
                kv = head // (N_HEADS // N_KV_HEADS) * head_dim
                q = qkv[row][head * head_dim : (head + 1) * head_dim]
                sink_query = rotate(q, t if "far" in special else len(view) - 1)
                scores = []
                for index in view:
                    k = cache[index][kv : kv + head_dim]
                    if index < s:
                        pair = zip(sink_query, rotate(k, index))
                    else:
                        pair = zip(rotate(q, t - index), k)
                    scores.append(sum(a * b for a, b in pair) / math.sqrt(head_dim))
                probs = [math.exp(score) for score in scores]
                total = sum(probs)
                if learned:
                    total += math.exp(learned[head])
                if tested and "one" in special:
                    total += 1
                for c in range(head_dim):
                    v = 0.0
                    for p, index in zip(probs, view):
                        if index >= s or not (tested and "zeros" in special):
                            v += p * cache[index][kv_cols + kv + c]
                    out[row * q_cols + head * head_dim + c] = v / total
                at = ((row * LAYERS + LAYER) * N_HEADS + head) * 2
                masses[at] = sum(probs[: len(seen_sinks)]) / total
                masses[at + 1] = sum(probs[:4]) / total
                if tested and head == HEAD_ASKED:
                    asked = [p / total for p in probs]  # The last row stays.
    line(f"attend {storage} {name}", 5e-5, fold(out, head_dim // 4))
    line(f"attend {storage} {name}, masses", 2e-5, fold(masses, 2))
    line(f"attend {storage} {name}, probs", 1e-5, asked)


# name, storage, head_dim, ring, first stream index of the chunk, whether values need rounding; two sinks, four rows
APPEND = [
    ("wrapped", "f32", 32, 5, 11, False),
    ("wrapped", "f16", 64, 5, 11, False),
    ("longer than the ring, rounded", "f16", 64, 2, 1, True),
]


def append(case, name, storage, head_dim, recent, start, rounded):
    """Draws: K and V of each slot before, then every row of qkv. The first key of the chunk is more than a half holds.
    The first slot of the arena belongs to another lane and stays as it was.

    Devices may round to half precision either way, so words are compared only where nothing is rounded; the other case
    is compared as values, which may be one step (2^-10 below 2) off.
    """
    draws = Draws(case)
    q_cols, sinks = N_HEADS * head_dim, 2
    other = draw_kv(draws, storage, head_dim)
    slots = [draw_kv(draws, storage, head_dim) for _ in range(sinks + recent)]
    qkv = [draw_qkv(draws, "f32" if rounded else storage, head_dim) for _ in range(ROWS)]
    if not rounded:
        qkv[ROW0][q_cols] = 1.0e5
    for i in range(4):
        # A later token overwrites an earlier one, so that the last ones stay.
        index = start + i
        slots[index if index < sinks else sinks + (index - sinks) % recent] = qkv[ROW0 + i][q_cols:]
    values = [value for slot in [other] + slots for value in slot]
    if rounded:
        line(f"append {storage} {name}", 1e-3, fold([half_value(half_bits(v)) for v in values], 4))
    elif storage == "f16":
        halves = [half_bits(v) for v in values]
        words = [low | high << 16 for low, high in zip(halves[::2], halves[1::2])]
        line(f"append {storage} {name}", 0, hashes(words, 16))
    else:
        line(f"append {storage} {name}", 0, hashes([float_bits(v) for v in values], 16))


# --- Packed caches -----------------------------------------------------------------------------------------------------

# bits, and what one step of a code is worth. Two sinks, then groups of eight tokens or channels and a tail of eight.
PACKED = [(8, 1 / 32), (4, 1 / 8), (2, 1 / 2)]


def packed(case, bits, unit):
    """Draws, for each of the tokens 0 to 21, its row of qkv: queries of four halves, then a code for each channel of K
    and of V.

    The value of a code is `(code - 2^(bits-1)) * unit`. In every group the first code is forced to the least and the
    second to the largest, so that scale and zero are `unit` and the value of code 0: exact in half precision, and no
    device can round a code to another. So attention must be that over the values themselves.

    Tokens 0 to 17 are read in chunks of two, four, four, four and four; then all but the sinks are packed, the tail still
    has the last eight, and tokens 18 to 21 attend to the sinks and the last twelve. Twelve tokens take two groups.
    """
    draws = Draws(case)
    head_dim, sinks, group, recent, read, rows = 32, 2, 8, 12, 18, 4
    kv_cols, largest = N_KV_HEADS * head_dim, 2**bits - 1
    queries, codes = [], []
    for index in range(read + rows):
        queries.append([4 * draws.half() for _ in range(N_HEADS * head_dim)])
        token = [draws.next() >> (32 - bits) for _ in range(2 * kv_cols)]
        for c in range(2 * kv_cols):
            place = (index - sinks) % group if c < kv_cols else c % group
            token[c] = 0 if place == 0 else largest if place == 1 else token[c]
        codes.append(token)
    values = [[(code - 2 ** (bits - 1)) * unit for code in token] for token in codes]

    def slot(index):
        halves = [half_bits(v) for v in values[index]]
        return [low | high << 16 for low, high in zip(halves[::2], halves[1::2])]

    def part(first, column, parameters):
        words = [0] * (group * head_dim * bits // 32)
        for t in range(group):
            for c in range(head_dim):
                eight, per_word = (t * head_dim + c) // 8, 32 // bits
                words[eight // per_word * 8 + c % 8] |= codes[first + t][column + c] << eight % per_word * bits
        return words + [half_bits(unit) | half_bits(-(2 ** (bits - 1)) * unit) << 16] * parameters

    arena = slot(0) + slot(1)
    for first in (2, 10):
        for kv_head in range(N_KV_HEADS):
            arena += part(first, kv_head * head_dim, head_dim)
        for kv_head in range(N_KV_HEADS):
            arena += part(first, kv_cols + kv_head * head_dim, group * head_dim // group)
    for index in range(10, 18):
        arena += slot(index)

    out, masses = [], []
    for t in range(read, read + rows):
        view = list(range(sinks)) + list(range(t - recent + 1, t + 1))
        for head in range(N_HEADS):
            kv = head // (N_HEADS // N_KV_HEADS) * head_dim
            q = queries[t][head * head_dim : (head + 1) * head_dim]
            scores = []
            for index in view:
                k = values[index][kv : kv + head_dim]
                if index < sinks:
                    pair = zip(rotate(q, len(view) - 1), rotate(k, index))
                else:
                    pair = zip(rotate(q, t - index), k)
                scores.append(sum(a * b for a, b in pair) / math.sqrt(head_dim))
            most = max(scores)
            probs = [math.exp(score - most) for score in scores]
            total = sum(probs)
            for c in range(head_dim):
                out.append(sum(p * values[index][kv_cols + kv + c] for p, index in zip(probs, view)) / total)
            masses += [sum(probs[:sinks]) / total, sum(probs[:4]) / total]
            if head == HEAD_ASKED:
                asked = [p / total for p in probs]  # The last row stays.
    line(f"packed int{bits}", 0, hashes(arena, 16))
    line(f"attend int{bits} packed", 2e-4, fold(out, head_dim // 4))
    line(f"attend int{bits} packed, masses", 2e-5, fold(masses, 2))
    line(f"attend int{bits} packed, probs", 1e-5, asked)


# --- Head --------------------------------------------------------------------------------------------------------------

# Of three head rows (1, 2 and 3 of 5): penalty, penalized ids, forced id.
HEAD = [
    (2.0, [7, 31, 299, 100, 0], 31),
    (1.0, [], None),
    (2.0, [3 * i + 1 for i in range(64)], 299),
]


def head(case):
    """Draws: logits, sixteenths from -8 to 8, so that many tie and penalties are exact; the third row is 12 lower, so
    that the best of it are negative."""
    draws = Draws(case)
    logits = [((draws.next() >> 24) - 128) / 16 for _ in range(ROWS * VOCAB)]
    logits[2 * VOCAB : 3 * VOCAB] = [v - 12 for v in logits[2 * VOCAB : 3 * VOCAB]]
    sums, ids, best = [], [], []
    ties = 0
    for row, (penalty, penalized, forced) in enumerate(HEAD):
        plain = logits[row * VOCAB : (row + 1) * VOCAB]
        sums.append(math.log(sum(math.exp(v) for v in plain)))
        sums.append(0.0 if forced is None else plain[forced])
        after = list(plain)
        for i in penalized:
            after[i] = plain[i] / penalty if plain[i] > 0 else plain[i] * penalty
        order = sorted(range(VOCAB), key=lambda i: (-after[i], i))
        ties += after[order[BEST - 1]] == after[order[BEST]]
        ids += order[:BEST]
        best += [after[i] for i in order[:BEST]]
    assert ties, "no row has a tie across the last place"
    line("head, log-sum-exp and forced", 2e-5, sums)
    line("head, best ids", 0, ids)
    line("head, best logits", 1e-6, best)


def main():
    case = 0
    for kernel, cases in [
        (linear, LINEAR),
        (embed, [(codec,) for codec in WORDS_PER_BLOCK]),
        (attend, ATTEND),
        (append, APPEND),
        (packed, PACKED),
        (head, [()]),
    ]:
        for arguments in cases:
            kernel(case, *arguments)
            case += 1
    text = "\n".join(LINES) + "\n"
    if "--check" not in sys.argv[1:]:
        OUT.write_text(text)
        return 0
    if OUT.exists() and OUT.read_text() == text:
        return 0
    print(f"{OUT} is not what {Path(__file__).name} writes: run the script without --check", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
