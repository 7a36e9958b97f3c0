/// Defines the part of FewRouted for steps that are enqueued as a whole: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/pipeline/few_routed.hpp"

namespace tiered {

bool FewRouted::can_help(std::int32_t layer) const {
  KernelTable const& k = env_->device.kernels();
  LayerConfig const& config = env_->config->layers[std::size_t(layer)];
  if (config.feed_forward != FeedForwardKind::experts || layer >= 1023) return false;
  ShardId const first = addresses_.first_expert(layer);
  auto const in_words = [&](std::int32_t matrix) {  // as parts of a transfer are; all experts follow each other
    Weight const& w = env_->table.weights[std::size_t(env_->table.shard(first).weights.begin + matrix)];
    return (reinterpret_cast<std::uintptr_t>(w.data) | w.bytes()) % sizeof(std::uint32_t) == 0;
  };
  return env_->host_access.activations && env_->host_access.weights && env_->host.queue_now().native != nullptr &&
         !env_->plan->deterministic && k.help != nullptr && k.transfer != nullptr && k.routed_experts != nullptr &&
         type_of(first, 0) == type_of(first, 1) && in_words(0) && in_words(1) && in_words(2) &&
         config.experts.n_experts_used <= HelpLog::max_used && k.fuses(type_of(first, 0), 1, env_->config->dim) &&
         k.fuses(type_of(first, 2), 1, config.hidden_dim);
}

void FewRouted::open_mail() {
  helped_.resize(env_->config->layers.size());
  for (Helped& h : helped_) h.served = 0;
  new (&mail()) HelpMail;
  std::fill_n(host_at<float>(env_->layout->help_zeros), env_->config->dim, 0.0f);
  has_mail_ = true;
  looks_ahead_ = pays_to_look_ahead();
  set_reserve();
  if (looks_ahead_) ahead_.open_mail();
}

void FewRouted::take_over(FewRouted const& other) {
  helped_ = other.helped_;
  help_counters_ = other.help_counters_;
  ahead_.take_over(other.ahead_);
}

// ---- what is enqueued

void FewRouted::enqueue_step() {
  ActivationLayout const& l = *env_->layout;
  TransferArgs args;
  args.parts[0] = {&mail().step, &reinterpret_cast<HelpState*>(env_->device_base + l.help)->step, std::int32_t(sizeof(std::uint64_t))};
  args.parts[1] = {host_at<float>(l.help_zeros), env_->device_base + l.help_sum, env_->config->dim * std::int32_t(sizeof(float))};
  // Another plan may have had its rows where this is: any number could stand there.
  args.parts[2] = {host_at<float>(l.help_zeros), &reinterpret_cast<HelpState*>(env_->device_base + l.help)->decided,
                   std::int32_t(sizeof(HelpState) - offsetof(HelpState, decided))};
  args.n_parts = 3;
  tiered::launch(env_->device.kernels().transfer, args, env_->device.queue());
  if (env_->trace == nullptr) return;
  HelpArgs stamp;
  stamp.log = &log(std::int32_t(env_->config->layers.size()));
  tiered::launch(env_->device.kernels().help, stamp, env_->device.queue());
}

void FewRouted::enqueue(RoutedRows const& rows, ShardId first_expert) {
  Helped& h = helped_[std::size_t(rows.layer)];
  h = {rows, first_expert, h.served};
  rows_ = &h.rows;
  first_expert_ = first_expert;
  launch_helped(h.rows);
  HelpArgs const help = help_args(h.rows);
  tiered::launch(env_->device.kernels().help, help, env_->device.queue());
  if (!help.copies) return;
  List const there = list_at(env_->device_base, 0);
  RoutedExpertsArgs fetched = launch_args(there.ids, there.weights, there.groups, n_used());
  fetched.experts.x = help.row.y;
  tiered::launch(env_->device.kernels().routed_experts, fetched, env_->device.queue());
}

HelpArgs FewRouted::help_args(RoutedRows const& rows) const {
  ActivationLayout const& l = *env_->layout;
  bool const normed = rows.norm.x == nullptr;
  HelpArgs help;
  help.mail = &mail();
  help.state = reinterpret_cast<HelpState*>(env_->device_base + l.help);
  help.experts = table_of(rows.layer);
  help.ids = rows.ids;
  help.weights = rows.weights;
  help.row = normed ? RmsNormArgs{rows.x, nullptr, nullptr, 1, env_->config->dim, -1.0f} : rows.norm;
  help.row.y = reinterpret_cast<float*>(env_->device_base + l.expert_x);
  help.sum = reinterpret_cast<float*>(env_->device_base + l.help_sum);
  help.hidden = rows.hidden;
  help.fetched_ids = list_at(env_->device_base, 0).ids;
  help.host_ids = host_at<std::int32_t>(l.expert_ids);
  help.host_weights = host_at<float>(l.expert_weights);
  help.host_row = host_at<float>(l.expert_x);
  help.host_sum = host_at<float>(l.expert_sum);
  help.log = &log(rows.layer);
  help.n_used = n_used();
  help.n_experts = rows.config->experts.n_experts;
  help.dim = env_->config->dim;
  help.layer = rows.layer;
  if (looks_ahead_) help.guesses = guesses_;
  help.copies = env_->plan->fetched_misses > 0;
  if (env_->help_patience_ns > 0) help.patience_ns = env_->help_patience_ns;
  return help;
}

/// The experts that are in VRAM. Their sum stands beside the hidden row, of which the host may need what it was before.
void FewRouted::launch_helped(RoutedRows const& rows) {
  RoutedExpertsArgs args = launch_args(rows.ids, rows.weights, table_of(rows.layer), rows.config->experts.n_experts);
  args.sum = reinterpret_cast<float*>(env_->device_base + env_->layout->help_sum);
  args.route = rows.route;
  if (rows.norm.x != nullptr) {
    args.experts.x = rows.norm.x;
    args.norm = true;
    args.norm_weight = rows.norm.weight;
    args.eps = rows.norm.eps;
  }
  tiered::launch(env_->device.kernels().routed_experts, args, env_->device.queue());
}

// ---- a step

void FewRouted::begin_step(std::uint64_t step) {
  step_ = step;
  if (addresses_.refresh()) {
    env_->copy->wait(env_->copy->last());  // it reads the tables, which are about to change
    forget_coming();
  }
  note_arrivals(coming_.size());
  evicted_.clear();
  keep_reserve();
  clear_evicted();
  addresses_.is_current();
  addresses_.send_changes();
  HelpMail& m = mail();
  m.step = step;
  m.timed_out = 0;
  served_ = m.request;  // the last one of a step that was given up has no answer
  std::atomic_ref(m.given_up).store(0, std::memory_order_release);
  guessed_.clear();
  evicted_.clear();
  requested_layer_ = -1;
  read_.clear();
  read_for_ = -1;
  paced_ = -1;
  if (looks_ahead_) ahead_.begin_step(step);
}

bool FewRouted::serve() {
  HelpMail& m = mail();
  std::uint64_t const number = std::atomic_ref(m.request).load(std::memory_order_acquire);
  if (number == served_) return false;
  double const asked_s = steady_seconds();
  served_ = number;
  ++help_counters_.n_requests;
  std::int32_t const layer = m.layer;  // a device that has lost patience writes the next one's
  if (layer < 0 || std::size_t(layer) >= helped_.size() || helped_[std::size_t(layer)].rows.config == nullptr)
    throw Error(Errc::device, concat("the device asks for help in layer ", layer, " of ", helped_.size()));
  Helped& h = helped_[std::size_t(layer)];
  rows_ = &h.rows;
  first_expert_ = h.first_expert;
  h.served = step_;
  list_experts();
  note_arrivals(HelpMail::max_parts / 4);
  find_helped(m.missing);
  requested_layer_ = layer;
  ahead_.reach(layer);
  note_reached(asked_s);
  share_helped_misses();
  keep_reserve();
  clear_evicted();
  list_parts();
  std::atomic_ref(m.decided).store(number, std::memory_order_release);
  double const decided_s = steady_seconds();
  HostWork work;
  bool const uses_host = list_host_work(work);
  if (uses_host) {
    tiered::launch(env_->host.kernels().experts, work.experts, env_->host.queue_now());
    tiered::launch(env_->host.kernels().combine, work.sum, env_->host.queue_now());
  }
  double const computed_s = steady_seconds();
  wait_for_late();
  double const there_s = steady_seconds();
  m.has_sum = uses_host;
  std::atomic_ref(m.answered).store(number, std::memory_order_release);
  read_ahead();  // before copies are submitted, which takes some 12 us each
  count_request(asked_s, decided_s, computed_s, there_s);
  bring_for_later();  // the device knows already that who was there has gone
  after_.clear();
  addresses_.is_current();
  unpin_helped();
  return true;
}

void FewRouted::count_request(double asked_s, double decided_s, double computed_s, double there_s) {
  HelpCounters& c = help_counters_;
  if (std::ptrdiff_t const n = std::ranges::count(experts_, Where::host, &Expert::where); n > 0) {
    double const each_s = (computed_s - decided_s) / double(n);
    host_each_s_ += (each_s - host_each_s_) * (host_each_s_ > 0 ? 1.0 / 16 : 1.0);
  }
  c.decide_s += decided_s - asked_s;
  c.host_s += computed_s - decided_s;
  c.late_s += there_s - computed_s;
  for (Expert const& e : experts_) {
    c.n_on_host += e.where == Where::host;
    c.n_late += e.late;
    c.n_fetched += e.where == Where::fetched && !e.late;
    c.n_for_later += e.for_later;
  }
}

/// In whole experts, so that the host and the link end together as nearly as can be. One that the link does not bring now may come for
/// later. What is on its way takes the link, too: half a copy each, on the average. A kernel reads what the link brings now: what the
/// device may not read in place, not yet or never, is the host's, and the copy engine's for later.
void FewRouted::share_helped_misses() {
  evicted_.clear();
  std::ptrdiff_t const n = std::ranges::count_if(experts_, &Expert::may_be_fetched);
  double const link_share = double(env_->plan->fetched_misses), on_way = double(on_way_.size()) / 2;
  auto const is_read = [&](Expert const& e) { return std::ranges::find(read_, e.shard) != read_.end(); };
  std::ptrdiff_t const n_read = std::ranges::count_if(experts_, [&](Expert const& e) { return e.may_be_fetched && is_read(e); });
  auto const seconds = [&](std::ptrdiff_t n_fetched) {  // in units of an expert by both at once; those that are not read go first
    double const cheap = double(std::min(n_read, n - n_fetched)), host = double(n - n_fetched) - cheap * (1 - read_expert_share);
    return std::max(host * link_share, (double(n_fetched) + on_way) * (1 - link_share));
  };
  std::ptrdiff_t n_fetch = 0;
  std::ptrdiff_t const n_readable = std::ranges::count_if(experts_, &Expert::may_be_read);
  for (std::ptrdiff_t k = 1; k <= n_readable && link_share > 0; ++k) {
    if (seconds(k) <= seconds(n_fetch)) n_fetch = k;
  }
  for (bool const read : {false, true}) {
    for (Expert& e : experts_) {
      if (n_fetch == 0) break;
      if (!e.may_be_read || e.where == Where::fetched || is_read(e) != read || !env_->cache->policy().admit(e.shard)) continue;
      if (!take_room(e)) return;
      e.where = Where::fetched;
      --n_fetch;
    }
  }
  if (may_bring_ahead() && (!looks_ahead_ || !ahead_.next(1, [&](ShardId id) { return is_wanted(id); }))) bring_one_for_later();
}

/// Those whose copies are done, as long as there are fewer changes than that.
void FewRouted::note_arrivals(std::size_t most_changes) {
  std::erase_if(coming_, [&](Coming const& c) {
    if ((!c.tells && addresses_.changes().size() >= most_changes) || !env_->copy->done(c.filled)) return false;
    std::byte const* const base = base_of(*env_->cache->peek(c.shard));
    c.tells ? addresses_.note(c.shard, base) : addresses_.set(c.shard, base);
    if (c.pinned != nullptr) --c.pinned->pins;
    return true;
  });
}

/// Fetched experts' weights; who goes and who comes in the device's tables; the list of fetched experts.
void FewRouted::list_parts() {
  HelpMail& m = mail();
  m.n_parts = 0;
  auto const add = [&](TransferArgs::Part const& part) {
    expects(m.n_parts < HelpMail::max_parts, "FewRouted: more changes at a layer than HelpMail has room for");
    m.parts[m.n_parts++] = part;
  };
  bool any = false;
  for (Expert const& e : experts_) {
    if (e.where != Where::fetched) continue;
    any = true;
    if (e.late && coming(e.shard) != nullptr) continue;  // its copy tells
    addresses_.set(e.shard, base_of(*e.entry));          // of one that came too late once more: its entry may have been overwritten
    if (e.late) continue;
    for (std::int32_t i = shard(e).weights.begin; i < shard(e).weights.end; ++i) {
      Weight const& w = env_->table.weights[std::size_t(i)];
      add({w.data, base_of(*e.entry) + w.offset, std::int32_t(w.bytes())});
    }
  }
  // Where experts' sizes differ, many may have to go before there is room for one.
  if (addresses_.changes().size() <= std::size_t(HelpMail::max_parts) / 2) {
    for (TransferArgs::Part const& part : addresses_.changes()) add(part);
  } else {
    // A copy that is on its way enters its expert in parts: none may stand between the whole table's.
    if (!on_way_.empty()) env_->copy->wait(on_way_.back());
    add(addresses_.all());
  }
  addresses_.changes().clear();
  if (!any) return;
  List const here = list_at(env_->host_base, 0);
  fill_list(here);
  std::ptrdiff_t const bytes = reinterpret_cast<std::byte*>(here.weights + n_slots()) - reinterpret_cast<std::byte*>(here.groups);
  add({here.groups, list_at(env_->device_base, 0).groups, std::int32_t(bytes)});
}

/// What is brought for later stays pinned until the device knows of it: another expert's weights in its place would come too soon.
void FewRouted::unpin_helped() {
  for (Expert const& e : experts_) {
    if (e.entry == nullptr) continue;
    if (e.for_later) {
      std::ranges::find(coming_, e.shard, &Coming::shard)->pinned = e.entry;
    } else {
      --e.entry->pins;
    }
  }
}

bool FewRouted::timed_out() {
  if (mail().timed_out == 0) return false;
  ++help_counters_.n_timed_out;
  return true;
}

void FewRouted::end_step() {
  ++help_counters_.n_steps;
  count_guessed();
  for (std::size_t layer = 0; layer < helped_.size(); ++layer) {
    Helped const& h = helped_[layer];
    if (h.rows.config == nullptr) continue;
    HelpLog const& used = log(std::int32_t(layer));
    if (used.asked_ns != 0) help_counters_.device_s += 1e-9 * double(used.answered_ns - used.asked_ns);
    if (h.served == step_) continue;
    for (std::int32_t j = 0; j < h.rows.config->experts.n_experts_used; ++j) {
      if (used.ids[j] < 0 || used.ids[j] >= h.rows.config->experts.n_experts) continue;
      ShardId const id = ShardId(std::uint32_t(h.first_expert) + std::uint32_t(used.ids[j]));
      if (env_->plan->shards[std::size_t(id)].cached) env_->cache->find(id, step_);
    }
  }
}

/// What the device did from before the stamp to after the last layer. Copies are those that its kernels made for requests.
void FewRouted::trace_step(Ticket begin, Ticket end) {
  auto const attention_of = [&](std::int32_t layer) {
    return std::ranges::find_if(env_->table.shards, [&](Shard const& s) { return s.layer == layer && s.kind == ShardKind::attention; })->id;
  };
  std::uint64_t const origin = log(std::int32_t(helped_.size())).begin_ns;
  std::uint64_t last = origin;
  auto const add = [&](ActionKind kind, DeviceId device, ShardId shard, std::uint64_t from, std::uint64_t to) {
    env_->trace->push_back({{kind, device, shard, {}, {0, 1}, 0, 0},
                            TraceLane::device,
                            begin,
                            end,
                            {double(from - origin) * 1e-9, double(to - origin) * 1e-9}});
  };
  for (std::size_t layer = 0; layer < helped_.size(); ++layer) {
    Helped const& h = helped_[layer];
    if (h.rows.config == nullptr) continue;
    HelpLog const& at = log(std::int32_t(layer));
    add(ActionKind::run, first_gpu, attention_of(std::int32_t(layer)), last, at.begin_ns);
    add(ActionKind::fetch_routed, first_gpu, h.first_expert, at.begin_ns, at.end_ns);
    if (at.asked_ns != 0) add(ActionKind::fetch_routed, host_device, h.first_expert, at.asked_ns, at.answered_ns);
    last = at.end_ns;
    if (at.asked_ns == 0 || at.copied_ns <= at.decided_ns) continue;
    add(ActionKind::copy, first_gpu, h.first_expert, at.decided_ns, at.copied_ns);
    last = std::max(last, at.copied_ns);  // nothing begins before
  }
}

void FewRouted::give_up() noexcept {
  if (!has_mail_) return;
  HelpMail& m = mail();
  std::atomic_ref(m.n_parts).store(0, std::memory_order_relaxed);  // a request may be about to copy them
  std::atomic_ref(m.given_up).store(1, std::memory_order_release);
}

}  // namespace tiered
