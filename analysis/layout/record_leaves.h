// SPDX-License-Identifier: Apache-2.0
// The tensors and values of a call's record by their places in it. Pure
// functions.
#ifndef RANKPROBE_ANALYSIS_LAYOUT_RECORD_LEAVES_H_
#define RANKPROBE_ANALYSIS_LAYOUT_RECORD_LEAVES_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "dump_format/json_value.h"

namespace rankprobe::analysis {

// Calls `leaf` for each tensor and value of a record, with its place.
void EachLeaf(
    const JsonValue& value, std::string* place,
    absl::FunctionRef<void(const std::string& place, const JsonValue& leaf)>
        leaf);
bool IsLeaf(const JsonValue& value);
// Returns the place in the notation of table rows: ".input_args.0" becomes
// ".input.0".
std::string RowOf(absl::string_view place);

// Leaves by place; the record outlives the map.
using Leaves = absl::flat_hash_map<std::string, const JsonValue*>;
Leaves LeavesOf(const JsonValue& root);
// Returns null if there is none.
const JsonValue* FindLeaf(const Leaves& leaves, const std::string& place);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_LAYOUT_RECORD_LEAVES_H_
