/// One engine with a vision encoder beside it, and the cells that it answers: images of several sizes, one after the other, each with a
/// text and tokens behind it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_cells.hpp"
#include "picture.hpp"
#include "vision_bounds.hpp"
#include "vision_plan.hpp"

namespace bench {

/// What one engine is asked: `question` with each of `pictures`.
struct VisionJob {
  std::string path, projector_path;
  VisionCell question;
  std::vector<Picture> pictures;
  int max_context = 0, n_runs = 2;  ///< runs of each image, the first of which is another figure
  double started_s = 0;             ///< when the process began, by now_s()
};

/// Tokens that a picture of this size becomes.
inline std::int64_t vision_tokens(tiered::VisionConfig const& config, tiered::ImageSize size) {
  tiered::ImageSize const resized = tiered::smart_resize(size, tiered::patch_config(config));
  std::int64_t const side = std::int64_t{config.patch_size} * config.merge_size;
  return resized.width / side * (resized.height / side);
}

template <class P, class Peak>
class VisionCells {
 public:
  VisionCells(std::shared_ptr<tiered::Transformer const> model, std::shared_ptr<tiered::VisionModel const> projector, VisionJob const& job,
              MeasuredMachine const& machine, Peak& peak)
      : job_(job),
        machine_(machine),
        peak_(peak),
        engine_(std::move(model), engine_options(job), policy_values()),
        encoder_(engine_, std::move(projector), {}, policy_values()),
        reader_(encoder_.config(), reader_options()) {
    note_peak();
  }

  /// Every run has all images in it, so that each of them finds the arena as another one's text has left it. `on_cell`: as soon as an image
  /// has had its last run, or has failed.
  template <class Progress, class OnCell>
  void measure(Progress const& progress, OnCell const& on_cell) {
    int const n_runs = std::max(job_.n_runs, 2);
    std::vector<VisionCell> cells(job_.pictures.size(), job_.question);
    for (int i = 0; i < n_runs; ++i) {
      for (std::size_t p = 0; p < cells.size(); ++p) {
        VisionCell& c = cells[p];
        if (!c.error.empty()) continue;
        Picture const& picture = job_.pictures[p];
        progress(tiered::concat(picture.is.name, ", run ", i + 1, " of ", n_runs));
        begin_cell(picture, c);
        try {
          run(picture, i == 0, c);
        } catch (std::exception const& e) {
          c.error = e.what();
        }
        if (i + 1 == n_runs || !c.error.empty()) on_cell(finished(c));
      }
    }
  }

 private:
  static tiered::EngineOptions engine_options(VisionJob const& job) {
    EngineJob text;
    text.question.vram_bytes = job.question.vram_bytes;
    text.question.threads = job.question.threads;
    text.question.kv_type = job.question.kv_type;
    text.question.held_link_bytes_per_s = job.question.held_link_bytes_per_s;
    text.max_context = job.max_context;
    return EngineCells<P>::engine_options(text);
  }
  static tiered::PolicyValues<P> policy_values() { return EngineCells<P>::policy_values(); }
  tiered::MediaOptions reader_options() {
    tiered::MediaOptions options;
    options.team = &engine_.machine().host->team();
    return options;
  }

  static void begin_cell(Picture const& picture, VisionCell& c) {
    c.image = picture.is.name;
    c.width = picture.is.size.width;
    c.height = picture.is.size.height;
    c.image_bytes = picture.file_bytes;
  }

  /// The image in the middle of the text, whose tokens do not count more than once in any cache.
  tiered::MediaPrompt prompt_of(tiered::Media image, VisionCell const& c) {
    std::int32_t const image_token = engine_.model().config().vocab_size - 1;
    TokenIds ids(image_token, Routing::uniform, std::uint64_t(c.n_pixels()));
    std::vector<std::int32_t> tokens = ids.next(c.text_tokens);
    tokens.insert(tokens.begin() + c.text_tokens / 2, image_token);
    return tiered::media_prompt(tokens, {std::move(image)}, {image_token, -1}, tiered::mrope_config(encoder_.config()));
  }

  /// All that the decoder has to see before it can answer, in one step.
  void prefill(tiered::Sequence const& sequence, tiered::MediaPrompt const& prompt, tiered::MediaEmbeddings const& vectors) {
    std::vector<tiered::Row> rows;
    std::int32_t const n = prompt.n_tokens();
    for (std::int32_t i = 0; i < n; ++i) rows.push_back({sequence.id(), i, prompt.tokens[std::size_t(i)], i + 1 == n});
    std::int32_t n_vectors = 0;
    for (tiered::MediaSpan const& span : prompt.spans) {
      for (std::int32_t i = span.begin; i < span.end(); ++i) rows[std::size_t(i)].embedding = n_vectors++;
    }
    engine_.step({rows, vectors, prompt.positions});
  }

