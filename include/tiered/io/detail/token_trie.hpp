/// Finds the special tokens that stand literally in a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tiered/io/detail/flat_map.hpp"

namespace tiered::detail {

/// A byte trie. Each text has an id, and is wanted always or only on request.
class TokenTrie {
 public:
  struct Match {
    std::size_t bytes = 0;  // 0: none
    std::int32_t id = -1;
  };

  /// `text` is not empty; of equal texts the first counts.
  void insert(std::string_view text, std::int32_t id, bool on_request) {
    starts_[static_cast<unsigned char>(text[0])] = true;
    std::uint64_t node = 0;
    for (char const c : text) {
      std::uint64_t const key = node << 8 | static_cast<unsigned char>(c);
      if (edges_.insert(key, ends_.size())) ends_.push_back({});
      node = *edges_.find(key);
    }
    if (ends_[std::size_t(node)].id < 0) ends_[std::size_t(node)] = {id, on_request};
  }

  /// The longest text that stands at `at`; those on request only if `requested`.
  Match longest(std::string_view text, std::size_t at, bool requested) const {
    Match best;
    if (!starts_[static_cast<unsigned char>(text[at])]) return best;
    std::uint64_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      std::uint64_t const* const next = edges_.find(node << 8 | static_cast<unsigned char>(text[i]));
      if (next == nullptr) break;
      node = *next;
      End const& end = ends_[std::size_t(node)];
      if (end.id >= 0 && (requested || !end.on_request)) best = {i + 1 - at, end.id};
    }
    return best;
  }

 private:
  struct End {
    std::int32_t id = -1;
    bool on_request = false;
  };
  FlatMap edges_;             // (node, byte) -> node
  std::vector<End> ends_{1};  // by node; 0 is the root
  std::array<bool, 256> starts_{};
};

}  // namespace tiered::detail
