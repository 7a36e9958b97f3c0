/// Reads a file with several preads at once: for storage that is fast only in parallel, and for memory that no mapping should fill.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include "tiered/core/error.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/io/source.hpp"

namespace tiered {

class PreadSource {
 public:
  struct Options {
    std::size_t n_threads = 8;          ///< reads in flight
    std::size_t piece_bytes = 4 * MiB;  ///< of one pread
  };
  /// Errors  as MmapFile::open(); precondition for options of 0.
  static PreadSource open(std::string path) { return open(std::move(path), Options{}); }
  static PreadSource open(std::string path, Options options) {
    expects(options.n_threads > 0 && options.piece_bytes > 0, "PreadSource: at least one thread and one byte a piece");
    return PreadSource(detail::FileHandle::open(std::move(path)), options);
  }

  std::uint64_t size_bytes() const { return file_.size_bytes(); }
  std::string const& path() const { return file_.path(); }

  /// Fills `dst` from `offset`; returns when all of it is there. A file that was cut since it was opened gives Errc::io, and what
  /// `dst` holds is then unspecified. Any thread, several at once.
  void read_at(std::uint64_t offset, std::span<std::byte> dst) const {
    file_.check_range(offset, dst.size());
    std::size_t const n_pieces = (dst.size() + options_.piece_bytes - 1) / options_.piece_bytes;
    if (n_pieces <= 1) return file_.read_at(offset, dst);
    Pending pending{n_pieces};
    for (std::size_t i = 0; i < n_pieces; ++i) {
      std::size_t const begin = i * options_.piece_bytes;
      auto const piece = dst.subspan(begin, (std::min)(options_.piece_bytes, dst.size() - begin));
      try {
        boost::asio::post(*pool_, [this, &pending, piece, at = offset + begin] { read_piece(pending, at, piece); });
      } catch (...) {  // no memory for the task: pieces already posted still refer to `pending`
        pending.finish(std::current_exception());
      }
    }
    pending.wait();
  }

 private:
  /// What one read_at() still waits for. It lies on the caller's stack, so a worker's last touch is under the lock.
  struct Pending {
    std::size_t n_left;
    std::exception_ptr error{};  // of the first piece that failed
    std::mutex mutex{};
    std::condition_variable done{};

    void finish(std::exception_ptr failure) {
      std::lock_guard const lock(mutex);
      if (failure && !error) error = std::move(failure);
      if (--n_left == 0) done.notify_one();
    }
    void wait() {
      std::unique_lock lock(mutex);
      done.wait(lock, [&] { return n_left == 0; });
      if (error) std::rethrow_exception(error);
    }
  };

  PreadSource(detail::FileHandle file, Options options)
      : file_(std::move(file)), options_(options), pool_(std::make_unique<boost::asio::thread_pool>(options.n_threads)) {}

  void read_piece(Pending& pending, std::uint64_t offset, std::span<std::byte> dst) const {
    std::exception_ptr failure;
    try {
      file_.read_at(offset, dst);
    } catch (...) {
      failure = std::current_exception();
    }
    pending.finish(std::move(failure));
  }

  detail::FileHandle file_;
  Options options_;
  std::unique_ptr<boost::asio::thread_pool> pool_;  // idle but inside read_at(), so a source may be moved between calls
};
static_assert(ByteSource<PreadSource>);

}  // namespace tiered
