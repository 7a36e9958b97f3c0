#!/usr/bin/env python3
"""Writes corpus/image: the files of tests/data/vision/images.bin, and some that lie, from which the fuzzer starts."""
import pathlib
import struct
import zlib

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "corpus" / "image"


def files() -> dict[str, bytes]:
    data = (HERE.parent / "data/vision/images.bin").read_bytes()
    found, at = {}, 0
    while at < len(data):
        parts = []
        for _ in range(2):
            (size,) = struct.unpack_from("<I", data, at)
            parts.append(data[at + 4:at + 4 + size])
            at += 4 + size
        width, height = struct.unpack_from("<II", data, at)
        at += 8 + width * height * 3
        found[parts[0].decode()] = parts[1]
    return found


def png_of_size(file: bytes, width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">II", width, height) + file[24:29]
    return file[:12] + header + struct.pack(">I", zlib.crc32(header)) + file[33:]


def jpeg_of_size(file: bytes, width: int, height: int) -> bytes:
    at = max(file.find(b"\xff\xc0"), file.find(b"\xff\xc2"))
    return file[:at + 5] + struct.pack(">HH", height, width) + file[at + 9:]


def with_scans(file: bytes, n: int) -> bytes:
    """The last scan of a progressive JPEG, n times."""
    at = file.rfind(b"\xff\xda")
    return file[:at] + file[at:-2] * n + b"\xff\xd9"


def lies(good: dict[str, bytes]) -> dict[str, bytes]:
    return {
        "nothing": b"",
        "text": b"no image at all",
        "png_wide": png_of_size(good["rgb.png"], 0x7FFFFFFF, 1),
        "png_larger": png_of_size(good["rgb.png"], 400, 400),
        "png_smaller": png_of_size(good["rgb.png"], 5, 5),
        "jpeg_huge": jpeg_of_size(good["baseline.jpg"], 65000, 65000),
        "jpeg_larger": jpeg_of_size(good["baseline.jpg"], 70, 40),
        "jpeg_larger_progressive": jpeg_of_size(good["progressive.jpg"], 70, 40),
        "jpeg_scans": with_scans(good["progressive.jpg"], 3),
        "jpeg_no_end": good["baseline.jpg"][:-2],
        "bmp_high": good["rgb.bmp"][:22] + struct.pack("<i", -0x80000000) + good["rgb.bmp"][26:],
        "bmp_no_palette": good["palette.bmp"][:60],
        "bmp_runs_on": good["runs_8.bmp"][:-2],
        "webp_cut": good["rgb_lossy.webp"][:-30],
        "exif_far": good["exif_6.jpg"].replace(b"II*\0\x08\0\0\0", b"II*\0\xff\xff\xff\x7f"),
    }


def main() -> None:
    OUT.mkdir(exist_ok=True)
    good = files()
    for name, data in (good | lies(good)).items():
        (OUT / name.replace(".", "_")).write_bytes(data)


if __name__ == "__main__":
    main()
