// SPDX-License-Identifier: Apache-2.0
// Packs of msprobe's config_check (a zip of packages, environment,
// hyperparameters, and the statistics of weights and batches by step and rank):
// are two of them of the same experiment? Functions without state. The files are
// not trusted.
//
// A pack has the whole environment, secrets too: of names that are not known to
// be harmless neither name nor value is told.
#ifndef RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_
#define RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/io/file_system.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe::analysis {

bool IsConfigPack(absl::string_view path);

// INVALID_ARGUMENT with the path for what is not a pack; a member that cannot be
// read is named in the report, and the others are compared.
absl::StatusOr<v1::RunCardReport> CompareConfigPacks(
    FileSystem* file_system, const std::string& target,
    const std::string& reference);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RUN_CARD_CONFIG_PACK_H_
