/// What a layer of experts takes in a step of one row whose device asks the host for what is missing: see FewRouted.
#pragma once

#include "tiered/model/shard.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/hardware.hpp"

namespace tiered {

/// Rates as measured, but for hot_macs_per_thread_s.
HelpedMachine helped_machine(HardwareProfile const& h);

/// One expert, used, while host and link are busy. Seconds; bytes of weights.
struct HelpedExpert {
  double host_s = 0, gpu_s = 0;    ///< its products
  double read_s = 0, load_s = 0;   ///< the host's, where its caches have read the weights; to read them
  double fetch_s = 0, copy_s = 0;  ///< within a request, by the device; ahead, by a copy, with what it waits for before the next one
  double bytes = 0;
};

/// `one`: what a use of it costs alone, in seconds.
HelpedExpert helped_expert(HelpedMachine const& machine, Shard const& shard, PassCost const& one);

struct HelpedLayer {
  HelpedExpert expert;
  double used = 0, missing = 0;  ///< experts that the row uses; of these, on the average, what nothing but guesses brings
  double device_s = 0;           ///< the device alone, from the sum of the layer before to this one's experts
  double states_s = 0;           ///< of these, while host and link are busy with keys and values
  double link_share = 0;         ///< ShardPlan::fetched_misses
  bool reads_ahead = false;      ///< weights that guesses name into the host's caches
};

/// Averages of a layer, in experts, but for the seconds.
struct HelpedTime {
  double seconds = 0;            ///< device_s and all that comes behind it
  double waits = 0;              ///< of such layers, how many ask
  double ahead = 0;              ///< brought on guesses that are right, in time or not
  double fetched = 0;            ///< within requests
  double on_host = 0, read = 0;  ///< computed by the host; of these, whose weights its caches had read
};

/// The link copies ahead all the time, also while a request is served: as many as the layer lasts for, of which it lasts less the more are
/// brought. So either all that guesses bring at most, or what fills the link.
HelpedTime helped_time(HelpedLayer const& l);

}  // namespace tiered
