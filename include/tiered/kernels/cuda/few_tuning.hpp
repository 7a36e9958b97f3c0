/// Knobs of the products of few rows (fused_matmul.cuh, few_experts.cuh), and how they cut weights. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {

/// Warps of a block, one block to a multiprocessor, where shared memory has room for their rings beside the rows; else half of them, and
/// half again. Multiprocessors with little shared memory get two blocks of half the size.
inline constexpr int few_warps = 16;
inline constexpr int few_threads = few_warps * 32;

/// Weights on their way to one warp. 16 of them: 76 KiB to a multiprocessor, of 26 KiB that bandwidth times latency ask for (4.3 TB/s,
/// 0.8 us), so that all of a small matrix is under way before the rows are there; and little enough that the next kernel's blocks find
/// room beside this one's.
inline constexpr int few_ring_bytes = 4864;
inline constexpr int few_max_stages = 8;

/// A stage of the ring holds so many steps of a warp (each lane takes a chunk of 32 elements in blocks, or 16 bytes of floats).
template <class F>
inline constexpr int few_stage_steps = F::block_bytes * 32 > F::block_elems * 24 && F::block_elems > 1 ? 1 : 2;

/// From so many rows of weights to a multiprocessor on, a warp takes two at a time of one row of activations too: less work for each, but
/// coarser shares.
inline constexpr int few_rows_in_pairs = 8 * few_warps;

/// One row with regular weights (one_row.cuh): warps of a block at most, one block to a multiprocessor; and at least, for the row's sake.
/// Tried on the reference machine, a layer of 367 MB in binary16 in a graph, 117 us: blocks of half the shared memory, so that the next
/// kernel's begin beside them, 127; more weights brought into L2 before the previous kernel is complete, 123; both, 131 to 151.
inline constexpr int one_row_warps = 24, one_row_least_warps = 8;
inline constexpr int one_row_threads = one_row_warps * 32;
/// Steps of a block by which it loads the row ahead: of 4096 elements all but always all, so that their latency is waited for once. Blocks
/// of weights have many threads, and their registers are scarce.
template <class F>
inline constexpr int one_row_steps_ahead = F::block_elems == 1 ? 3 : 1;
/// From so many rows of weights to a multiprocessor on, a warp takes two at a time; or four, where weights are so small that unpacking them
/// is what takes long, and activations should be read seldom.
inline constexpr int one_row_from_two = 24, one_row_from_four = 64;
template <class F>
inline constexpr bool one_row_takes_four = F::block_bytes * 16 < F::block_elems * 7;
/// A warp's weights come in two stages, one behind the other, where so many warps have room for both, and so many times as much is to come:
/// then what is under way counts. Else it is better that the next kernel's blocks find room beside this one's.
inline constexpr int one_row_least_warps_of_two = 14, one_row_least_rounds_of_two = 3;
/// Slices of rows of floats (one_row_slices.cuh): stages of a warp's ring. From so many rows of weights to a multiprocessor on, a warp
/// takes two at a time, so that activations are read half as often: 16 bytes of binary16 meet 32 of them.
inline constexpr int one_row_slice_stages = 4;
inline constexpr int one_row_slices_from_two = 2 * one_row_least_warps;
/// Rows by steps (one_row_steps.cuh): stages of a warp's ring, and rows of weights that a warp takes at a time; 0: a format does not come
/// so. They do from one_row_steps_from rows to a multiprocessor on, mostly where rows do not begin at multiples of 16; fewer of those come
/// whole.
inline constexpr int one_row_step_stages = 3;
template <class F>
inline constexpr int one_row_step_rows = F::dtype == DType::q2_k || F::dtype == DType::q3_k     ? 4
                                         : F::dtype == DType::q6_k || F::dtype == DType::iq4_xs ? 2
                                                                                                : 0;
template <class F>
inline constexpr int one_row_steps_from = (one_row_step_rows<F> * 2 * one_row_least_warps);
/// Regular rows: always, as unpacking Q3_K is what takes long, for which a lane wants registers; or where whole ones are so long that there
/// is no room for one_row_least_warps_of_two with two stages each. Without a second stage the warps of a block come to read all at once,
/// then to compute all at once: Q6_K with 14336 elements to a row took 36 us for 94 MB on an H200, of which reading is 22.
template <class F>
inline constexpr bool one_row_always_in_steps = F::dtype == DType::q3_k;
template <class F>
inline constexpr bool one_row_long_in_steps = F::dtype == DType::q2_k || F::dtype == DType::q6_k;
/// Formats that are unpacked by masks and shifts alone.
template <class F>
inline constexpr bool one_row_is_lean =
    F::dtype == DType::q4_0 || F::dtype == DType::q4_1 || F::dtype == DType::q5_0 || F::dtype == DType::q5_1 || F::dtype == DType::q8_0;
