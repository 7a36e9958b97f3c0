/// File mappings made page-locked where they lie, so that a device copies from the page cache itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/detail/held_ranges.hpp"

namespace tiered {

/// Whole pages that are registered as long as anybody holds them: engines of one model register the same pages. Any thread.
class RegisteredRange {
 public:
  RegisteredRange() = default;
  /// `read_only` for mappings that must not be written; the device must support it (CudaDevice::can_register_read_only).
  /// Errors  Errc::precondition where somebody has registered some of it in another way, or other pages with it: who knows for how long;
  ///         Errc::device or out_of_memory with the numbers and the limit of locked memory. Nothing is registered then.
  RegisteredRange(void const* pages, std::size_t bytes, bool read_only) {
    unsigned const flags = cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : 0u);
    auto const begin = reinterpret_cast<std::uintptr_t>(pages);
    detail::HeldRanges::Key const key{begin, begin + bytes, flags};
    all().hold(key, [&] { take(pages, bytes, read_only, flags); });
    key_ = key;
  }
  RegisteredRange(RegisteredRange&& other) noexcept : key_(std::exchange(other.key_, {})) {}
  RegisteredRange& operator=(RegisteredRange&& other) noexcept {
    std::swap(key_, other.key_);
    return *this;
  }
  ~RegisteredRange() {
    if (key_.end == 0) return;
    all().release(key_, [this] {
      if (cudaHostUnregister(reinterpret_cast<void*>(key_.begin)) != cudaSuccess) static_cast<void>(cudaGetLastError());
    });
  }

 private:
  static detail::HeldRanges& all() {
    static detail::HeldRanges& ranges = *new detail::HeldRanges;  // what holds them may die after static objects
    return ranges;
  }
  static void take(void const* pages, std::size_t bytes, bool read_only, unsigned flags) {
    cudaError_t const status = cudaHostRegister(const_cast<void*>(pages), bytes, flags);
    if (status == cudaSuccess) return;
    std::string const numbers =
        concat(format_bytes(bytes), read_only ? " that are mapped read-only" : "", "; limit of locked memory (ulimit -l): ", limit_text());
    if (status != cudaErrorHostMemoryAlreadyRegistered) cuda_check(status, "cudaHostRegister", numbers);
    static_cast<void>(cudaGetLastError());
    throw Error(Errc::precondition, concat("cudaHostRegister: ", cuda_error_text(status), "; ", numbers));
  }
  static std::string limit_text() {
    ::rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "none";
    return format_bytes(limit.rlim_cur);
  }
  detail::HeldRanges::Key key_;
};

struct RegisterOptions {
  std::size_t piece_bytes = 256 * MiB;  ///< 8 to 13 ms each; a multiple of the page
  int n_threads = 1;                    ///< that register in the background; 0: only wait_until() does
  bool read_only = true;                ///< the mapping is PROT_READ
};

/// Registers existing mappings piece by piece, in the background or when a piece is asked for. Where the system refuses a piece, it and
/// the rest stay as they are, pageable: first_error() says why. Of a piece that somebody else has registered in part only that one stays.
/// Several may register the same ranges in the same pieces. The mappings must outlive it, as must copies from them.
/// One copy must not cross from one piece to the next (the driver sees two registrations): for_each_part() cuts. Any thread.
class RegisteredMapping {
 public:
  using Bytes = std::span<std::byte const>;
  /// progress(registered, all), in bytes; from the threads that register, one call at a time.
  using Progress = std::function<void(std::size_t, std::size_t)>;

  /// Registers nothing yet. The ranges need not be sorted; they are widened to whole pages, and joined where they touch.
  RegisteredMapping(CudaDevice const& device, std::vector<Bytes> const& ranges, RegisterOptions options = {})
      : device_(device.ordinal),
        options_(options),
        stretches_(whole_pages(ranges)),
        pieces_(pieces_of(stretches_, options.piece_bytes)),
        states_(pieces_.size()) {
    for (Piece const& piece : pieces_) total_bytes_ += piece.bytes();
    registered_.reserve(pieces_.size());
    if (!device.can_register_host_memory || (options.read_only && !device.can_register_read_only)) {
      fail(concat(device.name, " cannot register host memory", device.can_register_host_memory ? " that is mapped read-only" : ""));
    }
  }
  RegisteredMapping(RegisteredMapping const&) = delete;
  RegisteredMapping& operator=(RegisteredMapping const&) = delete;
  ~RegisteredMapping() {
    next_ = pieces_.size();
    for (std::thread& thread : threads_) thread.join();
  }

