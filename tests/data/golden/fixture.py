"""The fixture files (little-endian), see README.md; tests/golden_data.hpp reads them."""

import struct

import numpy as np

HEADER = struct.Struct("<4sIIIIIff")  # magic, version, vocabulary, prompt, steps, 0, logit range, least margin


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
