/// Which experts of a layer the host computes for a block of many rows, while the link brings the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/plan/hardware.hpp"

namespace tiered {

/// What link, host and device take for a layer whose experts come in windows, host and link both busy. An expert costs the link the same
/// whatever its rows, and the host by its rows: so the host takes those with the fewest. Seconds; all 0: it takes none.
struct ExpertShare {
  double copy_s = 0;         ///< an expert to the device
  double read_s = 0;         ///< an expert on the host at least: its weights come from memory
  double product_s = 0;      ///< or else this, and for each row more:
  double product_row_s = 0;  ///< the arithmetic of many rows
  double there_row_s = 0;    ///< a row to the host
  double back_row_s = 0;     ///< its sum back, by the link that experts come by
  double lead_s = 0;         ///< from the end of a layer's experts until the host has decided on the next one's
  double lead_row_s = 0;     ///< more of that for each row: attention and router
  double device_row_s = 0;   ///< a row through a layer's experts on the device

  explicit operator bool() const { return copy_s > 0; }
  double lead(std::int32_t n_rows) const { return lead_s + double(n_rows) * lead_row_s; }
  /// An expert on the host that so many rows are routed to.
  double products(std::int32_t n_rows) const {
    double const arithmetic_s = product_s + double(n_rows) * product_row_s;
    return n_rows == 0 ? 0 : arithmetic_s > read_s ? arithmetic_s : read_s;
  }
  bool operator==(ExpertShare const&) const = default;
};

namespace detail {

struct ExpertShareField {
  char const* name;
  double ExpertShare::*seconds;
};
/// As text and JSON of plans have them.
inline constexpr ExpertShareField expert_share_fields[] = {{"copy", &ExpertShare::copy_s},
                                                           {"read", &ExpertShare::read_s},
                                                           {"product", &ExpertShare::product_s},
                                                           {"product_row", &ExpertShare::product_row_s},
                                                           {"there_row", &ExpertShare::there_row_s},
                                                           {"back_row", &ExpertShare::back_row_s},
                                                           {"lead", &ExpertShare::lead_s},
                                                           {"lead_row", &ExpertShare::lead_row_s},
                                                           {"device_row", &ExpertShare::device_row_s}};

}  // namespace detail

/// How a layer goes.
struct LayerShare {
  std::size_t n_host = 0;      ///< experts, the first ones
  std::int64_t host_rows = 0;  ///< routed to these
  double products_s = 0;       ///< on the host
  double link_s = 0;           ///< counted from the decision: until the last expert is on the device, and sums were on the link
  double host_s = 0;           ///< until its sum is on the device
};

/// `rows`: routed to each expert that the device does not have, ascending. The host takes as many of the first ones as make its sum and the
/// last expert arrive together; of equal times the fewest. Those that nobody was routed to, in any case: they cost nothing.
/// `under_way_s`: what the link still brings of the layer when this is decided.
LayerShare share_experts(ExpertShare const& share, std::span<std::int32_t const> rows, std::int32_t n_rows, double under_way_s = 0);

/// Rows that are routed to each expert, ascending. Of a text of one topic the third of the experts that it uses least has 7 % of the uses
/// (cache_hits() in plan/expert_decode.hpp); prompts have more than one: the middle between that and all alike. Assumed, not measured.
std::vector<std::int32_t> expected_rows(std::int32_t n_rows, std::int32_t n_used, std::int32_t n_experts);

/// What a share must save of the time that a layer takes without: estimates are no better.
inline constexpr double least_share_gain = 0.1;

/// How a layer is expected to go where `n_missing` of its experts, the least used, are not in VRAM; `rows`: what expected_rows() says.
/// While nobody knows who takes what, the link brings what is used most. n_host is 0 where a share does not pay.
LayerShare expected_share(ExpertShare const& share, std::span<std::int32_t const> rows, std::int32_t n_rows, std::int32_t n_missing);

/// Seconds of parts of a layer, on average over the layers, each device alone.
struct ExpertShareCosts {
  static constexpr std::int32_t few_rows = 4, some_rows = 16, many_rows = 64;  ///< most of what the host takes has no more
  double few_s = 0, some_s = 0, many_s = 0;                                    ///< an expert of so many rows on the host
  double attention_row_s = 0, experts_row_s = 0;  ///< a row through attention and router, through all experts, on the device
  double bytes = 0, row_bytes = 0;                ///< of an expert, of a row
};

/// Rates of memory are those where host and link share it. No share where a device cannot do its part.
ExpertShare make_expert_share(HardwareProfile const& hardware, ExpertShareCosts const& costs);

}  // namespace tiered
