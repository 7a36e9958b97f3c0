#!/usr/bin/env python3
"""Writes corpus/projector: the least projector files of each kind, and damaged ones, from which the fuzzer starts."""
import pathlib
import struct

from make_gguf_corpus import ARRAY, BOOL, F32, STRING, U32, array, gguf, key, number, tensor, text

OUT = pathlib.Path(__file__).resolve().parent / "corpus" / "projector"
DIM, HIDDEN, OUTPUT, SIDE = 4, 6, 2, 2
F16 = 1  # of tensors


def keys(projector: str, layers: int, changed: dict) -> list[bytes]:
    values = {
        "patch_size": 2, "embedding_length": DIM, "feed_forward_length": HIDDEN, "block_count": layers, "attention.head_count": 1,
        "projection_dim": OUTPUT, "spatial_merge_size": 1, "attention.layer_norm_epsilon": 1e-6, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    if projector == "qwen2.5vl_merger":
        values |= {"n_wa_pattern": 2, "window_size": 2}
    if projector == "qwen3vl_merger":
        values["is_deepstack_layers"] = [True] + [False] * (layers - 1)
    stored = [key("general.architecture", STRING, text("clip")), key("clip.projector_type", STRING, text(projector))]
    for name, value in (values | changed).items():
        name = f"clip.vision.{name}"
        if isinstance(value, list):
            kind = BOOL if isinstance(value[0], bool) else F32
            stored.append(key(name, ARRAY, array(kind, [number(kind, v) for v in value])))
        elif value is not None:
            kind = F32 if isinstance(value, float) else U32
            stored.append(key(name, kind, number(kind, value)))
    if projector != "qwen2vl_merger":
        stored.append(key("clip.use_silu" if "2.5" in projector else "clip.use_gelu", BOOL, b"\1"))
    return stored


def sizes(projector: str, layers: int) -> dict[str, list[int]]:
    """Outermost first."""
    rms, three = projector == "qwen2.5vl_merger", projector == "qwen3vl_merger"
    out: dict[str, list[int]] = {}

    def norm(name: str) -> None:
        out[f"{name}.weight"] = [DIM]
        if not rms:
            out[f"{name}.bias"] = [DIM]

    def linear(name: str, rows: int, cols: int) -> None:
        out[f"{name}.weight"], out[f"{name}.bias"] = [rows, cols], [rows]

    out["v.patch_embd.weight"] = out["v.patch_embd.weight.1"] = [DIM, 3, 2, 2]
    if three:
        out["v.patch_embd.bias"], out["v.position_embd.weight"] = [DIM], [SIDE * SIDE, DIM]
    for layer in range(layers):
        blk = f"v.blk.{layer}"
        norm(f"{blk}.ln1")
        for part in ["qkv"] if three else ["q", "k", "v"]:
            linear(f"{blk}.attn_{part}", DIM * len(part), DIM)
        linear(f"{blk}.attn_out", DIM, DIM)
        norm(f"{blk}.ln2")
        for part in ["gate", "up"] if rms else ["up"]:
            linear(f"{blk}.ffn_{part}", HIDDEN, DIM)
        linear(f"{blk}.ffn_down", DIM, HIDDEN)
    if three:
        norm("v.deepstack.0.norm")
        linear("v.deepstack.0.fc1", DIM, DIM)
        linear("v.deepstack.0.fc2", OUTPUT, DIM)
    norm("v.post_ln")
    linear("mm.0", DIM, DIM)
    linear("mm.2", OUTPUT, DIM)
    return out


def projector_file(projector: str, layers: int = 1, changed: dict = {}, without: str = "", reshaped: dict = {}) -> bytes:
    tensors, data = [], b""
    for name, shape in (sizes(projector, layers) | reshaped).items():
        if name == without:
            continue
        n = 1
        for size in shape:
            n *= size
        tensors.append(tensor(name, shape[::-1], F16, len(data)))
        data += b"".join(struct.pack("<e", (i % 7 - 3) / 4) for i in range(n))
        data += bytes(-len(data) % 32)
    return gguf(keys(projector, layers, changed), tensors, data)


def main() -> None:
    two, mid, three = "qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"
    seeds = {
        "qwen2vl": projector_file(two), "qwen25vl": projector_file(mid, 2), "qwen3vl": projector_file(three, 2),
        "all_full": projector_file(mid, 1, {"n_wa_pattern": 0}), "no_flags": projector_file(three, 1, {"is_deepstack_layers": None}),
        "swapped": projector_file(two, 1, {"feed_forward_length": 0},
                                  reshaped={"v.blk.0.ffn_up.weight": [DIM, HIDDEN], "v.blk.0.ffn_up.bias": [DIM],
                                            "v.blk.0.ffn_down.weight": [HIDDEN, DIM], "v.blk.0.ffn_down.bias": [HIDDEN]}),
        "other_projector": projector_file("gemma3"), "layers": projector_file(two, 1, {"block_count": 4096}),
        "heads": projector_file(two, 1, {"attention.head_count": 3}), "eps": projector_file(two, 1, {"attention.layer_norm_epsilon": -1.0}),
        "patch": projector_file(two, 1, {"patch_size": 256}), "merge": projector_file(two, 1, {"spatial_merge_size": 16}),
        "window": projector_file(mid, 1, {"window_size": 1}), "flags": projector_file(three, 2, {"is_deepstack_layers": [True, True]}),
        "std": projector_file(two, 1, {"image_std": [0.0] * 3}), "no_square": projector_file(three, reshaped={"v.position_embd.weight": [3, DIM]}),
        "no_bias": projector_file(two, without="mm.2.bias"), "rank": projector_file(two, reshaped={"v.blk.0.ffn_up.weight": [HIDDEN * DIM]}),
        "pixels": projector_file(two, 1, {"image_min_pixels": 10, "image_max_pixels": 9}),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (OUT / name).write_bytes(data)


if __name__ == "__main__":
    main()
