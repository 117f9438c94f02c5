// SPDX-License-Identifier: Apache-2.0
// Numbers, steps and names of a grid as texts of tables and csv files. Pure
// functions.
#ifndef RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// As dump.json has them: enough digits to get the number back.
std::string ExactText(double value);
// For a table; "-" for nothing.
std::string ShortText(const std::optional<double>& value);
// "17", or "16-31".
std::string StepsText(const v1::GridHead& head, int column);
// Whether all steps of the answer were recorded completely and still exist.
bool IsWhole(const v1::GridHead& head);
// A line of text about the incomplete steps; empty: there are none.
std::string NotWholeText(const v1::GridHead& head);
// Exit code of the command: kNotFound if nothing matches, kPartial if the
// answer is incomplete.
int ExitCodeOf(const v1::GridHead& head, absl::string_view match);
// The line about tensors that have no number in the answer; empty: all have one.
std::string WithoutText(const v1::GridHead& head, const std::string& statistic);
// The line about rows behind the `printed` first; empty: there are none.
std::string MoreRowsText(const v1::GridHead& head, uint64_t printed);
// A field of a csv file, whatever a name holds; one that a spreadsheet would
// take for a formula is text.
std::string CsvField(const std::string& text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_
