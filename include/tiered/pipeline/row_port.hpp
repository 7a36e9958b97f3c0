/// Where rows of a model with a BlockConfig come from, and where they leave to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/core/ids.hpp"

namespace tiered {

/// Called by whoever runs the block, while its lanes work on other rows; rows are counted within the block.
class RowPort {
 public:
  /// Writes what rows of a plane bring, [rows, BlockConfig::input_bytes[plane]].
  virtual void fill(std::int32_t plane, Range rows, std::byte* to) = 0;
  /// Rows of this plane are on their way, while lanes still work: makes ready for them. Before each of their take()s at least once.
  virtual void expect(std::int32_t plane) = 0;
  /// Reads rows of a plane that leave, [rows, dim]; they are counted as they leave, rows_per_output having become one.
  virtual void take(std::int32_t plane, Range rows, float const* from) = 0;

 protected:
  ~RowPort() = default;
};

}  // namespace tiered
