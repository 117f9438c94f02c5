// SPDX-License-Identifier: Apache-2.0
// Finds the dumps under a path: one rank's directory, a step of ranks, or a
// dump of steps. A process without a rank (`proc{pid}`) that is alone in its
// step counts as rank 0. Beside ranks it is another process than they are: its
// number is its pid (the next free one, should that be a rank's). Of several
// without a rank that one job's are read (dump_jobs.h).
// Functions without state; errors name the path and the forms that are legal.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_LAYOUT_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/file_system.h"

namespace rankprobe {

struct DumpPlace {
  int64_t step = 0;
  int64_t rank = 0;
  std::string directory;
  // A process beside ranks, and the how manieth of them.
  bool process = false;
  int64_t process_index = 0;

  // "rank3", "proc4711"
  std::string Name() const;
};

struct DumpLayout {
  enum class Kind { kSingle, kRanks, kSteps };
  Kind kind = Kind::kSingle;
  bool debug = false;  // debug.json in place of dump.json
  std::string path;
  std::vector<DumpPlace> places;  // by step, then rank
  // For the user: which of several jobs is read. Empty where there is one.
  std::string note;
  // Of several jobs, one of which was chosen ("2 jobs: job 1, ..": all of them): the
  // places of the others are left out. Empty where there is one.
  std::string jobs;

  std::vector<int64_t> Steps() const;
  std::vector<int64_t> Ranks() const;
};

// `path` may be the JSON file itself. job: the number of the one that is read, where
// several jobs recorded processes without a rank; left out: the newest.
absl::StatusOr<DumpLayout> FindDumps(FileSystem* file_system,
                                     const std::string& path,
                                     std::optional<int64_t> job = std::nullopt);

// Places of the same step and rank on both sides, processes beside ranks in the
// order of their pids; places of one side only are named in `unpaired`.
// INVALID_ARGUMENT when the kinds differ or nothing pairs.
absl::StatusOr<std::vector<std::pair<DumpPlace, DumpPlace>>> PairDumps(
    const DumpLayout& target, const DumpLayout& reference,
    std::vector<std::string>* unpaired);

// What each side has, and how places that PairDumps() does not pair are compared
// all the same: in one line.
std::string PairingHint(const DumpLayout& target, const DumpLayout& reference);

// "20260131235959" of local time.
std::string TimestampText(absl::Time time);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_LAYOUT_H_
