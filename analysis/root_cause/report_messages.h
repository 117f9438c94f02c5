// SPDX-License-Identifier: Apache-2.0
// The answers of the analysis as messages (rankprobe/v1/analysis.proto), which
// the command line prints and Python converts to dicts. Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_REPORT_MESSAGES_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_REPORT_MESSAGES_H_

#include <string>

#include "analysis/root_cause/first_divergence.h"
#include "analysis/root_cause/overflow_check.h"
#include "analysis/root_cause/replicas.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe::analysis {

v1::DivergenceReport ToMessage(const DivergenceReport& report);
v1::ReplicaReport ToMessage(const ReplicaReport& report);
// `file` is the path of the details; empty if they were not written.
v1::OverflowReport ToMessage(const OverflowFindings& findings,
                             const std::string& file);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_REPORT_MESSAGES_H_
