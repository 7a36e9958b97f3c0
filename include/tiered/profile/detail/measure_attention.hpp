/// Attention of one row over a context that is read, and of many rows, which is arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tiered/kernels/backend.hpp"
#include "tiered/profile/detail/measure_room.hpp"

namespace tiered::detail {

/// Sequences of one length, filled with keys and values as a model's kernels write them.
class MeasuredAttention {
 public:
  static constexpr std::int32_t most_context = 4096;

  /// As chunks of long prompts have: fewer do not fill a GPU.
  std::int32_t most_rows() const { return room_.on_device ? 2048 : 512; }

  MeasuredAttention(MeasureRoom& room, AttentionShape const& shape, std::span<std::byte> pages) : room_(room), shape_(shape) {
    std::size_t const row = std::size_t(shape.n_kv_heads) * kv_row_bytes(shape.kv_type, shape.head_dim);
    page_bytes_ = (row * std::size_t(shape.page_tokens) + 255) / 256 * 256;
    std::size_t const n_pages = pages.size() / (2 * page_bytes_), most = std::size_t(most_context / shape.page_tokens);
    pages_each_ = std::min(most, std::max<std::size_t>(n_pages / 2, 1));
    n_tables_ = std::min<std::size_t>(n_pages / pages_each_, 16);
    context_ = std::int32_t(pages_each_) * shape.page_tokens;
    while (context_ > most_rows() && !fits_tables()) context_ /= 2, pages_each_ /= 2;
    if (is_possible()) lay_out(pages);
  }

  bool is_possible() const {
    std::uint32_t const type = std::uint32_t(shape_.kv_type);
    KernelTable const& kernels = room_.side.kernels();
    return n_tables_ > 0 && pages_each_ > 0 && kernels.attention[type] != nullptr && kernels.kv_write[type] != nullptr &&
           (kernels.largest_head == 0 || shape_.head_dim <= kernels.largest_head) && fits_tables() && fits(1, context_ - 1);
  }
  bool fits(std::int32_t n, std::int32_t max_position) const {
    std::size_t const q = std::size_t(n) * std::size_t(shape_.n_heads) * std::size_t(shape_.head_dim) * sizeof(float);
    return q <= room_.x.size() && q <= room_.y.size() && n <= context_ &&
           attention_workspace_bytes(n, shape_.n_heads, shape_.head_dim, max_position) <= room_.converted.size();
  }

  /// One row at the end of sequence i.
  void one_row(std::int64_t i) { attend(single_ + std::size_t(i) % n_tables_, 1); }
  double one_row_bytes() const { return 2.0 * context_ * shape_.n_kv_heads * double(kv_row_bytes(shape_.kv_type, shape_.head_dim)); }
  /// The last n rows of the first sequence.
  void rows(std::int32_t n) { attend(many_ + (context_ - n), n); }
  double rows_flops(std::int32_t n) const {
    double const positions = n * (context_ - 0.5 * (n - 1));
    return 4.0 * shape_.n_heads * shape_.head_dim * positions;
  }

 private:
  /// Tables, their lists of pages, a row at the end of each, and a row for each position of the first.
  std::size_t tables_bytes() const {
    return n_tables_ * (sizeof(KvTable) + 2 * pages_each_ * sizeof(std::byte*) + sizeof(KvRow)) + std::size_t(context_) * sizeof(KvRow) +
           256;
  }
  bool fits_tables() const { return tables_bytes() <= room_.tables.size(); }

