// Finds the dumps under a path: one rank's directory, a step of ranks, or a
// dump of steps; processes without a rank (`proc{pid}`) count as rank 0.
// Functions without state; errors name the path and the forms that are legal.
#ifndef RANKPROBE_ANALYSIS_DUMP_LAYOUT_H_
#define RANKPROBE_ANALYSIS_DUMP_LAYOUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/file_system.h"

namespace rankprobe::analysis {

struct DumpPlace {
  int64_t step = 0;
  int64_t rank = 0;
  std::string directory;
};

struct DumpLayout {
  enum class Kind { kSingle, kRanks, kSteps };
  Kind kind = Kind::kSingle;
  bool debug = false;  // debug.json in place of dump.json
  std::string path;
  std::vector<DumpPlace> places;  // by step, then rank

  std::vector<int64_t> Steps() const;
  std::vector<int64_t> Ranks() const;
};

// `path` may be the JSON file itself.
absl::StatusOr<DumpLayout> FindDumps(FileSystem* file_system,
                                     const std::string& path);

// Places of the same step and rank on both sides; places of one side only are
// named in `unpaired`. INVALID_ARGUMENT when the kinds differ or nothing pairs.
absl::StatusOr<std::vector<std::pair<DumpPlace, DumpPlace>>> PairDumps(
    const DumpLayout& target, const DumpLayout& golden,
    std::vector<std::string>* unpaired);

// "20260131235959" of local time.
std::string TimestampText(absl::Time time);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_DUMP_LAYOUT_H_
