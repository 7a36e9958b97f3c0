#!/usr/bin/env python3
"""Teacher-forces a fixed text through real GGUF files with transformers and keeps what it predicts. See README.md.

    pip install torch transformers gguf numpy tokenizers
    python3 make_real.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python3 make_real.py gemma3 gemma-3-270m-q4_k_m.gguf

The weights are decoded with the `gguf` package; the model then computes in float32 (eager attention, CPU).
"""

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models as tokenizer_models, normalizers, pre_tokenizers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import convert  # noqa: E402  (the writer and loader of the tiny files also loads real ones)

CONTROL, USER_DEFINED = 3, 4
LENGTH = {"smollm2": 512, "gemma3": 560}  # Gemma: beyond its sliding window of 512


def byte_level_bpe(meta):
    """tokenizer.ggml.pre = smollm: digits one by one, then GPT-2's rule."""
    names = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    result = Tokenizer(tokenizer_models.BPE({name: i for i, name in enumerate(names)}, merges))
    assert meta["tokenizer.ggml.pre"] == "smollm"
    result.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    result.decoder = decoders.ByteLevel()
    return result


def sentencepiece_bpe(meta):
    """SentencePiece BPE merges the pair whose joined piece scores best: its pieces sorted by score are the merges."""
    names, scores = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"]
    vocab = {name: i for i, name in enumerate(names)}
    merges = []
    for name, identity in vocab.items():
        for cut in range(1, len(name)):
            if name[:cut] in vocab and name[cut:] in vocab:
                merges.append((-scores[identity], vocab[name[:cut]], vocab[name[cut:]], name[:cut], name[cut:]))
    merges.sort()
    result = Tokenizer(tokenizer_models.BPE(vocab, [m[3:] for m in merges], byte_fallback=True, fuse_unk=True,
                                            unk_token=names[meta["tokenizer.ggml.unknown_token_id"]]))
    result.normalizer = normalizers.Replace(" ", "\u2581")
    result.pre_tokenizer = pre_tokenizers.Split(Regex(r" "), "merged_with_previous")
    result.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return result


def encode(meta, text):
    result = (byte_level_bpe if meta["tokenizer.ggml.model"] == "gpt2" else sentencepiece_bpe)(meta)
    pairs = list(zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]))
    result.add_special_tokens([AddedToken(n, special=True, normalized=False) for n, t in pairs if t == CONTROL])
    result.add_tokens([AddedToken(n, normalized=False) for n, t in pairs if t == USER_DEFINED])
    ids = result.encode(text).ids
    assert result.decode(ids, skip_special_tokens=False) == text
    return ([meta["tokenizer.ggml.bos_token_id"]] if meta.get("tokenizer.ggml.add_bos_token") else []) + ids


@torch.no_grad()
def predict(path, tokens):
    """Per position: best id, best and second logit, log probability of the next token (0 in the last place)."""
    logits = convert.load(path)(torch.tensor([tokens])).logits[0]
    best = logits.topk(2, dim=1)
    log_prob = torch.log_softmax(logits[:-1].double(), dim=1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return best.indices[:, 0].numpy(), best.values.numpy(), np.append(log_prob.numpy(), 0.0)


def write(path, tokens, top, values, log_prob):
    perplexity = float(np.exp(-log_prob[:-1].mean()))
    with open(path, "wb") as out:
        out.write(struct.pack("<4sIIId", b"TREL", 1, len(tokens), 0, perplexity))
        for array, kind in [(tokens, "<i4"), (top, "<i4"), (values[:, 0], "<f4"), (values[:, 1], "<f4"), (log_prob, "<f4")]:
            out.write(np.asarray(array, kind).tobytes())
    margins = values[:, 0] - values[:, 1]
    print(f"{path.name}: {len(tokens)} tokens, perplexity {perplexity:.4f}, margins: least {margins.min():.1e}, "
          f"1 % {np.quantile(margins, 0.01):.1e}, median {np.median(margins):.2f}; "
          f"top-1 is the next token at {np.mean(top[:-1] == np.asarray(tokens[1:])):.0%}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    name, path = sys.argv[1], Path(sys.argv[2])
    text = (HERE / "text.txt").read_text(encoding="utf-8")
    tokens = encode(convert.File(path).metadata, text)
    print(f"{name}: the text has {len(tokens)} tokens, {LENGTH[name]} are used")
    assert len(tokens) >= LENGTH[name]
    tokens = tokens[:LENGTH[name]]
    write(HERE / f"{name}.real", tokens, *predict(path, tokens))
