/// Products of cuBLAS, and which of its kernels each takes. Toolkit headers only.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace tiered {

/// y[t, r] = sum_k w[r, k] x[t, k] + bias[r], or += where `add`; k contiguous, in VRAM.
struct GemmArgs {
  cudaDataType_t type = CUDA_R_16F;  ///< of w and x
  void const* w = nullptr;           ///< [rows, dim]
  void const* x = nullptr;           ///< [n, dim]
  float const* bias = nullptr;       ///< null: none; aligned to 16
  float* y = nullptr;                ///< [n, rows]
  std::int64_t w_stride = 0, x_stride = 0, y_stride = 0;
  std::int32_t rows = 0, n = 0, dim = 0;
  bool add = false;
};

/// One for each queue; not for several threads at once. The library chooses a kernel for a shape and for n up to the next power of two,
/// and is not asked again: whoever ran the largest n of a step has loaded what the others of it take. A kernel that is loaded later takes
/// VRAM that nobody has counted.
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

  /// Enqueues a product.
  cublasStatus_t run(GemmArgs const& a, cudaStream_t stream) {
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_;
    Problem problem(a, a.n);
    cublasLtMatmulAlgo_t const* algo = nullptr;
    if (cublasStatus_t const status = find(a, algo); status != CUBLAS_STATUS_SUCCESS) return status;
    float const one = 1, kept = a.add ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, problem.op(), &one, a.w, problem.w(), a.x, problem.x(), &kept, a.y, problem.y(), a.y, problem.y(), algo,
                          workspace_, workspace_bytes_, stream);
  }

 private:
  /// What a kernel depends on.
  struct Key {
    std::int64_t w_stride, x_stride, y_stride;
    std::int32_t type, rows, step, dim, alignment;
    bool add, bias;
    auto operator<=>(Key const&) const = default;
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
      cublasLtMatrixLayoutInit(&w_, a.type, std::uint64_t(a.dim), std::uint64_t(a.rows), a.w_stride);
      cublasLtMatrixLayoutInit(&x_, a.type, std::uint64_t(a.dim), std::uint64_t(n), a.x_stride);
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

  /// Of all matrices: 256, as what begins a buffer has, or the least that they have below.
  static std::int32_t alignment_of(GemmArgs const& a) {
    std::uintptr_t const bits = std::uintptr_t(a.w) | std::uintptr_t(a.x) | std::uintptr_t(a.y);
    return bits % 256 == 0 ? 256 : bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 2;
  }

  cublasStatus_t find(GemmArgs const& a, cublasLtMatmulAlgo_t const*& algo) {
    std::int32_t const step = std::int32_t(std::bit_ceil(std::uint32_t(a.n)));
    Key const key{a.w_stride, a.x_stride, a.y_stride, std::int32_t(a.type), a.rows, step, a.dim, alignment_of(a), a.add, a.bias != nullptr};
    auto it = algos_.find(key);
    if (it == algos_.end()) {
      cublasLtMatmulAlgo_t chosen{};
      if (cublasStatus_t const status = choose(a, key, chosen); status != CUBLAS_STATUS_SUCCESS) return status;
      it = algos_.emplace(key, chosen).first;
    }
    algo = &it->second;
    return CUBLAS_STATUS_SUCCESS;
  }

  cublasStatus_t choose(GemmArgs const& a, Key const& key, cublasLtMatmulAlgo_t& chosen) {
    Problem problem(a, key.step);
    cublasLtMatmulPreferenceOpaque_t limits{};
    cublasLtMatmulPreferenceInit(&limits);
    std::uint32_t const alignment = std::uint32_t(key.alignment);
    auto const set = [&](cublasLtMatmulPreferenceAttributes_t what, auto const& value) {
      cublasLtMatmulPreferenceSetAttribute(&limits, what, &value, sizeof value);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(workspace_bytes_));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    cublasLtMatmulHeuristicResult_t best{};
    int n_found = 0;
    cublasStatus_t const status = cublasLtMatmulAlgoGetHeuristic(handle_, problem.op(), problem.w(), problem.x(), problem.y(), problem.y(),
                                                                 &limits, 1, &best, &n_found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (n_found == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    chosen = best.algo;
    return best.state;
  }

  std::byte* workspace_;
  std::size_t workspace_bytes_;
  cublasLtHandle_t handle_ = nullptr;
  cublasStatus_t status_;
  std::map<Key, cublasLtMatmulAlgo_t> algos_;
};

}  // namespace tiered
