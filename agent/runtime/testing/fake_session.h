// SPDX-License-Identifier: Apache-2.0
// A Session that stores what it receives. For tests; not thread-safe.
#ifndef RANKPROBE_AGENT_RUNTIME_TESTING_FAKE_SESSION_H_
#define RANKPROBE_AGENT_RUNTIME_TESTING_FAKE_SESSION_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/runtime/session/session.h"

namespace rankprobe::testing {

// Data that a FakeSession received; must outlive it.
struct Received {
  struct Entry {
    int64_t step = 0;
    v1::Record record;
  };
  std::vector<Entry> records;
  std::map<std::string, std::string> payloads;  // by digest
  std::vector<int64_t> steps_begun;
  std::vector<v1::AgentEvent> events;
  int reference_asked = 0;
  // The answers of the session.
  bool shed_payloads = false;
  uint64_t hold_limit_bytes = UINT64_MAX;
  v1::ReferenceChunk reference;
  absl::Status reference_status;
  ActivePlan remote;
  TriggerWatcher* watcher = nullptr;

  // Names of the calls of `step` in the order of their records.
  std::vector<std::string> Calls(int64_t step) const {
    std::vector<std::string> names;
    for (const Entry& e : records) {
      if (e.step == step && e.record.has_call()) {
        names.push_back(e.record.call().entry());
      }
    }
    return names;
  }
  const v1::CallPhase* Find(const std::string& entry, bool output) const {
    for (const Entry& e : records) {
      if (e.record.has_call() && e.record.call().entry() == entry &&
          e.record.call().has_output() == output) {
        return &e.record.call();
      }
    }
    return nullptr;
  }
};

class FakeSession : public Session {
 public:
  explicit FakeSession(Received* received) : received_(received) {}

  absl::Status WaitConnected(absl::Duration) override {
    return absl::OkStatus();
  }
  ActivePlan BeginStep(int64_t step) override {
    received_->steps_begun.push_back(step);
    if (received_->remote.plan != nullptr) return received_->remote;
    return {local_, 0, enabled_};
  }
  bool BeginIdleStep(int64_t step) override {
    if (received_->remote.plan != nullptr || enabled_) return false;
    received_->steps_begun.push_back(step);
    return true;
  }
  void SetLocalPlan(std::shared_ptr<const Plan> plan, bool enabled) override {
    local_ = std::move(plan);
    enabled_ = enabled;
  }
  std::unique_ptr<PayloadBuffer> ReservePayload(
      uint64_t length_bytes, v1::LossReason* reason) override {
    if (received_->shed_payloads) {
      if (reason != nullptr) *reason = v1::LOSS_REASON_AGENT_BUDGET;
      return nullptr;
    }
    return std::make_unique<Buffer>(length_bytes);
  }
  void SubmitPayload(const std::array<uint8_t, 16>& digest,
                     std::unique_ptr<PayloadBuffer> payload) override {
    received_->payloads[Text(digest)] =
        std::string(payload->data(), payload->size());
  }
  bool KnowsPayload(const std::array<uint8_t, 16>& digest, uint64_t) override {
    return received_->payloads.count(Text(digest)) > 0;
  }
  bool SubmitRecords(std::unique_ptr<RecordBuffer> records) override {
    for (const v1::Record& record : records->batch()->records()) {
      received_->records.push_back({records->batch()->step(), record});
    }
    return true;
  }
  void SetRank(int64_t, int64_t) override {}
  absl::Status Flush(v1::Durability, absl::Duration) override {
    return absl::OkStatus();
  }
  SessionStats GetStats() const override { return {}; }
  void SendEvent(v1::AgentEvent event) override {
    received_->events.push_back(std::move(event));
  }
  TriggerWatcher* watcher() override { return received_->watcher; }
  uint64_t HoldLimitBytes() const override {
    return received_->hold_limit_bytes;
  }
  absl::Status FetchReference(
      const v1::ReferenceRequest&, absl::Duration,
      const std::function<absl::Status(const v1::ReferenceChunk&)>& add)
      override {
    ++received_->reference_asked;
    if (const absl::Status status = add(received_->reference); !status.ok())
      return status;
    return received_->reference_status;
  }

 private:
  class Buffer : public PayloadBuffer {
   public:
    explicit Buffer(uint64_t size) : data_(size, '\0') {}
    char* data() override { return data_.data(); }
    uint64_t size() const override { return data_.size(); }

   private:
    std::string data_;
  };
  static std::string Text(const std::array<uint8_t, 16>& digest) {
    return {digest.begin(), digest.end()};
  }

  Received* const received_;
  std::shared_ptr<const Plan> local_;
  bool enabled_ = false;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_AGENT_RUNTIME_TESTING_FAKE_SESSION_H_
