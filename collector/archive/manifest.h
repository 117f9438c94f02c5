// manifest.json: what an export holds and what it knows to be missing.
// Not thread-safe; owned by one export.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_MANIFEST_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

class Manifest {
 public:
  explicit Manifest(absl::string_view run) : run_(run) {}

  struct File {
    std::string path;
    uint64_t bytes = 0;
    uint64_t xxh3 = 0;
  };
  struct Gap {
    int64_t step = 0;
    std::string directory;  // "rank3"
    std::string entry;      // empty: not one entry
    std::string reason;     // "AGENT_BUDGET", "NOT_STORED", ...
    uint64_t records = 0;
    uint64_t payloads = 0;
    std::string detail;
  };
  struct Place {
    int64_t step = 0;
    std::string directory;
    std::string detail;
  };

  void AddFile(File file) { files_.push_back(std::move(file)); }
  void AddGap(Gap gap) { gaps_.push_back(std::move(gap)); }
  // The rank never said that it had finished the step, or not all of it is
  // here.
  void AddIncomplete(Place place) { incomplete_.push_back(std::move(place)); }
  // Another process wrote the same step of the same rank; it is not exported.
  void AddConflict(Place place) { conflicts_.push_back(std::move(place)); }

  size_t gap_count() const { return gaps_.size(); }
  size_t incomplete_count() const { return incomplete_.size(); }
  std::string ToJson() const;

 private:
  const std::string run_;
  std::vector<File> files_;
  std::vector<Gap> gaps_;
  std::vector<Place> incomplete_;
  std::vector<Place> conflicts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_MANIFEST_H_
