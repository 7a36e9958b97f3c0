#!/usr/bin/env python3
"""Checks the decoders' files and the logits of the fixtures without transformers. See README.md.

    python3 check_vision.py

The forward pass is that of ../golden/reference.py, in numpy from the GGUF file alone, with embeddings in place of pictures' tokens, with
positions of three rows, and with deepstack features. The encoder's own check is tests/golden/vision_reference_test.cpp.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import convert  # noqa: E402
import reference  # noqa: E402

FIRST_PICTURE_TOKEN = 98


class Reference(reference.Reference):
    def __init__(self, file, positions, flaws=()):
        super().__init__(file, flaws)
        self.positions = positions
        sections = self.file.get("rope.dimension_sections")
        if self.arch == "qwen3vl" and "contiguous sections" not in self.flaws:
            # Pairs 1, 4, 7, ... turn by the height and 2, 5, 8, ... by the width, as many as the sections say; all others by the time.
            self.axis = np.zeros(self.head_size // 2, dtype=int)
            for axis in (1, 2):
                self.axis[axis:3 * sections[axis]:3] = axis
        else:
            self.axis = np.repeat(np.arange(4), sections)

    def rotate(self, x, layer):
        half = self.head_size // 2
        rows = self.positions[[0, 0, 0]] if "time for all" in self.flaws else self.positions
        angle = (rows[self.axis].T * self.base ** (-np.arange(half) / half))[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)

    def picture_logits(self, tokens, embeddings, deepstack):
        x = self.weight("token_embd.weight")[tokens]
        pictures = tokens >= FIRST_PICTURE_TOKEN
        x[pictures] = embeddings
        for layer in range(self.layers):
            blk = f"blk.{layer}"
            x = x + self.attention(self.norm(x, f"{blk}.attn_norm.weight"), layer)
            x = x + self.feed_forward(self.norm(x, f"{blk}.ffn_norm.weight"), layer)
            if layer < len(deepstack) and "no deepstack" not in self.flaws:
                x[pictures] += deepstack[layer]
        return self.norm(x, "output_norm.weight") @ self.weight("output.weight").T


def read(path):
    reader = gguf.GGUFReader(path)
    values = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {t.name: np.array(t.data, dtype=np.float64) for t in reader.tensors}
    return values, tensors


def difference(name, variant, flaws=()):
    """Largest over all cases, over the range of the logits."""
    values, tensors = read(HERE / f"{name}.golden.gguf")
    file = convert.File(HERE / f"{name}.{variant}.gguf")
    worst = 0
    for case in values["cases"]:
        positions = np.array(values[f"{case}.positions"]).reshape(3, -1)
        deepstack = [tensors[key] for i in range(8) if (key := f"{case}.deepstack.{i}") in tensors]
        expected = tensors[f"{case}.logits"]
        got = Reference(file, positions, flaws).picture_logits(np.array(values[f"{case}.tokens"]), tensors[f"{case}.embeddings"], deepstack)
        worst = max(worst, np.abs(got[-len(expected):] - expected).max() / np.ptp(expected))
    return worst


if __name__ == "__main__":
    for name in ("qwen2vl", "qwen25vl", "qwen3vl"):
        for variant in ("f32", "f16"):
            d = difference(name, variant)
            print(f"{name}.{variant}: {d:.1e} of the range")
            assert d < 1e-5
        for flaw in ["time for all", *(["no deepstack", "contiguous sections"] if name == "qwen3vl" else [])]:
            d = difference(name, "f16", [flaw])
            print(f"  {flaw}: {d:.1%}")
            assert d > 1e-2
