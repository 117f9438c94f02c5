// SPDX-License-Identifier: Apache-2.0
// Comparison of two dumps' run cards, to see whether they are of the same
// experiment: the weights, batches, random states, settings and versions that
// their ranks recorded (run_card.json, docs/formats.md). Functions without
// state. The files are not trusted.
#ifndef RANKPROBE_ANALYSIS_RUN_CARD_RUN_CARD_H_
#define RANKPROBE_ANALYSIS_RUN_CARD_RUN_CARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe::analysis {

// Compares ranks of equal number. Returns NOT_FOUND if a side has no
// run_card.json at all.
absl::StatusOr<v1::RunCardReport> CompareRunCards(FileSystem* file_system,
                                                  const DumpLayout& target,
                                                  const DumpLayout& reference);

// Whether a difference in the section usually changes numbers: true for
// weights, false for hostnames.
bool ChangesNumbers(absl::string_view section);

// Kinds of differences that run cards may explain.
enum class Unlike {
  kAnything,
  kInput,     // a batch or a weight differs from the start
  kArgument,  // a value that the program's code passes
  kOwn,       // a call's outputs differ though its inputs match
  kUnclear,   // the same, but not all of its inputs could be compared
};

// Returns at most `most` lines about the differences that may explain `what`,
// the most frequent causes first. A random number generator that is not used,
// or has not been used since it was seeded, explains nothing, nor does a batch
// if a call's inputs match. Empty if there is no explanation, no card, or the
// ranks differ.
std::vector<std::string> CardExplanations(FileSystem* file_system,
                                          const DumpLayout& target,
                                          const DumpLayout& reference,
                                          Unlike what, size_t most);

// Returns the groups of ranks that hold the same parameters, if the programs of
// all of them declare it (DistributedDataParallel). Empty if none does or if
// two contradict each other.
std::vector<std::vector<int64_t>> ReplicasByCards(FileSystem* file_system,
                                                  const DumpLayout& layout);

// Returns a text such as "weights layer.weight, ranks 0-3: a | b".
std::string DifferenceText(const v1::RunCardReport::Difference& difference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RUN_CARD_RUN_CARD_H_
