// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/recorded_call.h"

#include <utility>

#include "common/base/limits.h"
#include "common/records/cut_value.h"
#include "common/text/visible_text.h"
#include "google/protobuf/stubs/common.h"

namespace rankprobe {

void CallBuilder::Int(int64_t value, v1::Value* out) {
  out->mutable_scalar()->set_type("int");
  out->mutable_scalar()->set_i(value);
}
void CallBuilder::Float(double value, v1::Value* out) {
  out->mutable_scalar()->set_type("float");
  out->mutable_scalar()->set_f(value);
}
void CallBuilder::Bool(bool value, v1::Value* out) {
  out->mutable_scalar()->set_type("bool");
  out->mutable_scalar()->set_b(value);
}
void CallBuilder::String(absl::string_view value, v1::Value* out) {
  // Text on the wire must be UTF-8.
  const bool utf8 = google::protobuf::internal::IsStructurallyValidUTF8(
      value.data(), static_cast<int>(value.size()));
  std::string text = utf8 ? std::string(value) : VisibleText(value);
  if (text.size() > kMaxTextBytes)
    return SetCutText("str", text, kMaxTextBytes, "length", out);
  out->mutable_scalar()->set_type("str");
  out->mutable_scalar()->set_s(std::move(text));
}

}  // namespace rankprobe
