/// Which of the host's memory a device's kernels may use where it lies.
#pragma once

#include <cstddef>

namespace tiered {

/// Asks whoever makes memory readable, which is borrowed: `m.covers(data, bytes)`, at once and from any thread, says whether kernels may
/// read all of it by now. What they may read once, they may for as long as anybody asks; what they may not may come later, or never.
class ReadableBytes {
 public:
  /// None.
  ReadableBytes() = default;
  /// All there is: of a device that shares the host's memory.
  static ReadableBytes all() {
    ReadableBytes any;
    any.covers_ = [](void const*, void const*, std::size_t) { return true; };
    return any;
  }
  template <class Mapping>
  explicit ReadableBytes(Mapping const& of)
      : of_(&of), covers_([](void const* m, void const* data, std::size_t bytes) -> bool {
          return static_cast<Mapping const*>(m)->covers(data, bytes);
        }) {}

  /// Whether there may be any.
  explicit operator bool() const { return covers_ != nullptr; }
  bool has(void const* data, std::size_t bytes) const { return covers_ != nullptr && covers_(of_, data, bytes); }

 private:
  void const* of_ = nullptr;
  bool (*covers_)(void const*, void const*, std::size_t) = nullptr;
};

/// What a device's kernels may use of the host's memory, by the same addresses.
struct HostAccess {
  bool activations = false;  ///< read and write the host's activations: ExecutorParts::host_base
  bool kv = false;           ///< likewise keys and values in host memory
  ReadableBytes weights;     ///< read these of ShardTable::weights' data
};

}  // namespace tiered
