"""A second, independent forward pass: numpy in float64, straight from a GGUF file.

It shares nothing with transformers but the file, so it checks layouts (interleaved rope on permuted rows, folded
norms, expert slices) and not just that writing and reading cancel out. `flaws` switches single steps off or wrong:
check_golden.py uses them to show that the fixtures notice each mistake.
"""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Reference:
    def __init__(self, file, flaws=()):
        get = file.get
        self.file, self.flaws, self.arch = file, set(flaws), file.arch
        self.width, self.layers = get("embedding_length"), get("block_count")
        self.heads = get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv", self.heads)
        self.head_size = get("attention.key_length", self.width // self.heads)
        self.eps = get("attention.layer_norm_rms_epsilon")
        self.base = get("rope.freq_base", 10000.0)
        self.window = get("attention.sliding_window", 0)
        self.position_row = self.rows_of_pairs(get("rope.dimension_sections"))
        self.cache = {}

    def weight(self, name):
        if name not in self.cache:
            self.cache[name] = self.file.array(name).astype(np.float64)
        return self.cache[name]

    def has(self, name):
        return name in self.file.tensors

    def rows_of_pairs(self, sections):
        """Which of time, height and width turns each pair of a head."""
        if sections is None or "one row of positions" in self.flaws:
            return np.zeros(self.head_size // 2, int)
        if (self.arch == "qwen3vl") == ("other sections" in self.flaws):
            return np.repeat(np.arange(len(sections)), sections)
        rows = np.zeros(self.head_size // 2, int)
        for axis in (1, 2):
            rows[axis:3 * sections[axis]:3] = axis
        return rows

    def norm(self, x, name):
        w = self.weight(name)
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * w

    def is_local(self, layer):
        period = 5 if "pattern of 5" in self.flaws else 6
        return self.arch == "gemma3" and self.window > 0 and (layer + 1) % period != 0

    def rotate(self, x, layer):
        """x: (positions, heads, head size). Rows i of the file's pairs turn by position * frequency i."""
        half = self.head_size // 2
        base = 10000.0 if self.is_local(layer) and "one rope base" not in self.flaws else self.base
        frequency = base ** (-np.arange(half) / half)
        if self.has("rope_freqs.weight") and "no frequency factors" not in self.flaws:
            frequency = frequency / self.weight("rope_freqs.weight")
        angle = (self.positions[self.position_row].T * frequency)[:, None, :]
        cos, sin = np.cos(angle), np.sin(angle)
        interleaved = (self.arch == "llama") != ("other rope pairing" in self.flaws)
        out = np.empty_like(x)
        a, b = (np.s_[..., 0::2], np.s_[..., 1::2]) if interleaved else (np.s_[..., :half], np.s_[..., half:])
        out[a], out[b] = x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos
        return out

    def mask(self, count, layer):
        p = np.arange(count)
        distance = p[:, None] - p[None, :]
        allowed = distance >= 0
        if self.is_local(layer) and "no window" not in self.flaws:
            allowed &= distance < self.window + ("window one wider" in self.flaws)
        return np.where(allowed, 0.0, -np.inf)

    def project(self, x, name):
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if self.has(f"{name}.bias") and "no bias" not in self.flaws else y

    def attention(self, x, layer):
        blk, n = f"blk.{layer}", len(x)
        q = self.project(x, f"{blk}.attn_q").reshape(n, self.heads, self.head_size)
        k = self.project(x, f"{blk}.attn_k").reshape(n, self.kv_heads, self.head_size)
        v = self.project(x, f"{blk}.attn_v").reshape(n, self.kv_heads, self.head_size)
        if self.has(f"{blk}.attn_q_norm.weight") and "no q and k norm" not in self.flaws:
            q, k = self.norm(q, f"{blk}.attn_q_norm.weight"), self.norm(k, f"{blk}.attn_k_norm.weight")
        q, k = self.rotate(q, layer), self.rotate(k, layer)
        out = np.empty_like(q)
        mask = self.mask(n, layer)
        for head in range(self.heads):
            group = head % self.kv_heads if "interleaved head groups" in self.flaws else head * self.kv_heads // self.heads
            p = softmax(q[:, head] @ k[:, group].T / np.sqrt(self.head_size) + mask)
            out[:, head] = p @ v[:, group]
        return self.project(out.reshape(n, -1), f"{blk}.attn_output")

    def experts(self, x, blk):
        p = softmax(x @ self.weight(f"{blk}.ffn_gate_inp.weight").T)
        used = self.file.get("expert_used_count")
        out = np.zeros_like(x)
        for row, h in enumerate(x):
            chosen = np.argsort(-p[row], kind="stable")[:used]
            w = p[row, chosen] if "weights not normalised" in self.flaws else p[row, chosen] / p[row, chosen].sum()
            for expert, share in zip(chosen, w):
                gate = silu(self.weight(f"{blk}.ffn_gate_exps.weight")[expert] @ h)
                up = self.weight(f"{blk}.ffn_up_exps.weight")[expert] @ h
                out[row] += share * (self.weight(f"{blk}.ffn_down_exps.weight")[expert] @ (gate * up))
        return out

    def feed_forward(self, x, layer):
        blk = f"blk.{layer}"
        if self.has(f"{blk}.ffn_gate_inp.weight"):
            return self.experts(x, blk)
        act = gelu_tanh if self.arch == "gemma3" and "silu" not in self.flaws else silu
        return self.project(act(self.project(x, f"{blk}.ffn_gate")) * self.project(x, f"{blk}.ffn_up"), f"{blk}.ffn_down")

    def post(self, x, name):
        return self.norm(x, name) if self.has(name) and "no post norms" not in self.flaws else x

    def logits(self, tokens, positions=None, vectors=None):
        """tokens: below 0 where the next of `vectors` (planes, n, width) stands, of which planes from 1 on are added behind layers.

        positions: (3, tokens), or all as they are counted.
        """
        tokens = np.asarray(tokens)
        self.positions = np.tile(np.arange(len(tokens)), (3, 1)) if positions is None else np.asarray(positions)
        x = self.weight("token_embd.weight")[np.maximum(tokens, 0)]
        if vectors is not None:
            x[tokens < 0] = vectors[0]
        if self.arch == "gemma3" and "no embedding scale" not in self.flaws:
            x = x * np.sqrt(self.width)
        for layer in range(self.layers):
            blk = f"blk.{layer}"
            y = self.attention(self.norm(x, f"{blk}.attn_norm.weight"), layer)
            x = x + self.post(y, f"{blk}.post_attention_norm.weight")
            y = self.feed_forward(self.norm(x, f"{blk}.ffn_norm.weight"), layer)
            x = x + self.post(y, f"{blk}.post_ffw_norm.weight")
            if vectors is not None and layer + 1 < len(vectors) and "no deepstack" not in self.flaws:
                x[tokens < 0] += vectors[layer + 1]
        head = "output.weight" if self.has("output.weight") else "token_embd.weight"
        return self.norm(x, "output_norm.weight") @ self.weight(head).T
