#!/usr/bin/env python3
"""Makes texts.bin and *.ids: what Hugging Face tokenizers and Google's sentencepiece make of 2,500 texts, from the vocabularies in GGUF files.

make_tokenizer.py CACHE   (the folder that .ci/fetch.py fills; needs gguf, tokenizers, sentencepiece, protobuf)

Vocabularies that no GGUF file at hand carries (deepseek-r1-qwen, gpt-4o, tekken, deepseek-v3, default) borrow one: it is their way to
cut words that is tested. All integers are little-endian.
texts.bin  u32 n; then for each text u32 bytes, UTF-8
NAME.ids   u32 n; u64 fnv1a of the ids (as i32) of each text, without bos and eos; then u32 m and m lists in full: u32 text, u32 n, i32 ids;
           then u32 k and k texts in which control tokens stand, with parse_special: u32 bytes, UTF-8, u32 n, i32 ids
"""
import pathlib
import random
import struct
import sys

import sentencepiece
from gguf import GGUFReader
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from make_texts import make_texts

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
HERE = pathlib.Path(__file__).parent

# Splitting rules as the models' tokenizer.json state them.
CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
UPPER, LOWER, LEAD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[^\r\n\p{L}\p{N}]?"
GPT4O_END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = f"{LEAD}{UPPER}*{LOWER}+{CONTRACTION}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTION}?|" + r"\p{N}{1,3}" + GPT4O_END
TEKKEN = f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*|" + r"\p{N}" + GPT4O_END
CASED = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
         "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
         "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
         "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
         "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
         "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
         "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
         "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
         "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
HAN_AND_MORE = "[一-龥\u0800-\u4e00\uac00-\ud7ff]+"
ASCII_SIGNS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"


