// SPDX-License-Identifier: Apache-2.0
// The reference of config.json (tensor.bench_path) of one step: shape and md5
// of every tensor that is itself a positional input or an output of a forward,
// not inside of a container. Answers whether a call of this process differs
// from it.
//
// Ownership: the ReferenceComparer's. Not thread-safe.
// Failure: a reference that is missing, too large or malformed is an error of
// LoadDirectory, after which the reference is empty; the input is not trusted.
// Nothing throws.
#ifndef RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_DUMP_H_
#define RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_DUMP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/plan.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/agent.pb.h"

namespace rankprobe {

// Returns INVALID_ARGUMENT if the plan names a reference directory that is not
// one. Constructors check this; steps in it may still be missing later.
absl::Status CheckReferencePath(const Plan& plan, FileSystem* file_system);

class ReferenceDump {
 public:
  // A reference beyond these limits is refused.
  static constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
  static constexpr size_t kMaxEntries = 1000000;
  static constexpr size_t kMaxTensors = 4000000;
  static constexpr size_t kMaxDimensions = 64;
  static constexpr size_t kMaxNameBytes = 4096;

  // Replaces the contents by those of
  // {directory}/step{step}/rank{rank}/dump.json; if the rank is unknown, of the
  // only proc* directory there. Returns NOT_FOUND, DATA_LOSS (not a dump.json),
  // RESOURCE_EXHAUSTED (beyond a limit), or FAILED_PRECONDITION (not recorded
  // with summary_mode md5).
  absl::Status LoadDirectory(FileSystem* file_system,
                             const std::string& directory, int64_t step,
                             std::optional<int64_t> rank);

  void Clear();
  // Adds an entry. Returns RESOURCE_EXHAUSTED beyond a limit.
  absl::Status Add(const v1::ReferenceEntry& entry);
  // Call after the last Add: returns FAILED_PRECONDITION if no tensor has an
  // md5.
  absl::Status CheckUsable() const;

  size_t entries() const { return entries_.size(); }
  bool Has(absl::string_view entry) const { return Find(entry) != nullptr; }

  // Whether the reference has the entry with exactly these tensor inputs: all
  // of them, no other, equal in shape and md5.
  bool InputsMatch(absl::string_view entry, const v1::ValueList& inputs) const;
  // Describes, for a person, the first output of equal shape and another md5.
  std::optional<std::string> Difference(absl::string_view entry,
                                        const v1::ValueList& outputs) const;

 private:
  struct Tensor {
    uint32_t position = 0;
    std::optional<uint32_t> crc32;
    std::vector<int64_t> shape;
  };
  struct Entry {
    std::vector<Tensor> inputs, outputs;
  };

  const Entry* Find(absl::string_view entry) const;

  absl::flat_hash_map<std::string, Entry> entries_;
  size_t tensors_ = 0;
  size_t with_md5_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_REFERENCE_REFERENCE_DUMP_H_
