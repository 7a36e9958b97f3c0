/// The CPU as a queue of kernels: a lane that calls them one after another, and a team that each of them runs on.
#pragma once

#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/table.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// What Queue::native of a CPU table points to. All of it is borrowed and must outlive the work that was enqueued.
struct CpuQueue {
  LaneSet* lanes = nullptr;  ///< null: kernels run at once, on the thread that launches them
  LaneSet::Lane lane = 0;
  Team* team = nullptr;
  /// Called with `hook` before a kernel is enqueued; a status other than 0 is returned in its place: faults and counting in tests.
  int (*before_launch)(void* hook) = nullptr;
  void* hook = nullptr;
};

/// A CPU kernel: runs the op on the team and returns when it is done. May throw; the lane keeps the first error.
template <class Args>
using CpuKernel = void (*)(Args const&, Team&);

/// The table entry that enqueues `Run`, arguments copied. Any number of threads may call it.
template <class Args, CpuKernel<Args> Run>
int enqueue(Args const& args, Queue queue) {
  auto const& cpu = *static_cast<CpuQueue const*>(queue.native);
  if (cpu.before_launch != nullptr) {
    if (int const status = cpu.before_launch(cpu.hook); status != 0) return status;
  }
  if (cpu.lanes == nullptr) {
    Run(args, *cpu.team);
  } else {
    cpu.lanes->submit(cpu.lane, [args, team = cpu.team] { Run(args, *team); });
  }
  return 0;
}

}  // namespace tiered
