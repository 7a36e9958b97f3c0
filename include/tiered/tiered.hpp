/// All of tiered for programs that run models: no CUDA, Eigen, Asio or JSON behind it, and
/// no simulated device (tiered/sim.hpp). Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include "tiered/core/config.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/engine/sampler.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/model/transformer.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/frequency_decay.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/plan/placements/all_vram.hpp"
#include "tiered/plan/placements/attention_first.hpp"
#include "tiered/plan/placements/seconds_per_byte.hpp"
#include "tiered/plan/placements/stream_all.hpp"
#include "tiered/plan/plan_io.hpp"
#include "tiered/version.hpp"
