/// Which of cuBLAS's kernels products take. Toolkit headers only.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/status.hpp"

namespace tiered {

/// One for each queue; not for several threads at once. The library is asked once for a shape which of its kernels is best for n rows: for
/// n between two powers of two often another than for either, by up to 40 %. A kernel that is loaded within a step waits for the whole
/// device, and takes VRAM that nobody has counted: once everything is loaded (settle), the best of those is taken that were chosen before,
/// else what a larger n of the same shape took. So choices depend on shapes and on what was loaded, and not on what came in between.
class GemmPlans {
 public:
  /// `workspace`: VRAM that products may overwrite, aligned to 256; borrowed.
  GemmPlans(std::byte* workspace, std::size_t bytes) : workspace_(workspace), workspace_bytes_(bytes), status_(cublasLtCreate(&handle_)) {}
  ~GemmPlans() {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  GemmPlans(GemmPlans const&) = delete;
  GemmPlans& operator=(GemmPlans const&) = delete;

  /// Whether there is a library at all.
  cublasStatus_t status() const { return status_; }
  /// Whether everything is loaded. Whoever loads makes, of each shape, the product of the most rows that it will have.
  void settle(bool settled) {
    settled_ = settled;
    choices_[true].clear();
  }
  /// Shapes for which nothing had been loaded when they came: none, if all were made before settle().
  std::size_t n_late() const { return n_late_; }

  /// Enqueues a product.
  cublasStatus_t run(GemmArgs const& a, cudaStream_t stream) {
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_;
    Problem problem(a, a.n);
    cublasLtMatmulAlgo_t algo;
    if (cublasStatus_t const status = find(a, algo); status != CUBLAS_STATUS_SUCCESS) return status;
    float const one = 1, kept = a.add ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, problem.op(), &one, a.w, problem.w(), a.x, problem.x(), &kept, a.y, problem.y(), a.y, problem.y(), &algo,
                          workspace_, workspace_bytes_, stream);
  }

 private:
  static constexpr int max_candidates = 8;
  static constexpr std::size_t max_choices = 4096;  ///< that are kept; contexts have many lengths

  /// What a choice depends on.
  struct Key {
    std::int64_t w_stride, x_stride, y_stride;
    std::int32_t rows, dim, alignment;
    bool bf16, add, bias;
    std::int32_t n;  // last: see choose()
    auto operator<=>(Key const&) const = default;
  };
  /// Which of the library's kernels an algorithm is, as far as it says so.
  struct KernelId {
    std::int32_t alignment;
    bool bf16, add, bias, splits;
    std::uint32_t id, tile, stages, reduction, option, inner_shape, cluster;
    auto operator<=>(KernelId const&) const = default;
  };

