#!/usr/bin/env python3
"""Makes prompts.bin and videos.bin: conversations with images and videos as the processors of transformers write them, and the frames
that their video processors take.

Needs torch, torchvision and transformers (5.24.0 was used) from PyPI. Run in this folder: python3 make_prompts.py
Little-endian; texts are their u32 number of bytes and UTF-8.
  prompts.bin, of each case: u32 model (0 Qwen2-VL, 1 Qwen2.5-VL, 2 Qwen3-VL), text of the template, u32 add_generation_prompt,
    u32 messages, of each its role, u32 parts, of each u32 kind (0 text, 1 image, 2 video) and text, none: text of the content,
    u32 media, of each u32 kind, i32 width and height (as resized), u32 frames, and of a video i32 frames it has in all, f64 frames a
    second, i32 each frame taken; the text as rendered; the text with times; u32 tokens, i32 ids, i32 time, height and width of each.
    Ids are bytes of the text, and 256 to 261 those in MARKS.
  videos.bin, of each case: u32 model, i32 frames, f64 frames a second, i32 width and height, f64 rate of sampling (0: by number), i32
    number, u32 frames taken, i32 each, i32 width and height as resized, f64 seconds of a step (second_per_grid_ts).
"""
import pathlib
import struct
import types

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize as smart_resize_2
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as smart_resize_3
from transformers.video_utils import VideoMetadata

HERE = pathlib.Path(__file__).resolve().parent
MARKS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PATCH = [14, 14, 16]
KINDS = {"text": 0, "image": 1, "video": 2}

