"""The tiny random vision-language models behind the vision fixtures: shapes, weights, images and prompts."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import vocabulary  # noqa: E402  (of the text models' fixtures)

DIM, HEADS, CHANNELS, MERGE = 32, 2, 3, 2
VISION_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
# In the style of the models' own: with a system message where none is given, and contents that are lists.
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou help people.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif c['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
LOGIT_ROWS = 8           # ordinary tokens behind the last picture: their logits are kept
SECONDS_PER_GRID = 0.75  # of the video: frames are taken at 2.67 a second, two make a step of the grid


@dataclass
class Spec:
    name: str        # of the files
    family: str      # prefix of the transformers classes
    arch: str        # general.architecture of the decoder's file
    projector: str   # clip.projector_type
    vision: dict
    text: dict
    seed: int


def text_dims(layers, sections, **more):
    rope = {"rope_theta": 1000000.0, "rope_type": "default", "mrope_section": sections}
    return dict(hidden_size=DIM, intermediate_size=DIM, num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=1,
                max_position_embeddings=512, rms_norm_eps=1e-6, rope_parameters=rope, **more)


def vision_dims(layers, patch_size, **more):
    return dict(depth=layers, num_heads=HEADS, in_channels=CHANNELS, patch_size=patch_size, spatial_merge_size=MERGE,
                temporal_patch_size=2, **more)


SPECS = [
    Spec("qwen2vl", "Qwen2VL", "qwen2vl", "qwen2vl_merger", seed=31, text=text_dims(2, [2, 3, 3]),
         vision=vision_dims(2, 4, embed_dim=DIM, mlp_ratio=2, hidden_size=DIM)),
    # Patches and windows of their real sizes, since a file does not name the window's.
    Spec("qwen25vl", "Qwen2_5_VL", "qwen2vl", "qwen2.5vl_merger", seed=32, text=text_dims(2, [2, 3, 3]),
         vision=vision_dims(3, 14, hidden_size=DIM, intermediate_size=44, out_hidden_size=DIM, window_size=112,
                            fullatt_block_indexes=[1], tokens_per_second=4)),
    Spec("qwen3vl", "Qwen3VL", "qwen3vl", "qwen3vl_merger", seed=33, text=text_dims(3, [4, 2, 2], head_dim=16),
         vision=vision_dims(3, 4, hidden_size=DIM, intermediate_size=40, out_hidden_size=DIM, num_position_embeddings=25,
                            deepstack_visual_indexes=[0, 2])),
]


def tokens():
    names, types = vocabulary.tokens("ascii")
    return names + VISION_TOKENS, types + [vocabulary.CONTROL] * len(VISION_TOKENS)


def random_weight(name, shape, rng):
    if name.endswith("norm.weight") or ".norm" in name and name.endswith("weight") or name.endswith("ln_q.weight"):
        return 1 + 0.2 * rng.standard_normal(shape)
    if name.endswith(".bias"):
        return 0.3 * rng.standard_normal(shape)
    if "embed_tokens" in name or "pos_embed" in name:
        return rng.standard_normal(shape).astype(np.float16)
    gain = next((v for part, v in {"qkv": 1.5, "q_proj": 1.6, "k_proj": 1.6, "lm_head": 2.0}.items() if part in name), 1.0)
    return (gain / np.sqrt(np.prod(shape[1:])) * rng.standard_normal(shape)).astype(np.float16)


def build(spec):
    """The model in float64. Its matrices are exact in float16, so that the F32 and F16 files mean the same model."""
    names, _ = tokens()
    first = len(names) - len(VISION_TOKENS)
    family = getattr(transformers, f"{spec.family}Config")
    config = family(text_config=dict(spec.text, vocab_size=len(names), bos_token_id=1, eos_token_id=2, pad_token_id=None),
                    vision_config=dict(spec.vision), tie_word_embeddings=False, vision_start_token_id=first,
                    vision_end_token_id=first + 1, image_token_id=first + 2, video_token_id=first + 3)
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = "eager"
    model = getattr(transformers, f"{spec.family}ForConditionalGeneration")(config).to(torch.float64).eval()
    rng = np.random.default_rng(spec.seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            weight.copy_(torch.from_numpy(random_weight(name, tuple(weight.shape), rng).astype(np.float32)))
    return model


# name -> (is a video, [t, h, w] of each picture in patches). Six shapes: the least, a square, odd numbers of merged patches, the two
# extremes of aspect, and whole windows of 8 x 8 patches; then two images, and a video of eight frames.
CASES = {
    "least": (False, [(1, 2, 2)]),
    "square": (False, [(1, 4, 4)]),
    "odd": (False, [(1, 6, 10)]),
    "wide": (False, [(1, 2, 22)]),
    "tall": (False, [(1, 18, 4)]),
    "whole": (False, [(1, 16, 8)]),
    "two": (False, [(1, 6, 4), (1, 4, 10)]),
    "video": (True, [(4, 6, 10)]),
}


def pixels(seed, is_video, grids, patch_size):
    """[patches, channels * 2 * size * size]: numbers in [-2, 2) from SplitMix64 in that order. The two frames of an image are the same
    one, as the processor makes them."""
    frames = 2 if is_video else 1
    count = sum(t * h * w for t, h, w in grids)
    n = count * CHANNELS * frames * patch_size**2
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    x = (z >> np.uint64(42)).astype(np.float64) / 2**20 - 2
    x = x.reshape(count, CHANNELS, frames, patch_size, patch_size)
    return np.repeat(x, 2 // frames, axis=2).reshape(count, -1).astype(np.float32)


def prompt(spec, is_video, grids, rng):
    """Token ids and, for each, 0 (text), 1 (image) or 2 (video). Qwen3-VL has a mark of time and a picture for each step of a video."""
    names, types = tokens()
    first = len(names) - len(VISION_TOKENS)
    ordinary = np.flatnonzero(np.array(types) == vocabulary.NORMAL)
    pad, kind = (first + 3, 2) if is_video else (first + 2, 1)
    parts = [(t, h, w) for t, h, w in grids]
    if is_video and spec.family == "Qwen3VL":
        parts = [(1, h, w) for t, h, w in grids for _ in range(t)]
    ids, kinds = list(rng.choice(ordinary, size=5)), [0] * 5
    for t, h, w in parts:
        n = t * h * w // MERGE**2
        text = list(rng.choice(ordinary, size=2))
        ids += text + [first] + [pad] * n + [first + 1]
        kinds += [0] * 3 + [kind] * n + [0]
    ids += list(rng.choice(ordinary, size=LOGIT_ROWS))
    kinds += [0] * LOGIT_ROWS
    return np.array(ids), np.array(kinds)