  /// As the library, whose matrices have columns, sees it.
  class Problem {
   public:
    Problem(GemmArgs const& a, std::int32_t n) {
      cublasOperation_t const transposed = CUBLAS_OP_T;
      cublasLtMatmulDescInit(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
      cublasLtMatmulDescSetAttribute(&op_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
      if (a.bias != nullptr) {
        cublasLtEpilogue_t const adds_bias = CUBLASLT_EPILOGUE_BIAS;
        cublasLtMatmulDescSetAttribute(&op_, CUBLASLT_MATMUL_DESC_EPILOGUE, &adds_bias, sizeof adds_bias);
        cublasLtMatmulDescSetAttribute(&op_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a.bias, sizeof a.bias);
      }
      cudaDataType_t const type = a.bf16 ? CUDA_R_16BF : CUDA_R_16F;
      cublasLtMatrixLayoutInit(&w_, type, std::uint64_t(a.dim), std::uint64_t(a.rows), a.w_stride);
      cublasLtMatrixLayoutInit(&x_, type, std::uint64_t(a.dim), std::uint64_t(n), a.x_stride);
      cublasLtMatrixLayoutInit(&y_, CUDA_R_32F, std::uint64_t(a.rows), std::uint64_t(n), a.y_stride);
    }
    cublasLtMatmulDesc_t op() { return &op_; }
    cublasLtMatrixLayout_t w() { return &w_; }
    cublasLtMatrixLayout_t x() { return &x_; }
    cublasLtMatrixLayout_t y() { return &y_; }

   private:
    cublasLtMatmulDescOpaque_t op_{};
    cublasLtMatrixLayoutOpaque_t w_{}, x_{}, y_{};
  };

  /// Of all that is read and written: 256, as what begins a buffer has, or the least that they have below.
  static std::int32_t alignment_of(GemmArgs const& a) {
    std::uintptr_t const bits = std::uintptr_t(a.w) | std::uintptr_t(a.x) | std::uintptr_t(a.y) | std::uintptr_t(a.bias);
    return bits % 256 == 0 ? 256 : bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
  }

  static Key key_of(GemmArgs const& a, std::int32_t n) {
    return {a.w_stride, a.x_stride, a.y_stride, a.rows, a.dim, alignment_of(a), a.bf16, a.add, a.bias != nullptr, n};
  }
  static KernelId kernel_of(Key const& key, cublasLtMatmulAlgo_t const& algo) {
    auto const number = [&](cublasLtMatmulAlgoConfigAttributes_t what, std::size_t bytes) {
      std::uint32_t value = 0;  // little-endian
      std::size_t written = 0;
      static_cast<void>(cublasLtMatmulAlgoConfigGetAttribute(&algo, what, &value, bytes, &written));
      return value;
    };
    return {key.alignment,
            key.bf16,
            key.add,
            key.bias,
            number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4) > 1,
            number(CUBLASLT_ALGO_CONFIG_ID, 4),
            number(CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
            number(CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
            number(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
            number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4),
            number(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2),
            number(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2)};
  }

  /// For the next multiple of 64 rows, of few rows of 32: neighbours have as many tiles.
  cublasStatus_t find(GemmArgs const& a, cublasLtMatmulAlgo_t& algo) {
    std::int32_t const step = a.n > 512 ? 64 : 32;
    Key const key = key_of(a, (a.n + step - 1) / step * step);
    auto& choices = choices_[settled_];
    if (auto const it = choices.find(key); it != choices.end()) {
      algo = it->second;
      return CUBLAS_STATUS_SUCCESS;
    }
    if (cublasStatus_t const status = choose(a, key, algo); status != CUBLAS_STATUS_SUCCESS) return status;
    if (settled_ && choices.size() >= max_choices) choices.clear();
    choices.emplace(key, algo);
    return CUBLAS_STATUS_SUCCESS;
  }

  cublasStatus_t choose(GemmArgs const& a, Key const& key, cublasLtMatmulAlgo_t& algo) {
    std::array<cublasLtMatmulHeuristicResult_t, max_candidates> found;
    int n_found = 0;
    if (cublasStatus_t const status = candidates(a, key, found, n_found); status != CUBLAS_STATUS_SUCCESS) return status;
    for (int i = 0; i < n_found && settled_; ++i) {
      algo = found[std::size_t(i)].algo;
      if (loaded_.contains(kernel_of(key, algo))) return CUBLAS_STATUS_SUCCESS;
    }
    algo = found.front().algo;
    if (!settled_) {
      loaded_.insert(kernel_of(key, algo));
      return CUBLAS_STATUS_SUCCESS;
    }
    auto const larger = choices_[false].lower_bound(key);  // which does for fewer rows
    Key same = key;
    if (larger != choices_[false].end()) same.n = larger->first.n;
    if (larger != choices_[false].end() && larger->first == same) {
      algo = larger->second;
    } else {
      ++n_late_;
    }
    return CUBLAS_STATUS_SUCCESS;
  }

  /// The best first; one at least.
  cublasStatus_t candidates(GemmArgs const& a, Key const& key, std::array<cublasLtMatmulHeuristicResult_t, max_candidates>& found,
                            int& n_found) {
    Problem problem(a, key.n);
    cublasLtMatmulPreferenceOpaque_t limits{};
    cublasLtMatmulPreferenceInit(&limits);
    auto const set = [&](cublasLtMatmulPreferenceAttributes_t what, auto const& value) {
      cublasLtMatmulPreferenceSetAttribute(&limits, what, &value, sizeof value);
    };
    std::uint32_t const alignment = std::uint32_t(key.alignment);
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(workspace_bytes_));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasStatus_t const status = cublasLtMatmulAlgoGetHeuristic(handle_, problem.op(), problem.w(), problem.x(), problem.y(), problem.y(),
                                                                 &limits, max_candidates, found.data(), &n_found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    n_found = int(std::find_if(found.begin(), found.begin() + n_found, [](auto const& f) { return f.state != CUBLAS_STATUS_SUCCESS; }) -
                  found.begin());
    return n_found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }

  std::byte* workspace_;
  std::size_t workspace_bytes_;
  cublasLtHandle_t handle_ = nullptr;
  cublasStatus_t status_;
  bool settled_ = false;
  std::size_t n_late_ = 0;
  std::map<Key, cublasLtMatmulAlgo_t> choices_[2];  // before, and since it has settled
  std::set<KernelId> loaded_;
};

/// For CudaQueue::gemm.
inline Gemm gemm_by(GemmPlans& plans) {
  return {&plans,
          [](void* p, GemmArgs const& a, cudaStream_t stream) { return kernel_status(static_cast<GemmPlans*>(p)->run(a, stream)); }};
}

}  // namespace tiered
