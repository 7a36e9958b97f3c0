/// Byte units, and bytes as people read and write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tiered/core/text.hpp"

namespace tiered {

inline constexpr std::size_t KiB = std::size_t{1} << 10, MiB = std::size_t{1} << 20, GiB = std::size_t{1} << 30;

/// "0 B", "1.5 KiB", "151 MiB", "3.20 GiB": three significant digits.
inline std::string format_bytes(std::uint64_t bytes) {
  static constexpr char const* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1000 && unit < 6; ++unit) value /= 1024;
  if (unit == 0) return concat(bytes, " B");
  std::uint64_t const scale = value < 9.995 ? 100 : value < 99.95 ? 10 : 1;
  auto const scaled = std::uint64_t(value * double(scale) + 0.5);
  std::string text = concat(scaled / scale);
  if (scale > 1) {
    std::string const fraction = concat(scaled % scale);
    text += concat('.', std::string(scale == 100 && fraction.size() < 2 ? 1 : 0, '0'), fraction);
  }
  return concat(text, ' ', units[unit]);
}

/// "512M", "2G", "1.5GiB", "1000000": binary multiples, as users of such tools write them; nullopt for anything else.
inline std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double value = 0;
  char const* const end = text.data() + text.size();
  auto const [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !(value >= 0)) return std::nullopt;
  std::string_view suffix(rest, std::size_t(end - rest));
  if (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  double factor = 1;
  if (!suffix.empty() && suffix != "B" && suffix != "b") {
    switch (suffix.front()) {
      case 'k':
      case 'K': factor = double(KiB); break;
      case 'm':
      case 'M': factor = double(MiB); break;
      case 'g':
      case 'G': factor = double(GiB); break;
      case 't':
      case 'T': factor = double(GiB) * 1024; break;
      default: return std::nullopt;
    }
    suffix.remove_prefix(1);
    if (!(suffix.empty() || suffix == "B" || suffix == "b" || suffix == "iB" || suffix == "ib")) return std::nullopt;
  }
  value *= factor;
  if (value >= 9.2e18) return std::nullopt;
  return std::uint64_t(value + 0.5);
}

/// Bytes per second: "12G", "25GB/s", "500M", "1.2e10": decimal multiples, as links are sold; nullopt for anything else, and for nothing.
inline std::optional<double> parse_rate(std::string_view text) {
  double value = 0;
  char const* const end = text.data() + text.size();
  auto const [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !(value > 0) || !(value < 1e15)) return std::nullopt;
  std::string_view suffix(rest, std::size_t(end - rest));
  for (std::string_view const unit : {"B/s", "b/s"}) {
    if (suffix.ends_with(unit)) suffix.remove_suffix(unit.size());
  }
  if (suffix.empty()) return value;
  if (suffix == "K" || suffix == "k") return value * 1e3;
  if (suffix == "M" || suffix == "m") return value * 1e6;
  if (suffix == "G" || suffix == "g") return value * 1e9;
  return std::nullopt;
}

}  // namespace tiered
