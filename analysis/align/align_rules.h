// SPDX-License-Identifier: Apache-2.0
// Rules that say which rows of a reference dump form a row of the target: the
// concatenated outputs of q_proj, k_proj and v_proj are that of qkv_proj.
// Format: docs/formats.md, "Rules of an alignment". Immutable values.
#ifndef RANKPROBE_ANALYSIS_ALIGN_ALIGN_RULES_H_
#define RANKPROBE_ANALYSIS_ALIGN_ALIGN_RULES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

// Meaning of dimension 0 of a row.
enum class RowTokens {
  kTokens,  // the tokens of the batch
  kLast,    // one of each request: its last token
  kNone     // no tokens: a parameter
};

// Selects part `part` of a dimension that consists of consecutive parts of
// `sizes`. The sizes are shares: [4, 1, 1] splits any multiple of 6.
struct SplitRule {
  int64_t dim = 0;
  size_t part = 0;
  std::vector<int64_t> sizes;
};

struct AlignRule {
  int line = 0;  // in the file, from 1
  // Components of the name, which dots separate; "{layer}" matches any one
  // component.
  std::vector<std::string> target;
  // Names in which "{layer}", "{layer-1}" and "{layer+1}" are replaced
  // according to what the target's pattern matched. The operations are applied
  // in this order: rows, split, concat, transpose.
  std::vector<std::string> reference;
  RowTokens tokens = RowTokens::kTokens;
  std::optional<SplitRule> split;  // of each reference row
  int64_t concat_dim = -1;         // if there are several rows
  std::vector<int64_t> transpose;  // a permutation of the dimensions, or empty
};

// The reference rows that form one row of the target.
struct AlignMatch {
  const AlignRule* rule = nullptr;
  std::vector<std::string> reference;
};

struct AlignRules {
  std::string path;
  // Names of the rows whose shape gives the number of tokens of a step.
  std::string target_tokens;
  std::string reference_tokens;
  std::vector<AlignRule> rules;

  // Returns the first rule that matches, or nullopt if none does.
  std::optional<AlignMatch> Find(absl::string_view target_row) const;
};

// Returns INVALID_ARGUMENT with the file, the line and the reason if `text` is
// not valid.
absl::StatusOr<AlignRules> ParseAlignRules(const std::string& path,
                                           const std::string& text);

// Reads a file of rules. A name without a slash that is not a file selects one
// of the built-in sets of rules.
absl::StatusOr<AlignRules> ReadAlignRules(FileSystem* file_system,
                                          const std::string& name);

// Maps the name of each built-in set of rules to its text.
const std::map<std::string, std::string>& BuiltInAlignRules();

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGN_RULES_H_
