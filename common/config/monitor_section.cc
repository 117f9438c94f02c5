// SPDX-License-Identifier: Apache-2.0
#include "common/config/monitor_section.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

// All values of a step cost it some 30 %; so in each 50th the training loses less
// than 1 %.
constexpr int64_t kDefaultEvery = 50;
constexpr int64_t kMaxEvery = 1'000'000;

constexpr std::array<absl::string_view, 8> kMonitored = {
    "activations",      "activation_gradients",
    "weight_gradients", "parameters",
    "optimizer",        "training",
    "communication",    "optimizer_state"};

}  // namespace

void ParseMonitorSection(const rapidjson::Value* section, ConfigFaults* faults,
                         Plan* plan) {
  MonitorSpec& monitor = plan->monitor;
  monitor = {kDefaultEvery, true, true, true, true, true, true};
  if (section == nullptr || !section->IsObject()) return;
  ConfigReader reader(section, "monitor.", faults);
  if (reader.Has("data_mode")) {
    reader.Fault("data_mode", JsonText(*reader.Get("data_mode")),
                 "absent with task monitor: \"values\" says what is recorded");
  }
  if (const auto every = reader.Int("every", 1, kMaxEvery))
    monitor.every = *every;
  if (!reader.Has("values")) return;
  const std::vector<std::string> words = reader.StringList("values");
  const auto wants = [&words](size_t value) {
    return std::find(words.begin(), words.end(), kMonitored[value]) !=
           words.end();
  };
  DataMode& mode = plan->data_mode;
  mode.forward = wants(0);
  mode.backward = wants(1);
  mode.parameters_grad = monitor.weight_gradients = wants(2);
  monitor.parameters = wants(3);
  monitor.updates = wants(4);
  monitor.optimizer = wants(4) || wants(7);
  monitor.training = wants(5);
  monitor.communication = wants(6);
  const std::string legal =
      absl::StrCat("a list of ", absl::StrJoin(kMonitored, ", "));
  if (words.empty()) reader.Fault("values", "[]", legal);
  for (const std::string& word : words) {
    if (std::find(kMonitored.begin(), kMonitored.end(), word) !=
        kMonitored.end())
      continue;
    constexpr size_t kShown = 120;
    reader.Fault("values", absl::StrCat("\"", word.substr(0, kShown), "\""),
                 legal);
  }
}

}  // namespace rankprobe
