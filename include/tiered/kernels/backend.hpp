/// A device that computes: its kernels, its queue, its memory.
#pragma once

#include <concepts>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/table.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// | expression          | result             | meaning, errors, threads                                                     |
/// |---------------------|--------------------|------------------------------------------------------------------------------|
/// | `c.kernels()`       | KernelTable const& | lives as long as the backend                                                 |
/// | `c.queue()`         | Queue              | what the kernels are enqueued on                                             |
/// | `b.memory()`        | B::Memory&         | where this device's buffers come from                                        |
/// | `b.wait_for(t)`     | void               | later work of the queue starts after `t`; the calling thread does not block  |
/// | `b.record()`        | Ticket             | done when all work enqueued so far is                                        |
/// | `b.synchronize()`   | void               | blocks until the queue is empty; throws the Error of a kernel that failed    |
/// Work is asynchronous on every backend, the CPU's too. One enqueuing thread. Optional: `recover()` waits for everything and
/// forgets errors; `times(begin, end)` says when the work between two tickets ran; `begin_capture()`, `end_capture()`,
/// `launch_graph(graph)` and `abandon_capture()`, with or without `can_capture()`: see Side::can_capture().
template <class B>
concept Backend = MemoryTier<typename B::Memory> && requires(B& b, B const& c, Ticket t) {
  { c.kernels() } -> std::same_as<KernelTable const&>;
  { c.queue() } -> std::same_as<Queue>;
  { b.memory() } -> std::same_as<typename B::Memory&>;
  { b.wait_for(t) } -> std::same_as<void>;
  { b.record() } -> std::same_as<Ticket>;
  { b.synchronize() } -> std::same_as<void>;
};

/// Enqueues, and turns a failed launch into an Error: the one place where kernel statuses end.
template <class Args>
void launch(Kernel<Args> kernel, Args const& args, Queue queue, SourceLocation where = SourceLocation::current()) {
  if (kernel == nullptr) throw Error(Errc::unsupported, "this device has no kernel for an op that its plan uses", where);
  if (int const status = kernel(args, queue); status != 0) {
    throw Error(Errc::device,
                concat("a kernel launch failed with status ", status, queue.status_text != nullptr ? ": " : "",
                       queue.status_text != nullptr ? queue.status_text(status) : ""),
                where);
  }
}

}  // namespace tiered
