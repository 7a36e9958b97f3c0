/// A golden mixture with its layers repeated: for what one layer does about the next but one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_edit.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"

namespace tiered::test {

/// Layer l has the weights of layer l % n of the file's n layers: another model, for comparing engines with each other.
inline std::shared_ptr<Transformer const> open_deep(std::string const& gguf, std::int32_t n_layers) {
  GgufFile const file = GgufFile::open(golden_path(gguf));
  std::string const key = file.require<std::string>("general.architecture") + ".block_count";
  std::int32_t const n = file.require<std::int32_t>(key);
  std::vector<std::byte> const bytes = rewritten(
      file, [&](std::string_view name) { return name == key; },
      [&](GgufWriter& writer) {
        writer.set(key, std::uint32_t(n_layers));
        for (std::int32_t l = n; l < n_layers; ++l) {
          std::string const from = "blk." + std::to_string(l % n) + ".", to = "blk." + std::to_string(l) + ".";
          for (GgufTensor const& t : file.tensors()) {
            if (t.name.starts_with(from)) writer.add_tensor(to + std::string(t.name.substr(from.size())), t.dtype, t.shape, t.data);
          }
        }
      });
  TempDir const folder;  // what is mapped outlives it
  return make_model(GgufFile::open(folder.write("deep.gguf", std::span(bytes))));
}

}  // namespace tiered::test
