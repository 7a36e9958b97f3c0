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
  KvCache kv(config, {max_tokens, 2}, {false, true, true, false}, vram.data());
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
  KvCache kv(config, {kv_page_tokens, 1, DType::q8_0}, {false}, nullptr);
  kv.reserve(0, 1);
  CHECK(kv.type() == DType::q8_0);
  CHECK(kv.host_bytes() == 2 * KvCache::page_bytes(a, DType::q8_0));
}
