/// Defines SharedFlow: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/pipeline/kernel_transfer.hpp"
#include "tiered/pipeline/shared_flow.hpp"

namespace tiered {

Ticket SharedFlow::run(RoutedRows const& rows, ShardId first_expert, ExpertFlow& flow) {
  rows_ = &rows;
  first_expert_ = first_expert;
  bring_rows();
  count_rows();
  Range const ranks = flow.arrange(n_rows_of_);
  ++counters_.n_layers;
  bool const on_host = run_on_host(flow, ranks);
  transfer(env_->device, at<std::int32_t>(false, env_->layout->expert_ranks), at<std::int32_t>(true, env_->layout->expert_ranks),
           flow.ranks().size_bytes());
  ExpertWindowArgs args = args_on(true);
  tiered::launch(env_->device.kernels().group_slots, args, env_->device.queue());
  while (ExpertFlow::Window const* const window = flow.next()) {
    env_->device.wait_for(window->ready);
    args.first_expert = window->experts.begin;
    args.end_expert = window->experts.end;
    tiered::launch(env_->device.kernels().expert_window, args, env_->device.queue());
    flow.release(env_->device.record());
  }
  if (on_host) {
    add_host_sum();
  } else {
    env_->device.wait_for(rows_there_);  // or what comes next could write where they are still read
  }
  flow.copy_ahead();
  return env_->device.record();
}

/// Ids at once, rows and weights meanwhile.
void SharedFlow::bring_rows() {
  ActivationLayout const& l = *env_->layout;
  std::size_t const n_slots = std::size_t(rows_->n_rows) * std::size_t(n_used()), ids_bytes = n_slots * sizeof(std::int32_t);
  std::int32_t* const ids = at<std::int32_t>(false, l.expert_ids);
  bool const by_kernel = ids_bytes <= most_kernel_bytes;
  if (by_kernel) transfer(env_->device, rows_->ids, ids, ids_bytes);
  Ticket ids_there = env_->device.record();
  auto const bytes_of = [](auto* p) { return reinterpret_cast<std::byte*>(p); };
  auto const source = [](auto* p) { return reinterpret_cast<std::byte const*>(p); };
  if (!by_kernel) ids_there = env_->rows_copy->submit({bytes_of(ids), source(rows_->ids), ids_bytes}, ids_there);
  CopyPiece const pieces[] = {{bytes_of(at<float>(false, l.expert_weights)), source(rows_->weights), n_slots * sizeof(float)},
                              {bytes_of(at<float>(false, l.expert_x)), source(rows_->x), x_bytes()}};
  rows_there_ = env_->rows_copy->submit(pieces, {&ids_there, 1});
  wait_for_ids(ids_there);
}

/// They come when the layer before ends, after some ms, and link, host and device have little to do until they are here. Who just waits
/// for a device naps after 2 ms, for a part of the time that has passed. So this thread, which no team has, looks for some 20 ms at first.
void SharedFlow::wait_for_ids(Ticket ids_there) const {
  constexpr int n_looks = 8000, n_pauses = 64;
  for (int look = 0; look < n_looks && !env_->copy->done(ids_there); ++look) {
    for (int i = 0; i < n_pauses; ++i) detail::pause_briefly();
    std::this_thread::yield();
  }
  env_->copy->wait(ids_there);
}

void SharedFlow::count_rows() {
  std::int32_t const* const ids = at<std::int32_t>(false, env_->layout->expert_ids);
  std::int64_t const n_slots = std::int64_t(rows_->n_rows) * n_used();
  n_rows_of_.assign(std::size_t(n_experts()), 0);
  for (std::int64_t slot = 0; slot < n_slots; ++slot) {
    if (ids[slot] < 0 || ids[slot] >= n_experts())
      throw Error(Errc::device, concat("layer ", rows_->layer, ": the router chose expert ", ids[slot], " of ", n_experts()));
    ++n_rows_of_[std::size_t(ids[slot])];
  }
  counters_.n_rows += std::uint64_t(n_slots);
  counters_.n_experts += std::uint64_t(n_experts() - std::ranges::count(n_rows_of_, 0));
}

/// Of either side: the layer's rows and table, its own lists and workspace.
ExpertWindowArgs SharedFlow::args_on(bool on_device) const {
  ActivationLayout const& l = *env_->layout;
  SharedRoom const room = this->room();
  Range const w = env_->table.shard(first_expert_).weights;
  auto const type = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].dtype; };
  ExpertWindowArgs args;
  ExpertsArgs& e = args.experts;
  e.x = on_device ? rows_->x : at<float>(false, l.expert_x);
  e.workspace = at<std::byte>(on_device, room.workspace);
  e.n_slots = room.slots;
  e.n_tokens = rows_->n_rows;
  e.n_used = n_used();
  e.dim = env_->config->dim;
  e.hidden_dim = rows_->config->hidden_dim;
  e.activation = rows_->activation;
  e.gate_type = type(0);
  e.up_type = type(1);
  e.down_type = type(2);
  args.ids = on_device ? rows_->ids : at<std::int32_t>(false, l.expert_ids);
  args.ranks = at<std::int32_t>(on_device, l.expert_ranks);
  args.weights = table(on_device);
  args.begins = at<std::int32_t>(on_device, l.expert_counts);
  args.slots = at<std::int32_t>(on_device, l.expert_slots);
  args.places = at<std::int32_t>(on_device, l.expert_places);
  args.x_rows = at<std::byte>(on_device, l.expert_x_rows);
  args.n_experts = n_experts();
  args.layer = rows_->layer;
  args.slot_weights = on_device ? rows_->weights : at<float>(false, l.expert_weights);
  args.sum = on_device ? rows_->hidden : at<float>(false, l.hidden);
  args.from_zero = !on_device;
  return args;
}

