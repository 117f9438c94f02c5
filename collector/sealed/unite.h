// SPDX-License-Identifier: Apache-2.0
// Merges what several collectors hold of one process, or of one step of it: a
// rank whose collector ended connects to another, and some of its frames may be
// with both. Pure functions.
#ifndef RANKPROBE_COLLECTOR_SEALED_UNITE_H_
#define RANKPROBE_COLLECTOR_SEALED_UNITE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "collector/store/run_processes.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe::sealed {

// `rows` is not empty. Only frames that none of them has are lost.
v1::IncarnationRow UniteRows(std::vector<v1::IncarnationRow> rows);

// Counts a step's records, each once, even if several collectors have it.
class StepUnion {
 public:
  // `log` is that of the collector that has the record. Its own records have
  // different orders.
  void Add(int log, const v1::Record& record);
  // `infos` are the infos of the step by log; not empty.
  v1::StepInfo Describe(const std::map<int, v1::StepInfo>& infos) const;

 private:
  std::set<uint64_t> orders_;
  v1::StepRow all_;
  std::map<int, v1::StepRow> of_log_;
};

// The order of Store::ListSteps.
bool IsStepBefore(const v1::StepInfo& a, const v1::StepInfo& b);

// Totals of a run's steps: processes, steps and records of existing ones; times
// also of deleted ones. The rules are those of a collector for its own runs.
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
