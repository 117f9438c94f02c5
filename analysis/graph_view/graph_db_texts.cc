// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/graph_db_texts.h"

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {

std::string NodeColors(DumpMode mode) {
  // Only the shape of the tree is compared.
  if (mode == DumpMode::kStructure) {
    return R"({"#C7C7C7": {"value": [], )"
           R"("description": "No node of the other side matches", )"
           R"("accuracy_level": "unmatched node"}})";
  }
  constexpr char kText[] =
      "Error of the inputs and outputs of this node; the redder, the further "
      "the target is from the reference";
  // Colours, ranges and levels are msprobe's, and the plugin searches by the
  // same ranges. Nodes have the value 0, 0.5 or 1, one in each range
  // (docs/analysis.md, "Verdicts").
  return absl::StrCat(
      R"({"#FFFCF3": {"value": [0, 0.3], "description": ")", kText,
      R"(", "accuracy_level": "pass"}, "#FFDC7F": {"value": [0.3, 0.6], )",
      R"("description": ")", kText,
      R"(", "accuracy_level": "warning"}, "#FF704D": {"value": [0.6, 1], )",
      R"("description": ")", kText,
      R"(", "accuracy_level": "error"}, "#C7C7C7": {"value": [], )",
      R"("description": "No node of the other side matches", )",
      R"("accuracy_level": "unmatched node"}})");
}

std::string ToolTip(DumpMode mode, StatSet stats) {
  // The keys are msprobe's, the texts are in English (docs/analysis.md,
  // "Intended differences from msprobe 26.2").
  if (mode == DumpMode::kMd5) {
    return R"({"md5": "CRC-32 of the data: equal data has equal checksums"})";
  }
  if (mode == DumpMode::kStatistics) {
    std::string out = "{";
    for (size_t i = 0; i < kStatCount; ++i) {
      if (!stats.Has(i)) continue;
      absl::StrAppend(&out, i == 0 ? "" : ", ", "\"", kStatInfo[i].difference,
                      "\": \"", kStatInfo[i].help, "\"");
    }
    out.push_back('}');
    return out;
  }
  return R"({"One Thousandth Err Ratio": )"
         R"("share of elements with a relative error below 1/1000", )"
         R"("Five Thousandths Err Ratio": )"
         R"("share of elements with a relative error below 5/1000", )"
         R"("EucDist": "length of the difference of the two tensors", )"
         R"("Cosine": "cosine of the angle between the two tensors", )"
         R"("MaxAbsErr": "largest absolute difference", )"
         R"("MaxRelativeErr": "largest relative difference"})";
}

}  // namespace rankprobe::analysis
