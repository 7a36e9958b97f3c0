// What loading is made of: each part by itself, with what could be done in its place, and an engine's own account of all of it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "load_parts.hpp"
#include "tiered/io/tokenizer.hpp"

namespace {

using namespace bench;

struct GpuPolicies : CudaPolicies {
  using Placement = AnyPlacement;
};

struct Options {
  std::string path;
  std::size_t vram_bytes = 0;
  int context = 4096;
  std::vector<std::string> parts = {"context", "engine", "pages", "register", "copy", "both", "staged"};
  bool has(char const* part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }
};

void context_alone(char const* loading) {
  ::setenv("CUDA_MODULE_LOADING", loading, 1);
  Stages stages;
  CudaDevice const device = CudaDevice::open();
  stages.tell(fmt::format("opening the device, kernels loaded {}; {} of its memory taken", loading,
                          format_bytes(device.total_bytes - device.free_bytes())));
}

/// From nothing to the first token, in this process, with what the engine says of it.
void engine_alone(Options const& o, int n_threads, char const* loading) {
  ::setenv("CUDA_MODULE_LOADING", loading, 1);
  Stages stages;
  Mapped const mapped(o.path);
  EngineOptions options;
  options.vram_bytes = o.vram_bytes;
  options.max_context = o.context;
  options.n_register_threads = n_threads;
  double const begin = steady_seconds();
  Engine<GpuPolicies> engine(mapped.model, options, {.placement = make_placement("seconds_per_byte")});
  double const ready = steady_seconds();
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 64; ++i) prompt.push_back(i * 997 % mapped.model->config().vocab_size);
  Sequence const sequence = engine.new_sequence();
  engine.prefill(sequence, prompt);
  double const first = steady_seconds();
  for (int i = 0; i < 4; ++i) engine.decode(sequence, 7);
  fmt::print("an engine of {}, {} threads that register, kernels loaded {}: ready after {:.3f} s, 64 tokens {:.3f} s, 4 more {:.3f} s\n",
             format_bytes(o.vram_bytes), n_threads, loading, ready - begin, first - ready, steady_seconds() - first);
  EngineStats const stats = engine.stats();
  for (LoadStep const& s : stats.load.steps())
    fmt::print("    {:<16} {:>7.3f} to {:>7.3f}: {:>7.3f} s\n", s.name, s.begin_s, s.end_s, s.seconds());
  stages.tell("  all of it, the file's metadata included");
}

/// What needs no device.
void pages_alone(Options const& o) {
  Stages stages;
  Mapped const first(o.path);
  stages.tell("reading the file's metadata");
  try {
    make_tokenizer(first.file);
    stages.tell("making the tokenizer");
  } catch (Error const&) {  // files of random weights have none
    stages.again();
  }
  for (int const n_threads : {1, 2, 4, 8}) {
    Mapped const mapped(o.path);
    stages.again();
    mapped.touch(n_threads);
    stages.tell(fmt::format("touching its pages, {} threads", n_threads), mapped.bytes);
  }
}

/// A backend, and room for weights.
struct Device {
  explicit Device(std::size_t vram_bytes) {
    Stages stages;
    device = CudaDevice::open();
    stages.tell("opening the device: its context");
    share = std::make_shared<VramShare>(device.ledger, VramRules{vram_bytes, false, false});
    static_cast<void>(share->mark());
    stages.tell("asking NVML once");
    CudaBackendOptions const options;
    std::size_t const own = options.workspace_bytes + options.cublas_workspace_bytes;
    backend.emplace(lanes, device, VramTier(device, share, own), options);
    stages.tell("a stream, cuBLAS, workspaces");
    copy.emplace(lanes, device.ordinal);
    stages.tell("the copy engine and its staging memory");
    backend->memory().resize(own + (share->available_bytes() - 64 * MiB) / MiB * MiB);
    stages.tell(fmt::format("mapping {} of memory of the device", format_bytes(backend->memory().capacity_bytes())));
    vram = Buffer(backend->memory(), (backend->memory().capacity_bytes() - backend->memory().used_bytes() - MiB) / MiB * MiB);
  }
  CudaDevice device;
  std::shared_ptr<VramShare> share;
  std::shared_ptr<LaneSet> lanes = LaneSet::threads();
  std::optional<CudaBackend> backend;
  std::optional<StreamCopyEngine> copy;
  Buffer vram;
};

void register_alone(Options const& o, Device& d) {
  Stages stages;
  for (bool const touched : {false, true}) {
    for (int const n_threads : {1, 2, 4, 8}) {
      Mapped const file(o.path);
      if (touched) file.touch(4);
      std::optional<RegisteredMapping> mapping(std::in_place, d.device, file.ranges, RegisterOptions{.n_threads = n_threads});
      stages.again();
      mapping->start();
      mapping->wait();
      stages.tell(fmt::format("registering the file, {} threads, pages {}touched{}", n_threads, touched ? "" : "not ",
                              mapping->failed() ? ", FAILED" : ""),
                  double(mapping->registered_bytes()));
      mapping.reset();
      if (n_threads == 4) stages.tell("  taking that back");
    }
  }
}

