/// A device made of the reference kernels: behind a lane, with memory that must be copied to, its launches listed by name, and
/// launches that can be captured and repeated.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/reference/help.hpp"
#include "tiered/kernels/reference/help_attention.hpp"
#include "tiered/kernels/reference/table.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/sim/sim_tier.hpp"

namespace tiered::test {

class ReferenceDevice {
 public:
  using Memory = SimTier;

  ReferenceDevice(std::shared_ptr<LaneSet> lanes, KernelTable const& reference, std::size_t memory_bytes, std::string lane_name)
      : lanes_(std::move(lanes)), lane_(lanes_->open(std::move(lane_name))), reference_(&reference), memory_(memory_bytes) {
    wrap_all();
  }
  ReferenceDevice(ReferenceDevice const&) = delete;
  ReferenceDevice& operator=(ReferenceDevice const&) = delete;
  ~ReferenceDevice() { lanes_->drain(lane_); }

  KernelTable const& kernels() const { return table_; }
  Queue queue() const { return {const_cast<Target*>(&queued_)}; }
  Queue queue_now() const { return {may_run_now ? const_cast<Target*>(&now_) : nullptr}; }
  Memory& memory() { return memory_; }
  void wait_for(Ticket ticket) {
    outside_of_capture();
    ++n_waits;
    lanes_->wait_for(lane_, ticket);
  }
  Ticket record() {
    outside_of_capture();
    return lanes_->record(lane_);
  }
  void synchronize() {
    outside_of_capture();
    lanes_->synchronize(lane_);
  }
  bool done(Ticket ticket) { return lanes_->done(ticket); }
  void recover() { lanes_->clear_errors(); }
  /// With a lane set of threads only: the op waits for another thread.
  void offer_help() {
    table_.help = [](HelpArgs const& args, Queue q) {
      ReferenceDevice* const self = static_cast<Target const*>(q.native)->self;
      HelpArgs const* const kept = self->kept_help_.emplace_back(std::make_unique<HelpArgs const>(args)).get();
      return self->enqueue_task("help", [self, kept] {
        HelpArgs own = *kept;
        if (self->before_help) self->before_help(own);
        reference::help(own);
        if (self->after_help) self->after_help(own);
      });
    };
    table_.router_ahead = [](RouterAheadArgs const& args, Queue q) {
      ReferenceDevice* const self = static_cast<Target const*>(q.native)->self;
      RouterAheadArgs const* const kept = self->kept_.emplace_back(std::make_unique<RouterAheadArgs const>(args)).get();
      return self->enqueue_task("router_ahead", [self, kept] {
        if (self->before_router) self->before_router(*kept);
        reference::router_ahead(*kept);
      });
    };
    table_.attention_ask = [](HelpAttentionArgs const& args, Queue q) {
      return enqueue_on<HelpAttentionArgs>(
          q, [](HelpAttentionArgs const& a, Queue) { return reference::attention_ask(a), 0; }, args);
    };
    table_.attention_answer = [](HelpAttentionArgs const& args, Queue q) {
      ReferenceDevice* const self = static_cast<Target const*>(q.native)->self;
      HelpAttentionArgs own = args;
      if (self->attention_patience_ns > 0) own.patience_ns = self->attention_patience_ns;
      return self->enqueue_task("help_attention", [self, own] {
        reference::attention_answer(own);
        if (self->after_attention) self->after_attention(own);
      });
    };
  }
  /// On the device's thread, before the op, which may be another one by then.
  std::function<void(RouterAheadArgs const&)> before_router;
  std::function<void(HelpArgs&)> before_help;
  std::function<void(HelpArgs const&)> after_help;                ///< behind the op: the mail has what it was given
  std::function<void(HelpAttentionArgs const&)> after_attention;  ///< behind attention_answer
  std::uint64_t attention_patience_ns = 0;                        ///< of what is enqueued from then on; 0: as it says

