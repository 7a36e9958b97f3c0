#!/usr/bin/env python3
"""Makes film.mkv, turned.mp4, hidden.webm and uncoded.m4v beside it, by FFmpeg's program (5.1 was used): what they show stands in
tests/unit/vision_video_test.cpp."""
import pathlib
import random
import re
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def encode(frames, size, rate, name, *how):
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "{}x{}".format(*size), "-r", str(rate), "-i", "-", *how,
               "-fflags", "+bitexact", "-flags:v", "+bitexact", str(HERE / name)]
    subprocess.run(command, input=b"".join(frames), check=True)


def numbered(width, height, kind):
    return bytes((x * (3 + kind) + y * (5 + 2 * c) + 40 * c + 17 * kind) % 256 for y in range(height) for x in range(width) for c in range(3))


encode([numbered(24, 16, kind) for kind in range(12)], (24, 16), 12.5, "film.mkv", "-c:v", "ffv1", "-level", "3", "-pix_fmt", "bgr0")
halves = bytes(30 if x < 16 else 220 for y in range(16) for x in range(32) for c in range(3))
encode([halves] * 6, (32, 16), 6, "turned.mp4", "-c:v", "mpeg4", "-pix_fmt", "yuv420p")
data = bytearray((HERE / "turned.mp4").read_bytes())
at = data.index(b"tkhd") + 44  # the matrix: a quarter turn with the clock
struct.pack_into(">9i", data, at, 0, 1 << 16, 0, -1 << 16, 0, 0, 16 << 16, 0, 1 << 30)
(HERE / "turned.mp4").write_bytes(data)

# VP8 of two passes: packets that are looked at by later ones, and never shown. Textures that move, each frame brighter than the last.
numbers = random.Random(3)
texture = [numbers.randrange(256) for _ in range(1 << 16)]
textures = [bytes(v for y in range(48) for x in range(64) for v in 3 * [texture[y // 4 * 256 + (x + 2 * i) // 4] // 2 + 3 * i + numbers.randrange(9)])
            for i in range(40)]
with tempfile.TemporaryDirectory() as folder:
    for which in "12":
        encode(textures, (64, 48), 20, "hidden.webm", "-c:v", "libvpx", "-auto-alt-ref", "1", "-lag-in-frames", "25", "-arnr-maxframes", "7",
               "-arnr-strength", "5", "-b:v", "20k", "-g", "999", "-pass", which, "-passlogfile", folder + "/log")

# MPEG-4 with two frames that are said to be as those before: not coded, no frames to a decoder.
encode([bytes((x * 5 + y * 3 + 6 * i) % 256 for y in range(16) for x in range(32) for c in range(3)) for i in range(8)], (32, 16), 25, "uncoded.m4v",
       "-c:v", "mpeg4", "-g", "100", "-sc_threshold", "1000000000", "-f", "m4v")
data = (HERE / "uncoded.m4v").read_bytes()
starts = [m.start() for m in re.finditer(b"\0\0\1\xb6", data)]


def uncoded(time):
    """Of kind P, within the second, at a time of 5 bits, not coded; then stuffing."""
    bits = "01" + "0" + "1" + f"{time:05b}" + "1" + "0" + "01111"
    return b"\0\0\1\xb6" + int(bits, 2).to_bytes(2, "big")


(HERE / "uncoded.m4v").write_bytes(data[:starts[3]] + uncoded(2) + data[starts[3]:starts[6]] + uncoded(5) + data[starts[6]:])
