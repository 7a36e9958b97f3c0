/// The routed experts of few rows, where every microsecond between router and sum is one of the token's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/pipeline/experts_ahead.hpp"
#include "tiered/pipeline/pace.hpp"
#include "tiered/pipeline/routed_rows.hpp"

namespace tiered {

/// Where the experts are that are in VRAM, as a table of each layer in the device's memory: it finds them by the router's ids, and nobody
/// waits. The same lies in the host's memory, which the device reads changes from.
class ExpertAddresses {
 public:
  explicit ExpertAddresses(ExpertsEnvironment const& env) : env_(&env) {}

  /// For a new plan, whose memory holds something else so far.
  void prepare(std::span<ShardId const> first_experts);
  /// Brings the device's tables up to date where somebody else changed the cache; the device waits for it, and for all copies before.
  /// Whether there was anything to bring.
  bool refresh();
  /// [n_experts] of a layer, in the device's memory: null where it is not in VRAM.
  ExpertGroup const* of_layer(std::int32_t layer) const { return table(env_->device_base, layer); }
  bool has(std::int32_t layer, std::int32_t expert) const { return table(env_->host_base, layer)[expert].gate != nullptr; }
  ShardId first_expert(std::int32_t layer) const { return first_experts_[std::size_t(layer)]; }
  std::span<ShardId const> first_experts() const { return first_experts_; }
  bool has_any(std::int32_t layer) const { return n_there_[std::size_t(layer)] > 0; }
  ExpertGroup group_at(ShardId id, std::byte const* base) const;

  /// Changes that the cache has seen already; the device learns of them by the parts of a later transfer.
  void set(ShardId id, std::byte const* base);
  void clear(ShardId id);
  /// A change that the device's table has already.
  void note(ShardId id, std::byte const* base);
  /// An expert's entry in the device's table.
  ExpertGroup* on_device(ShardId id) const;
  std::vector<TransferArgs::Part>& changes() { return changes_; }
  /// Now, by launches of their own, with what else stands in the list.
  void send_changes();
  /// The tables as a whole: what to transfer in place of very many changes.
  TransferArgs::Part all() const;
  void is_current() { version_ = env_->cache->version(); }

 private:
  ExpertGroup* table(std::byte* base, std::int32_t layer) const {
    return reinterpret_cast<ExpertGroup*>(base + env_->layout->few_tables) + std::size_t(layer) * std::size_t(env_->layout->n_experts);
  }
  ExpertGroup& change(ShardId id, ExpertGroup group);

  ExpertsEnvironment const* env_;
  std::vector<ShardId> first_experts_;  // by layer
  std::vector<std::int32_t> n_there_;   // likewise
  std::vector<TransferArgs::Part> changes_;
  std::uint64_t version_ = 0;
  bool known_ = false;
};

/// Steps in which the device asks the host, and how often it did: one layer, one request. Of experts that were brought ahead of their
/// layer, on a guess: how many there were, how many of them the layer then chose, and how many of those were there when it looked.
struct HelpCounters {
  std::uint64_t n_steps = 0, n_requests = 0;
  std::uint64_t n_timed_out = 0;  ///< steps that were done again without help, as the host did not come by in time
  std::uint64_t n_guessed = 0, n_right = 0, n_in_time = 0;
  std::uint64_t wasted_bytes = 0;  ///< of guessed ones that were not chosen in their step
  /// Of the experts that requests asked for: computed by the host; fetched, within the request; just coming, or come too late for the
  /// layer's look. And brought for later beside a request.
  std::uint64_t n_on_host = 0, n_fetched = 0, n_late = 0, n_for_later = 0;
  /// Of all requests: until the host had decided, what its products took, and what it waited for copies behind them.
  double decide_s = 0, host_s = 0, late_s = 0;
  double device_s = 0;                     ///< from the request until the device saw the answer, by its clock
  std::uint64_t n_attention_requests = 0;  ///< layers where the host attended to its part of keys and values: besides n_requests
  /// Of these: from the request until the device's own part was done, and what the host's took it. In balance where alike.
  double attention_device_s = 0, attention_host_s = 0;
  double attention_waited_s = 0;    ///< by the device for the host's
  double attention_read_share = 0;  ///< of keys and values in host memory, what the device read in the newest step (ReadBalance)
};

/// Rows are on the device, most experts are not. The device computes those that are in VRAM without waiting, writes what the host needs to
/// know straight into the host's memory and reads the host's sum from there: no copy engine, whose hand-overs cost more than such bytes.
/// Of the experts that are missing a share is fetched (ShardPlan::fetched_misses) while the host computes the others: link, host's
/// memory and device are all busy at once. While the device is on its own, between a layer's experts and the next one's, the link has time
/// for one more: an expert that the host computes now is brought for later, where that is likely to pay.
///
/// Per layer: device: publish rows, ids and weights; experts in VRAM | host: decide, compute its experts and sum them up | link: fetch |
/// device: fetched experts, add the host's sum. The order of summation is: hidden row, experts in VRAM, fetched ones, the host's; so what
/// is in the cache shows in a sum's last bits. With ShardPlan::deterministic all that is missing is fetched, and one launch takes the
/// experts in the order of their ids, then the host's, which the plan put there for good.
class FewRouted {
 public:
  explicit FewRouted(ExpertsEnvironment const& env) : env_(&env), addresses_(env), ahead_(env) {}

