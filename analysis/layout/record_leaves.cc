// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/record_leaves.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace rankprobe::analysis {

bool IsLeaf(const JsonValue& value) {
  const JsonValue* const type = value.Find("type");
  return (type != nullptr && type->is_string()) ||
         value.Find("class_type") != nullptr;
}

void EachLeaf(
    const JsonValue& value, std::string* place,
    absl::FunctionRef<void(const std::string& place, const JsonValue& leaf)>
        leaf) {
  if (IsLeaf(value)) {
    leaf(*place, value);
    return;
  }
  const size_t length = place->size();
  size_t index = 0;
  for (const JsonValue& item : value.items()) {
    absl::StrAppend(place, ".", index++);
    EachLeaf(item, place, leaf);
    place->resize(length);
  }
  for (const JsonMember& member : value.fields()) {
    absl::StrAppend(place, ".", member.key);
    EachLeaf(member.value, place, leaf);
    place->resize(length);
  }
}

std::string RowOf(absl::string_view place) {
  for (const absl::string_view section : {".input_args", ".input_kwargs"}) {
    if (absl::ConsumePrefix(&place, section))
      return absl::StrCat(".input", place);
  }
  return std::string(place);
}

Leaves LeavesOf(const JsonValue& root) {
  Leaves out;
  std::string place;
  EachLeaf(root, &place, [&out](const std::string& at, const JsonValue& leaf) {
    out.emplace(at, &leaf);
  });
  return out;
}

const JsonValue* FindLeaf(const Leaves& leaves, const std::string& place) {
  const auto it = leaves.find(place);
  return it == leaves.end() ? nullptr : it->second;
}

}  // namespace rankprobe::analysis
