// Plans of vision encoders: how many patches, what they cost, and what they do with how much room.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/vision_encoding.hpp"
#include "media_data.hpp"
#include "tiered/kernels/cpu/table.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// A machine whose device is far quicker than its host.
HardwareProfile quick_device() {
  HardwareProfile h = HardwareProfile::simulated();
  for (MatmulRates& m : h.host.matmul) {
    m.bytes_per_s /= 100;
    for (RatePoint& p : m.flops_by_rows.points) p.per_s /= 100;
  }
  h.host.launch_s *= 10;
  return h;
}

EnginePlans plans_in(VisionModel const& model, std::vector<VramRange> const& room, VisionOptions const& options = {.max_patches = 4096},
                     KernelTable const& device = cpu_kernels(best_isa())) {
  HardwareProfile const h = quick_device();
  AnalyticCost cost;
  cost.hardware = h;
  SecondsPerByte const place;
  auto const plan = [&](ShardTable const& table, PlannerInput const& input, detail::VisionHome home, std::size_t most_together) {
    return plan_tier(detail::VisionPlacement<SecondsPerByte>{&place, most_together}, RingPrefetch{},
                     detail::VisionCost<AnalyticCost>(cost, model, h, home), h, table, input);
  };
  return detail::make_vision_plans(model, options, room, cpu_kernels(best_isa()), device, plan);
}

bool is_on_device(PlanImage const& image) {
  return std::ranges::all_of(image.schedule, [](Action const& a) { return a.kind != ActionKind::run || a.device != host_device; });
}

}  // namespace

TEST_CASE("numbers of patches that have plans: whole tokens, up to the most, which halves come down to") {
  VisionConfig c;
  c.patch_size = 14;
  c.merge_size = 2;
  c.max_pixels = 16384 * 28 * 28;
  CHECK(detail::vision_bounds(c, 0) == std::vector<int>{1024, 4096, 16384, 32768, 65536});
  CHECK(detail::vision_bounds(c, 1) == std::vector<int>{4});
  CHECK(detail::vision_bounds(c, 1024) == std::vector<int>{1024});
  CHECK(detail::vision_bounds(c, 1025) == std::vector<int>{1024, 2048});
  CHECK(detail::vision_bounds(c, std::int64_t{1} << 40).back() == most_rows);
  c.merge_size = 1;
  CHECK(detail::vision_bounds(c, 300) == std::vector<int>{256, 512});
  c.max_pixels = 14 * 14 * 500 + 1;
  CHECK(detail::vision_bounds(c, 0) == std::vector<int>{256, 512});
  c.max_pixels = 14 * 14 * 100 + 1;  // a strip 200 times as long as it is high has up to 142
  CHECK(detail::vision_bounds(c, 0) == std::vector<int>{256});
}

TEST_CASE("an encoder has room for whatever a reader with the same options makes") {
  for (std::string const& family : tiered_test::projector_families()) {
    VisionConfig c = tiered_test::family_config(family);
    for (std::int64_t const max_pixels : {std::int64_t{100} * 28 * 28, c.max_pixels}) {  // the first: less than videos have
      c.max_pixels = max_pixels;
      for (MediaOptions const& media : {tiered_test::few_tokens(0, 0), tiered_test::few_tokens(0, 70), tiered_test::few_tokens(700, 0)}) {
        MediaReader const reader(c, media);
        int const room = detail::vision_bounds(c, max_patches(c, media)).back();
        for (ImageSize const size : {ImageSize{200, 150}, ImageSize{1990, 10}, ImageSize{900, 700}}) {
          INFO(family << ", " << media.min_tokens << " to " << media.max_tokens << " tokens, " << size.width << " x " << size.height);
          CHECK(reader.image(Image(size)).info().grid.frame_patches() <= room);
          auto const film = std::make_shared<tiered_test::NumberedFilm>(8, 2.0, size);
          std::int64_t const of_step = reader.video(film, {.n_frames = 2}).info().grid.frame_patches();
          CHECK(of_step <= room);
          if (media.min_tokens == 0 && media.max_tokens == 0) CHECK(of_step <= detail::vision_bounds(c, 0).back());
        }
      }
    }
  }
}

TEST_CASE("attention costs what every row sees of all, or of its window, and what crosses the link is no quicker than that") {
  auto const model = open_projector("qwen25vl.mmproj.f16");
  VisionConfig const& v = model->vision();
  HardwareProfile h = HardwareProfile::simulated();
  h.gpu.launch_s = h.host.launch_s = 0;
  h.gpu.attention_bytes_per_s = 1e30;
  AnalyticCost cost;
  cost.hardware = h;
  detail::VisionCost<AnalyticCost> const costs(cost, *model, h, detail::VisionHome::device);
  for (Shard const& s : model->table().shards) {
    Rows const rows{512, 4096, 1};
    PassCost const all = costs.cost(s, rows), products = cost.cost(s, rows);
    CHECK(all.copy_s == products.copy_s);
    if (s.kind != ShardKind::attention) {
      CHECK(all == products);
      continue;
    }
    bool const full = v.layers[std::size_t(s.layer)].full_attention;
    double const side = v.window_tokens() * v.merge_size, seen = full ? 4096 : side * side;
    double const flops = 2 * 2.0 * v.dim * seen * 512;
    CHECK(all.gpu_s - products.gpu_s == Approx(flops / h.gpu.attention_flops_per_s).epsilon(1e-3));
    for (detail::VisionHome const home : {detail::VisionHome::rows_on_host, detail::VisionHome::all_on_host}) {
      PassCost const crossing = detail::VisionCost<AnalyticCost>(cost, *model, h, home).cost(s, rows);
      double const row_bytes = double(v.dim) * sizeof(float), kept = home == detail::VisionHome::all_on_host ? (full ? 4096 : 512) : 0;
      CHECK(crossing.gpu_s >= h.h2d.seconds((2 * 512 + kept) * row_bytes) + h.d2h.seconds(512 * row_bytes));
      CHECK(crossing.gpu_s >= all.gpu_s);
      CHECK(crossing.host_s == all.host_s);
    }
  }
}