  void prepare(std::span<ShardId const> first_experts);
  /// When somebody else changed the cache: experts that are on their way may have gone, the others are pinned no longer. All copies so far
  /// are done.
  void forget_coming();
  /// Whether rows go this way: few, on a device that maps host memory and adds experts to rows itself.
  bool takes(RoutedRows const& rows, ShardId first_expert) const;
  void run(RoutedRows const& rows, ShardId first_expert, std::uint64_t step);

  // Steps of one row that are enqueued as a whole, and where the device stands still at a layer only if an expert is missing (HelpArgs): a
  // layer whose experts are all in VRAM takes as long as in a plan that has all of them there. The order of summation is: hidden row, sum
  // of the experts in VRAM, the host's, fetched ones.
  //
  // Between requests the link brings what the device guesses that the next layers will choose (GuessArgs), into rooms that are free:
  // a few are kept so. Such an expert's copy enters it in the device's table by itself, behind its weights, while the device computes.
  // Why no expert is computed twice, left out, or read before it is there:
  //   - a layer looks at the device's table once, when its router runs, into a copy that all its kernels read, and a request says what was
  //     missing in it: so the host asks no table of its own who computes what;
  //   - the host's tables, which parts and transfers read, change only while the device stands still (a request that is not decided yet)
  //     or between steps; entries that copies bring go there then, too, once they are done;
  //   - entries are only taken out by a request or between steps, before any layer looks again; what they freed is overwritten after that,
  //     or while no layer looks. An expert that a request takes out is not brought back before the device has passed that request, whose
  //     parts are copied until then;
  //   - an expert on its way is pinned until it is noted.
  // One that comes too late for its layer's look is computed from VRAM all the same, with those that the request fetches.

