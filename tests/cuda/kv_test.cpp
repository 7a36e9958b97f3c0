/// The writing of KV pages by the CUDA kernels, alone and with the norms and rotations before it.
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/kv_pages.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/rope.hpp"

using namespace tiered_test;

namespace {

struct InputCase {
  std::int32_t n_tokens, n_heads, n_kv_heads, head_dim, n_rot, page_tokens;
  bool q_norm, k_norm;
  RopeKind kind;
  std::int32_t n_rows = 1;  ///< of rotary positions
};

std::vector<InputCase> input_cases() {
  auto const halves = RopeKind::halves, adjacent = RopeKind::adjacent;
  return {
      {1, 32, 4, 128, 128, 256, true, true, halves},    {3, 8, 2, 128, 64, 256, false, false, halves},
      {16, 4, 4, 64, 64, 64, true, true, adjacent},     {17, 6, 2, 80, 80, 32, false, true, halves},
      {65, 3, 1, 96, 48, 64, true, false, adjacent},    {2, 2, 1, 256, 256, 256, true, true, halves},
      {5, 4, 2, 33, 20, 16, true, true, halves},        {100, 2, 2, 20, 20, 16, true, true, adjacent},
      {2, 2, 1, 576, 64, 64, true, true, adjacent},     {4, 2, 2, 64, 0, 64, true, true, halves},
      {1, 32, 4, 128, 128, 256, true, true, halves, 3}, {66, 4, 2, 64, 48, 64, false, false, adjacent, 3},
      {3, 2, 1, 256, 256, 64, false, true, halves, 2},
  };
}

/// Norm and rotation by the reference.
std::vector<float> prepared(InputCase const& c, std::vector<float> x, std::int32_t n_heads, std::vector<float> const* weight,
                            std::vector<std::int32_t> const& positions, std::vector<float> const& inv_freq, float magnitude,
                            std::vector<std::uint8_t> const& row, std::int32_t stride) {
  if (weight != nullptr) reference::rms_norm({x.data(), weight->data(), x.data(), c.n_tokens * n_heads, c.head_dim, 1e-6f});
  RopeArgs rope;
  rope.x = x.data();
  rope.positions = positions.data();
  rope.inv_freq = inv_freq.data();
  rope.n_tokens = c.n_tokens;
  rope.n_heads = n_heads;
  rope.head_dim = c.head_dim;
  rope.n_rot = c.n_rot;
  rope.kind = c.kind;
  rope.magnitude = magnitude;
  if (c.n_rows > 1) rope.position_row = row.data(), rope.position_stride = stride;
  reference::rope(rope);
  return x;
}

void check_input(Gpu& gpu, InputCase const& c, DType kv, SplitMix64& random) {
  AttentionCase const layout{c.n_heads, c.n_kv_heads, c.head_dim, c.page_tokens, 0, run_of(0, 100, c.n_tokens)};
  Pages expected(layout, kv, random);
  DevicePages pages(expected);
  std::size_t const q_row = std::size_t(c.n_heads) * std::size_t(c.head_dim), k_row = std::size_t(c.n_kv_heads) * std::size_t(c.head_dim);
  std::size_t const n_tokens = std::size_t(c.n_tokens);
  std::vector<float> const k = random_floats(n_tokens * k_row, random), v = random_floats(n_tokens * k_row, random);
  std::vector<float> q = random_floats(n_tokens * q_row, random);
  // The first heads of q are k, and normed alike if at all: what comes of them is what must be in the cache.
  for (std::size_t t = 0; t < n_tokens; ++t)
    std::copy_n(k.begin() + std::ptrdiff_t(t * k_row), k_row, q.begin() + std::ptrdiff_t(t * q_row));
  std::vector<float> const weight = random_floats(std::size_t(c.head_dim), random);
  std::vector<std::int32_t> positions;  // of the rotation: not those in the cache
  std::int32_t const stride = c.n_tokens + 1;
  for (std::int32_t i = 0; i < c.n_rows * stride; ++i) positions.push_back(std::int32_t(random.below(100000)));
  std::vector<std::uint8_t> row(std::size_t(c.n_rot / 2) + 1);
  for (std::uint8_t& r : row) r = std::uint8_t(random.below(std::uint64_t(c.n_rows)));
  std::vector<float> inv_freq(std::size_t(c.n_rot / 2) + 1);
  for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(10000.0f, -2 * float(i) / float(std::max(c.n_rot, 1)));
  float const magnitude = 1.25f;

  DeviceArray<float> device_q(q), device_k(k), device_v(v), device_weight(weight), device_freq(inv_freq);
  DeviceArray<std::int32_t> device_positions(positions);
  DeviceArray<std::uint8_t> device_row(row);
  DeviceArray<KvRow> rows(layout.rows);
  AttentionInputArgs args;
  args.q = device_q.data();
  args.k = device_k.data();
  args.v = device_v.data();
  args.q_norm = c.q_norm ? device_weight.data() : nullptr;
  args.k_norm = c.k_norm ? device_weight.data() : nullptr;
  args.positions = device_positions.data();
  args.inv_freq = device_freq.data();
  args.rows = rows.data();
  args.tables = pages.tables.data();
  args.n_tokens = c.n_tokens;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.n_rot = c.n_rot;
  args.page_tokens = c.page_tokens;
  args.eps = 1e-6f;
  args.magnitude = magnitude;
  args.kind = c.kind;
  if (c.n_rows > 1) args.position_row = device_row.data(), args.position_stride = stride;
  gpu.run(gpu.table().attention_input[std::uint32_t(kv)], args);

  std::vector<float> const got = device_q.download();
  std::vector<float> const reference_q =
      prepared(c, q, c.n_heads, c.q_norm ? &weight : nullptr, positions, inv_freq, magnitude, row, stride);
  Worst worst;  // a norm rounds head_dim sums and some more; a rotation's sine and cosine are off by 2^-22
  for (std::size_t i = 0; i < got.size(); ++i)
    worst.compare(std::int64_t(i), double(got[i]), double(reference_q[i]), (c.head_dim + 32) * epsilon * 10);
  INFO("queries: " << worst.text());
  CHECK(worst.factor <= 1);

  // Keys: as the queries that they equal, or, where only one of both is normed, of another call.
  std::vector<float> turned = got;
  if (c.q_norm != c.k_norm) {
    device_q.upload(q);
    device_k.upload(k);
    args.q_norm = args.k_norm;
    gpu.run(gpu.table().attention_input[std::uint32_t(kv)], args);
    turned = device_q.download();
  }
  std::vector<float> keys;
  for (std::size_t t = 0; t < n_tokens; ++t)
    keys.insert(keys.end(), turned.begin() + std::ptrdiff_t(t * q_row), turned.begin() + std::ptrdiff_t(t * q_row + k_row));
  reference::kv_write(
      {keys.data(), v.data(), layout.rows.data(), expected.tables.data(), c.n_tokens, c.n_kv_heads, c.head_dim, c.page_tokens}, kv);
  CHECK(pages.bytes.download() == expected.bytes);
}

void check_write(Gpu& gpu, AttentionCase const& c, DType kv) {
  INFO(describe(kv, c));
  SplitMix64 random(4);
  Pages pages(c, kv, random);
  pages.k[0] = 1e6f;  // beyond binary16
  pages.v[pages.v.size() - 1] = -0.0f;
  std::fill_n(pages.v.begin(), std::min<std::size_t>(pages.v.size() - 1, 32), 0.0f);
  DevicePages device(pages);
  DeviceArray<float> k(pages.k), v(pages.v);
  DeviceArray<KvRow> rows(pages.written);
  KvWriteArgs args = pages.write_args();
  args.k = k.data();
  args.v = v.data();
  args.rows = rows.data();
  args.tables = device.tables.data();
  gpu.run(gpu.table().kv_write[std::uint32_t(kv)], args);
  pages.write();
  CHECK(device.bytes.download() == pages.bytes);
  args.n_tokens = 0;
  gpu.run(gpu.table().kv_write[std::uint32_t(kv)], args);
}

/// Where keys, values and pages begin: in floats and in halves behind what is aligned.
struct Offsets {
  std::size_t rows = 0, pages = 0;
};

std::vector<float> moved(std::vector<float> values, std::size_t n) {
  values.insert(values.begin(), n, poison);
  return values;
}

/// Rows in no order, among them what rounds to even, what binary16 has no number for, and what is no number.
void check_many(Gpu& gpu, AttentionCase const& c, Offsets const& offsets, SplitMix64& random) {
  INFO(describe(DType::f16, c) << ", rows " << offsets.rows << " floats and pages " << offsets.pages << " halves off");
  Pages pages(c, DType::f16, random);
  for (std::size_t i = pages.written.size(); i > 1; --i) std::swap(pages.written[i - 1], pages.written[random.below(i)]);
  std::uint32_t const bits[] = {0x7fc12345u, 0xff812345u, 0x7f800000u, 0xff800000u, 0x80000000u, 0x477fefffu, 0x477ff000u,
                                0x33000000u, 0x33000001u, 0x387fffffu, 0x00000001u, 0x3f801000u, 0x3f803000u, 0xb3800000u};
  for (std::vector<float>* const x : {&pages.k, &pages.v}) {
    for (std::uint32_t const b : bits) (*x)[random.below(x->size())] = std::bit_cast<float>(b);
  }
  DeviceArray<float> const k(moved(pages.k, offsets.rows)), v(moved(pages.v, offsets.rows));
  DeviceArray<std::byte> bytes(pages.bytes.size() + offsets.pages * 2);  // garbage, as `pages` begin
  DeviceArray<std::byte*> const pointers(pages.pointers_into(bytes.data() + offsets.pages * 2));
  DeviceArray<KvTable> const tables(pages.tables_over(pointers.data(), pages.tables.size()));
  DeviceArray<KvRow> const rows(pages.written);
  KvWriteArgs args = pages.write_args();
  args.k = k.data() + offsets.rows;
  args.v = v.data() + offsets.rows;
  args.rows = rows.data();
  args.tables = tables.data();
  gpu.run(gpu.table().kv_write[std::uint32_t(DType::f16)], args);
  pages.write();
  std::vector<std::byte> expected(offsets.pages * 2, std::byte{0xff});
  expected.insert(expected.end(), pages.bytes.begin(), pages.bytes.end());
  CHECK(bytes.download() == expected);
}

}  // namespace

