// What the decoder has in its arena comes back behind the encoder's last layers, and traces show it.
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden/vision_encoding.hpp"
#include "tiered/engine/trace_json.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct Submission {
  std::vector<CopyPiece> pieces;
  std::vector<Ticket> after;
};

/// The simulated link; remembers what it was asked for.
class NotingCopy {
 public:
  explicit NotingCopy(std::unique_ptr<SimPolicies::Copy> link) : link_(std::move(link)) {}
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    notes.push_back({{pieces.begin(), pieces.end()}, {after.begin(), after.end()}});
    return link_->submit(pieces, after);
  }
  bool done(Ticket t) const { return link_->done(t); }
  void wait(Ticket t) { link_->wait(t); }
  void recover() { link_->recover(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return link_->times(begin, end); }
  std::uint64_t bytes_to_device() const { return link_->bytes_to_device(); }

  std::vector<Submission> notes;

 private:
  std::unique_ptr<SimPolicies::Copy> link_;
};
static_assert(CopyEngine<NotingCopy>);

struct NotingMachine {
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<CpuBackend> host;
  std::unique_ptr<SimBackend> device;
  std::unique_ptr<NotingCopy> copy;
  std::unique_ptr<SimCopyEngine> kv_copy;
};
struct NotingPolicies : SimPolicies {
  using Copy = NotingCopy;
  using Trace = RecordingTrace;
  static NotingMachine make_machine(MachineOptions const& o) {
    auto sim = SimPolicies::make_machine(o);
    NotingMachine m{std::move(sim.lanes), std::move(sim.host), std::move(sim.device), std::make_unique<NotingCopy>(std::move(sim.copy)),
                    nullptr};
    m.kv_copy = std::make_unique<SimCopyEngine>(m.lanes, SimCopyOptions{.device = &m.device->memory(), .lane_name = "kv copy"});
    return m;
  }
};

EngineOptions options_for(std::size_t vram_bytes) { return {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1}; }
VisionOptions const vision{.max_patches = 1024, .least_speedup = 0};
std::vector<std::int32_t> const prompt{3, 1, 4, 1, 5, 9};

/// An engine with an encoder in its arena.
template <class P = SimPolicies>
struct Rig {
  Rig(std::string const& model, std::size_t vram_bytes)
      : engine(open_decoder(model + ".f16"), options_for(vram_bytes)), encoder(engine, open_projector(model + ".mmproj.f16"), vision) {
    all_logits(engine, prompt, {6});  // as after an answer
  }
  bool lends() const { return encoder.plans().images.front().uses_device && encoder.borrows_vram(); }
  std::uint64_t copied() { return engine.machine().copy->bytes_to_device(); }

  Engine<P> engine;
  VisionEncoder<P> encoder;
};

constexpr std::size_t budgets[] = {300 * KiB, 500 * KiB, 700 * KiB, 900 * KiB, 1300 * KiB};

}  // namespace

TEST_CASE("residents come back behind the encoder: no more bytes than with the next step, and the same text", "[golden][vision]") {
  int n_returned = 0;
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    VlmCase const &first = fixture.cases.at(0), &second = fixture.cases.at(1);
    Engine<CpuPolicies> cpu(open_decoder(model + ".f16"), {.max_context = 256, .n_threads = 1});
    std::vector<float> const text = all_logits(cpu, prompt, {6, 1});
    std::vector<VisionEncoding> const expected = encode_on_host(model, "f16", fixture);
    for (std::size_t const vram_bytes : budgets) {
      INFO(model << " in " << vram_bytes);
      Rig later(model, vram_bytes), behind(model, vram_bytes);
      if (!later.lends()) continue;
      VisionConfig const& c = later.encoder.config();
      std::vector<float> const a = vlm_patches(first, c), b = vlm_patches(second, c);
      REQUIRE(later.copied() == behind.copied());
      CHECK(alike(later.encoder, later.encoder.encode(a, first.grids, true), expected[0]));
      CHECK(alike(behind.encoder, behind.encoder.encode(a, first.grids, true), expected[0]));
      CHECK(later.copied() == behind.copied());  // another one follows: nothing comes back in between
      CHECK(alike(later.encoder, later.encoder.encode(b, second.grids, true), expected[1]));
      CHECK(alike(behind.encoder, behind.encoder.encode(b, second.grids), expected[1]));
      std::uint64_t const returned = behind.copied() - later.copied();
      n_returned += returned > 0;
      CHECK(all_logits(later.engine, prompt, {6}) == all_logits(behind.engine, prompt, {6}));
      CHECK(later.copied() == behind.copied());
      // And again, with what the arena holds now.
      CHECK(alike(behind.encoder, behind.encoder.encode(a, first.grids), expected[0]));
      CHECK(all_logits(behind.engine, prompt, {6, 1}) == text);
      CHECK(behind.engine.stats().vram_peak_bytes <= vram_bytes);
    }
  }
  CHECK(n_returned > 5);
}

