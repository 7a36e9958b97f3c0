/// Random weights in the formats of files: mean 0, a given standard deviation, the same for a seed with any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

#include "ids.hpp"
#include "tiered/kernels/format/dispatch.hpp"
#include "tiered/kernels/format/encode.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/sim/split_mix.hpp"

namespace bench {

/// work(0), ..., work(n - 1) on so many threads; throws what one of them threw.
template <class Work>
void in_parallel(int n_threads, std::size_t n, Work const& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  auto const run = [&] {
    for (std::size_t i = 0; (i = next.fetch_add(1)) < n;) {
      try {
        work(i);
      } catch (...) {
        std::lock_guard const lock(mutex);
        error = std::current_exception();
        next = n;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < n_threads; ++i) threads.emplace_back(run);
  run();
  for (std::thread& t : threads) t.join();
  if (error) std::rethrow_exception(error);
}

/// Of mean 0 and variance 1, by Box and Muller's method.
class Normals {
 public:
  explicit Normals(std::uint64_t seed) : random_(seed) {}
  float next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    float const radius = std::sqrt(-2 * std::log(1 - float(random_.unit()) * 0.99999994f)), angle = 6.2831853f * float(random_.unit());
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  tiered::SplitMix64 random_;
  float spare_ = 0;
  bool has_spare_ = false;
};

namespace detail {

/// Seeds of parts must not be neighbours in one another's sequence.
inline std::uint64_t part_seed(std::uint64_t seed, std::uint64_t part) {
  return tiered::SplitMix64(seed ^ (part * 0xd1342543de82ef95u)).next();
}

/// Scales that differ from group to group, of sensible size; minima equal to them, so that the mean of a group is 0.
template <class Format>
void tame_scales(typename Format::Block& b) {
  using namespace tiered;
  if constexpr (std::is_same_v<Format, Q2_K>) {
    for (std::uint8_t& s : b.scales) s = std::uint8_t((4 + s % 8) * 0x11);
  } else if constexpr (std::is_same_v<Format, Q4_K> || std::is_same_v<Format, Q5_K>) {
    for (int i = 0; i < 4; ++i) {
      b.scales[4 + i] = b.scales[i];
      b.scales[8 + i] = std::uint8_t((b.scales[8 + i] & 15) * 0x11);
    }
  } else if constexpr (std::is_same_v<Format, Q6_K>) {
    for (std::int8_t& s : b.scales) s = std::int8_t(20 + std::uint8_t(s) % 40);
  }
}

/// The largest code of formats with a minimum; it is chosen so that codes have mean 0.
template <class Format>
constexpr float largest_code() {
  using namespace tiered;
  return std::is_same_v<Format, Q2_K> ? 3.0f : std::is_same_v<Format, Q5_K> ? 31.0f : 15.0f;
}

template <class Format>
void set_factor(typename Format::Block& b, float d) {
  b.d = tiered::float_to_half(d);
  if constexpr (requires { b.dmin; }) b.dmin = tiered::float_to_half(d * largest_code<Format>() / 2);
  if constexpr (requires { b.m; }) b.m = tiered::float_to_half(-d * largest_code<Format>() / 2);
}

template <class Format>
void random_bits(typename Format::Block& b, tiered::SplitMix64& random) {
  auto* const bytes = reinterpret_cast<unsigned char*>(&b);
  for (std::size_t at = 0; at < sizeof b; at += 8) {
    std::uint64_t const bits = random.next();
    std::memcpy(bytes + at, &bits, std::min<std::size_t>(8, sizeof b - at));
  }
  tame_scales<Format>(b);
}

/// Of weights with factor 1, measured.
template <class Format>
float unit_deviation() {
  tiered::SplitMix64 random(11);
  double squares = 0;
  constexpr int n = 2048;
  for (int i = 0; i < n; ++i) {
    typename Format::Block b;
    float values[Format::block_elems];
    random_bits<Format>(b, random);
    set_factor<Format>(b, 1);
    Format::decode_block(b, values);
    for (float v : values) squares += double(v) * v;
  }
  return float(std::sqrt(squares / (double(n) * Format::block_elems)));
}

template <class Format>
constexpr bool is_plain =
    std::is_same_v<Format, tiered::F32> || std::is_same_v<Format, tiered::F16> || std::is_same_v<Format, tiered::BF16>;

/// Codes are lopsided (-8 to 7), so half of all blocks have the other sign.
template <class Format>
void fill_blocks(std::span<typename Format::Block> blocks, float deviation, std::uint64_t seed) {
  if constexpr (is_plain<Format>) {
    Normals normals(seed);
    for (auto& b : blocks) {
      float const value = normals.next() * deviation;
      tiered::encode_row(Format::dtype, &value, 1, &b);
    }
  } else if constexpr (requires(typename Format::Block b) { b.d; }) {
    static float const unit = unit_deviation<Format>();
    tiered::SplitMix64 random(seed);
    for (auto& b : blocks) {
      random_bits<Format>(b, random);
      set_factor<Format>(b, (random.next() & 1 ? 1 : -1) * deviation / unit);
    }
  } else {
    throw tiered::Error(tiered::Errc::unsupported, tiered::concat("random weights of type ", tiered::name(Format::dtype)));
  }
}

}  // namespace detail

/// n_blocks blocks of the type.
inline std::vector<std::byte> random_weights(tiered::DType type, float deviation, std::size_t n_blocks, std::uint64_t seed, int n_threads) {
  constexpr std::size_t part = 4096;
  std::vector<std::byte> out(n_blocks * tiered::block_bytes(type));
  tiered::dispatch_format(type, [&](auto format) {
    using Format = decltype(format);
    std::span<typename Format::Block> const blocks(reinterpret_cast<typename Format::Block*>(out.data()), n_blocks);
    in_parallel(n_threads, (n_blocks + part - 1) / part, [&](std::size_t i) {
      detail::fill_blocks<Format>(blocks.subspan(i * part, std::min(part, n_blocks - i * part)), deviation, detail::part_seed(seed, i));
    });
  });
  return out;
}

/// Rows of unit variance for ids 0, 1, ...; with topics those that are not free have common + topic + own in the variances 0.45, 0.45, 0.1.
inline std::vector<std::byte> embedding_rows(tiered::DType type, std::int32_t dim, std::size_t n_rows, Routing routing, std::uint64_t seed,
                                             int n_threads) {
  std::size_t const bytes = tiered::row_bytes(type, std::uint64_t(dim)), width = std::size_t(dim);
  std::vector<float> shared(width * (n_topics + 1));  // of topics, then of all
  Normals normals(seed);
  for (float& v : shared) v = normals.next();
  std::vector<std::byte> out(n_rows * bytes);
  constexpr std::size_t part = 64;
  in_parallel(n_threads, (n_rows + part - 1) / part, [&](std::size_t p) {
    Normals own(detail::part_seed(seed, p + 1));
    std::vector<float> row(width);
    for (std::size_t id = p * part; id < std::min(n_rows, (p + 1) * part); ++id) {
      for (float& v : row) v = own.next();
      if (routing == Routing::topics && !is_free(std::int32_t(id))) {
        float const* const topic = &shared[width * std::size_t(topic_of(std::int32_t(id)))];
        float const* const common = &shared[width * n_topics];
        float const share = std::sqrt(0.45f), rest = std::sqrt(0.1f);
        for (std::size_t i = 0; i < width; ++i) row[i] = rest * row[i] + share * (common[i] + topic[i]);
      }
      tiered::encode_row(type, row.data(), dim, &out[id * bytes]);
    }
  });
  return out;
}

}  // namespace bench
