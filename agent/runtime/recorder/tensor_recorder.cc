// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/tensor_recorder.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace rankprobe {
namespace {

// Python's slicing: negative bounds count from the end. Of several slices of
// one dimension the last is used; all refer to the original sizes.
class Slicer {
 public:
  explicit Slicer(const TensorView& view)
      : view_(view), sizes_(view.sizes.begin(), view.sizes.end()) {
    begins_.resize(sizes_.size());
  }

  void Add(const SliceSpec& slice) {
    const auto dims = static_cast<int64_t>(sizes_.size());
    const int64_t dim = slice.dim < 0 ? slice.dim + dims : slice.dim;
    if (dim < 0 || dim >= dims) return;
    const auto at = static_cast<size_t>(dim);
    const int64_t size = view_.sizes[at];
    if (slice.size.has_value() && *slice.size != size) return;
    const auto clamp = [size](int64_t i) {
      return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
    };
    begins_[at] = clamp(slice.begin);
    sizes_[at] = std::max<int64_t>(clamp(slice.end) - begins_[at], 0);
  }

  const std::vector<int64_t>& sizes() const { return sizes_; }
  const char* Data(size_t element) const {
    const char* data = static_cast<const char*>(view_.data);
    if (data == nullptr) return nullptr;
    for (size_t i = 0; i < begins_.size(); ++i)
      data += begins_[i] * view_.strides[i] * static_cast<int64_t>(element);
    return data;
  }

 private:
  const TensorView& view_;
  std::vector<int64_t> sizes_, begins_;
};

// float16, bfloat16 and float32 are reduced in their own precision.
Precision PrecisionAsFloat(v1::DType dtype, Precision precision) {
  return dtype == v1::DTYPE_FLOAT16 || dtype == v1::DTYPE_BFLOAT16 ||
                 dtype == v1::DTYPE_FLOAT32
             ? precision
             : Precision::kHigh;
}

}  // namespace

void SetNoData(const Plan& plan, v1::TensorSummary* out) {
  if (plan.summary_mode != SummaryMode::kXor) out->mutable_stats();
  if (plan.summary_mode != SummaryMode::kStatistics)
    out->mutable_checksum()->set_null(true);
}

void TensorRecorder::Record(const TensorInfo& tensor, const Plan& plan,
                            bool want_payload, v1::TensorSummary* out) {
  if (tensor.arrival != Arrival::kNow) {
    Defer(tensor, plan, want_payload, out);
    return;
  }
  ResolvedTensor resolved(tensor.view);
  std::optional<Slicer> slicer;
  const bool cut = rows_.has_value() && !tensor.is_parameter;
  if (!plan.slices.empty() || cut) {
    slicer.emplace(tensor.view);
    for (const SliceSpec& slice : plan.slices) slicer->Add(slice);
    if (cut) slicer->Add(*rows_);
    resolved.Narrow(slicer->Data(resolved.element_bytes), slicer->sizes());
  }
  const TensorView& view = resolved.view;
  SummaryRequest request;
  request.precision = wide_as_float_
                          ? PrecisionAsFloat(view.dtype, plan.precision)
                          : plan.precision;
  request.statistics = plan.summary_mode != SummaryMode::kXor;
  if (plan.summary_mode == SummaryMode::kMd5)
    request.checksum = ChecksumMode::kCrc32;
  if (plan.summary_mode == SummaryMode::kXor)
    request.checksum = ChecksumMode::kXor64;
  request.extra = plan.extra_statistics;
  // At this level of evidence only a checksum is recorded.
  if (degraded_ >= 2) {
    request.statistics = false;
    request.extra = {};
    if (request.checksum == ChecksumMode::kNone)
      request.checksum = ChecksumMode::kXor64;
  }
  const bool named = want_payload && reference_ && resolved.has_memory();
  want_payload = want_payload && !reference_;
  const bool in_order = want_payload || SummaryNeedsOrder(request);
  StridedLayout layout;
  if (resolved.has_memory()) layout = LayoutOf(resolved, in_order);
  Known uncached;
  const Known* known = &uncached;
  if (tensor.identity.storage == nullptr || !resolved.has_memory()) {
    uncached = Summarise(resolved, layout, in_order, request, want_payload);
  } else {
    const auto [it, is_new] = cache_.try_emplace(
        Key{tensor.identity.storage, tensor.identity.version, view.dtype,
            view.sizes.empty(), std::move(layout)});
    // A summary without its payload cannot be reused if the payload is
    // recorded.
    if (is_new || (want_payload && !it->second.has_payload))
      it->second = Summarise(resolved, it->first.layout, in_order, request,
                             want_payload);
    known = &it->second;
  }
  out->set_dtype(view.dtype);
  out->mutable_shape()->Assign(view.sizes.begin(), view.sizes.end());
  out->set_requires_grad(tensor.requires_grad);
  out->set_parameter(tensor.is_parameter);
  if (request.statistics)
    StatisticsToProto(known->summary.statistics, out->mutable_stats());
  ExtrasToProto(known->summary.extra, out);
  if (request.checksum == ChecksumMode::kCrc32)
    out->mutable_checksum()->set_crc32(known->summary.crc32);
  if (request.checksum == ChecksumMode::kXor64) {
    if (resolved.bytes == 0) {
      out->mutable_checksum()->set_null(true);
    } else {
      out->mutable_checksum()->set_xor64(known->summary.xor64);
    }
  }
  out->set_degraded(known->lost_to_budget ? std::max(degraded_, uint32_t{1})
                                          : degraded_);
  if (named) {
    out->set_name_without_payload(true);
    if (held_ != nullptr) Hold(resolved, out);
  }
  if (!want_payload || !known->has_payload) return;
  ++payloads_;
  out->mutable_payload()->set_length_bytes(resolved.bytes);
  if (known->lost != v1::LOSS_REASON_UNSPECIFIED) {
    ++lost_payloads_;
    out->mutable_payload()->set_lost(known->lost);
  } else {
    out->mutable_payload()->set_digest(known->summary.digest.data(),
                                       known->summary.digest.size());
  }
}

