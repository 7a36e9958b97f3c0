/// Who holds how much of a device's memory in this process, and whether the driver's figure agrees.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"
#include "tiered/memory/cuda/nvml.hpp"

namespace tiered {

/// `context` is what the driver takes for itself: the context, loaded kernels, graphs, handles. `kv_or_slots` has experts in it until keys
/// and values need the room. `other` is mapped but not yet given a use.
enum class VramUse : std::uint8_t { context, weights, kv, kv_or_slots, slots, activations, workspaces, vision, other };
inline constexpr std::size_t n_vram_uses = 9;
constexpr char const* name(VramUse use) {
  constexpr char const* names[n_vram_uses] = {"context",     "weights",    "kv",     "kv or slots", "slots",
                                              "activations", "workspaces", "vision", "other"};
  return std::size_t(use) < n_vram_uses ? names[std::size_t(use)] : "?";
}

/// Where a figure is from. `device` and `free_memory` are differences of what all programs use: others disturb them.
enum class VramSource : std::uint8_t {
  process,      ///< NVML, this process
  device,       ///< NVML, the whole device, less what others used when the ledger was made
  free_memory,  ///< no NVML: all that cudaMemGetInfo calls used, other programs' memory included, so that no budget is passed
};
constexpr char const* name(VramSource source) {
  switch (source) {
    case VramSource::process: return "NVML's figure of the process";
    case VramSource::device: return "what NVML says is used on the device, less what was used before";
    case VramSource::free_memory: return "what is not free on the device, other programs' memory included";
  }
  return "?";
}

struct VramMeasure {
  VramSource source = VramSource::process;
  std::size_t figure_bytes = 0;  ///< what this process holds, by `source`
  std::size_t ledger_bytes = 0;  ///< the same by the ledger: baseline and all uses
  std::int64_t unaccounted_bytes() const { return std::int64_t(figure_bytes) - std::int64_t(ledger_bytes); }
};

/// Counted bytes by use. Any thread.
class VramUses {
 public:
  void add(VramUse use, std::size_t bytes) noexcept { at(use).fetch_add(bytes); }
  void remove(VramUse use, std::size_t bytes) noexcept { at(use).fetch_sub(bytes); }
  std::size_t bytes(VramUse use) const { return bytes_[std::size_t(use)].load(); }
  std::size_t total_bytes() const {
    std::size_t total = 0;
    for (std::atomic<std::size_t> const& bytes : bytes_) total += bytes.load();
    return total;
  }

 private:
  std::atomic<std::size_t>& at(VramUse use) { return bytes_[std::size_t(use)]; }
  std::array<std::atomic<std::size_t>, n_vram_uses> bytes_{};
};

/// The ledger of one device in this process: what was there when it was made (the baseline: a host program's own memory), and what
/// the engines' shares added since. Any thread.
class VramLedger {
 public:
  /// The one ledger of `device`, made where none lives. Make it before the context exists, or that counts as the baseline; but a
  /// context that an earlier ledger measured stays known. With NVML, asking creates no context.
  static std::shared_ptr<VramLedger> of(int device) {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    Entry& entry = all.entries[device];
    if (std::shared_ptr<VramLedger> ledger = entry.ledger.lock()) return ledger;
    std::shared_ptr<VramLedger> ledger(new VramLedger(device, entry.known_context_bytes));
    entry.ledger = ledger;
    return ledger;
  }
  VramLedger(VramLedger const&) = delete;
  VramLedger& operator=(VramLedger const&) = delete;

  int device() const { return device_; }
  VramSource source() const {
    std::lock_guard lock(mutex_);
    return source_;
  }
  std::size_t baseline_bytes() const { return baseline_; }
  /// Whether this process had a context on the device before the ledger.
  bool had_context() const { return had_context_; }
  std::size_t bytes(VramUse use) const { return uses_.bytes(use); }
  /// All uses, without the baseline.
  std::size_t total_bytes() const { return uses_.total_bytes(); }

