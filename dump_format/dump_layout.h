// SPDX-License-Identifier: Apache-2.0
// Finds the dumps under a path: one rank's directory, a step of ranks, or a
// dump of steps. A process without a rank (`proc{pid}`) that is alone in its
// step counts as rank 0. If the step has ranks too, it is a separate process,
// and its number is its pid (or the next free number if that is a rank's). Of
// several processes without a rank, those of one job are read (dump_jobs.h).
// Functions without state; errors name the path and the accepted forms.
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
  // Whether this is a process without a rank next to ranks, and its index among
  // those.
  bool process = false;
  int64_t process_index = 0;

  // "rank3", "proc4711"
  std::string Name() const;
};

struct DumpLayout {
  enum class Kind { kSingle, kRanks, kSteps };
  Kind kind = Kind::kSingle;
  bool debug = false;  // debug.json instead of dump.json
  std::string path;
  std::vector<DumpPlace> places;  // by step, then rank
  // Names the job that is read, if there are several. Empty otherwise.
  std::string note;
  // The number of jobs, of which one was chosen ("2 jobs: job 1, .." lists all
  // of them); the places of the others are left out. Empty if there is only
  // one.
  std::string jobs;

  std::vector<int64_t> Steps() const;
  std::vector<int64_t> Ranks() const;
};

// `path` may be the JSON file itself. `job`: the number of the job to read if
// several jobs recorded processes without a rank; if absent, the newest.
absl::StatusOr<DumpLayout> FindDumps(FileSystem* file_system,
                                     const std::string& path,
                                     std::optional<int64_t> job = std::nullopt);

// Pairs places of the same step and rank on both sides; processes next to ranks
// pair in the order of their pids. Places of one side only are listed in
// `unpaired`. INVALID_ARGUMENT if the kinds differ or nothing pairs.
absl::StatusOr<std::vector<std::pair<DumpPlace, DumpPlace>>> PairDumps(
    const DumpLayout& target, const DumpLayout& reference,
    std::vector<std::string>* unpaired);

// Describes in one line what each side has, and how to compare places that
// PairDumps() does not pair.
std::string PairingHint(const DumpLayout& target, const DumpLayout& reference);

// "20260131235959" of local time.
std::string TimestampText(absl::Time time);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_LAYOUT_H_
