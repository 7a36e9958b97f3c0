/// An eviction policy whose type is erased.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tiered/plan/eviction.hpp"

namespace tiered {

/// Owns any EvictionPolicy and models one, so that the expert cache is no template.
class AnyEviction {
 public:
  template <class P>
    requires(!std::same_as<P, AnyEviction>) && EvictionPolicy<P>
  AnyEviction(P policy) : self_(std::make_unique<Model<P>>(std::move(policy))) {}

  void touch(ShardId s, std::uint64_t step) { self_->touch(s, step); }
  bool admit(ShardId s) { return self_->admit(s); }
  void insert(ShardId s) { self_->insert(s); }
  void erase(ShardId s) { self_->erase(s); }
  std::optional<ShardId> victim() { return self_->victim(); }

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual void touch(ShardId, std::uint64_t) = 0;
    virtual bool admit(ShardId) = 0;
    virtual void insert(ShardId) = 0;
    virtual void erase(ShardId) = 0;
    virtual std::optional<ShardId> victim() = 0;
  };
  template <class P>
  struct Model final : Concept {
    explicit Model(P p) : policy(std::move(p)) {}
    void touch(ShardId s, std::uint64_t step) override { policy.touch(s, step); }
    bool admit(ShardId s) override { return policy.admit(s); }
    void insert(ShardId s) override { policy.insert(s); }
    void erase(ShardId s) override { policy.erase(s); }
    std::optional<ShardId> victim() override { return policy.victim(); }
    P policy;
  };
  std::unique_ptr<Concept> self_;
};
static_assert(EvictionPolicy<AnyEviction>);

}  // namespace tiered