# Written for these tests in the style of the models' own: Qwen2-VL's and Qwen2.5-VL's, in one line, with a system message of its own, and
# Qwen3-VL's, with macros of whitespace control.
QWEN2 = (
    "{% set pictures = namespace(n=0) %}{% set films = namespace(n=0) %}{% for m in messages %}"
    "{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou help people.<|im_end|>\n{% endif %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}<|im_end|>\n{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' or 'image' in c or 'image_url' in c %}{% set pictures.n = pictures.n + 1 %}"
    "{% if add_vision_id %}Picture {{ pictures.n }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' or 'video' in c %}{% set films.n = films.n + 1 %}"
    "{% if add_vision_id %}Video {{ films.n }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
QWEN3 = """{%- set image_count = namespace(value=0) %}
{%- set video_count = namespace(value=0) %}
{%- macro written(content, counts) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for item in content %}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' %}
                {%- if counts %}
                    {%- set image_count.value = image_count.value + 1 %}
                {%- endif %}
                {%- if add_vision_id is defined and add_vision_id %}{{- 'Picture ' ~ image_count.value ~ ': ' }}{% endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'video' in item or item.type == 'video' %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('Unexpected item in a message') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + written(messages[0].content, false) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = written(message.content, true) | trim %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def tokenizer():
    bpe = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=bpe)
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


TOKENS = tokenizer()
SPECIAL = {TOKENS.convert_tokens_to_ids(mark): 256 + i for i, mark in enumerate(MARKS)}


def byte_of():
    """Id -> byte, by the byte-level alphabet: GPT-2's."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    symbols = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return {TOKENS.convert_tokens_to_ids(s): b for b, s in symbols.items()}


BYTES = byte_of()
PROCESSORS = [
    Qwen2VLProcessor(Qwen2VLImageProcessor(), TOKENS, Qwen2VLVideoProcessor(), chat_template=QWEN2),
    Qwen2_5_VLProcessor(Qwen2VLImageProcessor(), TOKENS, Qwen2VLVideoProcessor(), chat_template=QWEN2),
    Qwen3VLProcessor(Qwen2VLImageProcessor(patch_size=16), TOKENS, Qwen3VLVideoProcessor(), chat_template=QWEN3),
]
MODELS = [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel]


def text(value):
    encoded = value.encode()
    return struct.pack("<I", len(encoded)) + encoded


def numbers(kind, values):
    return struct.pack(f"<{len(values)}{kind}", *values)


def positions(model, ids, out):
    vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    fake = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = types.MethodType(MODELS[model].get_vision_position_ids, fake)
    kinds = torch.where(ids == TOKENS.convert_tokens_to_ids(MARKS[4]), 1, torch.where(ids == TOKENS.convert_tokens_to_ids(MARKS[5]), 2, 0))
    grids = {key: out[key] for key in ("image_grid_thw", "video_grid_thw") if key in out}
    if model == 1 and "second_per_grid_ts" in out:
        grids["second_per_grid_ts"] = torch.tensor(out["second_per_grid_ts"])
    return MODELS[model].get_rope_index(fake, ids, kinds.int(), **grids)[0][:, 0]


def case(model, messages, media, add=True, marked=False):
    """`media`: ("image", columns, rows) and ("video", columns, rows, frames, frames a second, frames taken), sizes in tokens."""
    processor, side = PROCESSORS[model], 2 * PATCH[model]
    options = {"add_vision_id": True} if marked else {}
    rendered = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=add, **options)
    images = [np.zeros((h * side, w * side, 3), np.uint8) for kind, w, h, *_ in media if kind == "image"]
    videos = [np.zeros((len(more[2]), h * side, w * side, 3), np.uint8) for kind, w, h, *more in media if kind == "video"]
    metadata = [VideoMetadata(total_num_frames=more[0], fps=float(more[1]), frames_indices=list(more[2]))
                for kind, w, h, *more in media if kind == "video"]
    # One begin and end around each step, not another around all of them.
    one = "".join(MARKS[i] for i in (2, 5, 3))
    given = rendered.replace(one, MARKS[5]) if model == 2 else rendered
    out = processor(text=[given], images=images or None, videos=videos or None,
                    videos_kwargs={"do_sample_frames": False, "do_resize": False, "video_metadata": metadata} if videos else {},
                    images_kwargs={"do_resize": False} if images else {}, return_tensors="pt")
    ids = out["input_ids"]
    for key, kind in (("image_grid_thw", "image"), ("video_grid_thw", "video")):
        grids = [[(len(more[2]) + 1) // 2 if kind == "video" else 1, 2 * h, 2 * w] for k, w, h, *more in media if k == kind]
        assert (out[key].tolist() if grids else []) == grids, (key, out.get(key), grids)
    expanded = TOKENS.decode(ids[0], clean_up_tokenization_spaces=False)
    blob = struct.pack("<I", model) + text(processor.chat_template) + struct.pack("<III", add, marked, len(messages))
    for message in messages:
        content = message["content"]
        blob += text(message["role"])
        if isinstance(content, str):
            blob += struct.pack("<I", 0) + text(content)
        else:
            blob += struct.pack("<I", len(content)) + b"".join(struct.pack("<I", KINDS[c["type"]]) + text(c.get("text", "")) for c in content)
    blob += struct.pack("<I", len(media))
    for kind, w, h, *more in media:
        blob += struct.pack("<Iii", KINDS[kind], w * side, h * side)
        if kind == "video":
            blob += struct.pack("<Iid", len(more[2]), more[0], more[1]) + numbers("i", more[2])
    blob += text(rendered)
    one_each = expanded
    for pad in MARKS[4:]:
        while pad + pad in one_each:
            one_each = one_each.replace(pad + pad, pad)
    blob += text(one_each)
    plain = [SPECIAL[i] if i in SPECIAL else BYTES[i] for i in ids[0].tolist()]
    return blob + struct.pack("<I", len(plain)) + numbers("i", plain) + numbers("i", positions(model, ids, out).reshape(-1).tolist())


def user(*parts):
    return {"role": "user", "content": [{"type": p} if p in ("image", "video") else {"type": "text", "text": p} for p in parts]}


def said(words, role="assistant"):
    return {"role": role, "content": words}


IMAGE, WIDE, FILM = ("image", 3, 2), ("image", 7, 1), ("video", 2, 3, 90, 29.97, [0, 12, 25, 37, 51, 64])
ODD = ("video", 3, 1, 40, 10.0, [0, 13, 39])


def prompts():
    for model in range(3):
        yield case(model, [user("image", "What is this?")], [IMAGE])
        yield case(model, [user("Look: ", "image", " and at ", "image", "!")], [IMAGE, WIDE])
        yield case(model, [said("Be brief.", "system"), user("image", "image", "Which one?")], [WIDE, IMAGE])
        yield case(model, [user("image", "A?"), said("A cat: \u00e9\u4e16."), user("And ", "image", "?"), said("A dog."), user("Sure?")], [IMAGE, WIDE])
        yield case(model, [user("image", "A?"), said("A cat.")], [IMAGE], add=False)
        yield case(model, [said("No picture yet", "user"), said("Then show one."), user("Here.", "image")], [WIDE])
        yield case(model, [user("video", "What happens?")], [FILM])
        yield case(model, [said("Watch.", "system"), user("First ", "video", "then", "image"), said("Seen."), user("video", "?")], [FILM, IMAGE, ODD])
        if model < 2:
            yield case(model, [user("image", "video", "image", "What?")], [IMAGE, ODD, WIDE], marked=True)
        yield case(model, [said("Words only.", "user")], [])


def video(model, total, fps, size, rate, n):
    processor = PROCESSORS[model].video_processor
    metadata = VideoMetadata(total_num_frames=total, fps=fps)
    frames = processor.sample_frames(metadata, **({"fps": rate} if rate > 0 else {"num_frames": n, "fps": None} if model < 2 else {"num_frames": n}))
    frames = [int(i) for i in frames]
    if frames[-1] == total:  # torch.arange() rounded: there is no such frame
        assert model < 2
        return b""
    metadata.frames_indices = frames
    width, height = size
    if model < 2:
        limits = processor.size
        h, w = smart_resize_2(height, width, 28, limits["shortest_edge"], limits["longest_edge"])
    else:  # limits of the models' video_preprocessor_config.json
        h, w = smart_resize_3(len(frames), height, width, 2, 32, 4096, 25165824)
    return (struct.pack("<IidiidiI", model, total, fps, width, height, rate, n, len(frames)) + numbers("i", frames) +
            struct.pack("<iid", w, h, 2 / metadata.sampled_fps))


def videos():
    rng = np.random.default_rng(5)
    fixed = [(900, 30.0, (1920, 1080), 2.0, 0), (90, 29.97, (640, 360), 2.0, 0), (7, 30.0, (64, 48), 2.0, 0), (2, 30.0, (320, 240), 1.0, 0),
             (100000, 25.0, (1280, 720), 2.0, 0), (48, 24.0, (333, 777), 24.0, 0), (100, 10.0, (500, 500), 0, 16), (100, 10.0, (500, 500), 0, 7),
             (5, 5.0, (28, 28), 0, 4), (60, 60.0, (16, 20), 0.5, 0)]
    for model in range(3):
        for total, fps, size, rate, n in fixed:
            if n or total >= 4 or model == 2:
                yield video(model, total, fps, size, rate, n)
        for _ in range(60):
            total = int(rng.integers(4, 5000))
            size = tuple(int(s) for s in rng.integers(40, 2000, 2))
            if rng.random() < 0.5:
                yield video(model, total, float(rng.choice([23.976, 24, 25, 29.97, 30, 50, 59.94, 60, 12.5])), size, float(rng.choice([0.5, 1, 2, 3, 4.5])), 0)
            else:
                yield video(model, total, 30.0, size, 0.0, int(rng.integers(2, min(total, 200) + 1)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    (HERE / "prompts.bin").write_bytes(b"".join(prompts()))
    (HERE / "videos.bin").write_bytes(b"".join(videos()))
