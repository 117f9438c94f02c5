// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/flight_ring.h"

#include <utility>

namespace rankprobe {

void FlightRing::SetLimits(uint32_t steps, uint64_t bytes) {
  max_steps_ = steps;
  max_bytes_ = bytes;
  Shrink();
}

void FlightRing::KeepMore(uint32_t steps) {
  more_steps_ = steps;
  Shrink();
}

void FlightRing::Add(std::unique_ptr<RecordBuffer> records) {
  if (max_steps_ == 0) return;
  const int64_t step = records->batch()->step();
  if (step == left_out_) return;
  if (steps_.empty() || steps_.back().over || steps_.back().step != step) {
    if (!steps_.empty()) steps_.back().over = true;
    if (more_steps_ > 0 && steps_.size() >= max_steps_ + more_steps_) {
      left_out_ = step;
      return;
    }
    steps_.emplace_back().step = step;
  }
  Step& current = steps_.back();
  if (current.dropped) return;
  const uint64_t bytes = records->ApproxBytes();
  current.bytes += bytes;
  bytes_ += bytes;
  current.buffers.push_back(std::move(records));
  Shrink();
}

void FlightRing::EndStep() {
  if (steps_.empty()) return;
  if (steps_.back().dropped) {
    steps_.pop_back();
  } else {
    steps_.back().over = true;
  }
  Shrink();
}

void FlightRing::Shrink() {
  const auto finished = [this] {
    return steps_.empty() ? 0 : steps_.size() - (steps_.back().over ? 0 : 1);
  };
  while (finished() > max_steps_ + more_steps_ ||
         (bytes_ > max_bytes_ && steps_.size() > 1)) {
    bytes_ -= steps_.front().bytes;
    steps_.pop_front();
  }
  if (bytes_ > max_bytes_ && !steps_.empty()) {
    Step& last = steps_.back();
    last.buffers.clear();
    last.dropped = true;
    bytes_ -= last.bytes;
    last.bytes = 0;
    if (last.over) steps_.pop_back();
  }
}

FlightRing::Contents FlightRing::Take() {
  Contents contents;
  while (!steps_.empty() && steps_.front().over) {
    Step& step = steps_.front();
    if (contents.steps == 0) contents.first_step = step.step;
    contents.last_step = step.step;
    ++contents.steps;
    bytes_ -= step.bytes;
    for (auto& buffer : step.buffers)
      contents.buffers.push_back(std::move(buffer));
    steps_.pop_front();
  }
  return contents;
}

}  // namespace rankprobe
