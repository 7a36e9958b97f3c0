#!/usr/bin/env python3
"""Writes corpus/gguf: small files, good and damaged in one place each, from which the fuzzer starts."""
import pathlib
import struct

OUT = pathlib.Path(__file__).resolve().parent / "corpus" / "gguf"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def number(kind: int, value) -> bytes:
    return struct.pack("<" + FORMATS[kind], value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return number(U64, len(data)) + data


def array(kind: int, items: list[bytes], count: int | None = None) -> bytes:
    return number(U32, kind) + number(U64, len(items) if count is None else count) + b"".join(items)


def key(name: str | bytes, kind: int, stored: bytes) -> bytes:
    return text(name) + number(U32, kind) + stored


def tensor(name: str, sizes: list[int], kind: int, offset: int) -> bytes:
    return text(name) + number(U32, len(sizes)) + b"".join(number(U64, s) for s in sizes) + number(U32, kind) + number(U64, offset)


def gguf(keys: list[bytes], tensors: list[bytes] = (), data: bytes = b"", version=3, alignment=32, magic=b"GGUF", n_keys=None, n_tensors=None) -> bytes:
    header = magic + number(U32, version) + number(U64, len(tensors) if n_tensors is None else n_tensors)
    header += number(U64, len(keys) if n_keys is None else n_keys) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data


def main() -> None:
    arch = key("general.architecture", STRING, text("llama"))
    every = [key(f"k{kind}", kind, number(kind, 1)) for kind in FORMATS] + [key("s", STRING, text("x"))]
    arrays = [key(f"a{kind}", ARRAY, array(kind, [number(kind, v) for v in (0, 1)])) for kind in FORMATS]
    words = key("words", ARRAY, array(STRING, [text("a"), text(""), text("bc")]))
    nested = key("n", ARRAY, array(ARRAY, [array(STRING, [text("a")]), array(U8, []), array(ARRAY, [array(F64, [number(F64, 2)])])]))
    deep = array(U8, [b"\1"])
    for _ in range(9):
        deep = array(ARRAY, [deep])
    align = key("general.alignment", U32, number(U32, 8))
    split = [key("split.no", U16, number(U16, 0)), key("split.count", U16, number(U16, 2)), key("split.tensors.count", I32, number(I32, 1))]
    a, b = tensor("a", [3, 2], 0, 0), tensor("b", [64], 8, 32)
    good = gguf([arch, words], [a, b], bytes(32 + 96))
    seeds = {
        "good": good, "version2": gguf([arch], [a], bytes(32), version=2), "no_tensors": gguf([arch]), "nothing": gguf([]),
        "every_type": gguf(every), "arrays": gguf(arrays), "nested": gguf([nested]), "alignment8": gguf([align], [a], bytes(24), alignment=8),
        "rank0": gguf([], [tensor("r", [], 0, 0)], bytes(4)), "rank4": gguf([], [tensor("r", [1, 2, 1, 2], 1, 0)], bytes(8)),
        "split": gguf(split), "any_bytes": gguf([key(b"\xff\0", STRING, text(b"\x80"))]), "swapped_order": gguf([], [tensor("a", [3], 0, 96), tensor("b", [64], 8, 0)], bytes(96 + 32)),
       
        "k_quants": gguf([], [tensor(f"t{kind}", [256], kind, 512 * i) for i, kind in enumerate((10, 12, 14, 20, 39))], bytes(512 * 4 + 160)),
        "bad_magic": gguf([arch], magic=b"ggjt"), "version1": gguf([arch], version=1), "big_endian": gguf([arch], version=0x03000000),
        "many_keys": gguf([arch], n_keys=1 << 40), "many_tensors": gguf([arch], n_tensors=1 << 40), "key_twice": gguf([arch, arch]),
        "key_empty": gguf([key("", U8, b"\1")]), "key_type": gguf([key("k", 13, b"\1")]), "bool2": gguf([key("k", BOOL, b"\2")]),
        "string_long": gguf([key("k", STRING, number(U64, 1 << 60))]), "array_long": gguf([key("k", ARRAY, array(STRING, [], 1 << 61))]),
        "array_type": gguf([key("k", ARRAY, array(77, []))]), "array_deep": gguf([key("k", ARRAY, deep)]),
        "alignment0": gguf([key("general.alignment", U32, number(U32, 0))]), "alignment_text": gguf([key("general.alignment", STRING, text("32"))]),
        "rank5": gguf([], [tensor("a", [1] * 5, 0, 0)], bytes(32)), "size0": gguf([], [tensor("a", [0], 0, 0)], bytes(32)),
        "overflow": gguf([], [tensor("a", [1 << 40, 1 << 40], 0, 0)], bytes(32)), "rows": gguf([], [tensor("a", [48], 8, 0)], bytes(96)),
        "type_unknown": gguf([], [tensor("a", [1], 99, 0)], bytes(32)), "type_removed": gguf([], [tensor("a", [32], 31, 0)], bytes(32)),
        "offset_odd": gguf([], [tensor("a", [1], 0, 4)], bytes(32)), "offset_far": gguf([], [tensor("a", [1], 0, 1 << 62)], bytes(32)),
        "overlap": gguf([], [a, tensor("b", [1], 0, 0)], bytes(32)), "tensor_twice": gguf([], [a, tensor("a", [1], 0, 32)], bytes(64)),
        "truncated_data": good[:-40], "truncated_header": good[:70], "appended": good + bytes(1), "joined": good + good,
    }
    OUT.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (OUT / name).write_bytes(data)


if __name__ == "__main__":
    main()
