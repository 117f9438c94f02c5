// SPDX-License-Identifier: Apache-2.0
#include "common/config/monitor_section.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace rankprobe {
namespace {

// Recording all values of a step costs some 30 % of it, so with every 50th step
// the training loses less than 1 %. The table of fields has this number for
// readers.
constexpr int64_t kDefaultEvery = 50;

}  // namespace

void ParseMonitorSection(const rapidjson::Value* section, ConfigFaults* faults,
                         Plan* plan) {
  MonitorSpec& monitor = plan->monitor;
  monitor = {kDefaultEvery, true, true, true, true, true, true};
  if (section == nullptr || !section->IsObject()) return;
  ConfigReader reader(section, "monitor.", faults, kMonitorSection);
  if (reader.Has("data_mode")) {
    reader.Fault("data_mode", JsonText(*reader.Get("data_mode")),
                 "absent with task monitor: \"values\" says what is recorded");
  }
  if (const auto every = reader.Int("every")) monitor.every = *every;
  if (!reader.Has("values")) return;
  const std::vector<std::string> words = reader.StringList("values");
  const absl::Span<const char* const> known =
      FindConfigField(kMonitorSection, "values")->words;
  const auto wants = [&words](absl::string_view value) {
    return std::find(words.begin(), words.end(), value) != words.end();
  };
  DataMode& mode = plan->data_mode;
  mode.forward = wants("activations");
  mode.backward = wants("activation_gradients");
  mode.parameters_grad = monitor.weight_gradients = wants("weight_gradients");
  monitor.parameters = wants("parameters");
  monitor.updates = wants("optimizer");
  monitor.optimizer = wants("optimizer") || wants("optimizer_state");
  monitor.training = wants("training");
  monitor.communication = wants("communication");
  const std::string legal =
      absl::StrCat("a list of ", absl::StrJoin(known, ", "));
  if (words.empty()) reader.Fault("values", "[]", legal);
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) != known.end()) continue;
    constexpr size_t kShown = 120;
    reader.Fault("values", absl::StrCat("\"", word.substr(0, kShown), "\""),
                 legal);
  }
}

}  // namespace rankprobe
