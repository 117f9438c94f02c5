// SPDX-License-Identifier: Apache-2.0
// Turns a tensor in memory into the TensorSummary of a record: statistics,
// checksum and payload by the plan. The statistics of a tensor that occurs
// again unchanged in a step are computed once. Not thread-safe: guarded by the
// Recorder's lock.
// Failure: what cannot be stored is marked lost in the summary.
#ifndef RANKPROBE_AGENT_RUNTIME_RECORDER_TENSOR_RECORDER_H_
#define RANKPROBE_AGENT_RUNTIME_RECORDER_TENSOR_RECORDER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "agent/runtime/queue/held_payloads.h"
#include "agent/runtime/session/session.h"
#include "common/config/plan.h"
#include "common/tensor/resolved_tensor.h"
#include "common/tensor/strided_layout.h"
#include "common/tensor/summary.h"
#include "common/tensor/tensor_view.h"

namespace rankprobe {

// Identifies the content of a tensor within one step. `storage` must not be
// reused for other memory before the step ends (the front end holds a
// reference); null: not cached.
struct TensorIdentity {
  const void* storage = nullptr;
  uint64_t version = 0;
};

// How the numbers of a tensor arrive. Training does not wait for a device:
// requested results are delivered by Recorder::ResolveDeferred.
enum class Arrival : uint8_t {
  kNow,
  // Reduced on the device; `view` has no memory.
  kNumbers,
  // Being copied to the host memory of `view`, which stays valid until then.
  kBytes,
};

struct TensorInfo {
  TensorView view;
  bool requires_grad = false;
  // A weight: it has no rows of a batch, whatever its size is.
  bool is_parameter = false;
  TensorIdentity identity;
  Arrival arrival = Arrival::kNow;
  // Slot of a deferred tensor; never reused.
  uint64_t slot = 0;
};

// Results for the slots from `first` to `end` (exclusive).
struct DeferredResults {
  uint64_t first = 0, end = 0;
  // One for each slot, unused for kBytes; empty: nothing arrived, all is lost.
  absl::Span<const ReducedNumbers> numbers;
};

// Fills in the summary of a tensor without numbers.
void SetNoData(const Plan& plan, v1::TensorSummary* out);

class TensorRecorder {
 public:
  // `session` must outlive the recorder; it may be null (no payloads then).
  explicit TensorRecorder(Session* session) : session_(session) {}

  void BeginStep() {
    const size_t count = cache_.size();
    cache_.clear();
    // The next step has as many, most likely.
    cache_.reserve(count);
  }
  // MindSpore's tools reduce integers and float64 as float32, with Mean and
  // Norm.
  void SetWideAsFloat(bool wide_as_float) { wide_as_float_ = wide_as_float; }
  // In addition to the plan's slices: the rows to record of tensors that have
  // as many as the batch and are not parameters, until the next call. Null:
  // all.
  void SetRows(std::optional<SliceSpec> rows) { rows_ = rows; }
  bool has_rows() const { return rows_.has_value(); }
  const std::optional<SliceSpec>& rows() const { return rows_; }
  // Fills `out` with what the plan records of a tensor. A deferred tensor is
  // completed by Resolve.
  void Record(const TensorInfo& tensor, const Plan& plan, bool want_payload,
              v1::TensorSummary* out);

  // --- Tensors whose numbers have not arrived. Their summaries, and the plan,
  // must stay in place until Resolve.
  bool HasDeferred() const { return !deferred_.empty(); }
  size_t deferred() const { return deferred_.size(); }
  // Fills in the tensors below `results.end`, with nulls if nothing arrived.
  void Resolve(const DeferredResults& results);

  // Reference mode, until EndReference: tensors have their data_name, and their
  // bytes go to `held` (null: nowhere) instead of to the session.
  void BeginReference(HeldPayloads* held) {
    reference_ = true;
    held_ = held;
  }
  void EndReference() {
    reference_ = false;
    held_ = nullptr;
  }
  // Sends the payloads of the tokens in the phase.
  void SendHeld(HeldPayloads* held, v1::CallPhase* phase);
  uint64_t* held_bytes() { return &held_bytes_; }

