// SPDX-License-Identifier: Apache-2.0
// Matches between entries of the target and of the reference dump, and between
// their rows. Immutable after Make; the readers outlive the match.
#ifndef RANKPROBE_ANALYSIS_COMPARE_ENTRY_MATCH_H_
#define RANKPROBE_ANALYSIS_COMPARE_ENTRY_MATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "analysis/compare/api_mapping.h"
#include "analysis/compare/layer_mapping.h"
#include "analysis/compare/verdict.h"
#include "dump_format/dump_reader.h"

namespace rankprobe::analysis {

// Maps names of the target to names of the reference, in the order of the file.
using NameMap = std::vector<std::pair<std::string, std::string>>;

struct MatchOptions {
  bool fuzzy = false;
  NameMap cells;  // "fc1.Dense" -> "fc1.Linear": parts of module names
  NameMap rows;   // complete row names; their dtype is not checked
  ApiRules apis;
  // Matches layers by scope and rules. Requires readers with construct.json;
  // the dtype is not checked.
  std::optional<LayerRules> layers;
  // Where the sides have different activation checkpoints, recomputed calls are
  // left out of their numbers; wrappers of checkpoints and FSDP are left out of
  // the names of both.
  bool without_checkpoints = false;
};

// Reads a YAML file of `name: name` lines. Returns INVALID_ARGUMENT with the
// file and the reason.
absl::StatusOr<NameMap> ReadNameMap(FileSystem* file_system,
                                    const std::string& path);

// Returns an entry name with its module renamed: by the rule for the complete
// module if there is one, else by all rules for parts of it, in order.
std::string MapCell(absl::string_view name, const NameMap& cells);

class EntryMatch {
 public:
  static EntryMatch Make(const DumpReader& target, const DumpReader& reference,
                         const MatchOptions& options);

  // Returns the index of the partner of the target's entry at index `target`.
  std::optional<size_t> ReferenceOf(size_t target) const {
    return reference_[target] < 0
               ? std::nullopt
               : std::optional<size_t>(static_cast<size_t>(reference_[target]));
  }
  // Whether an activation checkpoint computed the entry again, and the other
  // side has other checkpoints.
  bool IsRecomputedInTarget(size_t target) const {
    return target < target_recomputed_.size() && target_recomputed_[target];
  }
  bool IsRecomputedInReference(size_t reference) const {
    return reference < reference_recomputed_.size() &&
           reference_recomputed_[reference];
  }

 private:
  std::vector<int64_t> reference_;
  // Empty where both sides have the same activation checkpoints, or none.
  std::vector<bool> target_recomputed_;
  std::vector<bool> reference_recomputed_;
};

// Compares one target entry with its partner, row by row. The object is reused
// for all entries to keep its buffers.
class EntryComparison {
 public:
  EntryComparison(FileSystem* file_system, const DumpReader* target,
                  const DumpReader* reference, const MatchOptions* options)
      : file_system_(file_system),
        target_(target),
        reference_(reference),
        options_(options) {}

  // Loads and compares an entry. If `reference_index` is unset, no row has a
  // partner.
  absl::Status Load(size_t target_index, std::optional<size_t> reference_index);

  absl::string_view entry() const { return entry_; }
  absl::Span<const RowPair> pairs() const { return pairs_; }
  // Rows of the reference's entry at places that the target's entry does not
  // have. Empty if rules or a row map determine the places.
  absl::Span<const DumpRow* const> only_in_reference() const {
    return only_in_reference_;
  }
  Verdict verdict() const { return verdict_; }

 private:
  absl::Status PairBySuffix(absl::string_view reference_entry);
  absl::Status PairByMap();

  FileSystem* const file_system_;
  const DumpReader* const target_;
  const DumpReader* const reference_;
  const MatchOptions* const options_;
  absl::string_view entry_;
  JsonDocument target_record_;
  JsonDocument reference_record_;
  std::vector<DumpRow> target_rows_;
  std::vector<DumpRow> reference_rows_;
  // Entries of the reference that a row map refers to.
  struct Mapped {
    JsonDocument record;
    std::vector<DumpRow> rows;
  };
  absl::flat_hash_map<size_t, std::unique_ptr<Mapped>> mapped_;
  std::vector<RowPair> pairs_;
  std::vector<const DumpRow*> only_in_reference_;
  Verdict verdict_ = Verdict::kPass;
};

// Compares the .pt files of a pair and sets its metrics.
absl::Status CompareRowData(FileSystem* file_system, const DumpReader& target,
                            const DumpReader& reference, RowPair* pair);

// Whether rows of these dtypes may be partners: they are one type, or both are
// floating-point types of 16 or 32 bits.
bool DtypesArePartners(const DumpRow& target, const DumpRow& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_COMPARE_ENTRY_MATCH_H_
