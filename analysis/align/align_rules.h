// SPDX-License-Identifier: Apache-2.0
// Rules that say which rows of a reference dump make a row of the target: the
// three outputs of q_proj, k_proj and v_proj behind one another are that of
// qkv_proj. Format: docs/formats.md, "Rules of an alignment". Immutable values.
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

// What dimension 0 of a row is.
enum class RowTokens {
  kTokens,  // the tokens of the batch
  kLast,    // one of each request: its last token
  kNone     // no tokens: a parameter
};

// Part `part` of a dimension that is `sizes` behind one another; the sizes are
// shares, [4, 1, 1] of any multiple of 6.
struct SplitRule {
  int64_t dim = 0;
  size_t part = 0;
  std::vector<int64_t> sizes;
};

struct AlignRule {
  int line = 0;  // in the file, from 1
  // Parts between dots; "{layer}" stands for any one part.
  std::vector<std::string> target;
  // With "{layer}", "{layer-1}" and "{layer+1}" of what the target's pattern
  // took. In the order of the operations: rows, split, concat, transpose.
  std::vector<std::string> reference;
  RowTokens tokens = RowTokens::kTokens;
  std::optional<SplitRule> split;  // of each reference row
  int64_t concat_dim = -1;         // where there is more than one
  std::vector<int64_t> transpose;  // a permutation of the dimensions, or empty
};

// The reference rows of one row of the target.
struct AlignMatch {
  const AlignRule* rule = nullptr;
  std::vector<std::string> reference;
};

struct AlignRules {
  std::string path;
  // Rows whose shape says how many tokens a step has.
  std::string target_tokens;
  std::string reference_tokens;
  std::vector<AlignRule> rules;

  // The first rule that fits; unset: none does.
  std::optional<AlignMatch> Find(absl::string_view target_row) const;
};

// INVALID_ARGUMENT naming file, line and what is wrong with it.
absl::StatusOr<AlignRules> ParseAlignRules(const std::string& path,
                                           const std::string& text);

// A file; or, of a name without a slash that is not a file, rules that rankprobe
// brings along.
absl::StatusOr<AlignRules> ReadAlignRules(FileSystem* file_system,
                                          const std::string& name);

// Name to text.
const std::map<std::string, std::string>& BuiltInAlignRules();

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ALIGN_ALIGN_RULES_H_
