// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/request_cut.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collector/archive/choose_steps.h"
#include "common/base/status_macros.h"
#include "common/config/plan.h"
#include "common/records/call_values.h"
#include "common/records/request_names.h"
#include "common/tensor/dtype.h"
#include "common/tensor/statistics_rules.h"
#include "common/tensor/summary.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxNamed = 10;
// Limit for the rows of one request of one tensor.
constexpr uint64_t kMaxCutBytes = uint64_t{1} << 30;

std::string Named(const std::vector<std::string>& ids) {
  const size_t count = std::min(ids.size(), kMaxNamed);
  return absl::StrCat(
      absl::StrJoin(ids.begin(), ids.begin() + static_cast<int64_t>(count),
                    ", ",
                    [](std::string* out, const std::string& id) {
                      absl::StrAppend(out, VisibleText(id));
                    }),
      ids.size() > count ? absl::StrCat(" and ", ids.size() - count, " others")
                         : "");
}

// Returns null if the request is not in this batch, or only rows of another
// were recorded.
const v1::RequestRows* FindRows(const v1::StepRequests& batch,
                                absl::string_view id) {
  if (!batch.recorded().empty() && batch.recorded() != id) return nullptr;
  for (const v1::RequestRows& rows : batch.requests()) {
    if (rows.id() == id) return &rows;
  }
  return nullptr;
}

// Weights have no rows of a batch, whatever their size.
absl::flat_hash_set<const v1::TensorSummary*> WeightsOf(
    const v1::CallPhase& call) {
  absl::flat_hash_set<const v1::TensorSummary*> out;
  ForEachPlacedTensor(
      call, [&](TensorPlace place, const v1::TensorSummary& tensor) {
        if (tensor.parameter() || place.section == CallSection::kParameters ||
            place.section == CallSection::kGradients)
          out.insert(&tensor);
      });
  return out;
}

