/// Forward declarations of public names, for headers that only pass them on. Constrained templates are not among them.
#pragma once

#include <cstdint>

namespace tiered {

// core/
enum class DType : std::uint32_t;
enum class Errc : std::uint8_t;
enum class SequenceId : std::uint32_t;
enum class ShardId : std::uint32_t;
enum class Tier : std::uint8_t;
enum class WeightId : std::uint32_t;
struct DTypeInfo;
struct DeviceId;
class Error;
struct Range;
struct Shape;
struct SourceLocation;
class SplitMix64;

// memory/
class AnyTier;
class Arena;
struct Block;
class Buffer;
class BulkCopy;
struct BulkCopyOptions;
struct CopyPiece;
class CudaAddresses;
struct CudaDevice;
struct CudaDeviceOptions;
class ForeignLane;
struct LaneCounter;
class LaneSet;
class LaneTask;
struct LinkClock;
class LinkPace;
class MemcpyEngine;
class NvmlDevice;
class PageToucher;
class PageableTier;
class PinnedTier;
struct RegisterOptions;
class RegisteredMapping;
class RegisteredTier;
class RegisteredRange;
class SlotPool;
class StreamBulkCopy;
class StreamCopyEngine;
struct StreamCopyOptions;
class StreamLane;
struct StridedCopy;
class ThreadCopyEngine;
struct Ticket;
class VramLedger;
struct VramMeasure;
struct VramRules;
class VramShare;
enum class VramSource : std::uint8_t;
class VramTier;
enum class VramUse : std::uint8_t;
class VramUses;

// io/
enum class GgufType : std::uint32_t;
enum class TokenType : std::uint8_t;
class BytePairModel;
struct ChatMessage;
struct ChatOptions;
class ChatTemplate;
struct ChatTokens;
struct DecodeOptions;
struct EncodeOptions;
class GgufFile;
struct GgufTensor;
class GgufValue;
class GgufWriter;
class InFile;
class MemorySource;
class MmapFile;
struct PreTokenizer;
class PreadSource;
struct ReadOptions;
class SentencePieceModel;
class StreamDecoder;
class Tokenizer;
struct Utf8Char;
class Vocab;
struct VocabData;

// kernels/
enum class Activation : std::uint8_t;
enum class Gating : std::uint8_t;
enum class Isa : std::uint8_t;
enum class RopeKind : std::uint8_t;
struct AddArgs;
struct ArgmaxArgs;
struct AttentionArgs;
struct AttentionInputArgs;
struct BF16;
struct CombineArgs;
class CpuBackend;
struct CpuOptions;
struct CpuQueue;
class CudaBackend;
struct CudaBackendOptions;
class CudaGraph;
struct CudaQueue;
struct DecodeAttentionArgs;
struct EmbedArgs;
struct ExpertGroup;
struct ExpertWindowArgs;
struct ExpertsArgs;
struct F16;
struct F32;
struct FusedMatmulArgs;
struct GatedArgs;
struct GatedMatmulArgs;
struct GatherArgs;
struct IQ4_NL;
struct IQ4_XS;
struct KernelTable;
struct KvRow;
struct KvTable;
struct KvWriteArgs;
struct MXFP4;
struct MatmulArgs;
struct MatmulSetArgs;
struct MergeAttentionArgs;
struct Q2_K;
struct Q3_K;
struct Q4_0;
struct Q4_1;
struct Q4_K;
struct Q5_0;
struct Q5_1;
struct Q5_K;
struct Q6_K;
struct Q8_0;
struct QuantizeArgs;
struct Queue;
struct RmsNormArgs;
struct RopeArgs;
struct RouteArgs;
struct RoutedExpertsArgs;
class Team;
struct TeamActivity;
struct AttentionHelpLog;
struct AttentionMail;
struct HelpArgs;
struct HelpAttentionArgs;
struct HelpCounters;
struct HelpLog;
struct HelpMail;
struct HelpState;
struct PositionShare;
struct TransferArgs;

// model/
enum class FeedForwardKind : std::uint8_t;
enum class MixerKind : std::uint8_t;
enum class ShardKind : std::uint8_t;
struct Activations;
struct Architecture;
struct AttendRequest;
struct AttentionConfig;
struct Batch;
class ExecContext;
struct ExpertsConfig;
struct ExpertsRequest;
class KvCache;
struct LayerConfig;
struct LayerState;
struct LayerWeights;
struct ModelConfig;
struct ModelWeights;
struct ProductRequest;
struct RopeTable;
struct Row;
struct Rows;
struct Shard;
struct ShardTable;
struct Step;
class Transformer;
struct Weight;

// plan/
enum class ActionKind : std::uint8_t;
enum class WeightClass : std::uint8_t;
struct Action;
struct ActionTime;
struct AllVram;
struct AnalyticCost;
class AnyEviction;
class AnyPlacement;
class AnyPrefetch;
struct AttentionFirst;
struct Budget;
struct Capabilities;
class DecodePrefillTiers;
struct DeviceRates;
struct Estimate;
class Estimator;
struct ExpertLayer;
struct ExpertLayers;
struct FormatRates;
class FrequencyDecay;
struct HardwareProfile;
struct HitPoint;
struct HostAttention;
class Lru;
struct MatmulRates;
struct MutualRates;
struct PassCost;
struct PassCosts;
struct Placement;
struct Placements;
struct PlanRequest;
struct PlannerInput;
class PriorFrequency;
struct RateCurve;
struct RatePoint;
struct ReadAttention;
struct RingPrefetch;
class ScratchBytes;
struct SecondsPerByte;
struct ShardPlan;
struct StreamAll;
struct TierPlan;
class VramAccount;

// pipeline/
enum class TraceLane : std::uint8_t;
struct ActivationLayout;
struct BlockRow;
class ByteRing;
class CopyLane;
class Executor;
struct ExecutorParts;
class ExpertAddresses;
class ExpertCache;
class ExpertFlow;
struct ExpertsEnvironment;
class FewRouted;
class HelpedAttention;
struct KvStream;
class ModelRef;
struct PlanImage;
class RoutedExperts;
struct RoutedRows;
struct RowLimits;
class Scratch;
class ScratchMeter;
class Side;
class StepContext;
struct TraceEntry;
struct VramLayout;

// profile/
enum class ProfileSource : std::uint8_t;
struct AttentionShape;
struct ExpertUses;
struct ExpertUsesText;
struct KnownExpertUses;
struct MeasureInput;
struct ProfileOptions;
struct ProfileResult;
struct ProfileText;

// engine/
enum class ContextFull : std::uint8_t;
enum class EndReason : std::uint8_t;
class BoundedTrace;
class CancelToken;
class Conversation;
struct CpuPolicies;
struct CudaMachine;
struct CudaPolicies;
struct EngineOptions;
struct EnginePlans;
struct EngineStats;
struct ExpertPrior;
struct LoadStep;
class LoadTimes;
struct GenerationEvent;
struct GenerationOptions;
struct IdleSum;
struct LayerIdle;
struct LogitBias;
class Logits;
class Logprobs;
struct MachineOptions;
struct NullTrace;
struct PromptUse;
struct RecordingTrace;
class Sampler;
struct SamplerOptions;
class Sequence;
struct SimPolicies;
class StopStrings;
struct TokenLogprob;
struct TraceEvent;
struct TraceStep;
template <class E>
class Generation;
template <class P, class M>
class Engine;
template <class Host, class Device, class Copy>
struct Machine;
template <class P>
struct PolicyValues;

// sim/
enum class FaultKind : std::uint8_t;
class Faults;
class SimBackend;
class SimClock;
struct SimCopy;
class SimCopyEngine;
struct SimCopyOptions;
struct SimOptions;
struct SimSpan;
class SimTier;
template <class Source>
class FaultyReads;

}  // namespace tiered