void TensorRecorder::Defer(const TensorInfo& tensor, const Plan& plan,
                           bool want_payload, v1::TensorSummary* out) {
  out->set_dtype(tensor.view.dtype);
  out->mutable_shape()->Assign(tensor.view.sizes.begin(),
                               tensor.view.sizes.end());
  out->set_requires_grad(tensor.requires_grad);
  deferred_.push_back({out,
                       tensor,
                       {tensor.view.sizes.begin(), tensor.view.sizes.end()},
                       {tensor.view.strides.begin(), tensor.view.strides.end()},
                       &plan,
                       // An optional payload is not waited for.
                       want_payload && !optional_bytes_.has_value(),
                       degraded_,
                       rows_});
}

void TensorRecorder::Resolve(const DeferredResults& results) {
  const uint32_t degraded = degraded_;
  const std::optional<SliceSpec> rows = rows_;
  std::vector<Deferred> all;
  all.swap(deferred_);
  for (Deferred& item : all) {
    TensorInfo& tensor = item.tensor;
    if (tensor.slot >= results.end) {
      deferred_.push_back(std::move(item));
      continue;
    }
    // A tensor that was recorded only after its slot had been delivered is
    // lost, because its memory was released.
    const bool arrived =
        tensor.slot >= results.first && !results.numbers.empty();
    if (arrived && tensor.arrival == Arrival::kBytes) {
      tensor.arrival = Arrival::kNow;
      tensor.view.sizes = item.sizes;
      tensor.view.strides = item.strides;
      SetDegraded(item.degraded);
      rows_ = item.rows;
      Record(tensor, *item.plan, item.want_payload, item.out);
    } else if (arrived && !item.want_payload &&
               item.plan->summary_mode == SummaryMode::kStatistics &&
               item.plan->extra_statistics.empty() &&
               item.plan->slices.empty() && !item.rows.has_value()) {
      StatisticsToProto(
          StatisticsOfReduced(tensor.view.dtype, item.sizes.empty(),
                              item.plan->precision,
                              results.numbers[tensor.slot - results.first]),
          item.out->mutable_stats());
      // Its statistics cost less than a digest of its bytes.
      item.out->set_degraded(std::min(item.degraded, uint32_t{1}));
    } else {
      SetNoData(*item.plan, item.out);
      if (!item.want_payload) continue;
      ++payloads_;
      ++lost_payloads_;
      item.out->mutable_payload()->set_lost(v1::LOSS_REASON_AGENT_FAULT);
    }
  }
  SetDegraded(degraded);
  rows_ = rows;
}

