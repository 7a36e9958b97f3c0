/// Defines GgufFile: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/gguf_parse.hpp"
#include "tiered/io/detail/gguf_split.hpp"
#include "tiered/io/detail/name_index.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/gguf.hpp"

namespace tiered {

struct GgufFile::State {
  std::string path;
  std::vector<MmapFile> files;  // empty after parse()
  std::vector<detail::GgufPart> parts;
  std::vector<GgufTensor> tensors;  // of all parts
  detail::NameIndex names;          // into tensors
};

GgufFile::State GgufFile::open_parts(std::string const& path) {
  State state;
  state.path = path;
  auto const add = [&](std::string const& part_path) {
    MmapFile file = MmapFile::open(part_path);
    state.parts.push_back(detail::parse_gguf_part(file, part_path));
    state.files.push_back(std::move(file));
  };
  add(path);
  if (auto const split = detail::find_split(state.parts[0])) {
    auto const others = detail::split_paths(state.parts[0], *split);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (i == split->number) continue;
      try {
        add(others[i]);
      } catch (Error const& error) {
        if (error.code() != Errc::not_found) throw;
        throw Error(Errc::not_found, concat(path, ": part ", i + 1, " of ", others.size(), " is missing: ", others[i]));
      }
    }
    // The part that was named was read first: move it to its place.
    std::rotate(state.parts.begin(), state.parts.begin() + 1, state.parts.begin() + std::ptrdiff_t(split->number) + 1);
    std::rotate(state.files.begin(), state.files.begin() + 1, state.files.begin() + std::ptrdiff_t(split->number) + 1);
    detail::check_split(state.parts);
  }
  return state;
}

GgufFile GgufFile::open(std::string const& path) {
  State state = open_parts(path);
  for (std::size_t i = 0; i < state.parts.size(); ++i) {
    for (GgufTensor tensor : state.parts[i].tensors) {
      tensor.part = int(i);
      tensor.data = state.files[i].bytes().subspan(std::size_t(tensor.file_offset), std::size_t(tensor.bytes));
      state.tensors.push_back(tensor);
    }
  }
  return GgufFile(std::move(state));
}

GgufFile GgufFile::parse(std::span<std::byte const> bytes) {
  State state;
  state.path = "memory";
  state.parts.push_back(detail::parse_gguf_part(MemorySource(bytes), state.path));
  if (detail::find_split(state.parts[0])) {
    throw Error(Errc::unsupported, "memory: is one part of a split file; only open() finds the others");
  }
  for (GgufTensor tensor : state.parts[0].tensors) {
    tensor.data = bytes.subspan(std::size_t(tensor.file_offset), std::size_t(tensor.bytes));
    state.tensors.push_back(tensor);
  }
  return GgufFile(std::move(state));
}

GgufFile::GgufFile(State state) {
  state.names = detail::NameIndex(state.tensors, [](GgufTensor const& t) { return t.name; });
  if (auto const name = state.names.duplicate()) {
    throw Error(Errc::bad_file, concat(state.path, ": has tensor ", detail::printable(*name), " twice"));
  }
  state_ = std::make_shared<State const>(std::move(state));
}

std::uint64_t GgufFile::total_bytes() const {
  std::uint64_t bytes = 0;
  for (detail::GgufPart const& part : state_->parts) bytes += part.size_bytes;
  return bytes;
}

GgufValue const* GgufFile::find(std::string_view key) const {
  auto const index = state_->parts[0].keys.find(key);
  return index ? &state_->parts[0].metadata[*index] : nullptr;
}

GgufTensor const* GgufFile::find_tensor(std::string_view name) const {
  auto const index = state_->names.find(name);
  return index ? &state_->tensors[*index] : nullptr;
}

GgufTensor const& GgufFile::require_tensor(std::string_view name) const {
  GgufTensor const* const tensor = find_tensor(name);
  if (tensor == nullptr) throw Error(Errc::not_found, concat(path(), ": has no tensor ", detail::printable(name)));
  return *tensor;
}

void GgufFile::check_sizes() const {
  for (MmapFile const& file : state_->files) {
    if (std::uint64_t const now = file.current_size_bytes(); now < file.size_bytes()) {
      throw Error(Errc::io, concat(file.path(), ": had ", file.size_bytes(), " bytes when it was opened, has ", now, " now"));
    }
  }
}

std::string const& GgufFile::path() const { return state_->path; }
int GgufFile::n_parts() const { return int(state_->parts.size()); }
std::string const& GgufFile::part_path(int part) const { return state_->parts.at(std::size_t(part)).name; }
MmapFile const* GgufFile::mapping(int part) const { return state_->files.empty() ? nullptr : &state_->files.at(std::size_t(part)); }
std::uint32_t GgufFile::version() const { return state_->parts[0].version; }
std::uint64_t GgufFile::alignment() const { return state_->parts[0].alignment; }
std::span<GgufValue const> GgufFile::metadata() const { return state_->parts[0].metadata; }
std::span<GgufTensor const> GgufFile::tensors() const { return state_->tensors; }

}  // namespace tiered
