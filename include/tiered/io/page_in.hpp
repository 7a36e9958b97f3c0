/// Long reads of whole models, by several threads, watched by the caller; the first of them: a file into the page cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/source.hpp"
#include "tiered/memory/host_memory.hpp"

namespace tiered {

/// How a long read is done and watched. The two functions are called with `context` on the thread that asked for the read, between
/// pieces of 16 MiB or less; what they throw ends the read and is passed on.
struct ReadOptions {
  int n_threads = 8;  ///< reads at a time: fast storage needs several in flight
  void (*progress)(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes) = nullptr;
  bool (*cancelled)(void* context) = nullptr;  ///< true ends the read with Errc::cancelled
  void* context = nullptr;
};

namespace detail {

inline constexpr std::size_t read_piece_bytes = 16 * MiB;

/// Pieces of one read, done by several threads, of which the caller's alone reports.
class PiecewiseRead {
 public:
  /// `done` of `total` bytes were there before: for reads that are a part of a larger one.
  PiecewiseRead(ReadOptions const& options, std::uint64_t done, std::uint64_t total) : options_(options), done_(done), total_(total) {
    if (options.n_threads < 1)
      throw Error(Errc::precondition, concat("ReadOptions: n_threads is ", options.n_threads, ", a read takes at least one"));
  }

  /// Calls read(begin, bytes) for pieces of [0, bytes) that are multiples of the piece size, on any thread.
  template <class Read>
  void run(std::uint64_t bytes, Read const& read) {
    report();
    std::size_t const n_pieces = std::size_t((bytes + read_piece_bytes - 1) / read_piece_bytes);
    std::atomic<std::size_t> next{0};
    auto const read_next = [&] {
      std::size_t const piece = stop_.load(std::memory_order_relaxed) ? n_pieces : next.fetch_add(1);
      if (piece >= n_pieces) return false;
      std::uint64_t const begin = piece * std::uint64_t{read_piece_bytes};
      auto const size = std::size_t(std::min<std::uint64_t>(read_piece_bytes, bytes - begin));
      guarded([&] { read(begin, size); });
      done_.fetch_add(size, std::memory_order_relaxed);
      return true;
    };
    std::vector<std::thread> helpers;
    try {
      for (std::size_t i = 1; i < std::min(std::size_t(options_.n_threads), n_pieces); ++i) {
        helpers.emplace_back([&] {
          while (read_next()) {
          }
        });
      }
    } catch (std::system_error const&) {  // as many as the system gives: the read is the same
    } catch (...) {
      guarded([] { throw; });  // the threads that run must end first
    }
    while (read_next()) guarded([&] { report(); });
    for (std::thread& helper : helpers) helper.join();
    if (error_) std::rethrow_exception(error_);
    report();
  }

 private:
  template <class Call>
  void guarded(Call const& call) {
    try {
      call();
    } catch (...) {
      if (!stop_.exchange(true)) error_ = std::current_exception();
    }
  }
  void report() const {
    std::uint64_t const done = done_.load(std::memory_order_relaxed);
    if (options_.cancelled != nullptr && options_.cancelled(options_.context)) {
      throw Error(Errc::cancelled, concat("a read was cancelled after ", format_bytes(done), " of ", format_bytes(total_)));
    }
    if (options_.progress != nullptr) options_.progress(options_.context, done, total_);
  }

  ReadOptions const& options_;
  std::atomic<std::uint64_t> done_;
  std::uint64_t const total_;
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;  // of the one who set stop_
};

}  // namespace detail

/// Reads the mapped weights of `gguf` into the page cache and into this process's page tables, so that the first prompt does not wait
/// for them page by page. Returns false and reads nothing where they are more than the memory that is available (they can
/// still be used, from the disk, each time anew) or where there is no mapping. Blocks; the file's bytes do not change.
/// Errors  cancelled; io where the file was cut since it was opened, or the storage fails.
inline bool page_in(GgufFile const& gguf, ReadOptions const& options = {}) {
  gguf.check_sizes();
  std::optional<std::uint64_t> const available = available_host_bytes();
  if (gguf.mapping(0) == nullptr || (available && gguf.total_bytes() > *available)) return false;
  std::uint64_t done = 0;
  for (int part = 0; part < gguf.n_parts(); ++part) {
    MmapFile const& file = *gguf.mapping(part);
    detail::PiecewiseRead(options, done, gguf.total_bytes()).run(file.size_bytes(), [&](std::uint64_t begin, std::size_t bytes) {
      file.page_in(file.bytes().subspan(std::size_t(begin), bytes));
    });
    done += file.size_bytes();
  }
  return true;
}

}  // namespace tiered
