// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/values_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/compare/stat_diff.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {

std::string ValuesText(const DumpRow& row) {
  if (row.record == nullptr) return "null";
  // A value that is not a tensor is stored in each statistic.
  if (row.derived_stats) return StatText(row.stats[kMax]);
  std::string out;
  for (size_t i = 0; i < kStatCount; ++i) {
    if (i >= kUsualStatCount && row.stats[i].is_null()) continue;
    absl::StrAppend(&out, i == 0 ? "" : " ", kStatInfo[i].key, "=",
                    StatText(row.stats[i]));
  }
  absl::StrAppend(&out, " dtype=", row.dtype, " shape=", row.shape);
  const JsonValue* const md5 = row.record->Find("md5");
  if (md5 != nullptr) absl::StrAppend(&out, " md5=", PythonText(*md5));
  // In an aligned dump: the rows of the reference that this row was made of.
  const JsonValue* const of = row.record->Find("of");
  if (of != nullptr && of->is_string()) absl::StrAppend(&out, " of ", of->text);
  return out;
}

absl::string_view PlaceOf(absl::string_view entry, const DumpRow& row) {
  absl::string_view place = row.name;
  if (absl::ConsumePrefix(&place, entry)) absl::ConsumePrefix(&place, ".");
  return place.empty() ? absl::string_view(row.name) : place;
}

}  // namespace rankprobe::analysis
