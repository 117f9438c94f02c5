// SPDX-License-Identifier: Apache-2.0
// Rules of a TriggerSpec: its limits and defaults, its JSON form, and the plans
// that flight recorder and triggers record under. Pure functions.
#ifndef RANKPROBE_COMMON_CONFIG_TRIGGER_SPEC_H_
#define RANKPROBE_COMMON_CONFIG_TRIGGER_SPEC_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/detect/token_checks.h"
#include "rankprobe/v1/triggers.pb.h"

namespace rankprobe {

// Event.rule of the answers to a request that an operator flags.
inline constexpr char kFlagRule[] = "flag";
// Tokens of an answer of TokenReference, at most.
inline constexpr int kMaxReferenceTokens = 1024;

// INVALID_ARGUMENT lists every fault: field, value, legal values.
absl::Status CheckTriggerSpec(const v1::TriggerSpec& untrusted);

// Fills in the defaults; `spec` must have been checked.
v1::TriggerSpec WithDefaults(v1::TriggerSpec spec);

// INVALID_ARGUMENT for a text that is not JSON, has unknown fields, or has
// faults. `complete` may fill in what the text leaves out, before the check for
// faults; its error is returned.
absl::StatusOr<v1::TriggerSpec> ParseTriggerSpec(
    absl::string_view json,
    const std::function<absl::Status(v1::TriggerSpec*)>& complete = nullptr);
std::string TriggerSpecToJson(const v1::TriggerSpec& spec);

// Return the config.json of the flight recorder, and of the recording that a
// fired rule starts.
std::string FlightConfigJson(const v1::FlightSpec& flight);
std::string RaisedConfigJson(const v1::TriggerRule& rule);

// Returns the check of a rule about tokens, whose defaults are filled in;
// nullopt for other rules.
std::optional<TokenCheck> TokenCheckOf(const v1::TriggerRule& rule);

absl::string_view EvidenceName(v1::TriggerRule::Evidence evidence);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_CONFIG_TRIGGER_SPEC_H_
