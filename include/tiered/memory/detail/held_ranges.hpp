/// Ranges of memory that several may hold at once: the first has something done to it, the last has it undone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "tiered/core/function_ref.hpp"

namespace tiered::detail {

/// Any thread. Ranges that overlap but are not alike are nothing to each other.
class HeldRanges {
 public:
  struct Key {
    std::uintptr_t begin = 0, end = 0;
    unsigned flags = 0;  ///< what is done to it, where that may differ
    friend bool operator<(Key const& a, Key const& b) { return std::tie(a.begin, a.end, a.flags) < std::tie(b.begin, b.end, b.flags); }
  };

  /// Calls take() where nobody holds the range; waits where somebody is about to take or give it. What take() throws leaves it unheld.
  void hold(Key const& key, FunctionRef<void()> take) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_busy(key); });
    Use& use = uses_[key];  // a node stays where it is
    if (use.n_holders == 0) {
      use.is_busy = true;
      lock.unlock();
      try {
        take();
      } catch (...) {
        lock.lock();
        uses_.erase(key);
        changed_.notify_all();
        throw;
      }
      lock.lock();
      use.is_busy = false;
      changed_.notify_all();
    }
    ++use.n_holders;
  }
  /// Once for each hold(). Calls give(), which throws nothing, for the last. No memory is taken.
  void release(Key const& key, FunctionRef<void()> give) noexcept {
    std::unique_lock lock(mutex_);
    auto const it = uses_.find(key);
    if (it == uses_.end() || --it->second.n_holders > 0) return;
    it->second.is_busy = true;
    lock.unlock();
    give();
    lock.lock();
    uses_.erase(it);
    changed_.notify_all();
  }
  std::size_t n_held() const {
    std::lock_guard lock(mutex_);
    return uses_.size();
  }

 private:
  struct Use {
    std::size_t n_holders = 0;
    bool is_busy = false;  // being taken, or given back
  };
  bool is_busy(Key const& key) const {
    auto const it = uses_.find(key);
    return it != uses_.end() && it->second.is_busy;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Use> uses_;
};

}  // namespace tiered::detail
