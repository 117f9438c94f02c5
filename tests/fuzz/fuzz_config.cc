// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json: a plan or every fault, and a plan that filters.
#include <cstdint>
#include <cstdlib>

#include "common/config/plan.h"
#include "common/filter/call_filter.h"

namespace {

void Use(const rankprobe::Plan& plan) {
  rankprobe::CallFilter filter(&plan);
  filter.BeginStep();
  filter.ModuleBegin("Module.a.Linear.forward.0");
  filter.Api("Torch.relu.0.forward");
  filter.ModuleEnd("Module.a.Linear.forward.0");
  filter.Api("Torch.relu.0.backward");
  filter.ParametersGrad("Module.a.Linear");
  filter.WantsPayload("Torch.relu.0.forward");
  plan.WantsRank(3);
  plan.FinishedBefore(7);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = rankprobe::ParseConfig(text, {});
  if (config.ok()) {
    Use(config->plan);
    // Legal plans keep their promises.
    if (!config->plan.scope.empty() && config->plan.scope.size() != 2)
      std::abort();
  } else if (!absl::IsInvalidArgument(config.status()) ||
             config.status().message().empty()) {
    std::abort();
  }
  rankprobe::ConfigOverrides overrides;
  overrides.step_json = std::string(text);
  rankprobe::ParseConfig(R"({"dump_path": "d"})", overrides)
      .status()
      .IgnoreError();
  return 0;
}