TEST_CASE("more room: more patches on the device, less of them in host memory, and never more than there is") {
  for (std::string const& name : tiered_test::vlm_models()) {
    auto const model = open_projector(name + ".mmproj.f16");
    std::size_t most_before = 0;
    int n_kv = 0, n_rows = 0, n_all = 0;
    for (std::size_t const kib : {0, 100, 200, 400, 800, 1600, 3200, 6400, 12800}) {
      std::size_t const bytes = kib * KiB;
      // One part, and two with something of others between them.
      for (std::vector<VramRange> const& room : {std::vector<VramRange>{{4096, 4096 + bytes}},
                                                 {{0, bytes / 4 * 1024 / 1024 / 256 * 256}, {bytes, 2 * bytes - bytes / 4 / 256 * 256}}}) {
        INFO(name << " in " << bytes << " bytes, " << room.size() << " parts");
        EnginePlans const plans = plans_in(*model, room);
        std::size_t most = 0;
        for (std::size_t i = 0; i < plans.images.size(); ++i) {
          PlanImage const& image = plans.images[i];
          CHECK(image.limits.block >= plans.tiers[i].rows.n);
          CHECK(plans.tiers[i].plan.vram_bytes <= bytes);
          CHECK(image.limits.chunk % 4 == 0);
          if (!image.uses_device) {
            CHECK_FALSE(image.limits.rows_on_host);
            continue;
          }
          auto const inside = [&](std::size_t at, std::size_t n) {
            return std::ranges::any_of(room, [&](VramRange const& r) { return r.begin <= at && at + n <= r.end; });
          };
          CHECK(inside(image.vram.scratch_offset, image.vram.scratch_bytes));
          CHECK(inside(image.vram.ring_offset, image.vram.ring_bytes));
          CHECK(image.activations.total_bytes <= image.vram.scratch_bytes);
          if (is_on_device(image)) most = std::max(most, std::size_t(plans.tiers[i].rows.n));
          n_kv += image.limits.kv_on_host;
          n_rows += image.limits.rows_on_host && !image.limits.kv_on_host;
          n_all += !image.limits.rows_on_host;
        }
        if (room.size() > 1) continue;
        CHECK(most >= most_before);
        most_before = most;
      }
    }
    CHECK(most_before == 4096);
    CHECK(n_kv > 0);
    CHECK(n_rows > 0);
    CHECK(n_all > 0);
  }
}

TEST_CASE("a device without a kernel that it takes is left out, and a host without one is refused") {
  auto const model = open_projector("qwen3vl.mmproj.f16");
  std::vector<VramRange> const room{{0, 16 * MiB}};
  KernelTable const& all = cpu_kernels(best_isa());
  CHECK(detail::encodes(all, *model));
  CHECK(plans_in(*model, room).vram_bytes > 0);
  std::vector<void (*)(KernelTable&)> const lacks{[](KernelTable& t) { t.layer_norm = nullptr; },
                                                  [](KernelTable& t) { t.activate = nullptr; },
                                                  [](KernelTable& t) { t.add_taps = nullptr; },
                                                  [](KernelTable& t) { t.rope = nullptr; },
                                                  [](KernelTable& t) { t.attention[std::uint32_t(DType::f16)] = nullptr; },
                                                  [](KernelTable& t) { t.kv_write[std::uint32_t(DType::f16)] = nullptr; },
                                                  [](KernelTable& t) { t.merge_attention = nullptr; },
                                                  [](KernelTable& t) { t.largest_head = 4; }};
  for (auto const lack : lacks) {
    KernelTable table = all;
    lack(table);
    CHECK_FALSE(detail::encodes(table, *model));
    CHECK(plans_in(*model, room, {.max_patches = 1024}, table).vram_bytes == 0);
  }
  auto const other = open_projector("qwen25vl.mmproj.f16");  // RMS norms, no table of positions
  KernelTable table = all;
  table.layer_norm = nullptr;
  table.add_taps = nullptr;
  CHECK(detail::encodes(table, *other));
  table.gated = nullptr;
  CHECK_FALSE(detail::encodes(table, *other));
}

TEST_CASE("the host is left alone where the device would save little of its time") {
  auto const model = open_projector("qwen2vl.mmproj.f16");
  int n_mixed = 0, n_left = 0;
  for (std::size_t kib = 40; kib < 400; kib += 20) {
    std::vector<VramRange> const room{{0, kib * KiB}};
    PlanImage const any = plans_in(*model, room, {.max_patches = 1024, .least_speedup = 0}).images.front(),
                    wanted = plans_in(*model, room, {.max_patches = 1024, .least_speedup = 1e9}).images.front();
    CHECK((is_on_device(wanted) || !wanted.uses_device));
    n_mixed += any.uses_device && !is_on_device(any);
    n_left += !wanted.uses_device;
  }
  CHECK(n_mixed > 0);
  CHECK(n_left > 0);
}
