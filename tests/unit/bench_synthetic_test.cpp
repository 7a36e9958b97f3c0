// Synthetic models: files that open, the same for a seed whatever the threads, weights and embeddings with the moments that they should
// have.
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "../bench/model/synthetic.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/model/transformer.hpp"

using bench::Routing;
using tiered::DType;
using tiered_test::error_of;

namespace {

std::string bytes_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments(std::vector<float> const& values) {
  double sum = 0, squares = 0;
  for (float v : values) sum += v, squares += double(v) * v;
  double const n = double(values.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean)};
}

std::vector<float> decoded(DType type, std::vector<std::byte> const& bytes) {
  std::vector<float> out(bytes.size() / tiered::block_bytes(type) * tiered::block_elems(type));
  tiered::decode_row(type, bytes.data(), std::int64_t(out.size()), out.data());
  return out;
}

double cosine(float const* a, float const* b, std::size_t n) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < n; ++i) ab += double(a[i]) * b[i], aa += double(a[i]) * a[i], bb += double(b[i]) * b[i];
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("random weights have mean 0 and the deviation that is asked for, in every type of the models") {
  for (DType const type : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0, DType::q8_0, DType::q2_k,
                           DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k}) {
    INFO(tiered::name(type));
    std::size_t const n_blocks = 400'000 / tiered::block_elems(type);
    std::vector<float> const values = decoded(type, bench::random_weights(type, 0.02f, n_blocks, 5, 2));
    Moments const m = moments(values);
    CHECK(m.deviation == Approx(0.02).epsilon(0.03));
    CHECK(std::fabs(m.mean) < 0.02 * 0.02);
    // A row of products sees no common offset either: means of 256 elements spread as those of independent numbers do, or little more.
    std::vector<float> means;
    for (std::size_t at = 0; at + 256 <= values.size(); at += 256)
      means.push_back(float(moments({values.begin() + std::ptrdiff_t(at), values.begin() + std::ptrdiff_t(at + 256)}).mean));
    CHECK(moments(means).deviation < 0.02 / 16 * 2.5);
  }
}

TEST_CASE("weights and rows are the same with any number of threads, and others for another seed") {
  auto const weights = bench::random_weights(DType::q4_0, 0.1f, 10000, 5, 1);
  CHECK(weights == bench::random_weights(DType::q4_0, 0.1f, 10000, 5, 3));
  CHECK(weights != bench::random_weights(DType::q4_0, 0.1f, 10000, 6, 3));
  CHECK(bench::embedding_rows(DType::q8_0, 64, 300, Routing::topics, 1, 1) ==
        bench::embedding_rows(DType::q8_0, 64, 300, Routing::topics, 1, 3));
}

TEST_CASE("a type without a place for a factor is refused") {
  CHECK(error_of([] { bench::random_weights(DType::mxfp4, 1, 10, 1, 1); }).code == tiered::Errc::unsupported);
}

TEST_CASE("embeddings of unit variance: of one topic alike, of two half as much, free ones not at all") {
  constexpr std::size_t dim = 512, n = 2 * bench::topic_period;
  std::vector<float> const rows = decoded(DType::q8_0, bench::embedding_rows(DType::q8_0, dim, n, Routing::topics, 3, 2));
  auto const row = [&](int id) { return &rows[std::size_t(id) * dim]; };
  CHECK(moments(rows).deviation == Approx(1).epsilon(0.05));
  CHECK(cosine(row(1), row(2), dim) == Approx(0.9).margin(0.06));                        // one topic
  CHECK(cosine(row(1), row(1 + bench::topic_period), dim) == Approx(0.9).margin(0.06));  // which comes again
  CHECK(cosine(row(1), row(6), dim) == Approx(0.45).margin(0.15));                       // common only
  CHECK(std::fabs(cosine(row(0), row(1), dim)) < 0.2);
  std::vector<float> const uniform = decoded(DType::q8_0, bench::embedding_rows(DType::q8_0, dim, n, Routing::uniform, 3, 2));
  CHECK(std::fabs(cosine(&uniform[dim], &uniform[2 * dim], dim)) < 0.2);
}

