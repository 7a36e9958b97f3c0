#!/usr/bin/env python3
"""Writes the GGUF fixtures with the Python package `gguf`, as a second opinion on the format.

make_gguf.py                  python.gguf (every metadata type, several tensor types) and python_split-0000k-of-00003.gguf
make_gguf.py --model FILE     NAME.txt: what the package reads from a real file (see describe()), for NAME = FILE's stem
Made with gguf 0.19 and numpy.
"""
import argparse
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

HERE = pathlib.Path(__file__).resolve().parent
TYPE_NAMES = {"UINT8": "u8", "INT8": "i8", "UINT16": "u16", "INT16": "i16", "UINT32": "u32", "INT32": "i32", "FLOAT32": "f32",
              "BOOL": "bool", "STRING": "string", "ARRAY": "array", "UINT64": "u64", "INT64": "i64", "FLOAT64": "f64"}


def write_python_file() -> None:
    writer = GGUFWriter(HERE / "python.gguf", "llama")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_float32("t.f32", 1.5)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "gr\u00fc\u00dfe")
    writer.add_uint64("t.u64", 2**63 + 1)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float64("t.f64", 0.1)
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -0.25])
    writer.add_array("t.strings", ["a", "", "ccc"])
    writer.add_array("t.bools", [True, False])
    values = np.arange(2 * 3 * 64, dtype=np.float32).reshape(2, 3, 64) / 8 - 20
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values[0].astype(np.float16))
    for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1):
        writer.add_tensor(kind.name.lower(), quants.quantize(values[1], kind), raw_dtype=kind)
    writer.add_tensor("odd", np.arange(5, dtype=np.int8))
    save(writer)


def write_split_files() -> None:
    writer = GGUFWriter(HERE / "python_split.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 5)
    for i in range(5):
        writer.add_tensor(f"blk.{i}", np.full((2, 4), i, dtype=np.float32))
    save(writer)


def save(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def describe(path: pathlib.Path) -> str:
    """One line per key: name, type, [count, element type,] hash of the stored bytes (strings: each with a 0 behind it).
    One line per tensor: name, type, sizes from the outermost, offset, bytes, hash of the first and last 64 bytes."""
    reader = GGUFReader(path)
    lines = []
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        is_text = field.types[-1] == GGUFValueType.STRING
        stored = b"".join(field.parts[i].tobytes() + (b"\0" if is_text else b"") for i in field.data)
        kind = TYPE_NAMES[field.types[0].name]
        if field.types[0] == GGUFValueType.ARRAY:
            kind += f" {len(field.data)} {TYPE_NAMES[field.types[-1].name]}"
        lines.append(f"{key} {kind} {fnv1a(stored)}")
    mapped = np.memmap(path, dtype=np.uint8, mode="r")
    for tensor in reader.tensors:
        data = mapped[tensor.data_offset:tensor.data_offset + tensor.n_bytes]
        sizes = "x".join(str(size) for size in reversed(tensor.shape.tolist()))
        ends = data[:64].tobytes() + data[-64:].tobytes()
        lines.append(f"{tensor.name} {tensor.tensor_type.name.lower()} {sizes} {tensor.data_offset} {tensor.n_bytes} {fnv1a(ends)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path)
    options = parser.parse_args()
    if options.model:
        (HERE / f"{options.model.stem}.txt").write_text(describe(options.model), encoding="utf-8")
    else:
        write_python_file()
        write_split_files()


if __name__ == "__main__":
    main()
