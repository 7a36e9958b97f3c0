/// Defines what media_hash.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tiered/vision/media_hash.hpp"

namespace tiered {

namespace detail {

/// Fractions of the square roots of the first eight primes: RFC 7693, 2.6.
inline constexpr std::array<std::uint64_t, 8> blake_begin = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu,
                                                             0xa54ff53a5f1d36f1u, 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu,
                                                             0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};

/// Which words of a block each round mixes; rounds 10 and 11 begin anew: RFC 7693, 2.7.
inline constexpr std::uint8_t blake_order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

/// Two words side by side: scalar code has more of them than registers, and takes twice as long.
using TwoWords = std::uint64_t __attribute__((vector_size(16)));
template <int n>
[[gnu::always_inline]] inline TwoWords rotated(TwoWords x) {
  return x >> n | x << (64 - n);
}

/// The state as four rows of four words.
struct BlakeRows {
  TwoWords a0, a1, b0, b1, c0, c1, d0, d1;
};

/// All four columns, with words x and y for each.
[[gnu::always_inline]] inline void blake_mix(BlakeRows& v, TwoWords x0, TwoWords x1, TwoWords y0, TwoWords y1) {
  v.a0 += v.b0 + x0, v.a1 += v.b1 + x1;
  v.d0 = rotated<32>(v.d0 ^ v.a0), v.d1 = rotated<32>(v.d1 ^ v.a1);
  v.c0 += v.d0, v.c1 += v.d1;
  v.b0 = rotated<24>(v.b0 ^ v.c0), v.b1 = rotated<24>(v.b1 ^ v.c1);
  v.a0 += v.b0 + y0, v.a1 += v.b1 + y1;
  v.d0 = rotated<16>(v.d0 ^ v.a0), v.d1 = rotated<16>(v.d1 ^ v.a1);
  v.c0 += v.d0, v.c1 += v.d1;
  v.b0 = rotated<63>(v.b0 ^ v.c0), v.b1 = rotated<63>(v.b1 ^ v.c1);
}

/// A row turned by one word to the left, by which diagonals become columns.
[[gnu::always_inline]] inline void turn(TwoWords& low, TwoWords& high) {
  TwoWords const first{low[1], high[0]}, second{high[1], low[0]};
  low = first, high = second;
}

template <int round>
[[gnu::always_inline]] inline void blake_round(BlakeRows& v, std::uint64_t const* words) {
  constexpr std::uint8_t const(&at)[16] = blake_order[round % 10];
  auto const two = [&](int i, int j) { return TwoWords{words[at[i]], words[at[j]]}; };
  blake_mix(v, two(0, 2), two(4, 6), two(1, 3), two(5, 7));
  turn(v.b0, v.b1);
  std::swap(v.c0, v.c1);  // by two
  turn(v.d1, v.d0);       // by three
  std::swap(v.d0, v.d1);
  blake_mix(v, two(8, 10), two(12, 14), two(9, 11), two(13, 15));
  turn(v.b1, v.b0);
  std::swap(v.b0, v.b1);
  std::swap(v.c0, v.c1);
  turn(v.d0, v.d1);
}
template <int... rounds>
inline void blake_rounds(std::uint64_t* v, std::uint64_t const* words, std::integer_sequence<int, rounds...>) {
  BlakeRows rows;
  std::memcpy(&rows, v, sizeof rows);
  (blake_round<rounds>(rows, words), ...);
  std::memcpy(v, &rows, sizeof rows);
}

inline std::uint64_t little_endian_word(std::byte const* bytes) {
  std::uint64_t word = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&word, bytes, sizeof word);
  } else {
    for (std::size_t i = sizeof word; i-- > 0;) word = word << 8 | std::uint64_t(bytes[i]);
  }
  return word;
}

}  // namespace detail

MediaHasher::MediaHasher() : state_(detail::blake_begin) {
  state_[0] ^= 0x01010000u ^ sizeof(MediaHash);  // no key
}

void MediaHasher::add(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    if (n_in_block_ == block_.size()) compress(block_.data(), false);  // the last block is kept for the end
    if (n_in_block_ == 0) {
      for (; bytes.size() > block_.size(); bytes = bytes.subspan(block_.size())) {
        n_in_block_ = block_.size();
        compress(bytes.data(), false);
      }
    }
    std::size_t const n = std::min(bytes.size(), block_.size() - n_in_block_);
    std::memcpy(block_.data() + n_in_block_, bytes.data(), n);
    n_in_block_ += n;
    bytes = bytes.subspan(n);
  }
}

void MediaHasher::add(std::string_view text) { add(std::as_bytes(std::span(text))); }

void MediaHasher::add(std::int64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(std::uint64_t(number) >> 8 * i & 255);
  add(bytes);
}

/// Of n_in_block_ bytes, and zeros behind them.
void MediaHasher::compress(std::byte const* block, bool is_last) {
  n_bytes_ += n_in_block_;
  std::uint64_t words[16], v[16];
  for (std::size_t i = 0; i < 16; ++i) {
    words[i] = detail::little_endian_word(block + 8 * i);
    v[i] = i < 8 ? state_[i] : detail::blake_begin[i - 8];
  }
  v[12] ^= n_bytes_;
  if (is_last) v[14] = ~v[14];
  detail::blake_rounds(v, words, std::make_integer_sequence<int, 12>());
  for (std::size_t i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
  n_in_block_ = 0;
}

MediaHash MediaHasher::value() const {
  MediaHasher end = *this;
  std::fill(end.block_.begin() + std::ptrdiff_t(n_in_block_), end.block_.end(), std::byte{});
  end.compress(end.block_.data(), true);
  MediaHash hash;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) hash.bytes[i] = std::uint8_t(end.state_[i / 8] >> 8 * (i % 8));
  return hash;
}

std::string to_text(MediaHash const& hash) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (std::uint8_t const byte : hash.bytes) text += {digits[byte >> 4], digits[byte & 15]};
  return text;
}

std::optional<MediaHash> parse_media_hash(std::string_view text) {
  MediaHash hash;
  if (text.size() != 2 * hash.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t const digit = std::string_view("0123456789abcdef").find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    hash.bytes[i / 2] = std::uint8_t(hash.bytes[i / 2] << 4 | digit);
  }
  return hash;
}

}  // namespace tiered
