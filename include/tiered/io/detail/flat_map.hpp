/// A map from 64-bit keys to 64-bit values in one array: the tokenisers' inner loops look up millions of pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tiered::detail {

/// Open addressing, at most three quarters full. The key ~0 is reserved.
class FlatMap {
 public:
  /// Room for `n` keys without growing.
  void reserve(std::size_t n) {
    std::size_t size = 16;
    while (size - size / 4 < n) size *= 2;
    if (size > slots_.size()) rehash(size);
  }
  /// False, and nothing changed, where the key is there already.
  bool insert(std::uint64_t key, std::uint64_t value) {
    reserve(n_ + 1);
    Slot& slot = slots_[index_of(key)];
    if (slot.key == key) return false;
    slot = {key, value};
    ++n_;
    return true;
  }
  void set(std::uint64_t key, std::uint64_t value) {
    reserve(n_ + 1);
    Slot& slot = slots_[index_of(key)];
    if (slot.key != key) ++n_;
    slot = {key, value};
  }
  /// Null where the key is not there; valid until the next insert or set.
  std::uint64_t const* find(std::uint64_t key) const {
    if (slots_.empty()) return nullptr;
    Slot const& slot = slots_[index_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }
  std::size_t size() const { return n_; }

 private:
  static constexpr std::uint64_t no_key = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = no_key, value = 0;
  };
  std::size_t index_of(std::uint64_t key) const {
    std::uint64_t h = key * 0x9e3779b97f4a7c15u;  // odd, so that no key is lost; the high half mixes best
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    std::size_t i = std::size_t(h >> 32) & (slots_.size() - 1);
    while (slots_[i].key != key && slots_[i].key != no_key) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  void rehash(std::size_t size) {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(size));
    for (Slot const& slot : old)
      if (slot.key != no_key) slots_[index_of(slot.key)] = slot;
  }

  std::vector<Slot> slots_;
  std::size_t n_ = 0;
};

}  // namespace tiered::detail
