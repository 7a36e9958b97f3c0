#!/usr/bin/env python3
"""Makes the named files of tests/fuzz/corpus/tokenizer: vocabularies and texts in the layout of tokenizer_fuzz.cpp, and chat templates.

The files named by their hash were found by the fuzzer: tokenizer_fuzz -set_cover_merge=1.
"""
import pathlib

CORPUS = pathlib.Path(__file__).parent / "corpus/tokenizer"
TOKENS = [(1, 5, b"ab"), (1, 9, b"abc"), (3, 0, b"<|im_end|>"), (4, 1, b"  "), (5, 3, b"bc"), (1, 2, b" a")]  # type, score, bytes
TEXT = "abc it's  \n 123<|im_end|> é中😀".encode() + b"\xff\xe4\xb8"
MESSAGE = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
TEMPLATES = {
    "plain": "{% for message in messages %}" + MESSAGE + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "default": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}"
               "{% endif %}" + MESSAGE + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "spelling": "{# a remark #}\n{%- for message in messages -%}\n  <|im_start|>{{- message.role ~ \"\\n\" }}{{ message.content }}<|im_end|>\n{%- endfor %}",
}


def vocabulary(is_spm: bool, all_bytes: bool, pre: int) -> bytes:
    options = is_spm | all_bytes << 1 | (12 if pre % 2 == 0 else 0)
    tokens = b"".join(bytes([kind << 4 | len(text), score]) + text for kind, score, text in TOKENS)
    merges = [] if is_spm else [(97, 98), (0, 1), (3, 4)]
    return bytes([options, pre, len(TOKENS)]) + tokens + bytes([len(merges), *sum(merges, ())]) + bytes([1 + pre % 3]) + TEXT


if __name__ == "__main__":
    CORPUS.mkdir(parents=True, exist_ok=True)
    for is_spm in (False, True):
        for all_bytes in (False, True):
            for pre in range(0, 21, 1 if not is_spm and all_bytes else 10):
                name = f"{'spm' if is_spm else 'bpe'}_{'bytes' if all_bytes else 'few'}_{pre:02}"
                (CORPUS / name).write_bytes(vocabulary(is_spm, all_bytes, pre))
    for name, source in TEMPLATES.items():
        (CORPUS / f"chat_{name}").write_text(source)
