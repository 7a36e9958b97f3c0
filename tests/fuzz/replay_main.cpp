// Runs a fuzz target over files and folders of files, where there is no libFuzzer: the corpus as an ordinary test.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> files_of(std::filesystem::path const& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  int n_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (auto const& path : files_of(argv[i])) {
      std::ifstream stream(path, std::ios::binary);
      std::vector<char> const bytes{std::istreambuf_iterator<char>(stream), {}};
      std::printf("%s (%zu bytes)\n", path.c_str(), bytes.size());
      std::fflush(stdout);  // the last line names the input that crashed
      LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
      ++n_files;
    }
  }
  std::printf("%d inputs\n", n_files);
  return n_files > 0 ? 0 : 1;
}
