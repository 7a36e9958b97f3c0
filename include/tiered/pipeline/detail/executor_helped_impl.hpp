/// Defines the part of Executor for steps in which the device asks the host: for one source file of a program.
#pragma once

#include <cstdint>
#include <utility>

#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// The walk of one row; nobody waits.
void Executor::enqueue_helped() {
  struct Scope {
    bool& helps;
    ~Scope() { helps = false; }
  } const scope{env_.helps = true};
  side_ = &p_.device;
  routed_.few().enqueue_step();
  side_ = &p_.host;
  walk();
}

void Executor::load_helped(float* logits) {
  BlockRow const row{0, 0, 0, true};
  rows_ = {&row, 1};
  logits_out_ = logits;
  ++pass_;
  fill_inputs(rows_);
  upload_inputs();
  routed_.few().begin_step(pass_);
  routed_.few().give_up();  // kernels that are yet to be loaded must not stand behind one that waits
  enqueue_helped();
  p_.device.synchronize();
  rows_ = {};
}

void Executor::run_helped() {
  FewRouted& few = routed_.few();
  GraphRef const known = find_graph(1);
  GraphRef const graph = known != nullptr ? known : capture_walk();
  routed_.stop_flow(pass_);
  few.begin_step(pass_);
  Ticket const begin = p_.trace != nullptr ? p_.device.record() : Ticket{};
  Ticket end;
  try {
    p_.device.launch_graph(graph);
    end = p_.device.record();
    while (!p_.device.done(end)) {
      if (few.serve() || few.look_ahead()) continue;
      check_cancelled(0);
      detail::pause_briefly();
    }
  } catch (...) {
    few.give_up();
    throw;
  }
  if (few.timed_out()) {
    // Another thread was in a call of the driver until the device is idle, say, and the host stood behind it.
    wait_for_copies();
    p_.cache->clear({});
    few.forget_coming();
    return walk();
  }
  few.end_step();
  if (p_.trace != nullptr) few.trace_step(begin, end);
  side_ = &p_.device;
  download_logits(0, 1);
  wait_for_copies();
  few.settle_ahead();
}

}  // namespace tiered
