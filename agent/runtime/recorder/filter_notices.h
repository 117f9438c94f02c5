// SPDX-License-Identifier: Apache-2.0
// Notices, printed once, about filters that leave nothing to record. The texts
// are those of the Python package
// (agent/python/rankprobe/_frontend/notices.py).
//
// Ownership: one per debugger. Not thread-safe: the training's thread. Never
// fails; returns nothing or one line, which the caller prints.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_FILTER_NOTICES_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_FILTER_NOTICES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/config/plan.h"

namespace rankprobe {

class FilterNotices {
 public:
  // Called after a start() under `plan` that records nothing; `rank` is absent
  // if unknown.
  std::optional<std::string> Started(const std::shared_ptr<const Plan>& plan,
                                     std::optional<int64_t> rank,
                                     bool single_process);
  // Called after a stop() of a step that recorded: of `seen` forwards,
  // `matched` passed the filters.
  std::optional<std::string> Stopped(const std::shared_ptr<const Plan>& plan,
                                     uint64_t seen, uint64_t matched,
                                     int64_t step);

 private:
  // Each notice is given once for each plan.
  bool IsFirst(const std::shared_ptr<const Plan>& plan, const char* notice);

  std::shared_ptr<const Plan> plan_;
  std::set<std::string> told_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_FILTER_NOTICES_H_
