// SPDX-License-Identifier: Apache-2.0
// Merges what several collectors hold of one process, or of one step of it: a
// rank whose collector went comes to another, and some of its frames may be
// with both. Pure functions.
#ifndef RANKPROBE_COLLECTOR_SEALED_UNITE_H_
#define RANKPROBE_COLLECTOR_SEALED_UNITE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "collector/store/run_processes.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe::sealed {

// At least one. Frames are lost that none of them has.
v1::IncarnationRow UniteRows(std::vector<v1::IncarnationRow> rows);

// Counts a step's records, each once, whoever has it.
class StepUnion {
 public:
  // `log`: of the collector that has it. Its own records are all different.
  void Add(int log, const v1::Record& record);
  // `infos`: what each of them says of the step, by log, of at least one.
  v1::StepInfo Describe(const std::map<int, v1::StepInfo>& infos) const;

 private:
  std::set<uint64_t> orders_;
  v1::StepRow all_;
  std::map<int, v1::StepRow> of_log_;
};

// In the order of Store::ListSteps.
bool IsStepBefore(const v1::StepInfo& a, const v1::StepInfo& b);

// What a run's steps come to: processes, steps, records of those that are there; times
// also of those that were deleted. As a collector counts its own.
class RunCounter {
 public:
  void Add(const v1::StepInfo& step);
  void Describe(v1::RunInfo* run) const;

 private:
  RunProcesses processes_;
  std::set<int64_t> steps_;
  int64_t first_ns_ = INT64_MAX, last_ns_ = 0;
  uint64_t records_ = 0;
};

}  // namespace rankprobe::sealed

#endif  // RANKPROBE_COLLECTOR_SEALED_UNITE_H_