// Returns the bytes of rows [begin, end) of a tensor of `rows` rows, if they
// can be cut out.
std::optional<ByteRange> RangeOf(const v1::TensorSummary& tensor, int64_t rows,
                                 const v1::RequestRows& wanted) {
  const v1::PayloadRef& payload = tensor.payload();
  if (absl::c_linear_search(tensor.shape(), 0)) return ByteRange();
  uint64_t bytes = ElementSize(tensor.dtype());
  if (bytes == 0 || payload.lost() != v1::LOSS_REASON_UNSPECIFIED ||
      payload.digest().empty())
    return std::nullopt;
  for (const int64_t size : tensor.shape()) {
    if (size < 0 ||
        static_cast<uint64_t>(size) > payload.length_bytes() / bytes)
      return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  if (bytes != payload.length_bytes()) return std::nullopt;
  const uint64_t row_bytes = bytes / static_cast<uint64_t>(rows);
  const ByteRange range{row_bytes * static_cast<uint64_t>(wanted.begin()),
                        row_bytes * static_cast<uint64_t>(wanted.end())};
  if (range.size() > kMaxCutBytes) return std::nullopt;
  return range;
}

absl::StatusOr<std::string> ReadRange(ArchiveReader* store,
                                      const std::string& run,
                                      const v1::PayloadRef& payload,
                                      const ByteRange& range) {
  std::string out;
  if (range.size() == 0) return out;
  uint64_t at = 0;
  RP_RETURN_IF_ERROR(
      store->ReadPayload(run, payload.digest(), payload.length_bytes(),
                         [&](absl::string_view data) {
                           absl::StrAppend(&out, PartWithin(data, at, range));
                           at += data.size();
                           return absl::OkStatus();
                         }));
  if (out.size() != range.size())
    return absl::DataLossError("the payload is shorter than it says");
  return out;
}

// Records do not say whether statistics were computed in high precision: it is
// recognized by values that the low precision cannot represent.
bool IsOfHighPrecision(const v1::TensorSummary& tensor) {
  const v1::TensorStats& stats = tensor.stats();
  const Family family = FamilyOf(tensor.dtype());
  if (family == Family::kInt || tensor.dtype() == v1::DTYPE_FLOAT64)
    return !tensor.shape().empty() &&
           stats.mean_case() != v1::TensorStats::MEAN_NOT_SET;
  const auto fits = [&](double v) {
    return std::isnan(v) || RoundTo(tensor.dtype(), v) == v;
  };
  return family == Family::kFloat &&
         ((stats.mean_case() == v1::TensorStats::kMeanF &&
           !fits(stats.mean_f())) ||
          (stats.norm_case() == v1::TensorStats::kNormF &&
           !fits(stats.norm_f())));
}

Precision PrecisionOf(const StepView& view) {
  bool high = false;
  for (const v1::CallPhase& call : view.calls) {
    if (high) break;
    ForEachTensor(call, [&](const v1::TensorSummary& tensor) {
      high = high || IsOfHighPrecision(tensor);
    });
  }
  return high ? Precision::kHigh : Precision::kLow;
}

ExtraSet ExtrasOf(const v1::StepBegin& begin) {
  ExtraSet out;
  for (const ExtraStatistic& extra : kExtraStatistics) {
    for (const int id : begin.extra_statistics()) {
      if (id == extra.id) out.AddWord(extra.word);
    }
  }
  return out;
}

// Computes the summary of the tensor again for its remaining rows. `request` is
// the step's.
void Describe(const std::string& data, SummaryRequest request, int64_t rows,
              v1::TensorSummary* tensor) {
  request.statistics = tensor->has_stats();
  if (!request.statistics) request.extra = {};
  const bool crc = tensor->checksum().value_case() == v1::Checksum::kCrc32;
  const bool exclusive_or =
      tensor->checksum().value_case() == v1::Checksum::kXor64;
  if (crc) request.checksum = ChecksumMode::kCrc32;
  if (exclusive_or) request.checksum = ChecksumMode::kXor64;
  tensor->set_shape(0, rows);
  const std::vector<int64_t> shape(tensor->shape().begin(),
                                   tensor->shape().end());
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  const Summary summary =
      Summarize({data.data(), tensor->dtype(), shape, strides}, request);
  if (request.statistics) {
    tensor->clear_stats();
    StatisticsToProto(summary.statistics, tensor->mutable_stats());
    tensor->clear_extra();
    ExtrasToProto(summary.extra, tensor);
  }
  if (crc) tensor->mutable_checksum()->set_crc32(summary.crc32);
  if (exclusive_or) tensor->mutable_checksum()->set_xor64(summary.xor64);
}

}  // namespace

absl::string_view PartWithin(absl::string_view data, uint64_t at,
                             const ByteRange& range) {
  const uint64_t begin = std::clamp(range.begin, at, at + data.size());
  const uint64_t end = std::clamp(range.end, begin, at + data.size());
  return data.substr(begin - at, end - begin);
}

absl::StatusOr<std::string> ChooseRequest(const std::vector<std::string>& ids,
                                          absl::string_view wanted) {
  if (ids.empty()) {
    return absl::NotFoundError(
        "the chosen steps name no requests: their program did not say whose "
        "rows its tensors hold");
  }
  if (std::find(ids.begin(), ids.end(), wanted) != ids.end())
    return std::string(wanted);
  std::vector<std::string> fit;
  for (const std::string& id : ids) {
    if (IsRequestMadeOf(id, wanted)) fit.push_back(id);
  }
  if (fit.empty()) {
    for (const std::string& id : ids) {
      if (absl::StrContains(id, wanted)) fit.push_back(id);
    }
  }
  if (fit.size() == 1) return fit[0];
  const std::string text = VisibleText(wanted);
  if (fit.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no request is \"", text, "\"; there are ", Named(ids)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is ", fit.size(),
                   " requests, give one of them in full: ", Named(fit)));
}

