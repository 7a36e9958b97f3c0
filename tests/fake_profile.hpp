/// Profiles for tests of plan/: rates of real machines, rounded.
#pragma once

#include "tiered/plan/hardware.hpp"

namespace fake {

/// An H200 on PCIe 5 with 16 cores of a server. What host and link read together is more than the host reads alone.
inline tiered::HardwareProfile h200() {
  auto const curve = [](double one, double few, double many, double most) {
    return tiered::RateCurve{{{1, one}, {16, few}, {512, many}, {2048, most}}};
  };
  tiered::HardwareProfile h = tiered::HardwareProfile::simulated();
  h.host.matmul = {{{118e9, curve(450e9, 1.5e12, 2.5e12, 2.5e12)},
                    {110e9, curve(180e9, 1.2e12, 2.5e12, 2.5e12)},
                    {118e9, curve(118e9, 1e12, 6e12, 6.5e12)},
                    {95e9, curve(45e9, 0.5e12, 3e12, 3e12)}}};
  h.host.attention_bytes_per_s = 69e9;
  h.host.attention_flops_per_s = 961e9;
  h.host.launch_s = 0.5e-6;
  h.gpu.matmul = {{{1.7e12, curve(6e12, 36e12, 335e12, 600e12)},
                   {1.7e12, curve(6e12, 36e12, 335e12, 600e12)},
                   {3.4e12, curve(3.4e12, 50e12, 655e12, 716e12)},
                   {1.5e12, curve(0.7e12, 0.8e12, 7e12, 17e12)}}};
  h.gpu.attention_bytes_per_s = 717e9;
  h.gpu.attention_flops_per_s = 197e12;
  h.gpu.launch_s = 0.84e-6;
  h.n_threads = 16;
  h.dram_bytes_per_s = 118e9;
  h.h2d = h.d2h = {{{64e3, 24e9}, {256e3, 51e9}, {1e6, 54e9}, {4e6, 55e9}, {64e6, 55e9}}};
  h.copy_latency_s = 4e-6;
  h.hop_latency_s = 9e-6;
  h.mutual = {0.78, 0.9};
  return h;
}

}  // namespace fake
