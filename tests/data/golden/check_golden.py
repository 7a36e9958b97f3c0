#!/usr/bin/env python3
"""Checks the files beside this script against each other and against a second implementation. See README.md.

Exits with 1 when a check fails; prints, for each mistake an engine might make, how far it moves the logits.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

import convert
import fixture
import make_golden
import models
import vocabulary
from reference import Reference

HERE = Path(__file__).resolve().parent
FLAWS = {
    "llama": ["other rope pairing", "interleaved head groups"],
    "llama3_rope": ["other rope pairing", "no frequency factors"],
    "qwen2": ["other rope pairing", "no bias"],
    "qwen3": ["other rope pairing", "no q and k norm", "interleaved head groups"],
    "qwen3moe": ["weights not normalised", "no q and k norm", "other rope pairing"],
    "qwen2vl": ["other rope pairing", "no bias"],
    "qwen3vl": ["other rope pairing", "no q and k norm"],
    "gemma3": ["other rope pairing", "no window", "window one wider", "one rope base", "pattern of 5",
               "no embedding scale", "no post norms", "no q and k norm", "silu"],
}
failures = []


def expect(ok, text):
    print(f"  {'ok  ' if ok else 'FAIL'} {text}")
    if not ok:
        failures.append(text)


def distance(a, b):
    """Largest difference as a share of the logit range."""
    return np.abs(np.asarray(a, np.float64) - b).max() / (b.max() - b.min())


@torch.no_grad()
def run(model, tokens):
    return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()


def check_names(file):
    """Every name must be one that the gguf package knows for this architecture."""
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == file.arch)
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[arch]}
    stems = {name.rsplit(".", 1)[0] for name in file.tensors}
    pattern = {".".join("{bid}" if part.isdigit() else part for part in stem.split(".")) for stem in stems}
    expect(pattern <= known, f"tensor names known to gguf {sorted(pattern - known)}")


def check_official_loader(path, file, golden):
    """transformers' own GGUF loader, given the right config: it reads no head size for qwen3 and no scale for gemma3.

    It also ignores rope_freqs.weight, so that file must meet the reference without the factors.
    """
    values = convert.config_values(file)
    config = models.make_config(convert.FAMILY[file.arch], values, golden["logits"].shape[1])
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
    except ValueError as error:  # the package accelerate is missing
        print(f"  note transformers' own GGUF loader skipped: {error}")
        return
    flaws = ["no frequency factors"] if "rope_freqs.weight" in file.tensors else []
    wanted = Reference(file, flaws).logits(golden["tokens"]) if flaws else golden["logits"]
    d = distance(run(model, golden["tokens"]), wanted)
    expect(d < 1e-5, f"transformers' own GGUF loader{' (' + flaws[0] + ')' if flaws else ''}: distance {d:.1e}")


def check(spec, path, golden, original):
    print(path.name)
    file = convert.File(path)
    check_names(file)
    again = run(convert.load(path, torch.float64), golden["tokens"])
    expect(np.array_equal(again.astype(np.float32), golden["logits"]), "model rebuilt from the file gives the fixture")
    if ".mixed." not in path.name:
        d = distance(run(original.double(), golden["tokens"]), golden["logits"])
        expect(d < 1e-6, f"original model: distance {d:.1e}")
    d = distance(Reference(file).logits(golden["tokens"]), golden["logits"])
    expect(d < 1e-5, f"numpy reference from the file: distance {d:.1e}")
    expect(golden["least_margin"] > 1e-3 * golden["range"], f"least margin {golden['least_margin'] / golden['range']:.1e}")
    if not spec.images:  # of which that loader knows no names
        check_official_loader(path, file, golden)
    if path.name.endswith(".f32.gguf"):
        for flaw in FLAWS.get(spec.name, []):
            d = distance(Reference(file, [flaw]).logits(golden["tokens"]), golden["logits"])
            expect(d > 5e-3, f"flaw '{flaw}' shows: distance {d:.1e}")


def check_vision(spec, path, original):
    rows = fixture.read_vision(HERE / f"{spec.name}.vision")
    file, inputs = convert.File(path), (rows["tokens"], rows["positions"], rows["vectors"])
    again = make_golden.run_vision(convert.load(path, torch.float64), *inputs)
    print(f"{spec.name}.vision")
    expect(np.array_equal(again.astype(np.float32), rows["logits"]), "model rebuilt from the file gives the fixture")
    d = distance(make_golden.run_vision(original.double(), *inputs), rows["logits"])
    expect(d < 1e-6, f"original model: distance {d:.1e}")
    d = distance(Reference(file).logits(*inputs), rows["logits"])
    expect(d < 1e-5, f"numpy reference from the file: distance {d:.1e}")
    for flaw in ("one row of positions", "other sections") + (("no deepstack",) if spec.deepstack else ()):
        d = distance(Reference(file, [flaw]).logits(*inputs), rows["logits"])
        expect(d > 5e-3, f"flaw '{flaw}' shows: distance {d:.1e}")


def check_wrong_permutation(spec, golden):
    path = HERE / f"{spec.name}.wrong_permutation.gguf"
    d = distance(Reference(convert.File(path)).logits(golden["tokens"]), golden["logits"])
    print(path.name)
    expect(d > 0.05, f"differs from the right file: distance {d:.1e}")


def main():
    for spec in models.SPECS:
        names, _ = vocabulary.tokens(spec.vocabulary)
        for variant in spec.files:
            golden = fixture.read(HERE / f"{spec.name}{'.mixed' if variant == 'mixed' else ''}.golden")
            check(spec, HERE / f"{spec.name}.{variant}.gguf", golden, models.build(spec, len(names)))
        if spec.images:
            check_vision(spec, HERE / f"{spec.name}.f32.gguf", models.build(spec, len(names)))
        if spec.wrong_permutation:
            check_wrong_permutation(spec, fixture.read(HERE / f"{spec.name}.golden"))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    torch.set_num_threads(2)
    sys.exit(main())
