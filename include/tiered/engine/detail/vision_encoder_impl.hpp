/// Defines what a VisionEncoder does whatever its policies are: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/check_capabilities.hpp"
#include "tiered/engine/detail/warm_up.hpp"
#include "tiered/engine/vision_encoder.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/step_context.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/vision/media.hpp"

namespace tiered::detail {

// ---- plans

std::vector<int> vision_bounds(VisionConfig const& config, std::int64_t max_patches) {
  std::int64_t const per_token = std::int64_t{config.merge_size} * config.merge_size,
                     wanted = max_patches > 0 ? max_patches : tiered::max_patches(config), most = std::min(wanted, std::int64_t{most_rows}),
                     n_tokens = (most + per_token - 1) / per_token;
  std::int64_t const last = std::int64_t(std::bit_ceil(std::uint64_t(std::max(n_tokens, std::int64_t{1}))));
  std::vector<int> bounds;
  for (std::int64_t n = 256; n < last; n *= n < 4096 ? 4 : 2) bounds.push_back(int(n * per_token));
  bounds.push_back(int(last * per_token));
  return bounds;
}

bool encodes(KernelTable const& kernels, VisionModel const& model) {
  VisionConfig const& c = model.vision();
  bool const norms = c.norm == VisionNorm::rms ? kernels.rms_norm != nullptr : kernels.layer_norm != nullptr;
  return norms && kernels.rope != nullptr && kernels.activate != nullptr && (!c.gated || kernels.gated != nullptr) &&
         (c.position_side == 0 || kernels.add_taps != nullptr) && kernels.add != nullptr && kernels.merge_attention != nullptr &&
         (kernels.largest_head == 0 || c.head_dim <= kernels.largest_head) && kernels.attention[std::uint32_t(DType::f16)] != nullptr &&
         kernels.kv_write[std::uint32_t(DType::f16)] != nullptr;
}

class VisionPlanner {
 public:
  VisionPlanner(VisionModel const& model, KernelTable const& host, KernelTable const& device, std::span<int const> bounds)
      : model_(model), host_(host), device_(device), bounds_(bounds) {}

  ActivationLayout layout_for(RowLimits limits) const {
    ScratchMeter on_host(model_.table(), host_, limits.block), on_device(model_.table(), device_, limits.block);
    std::size_t step = std::max(on_host.measure(model_, limits.chunk, 0), on_device.measure(model_, limits.chunk, 0));
    std::int32_t n_pages = 1;
    if (limits.kv_on_host) {  // sums over pages: two parts
      VisionConfig const& c = model_.vision();
      n_pages = (limits.block + limits.chunk - 1) / limits.chunk;
      for (std::int32_t const row : {c.dim, c.n_heads})
        step += VramAccount::round_up(2 * std::size_t(limits.chunk) * std::size_t(row) * sizeof(float));
    }
    return make_activation_layout(model_.config(), limits, step, block_table_bytes(n_pages));
  }

  struct Tier {
    TierPlan plan;
    RowLimits limits;
  };
  /// Plans for room of so many bytes, of which `largest` lie together. Where a block leaves the device no room for all of the work, it may
  /// stay in host memory.
  std::vector<Tier> tiers(std::size_t bytes, std::size_t largest, double least_speedup, PlanVisionTier plan) const {
    std::vector<Tier> out;
    for (int const bound : bounds_) {
      Tier const alone = tier_of(bound, 0, 0, VisionHome::device, plan);
      Tier best = alone;
      for (VisionHome const home : {VisionHome::device, VisionHome::rows_on_host, VisionHome::all_on_host}) {
        if (bytes == 0 || is_all_on_device(best.plan)) break;
        Tier tier = tier_of(bound, bytes, largest, home, plan);
        bool const first = best.plan.plan.vram_bytes == 0, faster = tier.plan.estimate.seconds < best.plan.estimate.seconds;
        if (tier.plan.plan.vram_bytes > 0 && (first || faster)) best = std::move(tier);
      }
      double const speedup = alone.plan.estimate.seconds / best.plan.estimate.seconds;
      out.push_back(is_all_on_device(best.plan) || speedup >= least_speedup ? std::move(best) : alone);
    }
    return out;
  }

