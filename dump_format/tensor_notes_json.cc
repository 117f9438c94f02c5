// SPDX-License-Identifier: Apache-2.0
#include "dump_format/tensor_notes_json.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/records/call_values.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

void WritePlacement(const v1::Placement& placement, JsonTextWriter* json) {
  json->BeginObject();
  switch (placement.kind()) {
    case v1::Placement::KIND_SHARD:
    case v1::Placement::KIND_STRIDED_SHARD:
      json->Key(placement.kind() == v1::Placement::KIND_SHARD
                    ? "Shard"
                    : "_StridedShard");
      json->BeginObject();
      json->Key("dim");
      json->Uint(placement.dim());
      if (placement.kind() == v1::Placement::KIND_STRIDED_SHARD) {
        json->Key("split_factor");
        json->Uint(placement.split_factor());
      }
      json->EndObject();
      break;
    case v1::Placement::KIND_PARTIAL:
      json->Key("Partial");
      json->BeginObject();
      json->Key("reduce_op");
      json->String(placement.reduce_op());
      json->EndObject();
      break;
    default:
      json->Key("Replicate");
      json->BeginObject();
      json->EndObject();
  }
  json->EndObject();
}

void WriteNote(const v1::TensorSummary& tensor, JsonTextWriter* json) {
  json->BeginObject();
  if (tensor.written()) {
    json->Key("written");
    json->Bool(true);
  }
  if (!tensor.device_mesh_json().empty()) {
    json->Key("global_shape");
    json->BeginArray();
    for (const int64_t size : tensor.global_shape()) json->Int(size);
    json->EndArray();
    json->Key("placements");
    json->BeginArray();
    for (const v1::Placement& placement : tensor.placements()) {
      WritePlacement(placement, json);
    }
    json->EndArray();
  }
  json->EndObject();
}

// Older agents do not record the complete size of a DTensor.
bool HasNote(const v1::TensorSummary& tensor) {
  return tensor.written() ||
         (!tensor.device_mesh_json().empty() &&
          tensor.global_shape_size() == tensor.shape_size());
}

}  // namespace

std::string TensorNotesJson(const StepView& view) {
  std::string out;
  JsonTextWriter json(&out);
  for (const v1::CallPhase& call : view.calls) {
    ForEachNamedTensor(call, [&](TensorPlace, absl::string_view name,
                                 const v1::TensorSummary& tensor) {
      if (!HasNote(tensor)) return;
      if (out.empty()) json.BeginObject();
      json.Key(name.empty() ? call.entry()
                            : absl::StrCat(call.entry(), ".", name));
      WriteNote(tensor, &json);
    });
  }
  if (!out.empty()) json.EndObject();
  return out;
}

}  // namespace rankprobe
