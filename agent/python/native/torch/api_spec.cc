// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/api_spec.h"

#include <algorithm>
#include <memory>

namespace rankprobe {
namespace {

// Nesting is bounded by the reader.
void MarkValue(v1::Value* value) {
  if (value->has_tensor()) value->mutable_tensor()->set_written(true);
  if (!value->has_list()) return;
  for (v1::Value& item : *value->mutable_list()->mutable_items())
    MarkValue(&item);
}

template <typename Place>
const char* WhyNot(const ApiSpec& spec, Place place) {
  if (spec.addresses.Has(place)) return kAnAddress;
  return spec.caches.Has(place) ? kACache : nullptr;
}

}  // namespace

bool ArgumentSet::Has(int position) const {
  return std::find(positions.begin(), positions.end(), position) !=
         positions.end();
}

bool ArgumentSet::Has(std::string_view name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void MarkWritten(const ApiSpec& spec, v1::CallPhase* phase) {
  for (const int i : spec.written.positions) {
    if (i < phase->input_args().items_size())
      MarkValue(phase->mutable_input_args()->mutable_items(i));
  }
  for (v1::NamedValue& named :
       *phase->mutable_input_kwargs()->mutable_items()) {
    if (spec.written.Has(std::string_view(named.name())))
      MarkValue(named.mutable_value());
  }
}

const char* NotRecorded(const ApiSpec& spec, int position) {
  return WhyNot(spec, position);
}

const char* NotRecorded(const ApiSpec& spec, std::string_view name) {
  return WhyNot(spec, name);
}

PyValue NotRecordedValue(const char* why) {
  PyValue out;
  out.kind = PyValue::Kind::kLeaf;
  out.leaf = std::make_unique<v1::Value>();
  out.leaf->mutable_scalar()->set_type("str");
  out.leaf->mutable_scalar()->set_s(why);
  return out;
}

}  // namespace rankprobe
