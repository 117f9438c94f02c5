// SPDX-License-Identifier: Apache-2.0
// Counts of the ranks, processes and jobs that recorded the steps of a run. Not
// thread-safe.
#ifndef RANKPROBE_COLLECTOR_STORE_RUN_PROCESSES_H_
#define RANKPROBE_COLLECTOR_STORE_RUN_PROCESSES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

class RunProcesses {
 public:
  void Add(const v1::StepInfo& step);
  void Describe(v1::RunInfo* run) const;

 private:
  absl::flat_hash_set<uint64_t> incarnations_;
  uint64_t without_rank_ = 0;
  // Ranks, and processes without a rank, each with the jobs it belonged to.
  std::map<std::string, std::set<std::string>> places_;
  // Jobs of the processes without a rank, by host: each host has its own name
  // for one job.
  std::map<std::string, std::set<std::string>> jobs_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_RUN_PROCESSES_H_
