#!/usr/bin/env python3
"""Writes the tiny vision-language GGUF files and their fixtures beside this script. See README.md.

    pip install torch transformers gguf numpy
    python3 make_vision.py [NAME...]

Everything is computed by transformers in float64 (eager attention, CPU).
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

import convert
import models

HERE = Path(__file__).resolve().parent


def add_tensor(writer, name, x):
    writer.add_tensor(name, np.ascontiguousarray(x.detach().numpy() if torch.is_tensor(x) else x).astype(np.float32))


def add_numbers(writer, key, x):
    writer.add_array(key, [int(v) for v in np.asarray(x).reshape(-1)])


def add_windows(writer, key, grid, patch_size):
    """Which merged patch comes at which place when windows are walked, and where windows begin, in patches."""
    index, begins = get_vision_window_index(grid, spatial_merge_size=models.MERGE, window_size=112, patch_size=patch_size)
    add_numbers(writer, f"{key}.window_index", index)
    add_numbers(writer, f"{key}.window_begins", begins)


@torch.no_grad()
def add_case(writer, model, spec, number, name):
    is_video, grids = models.CASES[name]
    seed = spec.seed * 100 + number
    grid = torch.tensor(grids)
    pixels = torch.from_numpy(models.pixels(seed, is_video, grids, spec.vision["patch_size"])).double()
    writer.add_uint32(f"{name}.seed", seed)
    writer.add_bool(f"{name}.is_video", is_video)
    add_numbers(writer, f"{name}.grid_thw", grids)
    add_numbers(writer, f"{name}.patch_positions", get_vision_position_ids(grid, models.MERGE))
    if spec.family == "Qwen2_5_VL":
        add_windows(writer, name, grid, spec.vision["patch_size"])

    seen = model.model.visual(pixels, grid_thw=grid, return_dict=True)
    add_tensor(writer, f"{name}.embeddings", seen.pooler_output)
    for i, features in enumerate(getattr(seen, "deepstack_features", None) or []):
        add_tensor(writer, f"{name}.deepstack.{i}", features)

    ids, kinds = models.prompt(spec, is_video, grids, np.random.default_rng(seed))
    ids, kinds = torch.from_numpy(ids)[None], torch.from_numpy(kinds)[None]
    which = {"video_grid_thw" if is_video else "image_grid_thw": grid}
    if is_video and spec.family == "Qwen2_5_VL":
        which["second_per_grid_ts"] = torch.tensor([models.SECONDS_PER_GRID])
    positions, _ = model.model.get_rope_index(ids, kinds, **which)
    add_numbers(writer, f"{name}.tokens", ids[0])
    add_numbers(writer, f"{name}.positions", positions[:, 0])
    model.model.rope_deltas = None
    out = model(input_ids=ids, mm_token_type_ids=kinds, use_cache=False, **which,
                **{"pixel_values_videos" if is_video else "pixel_values": pixels})
    add_tensor(writer, f"{name}.logits", out.logits[0, -models.LOGIT_ROWS:])
    print(f"  {name}: {seen.pooler_output.shape[0]} tokens, embeddings' rms {seen.pooler_output.pow(2).mean().sqrt():.2f}, "
          f"logits' range {out.logits.max() - out.logits.min():.2f}")


def make(spec):
    model = models.build(spec)
    for variant in ("f32", "f16"):
        convert.write_decoder(model, spec, variant, HERE / f"{spec.name}.{variant}.gguf")
        convert.write_projector(model, spec, variant, HERE / f"{spec.name}.mmproj.{variant}.gguf")
    writer = gguf.GGUFWriter(HERE / f"{spec.name}.golden.gguf", "fixture")
    writer.add_array("cases", list(models.CASES))
    print(spec.name)
    for number, name in enumerate(models.CASES):
        add_case(writer, model, spec, number, name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for spec in models.SPECS:
        if len(sys.argv) == 1 or spec.name in sys.argv[1:]:
            make(spec)