/// All of it from registered memory.
void copy_alone(Options const& o, Device& d) {
  Mapped const file(o.path);
  file.touch(4);
  RegisteredMapping mapping(d.device, file.ranges, {.n_threads = 4});
  mapping.start();
  mapping.wait();
  std::vector<CopyPiece> const pieces = file.pieces(d.vram.data(), d.vram.bytes());
  double const bytes = total(pieces);
  Stages stages;
  for (int round = 0; round < 2; ++round) {
    Ticket last;
    for (CopyPiece const& piece : pieces) last = d.copy->submit({&piece, 1}, {});
    stages.tell(fmt::format("submitting {} pieces, one by one", pieces.size()));
    d.copy->wait(last);
    stages.tell("  and waiting for them", bytes);
  }
  d.copy->addresses().forget(nullptr, ~std::size_t{0} >> 1);
  for (bool const merges : {false, true}) {
    for (std::size_t const batch : {4 * MiB, 16 * MiB, 64 * MiB}) {
      StreamBulkCopy bulk(d.device.ordinal, &mapping, {.batch_bytes = batch, .merges = merges});
      stages.again();
      bulk.start(pieces);
      bulk.wait();
      stages.tell(fmt::format("in the background, {}, batches of {}: {} calls", merges ? "merged" : "one by one", format_bytes(batch),
                              bulk.n_calls()),
                  bytes);
    }
  }
}

void register_and_copy(Options const& o, Device& d) {
  for (int const n_threads : {1, 2, 4, 8}) {
    for (bool const touched : {false, true}) {
      Mapped const file(o.path);
      std::vector<CopyPiece> const pieces = file.pieces(d.vram.data(), d.vram.bytes());
      RegisteredMapping mapping(d.device, file.ranges, {.n_threads = n_threads});
      StreamBulkCopy bulk(d.device.ordinal, &mapping);
      Stages stages;
      std::optional<PageToucher> toucher;
      if (touched) toucher.emplace(file.ranges, 4);
      mapping.start();
      bulk.start(pieces);
      bulk.wait();
      char const* const by = touched ? "touched by 4 others" : "not touched";
      stages.tell(fmt::format("registering and copying at once, {} threads, {}", n_threads, by), total(pieces));
    }
  }
}

void staged(Options const& o, Device& d) {
  int const fd = ::open(o.path.c_str(), O_RDONLY | O_CLOEXEC);
  for (int const n_threads : {4, 8, 16}) {
    for (int const how : {0, 1, 2}) {
      Mapped const file(o.path);
      if (how == 1) file.touch(4);
      if (how == 2 && (fd < 0 || file.file.n_parts() != 1)) continue;
      Stages stages;
      StagedCopy copy(d.device.ordinal, n_threads);
      if (how == 0) stages.tell(fmt::format("staging buffers and streams for {} threads", n_threads));
      std::vector<CopyPiece> const pieces = file.pieces(d.vram.data(), d.vram.bytes());
      stages.again();
      how == 2 ? copy.run(pieces, fd, file.file.mapping(0)->bytes().data()) : copy.run(pieces);
      constexpr char const* from[] = {"the mapping", "the mapping, touched", "the file by pread()"};
      stages.tell(fmt::format("staged by {} threads from {}", n_threads, from[how]), total(pieces));
    }
  }
  if (fd >= 0) ::close(fd);
}

void run(Options const& o) {
  if (o.has("context")) {
    for (char const* const loading : {"LAZY", "LAZY", "EAGER"}) in_child([&] { context_alone(loading); });
  }
  if (o.has("engine")) {
    for (int const n_threads : {4, 4, 1, 2, 8}) in_child([&] { engine_alone(o, n_threads, "LAZY"); });
    in_child([&] { engine_alone(o, 4, "EAGER"); });
  }
  if (o.has("pages")) pages_alone(o);
  if (!o.has("register") && !o.has("copy") && !o.has("both") && !o.has("staged")) return;
  Device device(o.vram_bytes);
  if (o.has("register")) register_alone(o, device);
  if (o.has("copy")) copy_alone(o, device);
  if (o.has("both")) register_and_copy(o, device);
  if (o.has("staged")) staged(o, device);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::string vram = "24G";
  CLI::App app("What loading a model onto a CUDA device is made of");
  app.add_option("-m,--model", o.path, "GGUF file")->required();
  app.add_option("--vram", vram, "budget, as in 24G");
  app.add_option("-c,--context", o.context, "of the engine, in tokens");
  app.add_option("--parts", o.parts, "what to measure, in this order")
      ->delimiter(',')
      ->check(CLI::IsMember({"context", "engine", "pages", "register", "copy", "both", "staged"}));
  CLI11_PARSE(app, argc, argv);
  try {
    o.vram_bytes = std::size_t(parse_bytes(vram).value_or(0));
    run(o);
  } catch (std::exception const& e) {
    fmt::print(stderr, "bench_cuda_load: {}\n", e.what());
    return 1;
  }
}
