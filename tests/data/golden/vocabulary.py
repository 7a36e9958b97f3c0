"""Byte-level BPE vocabularies for the tiny models: three control tokens, bytes, and a few merges."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("\u0120", "th"), ("\u0120th", "e"), ("i", "n"), ("e", "r")]
CONTROL, NORMAL = 3, 1

CHAT_ML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
           " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_symbols():
    """GPT-2's printable stand-in for each byte: itself where visible, else the next code point from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def tokens(kind):
    """`bytes`: all 256 bytes, any text encodes. `ascii`: newline, space and most of printable ASCII (96 tokens)."""
    symbols = byte_symbols()
    if kind == "bytes":
        chosen = range(256)
        extra = 24
    else:
        chosen = [10, 32, *range(0x61, 0x7B), *range(0x41, 0x5B), *range(0x30, 0x3A), *b".,;:!?'\"()[]{}-+*/=<>&_#"]
        extra = 0
    unused = [f"<|reserved_{i}|>" for i in range(extra)]
    names = SPECIAL + [symbols[b] for b in chosen] + [a + b for a, b in MERGES]
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(names) - len(SPECIAL))
    return names + unused, types + [CONTROL] * extra
