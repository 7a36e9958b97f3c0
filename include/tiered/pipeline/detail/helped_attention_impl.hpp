/// Defines HelpedAttention: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/helped_attention.hpp"
#include "tiered/pipeline/step_context.hpp"

namespace tiered {

bool HelpedAttention::can_help() const {
  KernelTable const &device = env_->device.kernels(), &host = env_->host.kernels();
  std::uint32_t const type = std::uint32_t(kv_->type());
  return env_->host_access.activations && env_->host_access.kv && env_->host.queue_now().native != nullptr && !env_->plan->deterministic &&
         env_->layout->kv_stream.half_pages == 0 && env_->config->layers.size() < 1023 && device.attention_ask != nullptr &&
         device.attention_answer != nullptr && device.transfer != nullptr && device.attention[type] != nullptr &&
         device.kv_write[type] != nullptr && host.attention[type] != nullptr;
}

void HelpedAttention::open_mail() {
  new (&mail()) AttentionMail;
  std::uninitialized_fill_n(&log(0), n_layers(), AttentionHelpLog{});
  served_ = 0;
  has_mail_ = true;
  host_s_.assign(std::size_t(n_layers()), 0);
  balance_.begin(std::int32_t(std::lround(double(env_->plan->state_read_share) * PositionShare::whole)), env_->plan->state_read_tokens);
  read_ = balance_.read();
}

PositionShare HelpedAttention::share_of(std::int32_t layer) const {
  PositionShare share;
  share.border = kv_->vram_tokens(layer);
  share.read = read_;
  share.ahead = env_->plan->state_read_tokens;
  return share;
}

std::int32_t HelpedAttention::last_read(std::int32_t layer) const {
  PositionShare const share = share_of(layer);
  return std::max(share.read > 0 ? kv_->max_tokens() : share.border, 1) - 1;
}

HelpedAttention::HostPart HelpedAttention::host_part(std::int32_t layer) const {
  AttentionConfig const& c = config(layer);
  std::size_t const n_heads = std::size_t(c.n_heads), row_bytes = n_heads * std::size_t(c.head_dim) * sizeof(float);
  Scratch scratch(env_->host_base + env_->layout->step, env_->layout->step_bytes);
  HostPart part;
  part.q = static_cast<float*>(scratch.take(row_bytes));
  part.out = static_cast<float*>(scratch.take(row_bytes));
  part.log_sum_exp = static_cast<float*>(scratch.take(n_heads * sizeof(float)));
  part.workspace = static_cast<std::byte*>(scratch.take(attention_workspace_bytes(1, c.n_heads, c.head_dim, kv_->max_tokens() - 1)));
  return part;
}

// ---- what is enqueued

void HelpedAttention::enqueue_step() {
  TransferArgs args;
  static_assert(offsetof(AttentionMail, read) == offsetof(AttentionMail, step) + sizeof(std::uint64_t));
  args.parts[0] = {&mail().step, step_on_device(), std::int32_t(sizeof(std::uint64_t) + sizeof(std::int32_t))};
  args.n_parts = 1;
  tiered::launch(env_->device.kernels().transfer, args, env_->device.queue());
}

void HelpedAttention::enqueue(AttentionArgs own, std::int32_t layer) {
  HostPart const host = host_part(layer);
  own.share = share_of(layer);
  own.share.read_now = reinterpret_cast<std::int32_t const*>(step_on_device() + 1);
  HelpAttentionArgs args;
  args.mail = &mail();
  args.step = step_on_device();
  args.row = own.rows;
  args.q = own.q;
  args.out = own.out;
  args.log_sum_exp = own.log_sum_exp;
  args.log = &log(layer);
  args.host_q = host.q;
  args.host_part = host.out;
  args.host_log_sum_exp = host.log_sum_exp;
  args.n_heads = own.n_heads;
  args.head_dim = own.head_dim;
  args.layer = layer;
  args.window = own.window;
  args.share = own.share;
  if (env_->help_patience_ns > 0) args.patience_ns = env_->help_patience_ns;
  KernelTable const& k = env_->device.kernels();
  tiered::launch(k.attention_ask, args, env_->device.queue());
  tiered::launch(k.attention[std::uint32_t(kv_->type())], own, env_->device.queue());
  tiered::launch(k.attention_answer, args, env_->device.queue());
}

// ---- a step

void HelpedAttention::begin_step(std::uint64_t step, std::int32_t position) {
  position_ = position;
  AttentionMail& m = mail();
  m.step = step;
  m.read = read_ = balance_.read();
  m.timed_out = 0;
  served_ = m.request;  // the last one of a step that was given up has no answer
  std::atomic_ref(m.given_up).store(0, std::memory_order_release);
}

bool HelpedAttention::serve() {
  AttentionMail& m = mail();
  std::uint64_t const number = std::atomic_ref(m.request).load(std::memory_order_acquire);
  if (number == served_) return false;
  served_ = number;
  double const begin_s = steady_seconds();
  ++counters_.n_attention_requests;
  std::int32_t const layer = m.layer;  // a device that has lost patience writes the next one's
  if (layer < 0 || layer >= n_layers())
    throw Error(Errc::device, concat("the device asks for attention in layer ", layer, " of ", n_layers()));
  AttentionConfig const& c = config(layer);
  HostPart const host = host_part(layer);
  AttentionArgs args;
  args.q = host.q;
  args.rows = reinterpret_cast<KvRow const*>(env_->host_base + env_->layout->kv_rows);
  args.tables = kv_->tables(layer);
  args.out = host.out;
  args.log_sum_exp = host.log_sum_exp;
  args.workspace = host.workspace;
  args.n_tokens = 1;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = kv_->page_tokens();
  args.max_position = position_;
  args.window = c.window;
  args.scale = c.scale;
  args.positions.begin = share_of(layer).host_begin(c.window > 0 ? std::max(position_ - c.window + 1, 0) : 0, position_);
  tiered::launch(env_->host.kernels().attention[std::uint32_t(kv_->type())], args, env_->host.queue_now());
  std::atomic_ref(m.answered).store(number, std::memory_order_release);
  host_s_[std::size_t(layer)] = steady_seconds() - begin_s;
  counters_.attention_host_s += host_s_[std::size_t(layer)];
  return true;
}

bool HelpedAttention::timed_out() {
  if (mail().timed_out == 0) return false;
  ++counters_.n_timed_out;
  return true;
}

void HelpedAttention::end_step() {
  for (std::int32_t layer = 0; layer < n_layers(); ++layer) {
    AttentionHelpLog const& at = log(layer);
    if (kv_->in_vram(layer) || at.asked_ns == 0) continue;
    double const device_s = double(at.own_ns - at.asked_ns) * 1e-9, answered_s = double(at.answered_ns - at.asked_ns) * 1e-9;
    counters_.attention_device_s += device_s;
    counters_.attention_waited_s += answered_s - device_s;
    HostPositions const n = host_positions(layer);
    balance_.add({n.n_read, n.n_asked, device_s, answered_s, host_s_[std::size_t(layer)]});
  }
  balance_.end_step();
  counters_.attention_read_share = double(read_) / PositionShare::whole;
}

HelpedAttention::HostPositions HelpedAttention::host_positions(std::int32_t layer) const {
  AttentionConfig const& c = config(layer);
  std::int32_t const first = c.window > 0 ? std::max(position_ - c.window + 1, 0) : 0, border = std::max(first, kv_->vram_tokens(layer)),
                     begin = share_of(layer).host_begin(first, position_);
  return {std::max(begin - border, 0), std::max(position_ + 1 - begin, 0)};
}

void HelpedAttention::give_up() noexcept {
  if (has_mail_) std::atomic_ref(mail().given_up).store(1, std::memory_order_release);
}

void HelpedAttention::trace_step(Ticket begin, Ticket end, std::uint64_t origin_ns) const {
  for (Shard const& s : env_->table.shards) {
    if (s.kind != ShardKind::attention || kv_->in_vram(s.layer)) continue;
    AttentionHelpLog const& at = log(s.layer);
    auto const add = [&](ActionKind kind, DeviceId device, std::uint64_t from, std::uint64_t to, std::size_t bytes) {
      env_->trace->push_back({{kind, device, s.id, {}, {0, 1}, 0, bytes},
                              TraceLane::device,
                              begin,
                              end,
                              {double(from - origin_ns) * 1e-9, double(to - origin_ns) * 1e-9}});
    };
    std::int32_t const n_read = host_positions(s.layer).n_read;
    std::size_t const token_bytes = 2 * kv_->page_bytes(s.layer) / std::size_t(kv_->page_tokens());
    if (n_read > 0) add(ActionKind::copy, first_gpu, at.begin_ns, at.own_ns, std::size_t(n_read) * token_bytes);
    if (at.asked_ns == 0) continue;
    // When it was at work is known by its own clock only: until the device had the answer, if that waited, or else from the request on.
    auto const host_ns = std::uint64_t(1e9 * host_s_[std::size_t(s.layer)]);
    std::uint64_t const end_ns = at.answered_ns > at.own_ns ? at.answered_ns : std::min(at.answered_ns, at.asked_ns + host_ns);
    add(ActionKind::run, host_device, end_ns > at.asked_ns + host_ns ? end_ns - host_ns : at.asked_ns, end_ns, 0);
  }
}

}  // namespace tiered
