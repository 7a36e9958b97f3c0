/// Eviction policies whose type is erased, and by their names.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "tiered/plan/eviction.hpp"
#include "tiered/plan/prior_frequency.hpp"

namespace tiered {

/// Owns any EvictionPolicy and models one, so that the expert cache is no template.
class AnyEviction {
 public:
  AnyEviction() : AnyEviction(PriorFrequency()) {}
  template <class P>
  requires(!std::same_as<P, AnyEviction>) && EvictionPolicy<P> AnyEviction(P policy)
      : self_(std::make_unique<Model<P>>(std::move(policy))) {}

  void touch(ShardId s, std::uint64_t step) { self_->touch(s, step); }
  bool admit(ShardId s) { return self_->admit(s); }
  void insert(ShardId s) { self_->insert(s); }
  void erase(ShardId s) { self_->erase(s); }
  std::optional<ShardId> victim() { return self_->victim(); }

  /// Whether the policy has these two; else nothing happens, and no uses are known.
  bool learns() const { return self_->learns(); }
  void begin_with(std::span<double const> uses_per_step) { self_->begin_with(uses_per_step); }
  std::span<std::uint64_t const> uses() const { return self_->uses(); }

 private:
  struct Concept {
    virtual ~Concept() = default;
    virtual void touch(ShardId, std::uint64_t) = 0;
    virtual bool admit(ShardId) = 0;
    virtual void insert(ShardId) = 0;
    virtual void erase(ShardId) = 0;
    virtual std::optional<ShardId> victim() = 0;
    virtual bool learns() const = 0;
    virtual void begin_with(std::span<double const>) = 0;
    virtual std::span<std::uint64_t const> uses() const = 0;
  };
  template <class P>
  struct Model final : Concept {
    static constexpr bool has_memory = requires(P & p, P const& c, std::span<double const> rates) {
      p.begin_with(rates);
      { c.uses() } -> std::convertible_to<std::span<std::uint64_t const>>;
    };
    explicit Model(P p) : policy(std::move(p)) {}
    void touch(ShardId s, std::uint64_t step) override { policy.touch(s, step); }
    bool admit(ShardId s) override { return policy.admit(s); }
    void insert(ShardId s) override { policy.insert(s); }
    void erase(ShardId s) override { policy.erase(s); }
    std::optional<ShardId> victim() override { return policy.victim(); }
    bool learns() const override { return has_memory; }
    void begin_with(std::span<double const> rates) override {
      if constexpr (has_memory) policy.begin_with(rates);
    }
    std::span<std::uint64_t const> uses() const override {
      if constexpr (has_memory) return policy.uses();
      return {};
    }
    P policy;
  };
  std::unique_ptr<Concept> self_;
};
static_assert(EvictionPolicy<AnyEviction>);

inline constexpr std::string_view eviction_names[] = {"lru", "frequency_decay", "prior_frequency"};

/// Errors  precondition for a name that is none of eviction_names.
AnyEviction make_eviction(std::string_view name);

}  // namespace tiered