 private:
  Tier tier_of(int bound, std::size_t bytes, std::size_t largest, VisionHome home, PlanVisionTier plan) const {
    bool const rows = home != VisionHome::device, kv = home == VisionHome::all_on_host;
    auto const scratch = [&](std::int32_t chunk, std::int32_t block) {
      bool fits = block >= bound && chunk <= most_vision_chunk && chunk % model_.config().block.rows_per_output == 0;
      if (kv) fits = fits && (chunk % attention_span == 0 || attention_span % chunk == 0);
      std::size_t const needed = fits ? layout_for({chunk, block, 0, rows, kv}).total_bytes : VramAccount::most_bytes;
      return needed <= largest ? needed : VramAccount::most_bytes;  // a frame is one block, or it is not the device's
    };
    Tier tier{plan(model_.table(), PlannerInput{Budget{bytes, 0, 0}, Rows{bound, bound, 1}, scratch}, home, largest), {}};
    ShardPlan const& p = tier.plan.plan;
    bool const on_device = p.vram_bytes > 0;
    tier.limits = {p.chunk_tokens, p.block_tokens, 0, rows && on_device, kv && on_device};
    return tier;
  }
  static bool is_all_on_device(TierPlan const& t) {
    return std::ranges::all_of(t.plan.shards, [](Placement const& p) { return p.gpu_rows > 0; });
  }

  VisionModel const& model_;
  KernelTable const &host_, &device_;
  std::span<int const> bounds_;
};

EnginePlans make_vision_plans(VisionModel const& model, VisionOptions const& options, std::span<VramRange const> room,
                              KernelTable const& host, KernelTable const& device, PlanVisionTier plan) {
  check_capabilities(model.table(), host);
  if (!encodes(host, model)) throw Error(Errc::unsupported, concat("the ", host.name, " kernels do not encode images"));
  std::vector<int> const bounds = vision_bounds(model.vision(), options.max_patches);
  VisionPlanner const planner(model, host, device, bounds);
  std::size_t all = 0, largest = 0, largest_shard = 0;
  for (VramRange const& r : room) all += r.bytes(), largest = std::max(largest, r.bytes());
  for (Shard const& s : model.table().shards) largest_shard = std::max(largest_shard, VramAccount::round_up(s.bytes));
  if (!encodes(device, model)) all = largest = 0;
  std::vector<VisionPlanner::Tier> tiers;
  std::optional<std::vector<VramLayout>> layouts;
  // Where parts of the room end within a shard, a plan may find no place for it all; in one part it does.
  for (int attempt = 0; !layouts; ++attempt) {
    std::size_t const waste = std::min(all - largest, std::size_t(attempt) * largest_shard / 4),
                      bytes = attempt < 5 ? all - waste : largest;
    tiers = planner.tiers(bytes, largest, options.least_speedup, plan);
    std::vector<VramRange> parts(room.begin(), room.end());
    std::vector<ShardPlan const*> plans;
    std::size_t needed = 0;
    for (VisionPlanner::Tier const& t : tiers) {
      plans.push_back(&t.plan.plan);
      needed = std::max(needed, t.plan.plan.vram_bytes);
    }
    if (parts.size() == 1) parts.front().end = parts.front().begin + std::min(needed, parts.front().bytes());  // the rest stays free
    layouts = lay_out_in(parts, plans, model.table().shards);
    expects(layouts || attempt < 5, "make_vision_plans: a plan passes its budget");
  }
  EnginePlans out;
  out.max_context = bounds.back();
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    TierPlan& t = tiers[i].plan;
    PlanImage image{t.plan, t.schedule, tiers[i].limits, std::move((*layouts)[i]), planner.layout_for(tiers[i].limits)};
    image.uses_device = t.plan.vram_bytes > 0;
    out.vram_bytes = std::max(out.vram_bytes, image.vram.total_bytes);
    out.images.push_back(std::move(image));
    out.tiers.push_back(std::move(t));
  }
  return out;
}

bool is_all_resident(EnginePlans const& plans, ShardTable const& table) {
  return std::ranges::all_of(plans.images, [&](PlanImage const& image) {
    return std::ranges::all_of(table.shards, [&](Shard const& s) { return image.vram.resident[std::size_t(s.id)] != VramLayout::none; });
  });
}

// ---- rows

void write_patches(std::span<Patches const> all, std::span<std::int64_t const> patches, std::span<float> out, Team* team) {
  auto const work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t patch = patches[std::size_t(i)];
      Patches const* of = all.data();
      for (; patch >= of->grid().n_patches(); ++of) patch -= of->grid().n_patches();
      std::size_t const elems = std::size_t(of->patch_elems());
      of->write(patch, 1, out.subspan(std::size_t(i) * elems, elems));
    }
  };
  std::int64_t const n = std::int64_t(patches.size());
  if (team == nullptr) return work(0, n);
  team->parallel_for(n, team->grain(n, 16), work);
}

