// What loading is made of: the context, libraries, memory, registering the file's mapping, copying it, by itself and all at once.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "tiered/cuda.hpp"

namespace {

using namespace tiered;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Tells how long each stage took.
class Stages {
 public:
  void tell(std::string const& what, double bytes = 0) {
    double const s = now_s() - begin_;
    fmt::print("{:<64} {:>7.3f} s", what, s);
    if (bytes > 0) fmt::print(" {:>7.1f} GB/s", bytes / s / 1e9);
    fmt::print("\n");
    begin_ = now_s();
  }
  void again() { begin_ = now_s(); }

 private:
  double begin_ = now_s();
};

void run(std::string const& path, std::size_t vram_bytes) {
  Stages stages;
  GgufFile const file = GgufFile::open(path);
  auto const model = make_model(file);
  stages.tell("reading the file's metadata");
  CudaDevice const device = CudaDevice::open();
  stages.tell("opening the device: its context");
  auto const share = std::make_shared<VramShare>(device.ledger, VramRules{vram_bytes, false, false});
  auto const lanes = LaneSet::threads();
  CudaBackendOptions const options;
  std::size_t const own = options.workspace_bytes + options.cublas_workspace_bytes;
  CudaBackend backend(lanes, device, VramTier(device, share, own), options);
  stages.tell("a stream, cuBLAS, workspaces");
  StreamCopyEngine copy(lanes, device.ordinal);
  stages.tell("the copy engine and its staging memory");
  backend.memory().resize(own + (share->available_bytes() - 64 * MiB) / MiB * MiB);
  stages.tell(fmt::format("mapping {} of memory of the device", format_bytes(backend.memory().capacity_bytes())));
  std::vector<std::span<std::byte const>> ranges;
  double bytes = 0;
  for (Weight const& w : model->table().weights) {
    ranges.push_back({w.data, w.bytes()});
    bytes += double(w.bytes());
  }
  for (int const n_threads : {1, 2, 4}) {
    RegisteredMapping mapping(device, ranges, {.n_threads = n_threads});
    stages.again();
    mapping.start();
    mapping.wait();
    stages.tell(fmt::format("registering the file, {} threads{}", n_threads, mapping.failed() ? ", failed" : ""),
                double(mapping.registered_bytes()));
    if (n_threads < 4) continue;
    Buffer there(backend.memory(), backend.memory().capacity_bytes() - backend.memory().used_bytes() - MiB);
    auto const copy_all = [&](char const* what) {
      stages.again();
      std::size_t at = 0;
      Ticket last;
      for (auto const r : ranges) {
        if (at + r.size() > there.bytes()) break;
        CopyPiece const piece{there.data() + at, r.data(), r.size()};
        last = copy.submit({&piece, 1}, {});
        at += (r.size() + 255) / 256 * 256;
      }
      stages.tell(fmt::format("{}: submitting {} pieces", what, ranges.size()));
      copy.wait(last);
      stages.tell(fmt::format("{}: and waiting for them", what), double(at));
    };
    copy_all("copying, each weight by itself");
    copy.addresses().forget(nullptr, ~std::size_t{0} >> 1);
  }
  for (int const n_threads : {1, 4}) {
    RegisteredMapping mapping(device, ranges, {.n_threads = n_threads});
    copy.wait_for_registration(&mapping);
    Buffer there(backend.memory(), backend.memory().capacity_bytes() - backend.memory().used_bytes() - MiB);
    stages.again();
    mapping.start();
    std::size_t at = 0;
    Ticket last;
    for (auto const r : ranges) {
      if (at + r.size() > there.bytes()) break;
      CopyPiece const piece{there.data() + at, r.data(), r.size()};
      last = copy.submit({&piece, 1}, {});
      at += (r.size() + 255) / 256 * 256;
    }
    copy.wait(last);
    stages.tell(fmt::format("registering and copying at once, {} threads", n_threads), double(at));
    copy.wait_for_registration(nullptr);
    copy.addresses().forget(nullptr, ~std::size_t{0} >> 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string path, vram = "24G";
  CLI::App app("What loading a model onto a CUDA device is made of");
  app.add_option("-m,--model", path, "GGUF file")->required();
  app.add_option("--vram", vram, "budget, as in 24G");
  CLI11_PARSE(app, argc, argv);
  try {
    run(path, std::size_t(parse_bytes(vram).value_or(0)));
  } catch (std::exception const& e) {
    fmt::print(stderr, "bench_cuda_load: {}\n", e.what());
    return 1;
  }
}
