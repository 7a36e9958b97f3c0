/// Evicts the expert that was used longest ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tiered/plan/eviction.hpp"

namespace tiered {

/// A list through an array by shard: every call takes constant time.
class Lru {
 public:
  void touch(ShardId s, std::uint64_t) {
    if (contains(s)) move_to_front(index(s));
  }
  bool admit(ShardId) { return true; }
  void insert(ShardId s) {
    if (index(s) >= nodes_.size()) nodes_.resize(index(s) + 1);
    if (contains(s)) return move_to_front(index(s));
    nodes_[index(s)].inserted = true;
    link(index(s));
  }
  void erase(ShardId s) {
    if (!contains(s)) return;
    unlink(index(s));
    nodes_[index(s)].inserted = false;
  }
  std::optional<ShardId> victim() {
    std::uint32_t const oldest = nodes_[0].previous;
    if (oldest == 0) return std::nullopt;
    return ShardId{oldest - 1};
  }

 private:
  struct Node {
    std::uint32_t next = 0, previous = 0;  ///< node 0 is the list's head: next is the youngest, previous the oldest
    bool inserted = false;
  };
  static std::uint32_t index(ShardId s) { return std::uint32_t(s) + 1; }
  bool contains(ShardId s) const { return index(s) < nodes_.size() && nodes_[index(s)].inserted; }
  void link(std::uint32_t at) {
    std::uint32_t const first = nodes_[0].next;
    nodes_[at].next = first;
    nodes_[at].previous = 0;
    nodes_[first].previous = at;
    nodes_[0].next = at;
  }
  void unlink(std::uint32_t at) {
    nodes_[nodes_[at].next].previous = nodes_[at].previous;
    nodes_[nodes_[at].previous].next = nodes_[at].next;
  }
  void move_to_front(std::uint32_t at) {
    unlink(at);
    link(at);
  }

  std::vector<Node> nodes_{1};
};
static_assert(EvictionPolicy<Lru>);

}  // namespace tiered
