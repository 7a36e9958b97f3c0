/// A number that tells pictures apart: BLAKE2b of RFC 7693, so that nobody can make two of one number. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tiered {

struct MediaHash {
  std::array<std::uint8_t, 32> bytes{};
  friend bool operator==(MediaHash const&, MediaHash const&) = default;
};

/// 64 digits.
std::string to_text(MediaHash const& hash);
/// The reverse; nothing for another text.
std::optional<MediaHash> parse_media_hash(std::string_view text);

/// BLAKE2b-256 of bytes that come piece by piece.
class MediaHasher {
 public:
  MediaHasher();
  void add(std::span<std::byte const> bytes);
  void add(std::string_view text);
  /// As 8 bytes, little-endian.
  void add(std::int64_t number);
  /// Of all that was added; more may follow.
  MediaHash value() const;

 private:
  void compress(std::byte const* block, bool is_last);

  std::array<std::uint64_t, 8> state_;
  std::array<std::byte, 128> block_{};
  std::size_t n_in_block_ = 0;
  std::uint64_t n_bytes_ = 0;
};

}  // namespace tiered