TEST_CASE("small models are files that open, say how they route, and have the shapes of their architecture") {
  tiered_test::TempDir const dir;
  for (std::string const name : {"tiny-moe", "tiny-dense"}) {
    INFO(name);
    std::string const path = dir / name;
    std::uint64_t const bytes = bench::make_synthetic(bench::synthetic_model(name), path, Routing::topics, 2);
    tiered::GgufFile const file = tiered::GgufFile::open(path);
    CHECK(file.total_bytes() == bytes);
    CHECK(bench::routing_for(file, "") == Routing::topics);
    auto const model = tiered::make_model(file);
    CHECK(model->config().dim == 256);
    CHECK(model->config().vocab_size == 1024);
    CHECK((model->config().layers[0].feed_forward == tiered::FeedForwardKind::experts) == (name == "tiny-moe"));
    CHECK(model->config().name == "synthetic " + name);
  }
}

TEST_CASE("a model is the same file for a seed, with any number of threads") {
  tiered_test::TempDir const dir;
  bench::SyntheticModel const& model = bench::synthetic_model("tiny-moe");
  bench::make_synthetic(model, dir / "a", Routing::topics, 1, 3);
  bench::make_synthetic(model, dir / "b", Routing::topics, 3, 3);
  bench::make_synthetic(model, dir / "c", Routing::uniform, 3, 3);
  CHECK(bytes_of(dir / "a") == bytes_of(dir / "b"));
  CHECK(bytes_of(dir / "a") != bytes_of(dir / "c"));
}

TEST_CASE("the vocabulary of vision-language models has a token for each byte and each mark") {
  tiered::GgufWriter writer;
  writer.set("general.architecture", std::string("qwen2vl"));
  bench::detail::set_vocabulary(writer);
  std::vector<std::byte> const bytes = writer.to_bytes();
  tiered::GgufFile const file = tiered::GgufFile::parse(bytes);
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(file);
  std::string every;
  for (int b = 1; b < 256; ++b) every += char(b);
  CHECK(tokenizer.decode(tokenizer.encode(every)) == every);
  CHECK(tokenizer.encode("<|image_pad|><|im_end|>", {false, true}) == std::vector<std::int32_t>{261, 258});
  CHECK(tokenizer.is_end_of_generation(258));
  std::vector<tiered::ChatMessage> const hi{{"user", "Hi"}};
  CHECK(tiered::chat_template_from_gguf(file).render(hi) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE("large models have the bytes of the files that they stand for") {
  auto const gigabytes = [](char const* name) {
    double bytes = 0;
    for (bench::SyntheticTensor const& t : bench::tensors_of(bench::synthetic_model(name))) bytes += double(bench::detail::tensor_bytes(t));
    return bytes / 1e9;
  };
  // Dense parts and experts as the targets count them, and the embedding.
  CHECK(gigabytes("qwen3-30b-a3b-q4_0") == Approx(0.815 + 16.31 + 0.175).epsilon(0.005));
  CHECK(gigabytes("qwen3-235b-a22b-q2_k") == Approx(3.273 + 82.2 + 0.204).epsilon(0.005));
  CHECK(gigabytes("minitron-8b-f16") == Approx(15.75 + 1.074).epsilon(0.005));
  CHECK(gigabytes("cosmos-reason1-7b-q8_0") == Approx(7.512 + 0.5791).epsilon(0.005));
  CHECK(gigabytes("qwen3-32b-q4_0") == Approx(18.2 + 0.4376).epsilon(0.005));
}

TEST_CASE("a wrong name gets the list, and a place that cannot be written no file") {
  CHECK(error_of([] { bench::synthetic_model("qwen"); }).says("qwen3-30b-a3b-q4_0", "tiny-moe"));
  CHECK(error_of([] { bench::make_synthetic(bench::synthetic_model("tiny-moe"), "/no/such/folder/x", Routing::uniform, 1); }).code ==
        tiered::Errc::io);
}
