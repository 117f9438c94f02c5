#include "agent/runtime/tensor_recorder.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/summary.h"

namespace rankprobe {
namespace {

// Python's slicing of one dimension: negative bounds count from the end.
void Slice(const SliceSpec& slice, std::vector<int64_t>* sizes,
           absl::Span<const int64_t> strides, size_t element,
           const char** data) {
  const int64_t dims = static_cast<int64_t>(sizes->size());
  const int64_t dim = slice.dim < 0 ? slice.dim + dims : slice.dim;
  if (dim < 0 || dim >= dims) return;
  int64_t& size = (*sizes)[static_cast<size_t>(dim)];
  if (slice.size.has_value() && *slice.size != size) return;
  const auto clamp = [size](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const int64_t begin = clamp(slice.begin), end = clamp(slice.end);
  if (*data != nullptr)
    *data += begin * strides[static_cast<size_t>(dim)] *
             static_cast<int64_t>(element);
  size = std::max<int64_t>(end - begin, 0);
}

// The elements fill one block of memory without gap or overlap, in any order
// of dimensions.
bool IsDense(const TensorView& view) {
  std::vector<std::pair<int64_t, int64_t>> by_stride;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 0) return false;
    if (view.sizes[i] > 1)
      by_stride.emplace_back(view.strides[i], view.sizes[i]);
  }
  std::sort(by_stride.begin(), by_stride.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : by_stride) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace

void TensorRecorder::Record(const TensorInfo& tensor, const Plan& plan,
                            bool want_payload, v1::TensorSummary* out) {
  std::vector<int64_t> sizes;
  TensorView view = tensor.view;
  if (!plan.slices.empty()) {
    sizes.assign(view.sizes.begin(), view.sizes.end());
    const char* data = static_cast<const char*>(view.data);
    for (const SliceSpec& slice : plan.slices)
      Slice(slice, &sizes, view.strides, ElementSize(view.dtype), &data);
    view.data = data;
    view.sizes = sizes;
  }
  // Statistics do not depend on the order of elements: a view of a block in
  // another shape (view, transpose) is the block itself, read straight through
  // and known again. What depends on the order takes a contiguous one.
  const absl::Span<const int64_t> shape = view.sizes;
  const bool ordered =
      want_payload || plan.summary_mode != SummaryMode::kStatistics;
  int64_t block_size = 1;
  constexpr int64_t kUnit = 1;
  if (!shape.empty() && (ordered ? IsContiguous(view) : IsDense(view))) {
    for (const int64_t size : shape) block_size *= size;
    view.sizes = absl::MakeConstSpan(&block_size, 1);
    view.strides = absl::MakeConstSpan(&kUnit, 1);
  }
  if (tensor.identity.storage == nullptr || view.data == nullptr) {
    RecordView(view, plan, want_payload, out);
  } else {
    Key key{tensor.identity.storage,
            view.data,
            tensor.identity.version,
            view.dtype,
            {}};
    key.shape_and_strides.reserve(2 * view.sizes.size());
    key.shape_and_strides.assign(view.sizes.begin(), view.sizes.end());
    key.shape_and_strides.insert(key.shape_and_strides.end(),
                                 view.strides.begin(), view.strides.end());
    const auto [it, is_new] = cache_.try_emplace(std::move(key));
    // A summary without its payload is of no use where one is wanted.
    if (is_new ||
        (want_payload && !it->second.has_payload() && PayloadBytes(view) > 0)) {
      it->second.Clear();
      RecordView(view, plan, want_payload, &it->second);
    }
    *out = it->second;
    if (!want_payload) out->clear_payload();
  }
  out->mutable_shape()->Assign(shape.begin(), shape.end());
  out->set_requires_grad(tensor.requires_grad);
  if (out->has_payload()) {
    ++payloads_;
    if (out->payload().lost() != v1::LOSS_REASON_UNSPECIFIED) ++lost_payloads_;
  }
}

void TensorRecorder::RecordView(const TensorView& view, const Plan& plan,
                                bool want_payload, v1::TensorSummary* out) {
  out->set_dtype(view.dtype);
  out->mutable_shape()->Assign(view.sizes.begin(), view.sizes.end());
  SummaryRequest request;
  request.precision = plan.precision;
  request.statistics = plan.summary_mode != SummaryMode::kXor;
  if (plan.summary_mode == SummaryMode::kMd5)
    request.checksum = ChecksumMode::kCrc32;
  if (plan.summary_mode == SummaryMode::kXor)
    request.checksum = ChecksumMode::kXor64;
  const uint64_t bytes = PayloadBytes(view);
  std::unique_ptr<PayloadBuffer> buffer;
  if (want_payload && bytes > 0 && view.data != nullptr &&
      session_ != nullptr) {
    v1::LossReason reason = v1::LOSS_REASON_UNSPECIFIED;
    buffer = session_->ReservePayload(bytes, &reason);
    if (buffer != nullptr) {
      request.digest = true;
      request.copy_to = buffer->data();
    } else {
      out->mutable_payload()->set_length_bytes(bytes);
      out->mutable_payload()->set_lost(reason);
    }
  }
  const Summary summary = Summarize(view, request);
  if (request.statistics)
    StatisticsToProto(summary.statistics, out->mutable_stats());
  if (request.checksum == ChecksumMode::kCrc32)
    out->mutable_checksum()->set_crc32(summary.crc32);
  if (request.checksum == ChecksumMode::kXor64) {
    if (bytes == 0) {
      out->mutable_checksum()->set_null(true);
    } else {
      out->mutable_checksum()->set_xor64(summary.xor64);
    }
  }
  if (buffer == nullptr) return;
  out->mutable_payload()->set_digest(summary.digest.data(),
                                     summary.digest.size());
  out->mutable_payload()->set_length_bytes(bytes);
  if (!session_->KnowsPayload(summary.digest, bytes))
    session_->SubmitPayload(summary.digest, std::move(buffer));
}

}  // namespace rankprobe
