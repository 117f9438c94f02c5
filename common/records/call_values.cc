// SPDX-License-Identifier: Apache-2.0
#include "common/records/call_values.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace rankprobe {
namespace {

using Visit = absl::FunctionRef<void(TensorPlace, const v1::TensorSummary&)>;

// Appends a part to a name during its lifetime; does nothing if names are not
// requested.
class NamePart {
 public:
  template <typename Part>
  NamePart(std::string* name, const Part& part) : name_(name) {
    if (name_ == nullptr) return;
    before_ = name_->size();
    absl::StrAppend(name_, name_->empty() ? "" : ".", part);
  }
  NamePart(const NamePart&) = delete;
  NamePart& operator=(const NamePart&) = delete;
  ~NamePart() {
    if (name_ != nullptr) name_->resize(before_);
  }

 private:
  std::string* const name_;
  size_t before_ = 0;
};

// Number of nested messages below `value`. `name`: of the value, null if names
// are not requested.
int WalkValue(const v1::Value& value, TensorPlace place, Visit visit,
              std::string* name = nullptr) {
  int depth = 0;
  // No default, so that the compiler reports a kind that is missing here.
  switch (value.kind_case()) {
    case v1::Value::kTensor:
      visit(place, value.tensor());
      break;
    case v1::Value::kP2P:
      if (value.p2p().has_tensor()) visit(place, value.p2p().tensor());
      break;
    case v1::Value::kList:
      for (int i = 0; i < value.list().items_size(); ++i) {
        const NamePart part(name, i);
        depth = std::max(depth, kListMessages + WalkValue(value.list().items(i),
                                                          place, visit, name));
      }
      break;
    case v1::Value::kMap:
      for (const v1::NamedValue& item : value.map().items()) {
        const NamePart part(name, item.name());
        depth = std::max(
            depth, kMapMessages + WalkValue(item.value(), place, visit, name));
      }
      break;
    case v1::Value::kScalar:
    case v1::Value::kObject:
    case v1::Value::kCut:
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return depth;
}

int WalkPhase(const v1::CallPhase& phase, Visit visit,
              std::string* name = nullptr) {
  int depth = 0;
  const auto list = [&](CallSection section, absl::string_view title,
                        const v1::ValueList& values) {
    const NamePart under(name, title);
    for (int i = 0; i < values.items_size(); ++i) {
      const NamePart part(name, i);
      depth = std::max(depth,
                       WalkValue(values.items(i), {section, i}, visit, name));
    }
  };
  const auto items = [&](CallSection section, const v1::ValueMap& values) {
    for (int i = 0; i < values.items_size(); ++i) {
      const NamePart part(name, values.items(i).name());
      depth = std::max(
          depth, WalkValue(values.items(i).value(), {section, i}, visit, name));
    }
  };
  const auto map = [&](CallSection section, absl::string_view title,
                       const v1::ValueMap& values) {
    const NamePart under(name, title);
    items(section, values);
  };
  list(CallSection::kInputArgs, "input", phase.input_args());
  map(CallSection::kInputKwargs, "input", phase.input_kwargs());
  list(CallSection::kOutput, "output", phase.output());
  map(CallSection::kParameters, "parameters", phase.parameters());
  list(CallSection::kInput, "input", phase.input());
  items(CallSection::kGradients, phase.gradients());
  if (phase.has_debug()) {
    depth = std::max(
        depth, WalkValue(phase.debug(), {CallSection::kDebug, 0}, visit, name));
  }
  return depth;
}

}  // namespace

void ForEachPlacedTensor(const v1::CallPhase& phase, Visit visit) {
  WalkPhase(phase, visit);
}

void ForEachNamedTensor(const v1::CallPhase& phase,
                        absl::FunctionRef<void(TensorPlace, absl::string_view,
                                               const v1::TensorSummary&)>
                            visit) {
  std::string name;
  WalkPhase(
      phase,
      [&](TensorPlace place, const v1::TensorSummary& tensor) {
        visit(place, name, tensor);
      },
      &name);
}

void ForEachTensor(const v1::CallPhase& phase,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit) {
  WalkPhase(phase, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(tensor);
  });
}

void ForEachTensor(v1::CallPhase* phase,
                   absl::FunctionRef<void(v1::TensorSummary*)> visit) {
  // The caller may change the phase, and so the tensors in it.
  WalkPhase(*phase, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(const_cast<v1::TensorSummary*>(&tensor));
  });
}

void ForEachTensor(const v1::Value& value,
                   absl::FunctionRef<void(const v1::TensorSummary&)> visit) {
  WalkValue(value, {}, [&](TensorPlace, const v1::TensorSummary& tensor) {
    visit(tensor);
  });
}

int NestedMessages(const v1::Value& value) {
  return WalkValue(value, {}, [](TensorPlace, const v1::TensorSummary&) {});
}

int NestedMessages(const v1::CallPhase& phase) {
  return WalkPhase(phase, [](TensorPlace, const v1::TensorSummary&) {});
}

}  // namespace rankprobe