  /// Registers everything in the background, from the lowest address on. Once. Errc::device where a thread does not start.
  void start(Progress progress = {}) {
    expects(threads_.empty(), "a mapping is registered once");
    begin_s_ = steady_seconds();
    progress_ = std::move(progress);
    try {
      for (int i = 0; i < options_.n_threads && !pieces_.empty(); ++i) {
        threads_.emplace_back([this] {
          for (std::size_t at = next_++; at < pieces_.size(); at = next_++) settle(at);
        });
      }
    } catch (std::exception const& error) {
      throw Error(Errc::device, concat("a thread that registers memory did not start: ", error.what()));
    }
  }
  /// Whether a device can copy from all of these bytes now at full rate, and its kernels read them where it can. Some nanoseconds once all
  /// is registered, some ten before.
  bool covers(void const* data, std::size_t bytes) const {
    if (n_registered_.load(std::memory_order_acquire) == pieces_.size()) {
      std::size_t const at = at_or_behind(stretches_, address(data));
      return bytes == 0 || (at < stretches_.size() && stretches_[at].begin <= address(data) && bytes <= stretches_[at].end - address(data));
    }
    return touched(data, bytes, [&](std::size_t at) { return states_[at].load(std::memory_order_acquire) == State::registered; });
  }
  /// Returns when that is decided, and what covers() says then; registers here what nobody has begun.
  bool wait_until(void const* data, std::size_t bytes) {
    return touched(data, bytes, [&](std::size_t at) { return settle(at); });
  }
  /// The same for the piece that `data` lies in: how many bytes from there on are of one registration, 0 where it is of none.
  std::size_t wait_for_stretch(void const* data) {
    std::size_t const at = piece_at(address(data));
    return at < pieces_.size() && pieces_[at].begin <= address(data) && settle(at) ? pieces_[at].end - address(data) : 0;
  }
  /// The same for all of it.
  bool wait() {
    bool all = true;
    for (std::size_t at = 0; at < pieces_.size(); ++at) all = settle(at) && all;
    return all;
  }

  /// Calls use(part, is_registered) for stretches of `bytes` that lie in one piece, or in none, in order.
  template <class Use>
  void for_each_part(Bytes bytes, Use&& use) const {
    while (!bytes.empty()) {
      std::uintptr_t const begin = address(bytes.data());
      std::size_t const at = piece_at(begin);
      bool const inside = at < pieces_.size() && pieces_[at].begin <= begin;
      std::uintptr_t const end = inside ? pieces_[at].end : at < pieces_.size() ? pieces_[at].begin : begin + bytes.size();
      std::size_t const length = std::min(bytes.size(), std::size_t(end - begin));
      use(bytes.first(length), inside && states_[at].load(std::memory_order_acquire) == State::registered);
      bytes = bytes.subspan(length);
    }
  }

  std::size_t registered_bytes() const { return registered_bytes_.load(); }
  std::size_t total_bytes() const { return total_bytes_; }
  std::size_t n_pieces() const { return pieces_.size(); }
  /// Why the first piece that failed did; empty where none has.
  std::string first_error() const {
    std::lock_guard lock(mutex_);
    return first_error_;
  }
  /// Whether no more is registered.
  bool failed() const { return failed_.load(); }
  /// When start() was called and the newest piece was settled, of steady_seconds(); 0 before.
  std::pair<double, double> times() const { return {begin_s_.load(), end_s_.load()}; }

 private:
  enum class State : std::uint8_t { pending, running, registered, failed };
  struct Piece {
    std::uintptr_t begin = 0, end = 0;
    std::size_t bytes() const { return std::size_t(end - begin); }
  };
  static std::uintptr_t address(void const* data) { return reinterpret_cast<std::uintptr_t>(data); }