TEST_CASE("residents come back while the encoder still works: their copies wait for earlier work than its last", "[golden][vision]") {
  int n_before_the_end = 0;
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    VlmCase const& c = fixture.cases.front();
    for (std::size_t const vram_bytes : budgets) {
      INFO(model << " in " << vram_bytes);
      Rig<NotingPolicies> rig(model, vram_bytes);
      if (!rig.lends()) continue;
      detail::EngineCore& core = rig.engine.core();
      std::set<std::byte const*> weights;  // of the decoder
      for (Weight const& w : core.parts().weights) weights.insert(w.data);
      rig.engine.machine().copy->notes.clear();
      rig.encoder.encode(vlm_patches(c, rig.encoder.config()), c.grids);
      Ticket const end = core.parts().device.record();
      std::uint64_t last = 0;
      bool of_decoder = false;
      for (Submission const& s : rig.engine.machine().copy->notes) {
        bool const comes_back = weights.contains(s.pieces.front().src);
        CHECK((comes_back || !of_decoder));  // no weight of the encoder stands behind one of the decoder
        of_decoder = comes_back;
        if (!comes_back) continue;
        REQUIRE(s.after.size() == 1);
        CHECK(s.after.front().lane == end.lane);
        CHECK(s.after.front().value >= last);
        last = s.after.front().value;
        CHECK(last <= end.value);
        n_before_the_end += last < end.value;
      }
      std::size_t const n_notes = rig.engine.machine().copy->notes.size();
      all_logits(rig.engine, prompt, {6});
      // What came back is not copied again.
      std::set<std::byte const*> seen;
      for (std::size_t i = 0; i < rig.engine.machine().copy->notes.size(); ++i) {
        std::byte const* const src = rig.engine.machine().copy->notes[i].pieces.front().src;
        if (!weights.contains(src)) continue;
        if (i < n_notes) seen.insert(src);
        if (i >= n_notes) CHECK_FALSE(seen.contains(src));
      }
    }
  }
  CHECK(n_before_the_end > 10);
}

TEST_CASE("an encoder's steps are in the trace, by name, and so is how long the device was idle in them", "[golden][vision][trace]") {
  for (std::string const& model : vlm_models()) {
    INFO(model);
    VlmFixture const fixture = read_vlm_fixture(model);
    VlmCase const& c = fixture.cases.front();
    Rig<NotingPolicies> rig(model, 900 * KiB);
    REQUIRE(rig.lends());
    std::vector<TraceEvent>& events = rig.engine.trace().events;
    events.clear();
    rig.encoder.encode(vlm_patches(c, rig.encoder.config()), c.grids);
    TraceTables const tables(rig.engine.model().table(), rig.encoder.model().table());
    std::vector<ShardId> ran, expected;
    for (TraceEvent const& e : events) {
      CHECK(e.of_encoder);
      CHECK(e.begin_s <= e.end_s);
      if (e.action.kind == ActionKind::run) ran.push_back(e.action.shard);
    }
    for (Action const& a : rig.encoder.plans().images.front().schedule) {
      if (a.kind == ActionKind::run && (expected.empty() || expected.back() != a.shard)) expected.push_back(a.shard);
    }
    CHECK(ran == expected);
    std::size_t const n_of_encoder = events.size();
    all_logits(rig.engine, prompt, {6});
    CHECK(events.size() > n_of_encoder);
    CHECK(std::all_of(events.begin() + std::ptrdiff_t(n_of_encoder), events.end(), [](TraceEvent const& e) { return !e.of_encoder; }));

    std::vector<TraceStep> const steps{{"images", 0, TraceStepKind::media}, {"prompt", n_of_encoder, TraceStepKind::prompt}};
    std::string text;
    write_trace_json([&](std::string_view piece) { text += piece; }, events, tables, steps);
    std::set<std::string> names;
    nlohmann::json const file = nlohmann::json::parse(text);
    for (nlohmann::json const& e : file["traceEvents"]) names.insert(e["name"].get<std::string>());
    for (char const* name : {"images", "prompt", "encoder: run patches", "encoder layer 0: run attention", "encoder layer 1: run ffn",
                             "run attention", "run ffn"}) {
      INFO(name);
      CHECK(names.contains(name));
    }
    bool const on_device = std::ranges::all_of(rig.encoder.plans().images.front().schedule,
                                               [](Action const& a) { return a.kind != ActionKind::run || a.device != host_device; });
    IdleSum const idle = steps_idle(events, tables, steps, TraceStepKind::media);
    if (on_device) CHECK(idle.n_layers >= std::size_t(rig.encoder.config().n_layers));
    for (LayerIdle const& l : device_idle(events, tables)) CHECK(l.idle_s <= l.end_s - l.begin_s);
  }
}
