// SPDX-License-Identifier: Apache-2.0
// Packs of msprobe's config_check: a zip of packages, environment,
// hyperparameters, and the statistics of weights and batches by step and rank.
// Two packs are compared to see whether they are of the same experiment.
// Functions without state. The files are not trusted.
//
// A pack contains the complete environment, including secrets. Variables whose
// names are not known to be harmless are therefore reported neither by name nor
// by value.
#ifndef RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_
#define RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe::analysis {

// Whether the path ends in ".zip".
bool IsConfigPack(absl::string_view path);

// Returns INVALID_ARGUMENT with the path if a file is not a pack. A member that
// cannot be read is listed in the report; the others are compared.
absl::StatusOr<v1::RunCardReport> CompareConfigPacks(
    FileSystem* file_system, const std::string& target,
    const std::string& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_
