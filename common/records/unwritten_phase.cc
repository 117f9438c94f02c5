// SPDX-License-Identifier: Apache-2.0
// Separate from unwritten.cc, because users of places by name, such as the
// analysis, do not link records: two Python extensions with records could not
// be loaded into one process.
#include "absl/strings/str_cat.h"
#include "common/records/unwritten.h"

namespace rankprobe {

bool IsUnwritten(const UnwrittenPlaces& places, const v1::CallPhase& phase,
                 TensorPlace place, const v1::TensorSummary& tensor) {
  switch (place.section) {
    case CallSection::kInputArgs:
      return tensor.written() || places.HasInput(absl::StrCat(place.index));
    case CallSection::kInputKwargs:
      return tensor.written() ||
             places.HasInput(phase.input_kwargs().items(place.index).name());
    case CallSection::kOutput:
      return places.HasOutput(absl::StrCat(place.index));
    case CallSection::kParameters:
    case CallSection::kInput:
    case CallSection::kGradients:
    case CallSection::kDebug:
      return false;
  }
  return false;
}

}  // namespace rankprobe
