#include "report.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/plan_io.hpp"

namespace app {

using tiered::concat;
using tiered::format_bytes;

std::string fixed(double value, int digits) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr);
}

std::string describe(tiered::GgufFile const& gguf, tiered::ModelConfig const& config) {
  std::string const& name = config.name.empty() ? gguf.path() : config.name;
  return concat(name, " (", config.architecture, "), ", config.n_layers, " layers, ", format_bytes(gguf.total_bytes()), ", trained for ",
                config.max_seq_len, " tokens");
}

std::string describe_device(Options const& o, std::size_t planned_bytes) {
  if (o.device == DeviceKind::none) return "no device: everything on the CPU (--vram SIZE simulates one)";
  bool const real = o.device == DeviceKind::cuda;
  std::string const budget = concat(real ? o.device_name : "simulated device", ", budget ", format_bytes(o.vram_bytes.value_or(0)), ": ");
  if (planned_bytes == 0) return budget + "nothing useful fits, everything on the CPU";
  if (real) return concat(budget, format_bytes(planned_bytes), " planned");
  return concat(budget, format_bytes(planned_bytes), " planned (its memory is this machine's; it computes with the CPU and is no faster)");
}

std::string describe_plan(tiered::TierPlan const& decode, tiered::ShardTable const& table) {
  return concat("plan for each next token, layer by layer (R resident in VRAM, S streamed to it for each use, . on the CPU",
                tiered::ExpertLayers(table.shards).layers.empty() ? "" : ", C or c cached experts", "; kv: V in VRAM):\n",
                tiered::layer_map(decode.plan, table));
}

std::string plan_report(tiered::EnginePlans const& plans, tiered::ShardTable const& table, Options const& o,
                        std::optional<tiered::HardwareProfile> const& hardware) {
  if (o.device == DeviceKind::none) return "";
  std::string out = concat("placement ", o.placement, "; seconds are estimates for this ",
                           hardware ? "machine, as it was measured:\n" : "made-up machine, not for yours:\n",
                           tiered::to_text(hardware ? *hardware : tiered::HardwareProfile::simulated()));
  if (plans.vram_bytes > 0) {
    out +=
        "R resident in VRAM, S streamed to it for each use, . on the CPU; kv: V in VRAM; experts: C all cached, c some, r some resident, "
        "m both\n";
  }
  out += '\n';
  for (tiered::TierPlan const& tier : plans.tiers) {
    out += tiered::to_text(tier, table);
    if (&tier != &plans.tiers.back()) out += '\n';
  }
  return out;
}

