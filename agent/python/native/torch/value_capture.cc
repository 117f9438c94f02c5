// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/value_capture.h"

#include <cmath>

#include "agent/python/native/torch/capture.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

std::optional<double> NormOf(const v1::ValueMap& values,
                             absl::string_view name) {
  for (const v1::NamedValue& value : values.items()) {
    if (value.name() == name && value.value().tensor().stats().has_norm_f())
      return value.value().tensor().stats().norm_f();
  }
  return std::nullopt;
}

void AddNumber(absl::string_view name, double number, v1::ValueMap* values) {
  v1::NamedValue* const item = values->add_items();
  item->set_name(std::string(name));
  v1::TensorSummary* const tensor = item->mutable_value()->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_FLOAT64);
  v1::TensorStats* const stats = tensor->mutable_stats();
  stats->set_max_f(number);
  stats->set_min_f(number);
  stats->set_mean_f(number);
  stats->set_norm_f(std::fabs(number));
}

// Refers to `value`.
auto Filling(const PyValue& value) {
  return [&value](CallBuilder& builder, v1::Value* out) {
    Fill(builder, value, out);
  };
}

}  // namespace

std::optional<SavedValue> ValueCapture::Save(const std::string& name,
                                             const py::object& value,
                                             const py::object& skeleton) {
  std::optional<SavedValue> saved;
  capture_->Quietly("save", [&](Recorder& recorder) {
    capture_->MaybeFail("save");
    const ReadMode mode{true, recorder.saved().Needs()};
    const PyValue read = capture_->reader().Read(value.ptr(), mode),
                  nulls = capture_->reader().Read(skeleton.ptr(), mode);
    const bool with_gradient = !skeleton.is(py::ellipsis());
    const py::gil_scoped_release release;
    saved = recorder.saved().Save(
        name, Filling(read),
        with_gradient ? BuildValue(Filling(nulls)) : nullptr);
  });
  return saved;
}

void ValueCapture::SaveGradient(const SavedValue& value,
                                const std::string& path,
                                const py::object& gradient) {
  capture_->Quietly("save gradient", [&](Recorder& recorder) {
    capture_->MaybeFail("save gradient");
    const PyValue read = capture_->reader().Read(
        gradient.ptr(), {true, recorder.saved().Needs()});
    const py::gil_scoped_release release;
    recorder.saved().SaveGradient(value, path, Filling(read));
  });
}

std::optional<double> ValueCapture::SaveMonitored(const std::string& name,
                                                  const py::dict& values) {
  std::optional<double> norm;
  capture_->Quietly("monitor", [&](Recorder& recorder) {
    capture_->MaybeFail("monitor");
    const PyValue read =
        capture_->reader().Read(values.ptr(), {true, recorder.saved().Needs()});
    const py::gil_scoped_release release;
    recorder.saved().Save(
        name,
        [&](CallBuilder& builder, v1::Value* out) {
          Fill(builder, read, out);
          v1::ValueMap* const map = out->mutable_map();
          norm = NormOf(*map, "grad");
          const std::optional<double> update = NormOf(*map, "update"),
                                      param = NormOf(*map, "param");
          // No ratio for a parameter whose norm is 0: a NaN would fire
          // triggers. The norm of a tensor without dimensions has a sign, hence
          // fabs.
          if (update.has_value() && param.has_value() && *param != 0)
            AddNumber("ratio", std::fabs(*update / *param), map);
        },
        nullptr);
  });
  return norm;
}

void ValueCapture::ReportReplica(const py::list& tensors) {
  const std::shared_ptr<Recorder> recorder = capture_->recorder();
  if (recorder == nullptr || !recorder->reports().WantsReplica()) return;
  capture_->Quietly("replica", [&](Recorder& of_step) {
    capture_->MaybeFail("replica");
    const PyValue read = capture_->reader().Read(
        tensors.ptr(), {false, RecordedCall::Needs::kNow});
    std::vector<TensorInfo> infos;
    for (const PyValue& value : read.items) {
      if (value.kind == PyValue::Kind::kTensor && !value.tensor->no_data)
        infos.push_back(value.tensor->Info());
    }
    const py::gil_scoped_release release;
    of_step.reports().ReportReplica(infos);
  });
}

void ValueCapture::RecordFacts(
    const std::vector<std::tuple<std::string, std::string, std::string>>&
        facts) {
  capture_->Guarded("run card", [&](Recorder& recorder) {
    std::vector<v1::RunFact> given;
    for (const auto& [section, name, value] : facts) {
      v1::RunFact& fact = given.emplace_back();
      fact.set_section(section);
      fact.set_name(name);
      fact.set_value(value);
    }
    const py::gil_scoped_release release;
    recorder.reports().RecordFacts(given);
  });
}

void ValueCapture::ReportTokens(
    const std::vector<
        std::tuple<std::string, int64_t, int64_t, double, double>>& tokens) {
  capture_->Guarded("tokens of requests", [&](Recorder& recorder) {
    std::vector<std::pair<std::string, RequestToken>> given;
    given.reserve(tokens.size());
    for (const auto& [request, index, id, logprob, entropy] : tokens)
      given.emplace_back(request, RequestToken{index, id, logprob, entropy});
    const py::gil_scoped_release release;
    recorder.reports().ReportTokens(given);
  });
}

std::string ValueCapture::Digest(const py::object& tensor,
                                 uint64_t limit_bytes) {
  const QuietScope quiet(capture_->quiet());
  return capture_->reader().Digest(tensor.ptr(), limit_bytes);
}

}  // namespace rankprobe