/// False where no row was routed to any of these.
bool SharedFlow::run_on_host(ExpertFlow const& flow, Range ranks) {
  std::ranges::copy(flow.ranks(), at<std::int32_t>(false, env_->layout->expert_ranks));
  std::uint64_t n_rows = 0;
  std::size_t bytes = 0;
  ExpertGroup* const groups = table(false);  // of other ranks it has the device's addresses, on their way there
  for (std::int32_t rank = ranks.begin; rank < ranks.end; ++rank) {
    std::int32_t const e = flow.order()[std::size_t(rank)], n = n_rows_of_[std::size_t(e)];
    if (n == 0) continue;
    Shard const& s = env_->table.shard(ShardId(std::uint32_t(first_expert_) + std::uint32_t(e)));
    auto const data = [&](std::int32_t i) { return env_->table.weights[std::size_t(s.weights.begin + i)].data; };
    groups[rank] = {data(0), data(1), data(2), 0, 0};
    n_rows += std::uint64_t(n);
    bytes += s.bytes;
    ++counters_.n_host_experts;
  }
  counters_.n_host_rows += n_rows;
  if (n_rows == 0) return false;
  Ticket const begin = env_->trace != nullptr ? env_->host.record() : Ticket{};
  env_->host.wait_for(rows_there_);
  ExpertWindowArgs args = args_on(false);
  tiered::launch(env_->host.kernels().group_slots, args, env_->host.queue());
  args.first_expert = ranks.begin;
  args.end_expert = ranks.end;
  tiered::launch(env_->host.kernels().expert_window, args, env_->host.queue());
  host_done_ = env_->host.record();
  if (env_->trace != nullptr) {
    Action const a{ActionKind::fetch_routed, host_device, first_expert_, {}, {0, rows_->n_rows}, 0, bytes};
    env_->trace->push_back({a, TraceLane::host, begin, host_done_});
  }
  return true;
}

void SharedFlow::add_host_sum() {
  float* const sum = at<float>(true, room().sum);
  env_->device.wait_for(env_->rows_copy->submit(
      {reinterpret_cast<std::byte*>(sum), reinterpret_cast<std::byte const*>(at<float>(false, env_->layout->hidden)), x_bytes()},
      host_done_));
  tiered::launch(env_->device.kernels().add, AddArgs{sum, rows_->hidden, std::int64_t(rows_->n_rows) * env_->config->dim},
                 env_->device.queue());
}

}  // namespace tiered
