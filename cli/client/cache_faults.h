// SPDX-License-Identifier: Apache-2.0
// The part of `diagnose` for a server's key-value cache: findings of its
// witness (rankprobe/vllm/_cache_witness.py) about a step, in run_card.json, or
// about a run, in an event.
#ifndef RANKPROBE_CLI_CLIENT_CACHE_FAULTS_H_
#define RANKPROBE_CLI_CLIENT_CACHE_FAULTS_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "cli/output/diagnosis_report.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"

namespace rankprobe {

constexpr char kCacheRule[] = "kv cache";

struct CacheFaults {
  struct Fault {
    int64_t step = 0;
    int64_t rank = -1;
    // "block 12 of all 2 layers: request "a" reads its position 3 from it, .."
    std::string text;
    auto operator<=>(const Fault&) const = default;
  };
  std::set<Fault> faults;
  // Blocks checked in recorded steps; 0 if there was no witness or nothing was
  // read.
  int64_t blocks_checked = 0;
  bool has_witness = false;

  // Adds the faults of another step; equal faults are kept once.
  void Add(CacheFaults other);
  // Adds the faults that concern `request`, as reader or writer, to `report`;
  // all faults if `request` is empty.
  void AddTo(const std::string& request, DiagnosisReport* report) const;
};

// Reads the faults in the run cards of these places.
absl::StatusOr<CacheFaults> ReadCacheFaults(FileSystem* file_system,
                                            const DumpLayout& layout);

// Reads the faults in the events of a run, including those of steps that were
// not recorded. Only of these processes; of all if `incarnations` is empty.
absl::StatusOr<CacheFaults> AskCacheFaults(
    const Client& client, const std::string& run,
    const std::set<uint64_t>& incarnations);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_CACHE_FAULTS_H_
