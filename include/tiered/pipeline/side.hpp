/// Backends and copy engines with their types erased: what an executor needs of them, and no more.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tiered/core/ids.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/memory/copy.hpp"

namespace tiered {

/// Begin and end of what a lane did between two of its tickets, in seconds of one clock of the engine.
using TimeSpan = std::pair<double, double>;

/// What a backend captured, its type erased. Goes before its backend.
using GraphRef = std::shared_ptr<void>;

/// One device that computes. Borrowed; see the Backend concept for what the calls mean.
class Side {
 public:
  Side() = default;
  template <Backend B>
  Side(DeviceId device, B& backend)
      : device_(device), kernels_(&backend.kernels()), queue_(backend.queue()), backend_(&backend), calls_(&calls_of<B>) {
    if constexpr (requires { backend.queue_now(); }) queue_now_ = backend.queue_now();
  }

  DeviceId device() const { return device_; }
  KernelTable const& kernels() const { return *kernels_; }
  Queue queue() const { return queue_; }
  /// Where launches run on the caller's thread and are done when they return, beside what is enqueued; native is null where there is no
  /// such queue. For a caller that would wait anyway.
  Queue queue_now() const { return queue_now_; }
  Ticket record() const { return calls_->record(backend_); }
  void wait_for(Ticket t) const { calls_->wait_for(backend_, t); }
  void synchronize() const { calls_->synchronize(backend_); }
  /// Whether what `t` stands for is done, for a thread that asks again and again. Where a backend cannot tell, waits.
  /// Errors  of a device that failed.
  bool done(Ticket t) const { return calls_->done(backend_, t); }
  /// Waits for everything and forgets errors, where the backend can; so that an engine may go on after one.
  void recover() const { calls_->recover(backend_); }
  /// When the work between two tickets ran; nothing where the backend keeps no times.
  std::optional<TimeSpan> times(Ticket begin, Ticket end) const { return calls_->times(backend_, begin, end); }

  /// Whether launches can be captured, to be enqueued again as one: where a backend has begin_capture(), end_capture(), which gives a
  /// graph, launch_graph() of that, and abandon_capture(), which ends a capture after an error and does nothing where there is none;
  /// and where its can_capture(), if it has one, says so. Within a capture nothing computes, and nobody records or waits.
  bool can_capture() const { return calls_->can_capture(backend_); }
  void begin_capture() const { calls_->begin_capture(backend_); }
  GraphRef end_capture() const { return calls_->end_capture(backend_); }
  void abandon_capture() const { calls_->abandon_capture(backend_); }
  void launch_graph(GraphRef const& graph) const { calls_->launch_graph(backend_, graph.get()); }

