/// How byte-level BPE vocabularies cut text into words before they merge, by the name that a GGUF file gives.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace tiered {

/// Patterns are applied one after another: each isolates its matches in the pieces that the ones before left, and what lies between
/// matches stays a piece. Written as published in the models' tokenizer.json; `\s` means the Unicode property White_Space.
struct PreTokenizer {
  std::string_view name;  ///< value of tokenizer.ggml.pre
  std::span<std::string_view const> patterns;
  bool ignore_merges = false;  ///< a word that is a token needs no merges
  bool add_bos = false;        ///< where the file does not say
};

namespace detail {

inline constexpr std::string_view gpt2_words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

inline constexpr std::array<std::string_view, 1> pre_gpt2{gpt2_words};
inline constexpr std::array<std::string_view, 2> pre_single_digits{R"(\p{N})", gpt2_words};
inline constexpr std::array<std::string_view, 4> pre_default{R"([\p{P}$+<=>^~|]+)", gpt2_words, R"(\p{N}+)", "[0-9][0-9][0-9]"};
inline constexpr std::array<std::string_view, 1> pre_llama3{
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
inline constexpr std::array<std::string_view, 1> pre_qwen2{
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
inline constexpr std::array<std::string_view, 1> pre_qwen35{
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
inline constexpr std::array<std::string_view, 1> pre_tekken{
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
inline constexpr std::array<std::string_view, 1> pre_gpt4o{
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
inline constexpr std::string_view han_and_more = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
inline constexpr std::array<std::string_view, 5> pre_deepseek_coder{"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", han_and_more, R"(\p{N})"};
// The published pattern of blanks is `\s+$`; the lookbehind changes no match and keeps a long run of blanks from costing its square.
inline constexpr std::array<std::string_view, 6> pre_deepseek_llm{
    "[\r\n]",
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373})"
    R"(\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481})"
    R"(\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D})"
    R"(\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E})"
    R"(\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)",
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
    R"((?<!\s)\s+$)",
    han_and_more,
    R"(\p{N}+)"};
inline constexpr std::array<std::string_view, 3> pre_deepseek_v3{
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

inline constexpr PreTokenizer pre_tokenizers[] = {
    {"default", pre_default},
    {"gpt-2", pre_gpt2},
    {"phi-2", pre_gpt2},
    {"mpt", pre_gpt2},
    {"olmo", pre_gpt2},
    {"smollm", pre_single_digits},
    {"starcoder", pre_single_digits},
    {"refact", pre_single_digits},
    {"command-r", pre_single_digits},
    {"llama-bpe", pre_llama3, true, true},
    {"llama3", pre_llama3, true, true},
    {"llama-v3", pre_llama3, true, true},
    {"qwen2", pre_qwen2},
    {"deepseek-r1-qwen", pre_qwen2},
    {"qwen35", pre_qwen35},
    {"tekken", pre_tekken, true, true},
    {"gpt-4o", pre_gpt4o},
    {"llama4", pre_gpt4o},
    {"deepseek-llm", pre_deepseek_llm},
    {"deepseek-coder", pre_deepseek_coder},
    {"deepseek-v3", pre_deepseek_v3},
};

}  // namespace detail

/// Null for a name that is not known. An empty name, as of files without the key, means "default".
constexpr PreTokenizer const* find_pre_tokenizer(std::string_view name) {
  if (name.empty()) name = "default";
  for (PreTokenizer const& pre : detail::pre_tokenizers)
    if (pre.name == name) return &pre;
  return nullptr;
}

}  // namespace tiered