  // Counts since the last BeginCount.
  uint64_t payloads() const { return payloads_; }
  uint64_t lost_payloads() const { return lost_payloads_; }
  void BeginCount() { payloads_ = lost_payloads_ = 0; }

  // Evidence level to record, TensorSummary.degraded. `fits` is called for each
  // payload: whether it still fits the budget (null: always).
  void SetDegraded(uint32_t level) {
    if (level != degraded_) cache_.clear();
    degraded_ = level;
  }
  void SetFits(std::function<bool(uint64_t)> fits) { fits_ = std::move(fits); }
  // Until set to null: payloads of at most these bytes together may be
  // recorded, and one that cannot be recorded now is left out without counting
  // as a loss.
  void SetOptionalBytes(std::optional<uint64_t> bytes) {
    optional_bytes_ = bytes;
  }
  // Bytes of payloads submitted since the recorder was made.
  uint64_t payload_bytes() const { return payload_bytes_; }

 private:
  // Identifies the elements of a tensor, not its shape: views of one storage
  // with the same elements (in the same order, if the order matters) share one
  // entry.
  struct Key {
    const void* storage;
    uint64_t version;
    v1::DType dtype;
    // Set for a 0-dimensional tensor, whose statistics follow other rules.
    bool scalar;
    StridedLayout layout;
    template <typename H>
    friend H AbslHashValue(H h, const Key& k) {
      return H::combine(std::move(h), k.storage, k.layout.data, k.version,
                        static_cast<int>(k.dtype), k.layout.repeat, k.scalar,
                        k.layout.sizes, k.layout.strides);
    }
    friend bool operator==(const Key& a, const Key& b) {
      return a.storage == b.storage && a.layout.data == b.layout.data &&
             a.version == b.version && a.dtype == b.dtype &&
             a.layout.repeat == b.layout.repeat && a.scalar == b.scalar &&
             a.layout.sizes == b.layout.sizes &&
             a.layout.strides == b.layout.strides;
    }
  };

  // Known results for a tensor's elements.
  struct Known {
    Summary summary;
    bool has_payload = false;
    v1::LossReason lost = v1::LOSS_REASON_UNSPECIFIED;
    bool lost_to_budget = false;
  };

  struct Deferred {
    v1::TensorSummary* out;
    TensorInfo tensor;
    // Memory that the view of `tensor` points to.
    std::vector<int64_t> sizes, strides;
    const Plan* plan;
    bool want_payload;
    uint32_t degraded;
    std::optional<SliceSpec> rows;
  };

  void Defer(const TensorInfo& tensor, const Plan& plan, bool want_payload,
             v1::TensorSummary* out);
  // `layout` is in order if `in_order`, which is required for a payload and if
  // SummaryNeedsOrder(request).
  Known Summarise(const ResolvedTensor& tensor, const StridedLayout& layout,
                  bool in_order, const SummaryRequest& request,
                  bool want_payload);

  void Hold(const ResolvedTensor& tensor, v1::TensorSummary* out);

  Session* const session_;
  std::optional<SliceSpec> rows_;
  bool wide_as_float_ = false;
  bool reference_ = false;
  HeldPayloads* held_ = nullptr;
  uint64_t held_bytes_ = 0;
  uint64_t payloads_ = 0;
  uint64_t lost_payloads_ = 0;
  uint64_t payload_bytes_ = 0;
  uint32_t degraded_ = 0;
  std::optional<uint64_t> optional_bytes_;
  std::function<bool(uint64_t)> fits_;
  absl::flat_hash_map<Key, Known> cache_;
  std::vector<Deferred> deferred_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_RECORDER_TENSOR_RECORDER_H_