 private:
  template <class B>
  static constexpr bool captures = requires(B& b) {
    b.begin_capture();
    b.launch_graph(b.end_capture());
    b.abandon_capture();
  };
  struct Calls {
    Ticket (*record)(void*);
    void (*wait_for)(void*, Ticket);
    void (*synchronize)(void*);
    bool (*done)(void*, Ticket);
    void (*recover)(void*);
    std::optional<TimeSpan> (*times)(void*, Ticket, Ticket);
    bool (*can_capture)(void*);
    void (*begin_capture)(void*);
    GraphRef (*end_capture)(void*);
    void (*abandon_capture)(void*);
    void (*launch_graph)(void*, void*);
  };
  template <class B>
  static constexpr Calls calls_of{[](void* b) { return static_cast<B*>(b)->record(); },
                                  [](void* b, Ticket t) { static_cast<B*>(b)->wait_for(t); },
                                  [](void* b) { static_cast<B*>(b)->synchronize(); },
                                  [](void* b, Ticket t) -> bool {
                                    if constexpr (requires(B & x) { x.done(t); }) return static_cast<B*>(b)->done(t);
                                    static_cast<B*>(b)->synchronize();
                                    return true;
                                  },
                                  [](void* b) {
                                    if constexpr (requires(B & x) { x.recover(); }) {
                                      static_cast<B*>(b)->recover();
                                    } else {
                                      static_cast<B*>(b)->synchronize();
                                    }
                                  },
                                  [](void* b, Ticket from, Ticket to) -> std::optional<TimeSpan> {
                                    if constexpr (requires(B & x) { x.times(from, to); }) return static_cast<B*>(b)->times(from, to);
                                    return std::nullopt;
                                  },
                                  [](void* b) -> bool {
                                    if constexpr (captures<B> && requires(B & x) { x.can_capture(); })
                                      return static_cast<B*>(b)->can_capture();
                                    return captures<B>;
                                  },
                                  [](void* b) {
                                    if constexpr (captures<B>) static_cast<B*>(b)->begin_capture();
                                  },
                                  [](void* b) -> GraphRef {
                                    if constexpr (captures<B>) {
                                      using Graph = decltype(static_cast<B*>(b)->end_capture());
                                      return std::make_shared<Graph>(static_cast<B*>(b)->end_capture());
                                    }
                                    return nullptr;
                                  },
                                  [](void* b) {
                                    if constexpr (captures<B>) static_cast<B*>(b)->abandon_capture();
                                  },
                                  [](void* b, void* graph) {
                                    if constexpr (captures<B>) {
                                      using Graph = decltype(static_cast<B*>(b)->end_capture());
                                      static_cast<B*>(b)->launch_graph(*static_cast<Graph const*>(graph));
                                    }
                                  }};

  DeviceId device_;
  KernelTable const* kernels_ = nullptr;
  Queue queue_, queue_now_;
  void* backend_ = nullptr;
  Calls const* calls_ = nullptr;
};

/// The copy engine. Borrowed; see the CopyEngine concept. Copies of a lane are that lane: they know the same newest ticket.
class CopyLane {
 public:
  CopyLane() = default;
  template <CopyEngine C>
  explicit CopyLane(C& engine) : engine_(&engine), calls_(&calls_of<C>), last_(std::make_shared<Ticket>()) {}
  explicit operator bool() const { return engine_ != nullptr; }

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    return *last_ = calls_->submit(engine_, pieces, after);
  }
  Ticket submit(CopyPiece piece, Ticket after) { return submit({&piece, 1}, {&after, 1}); }
  /// Of the newest copy by whoever has the lane: when it is done, all of them are.
  Ticket last() const { return last_ != nullptr ? *last_ : Ticket{}; }
  void wait(Ticket t) const { calls_->wait(engine_, t); }
  bool done(Ticket t) const { return calls_->done(engine_, t); }
  void recover() const { calls_->recover(engine_); }
  std::optional<TimeSpan> times(Ticket begin, Ticket end) const { return calls_->times(engine_, begin, end); }

 private:
  struct Calls {
    Ticket (*submit)(void*, std::span<CopyPiece const>, std::span<Ticket const>);
    void (*wait)(void*, Ticket);
    bool (*done)(void*, Ticket);
    void (*recover)(void*);
    std::optional<TimeSpan> (*times)(void*, Ticket, Ticket);
  };
  template <class C>
  static constexpr Calls calls_of{
      [](void* c, std::span<CopyPiece const> pieces, std::span<Ticket const> after) { return static_cast<C*>(c)->submit(pieces, after); },
      [](void* c, Ticket t) { static_cast<C*>(c)->wait(t); }, [](void* c, Ticket t) { return static_cast<C const*>(c)->done(t); },
      [](void* c) {
        if constexpr (requires(C & x) { x.recover(); }) static_cast<C*>(c)->recover();
      },
      [](void* c, Ticket from, Ticket to) -> std::optional<TimeSpan> {
        if constexpr (requires(C & x) { x.times(from, to); }) return static_cast<C*>(c)->times(from, to);
        return std::nullopt;
      }};

  void* engine_ = nullptr;
  Calls const* calls_ = nullptr;
  std::shared_ptr<Ticket> last_;
};

}  // namespace tiered
