// SPDX-License-Identifier: Apache-2.0
// What run cards say, for the terminal. Functions without state.
#ifndef RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_

#include <string>

#include "common/io/file_system.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

// On stdout. all: every difference, not the first of each section.
void PrintRunCards(const v1::RunCardReport& report, bool all);

// The head of a comparison: one line on stdout when the two dumps are of
// different experiments, by what usually changes numbers.
void PrintCardDifference(FileSystem* file_system, const std::string& target,
                         const std::string& reference);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_