def split(*patterns: str) -> list:
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def byte_level(use_regex: bool = False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


PRE = {
    "gpt-2": [byte_level(True)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level(True)],
    "llama-bpe": [*split(LLAMA3), byte_level()],
    "qwen2": [*split(QWEN2), byte_level()],
    "qwen35": [*split(QWEN35), byte_level()],
    "gpt-4o": [*split(GPT4O), byte_level()],
    "tekken": [*split(TEKKEN), byte_level()],
    "deepseek-llm": [*split(r"[\r\n]", rf"\s?[{CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", HAN_AND_MORE),
                     pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "deepseek-coder": [*split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_MORE), pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "deepseek-v3": [*split(r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", ASCII_SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                           r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level()],
    "default": [*split(r"[\p{P}$+<=>^~|]+", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\p{N}+", "[0-9][0-9][0-9]"),
                byte_level()],
}
for other, same in {"mpt": "gpt-2", "starcoder": "smollm", "refact": "smollm", "command-r": "smollm", "deepseek-r1-qwen": "qwen2"}.items():
    PRE[other] = PRE[same]
IGNORE_MERGES = {"llama-bpe", "tekken"}

# name of the pre-tokeniser (or the SentencePiece vocabulary) -> GGUF file in the cache
BPE = {name: f"vocab/ggml-vocab-{name}.gguf" for name in
       ("gpt-2", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "deepseek-coder", "mpt", "starcoder", "refact", "command-r")}
BPE |= {"smollm": "SmolLM2-135M-Instruct.Q4_1.gguf", "deepseek-r1-qwen": BPE["qwen2"], "default": BPE["gpt-2"]}
BPE |= {name: BPE["llama-bpe"] for name in ("gpt-4o", "tekken", "deepseek-v3")}
SPM = {"llama-spm": "vocab/ggml-vocab-llama-spm.gguf", "phi-3": "vocab/ggml-vocab-phi-3.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
SPM["llama-spm-unused"] = SPM["llama-spm"]


def read_vocabulary(path: pathlib.Path) -> dict:
    reader = GGUFReader(path)
    prefix = "tokenizer.ggml."
    return {key[len(prefix):]: field.contents() for key, field in reader.fields.items() if key.startswith(prefix)}


def bpe_reference(data: dict, pre: str) -> Tokenizer:
    ids = {token: i for i, token in reversed(list(enumerate(data["tokens"])))}
    merges = []
    for merge in data["merges"]:
        left, right = merge[0] + merge[1:].split(" ", 1)[0], merge[1:].split(" ", 1)[1]
        if left in ids and right in ids and left + right in ids:
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=pre in IGNORE_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE[pre])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in zip(data["tokens"], data["token_type"]) if kind == USER_DEFINED])
    return tokenizer


def with_unused(data: dict) -> dict:
    """No vocabulary at hand has unused pieces, so some of Llama's are made unused; the single characters, from 29871 on, stay."""
    kinds = [UNUSED if 259 <= i < 29871 and i % 7 == 3 else kind for i, kind in enumerate(data["token_type"])]
    return {**data, "token_type": kinds}


def spm_reference(data: dict) -> sentencepiece.SentencePieceProcessor:
    proto = sentencepiece_model_pb2.ModelProto()
    n_unknown = 0
    for token, score, kind in zip(data["tokens"], data["scores"], data["token_type"]):
        if kind == UNKNOWN:
            n_unknown += 1
            kind = UNKNOWN if n_unknown == 1 else CONTROL  # there may be one only; the others are padding
        proto.pieces.add(piece=token.replace(" ", "▁"), score=score, type=kind)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.ModelType.BPE
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = data.get("add_space_prefix", True)
    proto.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def fnv1a(ids: list[int]) -> int:
    value = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def id_list(ids: list[int]) -> bytes:
    return struct.pack(f"<I{len(ids)}i", len(ids), *ids)


def text_bytes(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def with_control_tokens(data: dict, tokenizer: Tokenizer, texts: list[str]) -> bytes:
    """Texts with control tokens between words, and their ids. tokenizers takes the leftmost, then the longest."""
    r = random.Random(7)
    control = [t for t, kind in zip(data["tokens"], data["token_type"]) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    chosen = r.sample(control, min(12, len(control)))
    short = [t for t in texts if 0 < len(t) < 30]
    mixed = ["".join(r.choice(short) if r.random() < 0.6 else r.choice(chosen) for _ in range(r.randint(1, 9))) for _ in range(60)]
    return struct.pack("<I", len(mixed)) + b"".join(text_bytes(t) + id_list(tokenizer.encode(t, add_special_tokens=False).ids) for t in mixed)


def write_ids(name: str, all_ids: list[list[int]], special: bytes) -> None:
    full = [i for i in range(0, len(all_ids), 25) if len(all_ids[i]) < 100]
    blob = struct.pack("<I", len(all_ids)) + b"".join(struct.pack("<Q", fnv1a(ids)) for ids in all_ids)
    blob += struct.pack("<I", len(full)) + b"".join(struct.pack("<I", i) + id_list(all_ids[i]) for i in full)
    (HERE / f"{name}.ids").write_bytes(blob + special)
    print(f"{name}: {len(all_ids)} texts, {sum(map(len, all_ids))} ids")


def main(cache: pathlib.Path) -> None:
    texts = make_texts()
    (HERE / "texts.bin").write_bytes(struct.pack("<I", len(texts)) + b"".join(map(text_bytes, texts)))
    for pre, path in BPE.items():
        data = read_vocabulary(cache / path)
        tokenizer = bpe_reference(data, pre)
        write_ids(pre, [tokenizer.encode(t, add_special_tokens=False).ids for t in texts], with_control_tokens(data, bpe_reference(data, pre), texts))
    for name, path in SPM.items():
        data = read_vocabulary(cache / path)
        reference = spm_reference(with_unused(data) if name == "llama-spm-unused" else data)
        write_ids(name, [reference.encode(t) for t in texts], struct.pack("<I", 0))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
