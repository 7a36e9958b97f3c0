#!/usr/bin/env python3
"""Makes the fixtures of tests/unit/kernels_format_test.cpp: random blocks of every weight format and their reference values.

Needs numpy and gguf (0.19.0 was used) from PyPI. Run in this folder: python3 make_formats.py
Writes per format  <name>.bin: blocks as in a file, then their dequantised elements as little-endian f32; the first number
of the file, a little-endian u32, is the number of blocks.
Every quant, scale and minimum byte is random, so all bit patterns occur. Binary16 scales: zeros of both signs, subnormals,
the largest finite values, both signs, then random finite ones. MXFP4 exponents: the ends of the range, then random.
"""
import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGML_QUANT_SIZES
from gguf.quants import dequantize

N_BLOCKS = {1: 512, 32: 48, 256: 16}
# byte offsets of the binary16 fields of a block
HALVES = {
    "F32": [], "F16": [], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00]
SPECIAL_EXPONENTS = [0, 1, 2, 127, 128, 250, 251, 252]


def finite_halves(rng, n):
    halves = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    return np.where((halves & 0x7C00) == 0x7C00, halves & 0xBFFF, halves)


def make(name, rng):
    kind = Type[name]
    elems, size = GGML_QUANT_SIZES[kind]
    n = N_BLOCKS[elems]
    if name == "F32":
        blocks = (rng.standard_normal(n) * 10.0 ** rng.integers(-30, 30, n)).astype("<f4").view(np.uint8).reshape(n, size)
    elif name == "F16":
        halves = finite_halves(rng, n)
        halves[: len(SPECIAL_HALVES)] = SPECIAL_HALVES
        blocks = halves.view(np.uint8).reshape(n, size)
    elif name == "BF16":
        bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
        bits = np.where((bits & 0x7F80) == 0x7F80, bits & 0xBFFF, bits).astype(np.uint16)
        blocks = bits.view(np.uint8).reshape(n, size)
    else:
        blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
        for k, offset in enumerate(HALVES[name]):
            halves = finite_halves(rng, n)
            special = np.roll(np.array(SPECIAL_HALVES, np.uint16), 3 * k)  # so that d and m take different pairs
            halves[: len(special)] = special
            blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(n, 2)
        if name == "MXFP4":
            blocks[:, 0] = rng.integers(0, 253, n)
            blocks[: len(SPECIAL_EXPONENTS), 0] = SPECIAL_EXPONENTS
    values = np.ascontiguousarray(dequantize(blocks, kind)).reshape(-1).astype("<f4")
    assert values.size == n * elems and np.isfinite(values).all()
    path = pathlib.Path(__file__).parent / f"{name.lower()}.bin"
    path.write_bytes(struct.pack("<I", n) + blocks.tobytes() + values.tobytes())


def main():
    for index, name in enumerate(HALVES):
        make(name, np.random.default_rng(1000 + index))


if __name__ == "__main__":
    main()
