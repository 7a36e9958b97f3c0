/// Defines the part of Executor for steps in which the device asks the host: for one source file of a program.
#pragma once

#include <cstdint>
#include <utility>

#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

HelpCounters Executor::help_counters() const {
  HelpCounters all = routed_.few().help_counters();
  HelpCounters const& attention = attention_.help_counters();
  all.n_steps += n_attention_steps_;
  all.n_timed_out += attention.n_timed_out;
  all.n_attention_requests = attention.n_attention_requests;
  all.attention_device_s = attention.attention_device_s;
  all.attention_host_s = attention.attention_host_s;
  all.attention_waited_s = attention.attention_waited_s;
  all.attention_read_share = attention.attention_read_share;
  return all;
}

/// Whether this is a step of one row behind a context that is longer than what VRAM has of it, and one launch all the same.
bool Executor::asks_attention(std::span<BlockRow const> rows) const {
  return helps_attention() && rows.size() == 1 && outputs_total_ == 1 && rows.front().embedding == nullptr &&
         (p_.trace == nullptr || asks_experts_) && !p_.kv->all_in_vram(rows.front().position + 1);
}

/// The walk of one row; nobody waits.
void Executor::enqueue_helped(bool asks_attention) {
  struct Scope {
    bool &experts, &attention;
    ~Scope() { experts = attention = false; }
  } const scope{env_.helps = asks_experts_, asks_attention_ = asks_attention};
  side_ = &p_.device;
  if (asks_experts_) routed_.few().enqueue_step();
  if (asks_attention) attention_.enqueue_step();
  side_ = &p_.host;
  walk();
}

void Executor::load_enqueued(float* logits, bool asks_attention) {
  BlockRow const row{0, 0, 0, true};
  rows_ = {&row, 1};
  logits_out_ = logits;
  ++n_blocks_;
  fill_inputs(rows_);
  upload_inputs();
  if (asks_experts_) routed_.few().begin_step(n_blocks_);
  if (asks_attention) {
    refresh_kv_tables();
    attention_.begin_step(n_blocks_, 0);
  }
  routed_.few().give_up();  // kernels that are yet to be loaded must not stand behind one that waits
  attention_.give_up();
  enqueue_helped(asks_attention);
  p_.device.synchronize();
  rows_ = {};
}

void Executor::load_helped_attention(float* logits) {
  load_enqueued(logits, true);
  if (find_graph(1, true) != nullptr) return;
  BlockRow const row{0, 0, 0, true};
  rows_ = {&row, 1};
  outputs_total_ = 1;
  settle();
  capture_walk(true);
  rows_ = {};
}

void Executor::run_helped(bool asks_attention) {
  check_cancelled(0);
  if (!settled_) settle();
  FewRouted& few = routed_.few();
  GraphRef const known = find_graph(1, asks_attention);
  GraphRef const graph = known != nullptr ? known : capture_walk(asks_attention);
  if (asks_experts_) {
    routed_.stop_flow(n_blocks_);
    few.begin_step(n_blocks_);
  }
  if (asks_attention) {
    refresh_kv_tables();
    attention_.begin_step(n_blocks_, rows_.front().position);
  }
  Ticket const begin = p_.trace != nullptr ? p_.device.record() : Ticket{};
  Ticket end;
  try {
    p_.device.launch_graph(graph);
    end = p_.device.record();
    while (!p_.device.done(end)) {
      if (asks_experts_ && few.serve()) continue;
      if (asks_attention && attention_.serve()) continue;
      if (asks_experts_ && (few.look_ahead() || few.read_ahead())) continue;  // last: a copy's submission takes some 12 us
      check_cancelled(0);
      detail::pause_briefly();
    }
    few.stop_reading();
  } catch (...) {
    few.give_up();
    attention_.give_up();
    try {
      few.stop_reading();
    } catch (Error const&) {  // the first one is what the caller should know
    }
    throw;
  }
  if (waited_in_vain(asks_attention)) return walk();
  asks_experts_ ? few.end_step() : void(++n_attention_steps_);
  if (asks_attention) attention_.end_step();
  if (p_.trace != nullptr) few.trace_step(begin, end);
  if (p_.trace != nullptr && asks_attention) attention_.trace_step(begin, end, few.step_begin_ns());
  side_ = &p_.device;
  download_logits(0, 1);
  wait_for_copies();
  few.settle_ahead();
}

/// Another thread was in a call of the driver until the device is idle, say, and the host stood behind it: the step is to be done again.
bool Executor::waited_in_vain(bool asks_attention) {
  FewRouted& few = routed_.few();
  bool const attention = asks_attention && attention_.timed_out(), experts = asks_experts_ && few.timed_out();
  if (!attention && !experts) return false;
  wait_for_copies();
  if (!experts) {  // all that was asked for of these has been answered
    if (asks_experts_) few.settle_ahead();
    return true;
  }
  p_.cache->clear({});
  few.forget_coming();
  return true;
}

}  // namespace tiered