/// Between what a caller has and a block's rows.
class VisionCore::Port final : public RowPort {
 public:
  Port(VisionConfig const& config, PatchSource source, Team* team, VisionEncoding& out)
      : config_(config), source_(source), team_(team), out_(out) {}
  void begin(VisionBlock const& block) { block_ = &block; }

  void fill(std::int32_t plane, Range rows, std::byte* to) override {
    switch (VisionInput(plane)) {
      case VisionInput::pixels: return fill_pixels(rows, reinterpret_cast<float*>(to));
      case VisionInput::position_index:
      case VisionInput::position_share: return fill_positions(VisionInput(plane), rows, to);
    }
  }
  /// Memory that is new costs as much time as what is written to it: it is asked for while the device computes.
  void expect(std::int32_t plane) override {
    if (std::vector<float>& to = plane_of(plane); to.empty()) to.resize(std::size_t(out_.n_tokens) * std::size_t(config_.output_dim));
  }
  void take(std::int32_t plane, Range rows, float const* from) override {
    std::size_t const dim = std::size_t(config_.output_dim), first = std::size_t(block_->first_patch / per_token());
    float* const to = plane_of(plane).data() + first * dim;
    auto const work = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        std::memcpy(to + std::size_t(block_->tokens[std::size_t(rows.begin + i)]) * dim, from + std::size_t(i) * dim, dim * sizeof(float));
    };
    if (team_ == nullptr) return work(0, rows.size());
    team_->parallel_for(rows.size(), team_->grain(rows.size(), 64), work);
  }

 private:
  std::int32_t per_token() const { return config_.merge_size * config_.merge_size; }
  std::vector<float>& plane_of(std::int32_t plane) { return plane == 0 ? out_.tokens : out_.deepstack[std::size_t(plane) - 1]; }
  void fill_pixels(Range rows, float* to) {
    patches_.clear();
    for (std::int64_t row = rows.begin; row < rows.end; ++row) patches_.push_back(block_->patch_of(row, per_token()));
    source_(patches_, {to, patches_.size() * std::size_t(config_.patch_elems())});
  }
  void fill_positions(VisionInput plane, Range rows, std::byte* to) const {
    for (std::int32_t row = rows.begin; row < rows.end; ++row) {
      PatchPlace const at = block_->places[std::size_t(row)];
      PatchGrid const& g = block_->grids[std::size_t(block_->grid_of[std::size_t(row)])];
      AxisTaps const y = axis_taps(at.row, g.h, config_.position_side), x = axis_taps(at.col, g.w, config_.position_side);
      for (int tap = 0; tap < AddTapsArgs::n_taps; ++tap, to += sizeof(std::int32_t)) {
        static_assert(sizeof(std::int32_t) == sizeof(float));
        std::int32_t const index = y.index[tap / 2] * config_.position_side + x.index[tap % 2];
        float const share = y.share[tap / 2] * x.share[tap % 2];
        std::memcpy(to, plane == VisionInput::position_index ? static_cast<void const*>(&index) : &share, sizeof index);
      }
    }
  }

  VisionConfig const& config_;
  PatchSource source_;
  Team* team_;
  VisionEncoding& out_;
  VisionBlock const* block_ = nullptr;
  std::vector<std::int64_t> patches_;  // of the rows that are filled
};

// ---- weights

inline bool is_in_file(VisionModel const& model, Weight const& w) {
  return std::ranges::any_of(model.file().tensors(),
                             [&](GgufTensor const& t) { return t.data.data() <= w.data && w.data < t.data.data() + t.data.size(); });
}

std::vector<std::span<std::byte const>> weights_of_file(VisionModel const& model, std::span<Weight const> weights) {
  std::vector<std::span<std::byte const>> out;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (is_in_file(model, model.table().weights[i])) out.push_back({weights[i].data, weights[i].bytes()});
  }
  return out;
}