  void lay_out(std::span<std::byte> pages) {
    std::vector<std::byte*> lists;
    for (std::size_t p = 0; p < 2 * n_tables_ * pages_each_; ++p) lists.push_back(pages.data() + p * page_bytes_);
    std::byte* at = room_.tables.data();
    auto const put = [&](void const* data, std::size_t bytes) {
      std::byte* const here = at;
      room_.put(here, data, bytes);
      at += (bytes + 15) / 16 * 16;
      return here;
    };
    auto* const device_lists = reinterpret_cast<std::byte* const*>(put(lists.data(), lists.size() * sizeof(std::byte*)));
    std::vector<KvTable> tables;
    std::vector<KvRow> single, many;
    for (std::size_t t = 0; t < n_tables_; ++t) {
      tables.push_back({device_lists + 2 * t * pages_each_, device_lists + (2 * t + 1) * pages_each_});
      single.push_back({std::int32_t(t), context_ - 1});
    }
    for (std::int32_t i = 0; i < context_; ++i) many.push_back({0, i});
    tables_ = reinterpret_cast<KvTable const*>(put(tables.data(), tables.size() * sizeof(KvTable)));
    single_ = reinterpret_cast<KvRow const*>(put(single.data(), single.size() * sizeof(KvRow)));
    many_ = reinterpret_cast<KvRow const*>(put(many.data(), many.size() * sizeof(KvRow)));
    write_all();
  }

  /// The same few keys and values again and again, in all pages.
  void write_all() {
    std::size_t const row = std::size_t(shape_.n_kv_heads) * std::size_t(shape_.head_dim) * sizeof(float);
    std::int32_t const n = std::int32_t(std::min({room_.x.size() / row, std::size_t(context_), std::size_t(most_rows())}));
    KvWriteArgs args{room_.floats(room_.x), room_.floats(room_.x), nullptr,           tables_, 0,
                     shape_.n_kv_heads,     shape_.head_dim,       shape_.page_tokens};
    for (std::size_t t = 0; t < n_tables_; ++t) {
      for (std::int32_t from = 0; from < context_ && n > 0; from += n) {
        args.rows = many_ + from, args.n_tokens = std::min(n, context_ - from);
        args.tables = tables_ + t;
        launch(room_.side.kernels().kv_write[std::uint32_t(shape_.kv_type)], args, room_.side.queue());
      }
    }
    room_.side.synchronize();
  }

  void attend(KvRow const* rows, std::int32_t n) {
    AttentionArgs args;
    args.q = room_.floats(room_.x), args.out = room_.floats(room_.y), args.workspace = room_.converted.data();
    args.rows = rows, args.tables = tables_;
    args.n_tokens = n, args.n_heads = shape_.n_heads, args.n_kv_heads = shape_.n_kv_heads, args.head_dim = shape_.head_dim;
    args.page_tokens = shape_.page_tokens, args.max_position = context_ - 1, args.scale = 0.1f;
    launch(room_.side.kernels().attention[std::uint32_t(shape_.kv_type)], args, room_.side.queue());
  }

  MeasureRoom& room_;
  AttentionShape shape_;
  std::size_t page_bytes_ = 0, pages_each_ = 0, n_tables_ = 0;
  std::int32_t context_ = 0;
  KvTable const* tables_ = nullptr;
  KvRow const *single_ = nullptr, *many_ = nullptr;
};

/// Puts both rates into `rates`, which keeps what it has where they cannot be measured.
inline void measure_attention(MeasureRoom& room, AttentionShape const& shape, std::span<std::byte> pages, MeasureClock const& clock,
                              DeviceRates& rates) {
  if (shape.head_dim <= 0 || shape.page_tokens <= 0 || shape.page_tokens > MeasuredAttention::most_context) return;
  MeasuredAttention attention(room, shape, pages);
  if (!attention.is_possible()) return;
  auto const without_launches = [&](double s) { return std::max(s - 2 * rates.launch_s, s / 2); };
  double const one_s = seconds_per_call(room.side, clock, true, [&](std::int64_t i) { attention.one_row(i); });
  rates.attention_bytes_per_s = attention.one_row_bytes() / without_launches(one_s);
  rates.attention_flops_per_s = attention.rows_flops(1) / without_launches(one_s);
  for (std::int32_t n = 32; n <= attention.most_rows() && attention.fits(n, 0); n *= 4) {
    double const expected_s = attention.rows_flops(n) / rates.attention_flops_per_s;
    if (clock.is_late() || expected_s > 30 * clock.cell_s()) break;
    double const s = seconds_per_call(room.side, clock, false, [&](std::int64_t) { attention.rows(n); });
    rates.attention_flops_per_s = std::max(rates.attention_flops_per_s, attention.rows_flops(n) / without_launches(s));
  }
}

}  // namespace tiered::detail
