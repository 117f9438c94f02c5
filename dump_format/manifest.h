// SPDX-License-Identifier: Apache-2.0
// manifest.json: the contents of an export, and what is known to be missing.
// Not thread-safe; owned by one export.
#ifndef RANKPROBE_DUMP_FORMAT_MANIFEST_H_
#define RANKPROBE_DUMP_FORMAT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/archive.pb.h"

namespace rankprobe {

class Manifest {
 public:
  explicit Manifest(absl::string_view run) : run_(run) {}

  struct File {
    std::string path;
    uint64_t bytes = 0;
    uint64_t xxh3 = 0;
  };
  struct Place {
    int64_t step = 0;
    std::string directory;
    std::string detail;
  };

  // Everything in the export belongs to this request of a server.
  void set_request(std::string id) { request_ = std::move(id); }

  void AddFile(File file) { files_.push_back(std::move(file)); }
  // Adds the account of one exported step; its gaps become the manifest's.
  void AddLedger(std::string directory, v1::StepLedger ledger);
  // Adds a step that the rank never reported as finished, or of which data is
  // missing.
  void AddIncomplete(Place place) { incomplete_.push_back(std::move(place)); }
  // Adds a step of a rank that another process wrote too; it is not exported.
  void AddConflict(Place place) { conflicts_.push_back(std::move(place)); }
  uint64_t conflict_count() const { return conflicts_.size(); }

  // Appends all entries of `other`.
  void Append(const Manifest& other);

  size_t gap_count() const { return gap_count_; }
  size_t incomplete_count() const { return incomplete_.size(); }
  std::string ToJson() const;

 private:
  std::string run_;
  std::string request_;
  std::vector<File> files_;
  struct Account {
    std::string directory;
    v1::StepLedger ledger;
  };
  std::vector<Account> accounts_;
  size_t gap_count_ = 0;
  std::vector<Place> incomplete_;
  std::vector<Place> conflicts_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_MANIFEST_H_
