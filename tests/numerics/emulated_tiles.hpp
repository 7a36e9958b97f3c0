/// The tiles of AMX in software, after the pseudo-code of the Intel SDM: so that the whole AMX table runs on machines without tiles.
#pragma once

#if defined(__x86_64__)

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/cpu/tiles_amx.hpp"

namespace tiered_test {

/// What the hardware would refuse (#GP, #UD) is counted in n_faults: kernels run on threads whose exceptions nobody sees in a test.
class EmulatedTiles {
 public:
  using TileConfig = tiered::cpu::amx::TileConfig;

  static void configure(TileConfig const& config) {
    State& s = state;
    s = State{};
    s.config = config;
    fault_if(config.palette != 1 || config.start_row != 0);
    for (int t = 0; t < 16; ++t) {
      fault_if(config.rows[t] > 16 || config.row_bytes[t] > 64 || (config.rows[t] == 0) != (config.row_bytes[t] == 0));
      fault_if(t >= 8 && config.rows[t] != 0);
    }
  }
  static void release() { state = State{}; }
  /// Whether the calling thread has configured tiles and not released them.
  static bool in_use() { return state.config.palette != 0; }
  template <int tile>
  static void zero() {
    static_assert(tile >= 0 && tile < 8);
    fault_if(state.config.rows[tile] == 0);
    std::memset(state.tiles[tile], 0, sizeof state.tiles[tile]);
  }
  template <int tile>
  static void load(void const* from, std::int64_t stride) {
    zero<tile>();
    for (int r = 0; r < state.config.rows[tile]; ++r)
      std::memcpy(state.tiles[tile][r], static_cast<std::byte const*>(from) + r * stride, state.config.row_bytes[tile]);
  }
  template <int tile>
  static void store(void* to, std::int64_t stride) {
    static_assert(tile >= 0 && tile < 8);
    fault_if(state.config.rows[tile] == 0);
    for (int r = 0; r < state.config.rows[tile]; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * stride, state.tiles[tile][r], state.config.row_bytes[tile]);
  }
  /// Both chains of products begin at zero, fused, in order of k; their sum is added to the tile. Subnormals, read or made, are zeros;
  /// to nearest, ties to even, whatever the thread's mode.
  template <int sum, int a, int b>
  [[gnu::target("avx512f,avx512bw")]] static void multiply() {
    static_assert(sum != a && sum != b && a != b);
    TileConfig const& config = state.config;
    fault_if(config.rows[sum] != config.rows[a] || config.row_bytes[sum] != config.row_bytes[b] ||
             config.row_bytes[a] != 4 * config.rows[b] || config.rows[sum] == 0 || config.rows[b] == 0);
    unsigned const mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);  // all exceptions masked, flush-to-zero, denormals-are-zero, to nearest
    __m512i const upper = _mm512_set1_epi32(std::int32_t(0xffff0000u));
    for (int m = 0; m < config.rows[sum]; ++m) {
      __m512 even = _mm512_setzero_ps(), odd = even;
      for (int k = 0; k < config.row_bytes[a] / 4; ++k) {
        std::uint32_t pair;
        std::memcpy(&pair, state.tiles[a][m] + 4 * k, 4);
        __m512i const columns = _mm512_load_si512(state.tiles[b][k]);
        __m512 const first = _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, columns, 16));
        __m512 const second = _mm512_castsi512_ps(_mm512_and_si512(columns, upper));
        even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(std::int32_t(pair << 16))), first, even);
        odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(std::int32_t(pair & 0xffff0000u))), second, odd);
      }
      __mmask16 const present = __mmask16((1u << config.row_bytes[sum] / 4) - 1);
      __m512 const before = _mm512_load_ps(state.tiles[sum][m]);
      _mm512_store_ps(state.tiles[sum][m], _mm512_maskz_mov_ps(present, _mm512_add_ps(before, _mm512_add_ps(even, odd))));
    }
    _mm_setcsr(mode);
  }

  /// Of all threads since the program began.
  static inline std::atomic<int> n_faults{0};

 private:
  struct alignas(64) State {
    std::byte tiles[8][16][64];
    TileConfig config;
    State() : tiles{} { config.palette = 0; }
  };
  static void fault_if(bool wrong) {
    if (wrong) ++n_faults;
  }
  static thread_local State state;
};

inline thread_local EmulatedTiles::State EmulatedTiles::state;

}  // namespace tiered_test

#endif
