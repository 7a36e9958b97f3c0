#!/usr/bin/env python3
"""Makes NAME.dialog.bin beside this script: conversations with pictures of numbers, and what the tiny models answer, by transformers.

    pip install torch torchvision transformers gguf numpy
    python3 make_dialogs.py

From pixels to text: Qwen2VLImageProcessor resizes, splits and normalises, the model runs in float64, and the likeliest token is taken each
time. Little-endian; texts are their u32 number of bytes and UTF-8.
  u32 turns, of each: u32 kinds of pictures, i32 columns, rows and kind of each (tests/media_data.hpp), text of the user,
    text of the whole prompt, u32 tokens and i32 ids (one image mark for each picture), u32 and i32 ids of the answer,
    u32 and f32 logits behind the prompt
"""

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

import convert
import models

HERE = Path(__file__).resolve().parent
ANSWER = 12
TOKENS = (4, 16)  # of a picture
TURNS = [
    ([(60, 44, 1)], "What is it?"),
    ([], "Which colour?"),
    ([(40, 80, 2), (24, 24, 3)], "Compare them."),
    ([(60, 44, 1)], "Once more."),
]


def picture(width, height, kind):
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return ((x * (3 + kind) + y * (5 + 2 * c) + 40 * c + 17 * kind) % 256).astype(np.uint8)


def encode(text):
    """Byte-level BPE with the five merges of the vocabulary, by rank: none makes another one of an earlier rank possible."""
    names, _ = models.tokens()
    symbols = models.vocabulary.byte_symbols()
    ids, at = [], 0
    while at < len(text):
        mark = next((n for n in names if n.startswith("<|") and text.startswith(n, at)), None)
        if mark:
            ids.append(mark)
            at += len(mark)
        else:
            ids.append(symbols[ord(text[at])])
            at += 1
    for left, right in models.vocabulary.MERGES:
        out = []
        for name in ids:
            if out and out[-1] == left and name == right:
                out[-1] = left + right
            else:
                out.append(name)
        ids = out
    return [names.index(n) for n in ids]


def decode(ids):
    names, types = models.tokens()
    back = {s: b for b, s in models.vocabulary.byte_symbols().items()}
    return bytes(back[c] for i in ids if types[i] == models.vocabulary.NORMAL for c in names[i]).decode()


def text(value):
    encoded = value.encode()
    return struct.pack("<I", len(encoded)) + encoded


def numbers(kind, values):
    return struct.pack("<I", len(values)) + struct.pack(f"<{len(values)}{kind}", *values)


@torch.no_grad()
def dialog(spec, model, word):
    """Bytes, and by how much of the logits' range the likeliest token leads at least."""
    names, _ = models.tokens()
    pad, end = names.index("<|image_pad|>"), names.index("<|im_end|>")
    factor = 2 * spec.vision["patch_size"]
    processor = Qwen2VLImageProcessor(patch_size=spec.vision["patch_size"], image_mean=convert.MEAN if spec.family != "Qwen3VL" else [0.5] * 3,
                                      image_std=convert.STD if spec.family != "Qwen3VL" else [0.5] * 3,
                                      size={"shortest_edge": TOKENS[0] * factor**2, "longest_edge": TOKENS[1] * factor**2})
    blob, said, pictures, closest = struct.pack("<I", len(TURNS)), "", [], 1.0
    for shown, question in [(TURNS[0][0], TURNS[0][1] + word), *TURNS[1:]]:
        pictures += shown
        marks = "<|vision_start|><|image_pad|><|vision_end|>" * len(shown)
        said += f"<|im_start|>user\n{marks}{question}<|im_end|>\n<|im_start|>assistant\n"
        ids = encode(said)
        inputs = processor([picture(*p) for p in pictures], return_tensors="pt")
        grids = inputs["image_grid_thw"]
        expanded, n = [], 0
        for token in ids:
            expanded += [token] * (int(grids[n].prod()) // 4 if token == pad else 1)
            n += token == pad
        answer, logits = [], None
        for _ in range(ANSWER):
            row = torch.tensor([expanded + answer])
            model.model.rope_deltas = None
            out = model(input_ids=row, mm_token_type_ids=(row == pad).int(), image_grid_thw=grids,
                        pixel_values=inputs["pixel_values"].double(), use_cache=False).logits[0, -1]
            logits = out if logits is None else logits
            out[[i for i, name in enumerate(names) if name.startswith("<|")]] = -1e9  # no marks: the answer is text
            best = torch.topk(out, 2).values
            closest = min(closest, float((best[0] - best[1]) / (logits[logits > -1e8].max() - logits[logits > -1e8].min())))
            answer.append(int(out.argmax()))
        model_logits = model_row(model, expanded, pad, grids, inputs)
        blob += struct.pack("<I", len(shown)) + b"".join(struct.pack("<3i", *p) for p in shown) + text(question) + text(said)
        blob += numbers("i", ids) + numbers("i", answer) + numbers("f", model_logits)
        said += decode(answer) + "<|im_end|>\n"
    return blob, closest


def model_row(model, expanded, pad, grids, inputs):
    row = torch.tensor([expanded])
    model.model.rope_deltas = None
    return model(input_ids=row, mm_token_type_ids=(row == pad).int(), image_grid_thw=grids, pixel_values=inputs["pixel_values"].double(),
                 use_cache=False).logits[0, -1].float().tolist()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for spec in models.SPECS:
        if len(sys.argv) > 1 and spec.name not in sys.argv[1:]:
            continue
        model = models.build(spec)
        for word in ["", *(f" {w}." for w in "Yes No Up Cold Blue Just Deep Good Far".split())]:
            blob, closest = dialog(spec, model, word)
            if closest > 1e-3:  # less is for rounding to decide
                break
        assert closest > 1e-3
        print(f"{spec.name}: {len(blob)} bytes, the likeliest token leads by {closest:.1e} of the range at least")
        (HERE / f"{spec.name}.dialog.bin").write_bytes(blob)