  /// A decoder would go through such rows, slowly, and say nothing of it.
  static void check_finite(tiered::MediaEmbeddings const& vectors) {
    std::ptrdiff_t const n = std::ranges::count_if(vectors, [](float x) { return !std::isfinite(x); });
    if (n > 0)
      throw tiered::Error(tiered::Errc::device,
                          tiered::concat(n, " of the ", vectors.size(), " numbers that the encoder made are not finite"));
  }

  void run(Picture const& picture, bool first, VisionCell& c) {
    std::vector<std::int32_t> const more = TokenIds(engine_.model().config().vocab_size - 1, Routing::uniform, 2).next(c.decoded);
    double const begin = now_s();
    tiered::MediaHasher content;
    tiered::Image image = tiered::load_image(picture.path, {}, &content);
    double const read = now_s();
    tiered::Media const media = reader_.image(std::move(image), picture.is.name, &content);
    tiered::MediaPrompt const prompt = prompt_of(media, c);
    double const preprocessed = now_s();
    if (first) peak_.watch();
    tiered::EncodingCache nothing_kept(0);
    double const copied_before = counted_bytes(), encode_begin = now_s();
    tiered::MediaEmbeddings const vectors = tiered::media_vectors(encoder_, nothing_kept, prompt, 0);
    double const encoded = now_s(), copied = counted_bytes();
    if (first) peak_.stop(), c.vram_encode_bytes = peak_.bytes(engine_);
    note_peak();
    check_finite(vectors);
    tiered::Sequence const sequence = engine_.new_sequence();
    double const prefill_begin = now_s();
    prefill(sequence, prompt, vectors);
    double const answered = now_s(), copied_for_prompt = counted_bytes();
    for (std::int32_t token : more) engine_.decode(sequence, token);
    double const end = now_s();
    note_peak();
    c.vision_tokens = int(vectors.size() / (std::size_t(engine_.model().config().dim) * n_planes()));
    note_plans(media.info().grid, c);
    note_traffic(media.info().grid, copied - copied_before, copied_for_prompt - copied, c);
    take({read - begin, preprocessed - read, encoded - encode_begin, answered - prefill_begin, end - answered}, first, c);
  }
  std::size_t n_planes() const { return std::size_t(engine_.model().config().n_deepstack_layers) + 1; }

  /// Seconds of one run.
  struct Times {
    double read = 0, preprocess = 0, encode = 0, prefill = 0, decode = 0;
    double ttft() const { return read + preprocess + encode + prefill; }
  };
  static void take(Times const& t, bool first, VisionCell& c) {
    if (first) {
      c.ttft_first_s = t.ttft();
      return;
    }
    if (c.ttft_s <= 0 || t.ttft() < c.ttft_s) {
      c.ttft_s = t.ttft();
      c.read_s = t.read, c.preprocess_s = t.preprocess, c.encode_s = t.encode, c.prefill_s = t.prefill;
    }
    double const all = t.ttft() + t.decode;
    c.end_to_end_s = c.end_to_end_s > 0 ? std::min(c.end_to_end_s, all) : all;
    if (t.decode > 0) c.decode_per_s = std::max(c.decode_per_s, c.decoded / t.decode);
  }

  /// To the device, where copies are counted; else 0.
  double counted_bytes() {
    if constexpr (requires { engine_.machine().copy->bytes_to_device(); }) return double(engine_.machine().copy->bytes_to_device());
    return 0;
  }
  static constexpr bool counts() {
    return requires(tiered::Engine<P> & e) { e.machine().copy->bytes_to_device(); };
  }
  void note_peak() { peak_bytes_ = std::max(peak_bytes_, peak_.bytes(engine_)); }

