/// Attention of one row to keys and values of which some are in host memory, in a step that is enqueued as a whole.
#pragma once

#include <cstdint>
#include <vector>

#include "tiered/model/batch.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/pipeline/few_routed.hpp"
#include "tiered/pipeline/read_balance.hpp"

namespace tiered {

/// The device stores the row's keys and values wherever their home is, posts its queries, attends to the positions in VRAM and, over the
/// link, to the first of those in host memory, and adds what the host found in the others (HelpAttentionArgs): host's memory is read by
/// both at once, and nothing is handed over but a few KB that each side reads or writes in place. Which positions are whose depends on
/// the row's position and a share (PositionShare) that begins as planned and moves with what steps take (ReadBalance), which may show in a
/// sum's last bits: with ShardPlan::deterministic the host is not asked within a launch. Parts are added in this order: the device's, the
/// host's.
/// Needs a device that reads and writes host_base and keys and values in host memory by their own addresses, through page lists of its own.
/// Threads  one.
class HelpedAttention {
 public:
  HelpedAttention(ExpertsEnvironment const& env, KvCache const& kv) : env_(&env), kv_(&kv) {}

  /// Whether both devices have what it takes, under this plan.
  bool can_help() const;
  /// For a plan that is new: whatever lies in its buffers is of no use.
  void open_mail();
  /// Of a layer: who reads what, in the step that began last.
  PositionShare share_of(std::int32_t layer) const;
  /// The largest position that the device reads by itself.
  std::int32_t last_read(std::int32_t layer) const;

  /// The first launches of a step; then, at each layer with positions in host memory, attention: `own` is all of the device's part, on
  /// the device, with out, log_sum_exp and workspace. May be captured: nothing in it changes from step to step.
  void enqueue_step();
  void enqueue(AttentionArgs own, std::int32_t layer);
  /// Before a step of a row at this position is launched; rows' numbers are in the host's buffers.
  void begin_step(std::uint64_t step, std::int32_t position);
  /// Answers a request, if there is one; else false, at once.
  /// Errors  Errc::device for a layer that is none; those of the host's attention.
  bool serve();
  /// After the device has ended the step: whether it waited in vain, so that what it computed is of no use.
  bool timed_out();
  /// After the device has ended a step that was not: the next one's share may be another.
  void end_step();
  /// Waiting ends, now or once the device comes to it, until the next begin_step(). Any state.
  void give_up() noexcept;
  /// For the trace, of a step enqueued with one, which began at origin_ns by the device's clock: what the host did, and what crossed.
  void trace_step(Ticket begin, Ticket end, std::uint64_t origin_ns) const;

  /// Of attention alone.
  HelpCounters const& help_counters() const { return counters_; }

 private:
  /// In the host's scratch for steps: nothing is alive there while the device runs a step by itself.
  struct HostPart {
    float *q = nullptr, *out = nullptr, *log_sum_exp = nullptr;
    std::byte* workspace = nullptr;
  };
  HostPart host_part(std::int32_t layer) const;
  /// Of a layer in the step that began last, positions in host memory.
  struct HostPositions {
    std::int32_t n_read, n_asked;  ///< over the link; by the host
  };
  HostPositions host_positions(std::int32_t layer) const;
  AttentionConfig const& config(std::int32_t layer) const { return env_->config->layers[std::size_t(layer)].attention; }
  AttentionMail& mail() const { return *reinterpret_cast<AttentionMail*>(env_->host_base + env_->layout->help_kv); }
  AttentionHelpLog& log(std::int32_t layer) const { return reinterpret_cast<AttentionHelpLog*>(&mail() + 1)[layer]; }
  /// Behind it, as in AttentionMail, the step's share.
  std::uint64_t* step_on_device() const { return reinterpret_cast<std::uint64_t*>(env_->device_base + env_->layout->help_kv); }
  std::int32_t n_layers() const { return std::int32_t(env_->config->layers.size()); }

  ExpertsEnvironment const* env_;
  KvCache const* kv_;
  bool has_mail_ = false;
  std::uint64_t served_ = 0;
  std::int32_t position_ = 0;  ///< of the step's row
  std::int32_t read_ = 0;      ///< PositionShare::read of the step
  ReadBalance balance_;
  std::vector<double> host_s_;  ///< of the step's requests, by layer: the host's part
  HelpCounters counters_;
};

}  // namespace tiered
