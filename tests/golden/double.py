#!/usr/bin/env python3
"""How far policies.json is from double precision, and the losses of window_16 in double precision.

    python3 -m venv /tmp/numpy && /tmp/numpy/bin/pip install numpy
    /tmp/numpy/bin/python tests/golden/double.py models/SmolLM2-135M-Instruct.Q4_1.gguf

prints the largest difference of each full-precision run of policies.json and writes window_16.json.

A window of 16 without sinks leaves the model in states that multiply rounding ten thousandfold, so that programs in single
precision differ by thousandths of a nat at a few tokens, policies.json (PyTorch, single precision) included. This one
shares nothing with it or with the crates: all arithmetic is double, all tokens go through each layer at once, and what a
policy has dropped is masked. The weights are the file's, unpacked to f32 as everybody unpacks them.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


class Gguf:
    """The metadata and the tensors of a GGUF file of F32, Q4_1 and Q8_0 tensors."""

    NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.data, self.at = Path(path).read_bytes(), 4
        self.number("I")
        n_tensors, n_values = self.number("Q"), self.number("Q")
        self.metadata = {}
        for _ in range(n_values):
            key = self.string()
            self.metadata[key] = self.value(self.number("I"))
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            dims = [self.number("Q") for _ in range(self.number("I"))]
            infos.append((name, dims[::-1], self.number("I"), self.number("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self.at // alignment) * alignment
        self.tensors = {name: self.tensor(kind, shape, start + offset) for name, shape, kind, offset in infos}

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind = self.number("I")
            return [self.value(kind) for _ in range(self.number("Q"))]
        return self.number(self.NUMBERS[kind])

    def tensor(self, kind, shape, at):
        n = int(np.prod(shape))
        if kind == 0:
            return np.frombuffer(self.data, "<f4", n, at).reshape(shape)
        size = {3: 20, 8: 34}[kind]
        blocks = np.frombuffer(self.data, np.uint8, n // 32 * size, at).reshape(-1, size)
        half = lambda i: blocks[:, i : i + 2].copy().view("<f2").astype(np.float32)
        if kind == 8:
            return (blocks[:, 2:].view(np.int8).astype(np.float32) * half(0)).reshape(shape)
        codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1).astype(np.float32)
        return (codes * half(0) + half(2)).reshape(shape)


def losses(model, tokens, sinks, recent, stream_positions):
    """-ln p(tokens[i + 1]) after tokens[..= i] under a policy, in nats."""
    get = lambda name: model.metadata["llama." + name]
    weights = lambda name: model.tensors[name + ".weight"].astype(np.float64)
    heads, kv_heads = get("attention.head_count"), get("attention.head_count_kv")
    head_dim = get("embedding_length") // heads
    eps = get("attention.layer_norm_rms_epsilon")
    n = len(tokens)
    t = np.arange(n)
    held = np.minimum(t + 1, sinks + recent)
    kept = (t[None, :] <= t[:, None]) & ((t[None, :] > t[:, None] - recent) | (t[None, :] < sinks))
    is_sink = t < sinks
    frequencies = get("rope.freq_base") ** (-np.arange(0, head_dim, 2) / head_dim)

    def norm(x, gain):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain

    def rotate(x, positions):
        """Rows of q and k are stored for neighbouring pairs."""
        angles = positions[:, None] * frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        out = np.empty_like(x)
        out[:, 0::2] = x[:, 0::2] * cos - x[:, 1::2] * sin
        out[:, 1::2] = x[:, 0::2] * sin + x[:, 1::2] * cos
        return out

    x = weights("token_embd")[tokens]
    for layer in range(get("block_count")):
        of = lambda name: weights(f"blk.{layer}.{name}")
        h = norm(x, of("attn_norm"))
        q, k, v = h @ of("attn_q").T, h @ of("attn_k").T, h @ of("attn_v").T
        attended = np.empty_like(q)
        for head in range(heads):
            own = slice(head * head_dim, (head + 1) * head_dim)
            first = head // (heads // kv_heads) * head_dim
            kv = slice(first, first + head_dim)
            # Recent keys at their true distance; sink keys at theirs in the cache, or in the stream.
            scores = rotate(q[:, own], t) @ rotate(k[:, kv], t).T
            if not stream_positions and is_sink.any():
                in_cache = rotate(q[:, own], held - 1) @ rotate(k[:, kv], t).T
                scores = np.where(is_sink[None, :], in_cache, scores)
            scores = np.where(kept, scores / np.sqrt(head_dim), -np.inf)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            attended[:, own] = probs / probs.sum(-1, keepdims=True) @ v[:, kv]
        x = x + attended @ of("attn_output").T
        h = norm(x, of("ffn_norm"))
        gate = h @ of("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ of("ffn_up").T)) @ of("ffn_down").T
    h = norm(x, weights("output_norm"))
    head = weights("output" if "output.weight" in model.tensors else "token_embd").T
    found = []
    for i in range(n - 1):
        logits = h[i] @ head
        largest = logits.max()
        found.append(largest + np.log(np.exp(logits - largest).sum()) - logits[tokens[i + 1]])
    return np.array(found)


def main():
    model = Gguf(sys.argv[1])
    policies = json.loads((HERE / "policies.json").read_text())
    tokens = np.array(policies["tokens"])
    for name, run in policies["runs"].items():
        settings = run["settings"]
        if "kv" in settings:
            continue
        recent = settings.get("recent", len(tokens))
        found = losses(model, tokens, settings.get("sinks", 0), recent, settings.get("positions") == "stream")
        apart = np.abs(found - run["nll"])
        mean = abs(found.mean() - run["mean"])
        print(f"{name:<14} {apart.max():.1e} at token {apart.argmax():>4}, mean {mean:.1e}", flush=True)
        if name == "window_16":
            text = json.dumps({"nll": [round(x, 6) for x in found.tolist()]})
            (HERE / "window_16.json").write_text(text.replace("[", "[\n").replace(", ", ",\n").replace("]", "\n]") + "\n")


main()