  /// What a capture gives: moved, not copied, as a device's graphs are.
  struct Graph {
    Graph() = default;
    Graph(Graph&&) = default;
    Graph& operator=(Graph&&) = default;
    std::vector<LaneTask> tasks;
  };
  bool can_capture() const { return may_capture; }
  void begin_capture() {
    outside_of_capture();
    capturing_ = true;
    captured_ = {};
  }
  Graph end_capture() {
    expects(capturing_, "end_capture() ends a capture");
    capturing_ = false;
    ++n_graphs;
    return std::move(captured_);
  }
  void abandon_capture() noexcept { capturing_ = false; }
  bool capturing() const { return capturing_; }
  void launch_graph(Graph const& graph) {
    outside_of_capture();
    ++n_graph_launches;
    for (LaneTask const& task : graph.tasks) lanes_->submit(lane_, task);
  }

  /// Since the test emptied it; what a graph repeats is not listed.
  std::vector<std::string> launches;
  std::size_t n_waits = 0, n_graphs = 0, n_graph_launches = 0;
  bool may_capture = false;
  bool may_run_now = false;               ///< queue_now(): launches that are done when they return
  std::size_t fail_at = ~std::size_t{0};  ///< the launch that returns a status other than 0

 private:
  struct Target {
    ReferenceDevice* self;
    bool now;
  };
  void outside_of_capture() const { expects(!capturing_, "within a capture a device neither waits nor records"); }

  template <class Args>
  static std::string name_of(Args const&) {
    return "other";
  }
  static std::string name_of(RmsNormArgs const&) { return "norm"; }
  static std::string name_of(MatmulArgs const&) { return "matmul"; }
  static std::string name_of(QuantizeArgs const&) { return "convert"; }
  static std::string name_of(ConvertNormedArgs const&) { return "norm+convert"; }
  static std::string name_of(ConvertGatedArgs const&) { return "gated+convert"; }
  static std::string name_of(RopeArgs const&) { return "rope"; }
  static std::string name_of(KvWriteArgs const&) { return "kv_write"; }
  static std::string name_of(AttentionInputArgs const&) { return "attention_input"; }
  static std::string name_of(DecodeAttentionArgs const&) { return "decode_attention"; }
  static std::string name_of(AttentionArgs const&) { return "attention"; }
  static std::string name_of(AddArgs const&) { return "add"; }
  static std::string name_of(GatedArgs const&) { return "gated"; }
  static std::string name_of(GatherArgs const&) { return "gather"; }
  static std::string name_of(EmbedArgs const&) { return "embed"; }
  static std::string name_of(RouteArgs const&) { return "route"; }
  static std::string name_of(ExpertsArgs const&) { return "experts"; }
  static std::string name_of(CombineArgs const&) { return "combine"; }
  static std::string name_of(ExpertWindowArgs const& a) { return a.end_expert > a.first_expert ? "expert_window" : "group_slots"; }
  static std::string name_of(TransferArgs const&) { return "transfer"; }
  static std::string name_of(HelpAttentionArgs const&) { return "help_attention"; }
  static std::string name_of(RoutedExpertsArgs const& a) { return a.norm ? "norm+routed_experts" : "routed_experts"; }
  static std::string name_of(FusedMatmulArgs const& a) {
    constexpr char const* then[] = {"store", "add", "gate"};
    return std::string(a.norm ? "norm+" : "") + then[int(a.then)] + std::to_string(a.n_parts);
  }

  template <class Args>
  static int enqueue_on(Queue q, Kernel<Args> op, Args const& args) {
    auto const& target = *static_cast<Target const*>(q.native);
    return target.self->enqueue(op, args, target.now);
  }
  template <class Args>
  int enqueue(Kernel<Args> op, Args const& args, bool now) {
    if constexpr (std::same_as<Args, DecodeAttentionArgs>) {
      DecodeAttentionArgs const* const kept = kept_decode_.emplace_back(std::make_unique<DecodeAttentionArgs const>(args)).get();
      if (!now) return enqueue_task(name_of(args), [op, kept] { op(*kept, Queue{}); });
    } else {
      if (!now) return enqueue_task(name_of(args), [op, args] { op(args, Queue{}); });
    }
    if (launches.size() == fail_at) return 999;
    launches.push_back(name_of(args));
    return op(args, Queue{});
  }
  template <class Task>
  int enqueue_task(std::string name, Task const& task) {
    if (launches.size() == fail_at) return 999;
    launches.push_back(std::move(name));
    if (capturing_) {
      captured_.tasks.emplace_back(task);
    } else {
      lanes_->submit(lane_, task);
    }
    return 0;
  }

