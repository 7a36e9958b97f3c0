/// What each operation takes: one plain struct per op, for every backend. [device-visible]
///
/// Common to all: pointers lie where the table's device can read them and are only borrowed; all must live until a later
/// record() of the same queue is done. Arrays are row-major and dense unless a stride is named. Rows are tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/attention_args.hpp"

namespace tiered {

enum class Activation : std::uint8_t {
  silu,        ///< x / (1 + e^-x)
  gelu_tanh,   ///< GELU in its tanh approximation
  quick_gelu,  ///< x / (1 + e^(-1.702 x))
  gelu_erf,    ///< GELU itself: x / 2 * (1 + erf(x / sqrt 2))
};
enum class Gating : std::uint8_t { softmax, sigmoid };

/// out[t, :] = scale * table[tokens[t], :].
struct EmbedArgs {
  void const* table = nullptr;           ///< [vocab_size, dim] in the dtype of the table entry
  std::int32_t const* tokens = nullptr;  ///< [n_rows], each in [0, vocab_size)
  float* out = nullptr;                  ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
  float scale = 1;
};

/// y[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight. In place where y == x.
struct RmsNormArgs {
  float const* x = nullptr;       ///< [n_rows, dim]
  float const* weight = nullptr;  ///< [dim], or null for ones
  float* y = nullptr;             ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
  float eps = 0;
};

/// y[t, :] = (x[t, :] - mean) / sqrt(variance + eps) * weight + bias, with mean and variance (over dim, not dim - 1) of x[t, :]. In place
/// where y == x.
struct LayerNormArgs {
  float const* x = nullptr;       ///< [n_rows, dim]
  float const* weight = nullptr;  ///< [dim], or null for ones
  float const* bias = nullptr;    ///< [dim], or null for zeros
  float* y = nullptr;             ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
  float eps = 0;
};

/// Rows of f32 to the form that the table's products take (kernels/format/activation.hpp), once per row, shared by all products
/// of that row.
struct QuantizeArgs {
  float const* x = nullptr;  ///< [n_rows, dim]
  void* y = nullptr;         ///< [n_rows, dim] in the form of the table entry, activation_bytes(...)
  std::int32_t n_rows = 0, dim = 0;
};

/// Memory that ops to come will probably read, to be brought into caches: a hint. KernelTable::read_ahead: while the caller goes on; the
/// next op on the same queue that the team shares out ends it, or another of these, which may have no parts; until then the memory must be
/// there. KernelTable::read_when_idle: by threads that wait for others, or for the next op, until another of these; of no parts, nobody
/// reads any more when it is done.
struct ReadAheadArgs {
  static constexpr int max_parts = 24;
  struct Part {
    void const* data = nullptr;
    std::size_t bytes = 0;
  };
  Part const* parts = nullptr;  ///< [n_parts], read when the op begins
  std::int32_t n_parts = 0;     ///< at most max_parts
};

/// y[t, r] = bias[r] + sum_k x[t, k] * w[r, k]. A row's result depends on nothing but that row of x and w.
struct MatmulArgs {
  void const* w = nullptr;      ///< [rows, dim] in the weight type of the table entry; dim % block_elems == 0
  void const* x = nullptr;      ///< [n_tokens, dim] as the table says for the entry: KernelTable::activation or fine_activation
  float const* bias = nullptr;  ///< [rows] or null
  float* y = nullptr;           ///< [n_tokens, rows], rows y_stride apart
  std::int32_t n_tokens = 0, rows = 0, dim = 0;
  std::int64_t y_stride = 0;  ///< elements; >= rows
};

/// Products of the same rows, in one go: q, k and v.
struct MatmulSetArgs {
  static constexpr int max_parts = 3;
  MatmulArgs parts[max_parts];  ///< n_tokens the same in all; y of one is x of none
  DType types[max_parts] = {};  ///< of the weights
  std::int32_t n_parts = 0;
};

/// gate.y = act(x gate^T) * (x up^T): the first half of a feed-forward network. gate.x and up.x are the same rows, in two forms where
/// the types read different activations. What is in up.y afterwards is undefined.
struct GatedMatmulArgs {
  MatmulArgs gate, up;  ///< same rows, n_tokens, y_stride
  DType gate_type{}, up_type{};
  Activation activation = Activation::silu;
};

/// What few rows go through on their way into products, and the products, in one go: rows as they are in f32, normed and converted by
/// whoever reads them. With x' = x, or x / sqrt(mean(x^2) + eps) * norm_weight where `norm`:
///   store  parts[i].y[t, :] = w_i x'[t] + bias_i
///   add    parts[i].y[t, :] += w_i x'[t] + bias_i
///   gate   parts[0].y = act(w_0 x') * (w_1 x'), no biases
struct FusedMatmulArgs {
  static constexpr int max_parts = 3;
  enum class Then : std::uint8_t { store, add, gate };
  struct Part {
    void const* w = nullptr;      ///< [rows, dim] in `type`
    float const* bias = nullptr;  ///< [rows] or null
    float* y = nullptr;           ///< [n_tokens, rows], rows y_stride apart; not x
    std::int64_t y_stride = 0;
    std::int32_t rows = 0;
    DType type{};
  };
  float const* x = nullptr;            ///< [n_tokens, dim]
  float const* norm_weight = nullptr;  ///< [dim], or null for ones
  Part parts[max_parts];
  std::int32_t n_parts = 0, n_tokens = 0, dim = 0;  ///< n_tokens <= KernelTable::fused_rows
  float eps = 0;
  bool norm = false;
  Then then = Then::store;
  Activation activation = Activation::silu;
};

/// out = act(gate) * up, elementwise. out may be gate or up.
struct GatedArgs {
  float const* gate = nullptr;
  float const* up = nullptr;
  float* out = nullptr;
  std::int64_t n = 0;
  Activation activation = Activation::silu;
};

/// x = act(x), elementwise, in place.
struct ActivateArgs {
  float* x = nullptr;
  std::int64_t n = 0;
  Activation activation = Activation::silu;
};

/// y += x, elementwise.
struct AddArgs {
  float const* x = nullptr;
  float* y = nullptr;
  std::int64_t n = 0;
};

/// y[i, :] = x[index[i], :].
struct GatherArgs {
  float const* x = nullptr;
  std::int32_t const* index = nullptr;  ///< [n_rows]
  float* y = nullptr;                   ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
};

/// y[t, :] += sum over j, ascending, of share[t, j] * table[index[t, j], :]: four neighbours of a grid, weighted. A tap whose share is 0 is
/// read all the same.
struct AddTapsArgs {
  static constexpr int n_taps = 4;
  float const* table = nullptr;         ///< [any number of rows, dim]
  std::int32_t const* index = nullptr;  ///< [n_rows, n_taps], each a row of the table
  float const* share = nullptr;         ///< [n_rows, n_taps]
  float* y = nullptr;                   ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
};

/// The router's choice: the n_used experts with the largest score (bias added for the choice only; on equality the lower id;
/// a score that is not a number ranks last), listed in ascending order of id, with weights score / (sum of chosen, if
/// normalise) * scale. Ids are always distinct and valid.
struct RouteArgs {
  float const* logits = nullptr;  ///< [n_tokens, n_experts]
  float const* bias = nullptr;    ///< [n_experts] or null
  std::int32_t* ids = nullptr;    ///< [n_tokens, n_used]
  float* weights = nullptr;       ///< [n_tokens, n_used]
  std::int32_t n_tokens = 0, n_experts = 0, n_used = 0;
  Gating gating = Gating::softmax;
  bool normalise = true;
  float scale = 1;
};

/// One expert and the slots that go through it; a slot is token * n_used + place.
struct ExpertGroup {
  void const* gate = nullptr;     ///< [hidden_dim, dim]
  void const* up = nullptr;       ///< [hidden_dim, dim]
  void const* down = nullptr;     ///< [dim, hidden_dim]
  std::int32_t first = 0, n = 0;  ///< range in ExpertsArgs::slots
};

/// y[slot, :] = down(act(gate(x[token])) * up(x[token])) for every slot of every group; other slots are not touched.
/// A slot's result does not depend on the grouping, but by rounding on a GPU, where few rows are cut into more parts the fewer slots
/// there are.
struct ExpertsArgs {
  float const* x = nullptr;             ///< [n_tokens, dim]
  float* y = nullptr;                   ///< [n_tokens * n_used, dim]
  ExpertGroup const* groups = nullptr;  ///< [n_groups]
  std::int32_t const* slots = nullptr;  ///< slot numbers, by group
  std::byte* workspace = nullptr;       ///< experts_workspace_bytes(...)
  std::int32_t n_groups = 0, n_tokens = 0, n_used = 0, dim = 0, hidden_dim = 0;
  std::int32_t n_slots = 0;  ///< sum of the groups' n
  DType gate_type{}, up_type{}, down_type{};
  Activation activation = Activation::silu;
};

/// Bytes for lists of the slots and their groups; x as gate and up read it, in 8-bit blocks or in rows of halves of all tokens, in panels
/// of all slots, or two of those; gate, up, and their product as `down` reads it, of all slots.
TIERED_HD constexpr std::size_t experts_workspace_bytes(std::int32_t n_tokens, std::int32_t n_slots, std::int32_t dim,
                                                        std::int32_t hidden_dim) {
  // Rows in 8-bit blocks take 5/4 bytes an element, in panels 2, one for each slot; ends are rounded up to 64 bytes.
  std::size_t const x = (std::size_t(dim) * 2 + std::size_t(dim) * 5 / 4 + 256) * std::size_t(n_tokens > n_slots ? n_tokens : n_slots);
  std::size_t const h = (std::size_t(hidden_dim) * 8 + std::size_t(hidden_dim) * 2 + 192) * std::size_t(n_slots);
  return x + h + 4096;
}

/// The same for whatever the router chose, where all experts of the layer are on one device: the op groups the slots itself, so that
/// nobody has to wait for the ids.
struct RoutedExpertsArgs {
  ExpertsArgs experts;                   ///< n_slots = n_tokens * n_used; groups, slots and n_groups are set by the op
  std::int32_t const* ids = nullptr;     ///< [n_tokens, n_used]
  ExpertGroup const* weights = nullptr;  ///< [n_experts]: where each expert's matrices are
  ExpertGroup* groups = nullptr;         ///< room for n_experts; an expert that nobody chose may be left out, or be there with n = 0
  std::int32_t* slots = nullptr;         ///< room for n_slots
  std::int32_t* counts = nullptr;        ///< room for n_experts + 1
  std::int32_t n_experts = 0;
  std::int32_t layer = 0;  ///< for messages

