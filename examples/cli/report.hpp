/// What tiered-run says besides the text: what it is about to do, plans, and how it went. All in plain functions that make strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "options.hpp"
#include "runner.hpp"
#include "tiered/engine/load_times.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/engine/trace_idle.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/model/config.hpp"
#include "turn.hpp"

namespace app {

/// "12.3", with `digits` behind the point.
std::string fixed(double value, int digits);

/// "SmolLM2 135M (llama), 30 layers, 92.6 MiB, trained for 8192 tokens"
std::string describe(tiered::GgufFile const& gguf, tiered::ModelConfig const& config);
std::string describe_device(Options const& o, std::size_t planned_bytes);
/// The map of one token tier, with its legend. The widest part of the status: only where there is a device.
std::string describe_plan(tiered::TierPlan const& decode, tiered::ShardTable const& table);
/// Everything of --plan. Without --vram there is nothing to plan, and estimates for a made-up machine would mislead. `hardware`: that plans
/// were estimated with; nothing: the made-up one.
std::string plan_report(tiered::EnginePlans const& plans, tiered::ShardTable const& table, Options const& o,
                        std::optional<tiered::HardwareProfile> const& hardware);
nlohmann::json plan_json(tiered::GgufFile const& gguf, tiered::ModelConfig const& config, tiered::EnginePlans const& plans,
                         Options const& o);

/// How fast decoding could be at best: whatever is not in VRAM is read from host memory for every token.
struct Bound {
  double bytes_per_token = 0;   ///< weights that a token needs, of experts those routed to, and its share of KV; by host and link
  double read_bytes_per_s = 0;  ///< measured in this run, over these weights
  bool from_cache = false;      ///< the weights fit the processor's caches

  double tokens_per_s() const { return bytes_per_token > 0 ? read_bytes_per_s / bytes_per_token : 0; }
};
/// `n_positions`: kept for the token, on the average.
Bound measure_bound(Runner& runner, Options const& o, double n_positions);

/// Of a whole run, or of one turn of a conversation.
struct Report {
  double load_s = 0;
  Turn turn;
  std::string stopped;
  std::size_t vram_peak_bytes = 0, host_kv_bytes = 0;
  tiered::ExpertCache::Counters experts;
  tiered::SharedFlowCounters shared;
  tiered::HelpCounters help;
  tiered::LoadTimes load;  ///< of the engine, a part of load_s
  std::optional<Bound> bound;
  double media_s = 0;               ///< decoding and resizing images before this turn
  int n_media = 0;                  ///< how many of them and videos
  std::size_t prior_bytes = 0;      ///< of experts that earlier runs used, brought ahead
  std::optional<double> planned_s;  ///< what the plan says of a token behind `planned_context` positions; nothing: for a made-up machine
  std::int32_t planned_context = 0;
  tiered::IdleSum idle;          ///< of the device within layers, while decoding; nothing without a trace
  tiered::IdleSum encoder_idle;  ///< likewise of the encoder's
};
std::string to_text(Report const& r, Options const& o);

/// Of --json: everything of a run. Text that is no UTF-8 has U+FFFD; its tokens have all.
nlohmann::json to_json(Report const& r, Options const& o, tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, Runner& runner);
nlohmann::json error_json(std::string_view code, std::string const& message, int exit_code);
std::string dump(nlohmann::json const& json);

}  // namespace app
