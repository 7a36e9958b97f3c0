#!/usr/bin/env python3
"""Makes patches.bin and sizes.bin: what the processors of Qwen2-VL, Qwen2.5-VL and Qwen3-VL in transformers make of images and videos.

Needs numpy, torch (2.15.0 was used), torchvision (0.29.2), pillow and transformers (5.24.0) from PyPI, and a CPU with AVX2.
Run in this folder: python3 make_patches.py
Byte i of an image is ((i + 7919 * frame) * 2654435761 mod 2^32) >> 13 & 255, which tests make again.
patches.bin, little-endian, of each case: i32 config, i32 width, i32 height, i32 frames (0: an image), i32 t, h, w of the grid,
  u32 CRC-32 of pixel_values as f32, then 24 pairs of i64 index and f32 value of them.
sizes.bin of each case: i32 config, i32 frames (0: smart_resize of an image), i32 width, height, i32 width, height resized to;
  both 0 where the processor refuses.
Configs: see CONFIGS; tests have the same.
"""
import pathlib
import struct
import zlib

import numpy as np
import torch
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_video

HALF = [0.5, 0.5, 0.5]
CONFIGS = [  # patch size, min and max pixels, mean and std
    dict(patch_size=14, pixels=(56 * 56, 28 * 28 * 1280)),
    dict(patch_size=14, pixels=(3136, 12845056)),
    dict(patch_size=16, pixels=(65536, 16777216), image_mean=HALF, image_std=HALF),
    dict(patch_size=14, pixels=(4 * 28 * 28, 64 * 28 * 28)),
]
SHAPES = [(0, 1, 1), (0, 1242, 881), (0, 640, 480), (0, 27, 29), (0, 1, 200), (0, 997, 5), (0, 28, 28), (0, 4032, 3024), (1, 1242, 881),
          (1, 3840, 2160), (1, 13, 700), (1, 56, 84), (2, 1, 1), (2, 1242, 881), (2, 333, 77), (3, 2000, 1500), (3, 700, 3500), (3, 30, 31)]
VIDEOS = [(3, 1, 90, 60), (3, 2, 123, 77), (3, 3, 123, 77), (3, 8, 320, 240), (2, 2, 160, 120), (2, 3, 97, 200), (2, 8, 640, 360)]


def picture(width, height, frame=0):
    i = np.arange(width * height * 3, dtype=np.uint64) + np.uint64(7919 * frame)
    return ((i * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) >> np.uint64(13) & np.uint64(255)).astype(np.uint8).reshape(height, width, 3)


def options(config):
    rest = {key: value for key, value in config.items() if key != "pixels"}
    return dict(size={"shortest_edge": config["pixels"][0], "longest_edge": config["pixels"][1]}, **rest)


def record(config, width, height, frames, grid, values):
    values = np.ascontiguousarray(values.numpy(), dtype="<f4").reshape(-1)
    at = np.linspace(0, values.size - 1, 24).astype(np.int64)
    out = struct.pack("<7iI", config, width, height, frames, *grid, zlib.crc32(values.tobytes()))
    return out + b"".join(struct.pack("<qf", i, values[i]) for i in at)


def patches():
    out = b""
    for config, width, height in SHAPES:
        processor = Qwen2VLImageProcessor(**options(CONFIGS[config]))
        assert processor.backend == "torchvision"
        result = processor(torch.from_numpy(picture(width, height)).permute(2, 0, 1), return_tensors="pt")
        out += record(config, width, height, 0, result["image_grid_thw"][0].tolist(), result["pixel_values"])
    for config, frames, width, height in VIDEOS:
        kind = Qwen3VLVideoProcessor if CONFIGS[config]["patch_size"] == 16 else Qwen2VLVideoProcessor
        processor = kind(do_sample_frames=False, cap_pixels_per_frame=False, **options(CONFIGS[config]))
        video = torch.from_numpy(np.stack([picture(width, height, f) for f in range(frames)])).permute(0, 3, 1, 2)
        result = processor(video, return_tensors="pt")
        out += record(config, width, height, frames, result["video_grid_thw"][0].tolist(), result["pixel_values_videos"])
    return out


def sizes():
    rng = np.random.default_rng(3)
    out = b""
    for case in range(600):
        config = int(rng.integers(0, len(CONFIGS)))
        frames = int(rng.integers(1, 40)) if case % 3 == 2 else 0
        width, height = (int(2 ** rng.uniform(0, 14)) for _ in range(2))
        if case % 5 == 0:  # halves are rounded to even
            width, height = (int(14 * rng.integers(1, 80)) for _ in range(2))
        if case % 50 == 0:
            height = 200 * width + case // 50 % 2
        factor = CONFIGS[config]["patch_size"] * 2
        low, high = CONFIGS[config]["pixels"]
        try:
            if frames:
                h, w = smart_resize_video(frames, height, width, factor=factor, min_pixels=low, max_pixels=high)
            else:
                h, w = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
        except ValueError:
            h = w = 0
        out += struct.pack("<6i", config, frames, width, height, w, h)
    return out


if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    (folder / "patches.bin").write_bytes(patches())
    (folder / "sizes.bin").write_bytes(sizes())
