// SPDX-License-Identifier: Apache-2.0
#include "cli/output/grid_text.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/exit_codes.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {

std::string ExactText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return absl::StrFormat("%.17g", value);
}

std::string ShortText(const std::optional<double>& value) {
  if (!value.has_value()) return "-";
  // The sign of a NaN is not significant.
  return std::isnan(*value) ? "nan" : absl::StrFormat("%.5g", *value);
}

std::string StepsText(const v1::GridHead& head, int column) {
  return head.first_steps(column) == head.last_steps(column)
             ? absl::StrCat(head.first_steps(column))
             : absl::StrCat(head.first_steps(column), "-",
                            head.last_steps(column));
}

bool IsWhole(const v1::GridHead& head) {
  return head.incomplete_rank_steps() + head.deleted_rank_steps() == 0;
}

std::string NotWholeText(const v1::GridHead& head) {
  if (IsWhole(head)) return "";
  return absl::StrCat("of ", head.rank_steps(), " rank-steps ",
                      head.incomplete_rank_steps(), " are incomplete, ",
                      head.deleted_rank_steps(),
                      " more were deleted: rankprobe ledger\n");
}

int ExitCodeOf(const v1::GridHead& head, absl::string_view match) {
  const bool has_steps = head.steps() > 0 || !IsWhole(head);
  if (head.tensors() == 0 && (!match.empty() || !has_steps)) return kNotFound;
  return IsWhole(head) ? kOk : kPartial;
}

std::string WithoutText(const v1::GridHead& head,
                        const std::string& statistic) {
  if (head.tensors() == 0 && head.steps() == 0)
    return "no such step or rank is recorded; rankprobe status --steps lists "
           "those that are\n";
  if (head.tensors() == 0) {
    return absl::StrCat("no tensor matches in ",
                        Counted(head.steps(), "recorded step"),
                        "; rankprobe query --names lists the "
                        "names\n");
  }
  if (head.tensors_without() == 0) return "";
  return absl::StrCat("without ", statistic, ": ", head.tensors_without(),
                      " of ", Counted(head.tensors(), "tensor"), "\n");
}

std::string MoreRowsText(const v1::GridHead& head, uint64_t printed) {
  if (printed >= head.rows()) return "";
  return absl::StrCat(Counted(head.rows() - printed, "more row"),
                      ": narrow them with a pattern or --rows "
                      "module, or --limit 0\n");
}

std::string CsvField(const std::string& text) {
  const std::string visible = VisibleText(text);
  const bool formula = !visible.empty() && std::string("=+-@").find(
                                               visible[0]) != std::string::npos;
  return absl::StrCat("\"", formula ? "'" : "",
                      absl::StrReplaceAll(visible, {{"\"", "\"\""}}), "\"");
}

}  // namespace rankprobe
