// What an encoder's layers launch on devices whose conversions begin one op earlier: fewer ops, the same bits.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden/vision_encoding.hpp"
#include "reference_device.hpp"
#include "tiered/plan/placements/all_vram.hpp"
#include "tiered/plan/placements/stream_all.hpp"

using namespace tiered;
using namespace tiered::test;
using namespace tiered_test;

namespace {

KernelTable const*& device_kernels() {
  static KernelTable const* kernels = nullptr;
  return kernels;
}

/// A device of reference kernels beside the CPU.
template <class Placement_>
struct ReferencePolicies : CpuPolicies {
  using DeviceBackend = ReferenceDevice;
  using Copy = SimCopyEngine;
  using Placement = Placement_;
  static Machine<HostBackend, ReferenceDevice, Copy> make_machine(MachineOptions const& o) {
    auto lanes = LaneSet::threads();
    auto host = std::make_unique<CpuBackend>(
        lanes, CpuOptions{.isa = o.isa, .team = std::make_shared<Team>(o.n_threads), .f32_activations = o.f32_activations});
    auto device = std::make_unique<ReferenceDevice>(lanes, *device_kernels(), o.vram_bytes, "device");
    auto copy = std::make_unique<Copy>(lanes, SimCopyOptions{.device = &device->memory()});
    return {std::move(lanes), std::move(host), std::move(device), std::move(copy)};
  }
};

struct Seen {
  std::vector<VisionEncoding> encodings;
  std::vector<std::string> launches;  ///< of the device, for the fixture's first case

  std::ptrdiff_t n(std::string const& op) const { return std::ranges::count(launches, op); }
};

template <class Placement>
Seen encode(std::string const& model, KernelTable const& kernels, std::size_t vram_bytes) {
  device_kernels() = &kernels;
  using Policies = ReferencePolicies<Placement>;
  VlmFixture const fixture = read_vlm_fixture(model);
  Engine<Policies> engine(open_decoder(model + ".f16"), {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1});
  VisionEncoder<Policies> encoder(engine, open_projector(model + ".mmproj.f16"), {.max_patches = 1024, .least_speedup = 0});
  Seen seen;
  std::vector<std::string>& launches = engine.machine().device->launches;
  for (VlmCase const& c : fixture.cases) {
    launches.clear();
    seen.encodings.push_back(encoder.encode(vlm_patches(c, encoder.config()), c.grids));
    if (seen.launches.empty()) seen.launches = launches;
  }
  return seen;
}

template <class Placement>
void check(std::string const& model, std::size_t vram_bytes, bool whole) {
  INFO(model << " in " << vram_bytes << " bytes");
  Seen const plain = encode<Placement>(model, reference::kernels_bf16(), vram_bytes),
             fewer = encode<Placement>(model, reference::kernels_converting(), vram_bytes);
  for (std::size_t i = 0; i < plain.encodings.size(); ++i) CHECK(same_bits(fewer.encodings[i], plain.encodings[i]));
  VisionConfig const config = open_projector(model + ".mmproj.f16")->vision();
  bool const rms = config.norm == VisionNorm::rms;
  CHECK(fewer.n("gated") == 0);
  CHECK(fewer.n("gated+convert") == plain.n("gated"));
  CHECK((plain.n("gated") > 0) == config.gated);
  CHECK(fewer.n("norm+convert") + fewer.n("norm") == plain.n("norm"));
  CHECK((fewer.n("norm+convert") > 0) == rms);
  if (!whole) return;
  std::int32_t const n = config.n_layers;
  CHECK(fewer.n("norm+convert") == (rms ? 3 * n : 0));  // for k and v, for q, for the feed-forward
  CHECK(fewer.n("norm") == (rms ? 1 : 0));              // the merger's, whose products read other rows
  CHECK(fewer.n("gated+convert") == (config.gated ? n : 0));
  CHECK(fewer.n("add") == 0);
}

}  // namespace

TEST_CASE("conversions that begin one op earlier: an encoder's layers launch fewer ops, with the same bits", "[golden][fused][vision]") {
  for (std::string const& model : vlm_models()) {
    check<AllVram>(model, 16 * MiB, true);
    check<AllVram>(model, 360 * KiB, false);
    check<StreamAll>(model, 1200 * KiB, false);
  }
}
