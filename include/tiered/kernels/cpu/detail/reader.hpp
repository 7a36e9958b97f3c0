/// What a team does while its caller is elsewhere: memory into caches, a page at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tiered::detail {

/// The body of a loop over pages. Each worker's neighbouring pages are its share of every part, in the order of the parts: as a product
/// hands out rows, so that they come into the caches of who computes with them.
class Reader {
 public:
  static constexpr std::size_t most_parts = 24;

  /// How many pages there are for so many workers. The parts are copied.
  std::int64_t take(std::span<std::span<std::byte const> const> parts, std::size_t n_workers) {
    n_parts_ = std::min(parts.size(), parts_.size());
    pages_of_worker_ = 0;
    for (std::size_t i = 0; i < n_parts_; ++i) {
      std::size_t const each = (parts[i].size() + n_workers - 1) / n_workers;
      parts_[i] = {parts[i], (each + line_bytes - 1) / line_bytes * line_bytes, (each + page_bytes - 1) / page_bytes};
      pages_of_worker_ += parts_[i].pages_each;
    }
    return std::int64_t(pages_of_worker_ * n_workers);
  }
  /// Pages [begin, end). Loads, not prefetch instructions: of 256 KiB that prefetches into the second level had passed, a Zen 4 read no
  /// byte sooner.
  void operator()(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) touch(page(i));
  }
  static void touch(std::span<std::byte const> memory) {
    for (std::size_t at = 0; at < memory.size(); at += line_bytes)
      static_cast<void>(*static_cast<std::byte const volatile*>(memory.data() + at));
  }
  /// Page i: of worker i / (pages / n_workers). May be empty, at the ends of parts.
  std::span<std::byte const> page(std::int64_t i) const {
    std::size_t const worker = std::size_t(i) / pages_of_worker_;
    std::size_t left = std::size_t(i) % pages_of_worker_;
    Part const* part = parts_.data();
    for (; left >= part->pages_each; ++part) left -= part->pages_each;
    std::size_t const first = std::min(worker * part->bytes_each + left * page_bytes, part->memory.size());
    std::size_t const last = std::min({(worker + 1) * part->bytes_each, first + page_bytes, part->memory.size()});
    return part->memory.subspan(first, last > first ? last - first : 0);
  }

 private:
  static constexpr std::size_t page_bytes = 4096, line_bytes = 64;
  struct Part {
    std::span<std::byte const> memory;
    std::size_t bytes_each = 0, pages_each = 0;
  };

  std::array<Part, most_parts> parts_;
  std::size_t n_parts_ = 0, pages_of_worker_ = 0;
};

}  // namespace tiered::detail
