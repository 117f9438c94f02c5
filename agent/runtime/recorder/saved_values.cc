// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/saved_values.h"

#include "absl/strings/str_cat.h"

namespace rankprobe {

std::optional<SavedValue> SavedValues::Save(absl::string_view name,
                                            const BuildValue& build,
                                            const BuildValue& build_gradient) {
  if (core_->Forked() || core_->session == nullptr) return std::nullopt;
  absl::MutexLock lock(&core_->mutex);
  StepRecords& records = core_->records;
  const int64_t step = records.step();
  // Level debug has no start(): the first value begins the step.
  if (!records.begun()) core_->BeginStep();
  const Plan& plan = core_->filter.plan();
  if (!core_->filter.enabled() || !(plan.RecordsSaved() || plan.Monitors()) ||
      !plan.RecordsValues() || !plan.WantsStep(step) ||
      !plan.WantsRank(core_->rank)) {
    return std::nullopt;
  }
  records.Begin();
  const int64_t number = core_->tree.Number(absl::StrCat(name, ".debug"));
  records.AddSaved(absl::StrCat(name, ".", number, ".debug"), "", build);
  SavedValue saved;
  saved.step_generation = records.generation();
  if (build_gradient) {
    saved.gradient_entry = absl::StrCat(name, "_grad.", number, ".debug");
    records.AddSaved(saved.gradient_entry, "", build_gradient);
  }
  records.SubmitIfDue();
  return saved;
}

void SavedValues::SaveGradient(const SavedValue& value, absl::string_view path,
                               const BuildValue& build) {
  if (value.gradient_entry.empty() || core_->Forked()) return;
  absl::MutexLock lock(&core_->mutex);
  StepRecords& records = core_->records;
  if (value.step_generation != records.generation() || !records.begun()) return;
  records.AddSaved(value.gradient_entry, path, build);
  records.SubmitIfDue();
}

RecordedCall::Needs SavedValues::Needs() const {
  absl::MutexLock lock(&core_->mutex);
  return core_->records.NeedsFor(core_->filter.plan().HasPayloads());
}

}  // namespace rankprobe
