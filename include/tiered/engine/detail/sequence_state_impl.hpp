/// Defines what EngineCore has for saving and restoring a sequence: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/checksum.hpp"
#include "tiered/engine/engine.hpp"

namespace tiered::detail {

inline void add_layer(Checksum& sum, LayerConfig const& layer) {
  AttentionConfig const& a = layer.attention;
  ExpertsConfig const& e = layer.experts;
  sum.add(layer.mixer);
  sum.add(layer.feed_forward);
  sum.add(layer.hidden_dim);
  for (std::int32_t n : {a.n_heads, a.n_kv_heads, a.head_dim, a.window, a.rope_table, e.n_experts, e.n_experts_used}) sum.add(n);
  sum.add(a.scale);
  sum.add(e.gating);
  sum.add(e.normalise);
  sum.add(e.scale);
}

/// A few bytes from the middle of a weight: enough to tell a fine-tuned model from what it was made of.
inline void add_sample(Checksum& sum, Weight const& w) {
  if (w.data == nullptr) return;
  std::size_t const n = std::min<std::size_t>(w.bytes(), 64);
  sum.add({w.data + (w.bytes() - n) / 2, n});
}

std::uint64_t EngineCore::fingerprint() const {
  ModelConfig const& c = *parts_.config;
  Checksum sum;
  sum.add(c.architecture);
  for (std::int32_t n : {c.dim, c.vocab_size, c.n_layers}) sum.add(n);
  for (float x : {c.norm_eps, c.embedding_scale}) sum.add(x);
  sum.add(c.activation);
  sum.add(c.rope);
  for (RopeTable const& table : c.rope_tables) {
    sum.add(table.magnitude);
    sum.add(std::as_bytes(std::span(table.inv_freq)));
    sum.add(std::as_bytes(std::span(table.position_row)));
  }
  for (LayerConfig const& layer : c.layers) add_layer(sum, layer);
  for (Weight const& w : parts_.weights) {
    sum.add(w.dtype);
    sum.add(w.rows);
    sum.add(w.cols);
    if (parts_.table.shard(w.shard).expert <= 0) add_sample(sum, w);  // of all experts the first: a page of the file for each
  }
  return sum.value();
}

std::uint64_t EngineCore::kv_bytes(std::int32_t n_tokens) const {
  std::uint64_t bytes = 0;
  for (LayerConfig const& layer : parts_.config->layers) bytes += 2 * KvCache::page_bytes(layer.attention, kv_.type()) / kv_page_tokens;
  return bytes * std::uint64_t(n_tokens);
}

void EngineCore::each_page(std::int32_t slot, std::int32_t n_tokens, PageVisitor visit) const {
  std::vector<std::span<std::byte>> runs;
  for (std::int32_t layer = 0; layer < parts_.config->n_layers; ++layer) {
    for (int kv = 0; kv < 2; ++kv) {
      for (std::int32_t page = 0; page * kv_page_tokens < n_tokens; ++page) {
        runs.clear();
        Range const positions{page * kv_page_tokens, std::min((page + 1) * kv_page_tokens, n_tokens)};
        kv_.runs_of(layer, slot, kv, positions, runs);
        visit(positions.begin >= kv_.vram_tokens(layer), runs);
      }
    }
  }
}

inline std::size_t bytes_of(std::span<std::span<std::byte> const> runs) {
  std::size_t bytes = 0;
  for (std::span<std::byte> const run : runs) bytes += run.size();
  return bytes;
}

void EngineCore::share_room() {
  try {
    executor_.share_room();
  } catch (...) {  // an expert's copy that was still going on
    executor_.recover();
    throw;
  }
}

void EngineCore::copy_and_wait(std::span<CopyPiece const> pieces) {
  try {
    parts_.copy.wait(parts_.copy.submit(pieces, {}));
  } catch (...) {
    executor_.recover();
    throw;
  }
}

[[noreturn]] inline void no_memory_for_kv(char const* action, std::uint64_t bytes, std::int32_t n_tokens) {
  throw Error(Errc::out_of_memory, concat("no host memory left to ", action, " the ", bytes, " bytes of KV of ", n_tokens, " tokens"));
}

void EngineCore::export_kv(Sequence const& sequence, FunctionRef<void(std::span<std::byte const>)> sink) {
  expects(!in_step_, "a sequence is not saved from within a step");
  expects(owns(sequence), "the sequence belongs to another engine");
  std::vector<std::byte> staging;
  std::vector<CopyPiece> pieces;
  auto const export_page = [&](bool on_host, std::span<std::span<std::byte> const> runs) {
    if (on_host) {
      for (std::span<std::byte> const run : runs) sink(run);
      return;
    }
    staging.resize(bytes_of(runs));
    pieces.clear();
    for (std::byte* to = staging.data(); std::span<std::byte> const run : runs) {
      pieces.push_back({to, run.data(), run.size()});
      to += run.size();
    }
    copy_and_wait(pieces);
    sink(staging);
  };
  try {
    each_page(sequences_->find(sequence.id()), sequence.length(), export_page);
  } catch (std::bad_alloc const&) {
    no_memory_for_kv("save", kv_bytes(sequence.length()), sequence.length());
  }
}

std::span<RopeShift const> EngineCore::rope_shifts(Sequence const& sequence) const {
  expects(owns(sequence), "the sequence belongs to another engine");
  return sequences_->slots[std::size_t(sequences_->find(sequence.id()))].shifts;
}

void EngineCore::import_kv(Sequence& sequence, std::int32_t n_tokens, FunctionRef<void(std::span<std::byte>)> source,
                           std::span<RopeShift const> shifts) {
  expects(!in_step_, "a sequence is not restored from within a step");
  expects(owns(sequence), "the sequence belongs to another engine");
  expects(n_tokens >= 0 && n_tokens <= max_context(), "EngineCore::import_kv: n_tokens is in [0, max_context]");
  std::int32_t const slot = sequences_->find(sequence.id());
  sequence.truncate(0);
  std::vector<std::byte> staging;
  std::vector<CopyPiece> pieces;
  try {
    kv_.reserve(slot, n_tokens);
    share_room();
    each_page(slot, n_tokens, [&](bool on_host, std::span<std::span<std::byte> const> runs) {
      if (on_host) {
        for (std::span<std::byte> const run : runs) source(run);
        return;
      }
      staging.resize(bytes_of(runs));
      source(staging);
      pieces.clear();
      for (std::byte const* from = staging.data(); std::span<std::byte> const run : runs) {
        pieces.push_back({run.data(), from, run.size()});
        from += run.size();
      }
      copy_and_wait(pieces);
    });
  } catch (std::bad_alloc const&) {
    kv_.release(slot);
    no_memory_for_kv("restore", kv_bytes(n_tokens), n_tokens);
  } catch (...) {
    kv_.release(slot);
    throw;
  }
  SequenceTable::Slot& restored = sequences_->slots[std::size_t(slot)];
  restored.length = n_tokens;
  restored.shifts.assign(shifts.begin(), shifts.end());
  restored.find_next_rope();
}

}  // namespace tiered::detail
