/// The ring of weights as a planner sees it: what crosses the link in one copy, and what is free.
#pragma once

#include <cstddef>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/plan/account.hpp"

namespace tiered::detail {

/// What crosses the link in one copy: a whole shard (rows {0, 0}) or a range of its rows.
struct RingPiece {
  ShardId shard{};
  Range rows;
  std::size_t bytes = 0, offset = 0;
};

/// Free and live bytes of the ring as a list of actions moves them. A piece never wraps: it skips the end of the ring.
class RingSpace {
 public:
  explicit RingSpace(std::size_t bytes) : bytes_(bytes) {}
  bool try_acquire(RingPiece& piece) {
    std::size_t const size = VramAccount::round_up(piece.bytes);
    std::size_t const begin = n_live() == 0 ? bytes_ + 1 : oldest().offset;
    if (n_live() == 0 || head_ > begin) {  // free: from the head to the end, and from 0 to the oldest
      std::size_t const front_room = n_live() == 0 ? bytes_ : begin;
      if (size <= bytes_ - head_) {
        piece.offset = head_;
      } else if (size <= front_room) {
        piece.offset = 0;
      } else {
        return false;
      }
    } else if (size <= begin - head_) {
      piece.offset = head_;
    } else {
      return false;
    }
    head_ = piece.offset + size;
    pieces_.push_back(piece);
    return true;
  }
  /// The oldest piece; it stays live until release_oldest().
  RingPiece const& oldest() const { return pieces_[first_live_]; }
  std::size_t n_live() const { return pieces_.size() - first_live_; }
  void release_oldest() { ++first_live_; }

 private:
  std::size_t bytes_, head_ = 0;
  std::vector<RingPiece> pieces_;  ///< all that ever were in it; live from first_live_ on
  std::size_t first_live_ = 0;
};

}  // namespace tiered::detail
