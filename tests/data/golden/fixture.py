"""The fixture files (little-endian), see README.md; tests/golden_data.hpp reads them."""

import struct

import numpy as np

HEADER = struct.Struct("<4sIIIIIff")  # magic, version, vocabulary, prompt, steps, 0, logit range, least margin
VISION = struct.Struct("<4sIIIIIIf")  # magic, version, vocabulary, rows, planes, vectors, width, logit range


def write(path, tokens, prompt, logits, margins):
    count, vocab_size = logits.shape
    assert len(tokens) == count and len(margins) == count - prompt
    logits = np.asarray(logits, "<f4")
    span = float(logits.max() - logits.min())
    with open(path, "wb") as out:
        out.write(HEADER.pack(b"TGLD", 1, vocab_size, prompt, count - prompt, 0, span, float(min(margins))))
        out.write(np.asarray(tokens, "<i4").tobytes())
        out.write(np.asarray(margins, "<f4").tobytes())
        out.write(logits.tobytes())


def read(path):
    raw = open(path, "rb").read()
    magic, version, vocab_size, prompt, steps, _, span, least = HEADER.unpack_from(raw)
    assert magic == b"TGLD" and version == 1
    count = prompt + steps
    tokens = np.frombuffer(raw, "<i4", count, HEADER.size)
    margins = np.frombuffer(raw, "<f4", steps, HEADER.size + 4 * count)
    logits = np.frombuffer(raw, "<f4", count * vocab_size, HEADER.size + 4 * (count + steps)).reshape(count, vocab_size)
    return dict(tokens=tokens, prompt=prompt, steps=steps, margins=margins, logits=logits, range=span, least_margin=least)


def write_vision(path, tokens, positions, vectors, logits):
    """Rows of tokens, below 0 where the next vector stands, their rotary positions (3, rows), and logits after each.

    vectors: (planes, vectors, width); the first plane enters instead of tokens, the next are added behind layers 0, 1, ...
    """
    count, vocab_size = logits.shape
    assert positions.shape == (3, count) and vectors.shape[1] == (np.asarray(tokens) < 0).sum()
    logits = np.asarray(logits, "<f4")
    with open(path, "wb") as out:
        out.write(VISION.pack(b"TVIS", 1, vocab_size, count, *vectors.shape, float(logits.max() - logits.min())))
        for values, kind in ((tokens, "<i4"), (positions, "<i4"), (vectors, "<f4"), (logits, "<f4")):
            out.write(np.ascontiguousarray(values, kind).tobytes())


def read_vision(path):
    raw = open(path, "rb").read()
    magic, version, vocab_size, count, planes, n_vectors, width, span = VISION.unpack_from(raw)
    assert magic == b"TVIS" and version == 1
    at = VISION.size

    def take(kind, *shape):
        nonlocal at
        n = int(np.prod(shape))
        at += 4 * n
        return np.frombuffer(raw, kind, n, at - 4 * n).reshape(shape)

    return dict(tokens=take("<i4", count), positions=take("<i4", 3, count), vectors=take("<f4", planes, n_vectors, width),
                logits=take("<f4", count, vocab_size), range=span)
