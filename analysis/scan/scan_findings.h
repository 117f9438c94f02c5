// SPDX-License-Identifier: Apache-2.0
// List of the findings of one scan. Keeps for each kind and step the first
// value, or the one that differs most. Used by one thread; the ScanInput
// outlives it.
#ifndef RANKPROBE_ANALYSIS_SCAN_SCAN_FINDINGS_H_
#define RANKPROBE_ANALYSIS_SCAN_SCAN_FINDINGS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/scan/scan.h"

namespace rankprobe::analysis {

class ScanFindings {
 public:
  explicit ScanFindings(const ScanInput& input) : input_(input) {}

  // `column` and `value` are indices of ScanInput::steps and ::values.
  void Add(ScanKind kind, size_t column, size_t value, int64_t rank, double now,
           double before);
  // Where the gradients of parameters are recorded, other gradients that move
  // while no other value does have no effect: those of activations (the row of
  // a zero vector behind a normalization, of a token that is not trained), and
  // their total, of which no part has left its course.
  void DropMovesWithoutEffect();
  // Returns a lasting finding once, and one that comes again within `least`
  // steps of the same kind's last one as one of its `others`. Call it last.
  std::vector<ScanFinding> Take(size_t least);

 private:
  struct Found {
    size_t column;
    ScanFinding finding;
  };

  const ScanInput& input_;
  std::vector<Found> found_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_SCAN_FINDINGS_H_
