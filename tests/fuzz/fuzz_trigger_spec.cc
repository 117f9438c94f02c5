// SPDX-License-Identifier: Apache-2.0
// Any bytes as a triggers file: a spec that survives its own JSON, or a fault.
#include <cstdint>
#include <cstdlib>

#include "common/config/plan.h"
#include "common/config/trigger_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto spec = rankprobe::ParseTriggerSpec(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!spec.ok()) return 0;
  const rankprobe::v1::TriggerSpec full = rankprobe::WithDefaults(*spec);
  if (!rankprobe::CheckTriggerSpec(full).ok()) std::abort();
  if (!rankprobe::ParseTriggerSpec(rankprobe::TriggerSpecToJson(full)).ok())
    std::abort();
  const auto flight =
      rankprobe::ParseConfig(rankprobe::FlightConfigJson(full.flight()), {});
  if (!flight.ok()) std::abort();
  for (const auto& rule : full.rules()) {
    if (!rankprobe::ParseConfig(rankprobe::RaisedConfigJson(rule), {}).ok())
      std::abort();
  }
  return 0;
}