  /// Measures the context, once, when it has just been created. CudaDevice::open calls it.
  void note_context() {
    std::lock_guard lock(mutex_);
    if (std::exchange(context_noted_, true) || had_context_) return;
    if (source_ == VramSource::device && nvml_->process_bytes()) {  // it was not in NVML's list until it held something
      source_ = VramSource::process;
      others_ = 0;
    }
    std::size_t const now = figure_bytes(), known = baseline_ + total_bytes();
    if (now > known) {
      add(VramUse::context, now - known);
      shared_context_.fetch_add(now - known);
    }
  }
  /// Compares. Errc::device where the device or NVML no longer answers.
  VramMeasure measure() const {
    std::lock_guard lock(mutex_);
    return {source_, figure_bytes(), baseline_ + total_bytes()};
  }
  /// Lines for people: every use that has bytes, the sum, the figure beside it.
  std::string report() const {
    VramMeasure const measured = measure();
    std::string text = concat("vram of device ", device_, "\n  before the ledger  ", format_bytes(baseline_), '\n');
    for (std::size_t i = 0; i < n_vram_uses; ++i) {
      std::string const label = name(VramUse(i));
      if (bytes(VramUse(i)) != 0) text += concat("  ", label, std::string(19 - label.size(), ' '), format_bytes(bytes(VramUse(i))), '\n');
    }
    std::int64_t const off = measured.unaccounted_bytes();
    text += concat("  sum                ", format_bytes(measured.ledger_bytes), '\n');
    text += concat("  measured           ", format_bytes(measured.figure_bytes), ", ", off < 0 ? '-' : '+',
                   format_bytes(std::uint64_t(off < 0 ? -off : off)), " (", name(measured.source), ")\n");
    return text;
  }

 private:
  friend class VramShare;
  struct Entry {
    std::weak_ptr<VramLedger> ledger;
    // As the newest ledger knows it, from when it knows it on: the context outlives ledgers, and the last one may be on its way out, with
    // nobody holding it, when the next is made.
    std::atomic<std::size_t> known_context_bytes{0};
  };
  struct Registry {
    std::mutex mutex;
    std::map<int, Entry> entries;
  };
  static Registry& registry() {
    static Registry& all = *new Registry;  // ledgers may die after static objects
    return all;
  }

  VramLedger(int device, std::atomic<std::size_t>& known_context_bytes) : device_(device), known_context_bytes_(known_context_bytes) {
    char bus_id[32] = {};
    cuda_check(cudaDeviceGetPCIBusId(bus_id, int(sizeof bus_id), device), "cudaDeviceGetPCIBusId", concat("device ", device));
    nvml_ = NvmlDevice::open(bus_id);
    std::optional<std::size_t> const process = nvml_ ? nvml_->process_bytes() : std::nullopt;
    std::optional<std::size_t> const used = nvml_ ? nvml_->used_bytes() : std::nullopt;
    had_context_ = detail::primary_context_exists(device);
    source_ = process ? VramSource::process : used ? VramSource::device : VramSource::free_memory;
    if (process) {
      baseline_ = *process;
    } else if (!had_context_) {
      others_ = used.value_or(0);
    } else {  // how much of it is this process's cannot be known: all of it, so that no budget is passed
      baseline_ = figure_bytes();
    }
    if (had_context_) {
      shared_context_ = std::min(known_context_bytes.load(), baseline_);
      uses_.add(VramUse::context, shared_context_);
      baseline_ -= shared_context_;
    }
    known_context_bytes.store(shared_context_);
  }
  void add(VramUse use, std::size_t bytes) noexcept {
    uses_.add(use, bytes);
    if (use == VramUse::context) known_context_bytes_.fetch_add(bytes);
  }
  void remove(VramUse use, std::size_t bytes) noexcept {
    uses_.remove(use, bytes);
    if (use == VramUse::context) known_context_bytes_.fetch_sub(bytes);
  }
  std::size_t figure_bytes() const {
    std::optional<std::size_t> bytes;
    switch (source_) {
      case VramSource::process: bytes = nvml_->process_bytes(); break;
      case VramSource::device: bytes = nvml_->used_bytes(); break;
      case VramSource::free_memory: {
        auto const [free, total] = detail::free_and_total_bytes(device_);
        bytes = total - free;
      }
    }
    if (!bytes) throw Error(Errc::device, concat("NVML no longer says how much memory is used on device ", device_));
    return *bytes - (*bytes < others_ ? *bytes : others_);
  }

