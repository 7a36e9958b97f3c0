#!/usr/bin/env python3
"""Makes images.bin: image files of every kind, and the pixels that transformers sees in them.

Needs numpy, pillow (13.0.0 was used) and transformers (5.24.0) with torch from PyPI. Run in this folder: python3 make_images.py
Of each file, little-endian: u32 length and bytes of its name, u32 length and bytes of the file, u32 width, u32 height, RGB.
The pixels are those of transformers' convert_to_rgb() after Pillow's exif_transpose(); but of 16-bit grey the upper 8 bits,
where Pillow clips (see image_file.hpp). Names say how far a pixel may be off: files of lossy kinds end in .jpg and _lossy.webp.
"""
import io
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

W, H = 23, 17
rng = np.random.default_rng(7)


def picture(w=W, h=H, channels=3):
    """Smooth, with an edge and some noise, so that lossy kinds have something to lose."""
    y, x = np.mgrid[0:h, 0:w]
    planes = [128 + 100 * np.sin(x / (4 + c) + c) * np.cos(y / (5 - c % 3)) + 40 * (x + c > w // 2) for c in range(channels)]
    noisy = np.stack(planes, -1) + rng.integers(-12, 13, (h, w, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def saved(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(w, h, depth, color, rows, extra=b"", after=b""):
    """`rows`: packed bytes, all of one length."""
    data = b"".join(b"\0" + rows[i * (len(rows) // h):(i + 1) * (len(rows) // h)] for i in range(h))
    header = struct.pack(">IIBBBBB", w, h, depth, color, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(data)) + after
            + png_chunk(b"IEND", b""))


def adam7(rgba):
    """An interlaced PNG of [h, w, 4]."""
    h, w, _ = rgba.shape
    data = b""
    for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = rgba[y0::dy, x0::dx]
        if part.size:
            data += b"".join(b"\0" + row.tobytes() for row in part)
    header = struct.pack(">IIBBBBB", w, h, 8, 6, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")


def bmp(w, h, bits, rows, palette=b"", compression=0, masks=b"", core=False):
    """`rows`: as they lie in the file; a negative h is top-down."""
    header = struct.pack("<IHHHH", 12, w, h, 1, bits) if core else struct.pack(
        "<IiiHHIIiiII", 40, w, h, 1, bits, compression, len(rows), 2835, 2835, len(palette) // 4, 0)
    at = 14 + len(header) + len(masks) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(rows), 0, 0, at) + header + masks + palette + rows


def padded(row):
    return row + b"\0" * (-len(row) % 4)


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def big_endian_exif(orientation):
    return b"Exif\0\0MM\0*" + struct.pack(">IHHHIHH", 8, 1, 0x0112, 3, 1, orientation, 0) + b"\0\0\0\0"


def exif_of_type(kind, orientation):
    """A number of any TIFF type, in the first of its four bytes: little-endian."""
    return b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, kind, 1, orientation) + b"\0\0\0\0"


def jpegs():
    rgb = Image.fromarray(picture())
    yield "baseline.jpg", saved(rgb, "JPEG", quality=92, subsampling=0)
    yield "subsampled_422.jpg", saved(rgb, "JPEG", quality=80, subsampling=1)
    yield "subsampled_420.jpg", saved(rgb, "JPEG", quality=75, subsampling=2)
    yield "progressive.jpg", saved(rgb, "JPEG", quality=85, progressive=True)
    yield "restarts.jpg", saved(rgb, "JPEG", quality=85, restart_marker_blocks=2)
    yield "grey.jpg", saved(rgb.convert("L"), "JPEG", quality=90)
    yield "grey_progressive.jpg", saved(rgb.convert("L"), "JPEG", quality=60, progressive=True)
    cmyk = saved(Image.fromarray(picture(channels=4), "CMYK"), "JPEG", quality=90)
    yield "cmyk.jpg", cmyk
    adobe = cmyk.index(b"Adobe")
    yield "ycck.jpg", cmyk[:adobe + 11] + b"\2" + cmyk[adobe + 12:]
    no_adobe = cmyk[:adobe - 4] + cmyk[adobe + 12:]
    yield "cmyk_plain.jpg", no_adobe
    yield "rgb_stored.jpg", saved(rgb, "JPEG", quality=90, keep_rgb=True)
    yield "one_pixel.jpg", saved(Image.fromarray(picture(1, 1)), "JPEG")
    yield "high.jpg", saved(Image.fromarray(picture(1, 40)), "JPEG", quality=85)
    yield "wide.jpg", saved(Image.fromarray(picture(61, 2)), "JPEG", quality=85, subsampling=2)
    for i in range(1, 9):
        yield f"exif_{i}.jpg", saved(rgb, "JPEG", quality=85, exif=exif(i))
    yield "exif_big_endian.jpg", saved(rgb, "JPEG", quality=85, exif=big_endian_exif(6))
    for kind in (1, 4, 6, 8, 9, 10, 13):
        yield f"exif_type_{kind}.jpg", saved(rgb, "JPEG", quality=85, exif=exif_of_type(kind, 6))
    yield "exif_9.jpg", saved(rgb, "JPEG", quality=85, exif=big_endian_exif(9))
    yield "xmp_8.jpg", saved(rgb, "JPEG", quality=85, xmp=b'<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>')


def pngs():
    rgb, rgba, grey = picture(), picture(channels=4), picture(channels=1)[..., 0]
    yield "rgb.png", saved(Image.fromarray(rgb), "PNG")
    yield "rgba.png", saved(Image.fromarray(rgba, "RGBA"), "PNG")
    yield "rgba_interlaced.png", adam7(rgba)
    yield "interlaced_one_pixel.png", adam7(rgba[:1, :1])
    yield "grey.png", saved(Image.fromarray(grey), "PNG")
    yield "grey_alpha.png", saved(Image.fromarray(rgba[..., :2].copy(), "LA"), "PNG")
    yield "palette.png", saved(Image.fromarray(rgb).quantize(200), "PNG")
    yield "palette_16.png", saved(Image.fromarray(rgb).quantize(13), "PNG", bits=4)
    yield "palette_alpha.png", saved(Image.fromarray(rgb).quantize(100), "PNG", transparency=bytes(range(0, 200, 2)))
    yield "palette_short.png", png(4, 1, 8, 3, bytes([0, 1, 2, 250]), png_chunk(b"PLTE", bytes(range(10, 70, 10))))
    yield "one_bit.png", saved(Image.fromarray(grey).convert("1"), "PNG")
    yield "grey_2.png", png(16, 2, 2, 0, bytes([0x1b, 0xe4, 0x00, 0xff, 0xaa, 0x55, 0x1b, 0x1b]))
    yield "grey_4.png", png(4, 2, 4, 0, bytes([0x01, 0x8f, 0x7e, 0xa3]))
    yield "grey_key.png", png(4, 1, 8, 0, bytes([3, 4, 5, 4]), png_chunk(b"tRNS", struct.pack(">H", 4)))
    yield "rgb_key.png", png(2, 1, 8, 2, bytes([1, 2, 3, 1, 2, 4]), png_chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3)))
    deep = rng.integers(0, 65536, (5, 9, 4), dtype=np.uint16)
    yield "grey_16.png", png(9, 5, 16, 0, deep[..., 0].astype(">u2").tobytes())
    yield "rgb_16.png", png(9, 5, 16, 2, deep[..., :3].astype(">u2").tobytes())
    yield "rgba_16.png", png(9, 5, 16, 6, deep.astype(">u2").tobytes())
    yield "grey_alpha_16.png", png(9, 5, 16, 4, deep[..., :2].astype(">u2").tobytes())
    yield "one_pixel.png", saved(Image.fromarray(picture(1, 1)), "PNG")
    yield "gamma.png", png(9, 5, 8, 0, rng.integers(0, 256, 45, dtype=np.uint8).tobytes(), png_chunk(b"gAMA", struct.pack(">I", 99999)))
    for i in (3, 6):
        yield f"exif_{i}.png", saved(Image.fromarray(rgb), "PNG", exif=exif(i))
    xmp = png_chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>')
    yield "xmp_6.png", png(W, H, 8, 2, rgb.tobytes(), xmp)
    yield "xmp_6_exif_3.png", png(W, H, 8, 2, rgb.tobytes(), xmp, png_chunk(b"eXIf", exif(3)[6:]))
    yield "exif_late.png", png(W, H, 8, 2, rgb.tobytes(), after=png_chunk(b"eXIf", exif(8)[6:]))


def webps():
    rgb, rgba = Image.fromarray(picture()), Image.fromarray(picture(channels=4), "RGBA")
    yield "rgb.webp", saved(rgb, "WEBP", lossless=True)
    yield "rgba.webp", saved(rgba, "WEBP", lossless=True, exact=True)
    yield "rgb_lossy.webp", saved(rgb, "WEBP", quality=80)
    yield "rgba_lossy.webp", saved(rgba, "WEBP", quality=70)
    yield "one_pixel.webp", saved(Image.fromarray(picture(1, 1)), "WEBP", lossless=True)
    yield "exif_5.webp", saved(rgb, "WEBP", lossless=True, exif=exif(5))
    yield "xmp_6.webp", saved(rgb, "WEBP", lossless=True, xmp=b"<x><tiff:Orientation>6</tiff:Orientation></x>")
    frames = [Image.fromarray(picture(channels=4), "RGBA") for _ in range(3)]
    yield "animation.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True, exact=True)


def bmps():
    rgb, grey = picture(), picture(channels=1)[..., 0]
    yield "rgb.bmp", saved(Image.fromarray(rgb), "BMP")
    yield "rgba.bmp", saved(Image.fromarray(picture(channels=4), "RGBA"), "BMP")
    yield "grey.bmp", saved(Image.fromarray(grey), "BMP")
    yield "palette.bmp", saved(Image.fromarray(rgb).quantize(77), "BMP")
    yield "one_bit.bmp", saved(Image.fromarray(grey).convert("1"), "BMP")
    nibbles = b"".join(padded(rng.integers(0, 256, 4, dtype=np.uint8).tobytes()) for _ in range(5))
    colors = rng.integers(0, 256, (16, 4), dtype=np.uint8).tobytes()
    yield "palette_16.bmp", bmp(7, 5, 4, nibbles, colors)
    words = [rng.integers(0, 65536, 5, dtype=np.uint16).astype("<u2").tobytes() for _ in range(3)]
    yield "rgb_555.bmp", bmp(5, 3, 16, b"".join(map(padded, words)))
    yield "rgb_565.bmp", bmp(5, 3, 16, b"".join(map(padded, words)), compression=3, masks=struct.pack("<III", 0xF800, 0x7E0, 0x1F))
    yield "top_down.bmp", bmp(W, -H, 24, b"".join(padded(row[:, ::-1].tobytes()) for row in rgb))
    yield "os2.bmp", bmp(W, H, 24, b"".join(padded(row[:, ::-1].tobytes()) for row in rgb[::-1]), core=True)
    wide = b"".join(rng.integers(0, 256, 4 * 6, dtype=np.uint8).tobytes() for _ in range(4))
    yield "rgbx_32.bmp", bmp(6, 4, 32, wide)
    runs8 = bytes([3, 1, 2, 9, 0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0, 5, 7, 0, 1])
    yield "runs_8.bmp", bmp(5, 3, 8, runs8, rng.integers(0, 256, (256, 4), dtype=np.uint8).tobytes(), compression=1)
    runs4 = bytes([5, 0x12, 0, 0, 0, 5, 0x12, 0x34, 0x50, 0, 0, 0, 5, 0x77, 0, 1])
    yield "runs_4.bmp", bmp(5, 3, 4, runs4, colors, compression=2)


def gif(screen, frame, data, palette=b"", flags=0, before=b"", size=2):
    """`data`: packed codes; the palette is the frame's, of 4 colours."""
    blocks = b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255))
    return (b"GIF89a" + struct.pack("<HHBBB", *screen, 0, 0, 0) + before + b"," + struct.pack("<HHHHB", *frame, flags) + palette
            + bytes([size]) + blocks + b"\0;")


def gifs():
    rgb = Image.fromarray(picture())
    yield "palette.gif", saved(rgb.quantize(256), "GIF")
    yield "few_colors.gif", saved(rgb.quantize(5), "GIF", optimize=True)
    yield "grey.gif", saved(rgb.convert("L"), "GIF")
    yield "transparent.gif", saved(rgb.quantize(64), "GIF", transparency=3)
    yield "interlaced.gif", saved(rgb.quantize(64), "GIF", interlace=1)
    frames = [Image.fromarray(picture()).quantize(16) for _ in range(3)]
    yield "animation.gif", saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    noise = Image.fromarray(rng.integers(0, 256, (70, 80, 3), dtype=np.uint8)).quantize(256)  # more than 4096 strings
    yield "noise.gif", saved(noise, "GIF")
    colors = rng.integers(0, 256, 12, dtype=np.uint8).tobytes()
    bits = sum(code << 3 * i for i, code in enumerate([4, 0, 1, 4, 2, 3, 5]))  # clear is 4, end is 5
    codes = bits.to_bytes(3, "little")
    yield "part.gif", gif((5, 4), (2, 1, 2, 2), codes, colors, 0x81)
    control = bytes([0x21, 0xF9, 4, 1, 0, 0, 2, 0])
    yield "part_transparent.gif", gif((5, 4), (2, 1, 2, 2), codes, colors, 0x81, control)
    yield "beyond.gif", gif((3, 2), (2, 1, 2, 2), codes, colors, 0x81, bytes([0x21, 0xFE, 3]) + b"abc\0")


def expected(name, data):
    image = Image.open(io.BytesIO(data))
    if name == "grey_16.png":
        high = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(high[..., None], 3, -1)
    return convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)


def main():
    out = b""
    for kinds in (jpegs, pngs, webps, bmps, gifs):
        for name, data in kinds():
            pixels = expected(name, data)
            assert pixels.dtype == np.uint8 and pixels.ndim == 3
            out += struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", len(data)) + data
            out += struct.pack("<II", pixels.shape[1], pixels.shape[0]) + pixels.tobytes()
    (pathlib.Path(__file__).parent / "images.bin").write_bytes(out)


if __name__ == "__main__":
    main()
