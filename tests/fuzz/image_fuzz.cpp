// Any bytes are an image or a typed error, within the limits; what decodes gives patches.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/vision/image_file.hpp"
#include "tiered/vision/preprocess.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_patches(tiered::Image image) {
  tiered::PatchConfig const config{.patch_size = 4, .min_pixels = 64, .max_pixels = 4096};
  tiered::ImageSize const size = tiered::smart_resize(image.size(), config);
  require(size.width % config.factor() == 0 && size.height % config.factor() == 0 && size.width > 0 && size.height > 0);
  tiered::Patches const patches(std::move(image), config);
  std::int64_t const n = patches.grid().n_patches();
  require(patches.size() == size && n * 16 == size.n_pixels());
  std::vector<float> last(std::size_t(patches.patch_elems()));
  patches.write(n - 1, 1, last);
  require(std::all_of(last.begin(), last.end(), [](float v) { return v > -3 && v < 3; }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    tiered::ImageLimits const limits{.max_pixels = 1 << 18};
    tiered::Image image = tiered::decode_image(bytes, limits);
    require(image.size().n_pixels() > 0 && image.size().n_pixels() <= limits.max_pixels);
    volatile unsigned sum = 0;  // every pixel was written: for valgrind and the memory sanitizer
    for (std::uint8_t const value : image.rgb()) sum = sum + value;
    check_patches(std::move(image));
  } catch (tiered::Error const& error) {
    require(error.code() == tiered::Errc::bad_file || error.code() == tiered::Errc::unsupported ||
            error.code() == tiered::Errc::over_budget);
    std::string_view const message = error.what();
    require(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
  }
  return 0;
}