namespace {

std::string rate(double n, double seconds) { return seconds > 0 ? fixed(n / seconds, 1) : "-"; }

/// Without a device's lines where there is none.
std::string device_text(Report const& r, Options const& o) {
  if (o.device == DeviceKind::none) return "";
  Turn const& t = r.turn;
  std::uint64_t const after_prompt = t.copied_bytes - t.prefill_copied_bytes;
  std::string out = concat("peak VRAM            ", format_bytes(r.vram_peak_bytes), " of a budget of ", format_bytes(*o.vram_bytes),
                           "\ncopied to VRAM       ", format_bytes(t.prefill_copied_bytes), " with the prompt, ",
                           format_bytes(after_prompt), " after it");
  // The first step after a prompt also brings what the plan for single tokens keeps there.
  if (t.n_decoded > 1) out += concat(", ", format_bytes((after_prompt - t.first_decode_copied_bytes) / (t.n_decoded - 1)), " a token");
  if (std::uint64_t const used = r.experts.hits + r.experts.misses; used > 0)
    out += concat("\nexpert cache         ", fixed(100 * double(r.experts.hits) / double(used), 1), " % of ", used, " uses hit");
  if (r.prior_bytes > 0) out += concat("\n                     began with ", format_bytes(r.prior_bytes), " that earlier runs used");
  if (tiered::SharedFlowCounters const& s = r.shared; s.n_experts > 0 && s.n_rows > 0)
    out += concat("\nprompt's experts     the CPU computed ", fixed(100 * double(s.n_host_experts) / double(s.n_experts), 0),
                  " % of them, ", fixed(100 * double(s.n_host_rows) / double(s.n_rows), 0), " % of their rows, in ", s.n_layers, " layers");
  if (tiered::HelpCounters const& h = r.help; h.n_guessed > 0) {
    out += concat("\n                     ", fixed(double(h.n_guessed) / double(h.n_steps), 1),
                  " a token brought ahead of their layers: ", fixed(100 * double(h.n_right) / double(h.n_guessed), 0), " % were used, ",
                  fixed(100 * double(h.n_in_time) / double(h.n_guessed), 0), " % were there in time; ",
                  format_bytes(h.wasted_bytes / h.n_steps), " a token in vain");
  }
  if (r.help.n_requests > 0 && r.help.n_steps > 0) {
    out += concat("\n                     the GPU asked for missing ones in ", fixed(double(r.help.n_requests) / double(r.help.n_steps), 1),
                  " layers a token");
    tiered::HelpCounters const& h = r.help;
    auto const each = [&](std::uint64_t n) { return fixed(double(n) / double(h.n_requests), 1); };
    auto const us = [&](double seconds) { return fixed(1e6 * seconds / double(h.n_requests), 0); };
    out += concat(": of each ", each(h.n_on_host), " on the CPU, ", each(h.n_fetched), " fetched, ", each(h.n_late), " coming, ",
                  each(h.n_for_later), " brought for later; ", us(h.device_s), " us, of these to decide ", us(h.decide_s),
                  ", the CPU's products ", us(h.host_s), ", waiting for copies ", us(h.late_s));
  }
  if (r.help.n_timed_out > 0)
    out += concat("\n                     ", r.help.n_timed_out, " steps done again: the GPU waited for the CPU in vain");
  if (double const n = double(r.help.n_attention_requests); n > 0) {
    out += concat("\nattention shared     ", r.help.n_attention_requests, " times, GPU ", fixed(1e6 * r.help.attention_device_s / n, 0),
                  " us, CPU ", fixed(1e6 * r.help.attention_host_s / n, 0), " us, waited for that ",
                  fixed(1e6 * r.help.attention_waited_s / n, 0), " us, at last ", fixed(100 * r.help.attention_read_share, 0),
                  " % over the link");
  }
  return out + '\n';
}

/// What the plan promised, against what came of it.
std::string planned_text(Report const& r) {
  Turn const& t = r.turn;
  if (!r.planned_s || *r.planned_s <= 0 || t.n_decoded == 0 || t.decode_s <= 0) return "";
  return concat("as planned           ", rate(1, *r.planned_s), " tokens/s behind ", r.planned_context, " positions, ",
                fixed(100 * double(t.n_decoded) / t.decode_s * *r.planned_s, 0), " % of it measured\n");
}

std::string bound_text(Bound const& b, Turn const& t) {
  if (t.n_decoded == 0 || t.decode_s <= 0 || b.read_bytes_per_s <= 0) return "";
  double const tokens_per_s = double(t.n_decoded) / t.decode_s, read = tokens_per_s * b.bytes_per_token;
  return concat("share of the bound   decode ", fixed(tokens_per_s, 1), " t/s, ", fixed(read / 1e9, 1), " GB/s of ",
                fixed(b.read_bytes_per_s / 1e9, 1), " GB/s measured = ", fixed(100 * read / b.read_bytes_per_s, 0),
                " %\n                     (", format_bytes(std::uint64_t(b.bytes_per_token)),
                " of weights and KV a token from host memory; measured: these threads reading the weights",
                b.from_cache ? ", which fit the caches)\n" : ")\n");
}

/// What images and videos cost.
std::string media_text(Report const& r) {
  Turn const& t = r.turn;
  std::string out;
  if (r.n_media > 0) out += concat("images               ", r.n_media, " decoded and resized in ", fixed(r.media_s, 2), " s\n");
  if (t.media.n_encoded + t.media.n_cached == 0) return out;
  out += concat("encoded              ", t.media.n_encoded, " in ", fixed(t.encode_s, 2), " s");
  if (t.media.n_cached > 0) out += concat("; ", t.media.n_cached, " more had been");
  return out + concat("; ", t.media.n_vectors, " tokens of the prompt\n");
}

}  // namespace

std::string to_text(Report const& r, Options const& o) {
  Turn const& t = r.turn;
  std::string out = concat("\nstopped              ", r.stopped, "\nload                 ", fixed(r.load_s, 2), " s\n");
  if (o.device != DeviceKind::none) out += concat("                     ", tiered::to_text(r.load), '\n');
  out += media_text(r);
  if (t.prefill_s > 0) {
    std::int32_t const n = t.n_prompt - t.n_reused;
    out += concat("prompt               ", n, n == 1 ? " token in " : " tokens in ", fixed(t.prefill_s, 2), " s, ", rate(n, t.prefill_s),
                  " tokens/s");
    out += t.n_reused > 0 ? concat("; ", t.n_reused, " more were there already\n") : "\n";
  }
  if (!t.tokens.empty()) out += concat("time to first token  ", fixed(t.first_token_s, 3), " s after loading\n");
  out += concat("text                 ", t.tokens.size(), t.tokens.size() == 1 ? " token" : " tokens");
  out += t.n_decoded > 0 ? concat(", ", rate(double(t.n_decoded), t.decode_s), " tokens/s\n") : "\n";
  out += planned_text(r);
  if (r.idle.n_layers > 0) {
    out += concat("device idle          ", fixed(r.idle.mean_s() * 1e6, 1), " us in each layer of a token, on the average of ",
                  r.idle.n_layers, '\n');
  }
  if (r.encoder_idle.n_layers > 0) {
    out += concat("                     ", fixed(r.encoder_idle.mean_s() * 1e6, 1), " us in each layer of the encoder, on the average of ",
                  r.encoder_idle.n_layers, '\n');
  }
  if (r.bound) out += bound_text(*r.bound, t);
  out += device_text(r, o);
  if (r.host_kv_bytes > 0) out += concat("KV cache on the CPU  ", format_bytes(r.host_kv_bytes), '\n');
  return out;
}

}  // namespace app