  tiered::PlanImage const& encoder_image(tiered::PatchGrid const& grid) const { return image_for(encoder_.plans(), grid.n_patches()); }
  void note_plans(tiered::PatchGrid const& grid, VisionCell& c) const {
    tiered::PlanImage const &encoding = encoder_image(grid), &reading = image_for(engine_.plans(), c.prompt());
    PlanBytes const encoder = plan_bytes(encoding, encoder_.model().table()), decoder = plan_bytes(reading, engine_.model().table());
    c.patches = int(grid.n_patches());
    c.encoder_plan = plan_words(encoder);
    if (encoding.uses_device) c.encoder_plan += (encoder_.borrows_vram() ? ", lent" : ", own room") + home_words(encoding.limits);
    c.decoder_plan = plan_words(decoder);
    c.encoder_vram_bytes = encoding.uses_device ? encoding.vram.total_bytes : 0;
    c.all_resident = encoder.is_all_resident() && decoder.is_all_resident() && !encoder_.borrows_vram() && !encoding.limits.rows_on_host;
  }
  /// Where copies are not counted: as planned, and what the other one's work has driven out.
  void note_traffic(tiered::PatchGrid const& grid, double for_encoder, double for_prompt, VisionCell& c) const {
    c.counted = counts();
    c.streamed_encode_bytes = for_encoder;
    c.streamed_prefill_bytes = for_prompt;
    if (c.counted) return;
    tiered::PlanImage const &encoding = encoder_image(grid), &reading = image_for(engine_.plans(), c.prompt());
    bool const shared = encoder_.borrows_vram() && encoding.uses_device;
    tiered::ShardTable const table = engine_.model().table();
    int const n_blocks = (c.prompt() + std::max(reading.limits.block, 1) - 1) / std::max(reading.limits.block, 1);
    c.streamed_encode_bytes = copied_bytes(encoding, plan_bytes(encoding, encoder_.model().table()), shared);
    if (encoding.uses_device) c.streamed_encode_bytes += crossing_bytes(encoder_.model(), encoding.limits, grid.n_patches());
    c.streamed_prefill_bytes = copied_bytes(reading, plan_bytes(reading, table), shared) +
                               (n_blocks - 1) * copied_bytes(reading, plan_bytes(reading, table), false);
  }

  VisionCell finished(VisionCell c) {
    c.machine = machine_.name;
    c.rates = machine_.rates;
    c.kernels = engine_.machine().device->kernels().name;
    c.vram_peak_bytes = peak_bytes_;
    c.vram_source = peak_.source();
    if (!c.error.empty()) return c;
    tiered::ModelConfig const& config = engine_.model().config();
    tiered::ShardTable const table = engine_.model().table();
    ModelBytes const m = model_bytes(table, config.n_layers);
    tiered::ImageSize const resized = tiered::smart_resize({c.width, c.height}, tiered::patch_config(encoder_.config()));
    tiered::PatchGrid const grid{1, resized.height / encoder_.config().patch_size, resized.width / encoder_.config().patch_size};
    double const flops = encoder_flops(encoder_.model(), grid) + prompt_flops(table, c.prompt());
    double const streams_below = c.all_resident ? 0 : double(c.vram_bytes);
    ImageBound const bound = image_bound(m, encoder_bytes(encoder_.model()), flops, streams_below, c.rates);
    c.bound_bytes = bound.bytes;
    c.bound_flops = bound.flops;
    c.ttft_bound_s = bound.seconds();
    double const kv = kv_bytes(table, config, kv_type_of(c.kv_type), c.prompt() + c.decoded / 2.0);
    c.decode_practical_s = decode_bound(m, kv, double(c.vram_bytes), Routing::uniform, c.rates).practical_s;
    return c;
  }

  VisionJob const& job_;
  MeasuredMachine const& machine_;
  Peak& peak_;
  tiered::Engine<P> engine_;
  tiered::VisionEncoder<P> encoder_;
  tiered::MediaReader reader_;
  std::uint64_t peak_bytes_ = 0;
};

/// The engine's process: a cell for each picture. What it throws, engine or encoder could not be made.
template <class P, class Peak>
void answer(VisionJob const& job, MeasuredMachine const& machine, Lines const& lines, Peak& peak) {
  tiered::GgufFile const file = tiered::GgufFile::open(job.path), projector = tiered::GgufFile::open(job.projector_path);
  file.check_sizes();
  projector.check_sizes();
  lines.progress("loading");
  double const begin = now_s();
  VisionCells<P, Peak> cells(tiered::make_model(file), tiered::make_vision_model(projector), job, machine, peak);
  double const loaded = now_s();
  peak.stop();
  cells.measure([&](std::string const& text) { lines.progress(text); },
                [&](VisionCell c) {
                  c.load_s = loaded - begin;
                  c.ready_s = loaded - job.started_s;
                  lines(to_json(c));
                });
}

/// Errors  as check_simulated_budget(); unsupported for a GPU in a build without CUDA.
inline void answer(VisionJob const& job, MeasuredMachine const& machine, Lines const& lines, bool simulated) {
  if (simulated) {
    check_simulated_budget(job.question.vram_bytes);
    CountedPeak peak;
    return answer<SimSweepPolicies>(job, machine, lines, peak);
  }
#if TIERED_HAS_CUDA
  LedgerPeak peak;
  answer<GpuSweepPolicies>(job, machine, lines, peak);
#else
  throw tiered::Error(tiered::Errc::unsupported, "this program was built without CUDA; --device sim needs none");
#endif
}

}  // namespace bench
