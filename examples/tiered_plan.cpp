/// tiered-plan: what this machine can do for a model, and what would be done with it inside a VRAM budget. Generates nothing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tiered/engine/profiling.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/plan_json.hpp"
#include "tiered/profile/profile_text.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

namespace {

using nlohmann::json;
using tiered::concat;

struct Options {
  std::string model, vram = "2G", link, device = "automatic", placement = "seconds_per_byte";
  bool hardware = false, as_json = false, simulate = false, no_files = false;
  tiered::EngineOptions engine;
};

struct SimPolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
};
#if TIERED_HAS_CUDA
struct GpuPolicies : tiered::CudaPolicies {
  using Placement = tiered::AnyPlacement;
};
bool has_gpu() {
  int n = 0;
  bool const found = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
  static_cast<void>(cudaGetLastError());
  return found;
}
#endif

json numbers(std::string_view words) {
  json out = json::array();
  while (!words.empty()) {
    std::size_t const end = std::min(words.find(' '), words.size());
    out.push_back(json::parse(words.substr(0, end)));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return out;
}

/// Names and figures as a profile's file has them: curves as [size, rate, size, rate, ...].
json hardware_json(tiered::HardwareProfile const& profile) {
  json out = json::object();
  std::string const text = to_profile_text(profile, "");
  for (std::string_view left = text; !left.empty();) {
    std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(line.size() + 1);
    line = line.substr(0, line.find(" #"));
    std::size_t const space = std::min(line.find(' '), line.size());
    std::string const name(line.substr(0, space));
    std::string_view const rest = line.substr(std::min(space + 1, line.size()));
    if (name == "tiered" || name == "key" || name == "checksum" || name.ends_with("_count")) continue;
    if (name.ends_with("_name")) {
      out[name] = std::string(rest);
    } else if (name.ends_with("_format")) {
      out[name].push_back(numbers(rest));
    } else {
      json const values = numbers(rest);
      out[name] = name.find("_by_") != std::string::npos ? values : values.front();
    }
  }
  return out;
}

std::string where_from(tiered::ProfileResult const& r) {
  std::string out = concat("hardware: ", name(r.source), r.file.empty() ? "" : concat(" (", r.file, ")"));
  if (r.source >= tiered::ProfileSource::file) out += concat(", in ", r.seconds, " s");
  return concat(out, '\n', r.note.empty() ? std::string() : concat("note: ", r.note, '\n'));
}

template <class P>
void run(Options const& o) {
  tiered::GgufFile const gguf = tiered::GgufFile::open(o.model);
  std::shared_ptr<tiered::Transformer const> const model = tiered::make_model(gguf);
  tiered::EngineOptions options = o.engine;
  auto machine = P::make_machine({.vram_bytes = options.vram_bytes,
                                  .n_threads = options.n_threads,
                                  .device = options.device,
                                  .link_bytes_per_s = options.link_bytes_per_s});
  if constexpr (requires { machine.plan_bytes(); }) options.vram_bytes = machine.plan_bytes();
  tiered::ShardTable const table = model->table();
  tiered::ProfileResult const profile = profile_machine(machine, *model, table.weights, options);
  json out{{"hardware", hardware_json(profile.hardware)},
           {"hardware_source", name(profile.source)},
           {"hardware_file", profile.file},
           {"hardware_note", profile.note},
           {"hardware_s", profile.seconds}};
  std::string text = where_from(profile) + to_text(profile.hardware);
  if (!o.hardware) {
    options.hardware = profile.hardware;
    tiered::PolicyValues<P> values;
    values.placement = tiered::make_placement(o.placement);
    tiered::EnginePlans const plans =
        make_plans<P>(*model, options, values, machine.host->kernels(), machine.device->kernels(), device_reads_host(machine));
    text += concat("context ", plans.max_context, " tokens, ", tiered::format_bytes(plans.vram_bytes), " planned of ",
                   tiered::format_bytes(o.engine.vram_bytes), '\n');
    for (tiered::TierPlan const& tier : plans.tiers) {
      text += '\n' + to_text(tier, table);
      out["tiers"].push_back(tier_to_json(tier));
    }
    out["context"] = plans.max_context, out["vram_planned_bytes"] = plans.vram_bytes;
  }
  std::string const written = o.as_json ? out.dump(2) + '\n' : text;
  if (std::fwrite(written.data(), 1, written.size(), stdout) != written.size() || std::fflush(stdout) != 0)
    throw tiered::Error(tiered::Errc::io, "standard output takes no more");
}

void run(Options const& o) {
#if TIERED_HAS_CUDA
  if (o.device == "cuda" || (o.device == "automatic" && has_gpu())) return run<GpuPolicies>(o);
#endif
  if (o.device == "cuda") throw tiered::Error(tiered::Errc::unsupported, "this program was built without CUDA");
  run<SimPolicies>(o);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Prints what this machine can do for a model, and what would be done within a VRAM budget.", "tiered-plan");
  app.add_option("-m,--model", o.model, "GGUF file")->required()->type_name("FILE");
  app.add_option("--vram", o.vram, "Budget: 512M, 2G")->type_name("SIZE")->capture_default_str();
  app.add_option("--link", o.link, "Holds copies between host and device to a rate, as in 12G: what a slower link would do")
      ->type_name("RATE");
  app.add_option("--device", o.device, "automatic, cuda, or simulated: memory of this machine behind a link that copies")
      ->check(CLI::IsMember({"automatic", "cuda", "simulated"}));
  auto* const placement = app.add_option("--placement", o.placement, "Placement policy")->capture_default_str();
  auto* const context = app.add_option("-c,--ctx-size", o.engine.max_context, "Tokens of context; 0: as trained, at most 32768");
  context->check(CLI::Range(0, 1 << 24));
  app.add_option("-t,--threads", o.engine.n_threads, "CPU threads; 0: physical cores")->check(CLI::Range(0, 1024));
  app.add_flag("--hardware", o.hardware, "Only what the machine can do, measured now or earlier; also of a simulated device")
      ->excludes(placement)
      ->excludes(context);
  app.add_flag("--made-up", o.simulate, "Plan for a made-up machine that is the same everywhere; measures nothing");
  app.add_flag("--no-profile-file", o.no_files, "Neither read nor write what was measured");
  app.add_flag("--json", o.as_json, "One JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    std::optional<std::uint64_t> const bytes = tiered::parse_bytes(o.vram);
    if (!bytes) throw tiered::Error(tiered::Errc::precondition, concat("--vram ", o.vram, " is no size"));
    o.engine.vram_bytes = std::size_t(*bytes);
    o.engine.profile.use_files = !o.no_files;
    if (o.hardware) o.engine.profile.measure = true;
    if (!o.link.empty()) {
      std::optional<double> const rate = tiered::parse_rate(o.link);
      if (!rate) throw tiered::Error(tiered::Errc::precondition, concat("--link ", o.link, " is no rate"));
      o.engine.link_bytes_per_s = *rate;
    }
    if (o.simulate) o.engine.hardware = tiered::with_link(tiered::HardwareProfile::simulated(), o.engine.link_bytes_per_s);
    run(o);
    return 0;
  } catch (tiered::Error const& e) {
    std::fprintf(stderr, "tiered-plan: %s: %s\n", name(e.code()), e.what());
  } catch (std::exception const& e) {
    std::fprintf(stderr, "tiered-plan: %s\n", e.what());
  }
  return 1;
}
