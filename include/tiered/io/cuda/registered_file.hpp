/// Weights read from the file mapping, which a device copies from at full rate once it is registered.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/registered.hpp"

namespace tiered {

/// InFile that notes what was brought, and makes it page-locked when told to: loading copies nothing on the host, the page cache is
/// shared between processes. It must die before the file's mapping does, and after the copies from it.
class RegisteredFile {
 public:
  explicit RegisteredFile(RegisterOptions options = {}) : options_(options) {}

  std::span<std::byte const> bring(std::span<std::byte const> mapped) {
    brought_.push_back(mapped);
    return mapped;
  }
  /// Pinned from register_all() on, unless something was refused: then a part is pageable, and mapping()->first_error() says why.
  Tier tier() const { return mapping_ != nullptr && !mapping_->failed() ? Tier::pinned : Tier::pageable; }

  /// Starts registering what was brought so far; what is brought later stays pageable. Once. Does not wait: mapping() does.
  void register_all(CudaDevice const& device, RegisteredMapping::Progress progress = {}) {
    expects(mapping_ == nullptr, "a file is registered once");
    mapping_ = std::make_unique<RegisteredMapping>(device, brought_, options_);
    mapping_->start(std::move(progress));
  }
  /// Null before register_all().
  RegisteredMapping* mapping() { return mapping_.get(); }
  RegisteredMapping const* mapping() const { return mapping_.get(); }

 private:
  RegisterOptions options_;
  std::vector<std::span<std::byte const>> brought_;
  std::unique_ptr<RegisteredMapping> mapping_;
};
static_assert(HostWeights<RegisteredFile>);

}  // namespace tiered