  /// In whole pages, by address, none touching another.
  static std::vector<Piece> whole_pages(std::vector<Bytes> const& ranges) {
    auto const page = std::uintptr_t(::sysconf(_SC_PAGESIZE));
    std::vector<Piece> whole, joined;
    for (Bytes const range : ranges) {
      std::uintptr_t const begin = address(range.data());
      if (!range.empty()) whole.push_back({begin / page * page, (begin + range.size() + page - 1) / page * page});
    }
    std::sort(whole.begin(), whole.end(), [](Piece const& a, Piece const& b) { return a.begin < b.begin; });
    for (Piece const& piece : whole) {
      if (joined.empty() || piece.begin > joined.back().end) joined.push_back(piece);
      joined.back().end = std::max(joined.back().end, piece.end);
    }
    return joined;
  }
  static std::vector<Piece> pieces_of(std::vector<Piece> const& stretches, std::size_t piece_bytes) {
    expects(piece_bytes != 0 && piece_bytes % std::size_t(::sysconf(_SC_PAGESIZE)) == 0, "memory is registered in whole pages");
    std::vector<Piece> pieces;
    for (Piece const& piece : stretches) {
      for (std::uintptr_t at = piece.begin; at < piece.end; at += piece_bytes)
        pieces.push_back({at, std::min(at + piece_bytes, piece.end)});
    }
    return pieces;
  }
  /// The first piece that ends behind `where`.
  std::size_t piece_at(std::uintptr_t where) const { return at_or_behind(pieces_, where); }
  static std::size_t at_or_behind(std::vector<Piece> const& pieces, std::uintptr_t where) {
    auto const at =
        std::upper_bound(pieces.begin(), pieces.end(), where, [](std::uintptr_t a, Piece const& piece) { return a < piece.end; });
    return std::size_t(at - pieces.begin());
  }
  /// Whether pieces hold all of the bytes and ok(piece) is true for each.
  template <class Ok>
  bool touched(void const* data, std::size_t bytes, Ok const& ok) const {
    std::uintptr_t begin = address(data), end = begin + bytes;
    for (std::size_t at = piece_at(begin); begin < end; ++at) {
      if (at == pieces_.size() || pieces_[at].begin > begin || !ok(at)) return false;
      begin = pieces_[at].end;
    }
    return true;
  }

  /// Registers the piece, or waits for whoever does. Whether it is registered then. Throws nothing.
  bool settle(std::size_t at) {
    State state = states_[at].load(std::memory_order_acquire);
    if (state > State::running) return state == State::registered;
    state = State::pending;
    if (!states_[at].compare_exchange_strong(state, State::running)) {
      std::unique_lock lock(mutex_);
      settled_.wait(lock, [&] { return states_[at].load() > State::running; });
      return states_[at].load() == State::registered;
    }
    bool const ok = !failed_ && register_piece(pieces_[at]);
    {
      std::lock_guard lock(mutex_);
      states_[at].store(ok ? State::registered : State::failed, std::memory_order_release);
      if (ok) n_registered_.fetch_add(1, std::memory_order_release);
      end_s_ = steady_seconds();
    }
    settled_.notify_all();
    if (ok) report();
    return ok;
  }
  bool register_piece(Piece const& piece) noexcept {
    try {
      detail::UseDevice const use(device_);
      RegisteredRange range(reinterpret_cast<void const*>(piece.begin), piece.bytes(), options_.read_only);
      std::lock_guard lock(mutex_);
      registered_.push_back(std::move(range));  // reserved
      registered_bytes_ += piece.bytes();
      return true;
    } catch (Error const& error) {
      bool const is_taken = error.code() == Errc::precondition;
      fail(error.what(), is_taken ? piece.bytes() : 0);
    } catch (std::exception const& error) {
      fail(error.what());
    }
    return false;
  }
  /// `only_bytes`: of a piece after which the others are tried all the same; 0: they are not.
  void fail(std::string_view why, std::size_t only_bytes = 0) noexcept {
    if (only_bytes == 0) failed_ = true;
    try {
      std::lock_guard lock(mutex_);
      if (!first_error_.empty()) return;
      std::string const stays = only_bytes > 0 ? concat("; ", format_bytes(only_bytes), " of ", format_bytes(total_bytes_), " stay")
                                               : concat("; ", format_bytes(registered_bytes_), " of ", format_bytes(total_bytes_),
                                                        " are registered, the rest stays");
      first_error_ = concat(why, stays, " pageable for all that is known and ", only_bytes > 0 ? "are" : "is", " copied more slowly");
    } catch (std::exception const&) {  // no memory for a message
    }
  }
  void report() noexcept {
    if (!progress_) return;
    try {
      std::lock_guard lock(progress_mutex_);
      progress_(registered_bytes_, total_bytes_);
    } catch (...) {  // the caller's function; what it throws has nowhere to go
    }
  }

  int device_;
  RegisterOptions options_;
  std::vector<Piece> const stretches_, pieces_;  // by address: what is registered, and what of it at once
  std::vector<std::atomic<State>> states_;
  std::size_t total_bytes_ = 0;
  std::atomic<std::size_t> next_{0}, registered_bytes_{0}, n_registered_{0};
  std::atomic<double> begin_s_{0}, end_s_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // registered_, first_error_; settled_ waits with it
  std::condition_variable settled_;
  std::vector<RegisteredRange> registered_;
  std::string first_error_;
  std::mutex progress_mutex_;
  Progress progress_;
  std::vector<std::thread> threads_;
};

}  // namespace tiered
