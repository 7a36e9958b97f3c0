#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/model/kv_cache.hpp"

using namespace tiered;

namespace {

ModelConfig four_layers() {
  ModelConfig c;
  c.layers.resize(4);
  for (std::size_t l = 0; l < 4; ++l) c.layers[l].attention = {4, std::int32_t(1 + l % 2), 16, 0, 0, 1.f};
  return c;
}

/// Page-locked memory as far as a host has it.
struct Pinned {
  struct Calls {
    PageableTier memory;
    std::vector<std::size_t> given;
    std::size_t n_live = 0, most = std::size_t(-1);  ///< most: bytes of one block
  };
  Calls* calls;

  Tier tier() const { return Tier::pinned; }
  Block allocate(std::size_t bytes, std::size_t alignment) {
    if (bytes > calls->most) throw Error(Errc::out_of_memory, "no such block");
    Block block = calls->memory.allocate(bytes, alignment);
    calls->given.push_back(bytes);
    ++calls->n_live;
    block.tier = Tier::pinned;
    return block;
  }
  void deallocate(Block block) noexcept {
    --calls->n_live;
    block.tier = Tier::pageable;
    calls->memory.deallocate(block);
  }
  std::size_t capacity_bytes() const { return calls->most; }
  std::size_t used_bytes() const { return calls->memory.used_bytes(); }
};

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
  CHECK(kv.host_held_bytes() == kv.host_bytes());  // pageable memory is taken when it is used
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

TEST_CASE("what sequences use of VRAM grows from its begin: no page of theirs lies behind it, and it shrinks as they end") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    ModelConfig const config = four_layers();
    std::int32_t const page_tokens = 16, n_pages = 1 + std::int32_t(random.below(12)), n_slots = 1 + std::int32_t(random.below(3));
    std::vector<float> shares;
    std::size_t vram_bytes = 0;
    std::vector<std::size_t> page_bytes;
    for (std::size_t l = 0; l < 4; ++l) {
      shares.push_back(float(random.below(5)) / 4);
      page_bytes.push_back(KvCache::page_bytes(config.layers[l].attention, DType::f16, page_tokens));
      vram_bytes += 2 * page_bytes[l] * std::size_t(pages_in_vram(shares[l], n_pages)) * std::size_t(n_slots);
    }
    std::vector<std::byte> vram(vram_bytes);
    KvCache kv(config, {n_pages * page_tokens, n_slots, DType::f16, page_tokens}, shares, vram.data());
    std::int32_t const everywhere = n_pages > 0 ? pages_in_vram(*std::ranges::min_element(shares), n_pages) * page_tokens : 0;
    CHECK(kv.all_in_vram(everywhere));
    CHECK_FALSE(kv.all_in_vram(everywhere + 1));
    std::vector<std::int32_t> lengths(std::size_t(n_slots), 0);
    for (int step = 0; step < 40; ++step) {
      std::size_t const slot = random.below(std::uint64_t(n_slots));
      std::int32_t const n = std::int32_t(random.below(std::uint64_t(n_pages * page_tokens) + 1));
      n > lengths[slot] ? kv.reserve(std::int32_t(slot), n) : kv.release(std::int32_t(slot), n);
      lengths[slot] = n;
      std::size_t end = 0;
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        for (std::int32_t l = 0; l < 4; ++l) {
          CHECK(kv.in_vram(l, lengths[s]) == (lengths[s] <= kv.vram_tokens(l)));
          for (std::int32_t p = 0; p * page_tokens < lengths[s] && p * page_tokens < kv.vram_tokens(l); ++p) {
            for (std::byte const* page : {kv.tables(l)[s].k_pages[p], kv.tables(l)[s].v_pages[p]})
              end = std::max(end, std::size_t(page - vram.data()) + page_bytes[std::size_t(l)]);
          }
        }
      }
      CHECK(kv.vram_bytes_in_use() >= end);
      CHECK(kv.vram_bytes_in_use() <= vram_bytes);
      bool const in_both = std::ranges::none_of(lengths, [&](std::int32_t length) { return length > everywhere; });
      if (in_both) CHECK(kv.vram_bytes_in_use() == end);  // or there may be nothing of the last columns in VRAM
    }
    for (std::int32_t s = 0; s < n_slots; ++s) kv.release(s);
    CHECK(kv.vram_bytes_in_use() == 0);
    for (std::int32_t s = 0; s < n_slots; ++s) kv.reserve(s, n_pages * page_tokens);
    CHECK(kv.vram_bytes_in_use() <= vram_bytes);
  }
}

