/// A GGUF file written again with some of it changed, for tests of what a model refuses.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/io/gguf.hpp"
#include "tiered/io/gguf_writer.hpp"

namespace tiered_test {

inline void copy_value(tiered::GgufWriter& w, tiered::GgufValue const& v) {
  using tiered::GgufType;
  std::string_view const key = v.key();
  switch (v.type()) {
    case GgufType::string: return w.set(key, v.as<std::string>());
    case GgufType::f32: return w.set(key, v.as<float>());
    case GgufType::boolean: return w.set(key, v.as<bool>());
    case GgufType::array:
      if (v.element_type() == GgufType::string) return w.set(key, v.as<std::vector<std::string>>());
      if (v.element_type() == GgufType::boolean) return w.set(key, v.as<std::vector<bool>>());
      if (v.element_type() == GgufType::f32) return w.set(key, v.as<std::vector<float>>());
      return w.set(key, v.as<std::vector<std::int32_t>>());
    default: return w.set(key, v.as<std::uint32_t>());
  }
}

/// The bytes of `file` with other contents: `drop(name)` leaves out a key or tensor, `edit(writer)` adds.
inline std::vector<std::byte> rewritten(tiered::GgufFile const& file, std::function<bool(std::string_view)> const& drop,
                                        std::function<void(tiered::GgufWriter&)> const& edit) {
  tiered::GgufWriter writer;
  for (tiered::GgufValue const& v : file.metadata()) {
    if (v.key() != "general.alignment" && !drop(v.key())) copy_value(writer, v);
  }
  for (tiered::GgufTensor const& t : file.tensors()) {
    if (!drop(t.name)) writer.add_tensor(t.name, t.dtype, t.shape, t.data);
  }
  edit(writer);
  return writer.to_bytes();
}

}  // namespace tiered_test