  template <class Args, Kernel<Args> KernelTable::*op>
  void wrap() {
    if (reference_->*op == nullptr) return;
    table_.*op = [](Args const& args, Queue q) { return enqueue_on(q, static_cast<Target const*>(q.native)->self->reference_->*op, args); };
  }
  template <class Args, std::size_t n, Kernel<Args> (KernelTable::*ops)[n], std::size_t... i>
  void wrap_each(std::index_sequence<i...>) {
    auto const one = [&]<std::size_t type>(std::integral_constant<std::size_t, type>) {
      if ((reference_->*ops)[type] == nullptr) return;
      (table_.*ops)[type] = [](Args const& args, Queue q) {
        return enqueue_on(q, (static_cast<Target const*>(q.native)->self->reference_->*ops)[type], args);
      };
    };
    (one(std::integral_constant<std::size_t, i>{}), ...);
  }
  template <class Args, Kernel<Args> (KernelTable::*ops)[n_file_dtypes]>
  void wrap_types() {
    wrap_each<Args, n_file_dtypes, ops>(std::make_index_sequence<n_file_dtypes>{});
  }
  void wrap_all() {
    table_ = *reference_;
    wrap_types<EmbedArgs, &KernelTable::embed>();
    wrap_types<MatmulArgs, &KernelTable::matmul>();
    wrap_types<MatmulArgs, &KernelTable::matmul_add>();
    wrap_types<MatmulArgs, &KernelTable::fine_matmul>();
    wrap_types<MatmulArgs, &KernelTable::fine_matmul_add>();
    wrap_types<KvWriteArgs, &KernelTable::kv_write>();
    wrap_types<AttentionArgs, &KernelTable::attention>();
    wrap_types<AttentionInputArgs, &KernelTable::attention_input>();
    wrap_types<DecodeAttentionArgs, &KernelTable::decode_attention>();
    wrap_each<QuantizeArgs, std::size_t(n_activation_forms), &KernelTable::convert>(std::make_index_sequence<n_activation_forms>{});
    wrap_each<ConvertNormedArgs, std::size_t(n_activation_forms), &KernelTable::convert_normed>(
        std::make_index_sequence<n_activation_forms>{});
    wrap_each<ConvertGatedArgs, std::size_t(n_activation_forms), &KernelTable::convert_gated>(
        std::make_index_sequence<n_activation_forms>{});
    wrap<FusedMatmulArgs, &KernelTable::fused_matmul>();
    wrap<RmsNormArgs, &KernelTable::rms_norm>();
    wrap<LayerNormArgs, &KernelTable::layer_norm>();
    wrap<RopeArgs, &KernelTable::rope>();
    wrap<GatedArgs, &KernelTable::gated>();
    wrap<ActivateArgs, &KernelTable::activate>();
    wrap<AddArgs, &KernelTable::add>();
    wrap<AddTapsArgs, &KernelTable::add_taps>();
    wrap<GatherArgs, &KernelTable::gather>();
    wrap<RouteArgs, &KernelTable::route>();
    wrap<ExpertsArgs, &KernelTable::experts>();
    wrap<RoutedExpertsArgs, &KernelTable::routed_experts>();
    wrap<ExpertWindowArgs, &KernelTable::group_slots>();
    wrap<ExpertWindowArgs, &KernelTable::expert_window>();
    wrap<MergeAttentionArgs, &KernelTable::merge_attention>();
    wrap<CombineArgs, &KernelTable::combine>();
    wrap<TransferArgs, &KernelTable::transfer>();
  }

  std::shared_ptr<LaneSet> lanes_;
  LaneSet::Lane lane_;
  Target queued_{this, false}, now_{this, true};
  KernelTable const* reference_;
  KernelTable table_;
  SimTier memory_;
  Graph captured_;
  std::vector<std::unique_ptr<RouterAheadArgs const>> kept_;  // larger than a task may be, as the next
  std::vector<std::unique_ptr<HelpArgs const>> kept_help_;
  std::vector<std::unique_ptr<DecodeAttentionArgs const>> kept_decode_;
  bool capturing_ = false;
};
static_assert(Backend<ReferenceDevice>);

}  // namespace tiered::test
