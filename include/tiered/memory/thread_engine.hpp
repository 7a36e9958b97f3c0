/// Copies behind the work, on threads of its own. Includes Boost.Asio.
#pragma once

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// A CopyEngine between host tiers: a lane of its own, and a pool that helps it with large pieces, since one core seldom
/// saturates the memory. For bytes that host threads can reach; a device's memory needs the engine of that device.
class ThreadCopyEngine {
 public:
  /// `n_threads` copy at once, the lane's own thread being one of them.
  explicit ThreadCopyEngine(std::shared_ptr<LaneSet> lanes, int n_threads = 2)
      : lanes_(std::move(lanes)), helpers_(make_helpers(n_threads)), lane_(lanes_->open("copy")) {}
  ThreadCopyEngine(ThreadCopyEngine const&) = delete;
  ThreadCopyEngine& operator=(ThreadCopyEngine const&) = delete;
  /// Waits for its copies, so that the bytes may go after it.
  ~ThreadCopyEngine() { lanes_->drain(lane_); }

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    for (Ticket ticket : after) lanes_->wait_for(lane_, ticket);
    detail::for_each_pack(pieces, [&](detail::PiecePack const& pack) {
      lanes_->submit(lane_, [pack, helpers = helpers_.get()] {
        for (CopyPiece const& piece : pack.span()) {
          if (helpers != nullptr && piece.bytes >= 2 * smallest_part_bytes) {
            helpers->copy(piece);
          } else {
            detail::copy_piece(piece);
          }
        }
      });
    });
    return lanes_->record(lane_);
  }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { lanes_->clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return lanes_->times(begin, end); }
  bool done(Ticket ticket) const { return lanes_->done(ticket); }
  void wait(Ticket ticket) { lanes_->wait(ticket); }

  LaneSet::Lane lane() const { return lane_; }

 private:
  // Waking a helper takes some 12 us: a piece of 1 MiB took 34 us alone, 47 us in two parts (2 cores, in cache).
  static constexpr std::size_t smallest_part_bytes = std::size_t{2} << 20;

  class Helpers {
   public:
    explicit Helpers(int n) : n_(n), pool_(std::size_t(n)) {}
    ~Helpers() { pool_.join(); }

    /// Cuts a piece into parts, copies the first here and the others on the pool; returns when all are done.
    void copy(CopyPiece piece) {
      std::size_t const n_parts = std::min(std::size_t(n_) + 1, piece.bytes / smallest_part_bytes);
      std::size_t const part_bytes = (piece.bytes / n_parts + 63) / 64 * 64;
      Pending pending;
      while (piece.bytes > part_bytes) {
        std::size_t const rest = piece.bytes - part_bytes;
        CopyPiece const tail{piece.dst + rest, piece.src + rest, part_bytes};
        if (!pending.post(pool_, tail)) detail::copy_piece(tail);
        piece.bytes = rest;
      }
      detail::copy_piece(piece);
      pending.wait();
    }

   private:
    /// The parts of one piece that are still on the pool.
    class Pending {
     public:
      /// False where the pool had no memory for it.
      bool post(boost::asio::thread_pool& pool, CopyPiece const& part) {
        std::lock_guard lock(mutex_);
        try {
          boost::asio::post(pool, [this, part] {
            detail::copy_piece(part);
            std::lock_guard done(mutex_);
            if (--n_ == 0) all_done_.notify_one();
          });
        } catch (std::bad_alloc const&) {
          return false;
        }
        ++n_;
        return true;
      }
      void wait() {
        std::unique_lock lock(mutex_);
        while (n_ > 0) all_done_.wait(lock);
      }

     private:
      std::mutex mutex_;
      std::condition_variable all_done_;
      int n_ = 0;
    };

    int n_;
    boost::asio::thread_pool pool_;
  };

  static std::unique_ptr<Helpers> make_helpers(int n_threads) {
    expects(n_threads >= 1, "a copy engine has at least one thread");
    try {
      return n_threads > 1 ? std::make_unique<Helpers>(n_threads - 1) : nullptr;
    } catch (std::exception const& error) {
      throw Error(Errc::device, concat("a copy engine of ", n_threads, " threads did not start: ", error.what()));
    }
  }

  std::shared_ptr<LaneSet> lanes_;
  std::unique_ptr<Helpers> helpers_;
  LaneSet::Lane lane_;
};
static_assert(CopyEngine<ThreadCopyEngine>);

}  // namespace tiered
