/// Which two neighbours a tokeniser joins next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tiered::detail {

/// A priority queue, least element first, of which most elements are known before the first is taken: those are sorted once and then
/// read in a row, and only what comes later goes through a heap. Half the time of a heap alone for a word of a megabyte.
template <class T>
class PairQueue {
 public:
  void clear() {
    first_.clear();
    later_.clear();
    next_ = 0;
  }
  /// Before start().
  void add(T const& element) { first_.push_back(element); }
  void start() { std::sort(first_.begin(), first_.end()); }
  /// After start().
  void push(T const& element) {
    later_.push_back(element);
    std::push_heap(later_.begin(), later_.end(), After{});
  }
  bool empty() const { return next_ == first_.size() && later_.empty(); }
  /// Not empty.
  T pop() {
    if (later_.empty() || (next_ < first_.size() && first_[next_] < later_.front())) return first_[next_++];
    std::pop_heap(later_.begin(), later_.end(), After{});
    T const least = later_.back();
    later_.pop_back();
    return least;
  }

 private:
  struct After {
    bool operator()(T const& a, T const& b) const { return b < a; }
  };
  std::vector<T> first_, later_;
  std::size_t next_ = 0;
};

}  // namespace tiered::detail
