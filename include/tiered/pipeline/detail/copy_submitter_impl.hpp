/// Defines CopySubmitter: for one source file of a program.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/pipeline/copy_submitter.hpp"

namespace tiered {

/// An order is written before `ordered` counts it and read after; its tickets likewise, by `submitted`, and the error by `failed`.
struct CopySubmitter::State {
  struct Slot {
    CopyLane* lane = nullptr;  ///< null: there is nothing more
    std::vector<CopyPiece> pieces;
    std::vector<Ticket> after;
    Tickets tickets;
  };

  Slot& slot(Number number) { return slots[number % most_orders]; }
  void check() const {
    if (failed.load(std::memory_order_acquire)) std::rethrow_exception(error);
  }
  void give_out(Number number) {
    ordered.store(number);
    if (asleep.load() != 0 && asleep.exchange(0) != 0) asleep.notify_one();
  }
  /// An order is counted before `asleep` is looked at, and this looks for one after it wrote it: one sees the other.
  void sleep(Number done) {
    asleep.store(1);
    if (ordered.load() == done) asleep.wait(1);
    asleep.store(0);
  }
  void submit(Slot& s) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      s.tickets.before = s.lane->last();
      s.tickets.filled = s.lane->submit(s.pieces, s.after);
    } catch (...) {
      error = std::current_exception();
      failed.store(true, std::memory_order_release);
    }
  }
  /// The next order comes within the time of a layer or two; or with the next token: then the thread sleeps.
  void work() {
    detail::Watch watch(detail::Watch::Time{2'000}, detail::Watch::Time{200'000});
    for (Number done = 0;;) {
      auto const has_more = [&] { return ordered.load(std::memory_order_acquire) != done; };
      if (!watch.until(has_more)) {
        while (!has_more()) sleep(done);
        watch.woke();
      }
      Slot& next = slot(done + 1);
      if (next.lane == nullptr) return;
      submit(next);
      submitted.store(++done, std::memory_order_release);
    }
  }

  std::array<Slot, most_orders> slots;
  std::exception_ptr error;
  std::atomic<Number> ordered{0}, submitted{0};
  std::atomic<std::uint32_t> asleep{0};
  std::atomic<bool> failed{false};
  std::thread thread;
};

CopySubmitter::CopySubmitter() : state_(std::make_unique<State>()) {
  try {
    state_->thread = std::thread([s = state_.get()] { s->work(); });
  } catch (std::system_error const& error) {
    throw Error(Errc::device, concat("no thread that submits copies: ", error.what()));
  }
}

CopySubmitter::~CopySubmitter() {
  drain();
  Number const last = state_->ordered.load(std::memory_order_relaxed) + 1;
  state_->slot(last).lane = nullptr;
  state_->give_out(last);
  state_->thread.join();
}

CopySubmitter::Number CopySubmitter::order(CopyLane& lane, std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
  state_->check();
  Number const number = state_->ordered.load(std::memory_order_relaxed) + 1;
  expects(number - state_->submitted.load(std::memory_order_acquire) <= most_orders,
          "CopySubmitter: too many orders are not submitted yet");
  State::Slot& slot = state_->slot(number);
  slot.lane = &lane;
  slot.pieces.assign(pieces.begin(), pieces.end());
  slot.after.assign(after.begin(), after.end());
  state_->give_out(number);
  return number;
}

bool CopySubmitter::done(Number number) const {
  state_->check();
  if (state_->submitted.load(std::memory_order_acquire) < number) return false;
  state_->check();
  State::Slot const& slot = state_->slot(number);
  return slot.lane->done(slot.tickets.filled);
}

CopySubmitter::Tickets CopySubmitter::tickets(Number number) const { return state_->slot(number).tickets; }

void CopySubmitter::drain() const noexcept {
  Number const all = state_->ordered.load(std::memory_order_relaxed);
  detail::wait_until([&] { return state_->submitted.load(std::memory_order_acquire) >= all; });
}

void CopySubmitter::quiet() const {
  drain();
  state_->check();
}

}  // namespace tiered
