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

// On stdout. all: every difference, not the first of each section.
void PrintRunCards(const v1::RunCardReport& report, bool all);

// Behind a comparison: what the two dumps say of themselves that can explain its
// differences, on stdout. Nothing where there is none.
void PrintCardExplanations(FileSystem* file_system, const DumpLayout& target,
                           const DumpLayout& reference, analysis::Unlike what);

// The same of a first-divergence, as lines; none where nothing differs.
std::vector<std::string> ExplanationsOf(
    FileSystem* file_system, const DumpLayout& target,
    const DumpLayout& reference, const analysis::DivergenceReport& report);

// Lines of CardExplanations.
inline constexpr size_t kShownExplanations = 3;
void PrintExplanations(const std::vector<std::string>& lines);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_RUN_CARD_TEXT_H_
