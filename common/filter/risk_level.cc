// SPDX-License-Identifier: Apache-2.0
// Risk classes of APIs. data/risk_level.inc lists the names (core: kept at
// CORE; low: dropped at FOCUS).
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "common/filter/call_filter.h"
#include "common/records/entry_names.h"

namespace rankprobe {
namespace {

struct Tables {
  absl::flat_hash_set<absl::string_view> core, low;
};

const Tables& RiskTables() {
  static const Tables* const tables = new Tables{{
#define CORE(name) name,
#define LOW(name)
#include "common/filter/data/risk_level.inc"
#undef CORE
#undef LOW
                                                 },
                                                 {
#define CORE(name)
#define LOW(name) name,
#include "common/filter/data/risk_level.inc"
#undef CORE
#undef LOW
                                                 }};
  return *tables;
}

}  // namespace

bool RiskLevelKeeps(RiskLevel level, absl::string_view entry) {
  if (level == RiskLevel::kAll) return true;
  // All APIs of these families are CORE.
  for (const absl::string_view family :
       {"Distributed.", "NPU.", "MindSpeed."}) {
    if (level == RiskLevel::kCore && absl::StartsWith(entry, family))
      return true;
  }
  const absl::string_view op = OpOfEntry(entry);
  if (op.empty()) return true;
  return level == RiskLevel::kFocus ? !RiskTables().low.contains(op)
                                    : RiskTables().core.contains(op);
}

}  // namespace rankprobe