absl::StatusOr<std::string> KeepStepsOfRequest(
    ArchiveReader* store, const std::string& run, absl::string_view wanted,
    std::vector<v1::StepInfo>* steps) {
  std::vector<std::vector<v1::StepRequests>> of_step(steps->size());
  std::vector<std::string> ids;
  absl::flat_hash_set<std::string> known;
  for (size_t i = 0; i < steps->size(); ++i) {
    RP_RETURN_IF_ERROR(store->ForEachRecord(
        KeyOf(run, (*steps)[i]), [&](const v1::Record& record) {
          if (record.has_step_begin() && record.step_begin().has_requests())
            of_step[i].push_back(record.step_begin().requests());
          return absl::OkStatus();
        }));
    for (const v1::StepRequests& batch : of_step[i]) {
      for (const v1::RequestRows& rows : batch.requests()) {
        if (FindRows(batch, rows.id()) != nullptr &&
            known.insert(rows.id()).second)
          ids.push_back(rows.id());
      }
    }
  }
  RP_ASSIGN_OR_RETURN(std::string id, ChooseRequest(ids, wanted));
  size_t kept = 0;
  for (size_t i = 0; i < steps->size(); ++i) {
    const bool has = std::any_of(
        of_step[i].begin(), of_step[i].end(),
        [&](const auto& batch) { return FindRows(batch, id) != nullptr; });
    if (!has) continue;
    if (kept != i) (*steps)[kept] = std::move((*steps)[i]);
    ++kept;
  }
  steps->resize(kept);
  return id;
}

RequestCut CutToRequest(ArchiveReader* store, const std::string& run,
                        const std::string& id, StepView* view) {
  RequestCut cut;
  std::optional<v1::RequestRows> wanted;
  int64_t rows = 0;
  bool is_cut = true;
  for (const StepView::Requests& start : view->requests) {
    const v1::StepRequests& batch = start.requests;
    is_cut = is_cut && batch.recorded() == id;
    const v1::RequestRows* const found = FindRows(batch, id);
    const bool same =
        found != nullptr && found->begin() >= 0 &&
        found->begin() < found->end() && found->end() <= batch.rows() &&
        (!wanted.has_value() ||
         (batch.rows() == rows && wanted->begin() == found->begin() &&
          wanted->end() == found->end()));
    if (!same) {
      cut.whole_batch = true;
      continue;
    }
    wanted = *found;
    rows = batch.rows();
  }
  if (is_cut) return {};
  if (cut.whole_batch || !wanted.has_value()) {
    cut.whole_batch = true;
    return cut;
  }
  const bool alone = wanted->begin() == 0 && wanted->end() == rows;
  if (!alone && view->begin.task() != TaskName(Task::kTensor)) {
    cut.whole_batch = true;
    return cut;
  }
  for (StepView::Requests& start : view->requests)
    start.requests.set_recorded(id);
  if (alone) return cut;
  SummaryRequest request;
  request.precision = PrecisionOf(*view);
  request.extra = ExtrasOf(view->begin);
  for (v1::CallPhase& call : view->calls) {
    const auto weights = WeightsOf(call);
    ForEachTensor(&call, [&](v1::TensorSummary* tensor) {
      if (tensor->shape().empty() || tensor->shape(0) != rows ||
          weights.contains(tensor))
        return;
      const auto range = RangeOf(*tensor, rows, *wanted);
      absl::StatusOr<std::string> data = absl::NotFoundError("");
      if (range.has_value())
        data = ReadRange(store, run, tensor->payload(), *range);
      if (!data.ok()) {
        ++cut.whole_tensors;
        return;
      }
      Describe(*data, request, wanted->end() - wanted->begin(), tensor);
      cut.bytes.emplace(tensor, *range);
    });
  }
  return cut;
}

}  // namespace rankprobe
