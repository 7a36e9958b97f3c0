// Vocabularies and texts made of the input's bytes: no crash, no hang, no lost byte where every byte has a token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/io/bpe.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/spm.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/io/utf8.hpp"

namespace {

using namespace tiered;

class Input {
 public:
  Input(std::uint8_t const* data, std::size_t size) : rest_(reinterpret_cast<char const*>(data), size) {}
  unsigned byte() {
    if (rest_.empty()) return 0;
    auto const value = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view text(std::size_t n) {
    std::string_view const part = rest_.substr(0, n);
    rest_.remove_prefix(part.size());
    return part;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

void require(bool condition) {
  if (!condition) std::abort();
}

void check_tokenizer(Tokenizer const& tokenizer, std::string_view text, bool keeps_all) {
  auto const ids = tokenizer.encode(text, {.add_special = false, .parse_special = true});
  for (std::int32_t const id : ids) require(tokenizer.vocab().contains(id));
  std::string const decoded = tokenizer.decode(ids, {.show_special = true});
  if (keeps_all) require(decoded == text);
  std::string whole;
  for (std::int32_t const id : ids) whole += tokenizer.decode(id, {.show_special = true});
  StreamDecoder stream(tokenizer, {.show_special = true});
  std::size_t sent = 0, boundary = 0;
  for (std::int32_t const id : ids) {
    std::string const part = stream.push(id);
    require(whole.compare(sent, part.size(), part) == 0);
    sent += part.size();
    while (boundary < sent) boundary += read_utf8(whole, boundary).length;
    require(boundary == sent);  // never inside a character
  }
  require(whole.substr(sent) == stream.finish());
}

/// The first bytes choose the model; then come tokens with type and length, then merges as pairs of tokens; the rest is the text.
void fuzz_vocabulary(Input input) {
  unsigned const options = input.byte();
  bool const is_spm = options & 1, all_bytes = options & 2;
  VocabData data;
  data.model = is_spm ? "llama" : "gpt2";
  data.pre = detail::pre_tokenizers[input.byte() % std::size(detail::pre_tokenizers)].name;
  if (options & 4) data.add_space_prefix = false;
  if (options & 8) data.add_bos = true;
  std::vector<std::string> texts;
  auto const add = [&](std::string text, unsigned type, float score) {
    texts.push_back(std::move(text));
    data.types.push_back(std::int32_t(type));
    data.scores.push_back(score);
  };
  static constexpr char digits[] = "0123456789ABCDEF";
  for (unsigned b = 0; all_bytes && b < 256; ++b) {
    std::string text;
    if (is_spm) {
      text = std::string("<0x") + digits[b >> 4] + digits[b & 15] + '>';
    } else {
      append_utf8(text, detail::byte_alphabet.character[b]);
    }
    add(std::move(text), is_spm ? 6 : 1, 0);
  }
  for (unsigned n = input.byte() % 64; n > 0; --n) {
    unsigned const head = input.byte(), score = input.byte();
    std::string_view const raw = input.text(head & 15);
    std::string text;
    if (is_spm) {
      text = detail::replace_all(raw, " ", detail::u2581);
    } else {
      for (char const c : raw) append_utf8(text, detail::byte_alphabet.character[static_cast<unsigned char>(c)]);
    }
    add(std::move(text), head >> 4 & 7, float(score));
  }
  std::vector<std::string> merges;
  for (unsigned n = input.byte() % 64; n > 0 && !texts.empty(); --n) {
    std::string const& left = texts[input.byte() % texts.size()];
    merges.push_back(left + ' ' + texts[input.byte() % texts.size()]);
  }
  data.bos = std::int32_t(input.byte()) - 1;
  data.tokens.assign(texts.begin(), texts.end());
  data.merges.assign(merges.begin(), merges.end());
  try {
    // Tokens of the other types may stand for bytes of the text, and U+2581 is a blank: only BPE of normal tokens keeps everything.
    bool keeps_all = all_bytes && !is_spm;
    for (std::int32_t const type : data.types) keeps_all = keeps_all && type == 1;
    check_tokenizer(make_tokenizer(data), input.rest(), keeps_all);
  } catch (Error const&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  fuzz_vocabulary(Input(data, size));
  try {
    ChatTemplate const chat(std::string_view(reinterpret_cast<char const*>(data), size));
    ChatMessage const messages[] = {{"system", "s"}, {"user", "u"}};
    chat.render(messages);
  } catch (Error const&) {
  }
  return 0;
}
