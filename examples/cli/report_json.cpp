// What --json writes.
#include <string>
#include <string_view>
#include <utility>

#include "report.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/plan_io.hpp"
#include "tiered/plan/plan_json.hpp"

namespace app {
namespace {

using nlohmann::json;

json rate(double n, double seconds) { return seconds > 0 && n > 0 ? json(n / seconds) : json(nullptr); }

json model_json(tiered::GgufFile const& gguf, tiered::ModelConfig const& config) {
  return {{"file", gguf.path()},
          {"name", config.name},
          {"architecture", config.architecture},
          {"layers", config.n_layers},
          {"weight_bytes", gguf.total_bytes()},
          {"trained_context", config.max_seq_len}};
}

json logprobs_json(Turn const& t, tiered::Tokenizer const& tokenizer) {
  json out = json::array();
  for (Turn::Token const& token : t.tokens) {
    json top = json::array();
    for (auto const& [id, logprob] : token.top)
      top.push_back({{"token", id}, {"text", id < tokenizer.size() ? tokenizer.decode(id) : ""}, {"logprob", logprob}});
    out.push_back({{"token", token.id}, {"text", tokenizer.decode(token.id)}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  return out;
}

json tiers_json(tiered::EnginePlans const& plans) {
  json out = json::array();
  for (tiered::TierPlan const& tier : plans.tiers) {
    out.push_back({{"tokens", tier.rows.n},
                   {"vram_bytes", tier.plan.vram_bytes},
                   {"resident_bytes", tier.plan.resident_bytes},
                   {"copied_bytes", tier.estimate.copied_bytes},
                   {"host_bytes", tier.estimate.host_bytes}});
  }
  return out;
}

json bound_json(Bound const& b, Turn const& t) {
  double const tokens_per_s = t.decode_s > 0 ? double(t.n_decoded) / t.decode_s : 0;
  return {{"bytes_per_token", b.bytes_per_token},
          {"measured_bytes_per_s", b.read_bytes_per_s},
          {"weights_fit_caches", b.from_cache},
          {"share", b.tokens_per_s() > 0 ? json(tokens_per_s / b.tokens_per_s()) : json(nullptr)}};
}

}  // namespace

json plan_json(tiered::GgufFile const& gguf, tiered::ModelConfig const& config, tiered::EnginePlans const& plans, Options const& o) {
  json tiers = json::array();
  for (tiered::TierPlan const& tier : plans.tiers) tiers.push_back(tiered::tier_to_json(tier));
  return {{"model", model_json(gguf, config)},
          {"context", plans.max_context},
          {"vram_budget_bytes", o.vram_bytes ? json(*o.vram_bytes) : json(nullptr)},
          {"vram_planned_bytes", plans.vram_bytes},
          {"placement", o.placement},
          {"tiers", std::move(tiers)}};
}

json to_json(Report const& r, Options const& o, tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, Runner& runner) {
  Turn const& t = r.turn;
  json tokens = json::array();
  for (Turn::Token const& token : t.tokens) tokens.push_back(token.id);
  json load = json::array();
  for (tiered::LoadStep const& s : r.load.steps()) load.push_back({{"step", s.name}, {"begin_s", s.begin_s}, {"end_s", s.end_s}});
  json out = {
      {"model", model_json(gguf, runner.config())},
      {"text", t.text},
      {"tokens", std::move(tokens)},
      {"finish_reason", t.end == tiered::EndReason::none ? "error" : name(t.end)},
      {"seed", o.sampling.seed},
      {"usage",
       {{"prompt_tokens", t.n_prompt}, {"reused_tokens", t.n_reused}, {"text_tokens", t.tokens.size()}, {"forgotten_tokens", t.n_dropped}}},
      {"timings",
       {{"load_s", r.load_s},
        {"load", std::move(load)},
        {"prompt_s", t.prefill_s},
        {"first_token_s", t.first_token_s},
        {"decode_s", t.decode_s}}},
      {"speed",
       {{"prompt_tokens_per_s", rate(t.n_prompt - t.n_reused, t.prefill_s)},
        {"decode_tokens_per_s", rate(double(t.n_decoded), t.decode_s)}}},
      {"memory",
       {{"weight_bytes", gguf.total_bytes()},
        {"host_kv_bytes", r.host_kv_bytes},
        {"vram_budget_bytes", o.vram_bytes ? json(*o.vram_bytes) : json(nullptr)},
        {"vram_peak_bytes", r.vram_peak_bytes},
        {"copied_bytes", t.copied_bytes}}},
      {"plan",
       {{"context", runner.max_context()},
        {"threads", runner.team().size()},
        {"kernels", runner.kernels_name()},
        {"kv_type", tiered::name(o.kv_type)},
        {"placement", o.placement},
        {"vram_bytes", runner.plans().vram_bytes},
        {"tiers", tiers_json(runner.plans())}}},
  };
  if (r.n_media > 0 || t.media.n_vectors > 0) {
    out["media"] = {
        {"read", r.n_media},      {"read_s", r.media_s},        {"encoded", t.media.n_encoded}, {"encoded_before", t.media.n_cached},
        {"encode_s", t.encode_s}, {"tokens", t.media.n_vectors}};
  }
  if (!t.stop_string.empty()) out["stop_string"] = t.stop_string;
  if (o.logprobs > 0) out["logprobs"] = logprobs_json(t, tokenizer);
  if (r.planned_s) out["plan"]["decode_s"] = *r.planned_s;
  if (r.bound) out["bound"] = bound_json(*r.bound, t);
  return out;
}

json error_json(std::string_view code, std::string const& message, int exit_code) {
  return {{"error", {{"code", code}, {"message", message}}}, {"exit_code", exit_code}};
}

std::string dump(json const& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace) + '\n'; }

}  // namespace app