TEST_CASE("CUDA: KV pages of many rows have the reference's bits, wherever rows and pages lie") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(72);
  for (std::int32_t const head_dim : {8, 64, 72, 80, 128, 20, 33}) {
    for (std::int32_t const n_heads : {1, 3, 16}) {
      for (std::int32_t const last : {63, 64, 65, 66, 130}) {  // rows - 1, around the border and around tiles
        for (Offsets const& offsets : {Offsets{}, {1, 0}, {2, 0}, {0, 1}, {0, 4}})
          check_many(gpu, {n_heads, n_heads, head_dim, last == 66 ? 256 : 32, 0, {{0, last}}}, offsets, random);
      }
    }
  }
}

TEST_CASE("CUDA: KV pages of many rows, of several sequences and in several ranges of a row", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(73);
  check_many(gpu, {16, 16, 80, 64, 0, {{0, 200}, {1, 3}, {2, 64}}}, {}, random);
  check_many(gpu, {40, 40, 128, 16, 0, {{0, 90}, {1, 20}}}, {}, random);
  check_many(gpu, {3, 3, 72, 16, 0, {{0, 66}}}, {0, 1}, random);
}

TEST_CASE("CUDA: KV pages are written as the reference writes them, and nothing else is") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : all_attention_cases()) check_write(gpu, c, kv);
  }
}

TEST_CASE("CUDA: KV pages of a few rows", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : {AttentionCase{4, 2, 80, 64, 0, run_of(0, 60, 9)}, {3, 1, 33, 32, 0, run_of(0, 40, 3)}})
      check_write(gpu, c, kv);
  }
}

TEST_CASE("CUDA: what goes into attention is normed, turned and stored as by one op after another", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(71);
  for (DType const kv : kv_types) {
    for (InputCase const& c : input_cases()) {
      INFO(name(kv) << ": " << c.n_tokens << " rows, " << c.n_heads << " on " << c.n_kv_heads << " heads of " << c.head_dim << ", "
                    << c.n_rot << " turn");
      check_input(gpu, c, kv, random);
    }
  }
}
