// Image files: every kind against Pillow's pixels, limits, and files that are cut off or lie.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/vision/image_file.hpp"
#include "vision_data.hpp"

using tiered::decode_image;
using tiered::Errc;
using tiered::Error;
using tiered::Image;
using tiered::ImageFormat;
using tiered::ImageLimits;
using tiered::ImageSize;
using tiered_test::bytes_of;
using tiered_test::error_of;
using tiered_test::image_cases;
using tiered_test::ImageCase;

namespace {

ImageFormat format_of(ImageCase const& c) { return tiered::image_format(bytes_of(c.file)); }

ImageCase case_named(std::string const& name) {
  for (ImageCase& c : image_cases()) {
    if (c.name == name) return std::move(c);
  }
  throw std::runtime_error("no case " + name);
}

std::string with_u32(std::string file, std::size_t at, std::uint32_t value, bool big_endian) {
  for (std::size_t i = 0; i < 4; ++i) file[at + (big_endian ? 3 - i : i)] = char(value >> 8 * i & 255);
  return file;
}

std::string png_with_size(std::uint32_t width, std::uint32_t height) {
  std::string file = with_u32(with_u32(case_named("rgb.png").file, 16, width, true), 20, height, true);
  return with_u32(file, 29, tiered_test::crc32(bytes_of(file).subspan(12, 17)), true);
}

std::string jpeg_with_size(std::uint32_t width, std::uint32_t height, std::string const& name = "baseline.jpg") {
  std::string file = case_named(name).file;
  std::size_t const frame = std::min(file.find("\xff\xc0"), file.find("\xff\xc2"));
  for (std::size_t i = 0; i < 2; ++i) {
    file[frame + 5 + i] = char(height >> (8 - 8 * i) & 255);
    file[frame + 7 + i] = char(width >> (8 - 8 * i) & 255);
  }
  return file;
}

/// Decodes or throws Error, of a kind that files may cause, with a message of printable characters.
bool decodes(std::string const& file, ImageLimits const& limits = {}) {
  try {
    Image const image = decode_image(bytes_of(file), limits);
    REQUIRE_FALSE(image.empty());
    REQUIRE(image.size().n_pixels() <= limits.max_pixels);
    return true;
  } catch (Error const& e) {
    std::string const message = e.what();
    INFO(message);
    REQUIRE((e.code() == Errc::bad_file || e.code() == Errc::unsupported || e.code() == Errc::over_budget));
    REQUIRE(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
    return false;
  }
}

}  // namespace

TEST_CASE("images of every kind have the pixels that the reference sees", "[vision][image]") {
  auto const cases = image_cases();
  REQUIRE(cases.size() > 60);
  for (ImageCase const& c : cases) {
    INFO(c.name);
    if (!tiered::can_decode(format_of(c))) {
      CHECK(error_of([&] { decode_image(bytes_of(c.file)); }).code == Errc::unsupported);
      continue;
    }
    Image const image = decode_image(bytes_of(c.file));
    REQUIRE(image.size() == ImageSize{c.width, c.height});
    auto const rgb = image.rgb();
    // Versions of lossy decoders may round differently; 1 where the colour transform is undone and CMYK follows is up to 3.
    bool const lossy = c.name.ends_with(".jpg") || c.name.ends_with("_lossy.webp");
    int worst = 0;
    for (std::size_t i = 0; i < rgb.size(); ++i) worst = std::max(worst, std::abs(int(rgb[i]) - int(c.rgb[i])));
    CHECK(worst <= (lossy ? 2 : 0));
    if (lossy && worst > 0) WARN(c.name << " differs by " << worst);
  }
}

TEST_CASE("a file cut off anywhere is bad_file", "[vision][image]") {
  for (ImageCase const& c : image_cases()) {
    INFO(c.name);
    if (!tiered::can_decode(format_of(c))) continue;
    std::size_t const step = std::max<std::size_t>(c.file.size() / 97, 1);
    for (std::size_t n = 16; n < c.file.size(); n += step) {
      INFO(n << " of " << c.file.size() << " bytes");
      std::string const part = c.file.substr(0, n);
      // Of an animation the first frame counts, of a GIF what its size asks for; runs of a BMP may end anywhere; WebP's metadata lies
      // behind its pixels, and a BMP's last row may lack its padding.
      bool const may_be_whole = c.name == "animation.webp" || c.name.ends_with(".bmp") || c.name.ends_with(".gif");
      if (may_be_whole && decodes(part)) continue;
      if (c.name.ends_with(".webp") && decodes(part)) {
        CHECK(c.name.find("_") != c.name.npos);
        continue;
      }
      CHECK(error_of([&] { decode_image(bytes_of(part)); }).code == Errc::bad_file);
    }
  }
}

TEST_CASE("pixels are limited by the header, before anything is decoded", "[vision][image]") {
  for (ImageCase const& c : image_cases()) {
    INFO(c.name);
    if (!tiered::can_decode(format_of(c)) || c.width * c.height == 1) continue;
    std::int64_t const n_pixels = std::int64_t{c.width} * c.height;
    CHECK(decodes(c.file, {.max_pixels = n_pixels}));
    auto const error = error_of([&] { decode_image(bytes_of(c.file), {.max_pixels = n_pixels - 1}); });
    CHECK(error.code == Errc::over_budget);
    CHECK(error.says(std::to_string(n_pixels - 1)));
  }
}

TEST_CASE("sizes that a file cannot hold are refused without memory for them", "[vision][image]") {
  ImageLimits const any{.max_pixels = std::int64_t{1} << 62};
  if (tiered::can_decode(ImageFormat::png)) {
    CHECK(error_of([&] { decode_image(bytes_of(png_with_size(100000, 100000))); }).code == Errc::over_budget);
    CHECK(error_of([&] { decode_image(bytes_of(png_with_size(0x7fffffff, 0x7fffffff)), any); }).code == Errc::bad_file);
    CHECK(error_of([&] { decode_image(bytes_of(png_with_size(10000, 10000))); }).code == Errc::bad_file);
    CHECK(error_of([&] { decode_image(bytes_of(png_with_size(0, 5))); }).code == Errc::bad_file);
  }
  if (tiered::can_decode(ImageFormat::jpeg)) {
    CHECK(error_of([&] { decode_image(bytes_of(jpeg_with_size(65000, 65000))); }).code == Errc::over_budget);
    CHECK(error_of([&] { decode_image(bytes_of(jpeg_with_size(65000, 65000)), any); }).code == Errc::bad_file);
    CHECK(error_of([&] { decode_image(bytes_of(jpeg_with_size(65000, 65000, "progressive.jpg")), any); }).code == Errc::bad_file);
    CHECK(error_of([&] { decode_image(bytes_of(jpeg_with_size(0, 65000))); }).code == Errc::bad_file);
  }
  std::string const bmp = case_named("rgb.bmp").file;
  CHECK(error_of([&] { decode_image(bytes_of(with_u32(bmp, 18, 0x7fffffff, false)), any); }).code == Errc::bad_file);
  CHECK(error_of([&] { decode_image(bytes_of(with_u32(bmp, 22, 0x80000000u, false)), any); }).code == Errc::bad_file);
  CHECK(error_of([&] { decode_image(bytes_of(with_u32(bmp, 18, 0xffffffffu, false))); }).code == Errc::bad_file);
}

TEST_CASE("damaged files decode or are refused, and nothing else", "[vision][image]") {
  std::uint64_t const seed = 20260611;
  INFO("seed " << seed);
  tiered::SplitMix64 random(seed);
  for (ImageCase const& c : image_cases()) {
    INFO(c.name);
    for (int i = 0; i < 60; ++i) {
      std::string file = c.file;
      int const n_changes = 1 + int(random.next() % 4);
      for (int k = 0; k < n_changes; ++k) file[random.next() % file.size()] = char(random.next());
      decodes(file, {.max_pixels = 1 << 20});
    }
  }
}

TEST_CASE("damage in the data of a PNG or JPEG is said", "[vision][image]") {
  if (tiered::can_decode(ImageFormat::png)) {
    std::string file = case_named("rgb.png").file;
    std::size_t const data = file.find("IDAT") + 20;
    file[data] = char(file[data] ^ 0x55);
    CHECK(error_of([&] { decode_image(bytes_of(file)); }).code == Errc::bad_file);
  }
  if (tiered::can_decode(ImageFormat::jpeg)) {
    std::string file = case_named("baseline.jpg").file;
    file.resize(file.size() - 40);
    file += "\xff\xd9";  // whole again, but for some data
    auto const error = error_of([&] { decode_image(bytes_of(file)); });
    CHECK(error.code == Errc::bad_file);
    CHECK(error.says("JPEG: "));
  }
}

TEST_CASE("a JPEG of very many scans is refused", "[vision][image]") {
  if (!tiered::can_decode(ImageFormat::jpeg)) return;
  ImageCase const c = case_named("progressive.jpg");
  std::size_t const begin = c.file.find("\xff\xda"), end = std::min(c.file.find("\xff\xc4", begin), c.file.find("\xff\xda", begin + 1));
  REQUIRE(end != c.file.npos);
  auto const with_scans = [&](int n) {
    std::string file = c.file.substr(0, end);
    for (int i = 0; i < n; ++i) file += c.file.substr(begin, end - begin);
    return file + c.file.substr(end);
  };
  Image const image = decode_image(bytes_of(with_scans(20)));
  CHECK(std::equal(c.rgb.begin(), c.rgb.end(), image.rgb().begin(), [](int a, int b) { return std::abs(a - b) <= 2; }));
  auto const error = error_of([&] { decode_image(bytes_of(with_scans(300))); });
  CHECK(error.code == Errc::bad_file);
  CHECK(error.says("200 scans"));
}

TEST_CASE("what an arithmetic JPEG asks for is bounded by its bytes", "[vision][image]") {
  if (!tiered::can_decode(ImageFormat::jpeg)) return;
  // 24 x 24, grey: 20 + 8 x + 3 y, by cjpeg -arithmetic -quality 60.
  constexpr std::string_view digits =
      "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213271c1e17202e2931302e292d2c33"
      "3a4a3e333646372c2d405741464c4e525352323e5a615a50604a51524fffc9000b080018001801011100ffcc000600101005ffda0008010100003f00"
      "ff00780ce67d9b1280189188da29f616fdf690529dae358b07731eee73857050f34122bc751536edb2c1086a8af481112a89a071b0c2aa249ae78550"
      "5ea22cffd9";
  std::string file;
  for (std::size_t i = 0; i < digits.size(); i += 2) file += char(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  auto const with_size = [&](int width, int height) {
    std::string out = file;
    std::size_t const frame = out.find("\xff\xc9");
    for (std::size_t i = 0; i < 2; ++i) {
      out[frame + 5 + i] = char(height >> (8 - 8 * i) & 255);
      out[frame + 7 + i] = char(width >> (8 - 8 * i) & 255);
    }
    return out;
  };
  auto const refusal = error_of([&] { decode_image(bytes_of(with_size(13000, 13000))); });
  if (refusal.code == Errc::unsupported) return;  // a library without arithmetic coding
  Image const image = decode_image(bytes_of(file));
  int worst = 0;
  for (int y = 0; y < 24; ++y) {
    for (int x = 0; x < (y < 16 ? 24 : 16); ++x) worst = std::max(worst, std::abs(int(image.row(y)[3 * x]) - (20 + 8 * x + 3 * y) % 256));
  }
  CHECK(worst <= 12);
  CHECK(refusal.code == Errc::over_budget);
  CHECK(refusal.says("13000 x 13000", "185 bytes", "1515520"));
  CHECK(error_of([&] { decode_image(bytes_of(with_size(1516, 1000))); }).code == Errc::over_budget);
  CHECK(error_of([&] { decode_image(bytes_of(with_size(1515, 1000))); }).code != Errc::over_budget);
}

TEST_CASE("what is no image, or of a kind that is not read, is refused by name", "[vision][image]") {
  CHECK(error_of([] { decode_image({}); }).code == Errc::bad_file);
  CHECK(error_of([] { decode_image(bytes_of("GGUF is no image")); }).code == Errc::bad_file);
  for (std::string const& head : {std::string("II*\0________", 12), std::string("\0\0\0\x18"
                                                                                "ftypheic",
                                                                                12)}) {
    auto const error = error_of([&] { decode_image(bytes_of(head)); });
    CHECK(error.code == Errc::unsupported);
    CHECK(error.says(name(tiered::image_format(bytes_of(head)))));
  }
  for (std::string const head : {"\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "RIFF____WEBP", "BM", "GIF89a"}) {
    ImageFormat const format = tiered::image_format(bytes_of(head));
    CHECK(format != ImageFormat::unknown);
    CHECK(error_of([&] { decode_image(bytes_of(head)); }).code == (tiered::can_decode(format) ? Errc::bad_file : Errc::unsupported));
  }
}

TEST_CASE("files are read whole, and named in errors", "[vision][image]") {
  tiered_test::TempDir const dir;
  std::string const path = dir / "picture.bmp";
  std::string const file = case_named("rgb.bmp").file;
  std::ofstream(path, std::ios::binary) << file;
  CHECK(tiered::load_image(path).width() == 23);
  auto const large = error_of([&] { tiered::load_image(path, {.max_file_bytes = 100}); });
  CHECK(large.code == Errc::over_budget);
  CHECK(large.message.starts_with(path));
  CHECK(error_of([&] { tiered::load_image(path, {.max_file_bytes = -1}); }).code == Errc::over_budget);
  std::ofstream(path, std::ios::binary) << file.substr(0, 60);
  auto const cut = error_of([&] { tiered::load_image(path); });
  CHECK(cut.code == Errc::bad_file);
  CHECK(cut.message.starts_with(path));
  CHECK(error_of([&] { tiered::load_image(dir / "none.png"); }).code == Errc::not_found);
  CHECK(error_of([&] { tiered::load_image(dir / ""); }).code == Errc::io);
}

TEST_CASE("images copy deeply, move, and have sizes", "[vision][image]") {
  Image a(ImageSize{2, 1});
  std::fill(a.rgb().begin(), a.rgb().end(), std::uint8_t{7});
  Image b = a;
  b.row(0)[5] = 9;
  CHECK(a.row(0)[5] == 7);
  Image const c = std::move(b);
  CHECK(b.empty());
  CHECK(b.rgb().empty());
  CHECK(c.rgb()[5] == 9);
  Image d = b;
  CHECK(d.empty());
  d = c;
  CHECK(d.rgb()[5] == 9);
  CHECK(error_of([] { Image(ImageSize{0, 5}); }).code == Errc::precondition);
  CHECK(error_of([] { Image(ImageSize{0x7fffffff, 0x7fffffff}); }).code == Errc::precondition);
}
