/// Parts of loading a model onto a CUDA device, each by itself: a fresh mapping, staged copies, another process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tiered/core/clock.hpp"
#include "tiered/cuda.hpp"
#include "tiered/memory/page_toucher.hpp"

namespace bench {

using namespace tiered;

/// Tells how long each stage took.
class Stages {
 public:
  void tell(std::string const& what, double bytes = 0) {
    double const s = steady_seconds() - begin_;
    fmt::print("{:<72} {:>7.3f} s", what, s);
    if (bytes > 0) fmt::print(" {:>7.1f} GB/s", bytes / s / 1e9);
    fmt::print("\n");
    std::fflush(stdout);
    begin_ = steady_seconds();
  }
  void again() { begin_ = steady_seconds(); }

 private:
  double begin_ = steady_seconds();
};

/// The model's file, mapped anew: no page of it is in the page table.
struct Mapped {
  explicit Mapped(std::string const& path) : file(GgufFile::open(path)), model(make_model(file)), table(model->table()) {
    for (Weight const& w : table.weights) {
      ranges.push_back({w.data, w.bytes()});
      bytes += double(w.bytes());
    }
  }
  void touch(int n_threads) const { PageToucher(ranges, n_threads).wait(); }
  /// Where an engine that has all of it in VRAM puts it, as far as there is room.
  std::vector<CopyPiece> pieces(std::byte* vram, std::size_t room) const {
    std::vector<CopyPiece> out;
    std::size_t at = 0;
    for (Shard const& s : table.shards) {
      if (s.kind == ShardKind::embedding) continue;  // stays on the host
      if (at + VramAccount::round_up(s.bytes) > room) break;
      for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
        Weight const& w = table.weights[std::size_t(i)];
        out.push_back({vram + at + w.offset, w.data, w.bytes()});
      }
      at += VramAccount::round_up(s.bytes);
    }
    return out;
  }

  GgufFile file;
  std::shared_ptr<Transformer const> model;
  ShardTable table;
  std::vector<std::span<std::byte const>> ranges;
  double bytes = 0;
};

inline double total(std::vector<CopyPiece> const& pieces) {
  double bytes = 0;
  for (CopyPiece const& p : pieces) bytes += double(p.bytes);
  return bytes;
}

/// Runs `part` in a process of its own, whose CUDA begins from nothing. Before this process calls CUDA.
template <class Part>
void in_child(Part&& part) {
  std::fflush(stdout);
  ::pid_t const child = ::fork();
  if (child == 0) {
    int status = 0;
    try {
      part();
    } catch (std::exception const& e) {
      fmt::print("failed: {}\n", e.what());
      status = 1;
    }
    std::fflush(stdout);
    ::_exit(status);
  }
  if (child > 0) ::waitpid(child, nullptr, 0);
}

/// Threads that copy parts of the pieces into pinned buffers of their own, two each, and send those on by a stream of their own.
class StagedCopy {
 public:
  static constexpr std::size_t buffer_bytes = 4 * MiB;

  StagedCopy(int device, int n_threads) : device_(device), threads_(std::size_t(n_threads)) {
    for (Thread& t : threads_) {
      for (int i = 0; i < 2; ++i) {
        t.buffer[i] = Buffer(pinned_, buffer_bytes);
        t.free[i] = tiered::detail::make_event(cudaEventDisableTiming);
      }
      cudaStream_t stream = nullptr;
      cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      t.stream.reset(stream);
    }
  }
  /// With `fd`, the bytes are read from that file, which is mapped at `base`, in place of the mapping.
  void run(std::vector<CopyPiece> pieces, int fd = -1, std::byte const* base = nullptr) {
    std::sort(pieces.begin(), pieces.end(), [](CopyPiece const& a, CopyPiece const& b) { return a.src < b.src; });
    std::vector<CopyPiece> parts;
    for (CopyPiece p : pieces) {
      for (; p.bytes > buffer_bytes; p = {p.dst + buffer_bytes, p.src + buffer_bytes, p.bytes - buffer_bytes})
        parts.push_back({p.dst, p.src, buffer_bytes});
      parts.push_back(p);
    }
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> running;
    for (Thread& t : threads_) {
      running.emplace_back([&] {
        cudaSetDevice(device_);
        std::size_t round = 0;
        for (std::size_t i = next++; i < parts.size(); i = next++, ++round) {
          CopyPiece const& p = parts[i];
          std::byte* const buffer = t.buffer[round % 2].data();
          cudaEventSynchronize(t.free[round % 2].get());
          if (fd < 0) {
            std::memcpy(buffer, p.src, p.bytes);
          } else if (::pread(fd, buffer, p.bytes, ::off_t(p.src - base)) != ::ssize_t(p.bytes)) {
            failed_ = true;
          }
          cudaMemcpyAsync(p.dst, buffer, p.bytes, cudaMemcpyHostToDevice, t.stream.get());
          cudaEventRecord(t.free[round % 2].get(), t.stream.get());
        }
        if (cudaStreamSynchronize(t.stream.get()) != cudaSuccess) failed_ = true;
      });
    }
    for (std::thread& thread : running) thread.join();
    if (failed_) throw Error(Errc::device, "a staged copy failed");
  }

 private:
  struct Thread {
    Buffer buffer[2];
    tiered::detail::Owned<cudaEvent_t> free[2];
    tiered::detail::Owned<cudaStream_t> stream;
  };
  int device_;
  PinnedTier pinned_;
  std::vector<Thread> threads_;
  std::atomic<bool> failed_{false};
};

}  // namespace bench
