/// A handle on one sequence of an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// From place `from` on, the rotary position of a row (of an image's, the largest of the three) is its place plus `by`: an image of many
/// rows takes few rotary positions, and a long video may reach beyond the text that follows it.
struct RopeShift {
  std::int32_t from = 0, by = 0;
};

namespace detail {

/// Rotary positions that a batch brings are less: what follows the largest must have a number, too.
inline constexpr std::int32_t rope_position_end = 1 << 30;

/// The sequences of an engine: which slot of the KV cache each has, and how long it is.
struct SequenceTable {
  struct Slot {
    SequenceId id{};
    std::int32_t length = 0;
    bool used = false;
    bool shrunk = false;              ///< pages beyond its length can go back
    std::int32_t next_rope = 0;       ///< of text that follows: the largest of all rows' rotary positions and one
    std::vector<RopeShift> shifts{};  ///< ascending, each of a row that there is

    /// One row more.
    void advance(std::int32_t most_rope_position) {
      std::int32_t const by = most_rope_position - length;
      if (by != (shifts.empty() ? 0 : shifts.back().by)) shifts.push_back({length, by});
      ++length;
      if (most_rope_position >= next_rope) next_rope = most_rope_position + 1;
    }
    void truncate(std::int32_t n) {
      shrunk |= n < length;
      length = n;
      while (!shifts.empty() && shifts.back().from >= n) shifts.pop_back();
      find_next_rope();
    }
    /// Out of length and shifts.
    void find_next_rope() {
      next_rope = shifts.empty() ? length : shifts.front().from;
      for (std::size_t i = 0; i < shifts.size(); ++i) {  // the last row of each stretch has its largest
        std::int32_t const end = (i + 1 < shifts.size() ? shifts[i + 1].from : length) + shifts[i].by;
        if (end > next_rope) next_rope = end;
      }
    }
    /// Of a row that there is.
    std::int32_t rope_position(std::int32_t row) const {
      std::size_t begin = 0, end = shifts.size();  // the first shift behind the row lies in [begin, end]
      while (begin < end) {
        std::size_t const middle = (begin + end) / 2;
        if (shifts[middle].from > row)
          end = middle;
        else
          begin = middle + 1;
      }
      return row + (begin > 0 ? shifts[begin - 1].by : 0);
    }
  };
  std::vector<Slot> slots;
  std::uint32_t last_id = 0;

  std::int32_t find(SequenceId id) const {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].used && slots[i].id == id) return std::int32_t(i);
    }
    throw Error(Errc::precondition, concat("sequence ", std::uint32_t(id), " does not exist (any more)"));
  }
};

}  // namespace detail

/// Ends with its last owner: its positions are forgotten and its slot is free. May outlive the engine. Same thread as the engine.
class Sequence {
 public:
  Sequence(std::shared_ptr<detail::SequenceTable> table, SequenceId id) : table_(std::move(table)), id_(id) {}
  Sequence(Sequence&& other) noexcept : table_(std::move(other.table_)), id_(other.id_) {}
  Sequence& operator=(Sequence&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Sequence() {
    if (!table_) return;
    for (auto& slot : table_->slots) {
      if (slot.used && slot.id == id_) slot = {{}, 0, false, true, 0, {}};
    }
  }

  SequenceId id() const { return id_; }
  bool belongs_to(detail::SequenceTable const* table) const { return table_.get() == table; }
  std::int32_t length() const { return slot().length; }
  /// What rotary embeddings turn the next position by, if it is text: length(), unless Batch::rope_positions said otherwise of earlier
  /// ones; then the largest of those and one.
  std::int32_t rope_position() const { return slot().next_rope; }
  /// What the row at a place in [0, length()) was turned by; of a row of an image or a video, the largest of its three.
  std::int32_t rope_position(std::int32_t place) const {
    expects(place >= 0 && place < slot().length, "Sequence::rope_position: the place is in [0, length)");
    return slot().rope_position(place);
  }
  /// Forgets positions from n on; n at most length().
  void truncate(std::int32_t n) {
    expects(n >= 0 && n <= slot().length, "Sequence::truncate: n is in [0, length]");
    slot().truncate(n);
  }

 private:
  detail::SequenceTable& require_table() const {
    expects(table_ != nullptr, "the sequence was moved from");
    return *table_;
  }

  detail::SequenceTable::Slot& slot() const { return require_table().slots[std::size_t(require_table().find(id_))]; }

  std::shared_ptr<detail::SequenceTable> table_;
  SequenceId id_;
};

}  // namespace tiered