/// The others side by side in memory that the device copies from at full rate, where there is one: else each is a small copy by hand.
Buffer VisionCore::pack_owned() {
  if (parts_.plans.vram_bytes == 0) return {};
  std::span<Weight const> const own = parts_.model->table().weights;
  std::vector<std::size_t> which;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (is_in_file(*parts_.model, own[i])) continue;
    which.push_back(i);
    bytes += VramAccount::round_up(own[i].bytes());
  }
  Buffer packed(parts_.host_tier, bytes, weight_alignment);
  std::byte* to = packed.data();
  for (std::size_t const i : which) {
    Weight& w = parts_.weights[i];
    std::memcpy(to, w.data, w.bytes());
    w.data = std::exchange(to, to + VramAccount::round_up(w.bytes()));
  }
  return packed;
}

// ---- running

/// Of the activations of plans whose blocks are on the device.
inline std::size_t vision_host_bytes(EnginePlans const& plans) {
  std::size_t bytes = 0;
  for (PlanImage const& image : plans.images) {
    if (!image.uses_device || image.limits.rows_on_host) continue;
    bool const all_there =
        std::ranges::all_of(image.schedule, [](Action const& a) { return a.kind != ActionKind::run || a.device != host_device; });
    bytes = std::max(bytes, all_there ? image.activations.crossing_bytes : image.activations.host_bytes);
  }
  return bytes;
}

VisionCore::VisionCore(Parts parts)
    : parts_(std::move(parts)),
      owned_(pack_owned()),
      crossing_(parts_.host_tier, vision_host_bytes(parts_.plans), weight_alignment),
      kv_(parts_.model->config(), {1}, std::vector<float>(parts_.model->config().layers.size(), 0.f), nullptr),
      cache_(0, AnyEviction(Lru())),
      executor_(ModelRef(*parts_.model), executor_parts()) {}

/// Nothing of it is in flight, but after an Error of another call.
VisionCore::~VisionCore() {
  parts_.engine->wait_for_returned();
  executor_.recover();
}

ExecutorParts VisionCore::executor_parts() {
  EngineCore::Parts& engine = parts_.engine->parts();
  ExecutorParts parts;
  parts.table = parts_.model->table();
  parts.table.weights = parts_.weights;
  parts.config = &parts_.model->config();
  parts.host = engine.host;
  parts.device = engine.device;
  parts.copy = engine.copy;
  parts.kv_copy = engine.kv_copy;
  parts.vram = parts_.vram.empty() ? engine.vram.data() : parts_.vram.data();
  parts.kv = &kv_;
  parts.cache = &cache_;
  parts.cancelled = &parts_.engine->cancel_token().flag();
  parts.host_access.activations = parts_.maps_host;
  parts.capture_rows = 0;
  parts.trace = parts_.traces ? &trace_log_ : nullptr;
  return parts;
}

PlanImage const& VisionCore::image_for(std::int64_t n_rows) const {
  for (std::size_t i = 0; i < parts_.plans.tiers.size(); ++i) {
    if (n_rows <= parts_.plans.tiers[i].rows.n) return parts_.plans.images[i];
  }
  throw Error(Errc::over_budget, concat("an image of ", n_rows, " patches; at most ", parts_.plans.max_context,
                                        " are encoded at once: see VisionOptions::max_patches"));
}

/// Frames that do not need each other go together while the device has room for them, as far as that costs nothing: rows of a block that is
/// too large for it would cross the link for each step, and keys and values by pages other bits.
std::int64_t VisionCore::rows_of_block() const {
  EnginePlans const& plans = parts_.plans;
  auto const first = std::ranges::find_if(plans.images, &PlanImage::uses_device);
  if (first == plans.images.end()) return plans.tiers.front().rows.n;
  std::int64_t n = 0;
  for (auto i = first; i != plans.images.end() && i->uses_device && !i->limits.kv_on_host; ++i) {
    if (i->limits.rows_on_host == first->limits.rows_on_host) n = plans.tiers[std::size_t(i - plans.images.begin())].rows.n;
  }
  return n;
}

/// Memory for what only large images, or a host without device, take grows with them.
void VisionCore::begin(PlanImage const& image) {
  Buffer& host = !image.uses_device ? host_only_ : image.limits.rows_on_host ? large_ : crossing_;
  if (&host != &crossing_ && host.bytes() < image.activations.host_bytes) {
    host = {};
    host = image.uses_device ? Buffer(parts_.host_tier, image.activations.host_bytes, weight_alignment)
                             : Buffer(pageable_, image.activations.host_bytes, weight_alignment);
  }
  executor_.move_host(host.data());
  if (image.uses_device && borrows_vram() && !parts_.engine->lend(this)) executor_.leave_vram();
  executor_.activate(image);
}

