// SPDX-License-Identifier: Apache-2.0
// Numbers, steps and names of a grid as texts of tables and csv files. Pure
// functions.
#ifndef RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "rankprobe/v1/query.pb.h"

namespace rankprobe {

// Formats a number as dump.json does: with enough digits to restore it.
std::string ExactText(double value);
// Formats a number for a table; "-" if there is none.
std::string ShortText(const std::optional<double>& value);
// Returns "17" or "16-31".
std::string StepsText(const v1::GridHead& head, int column);
// Whether all steps of the answer were recorded completely and still exist.
bool IsWhole(const v1::GridHead& head);
// Returns a line about the incomplete steps; empty if there are none.
std::string NotWholeText(const v1::GridHead& head);
// Returns the exit code of the command: kNotFound if nothing matches, kPartial
// if the answer is incomplete.
int ExitCodeOf(const v1::GridHead& head, absl::string_view match);
// Returns a line about tensors without a number in the answer; empty if all
// have one.
std::string WithoutText(const v1::GridHead& head, const std::string& statistic);
// Returns a line about the rows after the first `printed`; empty if there are
// none.
std::string MoreRowsText(const v1::GridHead& head, uint64_t printed);
// Returns a csv field for any text. Text that a spreadsheet would run as a
// formula is marked as text.
std::string CsvField(const std::string& text);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_GRID_TEXT_H_
