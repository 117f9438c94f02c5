// SPDX-License-Identifier: Apache-2.0
// tensor_notes.json of recorded calls; tensor_notes.h reads it. Separate from
// that header, because analysis uses that where no protobuf message may be
// linked.
#ifndef RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_JSON_H_
#define RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_JSON_H_

#include <string>

#include "dump_format/step_view.h"

namespace rankprobe {

// Returns an empty text if there are no notes. A pure function.
std::string TensorNotesJson(const StepView& view);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_TENSOR_NOTES_JSON_H_