  // Where KernelTable::fused_rows is not 0:
  float const* slot_weights = nullptr;  ///< [n_tokens, n_used], or null. Else sum[t, :] += sum over j of slot_weights[t, j] * (what
                                        ///< y[t * n_used + j, :] would be), in one long sum whose order is the kernel's, the same for
                                        ///< all rows of a call; and what is in y afterwards is undefined
  float* sum = nullptr;                 ///< [n_tokens, dim]; may be experts.x where that is normed
  float const* norm_weight = nullptr;   ///< with `norm`, and n_tokens <= fused_rows: experts.x is normed first, as in FusedMatmulArgs
  float eps = 0;
  bool norm = false;
  RouteArgs route{};  ///< with logits: the op routes first. route.ids and route.weights are `ids` and, where not null, `slot_weights`;
                      ///< n_tokens, n_experts and n_used those of the op
  bool absent_slots = false;  ///< with slot_weights, n_tokens <= fused_rows and gate and up of one type: slots whose id is -1, or whose
                              ///< expert has null for its matrices, add nothing: they are computed elsewhere
};

/// Rows that use all experts of a layer, which come window after window. KernelTable::group_slots lists their slots once, when the ids are
/// known; KernelTable::expert_window then takes ranges of experts, in ascending order: each looks at its own slots alone, so a window costs
/// little more than its products.
///
/// y[slot, :] as in ExpertsArgs; or where there is a sum, sum[t, :] += slot_weights[slot] * (what y[slot, :] would be), one slot after
/// another in ascending order of experts: the same bits wherever windows and pieces end.
struct ExpertWindowArgs {
  ExpertsArgs experts;                   ///< y, x and what describes them: of all rows; n_slots: how many are computed at once, a piece of
                                         ///< a window, for which the workspace has expert_window_bytes(n_slots, ...); no groups, no slots
  std::int32_t const* ids = nullptr;     ///< [n_tokens, n_used], those of a token differ
  std::int32_t const* ranks = nullptr;   ///< [n_experts], a permutation, read by group_slots; null: 0, 1, 2, ... In all else an expert's
                                         ///< number is its rank: so windows take experts in any order, and whoever takes a range of ranks
                                         ///< leaves the others to somebody else
  ExpertGroup const* weights = nullptr;  ///< [n_experts]: where matrices are; of a window's experts, when that runs
  std::int32_t* begins = nullptr;        ///< [n_experts + 1]: where each expert's slots begin in `slots`
  std::int32_t* slots = nullptr;         ///< [n_tokens * n_used]: by expert, those of one ascending
  std::int32_t* places = nullptr;        ///< [n_tokens * n_used]: slots[places[slot]] = slot; so a token's ascend with its experts
  std::byte* x_rows = nullptr;           ///< expert_rows_bytes(...): x as the products take it
  std::int32_t n_experts = 0;
  std::int32_t layer = 0;  ///< for messages
  std::int32_t first_expert = 0, end_expert = 0;
  float const* slot_weights = nullptr;  ///< [n_tokens, n_used], with sum
  float* sum = nullptr;                 ///< [n_tokens, dim], or null
  bool from_zero = false;               ///< with sum: group_slots sets it to 0
};

/// Rows in 16-bit floats with their factors, or in 8-bit blocks.
TIERED_HD constexpr std::size_t expert_rows_bytes(std::int32_t n_tokens, std::int32_t dim) {
  return std::size_t(activation_bytes(DType::act_f16_rows, std::uint64_t(n_tokens), std::uint64_t(dim)));
}

/// Of a slot of a piece: lists; gate, and its product with up as `down` reads it; and in one place, first up, and x in panels, then y.
TIERED_HD constexpr std::size_t expert_window_slot_bytes(std::int32_t dim, std::int32_t hidden_dim) {
  std::size_t const d = std::size_t(dim), h = std::size_t(hidden_dim);
  return 6 * h + (4 * d > 4 * h + 2 * d ? 4 * d : 4 * h + 2 * d) + 768;  // ends of rows and panels are rounded up
}
inline constexpr std::size_t expert_window_fixed_bytes = 4096;
TIERED_HD constexpr std::size_t expert_window_bytes(std::int32_t n_slots, std::int32_t dim, std::int32_t hidden_dim) {
  return std::size_t(n_slots) * expert_window_slot_bytes(dim, hidden_dim) + expert_window_fixed_bytes;
}

/// The least of a token's places [n_used] in [first, end); -1: there is none.
TIERED_HD constexpr std::int32_t next_place(std::int32_t const* places, std::int32_t n_used, std::int32_t first, std::int32_t end) {
  std::int32_t least = -1;
  for (std::int32_t j = 0; j < n_used; ++j) {
    if (places[j] >= first && places[j] < end && (least < 0 || places[j] < least)) least = places[j];
  }
  return least;
}

/// Copies small parts, a few KB in all, in one go: between any places that the table's device can address, page-locked host memory
/// among them where it maps that. Sooner than a copy engine's, and in the queue's own order.
struct TransferArgs {
  static constexpr int max_parts = 8;
  struct Part {
    void const* from = nullptr;  ///< at a multiple of 4 bytes, as `to`
    void* to = nullptr;          ///< overlaps no other part
    std::int32_t bytes = 0;      ///< a multiple of 4
  };
  Part parts[max_parts];
  std::int32_t n_parts = 0;
};

/// With which a device waits for its host within a step. The host's part of a layer takes some milliseconds at most; who takes longer may
/// stand behind another thread's call of the driver that waits for the device.
inline constexpr std::uint64_t help_patience_ns = 100'000'000;

/// What passes between a device that waits within a step and the host that helps it: memory that both address. Each side writes its own
/// fields, the number last; numbers go up.
struct HelpMail {
  static constexpr int max_parts = 192;