// Copies the bytes now, because the call may write into its arguments.
void TensorRecorder::Hold(const ResolvedTensor& tensor,
                          v1::TensorSummary* out) {
  HeldPayloads::Item item;
  item.length_bytes = tensor.bytes;
  if (degraded_ > 0 || (fits_ != nullptr && !fits_(item.length_bytes))) {
    item.lost_to_budget = true;
    item.lost = v1::LOSS_REASON_AGENT_BUDGET;
  } else if (const uint64_t limit = session_->HoldLimitBytes();
             held_bytes_ > limit || item.length_bytes > limit - held_bytes_) {
    // Waiting would not help: the space is used by payloads that are held here.
    item.lost = v1::LOSS_REASON_AGENT_BUDGET;
  } else {
    item.buffer = session_->ReservePayload(item.length_bytes, &item.lost);
  }
  if (item.buffer != nullptr) {
    SummaryRequest copy;
    copy.statistics = false;
    copy.copy_to = item.buffer->data();
    Summarize(tensor, LayoutOf(tensor, /*in_order=*/true), copy);
  }
  held_->Add(std::move(item), out);
}

void TensorRecorder::SendHeld(HeldPayloads* held, v1::CallPhase* phase) {
  ForEachTensor(phase, [&](v1::TensorSummary* tensor) {
    HeldPayloads::Item* const item = held->Of(*tensor);
    if (item == nullptr) return;
    v1::PayloadRef* const payload = tensor->mutable_payload();
    // Removes the token, which HeldPayloads::Add stored in length_bytes.
    payload->Clear();
    payload->set_length_bytes(item->length_bytes);
    ++payloads_;
    if (item->buffer == nullptr) {
      ++lost_payloads_;
      payload->set_lost(item->lost);
      if (item->lost_to_budget)
        tensor->set_degraded(std::max(tensor->degraded(), uint32_t{1}));
      return;
    }
    SummaryRequest request;
    request.statistics = false;
    request.digest = true;
    const auto length = static_cast<int64_t>(item->length_bytes);
    const int64_t stride = 1;
    const Summary summary = Summarize(
        {item->buffer->data(), v1::DTYPE_UINT8, {&length, 1}, {&stride, 1}},
        request);
    payload->set_digest(summary.digest.data(), summary.digest.size());
    payload_bytes_ += item->length_bytes;
    std::unique_ptr<PayloadBuffer> buffer = held->Take(item);
    if (!session_->KnowsPayload(summary.digest, item->length_bytes))
      session_->SubmitPayload(summary.digest, std::move(buffer));
  });
}

TensorRecorder::Known TensorRecorder::Summarise(const ResolvedTensor& tensor,
                                                const StridedLayout& layout,
                                                bool in_order,
                                                const SummaryRequest& wanted,
                                                bool want_payload) {
  SummaryRequest request = wanted;
  Known known;
  const uint64_t bytes = tensor.bytes;
  std::unique_ptr<PayloadBuffer> buffer;
  if (want_payload && tensor.has_memory() && session_ != nullptr) {
    known.has_payload = true;
    if (degraded_ > 0 || (fits_ != nullptr && !fits_(bytes)) ||
        (optional_bytes_.has_value() && bytes > *optional_bytes_)) {
      known.lost_to_budget = true;
      known.lost = v1::LOSS_REASON_AGENT_BUDGET;
    } else {
      buffer = session_->ReservePayload(
          bytes, optional_bytes_.has_value() ? nullptr : &known.lost);
    }
    if (buffer != nullptr) {
      request.digest = true;
      request.copy_to = buffer->data();
      if (optional_bytes_.has_value()) *optional_bytes_ -= bytes;
    } else if (optional_bytes_.has_value()) {
      known = Known();
    }
  }
  // Without a payload only statistics remain, whose sums are computed in memory
  // order.
  known.summary =
      in_order && !SummaryNeedsOrder(request) && tensor.has_memory()
          ? Summarize(tensor, LayoutOf(tensor, /*in_order=*/false), request)
          : Summarize(tensor, layout, request);
  if (buffer != nullptr && !session_->KnowsPayload(known.summary.digest, bytes))
    session_->SubmitPayload(known.summary.digest, std::move(buffer));
  if (known.has_payload && known.lost == v1::LOSS_REASON_UNSPECIFIED)
    payload_bytes_ += bytes;
  return known;
}

}  // namespace rankprobe