  /// Whether the layer can go this way on this device, under this plan.
  bool can_help(std::int32_t layer) const;
  /// For a plan whose layers can all be helped, or have no need: after prepare().
  void open_mail();
  /// What was enqueued by `other`, whose captured steps are still to be launched.
  void take_over(FewRouted const& other);
  /// The first launch of a step; then, at each layer that helps, its experts. May be captured: nothing in it changes from step to step.
  void enqueue_step();
  void enqueue(RoutedRows const& rows, ShardId first_expert);
  /// Before a step is launched.
  void begin_step(std::uint64_t step);
  /// Answers a request, if there is one; else false, at once.
  bool serve();
  /// Whether steps enqueued for this plan guess: then routers are enqueued by enqueue_router(). Where nothing can be missing, or the link
  /// is no help, or the device knows no such op, they do not.
  bool looks_ahead() const { return looks_ahead_; }
  /// A layer's router: `args` but for where the host's and the device's tables are; guesses for `targets`, likewise, go with enqueue() of
  /// the same layer, which is next.
  void enqueue_router(RouterAheadArgs args, GuessArgs guesses, std::span<std::int32_t const> targets);
  /// Keeps a copy or two of guessed experts under way. False where there was nothing to do; takes some microseconds where there was.
  bool look_ahead();
  /// Has the host's caches read what it will probably compute of the next layer that misses something, where EngineOptions::read_ahead says
  /// so. False where there was nothing to do.
  bool read_ahead();
  void stop_reading();
  /// After a step, when all copies are done: their entries are as all others.
  void settle_ahead();
  /// After the device has ended the step: whether it waited in vain. What it computed is of no use then, and who is in the cache is not
  /// known: what the host listed too late never came.
  bool timed_out();
  /// After the device has ended the step: what it used counts for the cache.
  void end_step();
  HelpCounters const& help_counters() const { return help_counters_; }
  /// By the device's clock, of a step enqueued with a trace.
  std::uint64_t step_begin_ns() const { return log(std::int32_t(helped_.size())).begin_ns; }
  /// For the trace, of a step enqueued with one: what each layer of the step between two tickets of the device did.
  void trace_step(Ticket begin, Ticket end);
  /// The device's waiting ends, now or once it comes to it, until the next begin_step(). What it computes is of no use. Any state.
  void give_up() noexcept;

 private:
  enum class Where : std::uint8_t { host, device, fetched };
  struct Expert {
    std::int32_t number = 0, group = -1;
    ShardId shard{};
    Where where = Where::host;
    bool may_be_fetched = false, for_later = false;
    bool may_be_read = false;             ///< within a request, by the device's kernels
    bool late = false;                    ///< the device had looked when it came, or it is about to come
    ExpertCache::Entry* entry = nullptr;  ///< pinned
  };
  /// On its way while its layer had no use for it: the device is told when the layer comes again, or by the copy itself.
  struct Coming {
    ShardId shard{};
    Ticket filled;
    ExpertCache::Entry* pinned = nullptr;  ///< by a step that was helped
    bool tells = false;
  };
  /// A layer of a step that was enqueued.
  struct Helped {
    RoutedRows rows;
    ShardId first_expert{};
    std::uint64_t served = 0;  ///< the last step in which it asked
  };
  /// Slots of one launch, or of the host.
  struct List {
    std::int32_t* ids = nullptr;  ///< [n_slots]: index into groups, or -1
    float* weights = nullptr;     ///< [n_slots]
    ExpertGroup* groups = nullptr;
  };

  std::int32_t n_used() const { return rows_->config->experts.n_experts_used; }
  std::int32_t n_slots() const { return rows_->n_rows * n_used(); }
  template <class T>
  T* host_at(std::size_t offset) const {
    return reinterpret_cast<T*>(env_->host_base + offset);
  }
  Shard const& shard(Expert const& e) const { return env_->table.shard(e.shard); }
  std::byte* base_of(ExpertCache::Entry const& e) const { return env_->vram + env_->vram_layout->cache_offset + e.offset; }
  DType type_of(ShardId expert, std::int32_t matrix) const {
    return env_->table.weights[std::size_t(env_->table.shard(expert).weights.begin + matrix)].dtype;
  }
  ExpertsArgs shapes() const;

  /// Rows, ids and weights to the host's memory; experts that are in VRAM. Waits for the first.
  void publish();
  void launch_in_vram();
  RoutedExpertsArgs launch_args(std::int32_t const* ids, float const* weights, ExpertGroup const* groups, std::int32_t n_groups) const;
  void launch(std::int32_t const* ids, float const* weights, ExpertGroup const* groups, std::int32_t n_groups);
  void list_experts();
  void find_in_vram(std::uint64_t step);
  void share_misses();
  bool take_room(Expert& e);
  void take_rooms_anew();
  void bring_one_for_later();
  void tell_of_arrivals();
  std::int32_t place_host_slots();
  struct HostWork {
    ExpertsArgs experts;
    CombineArgs sum;
  };
  bool list_host_work(HostWork& work);
  void run_on_host();
  void fetch();
  /// Those who made room, from the tables.
  void clear_evicted();
  void submit(bool for_later);
  List list_at(std::byte* base, std::size_t number) const;
  std::int32_t fill_list(List const& list);
  void run_fetched();
  void add_host_sum();
  void release();

