/// A tier whose kind is chosen at run time.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>

#include "tiered/memory/tier.hpp"

namespace tiered {

/// Owns a tier of any kind and models MemoryTier itself. Not to be used once moved from.
class AnyTier {
 public:
  template <class T>
    requires(!std::same_as<T, AnyTier>) && MemoryTier<T>  // in this order: MemoryTier asks whether AnyTier moves
  AnyTier(T tier) : held_(std::make_unique<Held<T>>(std::move(tier))) {}

  Tier tier() const { return held_->tier(); }
  Block allocate(std::size_t bytes, std::size_t alignment) { return held_->allocate(bytes, alignment); }
  void deallocate(Block block) noexcept { held_->deallocate(block); }
  std::size_t capacity_bytes() const { return held_->capacity_bytes(); }
  std::size_t used_bytes() const { return held_->used_bytes(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual Tier tier() const = 0;
    virtual Block allocate(std::size_t bytes, std::size_t alignment) = 0;
    virtual void deallocate(Block block) noexcept = 0;
    virtual std::size_t capacity_bytes() const = 0;
    virtual std::size_t used_bytes() const = 0;
  };
  template <class T>
  struct Held final : Interface {
    explicit Held(T&& tier) : object(std::move(tier)) {}
    Tier tier() const override { return object.tier(); }
    Block allocate(std::size_t bytes, std::size_t alignment) override { return object.allocate(bytes, alignment); }
    void deallocate(Block block) noexcept override { object.deallocate(block); }
    std::size_t capacity_bytes() const override { return object.capacity_bytes(); }
    std::size_t used_bytes() const override { return object.used_bytes(); }
    T object;
  };

  std::unique_ptr<Interface> held_;
};
static_assert(MemoryTier<AnyTier>);

}  // namespace tiered
