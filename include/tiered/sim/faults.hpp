/// Failures on order: the nth allocation, copy, read or launch.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

enum class FaultKind : std::uint8_t { allocation, copy, read, launch };
inline constexpr std::size_t n_fault_kinds = 4;

constexpr char const* name(FaultKind kind) {
  switch (kind) {
    case FaultKind::allocation: return "allocation";
    case FaultKind::copy: return "copy";
    case FaultKind::read: return "read";
    case FaultKind::launch: return "launch";
  }
  return "?";
}

/// What such a failure looks like to the caller of the real thing.
constexpr Errc errc_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::allocation: return Errc::out_of_memory;
    case FaultKind::read: return Errc::io;
    case FaultKind::copy:
    case FaultKind::launch: return Errc::device;
  }
  return Errc::device;
}

/// Counts events of each kind and says which of them shall fail. Shared by all simulated parts of one engine, so that a test
/// can set n = 1, 2, 3... until a whole run passes with fired() == 0: then every place where it can fail was visited.
/// Any thread. Events are counted on the thread that submits them, so that the same program has the same nth event.
class Faults {
 public:
  /// The nth event from now on fails, the first being 1; once. 0: none.
  void fail_at(FaultKind kind, std::uint64_t n) {
    Counter& c = counter(kind);
    c.fails_at.store(n == 0 ? 0 : c.seen.load() + n);
  }

  /// Counts one event; true where it shall fail.
  bool strikes(FaultKind kind) {
    Counter& c = counter(kind);
    std::uint64_t const n = c.seen.fetch_add(1) + 1;
    if (n != c.fails_at.load()) return false;
    fired_.fetch_add(1);
    return true;
  }

  /// Counts one event; throws the Error of its kind where it shall fail.
  void visit(FaultKind kind) {
    if (strikes(kind)) throw error(kind);
  }

  static Error error(FaultKind kind) { return Error(errc_of(kind), concat("injected fault: ", name(kind))); }

  /// Events of this kind since the object was made or reset.
  std::uint64_t seen(FaultKind kind) const { return counters_[std::size_t(kind)].seen.load(); }
  /// Failures since the object was made or reset.
  std::uint64_t fired() const { return fired_.load(); }

  void reset() {
    for (Counter& c : counters_) {
      c.seen.store(0);
      c.fails_at.store(0);
    }
    fired_.store(0);
  }

 private:
  struct Counter {
    std::atomic<std::uint64_t> seen{0}, fails_at{0};
  };
  Counter& counter(FaultKind kind) { return counters_[std::size_t(kind)]; }
  std::array<Counter, n_fault_kinds> counters_{};
  std::atomic<std::uint64_t> fired_{0};
};

/// A ByteSource whose reads are counted and may fail. The source must outlive it.
template <class Source>
class FaultyReads {
 public:
  FaultyReads(Source const& source, Faults& faults) : source_(&source), faults_(&faults) {}
  std::uint64_t size_bytes() const { return source_->size_bytes(); }
  void read_at(std::uint64_t offset, std::span<std::byte> dst) const {
    faults_->visit(FaultKind::read);
    source_->read_at(offset, dst);
  }

 private:
  Source const* source_;
  Faults* faults_;
};

}  // namespace tiered