  HelpLog& log(std::int32_t layer) const { return host_at<HelpLog>(env_->layout->help_log)[layer]; }
  HelpMail& mail() const { return *host_at<HelpMail>(env_->layout->help); }
  void launch_helped(RoutedRows const& rows);
  void note_arrivals(std::size_t most_changes);
  void find_helped(std::uint32_t missing);
  bool is_readable(Expert const& e) const;
  void share_helped_misses();
  void list_parts();
  void wait_for_late();
  void unpin_helped();
  Coming const* coming(ShardId id) const;
  HelpArgs help_args(RoutedRows const& rows) const;
  ExpertGroup* seen_by_device() const { return reinterpret_cast<ExpertGroup*>(env_->device_base + env_->layout->help_seen); }
  /// Where the device finds a layer's experts.
  ExpertGroup const* table_of(std::int32_t layer) const { return looks_ahead_ ? seen_by_device() : addresses_.of_layer(layer); }
  bool pays_to_look_ahead() const;
  bool may_bring_ahead();
  bool is_there(Coming const& c) const { return env_->copy->done(c.filled); }
  void set_reserve();
  void keep_reserve();
  void take_done();
  std::int32_t distance_ahead(double now_s) const;
  void note_reached(double now_s);
  bool is_wanted(ShardId id) const;
  void bring_ahead(ShardId id, ExpertCache::Entry& entry, std::span<Ticket const> after);
  void bring_for_later();
  void count_guessed();
  void count_request(double asked_s, double decided_s, double computed_s, double there_s);

  ExpertsEnvironment const* env_;
  ExpertAddresses addresses_;
  RoutedRows const* rows_ = nullptr;
  ShardId first_expert_{};
  std::vector<Expert> experts_;
  std::vector<std::int32_t> expert_of_;  // by slot: index into experts_
  std::vector<std::int32_t> places_;     // by slot: its place among the host's, or -1
  std::vector<ShardId> evicted_;
  std::vector<Coming> coming_;
  std::vector<CopyPiece> pieces_;
  std::vector<Ticket> after_;
  Ticket fetched_, host_done_;
  double owed_ = 0;  // experts to be fetched that were left to the host so far, less than 1
  bool uses_host_ = false;
  std::vector<Helped> helped_;  // per layer; the same for all plans but for addresses, which only who enqueues reads
  std::uint64_t step_ = 0, served_ = 0;
  HelpCounters help_counters_;
  bool has_mail_ = false;
  bool looks_ahead_ = false;
  ExpertsAhead ahead_;
  GuessArgs guesses_;                              // of the layer that is being enqueued
  Pace copies_, layers_;                           // of copies ahead; of what the device reaches
  std::int32_t paced_ = -1;                        // layer that layers_ knows of, in this step
  double host_each_s_ = 0;                         // an expert that a request leaves to the host, lately
  std::vector<Ticket> on_way_;                     // of copies ahead that may not be done yet
  std::vector<ShardId> guessed_;                   // brought ahead in this step
  std::vector<ShardId> unproven_;                  // brought ahead, not used so far: the first to go
  std::int32_t requested_layer_ = -1;              // in this step, last
  std::vector<ShardId> read_;                      // what the host's caches have been told to read, last
  std::int32_t read_for_ = -1;                     // what had been reached then
  std::size_t reserve_bytes_ = 0, n_entries_ = 0;  // rooms to keep free; entries that copies have brought
};

}  // namespace tiered
