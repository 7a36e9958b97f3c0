"""Encoders for the block formats that the PyPI package `gguf` can only decode.

They round to the nearest code under simple scales: good enough for tests, not the search that a
quantiser for real models does. `encode` asserts that `gguf` decodes each result close to the input.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

IQ4_CODES = np.array(gguf.quants.IQ4_NL.kvalues, dtype=np.float32)


def half(x):
    """Rounds to float16; returns the bytes (n, 2) and the value as float32."""
    h = x.astype(np.float16)
    return h.reshape(-1, 1).view(np.uint8), h.astype(np.float32)


def safe_divide(a, b):
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b != 0)


def scales_and_minima(x, levels, groups, steps):
    """Per group: x = scale * q - minimum with q in 0..levels; both as multiples (0..steps) of two halves."""
    g = x.reshape(len(x), groups, -1)
    low = np.minimum(g.min(axis=2), 0)
    scale = (g.max(axis=2) - low) / levels
    d_bytes, d = half(scale.max(axis=1) / steps)
    m_bytes, m = half((-low).max(axis=1) / steps)
    sc = np.clip(np.rint(safe_divide(scale, d[:, None])), 0, steps).astype(np.uint8)
    mn = np.clip(np.rint(safe_divide(-low, m[:, None])), 0, steps).astype(np.uint8)
    unit = (d[:, None] * sc)[:, :, None]
    q = np.clip(np.rint(safe_divide(g + (m[:, None] * mn)[:, :, None], unit)), 0, levels).astype(np.uint8)
    return d_bytes, m_bytes, sc, mn, q.reshape(len(x), -1)


def signed_scales(x, reach, groups, low, high):
    """Per group: x = d * scale * q; the scale keeps the largest magnitude of the group at code -reach."""
    g = x.reshape(len(x), groups, -1)
    peak = np.take_along_axis(g, np.abs(g).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scale = -peak / reach
    d_bytes, d = half(np.abs(scale).max(axis=1) / min(-low, high))
    sc = np.clip(np.rint(safe_divide(scale, d[:, None])), low, high).astype(np.int32)
    return d_bytes, sc, (d[:, None] * sc)[:, :, None], g


def pack_6bit_pairs(sc, mn):
    """The 12 bytes that hold 8 scales and 8 minima of 6 bits in Q4_K and Q5_K."""
    first = (sc[:, :4] & 63) | ((sc[:, 4:] >> 4) << 6)
    second = (mn[:, :4] & 63) | ((mn[:, 4:] >> 4) << 6)
    third = (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=1).astype(np.uint8)


def nibbles(q, run):
    """Packs runs: the low nibbles hold the first `run` codes, the high ones the next `run`."""
    p = q.reshape(len(q), -1, 2, run)
    return (p[:, :, 0] | (p[:, :, 1] << 4)).reshape(len(q), -1).astype(np.uint8)


def crumbs(q, run):
    """Packs codes of 2 bits: four consecutive runs of `run` codes share `run` bytes."""
    p = q.reshape(len(q), -1, 4, run).astype(np.uint8)
    return (p[:, :, 0] | (p[:, :, 1] << 2) | (p[:, :, 2] << 4) | (p[:, :, 3] << 6)).reshape(len(q), -1)


def bits(q, run):
    """Packs codes of 1 bit: bit k of byte i belongs to code k * run + i."""
    p = q.reshape(len(q), -1, run).astype(np.uint8) << np.arange(8, dtype=np.uint8)[None, :, None]
    return np.bitwise_or.reduce(p, axis=1)


def q2_k(x):
    d, m, sc, mn, q = scales_and_minima(x, 3, 16, 15)
    return np.concatenate([sc | (mn << 4), crumbs(q, 32), d, m], axis=1)


def q3_k(x):
    d, sc, unit, g = signed_scales(x, 4, 16, -32, 31)
    q = np.clip(np.rint(safe_divide(g, unit)), -4, 3).astype(np.int32).reshape(len(x), -1) + 4
    s = (sc + 32).astype(np.uint8)
    low = (s[:, :8] & 15) | ((s[:, 8:] & 15) << 4)
    return np.concatenate([bits(q >> 2, 32), crumbs(q & 3, 32), low, crumbs(s >> 4, 4), d], axis=1)


def q4_k(x):
    d, m, sc, mn, q = scales_and_minima(x, 15, 8, 63)
    return np.concatenate([d, m, pack_6bit_pairs(sc, mn), nibbles(q, 32)], axis=1)


def q5_k(x):
    d, m, sc, mn, q = scales_and_minima(x, 31, 8, 63)
    return np.concatenate([d, m, pack_6bit_pairs(sc, mn), bits(q >> 4, 32), nibbles(q & 15, 32)], axis=1)


def q6_k(x):
    d, sc, unit, g = signed_scales(x, 32, 16, -128, 127)
    q = (np.clip(np.rint(safe_divide(g, unit)), -32, 31).astype(np.int32).reshape(len(x), -1) + 32).astype(np.uint8)
    return np.concatenate([nibbles(q & 15, 64), crumbs(q >> 4, 32), sc.astype(np.int8).view(np.uint8), d], axis=1)


def nearest_iq4(ratio):
    return np.abs(ratio[..., None] - IQ4_CODES).argmin(axis=-1).astype(np.uint8)


def iq4_nl(x):
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d_bytes, d = half(peak[:, 0] / IQ4_CODES[0])
    return np.concatenate([d_bytes, nibbles(nearest_iq4(safe_divide(x, d[:, None])), 16)], axis=1)


def iq4_xs(x):
    d, sc, unit, g = signed_scales(x, 127, 8, -32, 31)
    q = nearest_iq4(safe_divide(g, unit)).reshape(len(x), -1)
    s = (sc + 32).astype(np.uint16)
    high = np.bitwise_or.reduce((s >> 4) << (2 * np.arange(8, dtype=np.uint16)), axis=1).astype(np.uint16)
    low = (s[:, 0::2] & 15) | ((s[:, 1::2] & 15) << 4)
    return np.concatenate([d, high.reshape(-1, 1).view(np.uint8), low.astype(np.uint8), nibbles(q, 16)], axis=1)


OWN = {T.Q2_K: (q2_k, 0.40), T.Q3_K: (q3_k, 0.22), T.Q4_K: (q4_k, 0.10), T.Q5_K: (q5_k, 0.05), T.Q6_K: (q6_k, 0.03),
       T.IQ4_NL: (iq4_nl, 0.12), T.IQ4_XS: (iq4_xs, 0.12)}


def encode(x, kind):
    """Returns the raw bytes of `x` (float32, rows last) in the format `kind`, shape (..., bytes per row)."""
    if kind not in OWN:
        return gguf.quants.quantize(x, kind)
    encoder, bound = OWN[kind]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = encoder(np.ascontiguousarray(x, dtype=np.float32).reshape(-1, block))
    assert raw.shape[1] == size and raw.dtype == np.uint8, (kind, raw.shape, raw.dtype)
    raw = np.ascontiguousarray(raw).reshape(*x.shape[:-1], x.shape[-1] // block * size)
    error = np.abs(gguf.quants.dequantize(raw, kind) - x).mean() / np.abs(x).mean()
    assert error < bound, f"{kind.name}: relative error {error:.3f}"
    return raw
