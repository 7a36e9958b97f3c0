#include <set>
#include <vector>

#include "catch.hpp"
#include "tiered/model/kv_cache.hpp"

using namespace tiered;

namespace {

ModelConfig four_layers() {
  ModelConfig c;
  c.layers.resize(4);
  for (std::size_t l = 0; l < 4; ++l) c.layers[l].attention = {4, std::int32_t(1 + l % 2), 16, 0, 0, 1.f};
  return c;
}

}  // namespace

TEST_CASE("layers in VRAM lie in the given room whole, without overlap; host layers get pages when they are asked for") {
  ModelConfig const config = four_layers();
  std::int32_t const max_tokens = 2 * kv_page_tokens + 1;
  std::size_t vram_bytes = 0;
  for (std::size_t l : {std::size_t{1}, std::size_t{2}})
    vram_bytes += KvCache::page_bytes(config.layers[l].attention, DType::f16) * 2 * 3 * 2;
  std::vector<std::byte> vram(vram_bytes);
  KvCache kv(config, {max_tokens, 2}, std::vector<float>{0, 1, 1, 0}, vram.data());
  CHECK(kv.max_tokens() == 3 * kv_page_tokens);
  CHECK(kv.host_bytes() == 0);
  std::set<std::byte*> pages;
  for (std::int32_t l : {1, 2}) {
    std::size_t const bytes = KvCache::page_bytes(config.layers[std::size_t(l)].attention, DType::f16);
    for (std::int32_t s = 0; s < 2; ++s) {
      for (std::int32_t p = 0; p < 3; ++p) {
        for (std::byte* page : {kv.tables(l)[s].k_pages[p], kv.tables(l)[s].v_pages[p]}) {
          CHECK(page >= vram.data());
          CHECK(page + bytes <= vram.data() + vram.size());
          CHECK(pages.insert(page).second);
        }
      }
    }
  }
  kv.reserve(0, 1);
  std::size_t const one_page = kv.host_bytes();
  CHECK(one_page ==
        2 * (KvCache::page_bytes(config.layers[0].attention, DType::f16) + KvCache::page_bytes(config.layers[3].attention, DType::f16)));
  std::byte* const first = kv.tables(0)[0].k_pages[0];
  kv.reserve(0, kv_page_tokens);
  CHECK(kv.host_bytes() == one_page);
  kv.reserve(0, kv_page_tokens + 1);
  CHECK(kv.host_bytes() == 2 * one_page);
  CHECK(kv.tables(0)[0].k_pages[0] == first);
  CHECK(kv.tables(0)[1].k_pages[0] == nullptr);
  kv.release(0, kv_page_tokens);
  CHECK(kv.host_bytes() == one_page);
  CHECK(kv.tables(0)[0].k_pages[1] == nullptr);
  kv.release(0);
  CHECK(kv.host_bytes() == 0);
}

TEST_CASE("a page holds whole blocks for each head and position") {
  AttentionConfig a{4, 2, 80, 0, 0, 1.f};
  CHECK(KvCache::page_bytes(a, DType::f32) == 2 * kv_page_tokens * 80 * 4);
  CHECK(KvCache::page_bytes(a, DType::f16) == 2 * kv_page_tokens * 80 * 2);
  CHECK(KvCache::page_bytes(a, DType::q8_0) == 2 * kv_page_tokens * 3 * 34);  // 80 elements are padded to three blocks of 32
  a.head_dim = 128;
  CHECK(KvCache::page_bytes(a, DType::q8_0) == 2 * kv_page_tokens * 4 * 34);
  ModelConfig config;
  config.layers.resize(1);
  config.layers[0].attention = a;
  KvCache kv(config, {kv_page_tokens, 1, DType::q8_0}, std::vector<float>{0.f}, nullptr);
  kv.reserve(0, 1);
  CHECK(kv.type() == DType::q8_0);
  CHECK(kv.host_bytes() == 2 * KvCache::page_bytes(a, DType::q8_0));
}

TEST_CASE("a share of a layer's pages is in VRAM, those of the first positions, and no host memory is taken for them") {
  ModelConfig const config = four_layers();
  std::int32_t const page_tokens = 16, n_pages = 10;
  std::vector<float> const shares{0.f, 0.3f, 0.04f, 1.f};
  std::vector<std::int32_t> const there{0, 3, 0, 10};
  std::size_t vram_bytes = 0, column_bytes = 0;
  std::vector<std::size_t> page_bytes;
  for (std::size_t l = 0; l < 4; ++l) {
    page_bytes.push_back(KvCache::page_bytes(config.layers[l].attention, DType::f16, page_tokens));
    vram_bytes += page_bytes[l] * 2 * 2 * std::size_t(there[l]);
    column_bytes += l == 3 ? 0 : 2 * page_bytes[l];
  }
  std::vector<std::byte> vram(vram_bytes);
  auto const is_there = [&](std::byte const* page) { return page >= vram.data() && page < vram.data() + vram.size(); };
  KvCache kv(config, {n_pages * page_tokens - 3, 2, DType::f16, page_tokens}, shares, vram.data());
  CHECK(kv.n_pages() == n_pages);
  kv.reserve(1, 3 * page_tokens);
  CHECK(kv.host_bytes() == 3 * (column_bytes - 2 * page_bytes[1]));
  kv.reserve(1, kv.max_tokens());
  CHECK(kv.host_bytes() == 10 * column_bytes - 3 * 2 * page_bytes[1]);
  std::set<std::byte*> pages;
  for (std::int32_t l = 0; l < 4; ++l) {
    CHECK(kv.vram_tokens(l) == there[std::size_t(l)] * page_tokens);
    CHECK(kv.in_vram(l) == (l == 3));
    for (std::int32_t p = 0; p < n_pages; ++p) {
      for (std::byte* page : {kv.tables(l)[1].k_pages[p], kv.tables(l)[1].v_pages[p]}) {
        CHECK(is_there(page) == p < there[std::size_t(l)]);
        CHECK(pages.insert(page).second);
      }
    }
  }
  // Two heads' rows of positions 40 to 55: the end of one page, in VRAM, and the begin of the next, which is not.
  std::vector<std::span<std::byte>> runs;
  kv.runs_of(1, 1, 0, {40, 56}, runs);
  REQUIRE(runs.size() == 4);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CHECK(runs[i].size() == 8 * 16 * 2);
    CHECK(is_there(runs[i].data()) == (i % 2 == 0));
    CHECK(runs[i].data() == kv.tables(1)[1].k_pages[2 + i % 2] + (i / 2 * 16 + (i % 2 == 0 ? 8 : 0)) * 16 * 2);
  }
  kv.release(1, 4 * page_tokens);
  CHECK(kv.host_bytes() == 4 * column_bytes - 3 * 2 * page_bytes[1]);
  CHECK(is_there(kv.tables(3)[1].k_pages[9]));
  CHECK(kv.tables(1)[1].k_pages[4] == nullptr);
}
