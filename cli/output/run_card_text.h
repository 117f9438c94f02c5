// SPDX-License-Identifier: Apache-2.0
// Text of run cards for the terminal. Functions without state.
#ifndef RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_

#include <string>
#include <vector>

#include "analysis/root_cause/first_divergence.h"
#include "analysis/run_card/run_card.h"
#include "common/io/file_system.h"
#include "dump_format/dump_layout.h"
#include "rankprobe/v1/analysis.pb.h"

namespace rankprobe {

// Prints on stdout all differences, or only the first of each section.
void PrintRunCards(const v1::RunCardReport& report, bool all);

// Prints on stdout, after a comparison, the differences of the run cards that
// may explain it. Prints nothing if there are none.
void PrintCardExplanations(FileSystem* file_system, const DumpLayout& target,
                           const DumpLayout& reference, analysis::Unlike what);

// Returns such lines for a first-divergence; none if nothing differs.
std::vector<std::string> ExplanationsOf(
    FileSystem* file_system, const DumpLayout& target,
    const DumpLayout& reference, const analysis::DivergenceReport& report);

// Largest number of lines that CardExplanations returns.
inline constexpr size_t kShownExplanations = 3;
void PrintExplanations(const std::vector<std::string>& lines);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_
