/// What moving bytes costs: engine x tier pair x size x queue depth, and what a lane adds to every task.
/// One line of JSON for each result. The environment variable TIERED_COMMIT names the commit in it.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tiered/core/units.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/memory/memcpy_engine.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/memory/thread_engine.hpp"
#include "tiered/sim/sim_copy_engine.hpp"
#include "tiered/sim/sim_tier.hpp"

namespace {

using tiered::Buffer;
using tiered::CopyPiece;
using tiered::LaneSet;
using tiered::Ticket;

struct Seconds {
  double best = 0, median = 0;
};

/// Runs `body` once to warm up, then `repeats` times.
template <class Body>
Seconds measure(int repeats, Body const& body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    auto const begin = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

void print_line(std::string const& bench, std::string const& fields, Seconds s, double per) {
  char const* const commit = std::getenv("TIERED_COMMIT");
  std::printf(
      "{\"bench\": \"%s\", %s, \"best_ns\": %.1f, \"median_ns\": %.1f, \"device\": \"cpu, %u threads\", \"seed\": 0, \"commit\": \"%s\"}\n",
      bench.c_str(), fields.c_str(), s.best / per * 1e9, s.median / per * 1e9, std::thread::hardware_concurrency(),
      commit != nullptr ? commit : "unknown");
  std::fflush(stdout);
}

/// `depth` copies are under way at once; each has its own part of both buffers.
template <class Engine>
void bench_copies(char const* engine_name, char const* pair, Engine& engine, Buffer& from, Buffer& to) {
  for (std::size_t bytes : {4 * tiered::KiB, 64 * tiered::KiB, tiered::MiB, 16 * tiered::MiB}) {
    for (std::size_t depth : {std::size_t{1}, std::size_t{4}}) {
      std::size_t const n_copies = std::max<std::size_t>(depth, 64 * tiered::MiB / bytes / 4);
      Seconds const seconds = measure(9, [&] {
        std::vector<Ticket> tickets(depth);
        for (std::size_t i = 0; i < n_copies; ++i) {
          std::size_t const part = i % depth;
          engine.wait(tickets[part]);
          CopyPiece const piece{to.data() + part * bytes, from.data() + part * bytes, bytes};
          tickets[part] = engine.submit({&piece, 1}, {});
        }
        for (Ticket ticket : tickets) engine.wait(ticket);
      });
      std::string const fields =
          tiered::concat("\"engine\": \"", engine_name, "\", \"tiers\": \"", pair, "\", \"bytes\": ", bytes, ", \"depth\": ", depth,
                         ", \"best_gb_per_s\": ", double(bytes * n_copies) / seconds.best * 1e-9);
      print_line("copy", fields, seconds, double(n_copies));
    }
  }
}

/// A decode step is some 500 small tasks: in one lane, and handed to and fro between two.
void bench_lanes() {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const a = lanes->open("a"), b = lanes->open("b");
  constexpr int n_tasks = 500, n_hand_overs = 100;
  print_line("lane", "\"what\": \"task\"",
             measure(101,
                     [&] {
                       for (int i = 0; i < n_tasks; ++i) lanes->submit(a, [] {});
                       lanes->synchronize(a);
                     }),
             n_tasks);
  print_line("lane", "\"what\": \"hand-over between two lanes\"",
             measure(101,
                     [&] {
                       for (int i = 0; i < n_hand_overs / 2; ++i) {
                         lanes->submit(a, [] {});
                         lanes->wait_for(b, lanes->record(a));
                         lanes->submit(b, [] {});
                         lanes->wait_for(a, lanes->record(b));
                       }
                       lanes->synchronize(a);
                     }),
             n_hand_overs);
  print_line("lane", "\"what\": \"submit and wait\"",
             measure(101,
                     [&] {
                       lanes->submit(a, [] {});
                       lanes->synchronize(a);
                     }),
             1);
}

}  // namespace

int main() {
  bench_lanes();
  tiered::PageableTier ram;
  tiered::SimTier vram(64 * tiered::MiB);
  Buffer from(ram, 64 * tiered::MiB), to(ram, 64 * tiered::MiB), device(vram, 64 * tiered::MiB);
  std::memset(from.data(), 1, from.bytes());
  std::memset(to.data(), 2, to.bytes());
  auto const lanes = LaneSet::threads();
  tiered::MemcpyEngine memcpy_engine(lanes);
  tiered::ThreadCopyEngine one(lanes, 1), two(lanes, 2);
  tiered::SimCopyEngine sim(lanes, {&vram});
  bench_copies("memcpy", "pageable-pageable", memcpy_engine, from, to);
  bench_copies("threads(1)", "pageable-pageable", one, from, to);
  bench_copies("threads(2)", "pageable-pageable", two, from, to);
  bench_copies("sim", "pageable-vram", sim, from, device);
}
