/// The tile registers of AMX: eight of up to 16 rows of 64 bytes each.
#pragma once

#include <cstdint>

namespace tiered::cpu::amx {

/// Rows and bytes a row of each tile, as LDTILECFG reads them (Intel SDM, palette 1). Tiles 8..15 do not exist.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// What products run on; tests have another one that does the same in software. Tile numbers are part of an instruction.
/// Threads  tiles belong to a thread: it configures them before it uses them, which also clears them, and releases them after.
///
/// Written as assembly, as GCC's intrinsics paste the text of their argument and so take no template argument. Compilers never keep
/// anything in a tile; "memory" keeps what is stored for a tile, or read from one, on its side of the instruction.
struct HardwareTiles {
  [[gnu::target("amx-tile"), gnu::always_inline]] static inline void configure(TileConfig const& config) {
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  [[gnu::target("amx-tile"), gnu::always_inline]] static inline void release() { asm volatile("tilerelease"); }
  template <int tile>
  [[gnu::target("amx-tile"), gnu::always_inline]] static inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile));
  }
  /// Rows from memory, `stride` bytes apart.
  template <int tile>
  [[gnu::target("amx-tile"), gnu::always_inline]] static inline void load(void const* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
  }
  template <int tile>
  [[gnu::target("amx-tile"), gnu::always_inline]] static inline void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
  }
  /// TDPBF16PS: sum[m][n] += the products over k of a[m][k] and b[k / 2][2n + k % 2], even and odd k summed apart, then together.
  template <int sum, int a, int b>
  [[gnu::target("amx-tile,amx-bf16"), gnu::always_inline]] static inline void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
  }
};

}  // namespace tiered::cpu::amx