/// Of an encoding's last block: the decoder, where it lends its arena.
RoomListener* VisionCore::listener_for(PlanImage const& image, bool is_last) {
  return is_last && image.uses_device && borrows_vram() ? &parts_.engine->take_back() : nullptr;
}

void VisionCore::run(PlanImage const& image, VisionBlock const& block, RowPort& port, bool is_last) {
  rows_.clear();
  for (std::size_t i = 0; i < block.places.size(); ++i) {
    PatchPlace const at = block.places[i];
    BlockRow row{0, std::int32_t(i)};
    row.rope_positions = {0, at.row, at.col};
    row.seen = {block.frames[i], block.windows[i]};
    rows_.push_back(row);
  }
  begin(image);
  executor_.run_block(rows_, nullptr, &port, listener_for(image, is_last));
}

inline VisionEncoding empty_encoding(VisionConfig const& config, std::int64_t n_tokens) {
  return {n_tokens, {}, std::vector<std::vector<float>>(std::size_t(config.n_deepstack()))};
}

VisionEncoding VisionCore::encode(std::span<PatchGrid const> grids, PatchSource source, bool more, Record record) {
  VisionConfig const& config = parts_.model->vision();
  std::vector<VisionBlock> blocks = vision_blocks(config, grids, rows_of_block());
  std::int64_t n_tokens = 0;
  for (PatchGrid const& g : grids) {
    static_cast<void>(image_for(g.frame_patches()));  // refused before anything is done
    n_tokens += g.n_tokens(config.merge_size);
  }
  try {
    VisionEncoding out = empty_encoding(config, n_tokens);
    Port port(config, source, parts_.team, out);
    for (VisionBlock& block : blocks) {
      order_rows(config, block);
      port.begin(block);
      run(image_for(block.n_rows()), block, port, !more && &block == &blocks.back());
      block = {};
      if (parts_.traces) parts_.engine->report(trace_log_, record);
    }
    return out;
  } catch (std::bad_alloc const&) {
    recover();
    throw Error(Errc::out_of_memory, concat("no host memory left to encode ", n_tokens, " tokens of images"));
  } catch (...) {
    recover();
    throw;
  }
}

void VisionCore::recover() noexcept {
  parts_.engine->forget_returned();  // errors of its copies would be forgotten, too
  executor_.recover();
  trace_log_.clear();
}

// ---- loading

void VisionCore::warm_up(PlanImage const& image, std::int32_t n_rows) {
  VisionConfig const& config = parts_.model->vision();
  VisionBlock block;
  block.grids = {{1, config.merge_size, n_rows / config.merge_size}};
  order_rows(config, block);
  VisionEncoding out = empty_encoding(config, n_rows / (config.merge_size * config.merge_size));
  auto const blank = [](std::span<std::int64_t const>, std::span<float> values) { std::ranges::fill(values, 0.f); };
  Port port(config, blank, parts_.team, out);
  port.begin(block);
  run(image, block, port, false);
}

/// Of every plan two chunks, and of that with the largest all widths: which kernels others take depends on rows alone. Blocks are no larger
/// than that.
void VisionCore::prepare() {
  ModelConfig const& config = parts_.model->config();
  std::vector<PlanImage> samples;  // an executor knows plans by their addresses
  for (PlanImage const& image : parts_.plans.images) {
    if (!image.uses_device) continue;
    PlanImage& sample = samples.emplace_back(sample_of(image, parts_.model->table(), config));
    sample.limits.block = std::min(sample.limits.block, 2 * sample.limits.chunk);
    sample.activations = make_activation_layout(config, sample.limits, image.activations.step_bytes, block_table_bytes(2));
  }
  std::int32_t const per_token = config.block.rows_per_output;
  auto const widest = std::ranges::max_element(samples, {}, [](PlanImage const& sample) { return sample.limits.chunk; });
  for (PlanImage const& sample : samples) {
    warm_up(sample, sample.limits.block);
    std::int32_t last = sample.limits.block;
    for (std::int32_t const width : warm_up_rows) {
      std::int32_t const n_rows = std::max(std::min(width, sample.limits.chunk) / per_token, 1) * per_token;
      if (&sample == &*widest && n_rows != std::exchange(last, n_rows)) warm_up(sample, n_rows);
    }
  }
  executor_.leave_vram();  // the samples go
  trace_log_.clear();
  if (samples.empty() || borrows_vram()) return;
  begin(*std::ranges::find_if(parts_.plans.images, &PlanImage::uses_device));
}

}  // namespace tiered::detail
