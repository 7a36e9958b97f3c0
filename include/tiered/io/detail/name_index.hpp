/// Finds things by name: a sorted table, so that hostile names cannot make it slow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tiered::detail {

class NameIndex {
 public:
  NameIndex() = default;
  /// `name_of(item)` must stay valid as long as the index.
  template <class Items, class NameOf>
  NameIndex(Items const& items, NameOf name_of) {
    entries_.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) entries_.emplace_back(name_of(items[i]), i);
    std::sort(entries_.begin(), entries_.end());
  }
  std::optional<std::size_t> find(std::string_view name) const {
    auto const at = std::lower_bound(entries_.begin(), entries_.end(), Entry{name, 0});
    return at == entries_.end() || at->first != name ? std::nullopt : std::optional(at->second);
  }
  /// A name that is there more than once.
  std::optional<std::string_view> duplicate() const {
    auto const at = std::adjacent_find(entries_.begin(), entries_.end(), [](Entry const& a, Entry const& b) { return a.first == b.first; });
    return at == entries_.end() ? std::nullopt : std::optional(at->first);
  }

 private:
  using Entry = std::pair<std::string_view, std::size_t>;
  std::vector<Entry> entries_;
};

}  // namespace tiered::detail
