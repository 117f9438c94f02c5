// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/unwritten_tensors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {

UnwrittenTensors::UnwrittenTensors(absl::string_view entry,
                                   const TensorNotes* notes)
    : entry_(entry), notes_(notes), places_(UnwrittenPlacesOf(entry)) {}

bool UnwrittenTensors::HasInput(absl::string_view place) const {
  if (places_.HasInput(place)) return true;
  const std::string row = absl::StrCat(entry_, ".input.", place);
  // An operator writes either all tensors of a list or none.
  return notes_->Written(row) || notes_->Written(absl::StrCat(row, ".0"));
}

bool UnwrittenTensors::HasOutput(absl::string_view place) const {
  return places_.HasOutput(place);
}

bool UnwrittenTensors::Has(const DumpRow& row) const {
  absl::string_view name = row.name;
  const bool output = row.state == RowState::kOutput;
  if ((!output && row.state != RowState::kInput) ||
      !absl::ConsumePrefix(&name, entry_) ||
      !absl::ConsumePrefix(&name, output ? ".output." : ".input.")) {
    return false;
  }
  name = name.substr(0, name.find('.'));
  return output ? HasOutput(name) : HasInput(name);
}

}  // namespace rankprobe::analysis
