/// Models in several files: how parts are named, and whether they belong together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/gguf_parse.hpp"

namespace tiered::detail {

/// The place of a part among all parts, from 0.
struct SplitPlace {
  std::uint64_t number = 0, count = 1;
  bool operator==(SplitPlace const&) const = default;
};
struct SplitName {
  std::string prefix;
  SplitPlace place;
};

/// "dir/model-00002-of-00005.gguf": number 1 of 5. Five digits each.
inline std::string split_path(std::string_view prefix, SplitPlace place) {
  auto const digits = [](std::uint64_t value) {
    std::string text = concat(value);
    return text.insert(0, text.size() < 5 ? 5 - text.size() : 0, '0');
  };
  return concat(prefix, '-', digits(place.number + 1), "-of-", digits(place.count), ".gguf");
}
inline std::optional<SplitName> parse_split_path(std::string_view path) {
  constexpr std::size_t tail = std::string_view("-00001-of-00005.gguf").size();
  if (path.size() < tail) return std::nullopt;
  std::string_view const prefix = path.substr(0, path.size() - tail), suffix = path.substr(path.size() - tail);
  SplitPlace place{0, 0};
  for (std::size_t i = 1; i <= 5; ++i) {
    char const number = suffix[i], count = suffix[i + 9];
    if (number < '0' || number > '9' || count < '0' || count > '9') return std::nullopt;
    place.number = place.number * 10 + std::uint64_t(number - '0');
    place.count = place.count * 10 + std::uint64_t(count - '0');
  }
  if (place.number == 0 || place.number > place.count) return std::nullopt;
  --place.number;
  if (split_path("", place) != suffix) return std::nullopt;
  return SplitName{std::string(prefix), place};
}

template <class T>
std::optional<T> find_value(GgufPart const& part, std::string_view key) {
  auto const index = part.keys.find(key);
  return index ? std::optional<T>(convert<T>(part.metadata[*index], part.name)) : std::nullopt;
}

/// Where the part belongs; nullopt for a whole file.  Errors  bad_file where name and metadata contradict each other.
inline std::optional<SplitPlace> find_split(GgufPart const& part) {
  auto const named = parse_split_path(part.name);
  SplitPlace place;
  place.count = find_value<std::uint64_t>(part, "split.count").value_or(1);
  if (place.count <= 1) {
    if (!named || named->place.count == 1) return std::nullopt;
    throw Error(Errc::bad_file,
                concat(part.name, ": is named as one of ", named->place.count, " parts, but its metadata has no split.count"));
  }
  auto const number = find_value<std::uint64_t>(part, "split.no");
  if (!number || *number >= place.count) {
    throw Error(Errc::bad_file, concat(part.name, ": has split.count ", place.count, ", but ",
                                       number ? concat("split.no ", *number) : std::string("no split.no")));
  }
  place.number = *number;
  return place;
}

/// Paths of all parts, beside the one given.  Errors  bad_file where the part's name does not fit its metadata.
inline std::vector<std::string> split_paths(GgufPart const& part, SplitPlace place) {
  auto const named = parse_split_path(part.name);
  if (!named || named->place != place) {
    throw Error(Errc::bad_file, concat(part.name, ": is part ", place.number + 1, " of ", place.count,
                                       " of a split file, so it must be named ", split_path("NAME", place), " for the others to be found"));
  }
  std::vector<std::string> paths;
  for (std::uint64_t i = 0; i < place.count; ++i) paths.push_back(split_path(named->prefix, {i, place.count}));
  return paths;
}

/// Errors  bad_file where the parts, in order, are not one model: number, count, tensors in all.
inline void check_split(std::vector<GgufPart> const& parts) {
  std::uint64_t n_tensors = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    GgufPart const& part = parts[i];
    auto const number = find_value<std::uint64_t>(part, "split.no"), count = find_value<std::uint64_t>(part, "split.count");
    if (number != i || count != parts.size()) {
      auto const shown = [](std::optional<std::uint64_t> value) { return value ? concat(*value) : std::string("none"); };
      throw Error(Errc::bad_file, concat(part.name, ": its name says part ", i + 1, " of ", parts.size(), ", its metadata split.no ",
                                         shown(number), " (from 0) and split.count ", shown(count)));
    }
    n_tensors += part.tensors.size();
  }
  for (GgufPart const& part : parts) {
    auto const expected = find_value<std::uint64_t>(part, "split.tensors.count");
    if (expected && *expected != n_tensors) {
      throw Error(Errc::bad_file, concat(part.name, ": split.tensors.count is ", *expected, ", but the ", parts.size(), " parts hold ",
                                         n_tensors, " tensors"));
    }
  }
}

}  // namespace tiered::detail
