// SPDX-License-Identifier: Apache-2.0
// Values that differ between ranks although the ranks are replicas. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_SCAN_PARTED_RANKS_H_
#define RANKPROBE_ANALYSIS_SCAN_PARTED_RANKS_H_

#include <cstddef>

#include "analysis/scan/replicated_values.h"
#include "analysis/scan/scan.h"
#include "analysis/scan/scan_findings.h"

namespace rankprobe::analysis {

// Reports the step from which the ranks no longer agree on the value, an index
// of ScanInput::values, if they agreed before.
void FindParting(const ScanInput& input, const ReplicatedValues& replicated,
                 size_t value, ScanFindings& found);

// Reports the values on which ranks never agree, although they agree in each
// step on nearly all values of that kind: a layer that is not reduced.
void FindNotAlike(const ScanInput& input, const ReplicatedValues& replicated,
                  ScanFindings& found);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_SCAN_PARTED_RANKS_H_