  int device_;
  std::atomic<std::size_t>& known_context_bytes_;  // the registry's, which nothing ends
  std::optional<NvmlDevice> nvml_;
  VramSource source_ = VramSource::process;
  bool had_context_ = false, context_noted_ = false;
  std::size_t baseline_ = 0, others_ = 0;
  VramUses uses_;
  std::atomic<std::size_t> shared_context_{0};  // the part of VramUse::context that belongs to no share
  std::atomic<bool> context_is_paid_{false};
  mutable std::mutex mutex_;  // source_ and measuring
};

/// How a budget is meant.
struct VramRules {
  std::size_t budget_bytes = std::numeric_limits<std::size_t>::max();
  /// The budget is NVML's figure of the process, the baseline included: for programs of ours. Else it is what the engine adds.
  bool whole_process = true;
  bool excludes_context = false;  ///< to compare with engines that do not count it
};

/// One engine's part of the ledger, with its budget. The first share that lives pays for the context (and the baseline, where its rules
/// say so). What it still holds when it dies is taken out of the ledger, but for the context: the driver keeps that. Any thread.
class VramShare {
 public:
  /// Physical memory comes in multiples of this on every device so far.
  static constexpr std::size_t granularity_bytes = 2 * MiB;
  struct Mark {
    std::size_t figure_bytes = 0, total_bytes = 0;
  };

  explicit VramShare(std::shared_ptr<VramLedger> ledger, VramRules rules = {})
      : ledger_(std::move(ledger)), rules_(rules), pays_context_(!ledger_->context_is_paid_.exchange(true)) {}
  VramShare(VramShare const&) = delete;
  VramShare& operator=(VramShare const&) = delete;
  ~VramShare() {
    for (std::size_t i = 1; i < n_vram_uses; ++i) ledger_->uses_.remove(VramUse(i), uses_.bytes(VramUse(i)));
    ledger_->shared_context_.fetch_add(uses_.bytes(VramUse::context));
    if (pays_context_) ledger_->context_is_paid_.store(false);
  }

  void add(VramUse use, std::size_t bytes) noexcept {
    uses_.add(use, bytes);
    ledger_->add(use, bytes);
  }
  void remove(VramUse use, std::size_t bytes) noexcept {
    uses_.remove(use, bytes);
    ledger_->remove(use, bytes);
  }
  /// A tier has unmapped `bytes`: they leave `other`, and, if their owner has not moved them back there, the uses before it, the last
  /// first.
  void release(std::size_t bytes) noexcept {
    for (std::size_t i = n_vram_uses; bytes != 0 && i-- > 1;) {
      std::size_t const part = std::min(bytes, uses_.bytes(VramUse(i)));
      remove(VramUse(i), part);
      bytes -= part;
    }
  }
  /// A tier adds what it maps to `other`; whoever carves the arena says with this what for.
  void move(VramUse from, VramUse to, std::size_t bytes) {
    expects(bytes <= uses_.bytes(from), "vram: a use cannot give away more than it has");
    remove(from, bytes);
    add(to, bytes);
  }

  /// Loading kernels, instantiating graphs and opening libraries takes memory that no call reports: mark() before, settle() after, and
  /// what the figure grew by beyond what was added meanwhile is charged to this share's context. Returns it. A host program that
  /// takes memory between the two is charged to the share.
  Mark mark() const {
    VramMeasure const measured = ledger_->measure();
    return {measured.figure_bytes, ledger_->total_bytes()};
  }
  std::size_t settle(Mark const& since) {
    Mark const now = mark();
    std::size_t const expected = since.figure_bytes + now.total_bytes - since.total_bytes;
    if (now.figure_bytes <= expected) return 0;
    add(VramUse::context, now.figure_bytes - expected);
    return now.figure_bytes - expected;
  }

  /// What counts against the budget now.
  std::size_t counted_bytes() const {
    std::size_t const context = uses_.bytes(VramUse::context), shared = pays_context_ ? ledger_->shared_context_.load() : 0;
    std::size_t const own = uses_.total_bytes() - context;
    return own + (rules_.excludes_context ? 0 : context + shared) + (rules_.whole_process && pays_context_ ? ledger_->baseline_bytes() : 0);
  }
  /// What the budget leaves, in whole pieces of physical memory; 0 where it is used up.
  std::size_t available_bytes() const {
    std::size_t const counted = counted_bytes(), budget = rules_.budget_bytes;
    return counted >= budget ? 0 : (budget - counted) / granularity_bytes * granularity_bytes;
  }
  std::size_t budget_bytes() const { return rules_.budget_bytes; }
  std::size_t bytes(VramUse use) const { return uses_.bytes(use); }
  std::size_t total_bytes() const { return uses_.total_bytes(); }
  bool pays_context() const { return pays_context_; }
  VramLedger& ledger() const { return *ledger_; }

 private:
  std::shared_ptr<VramLedger> ledger_;
  VramRules const rules_;
  bool const pays_context_;
  VramUses uses_;
};

}  // namespace tiered
