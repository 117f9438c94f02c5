// SPDX-License-Identifier: Apache-2.0
// Are two dumps of the same experiment? Compares what their ranks said of
// themselves (run_card.json, docs/formats.md): weights, batches, random states,
// settings, versions. Functions without state. The files are not trusted.
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

// Ranks are compared with the rank of the same number. NOT_FOUND when a side has
// no run_card.json at all.
absl::StatusOr<v1::RunCardReport> CompareRunCards(FileSystem* file_system,
                                                  const DumpLayout& target,
                                                  const DumpLayout& reference);

// Whether a difference in it usually changes numbers: weights, not hostnames.
bool ChangesNumbers(absl::string_view section);

// What is to be explained by a difference of two run cards.
enum class Unlike {
  kAnything,
  kInput,     // a batch or a weight differs from the start
  kArgument,  // a value that the program's code gives
  kOwn,       // a call's outputs differ though its inputs match
  kUnclear,   // the same, but not all of its inputs could be compared
};

// The differences that can explain it, what explains most often first, at most
// `most` lines. A generator of random numbers that nothing draws from, or that
// nobody has drawn from since it was seeded, explains nothing, nor does a batch where a call's inputs match. Empty when there is
// none, no card, or other ranks.
std::vector<std::string> CardExplanations(FileSystem* file_system,
                                          const DumpLayout& target,
                                          const DumpLayout& reference,
                                          Unlike what, size_t most);

// Groups of ranks that hold the same parameters, as their programs say of all of
// them: DistributedDataParallel. Empty where none says so, or two contradict each
// other.
std::vector<std::vector<int64_t>> ReplicasByCards(FileSystem* file_system,
                                                  const DumpLayout& layout);

// "weights layer.weight, ranks 0-3: a | b"
std::string DifferenceText(const v1::RunCardReport::Difference& difference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RUN_CARD_RUN_CARD_H_
