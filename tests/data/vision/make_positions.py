#!/usr/bin/env python3
"""Makes positions.bin: positions of prompts with images and videos by get_rope_index() of transformers.

Needs torch and transformers (5.24.0 was used) from PyPI. Run in this folder: python3 make_positions.py
Little-endian, of each case: i32 model (0 Qwen2-VL, 1 Qwen2.5-VL, 2 Qwen3-VL), i32 tokens per second, i32 images, i32 videos, of each
image i32 t, h, w, of each video i32 t, h, w and f32 seconds per patch, i32 tokens, i32 ids (1 image, 2 video, others text),
i32 time, height and width of each token, i32 next position (delta + tokens).
"""
import pathlib
import struct
import types

import numpy as np
import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

MODELS = [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel]
MERGE = 2


def positions(model, per_second, ids, images, videos, seconds):
    kind = MODELS[model]
    vision = types.SimpleNamespace(spatial_merge_size=MERGE, tokens_per_second=per_second)
    fake = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = types.MethodType(kind.get_vision_position_ids, fake)
    ids = torch.tensor([ids])
    grids = {"image_grid_thw": torch.tensor(images) if images else None, "video_grid_thw": torch.tensor(videos) if videos else None}
    if model == 1 and videos:
        grids["second_per_grid_ts"] = torch.tensor(seconds)
    return kind.get_rope_index(fake, ids, torch.where(ids <= 2, ids, 0).int(), **grids)


def main():
    rng = np.random.default_rng(11)
    out = b""
    for case in range(36):
        model = case % 3
        per_second = [1, 2, 4, 25][case // 3 % 4]
        ids, images, videos, seconds = [], [], [], []

        def text(least):
            ids.extend(int(n) for n in rng.integers(10, 99, rng.integers(least, 7)))

        text(0 if case % 4 == 3 else 1)
        for _ in range(0 if case < 3 else int(rng.integers(1, 5))):
            h, w = (MERGE * int(n) for n in rng.integers(1, 6, 2))
            if rng.random() < 0.5:
                images.append([1, h, w])
                ids.extend([1] * (h * w // MERGE**2))
            else:
                t = int(rng.integers(1, 6))
                videos.append([t, h, w])
                seconds.append(float(np.float32(rng.choice([1.0, 0.5, 2 / 3, 0.0667, 1.7]))))
                for frame in range(t):
                    ids.extend([2] * (h * w // MERGE**2))
                    if model == 2 and frame + 1 < t:
                        text(1)
            text(1)
        p, delta = positions(model, per_second, ids, images, videos, seconds)
        out += struct.pack("<4i", model, per_second, len(images), len(videos)) + b"".join(struct.pack("<3i", *g) for g in images)
        out += b"".join(struct.pack("<3if", *g, s) for g, s in zip(videos, seconds))
        out += struct.pack(f"<{1 + len(ids)}i", len(ids), *ids)
        out += p[:, 0].numpy().astype("<i4").tobytes() + struct.pack("<i", int(delta[0, 0]) + len(ids))
    (pathlib.Path(__file__).parent / "positions.bin").write_bytes(out)


if __name__ == "__main__":
    main()
