// Runs one kernel of the library: headers, the linked kernels and threads are all there.
#include <cmath>
#include <cstdio>
#include <tiered/kernels/backend.hpp>
#include <tiered/kernels/cpu/backend.hpp>
#include <tiered/memory/lane.hpp>
#include <tiered/version.hpp>

int main() {
  tiered::CpuBackend cpu{tiered::LaneSet::threads(), {.n_threads = 2}};
  float const x[4] = {1, -1, 1, -1};
  float y[4] = {};
  tiered::launch(cpu.kernels().rms_norm, tiered::RmsNormArgs{.x = x, .y = y, .n_rows = 1, .dim = 4}, cpu.queue());
  cpu.synchronize();
  std::printf("tiered %s, %s: rms_norm(1, -1) = %g, %g\n", tiered::version_text, cpu.kernels().name, double(y[0]), double(y[1]));
  return std::abs(y[0] - 1) < 1e-6f && std::abs(y[1] + 1) < 1e-6f ? 0 : 1;
}
