// Pictures of a bench of images: named sizes, the same bytes for a seed, files that decode to what was drawn.
#include <cmath>
#include <filesystem>
#include <string>

#include "../bench/model/picture.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/vision/image_file.hpp"

using bench::picture_size;
using tiered::Errc;
using tiered::Image;
using tiered_test::error_of;

namespace {

bool same(Image const& a, Image const& b) { return a.size() == b.size() && std::ranges::equal(a.rgb(), b.rgb()); }

/// Root of the mean square of what two images differ by.
double difference(Image const& a, Image const& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.n_bytes(); ++i) {
    double const d = double(a.rgb()[i]) - double(b.rgb()[i]);
    squares += d * d;
  }
  return std::sqrt(squares / double(a.n_bytes()));
}
double deviation(Image const& a) {
  double sum = 0, squares = 0;
  for (std::uint8_t const v : a.rgb()) sum += v, squares += double(v) * v;
  double const n = double(a.n_bytes());
  return std::sqrt(squares / n - sum / n * sum / n);
}

}  // namespace

TEST_CASE("sizes by name and in pixels; others are refused, with what there is") {
  CHECK(picture_size("480p").size == tiered::ImageSize{854, 480});
  CHECK(picture_size("1080p").size == tiered::ImageSize{1920, 1080});
  CHECK(picture_size("4K").size == tiered::ImageSize{3840, 2160});
  CHECK(picture_size("640x40").size == tiered::ImageSize{640, 40});
  CHECK(picture_size("640x40").name == "640x40");
  for (char const* const wrong :
       {"", "1080", "4k", "640x", "x480", "640x480x3", "640 x 480", "27x480", "640x-480", "640x16385", "1e3x1e3"}) {
    INFO(wrong);
    auto const refused = error_of([&] { picture_size(wrong); });
    CHECK(refused.code == Errc::precondition);
    CHECK(refused.says("1080p", "WIDTHxHEIGHT"));
  }
}

TEST_CASE("a picture is the same for a seed, another for another, and no plain one") {
  tiered::ImageSize const size{301, 77};
  Image const picture = bench::make_picture(size, 5);
  CHECK(picture.size() == size);
  CHECK(same(picture, bench::make_picture(size, 5)));
  CHECK(difference(picture, bench::make_picture(size, 6)) > 10);
  CHECK(deviation(picture) > 10);
}

TEST_CASE("BMP files decode to the picture; JPEG files nearly so, in a fraction of the bytes") {
  for (tiered::ImageSize const size : {tiered::ImageSize{301, 77}, tiered::ImageSize{28, 28}, tiered::ImageSize{640, 480}}) {
    Image const picture = bench::make_picture(size, 5);
    CHECK(same(tiered::decode_image(bench::to_bmp(picture)), picture));
    if constexpr (bench::has_jpeg_writer) {
      std::vector<std::byte> const file = bench::to_jpeg(picture);
      Image const decoded = tiered::decode_image(file);
      REQUIRE(decoded.size() == size);
      INFO(size.width << " x " << size.height << ": off by " << difference(decoded, picture) << ", " << file.size() << " bytes");
      CHECK(difference(decoded, picture) < 6);  // the noise alone deviates by 4.6
      constexpr std::size_t most_tables = 1000;
      CHECK(file.size() < most_tables + picture.n_bytes() / 8);
      CHECK(file.size() > picture.n_bytes() / 25);
      CHECK(bench::to_jpeg(picture, 30).size() < file.size());
    } else {
      CHECK(error_of([&] { bench::to_jpeg(picture); }).code == Errc::unsupported);
    }
  }
}

TEST_CASE("a folder of pictures writes each once, and goes with them") {
  std::string path;
  {
    bench::PictureFolder folder;
    bench::Picture const first = folder.picture(picture_size("64x48"));
    path = first.path;
    CHECK(tiered::load_image(path).size() == first.is.size);
    CHECK(std::filesystem::file_size(path) == first.file_bytes);
    CHECK(folder.picture(picture_size("48x64")).path != path);
    CHECK(folder.picture(picture_size("64x48")).path == path);
  }
  CHECK_FALSE(std::filesystem::exists(std::filesystem::path(path).parent_path()));
}