/// Registers of a thread that takes n_rows rows of weights at a time; of the experts' kernels. Few where next to nothing spills: then
/// blocks of the next kernel find room beside this one's (of an expert's down beside gate and up: 24 warps and 16). A layer of a mixture of
/// 128 experts of 768 x 2048 in Q4_0, in a graph on an H200: 33.3 us; with 48 registers in all products 34.1, with 64 35.9.
template <class F>
TIERED_HD constexpr int one_row_registers(int n_rows) {
  return one_row_is_lean<F> && n_rows == 2 ? 40 : one_row_is_lean<F> || n_rows > 2 ? 80 : 64;
}
/// In slices and by steps, a lane has the pointers of rows to come as well; one row at a time is for small matrices.
TIERED_HD constexpr int one_row_slices_registers(int n_rows) { return n_rows == 1 ? 72 : 64; }
template <class F>
inline constexpr int one_row_step_registers = F::dtype == DType::iq4_xs ? 80 : 96;
/// Warps of a block at most: a multiple of four, as many as a multiprocessor's 64 Ki registers are for.
template <class F>
inline constexpr int one_row_step_warps = 65536 / (one_row_step_registers<F> * 32) / 4 * 4;
template <class F>
inline constexpr int one_row_gate_up_registers = one_row_is_lean<F> ? 56 : 80;
template <class F>
inline constexpr int one_row_down_registers = one_row_is_lean<F> ? 40 : 64;

/// Attention of few rows and float_row_kernel() (a router) divide multiprocessors as the kernels around them do (Carveout::most_shared).
inline constexpr bool overlap_small_kernels = true;

/// Up to so many bytes of `down` are brought into L2 while gate and up are computed.
inline constexpr std::int64_t few_prefetched_bytes = std::int64_t{24} << 20;

/// Slots of a token that `down` takes in one launch at most.
inline constexpr int few_max_slots = 32;

/// Blocks to one of n_groups sets of rows: the last wave should be full, but each further block computes its rows anew.
inline constexpr int few_max_blocks_per_group = 256;
inline constexpr float few_cost_of_wave = 0.04f;  ///< of a block, in units of what one block alone would take

/// How a lane takes weights.
template <class F>
struct FewChunk {
  static constexpr bool blocks = F::block_elems > 1;
  static constexpr int elems = blocks ? 32 : 16 / F::block_bytes;
  static constexpr int per_block = blocks ? F::block_elems / 32 : 1;  ///< chunks of a block; of floats, a chunk is several
  /// Bytes of n chunks, n a multiple of per_block.
  TIERED_HD static constexpr int bytes(int n) { return blocks ? n / per_block * F::block_bytes : n * 16; }
  static constexpr int planes = F::block_bytes == 4 ? 1 : 2;        ///< of 16 bytes a chunk, of a row in shared memory
  static constexpr int row_bytes = planes * 16 + (blocks ? 8 : 0);  ///< of a chunk of a row there
  static constexpr int stage_chunks = 32 * few_stage_steps<F>;
  static constexpr int stage_bytes = (bytes(stage_chunks) + 30) / 16 * 16;  ///< at any alignment
};

inline constexpr int few_static_bytes = 4096;  ///< of shared memory, at most, for scratch and lists
/// What is left of a block's for rows and rings.
TIERED_HD constexpr int few_dynamic_bytes(int shared_bytes) { return shared_bytes - few_static_bytes; }

/// Of one warp's ring in any of the kernels: two stages at least, of two rows or twice as long.
template <class F>
inline constexpr int few_most_ring_bytes = 4 * FewChunk<F>::stage_bytes > few_ring_bytes ? 4 * FewChunk<F>::stage_bytes : few_ring_bytes;

/// Blocks that find registers on a multiprocessor beside each other, as those of this kernel and of the next do. Blocks of 256 that two
/// fields at odd places make up (Q3_K, Q6_K) would spill.
template <class F>
TIERED_HD constexpr int few_blocks_at_once(int n_segments, int n_rows) {
  return n_rows == 1 && (n_segments == 1 || F::block_elems != 256 || F::block_bytes % 4 == 0) ? 2 : 1;
}

}  // namespace tiered::cuda
