// SPDX-License-Identifier: Apache-2.0
// The JSON documents of one step, byte for byte as msprobe writes them
// (docs/formats.md, "Dump layout"). Pure functions.
#ifndef RANKPROBE_DUMP_FORMAT_DUMP_JSON_H_
#define RANKPROBE_DUMP_FORMAT_DUMP_JSON_H_

#include <functional>
#include <string>
#include <vector>

#include "dump_format/step_view.h"

namespace rankprobe {

// A payload that a tensor leaf refers to, and the file it belongs in.
struct PayloadFile {
  // Name inside dump_tensor_data, safe for a file system.
  std::string file_name;
  std::string entry;
  const v1::TensorSummary* tensor = nullptr;
};

// Whether the bytes can be exported; a leaf without them has no data_name.
using HasPayloadFn = std::function<bool(const v1::TensorSummary&)>;

// dump.json, or debug.json at level debug. Payloads to write are appended to
// `files`, missing ones to `missing`.
std::string DumpJson(const StepView& view, const std::string& dump_data_dir,
                     const HasPayloadFn& has_payload,
                     std::vector<PayloadFile>* files,
                     std::vector<PayloadFile>* missing);

std::string StackJson(const StepView& view);
// {section: {name: value}}, where all values are strings.
std::string RunCardJson(const StepView& view);
std::string ConstructJson(const StepView& view);
// requests.json of a serving step; msprobe has no such file.
std::string RequestsJson(const StepView& view);

}  // namespace rankprobe

#endif  // RANKPROBE_DUMP_FORMAT_DUMP_JSON_H_
