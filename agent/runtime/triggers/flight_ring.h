// SPDX-License-Identifier: Apache-2.0
// The flight recorder's memory: records of the last steps, oldest dropped
// first. Not thread-safe: guarded by the TriggerWatcher's lock.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_FLIGHT_RING_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_FLIGHT_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "agent/runtime/queue/buffers.h"

namespace rankprobe {

class FlightRing {
 public:
  // With 0 steps, nothing is kept.
  void SetLimits(uint32_t steps, uint64_t bytes);
  // Keeps this many steps more, within the same bytes. Unless it is 0, a full
  // ring refuses later steps instead of dropping the first ones, which show the
  // fault.
  void KeepMore(uint32_t steps);

  // Adds records of the step in progress. A step is kept completely or not at
  // all: one that alone exceeds the limit is dropped, with its later records.
  void Add(std::unique_ptr<RecordBuffer> records);
  // Ends the step in progress: it counts from now on.
  void EndStep();

  struct Contents {
    std::vector<std::unique_ptr<RecordBuffer>> buffers;  // oldest first
    uint32_t steps = 0;
    int64_t first_step = 0;
    int64_t last_step = 0;
  };
  // Takes the steps that have ended; the one in progress stays.
  Contents Take();

  uint64_t bytes() const { return bytes_; }
  size_t steps() const { return steps_.size(); }

 private:
  struct Step {
    int64_t step = 0;
    uint64_t bytes = 0;
    bool over = false;
    bool dropped = false;
    std::vector<std::unique_ptr<RecordBuffer>> buffers;
  };

  void Shrink();

  uint32_t max_steps_ = 0;
  uint32_t more_steps_ = 0;
  uint64_t max_bytes_ = 0;
  uint64_t bytes_ = 0;
  // The last step that was refused; its later records are refused, too.
  std::optional<int64_t> left_out_;
  std::deque<Step> steps_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_FLIGHT_RING_H_
