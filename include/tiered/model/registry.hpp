/// Architecture name in a file -> the function that reads its numbers. The one place where architectures are listed.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/arch/gemma3.hpp"
#include "tiered/model/arch/llama.hpp"
#include "tiered/model/arch/qwen.hpp"
#include "tiered/model/config.hpp"

namespace tiered {

struct Architecture {
  std::string_view name;
  ModelConfig (*read)(GgufFile const&);
  bool head_norms = false;    ///< needs attn_q_norm and attn_k_norm
  bool post_norms = false;    ///< needs post_attention_norm and post_ffw_norm
  bool rope_factors = false;  ///< reads rope_freqs.weight
};

inline constexpr std::array architectures{
    Architecture{"llama", arch::llama, false, false, true},
    Architecture{"qwen2", arch::qwen2},
    Architecture{"qwen2vl", arch::qwen2vl},
    Architecture{"qwen3", arch::qwen3, true},
    Architecture{"qwen3vl", arch::qwen3vl, true},
    Architecture{"qwen3moe", arch::qwen3moe, true},
    Architecture{"qwen3vlmoe", arch::qwen3vlmoe, true},
    Architecture{"gemma3", arch::gemma3, true, true},
};

/// Errors  Errc::unsupported naming the file's architecture and those there are.
inline Architecture const& find_architecture(GgufFile const& file) {
  auto const wanted = file.require<std::string>("general.architecture");
  std::string known;
  for (Architecture const& a : architectures) {
    if (a.name == wanted) return a;
    known += concat(known.empty() ? "" : ", ", a.name);
  }
  throw Error(Errc::unsupported,
              concat(file.path(), ": architecture ", tiered::detail::printable(wanted), " is not supported; supported: ", known));
}

}  // namespace tiered