  // the device's
  alignas(64) std::uint64_t request = 0;  ///< the newest one's number
  std::int32_t layer = 0;                 ///< it is of
  std::uint32_t missing = 0;              ///< a bit for each place of the row whose expert was not there
  std::uint32_t timed_out = 0;            ///< not 0: in this step the host was waited for in vain
  // the host's
  alignas(64) std::uint64_t step = 0;     ///< numbers of a step's requests are step * 1024 + layer + 1
  std::uint32_t given_up = 0;             ///< not 0: nobody answers any more; kernels end, with results that nobody may use
  alignas(64) std::uint64_t decided = 0;  ///< the request whose parts are listed
  std::int32_t n_parts = 0;
  alignas(64) std::uint64_t answered = 0;  ///< the request whose sum, if there is one, is in HelpArgs::host_sum
  std::int32_t has_sum = 0;
  TransferArgs::Part parts[max_parts];
};
/// On the device: a copy of HelpMail::step; the rest is 0 when a step begins. The step's newest request whose parts are listed.
struct HelpState {
  std::uint64_t step = 0, decided = 0;
  std::uint64_t failed = 0;  ///< the step's newest request that has no answer
  std::uint64_t row = 0;     ///< of whom RouterAheadArgs::row is, numbered as its request would be
};

/// What a layer's HelpArgs leave behind, in the host's memory, to be read once the step has ended. Times are the device's own clock.
struct HelpLog {
  static constexpr int max_used = 16;
  std::int32_t ids[max_used] = {};
  std::uint32_t missing = 0;  ///< as HelpMail::missing; 0 where there was no request
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint64_t asked_ns = 0;                     ///< 0 where there was no request: then the next two are of an earlier one
  std::uint64_t decided_ns = 0, answered_ns = 0;  ///< when the device saw it, or stopped waiting
  std::uint64_t copied_ns = 0;                    ///< when parts of many bytes were there, or it was known that there are none; of an
                                                  ///< earlier request without `copies`
};

/// What a layer's router makes of a row that is yet to reach the layer. One word of the host's memory, so that it is seen whole.
struct alignas(8) ExpertGuess {
  float score = 0;
  std::uint32_t step = 0;  ///< the lower half of HelpState::step; of another step: nothing yet
};

/// Guesses for later layers, to the host: a layer's row through their norms and routers. They are hints: a device may leave them out, where
/// rows are irregular. They go with the op that ends the layer's experts (HelpArgs), and not with its router, since whoever comes behind a
/// launch waits for all of it; they need not wait for what that op waits for, but for RouterAheadArgs::row.
struct GuessArgs {
  static constexpr int max_layers =
      3;  ///< in synthetic routing 88, 86 and 82 % of what one, two and three layers on choose is guessed; a
          ///< copy takes as long as a layer that waits for nothing, so three layers have time for two or three
  struct Layer {
    float const* w = nullptr;            ///< [n_experts, dim]
    float const* norm_weight = nullptr;  ///< [dim], or null for ones
    ExpertGuess* guesses = nullptr;      ///< [n_experts], in the host's memory
  };
  Layer layers[max_layers];
  float const* row = nullptr;  ///< [dim]: RouterAheadArgs::row
  float eps = 0;
  std::int32_t n_layers = 0;
};

/// Ends the routed experts of one row: hidden += sum, sum = 0. Where an expert that the router chose has null for its matrices, first asks
/// the host, and waits: posts the row as its experts take it, ids and weights; copies the parts that the host lists, while the host
/// computes; then hidden += sum, += host_sum. So the host need not come by where all experts are there.
/// A host that does not answer blocks the queue: given_up lets it go, and so does time: then nothing that is listed later counts, and
/// later requests of the step are not waited for. With n_used 0 only the log's begin_ns is written.
struct HelpArgs {
  HelpMail* mail = nullptr;              ///< in the host's memory
  HelpState* state = nullptr;            ///< step is that of the mail
  ExpertGroup const* experts = nullptr;  ///< [n_experts]: where they are, as for whoever computed `sum`
  std::int32_t const* ids = nullptr;     ///< [n_used]
  float const* weights = nullptr;        ///< [n_used]
  RmsNormArgs row{};                     ///< x [dim], y [dim]: receives the row as experts take it, where there is a request. Without a
                                         ///< weight and with eps < 0: x as it is
  float* sum = nullptr;                  ///< [dim]
  float* hidden = nullptr;               ///< [dim]; may be row.x
  std::int32_t* fetched_ids = nullptr;   ///< [n_used]: -1 each, unless a part says otherwise
  HelpLog* log = nullptr;                ///< in the host's memory, as what is called host_*
  std::int32_t* host_ids = nullptr;      ///< [n_used]; this and the next two are written before a request is posted, and only then
  float* host_weights = nullptr;         ///< [n_used]
  float* host_row = nullptr;             ///< [dim]: as row.y
  float const* host_sum = nullptr;       ///< [dim]: read after HelpMail::answered, where has_sum
  std::int32_t n_used = 0, n_experts = 0, dim = 0, layer = 0;
  GuessArgs guesses{};                           ///< of n_experts scores each, posted before the host is waited for
  bool copies = false;                           ///< whether parts of many bytes may be listed
  std::uint64_t patience_ns = help_patience_ns;  ///< with which a request is waited for
};

/// A router's scores for one row of a step that is helped; and beside them, in the same launch:
///   - where the layer's experts are now, once for all who ask. The host's copies enter experts in the device's table at any time, while
///     kernels run: the weights first, then up and down, then the gate. Who computes what is there and who asks for what is not must have
///     seen the same, so both read the copy;
///   - the row, for GuessArgs, which come when it may have been overwritten, or before whoever is between them has ended.
struct RouterAheadArgs {
  FusedMatmulArgs own;  ///< the scores: one part of n_experts rows, one token, `store`; or no part, where somebody else computes them
  ExpertGroup const* experts = nullptr;  ///< [n_experts]: the device's table
  ExpertGroup* seen = nullptr;           ///< [n_experts]: receives it; null for all three matrices where an expert was not there
  float* row = nullptr;                  ///< [dim]: receives own.x; null where nobody guesses
  HelpState* state = nullptr;            ///< HelpState::row, behind the row
  std::int32_t n_experts = 0, layer = 0;
};

/// As HelpMail, for a device that asks for attention.
struct AttentionMail {
  // the device's
  alignas(64) std::uint64_t request = 0;  ///< the newest one's number
  std::int32_t layer = 0;                 ///< it is of
  std::uint32_t timed_out = 0;
  // the host's
  alignas(64) std::uint64_t step = 0;  ///< numbers of a step's requests are step * 1024 + layer + 1
  std::int32_t read = 0;               ///< PositionShare::read of the step, which the device takes with its number
  std::uint32_t given_up = 0;
  alignas(64) std::uint64_t answered = 0;  ///< the request whose part is in HelpAttentionArgs::host_part
};

/// What a layer's HelpAttentionArgs leave behind, in the host's memory. Times are the device's own clock.
struct AttentionHelpLog {
  std::uint64_t begin_ns = 0;  ///< q is there
  std::uint64_t asked_ns = 0;  ///< 0 where there was no request
  std::uint64_t own_ns = 0;    ///< the device's own part is done
  std::uint64_t answered_ns = 0, end_ns = 0;
};

/// Attention of one row to keys and values of which the last ones lie in the host's memory, in three ops within a step that was enqueued
/// as a whole. KernelTable::attention_ask posts q and raises a request, where the host has positions at all; attention, with the same
/// `share`, attends to the device's, and what it stored before of the row's own keys and values is in the host's memory by the time of the
/// request; KernelTable::attention_answer waits for the host's part and adds it as MergeAttentionArgs does: out = (out, host_part).
/// Waiting ends as that of HelpArgs does: then `out` stays the device's own part.
struct HelpAttentionArgs {
  AttentionMail* mail = nullptr;        ///< in the host's memory, as the log and what is called host_*
  std::uint64_t const* step = nullptr;  ///< on the device: a copy of AttentionMail::step
  KvRow const* row = nullptr;           ///< [1]
  float const* q = nullptr;             ///< [n_heads, head_dim] as AttentionArgs::q
  float* out = nullptr;                 ///< [n_heads, head_dim]: AttentionArgs::out
  float const* log_sum_exp = nullptr;   ///< [n_heads]: AttentionArgs::log_sum_exp
  AttentionHelpLog* log = nullptr;
  float* host_q = nullptr;                  ///< [n_heads, head_dim]: written before a request is posted, and only then
  float const* host_part = nullptr;         ///< [n_heads, head_dim]; this and the next are read after AttentionMail::answered
  float const* host_log_sum_exp = nullptr;  ///< [n_heads]
  std::int32_t n_heads = 0, head_dim = 0, layer = 0;
  std::int32_t window = 0;
  PositionShare share{};
  std::uint64_t patience_ns = help_patience_ns;

  TIERED_HD constexpr bool asks(std::int32_t position) const {
    std::int32_t const first = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
    return share.host_begin(first, position) <= position;
  }
};

/// ids[t] = the index of the largest of values[t, :]; of equal ones the least. Not-a-number is less than all numbers.
struct ArgmaxArgs {
  float const* values = nullptr;  ///< [n_rows, n]
  std::int32_t* ids = nullptr;    ///< [n_rows]
  std::int32_t n_rows = 0, n = 0;
};

/// out[t, :] = sum over j, ascending, of weights[t, j] * y[t * n_used + j, :]: a fixed order, whatever device computed which slot.
struct CombineArgs {
  float const* y = nullptr;        ///< [n_tokens * n_used, dim]
  float const* weights = nullptr;  ///< [n_tokens, n_used]
  float* out = nullptr;            ///< [n_tokens, dim]
  std::int32_t n_tokens = 0, n_used = 0, dim = 0;
};

}  // namespace tiered