TEST_CASE("page-locked memory comes in few blocks, as much again each time, and smaller where there is no such block") {
  ModelConfig const config = four_layers();
  std::int32_t const page_tokens = 16, n_pages = 100, first = 10;  // of layer 0 ten pages are in VRAM
  std::size_t column_bytes = 0;
  for (std::size_t l = 0; l < 4; ++l) column_bytes += 2 * KvCache::page_bytes(config.layers[l].attention, DType::f16, page_tokens);
  std::vector<float> const shares{0.1f, 0.1f, 0.1f, 0.1f};
  std::vector<std::byte> vram(column_bytes * std::size_t(first));
  Pinned::Calls calls;
  {
    KvCache kv(config, {n_pages * page_tokens, 1, DType::f16, page_tokens}, shares, vram.data(), Pinned{&calls});
    kv.reserve(0, first * page_tokens);
    CHECK(calls.given.empty());
    for (std::int32_t n = 1; n <= n_pages * page_tokens; ++n) kv.reserve(0, n);
    CHECK(calls.given.size() <= 6);
    std::size_t given = 0;
    for (std::size_t const bytes : calls.given) given += bytes;
    CHECK(given == column_bytes * std::size_t(n_pages - first));
    CHECK(kv.host_bytes() == given);
    std::set<std::byte*> pages;
    std::vector<std::byte*> kept;
    for (std::int32_t l = 0; l < 4; ++l) {
      for (std::int32_t p = 0; p < n_pages; ++p) {
        for (std::byte* page : {kv.tables(l)[0].k_pages[p], kv.tables(l)[0].v_pages[p]}) {
          CHECK(pages.insert(page).second);
          std::fill_n(page, KvCache::page_bytes(config.layers[std::size_t(l)].attention, DType::f16, page_tokens), std::byte{1});
        }
      }
      kept.push_back(kv.tables(l)[0].k_pages[77]);
    }
    kv.release(0, 12 * page_tokens);
    CHECK(kv.host_bytes() == 2 * column_bytes);
    CHECK(kv.host_held_bytes() == given);  // kept for sequences to come
    CHECK(kv.tables(1)[0].k_pages[12] == nullptr);
    std::size_t const n_blocks = calls.given.size();
    kv.reserve(0, n_pages * page_tokens);
    CHECK(calls.given.size() == n_blocks);
    for (std::int32_t l = 0; l < 4; ++l) CHECK(kv.tables(l)[0].k_pages[77] == kept[std::size_t(l)]);
  }
  CHECK(calls.n_live == 0);
  calls.given.clear();
  {
    KvCache kv(config, {n_pages * page_tokens, 1, DType::f16, page_tokens}, shares, vram.data(), Pinned{&calls});
    kv.reserve(0, 16 * page_tokens);
    CHECK(kv.host_bytes() == 6 * column_bytes);
    CHECK(kv.host_held_bytes() > kv.host_bytes());  // taken ahead
    calls.most = column_bytes;                      // one page's
    kv.reserve(0, 30 * page_tokens);
    CHECK(kv.host_bytes() == 20 * column_bytes);
    calls.most = 0;
    CHECK(tiered_test::error_of([&] { kv.reserve(0, 31 * page_tokens); }).code == Errc::out_of_memory);
    CHECK(kv.host_bytes() == 20 * column_bytes);
    CHECK(kv.tables(2)[0].v_pages[29] != nullptr);
    CHECK(kv.tables(2)[0].v_pages[30] == nullptr);
    calls.most = std::size_t(-1);
    kv.reserve(0, 31 * page_tokens);
    CHECK(kv.host_bytes() == 21 * column_bytes);
  }
  CHECK(calls.n_live == 0);
}

TEST_CASE("another number says that pages in host memory came or went") {
  ModelConfig const config = four_layers();
  std::size_t vram_bytes = 0;
  for (LayerConfig const& layer : config.layers) vram_bytes += KvCache::page_bytes(layer.attention, DType::f16) * 2;
  std::vector<std::byte> vram(vram_bytes);
  KvCache kv(config, {3 * kv_page_tokens, 1}, std::vector<float>(4, 1.f / 3), vram.data());
  std::uint64_t last = kv.host_version();
  auto const changes = [&](auto const& call) {
    call();
    return std::exchange(last, kv.host_version()) != kv.host_version();
  };
  CHECK_FALSE(changes([&] { kv.reserve(0, kv_page_tokens); }));
  CHECK(changes([&] { kv.reserve(0, kv_page_tokens + 1); }));
  CHECK_FALSE(changes([&] { kv.reserve(0, 2 * kv_page_tokens); }));
  CHECK(changes([&] { kv.reserve(0, 3 * kv_page_tokens); }));
  CHECK(changes([&] { kv.release(0, 2 * kv_page_tokens); }));
  CHECK(changes([&] { kv.reserve(0, 3 * kv_page_tokens); }));
  CHECK(changes([&] { kv.release(0, kv_page_tokens); }));
  CHECK_FALSE(changes([&] { kv.release(0); }));
}
