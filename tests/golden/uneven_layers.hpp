/// A golden model whose layers differ in what a position of keys and values takes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_edit.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"

namespace tiered::test {

/// The model with the first key and value head alone in every second layer: another model, for comparing engines with each other.
inline std::shared_ptr<Transformer const> open_uneven(std::string const& gguf) {
  GgufFile const file = GgufFile::open(golden_path(gguf));
  std::string const arch = file.require<std::string>("general.architecture"), key = arch + ".attention.head_count_kv";
  std::int32_t const n_layers = file.require<std::int32_t>(arch + ".block_count"), n_heads = file.require<std::int32_t>(key);
  auto const is_cut = [&](std::string_view name) {
    bool cut = name == key;
    for (std::int32_t l = 1; l < n_layers; l += 2) {
      for (char const* what : {".attn_k.weight", ".attn_v.weight", ".attn_k.bias", ".attn_v.bias"})
        cut = cut || name == "blk." + std::to_string(l) + what;
    }
    return cut;
  };
  std::vector<std::byte> const bytes = rewritten(file, is_cut, [&](GgufWriter& writer) {
    std::vector<std::int32_t> heads;
    for (std::int32_t l = 0; l < n_layers; ++l) heads.push_back(l % 2 == 1 ? 1 : n_heads);
    writer.set(key, heads);
    for (GgufTensor const& t : file.tensors()) {
      if (!is_cut(t.name)) continue;
      Shape shape = t.shape;  // rows of heads, one head after another
      shape.sizes[0] /= n_heads;
      writer.add_tensor(t.name, t.dtype, shape, t.data.first(t.data.size() / std::size_t(n_heads)));
    }
  });
  TempDir const folder;  // what is mapped outlives it
  return make_model(GgufFile::open(folder.write("uneven.gguf", std::span(bytes))));
}

}  // namespace tiered::test
