/// Element types of tensors. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"

namespace tiered {

/// Numbers below 256 are those of the GGUF format (ggml-org/ggml, docs/gguf.md); from 256 on they are ours and never in a file.
enum class DType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q8_1 = 9,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
  q1_0 = 41,
  act_q8 = 256,         ///< activations: ActQ8x32 blocks (kernels/format/activation.hpp)
  act_bf16 = 257,       ///< activations: bfloat16 in panels of 16 rows (likewise)
  act_f16_rows = 258,   ///< activations: binary16, row after row, and a factor for each row (likewise)
  act_bf16_rows = 259,  ///< activations: bfloat16, row after row (likewise)
  act_f16_two = 260,    ///< activations: act_f16_rows in two parts, the second of what the first leaves (likewise)
  act_bf16_two = 261,   ///< activations: act_bf16 in two parts (likewise)
};
inline constexpr std::uint32_t n_file_dtypes = 48;  ///< size of tables indexed by the number of a file's type

struct DTypeInfo {
  char const* name = nullptr;  ///< null: no such type
  std::uint32_t block_elems = 0, block_bytes = 0;
};

TIERED_HD constexpr DTypeInfo dtype_info(DType type) {
  switch (type) {
    case DType::f32: return {"f32", 1, 4};
    case DType::f16: return {"f16", 1, 2};
    case DType::q4_0: return {"q4_0", 32, 18};
    case DType::q4_1: return {"q4_1", 32, 20};
    case DType::q5_0: return {"q5_0", 32, 22};
    case DType::q5_1: return {"q5_1", 32, 24};
    case DType::q8_0: return {"q8_0", 32, 34};
    case DType::q8_1: return {"q8_1", 32, 36};
    case DType::q2_k: return {"q2_k", 256, 84};
    case DType::q3_k: return {"q3_k", 256, 110};
    case DType::q4_k: return {"q4_k", 256, 144};
    case DType::q5_k: return {"q5_k", 256, 176};
    case DType::q6_k: return {"q6_k", 256, 210};
    case DType::q8_k: return {"q8_k", 256, 292};
    case DType::iq2_xxs: return {"iq2_xxs", 256, 66};
    case DType::iq2_xs: return {"iq2_xs", 256, 74};
    case DType::iq3_xxs: return {"iq3_xxs", 256, 98};
    case DType::iq1_s: return {"iq1_s", 256, 50};
    case DType::iq4_nl: return {"iq4_nl", 32, 18};
    case DType::iq3_s: return {"iq3_s", 256, 110};
    case DType::iq2_s: return {"iq2_s", 256, 82};
    case DType::iq4_xs: return {"iq4_xs", 256, 136};
    case DType::i8: return {"i8", 1, 1};
    case DType::i16: return {"i16", 1, 2};
    case DType::i32: return {"i32", 1, 4};
    case DType::i64: return {"i64", 1, 8};
    case DType::f64: return {"f64", 1, 8};
    case DType::iq1_m: return {"iq1_m", 256, 56};
    case DType::bf16: return {"bf16", 1, 2};
    case DType::tq1_0: return {"tq1_0", 256, 54};
    case DType::tq2_0: return {"tq2_0", 256, 66};
    case DType::mxfp4: return {"mxfp4", 32, 17};
    case DType::nvfp4: return {"nvfp4", 64, 36};
    case DType::q1_0: return {"q1_0", 128, 18};
    case DType::act_q8: return {"act_q8", 32, 40};
    case DType::act_bf16: return {"act_bf16", 32, 64};
    case DType::act_f16_rows: return {"act_f16_rows", 1, 2};
    case DType::act_bf16_rows: return {"act_bf16_rows", 1, 2};
    case DType::act_f16_two: return {"act_f16_two", 1, 4};
    case DType::act_bf16_two: return {"act_bf16_two", 32, 128};
  }
  return {};
}

/// "q4_k", or null for a number that is no type.
TIERED_HD constexpr char const* name(DType type) { return dtype_info(type).name; }
TIERED_HD constexpr std::uint32_t block_elems(DType type) { return dtype_info(type).block_elems; }
TIERED_HD constexpr std::uint32_t block_bytes(DType type) { return dtype_info(type).block_bytes; }

/// Bytes of one row of `elems` elements; elems % block_elems(type) == 0.
TIERED_HD constexpr std::uint64_t row_bytes(DType type, std::uint64_t elems) {
  DTypeInfo const info = dtype_info(type);
  return elems / info.block_elems * info.block_bytes;
}

/// Elements of a row of act_bf16, zeros at the end.
TIERED_HD constexpr std::uint64_t panel_dim(std::uint64_t dim) { return (dim + 31) / 32 * 32; }

/// The forms that activations are converted to, numbered: tables of what makes them, or of what was made.
inline constexpr int n_activation_forms = 6;
TIERED_HD constexpr int activation_form(DType type) { return type > DType::act_q8 ? int(type) - int(DType::act_q8) : 0; }

/// Elements from row to row of act_f16_rows and act_bf16_rows: whole tiles of a matrix unit. Those past dim are zeros.
TIERED_HD constexpr std::uint64_t act_row_elems(std::uint64_t dim) { return (dim + 63) / 64 * 64; }
/// Where the factors of act_f16_rows begin, in bytes: f32, one a row.
TIERED_HD constexpr std::uint64_t act_factors_offset(std::uint64_t n_rows, std::uint64_t dim) {
  return (n_rows * act_row_elems(dim) * 2 + 255) / 256 * 256;
}

/// The type of either part of a form in two parts; else the type itself.
TIERED_HD constexpr DType act_part(DType type) {
  return type == DType::act_f16_two ? DType::act_f16_rows : type == DType::act_bf16_two ? DType::act_bf16 : type;
}
/// Significant bits that elements keep in a type that products take; of 8-bit blocks those of the largest.
TIERED_HD constexpr std::int32_t act_bits(DType type) {
  switch (type) {
    case DType::act_q8: return 7;
    case DType::act_bf16:
    case DType::act_bf16_rows: return 8;
    case DType::act_f16_rows: return 11;
    case DType::act_bf16_two: return 16;
    case DType::act_f16_two: return 22;
    default: return 24;
  }
}

/// Bytes of n_rows rows in a type that products take: f32, act_q8 (dim % 32 == 0) or one of the other forms.
TIERED_HD constexpr std::uint64_t activation_bytes(DType type, std::uint64_t n_rows, std::uint64_t dim) {
  if (act_part(type) != type) return 2 * ((activation_bytes(act_part(type), n_rows, dim) + 255) / 256 * 256);
  if (type == DType::act_f16_rows) return act_factors_offset(n_rows, dim) + n_rows * sizeof(float);
  if (type == DType::act_bf16_rows) return n_rows * act_row_elems(dim) * 2;
  return n_rows * row_bytes(type, type == DType::act_bf16 ? panel_dim(dim) : dim);
}
/// Where the second part of a form in two parts begins, in bytes.
TIERED_HD constexpr std::uint64_t act_second_offset(DType type, std::uint64_t n_rows, std::uint64_t dim) {
  return activation_bytes(type, n_rows, dim) / 2;
}

}  // namespace tiered
