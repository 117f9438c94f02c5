// SPDX-License-Identifier: Apache-2.0
// Reader of a collector's streamed answer. If something was damaged in transit
// or the connection ended, the call is repeated and the messages that were read
// before are skipped, so that reading continues where it ended. The call ends
// with DATA_LOSS after kMostCalls calls, or if the skipped messages are not
// those that were read, and with UNAVAILABLE if a second connection ended.
#ifndef RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_
#define RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "cli/client/client.h"
#include "common/io/crc32c.h"
#include "common/rpc/checked_message.h"
#include "common/rpc/damaged_answers.h"

namespace rankprobe {

// From one thread. The client outlives it.
template <typename Message>
class AnswerStream {
 public:
  using Reader = std::unique_ptr<grpc::ClientReader<Message>>;
  // kFromItsBegin: the answer is not the same when it is repeated, so the call is only
  // repeated before a message was read.
  enum class Repeats : uint8_t { kFromWhereItEnded, kFromItsBegin };
  static constexpr int kMostCalls = 4;

  // `extra_seconds`: see Client::Prepare.
  template <typename Request>
  AnswerStream(const Client& client, double extra_seconds,
               Reader (ArchiveStub::*method)(grpc::ClientContext*,
                                             const Request&),
               const Request& request,
               Repeats repeats = Repeats::kFromWhereItEnded)
      : client_(client),
        extra_seconds_(extra_seconds),
        open_([&client, method, request](grpc::ClientContext* context) {
          return (client.archive.get()->*method)(context, request);
        }),
        repeats_(repeats) {
    Begin();
  }

  // Returns false at the end of the answer; Finish returns the reason.
  bool Read(Message* message) {
    while (!ended_.has_value()) {
      if (!reader_->Read(message)) {
        EndCall();
        continue;
      }
      const uint32_t checksum = ChecksumOfThread();
      digest_ = Crc32c({reinterpret_cast<const char*>(&checksum),  // NOLINT
                        sizeof(checksum)},
                       digest_);
      if (++received_ > returned_) {
        returned_ = received_;
        returned_digest_ = digest_;
        return true;
      }
      if (received_ == returned_ && digest_ != returned_digest_) {
        context_->TryCancel();
        (void)reader_->Finish();
        ended_ = Changed();
      }
    }
    return false;
  }
  // Ends the call; nothing more can be read.
  void Cancel() {
    calls_ = kMostCalls;
    context_->TryCancel();
  }
  absl::Status Finish() {
    if (!ended_.has_value()) ended_ = reader_->Finish();
    return client_.ToStatus(*ended_);
  }

  // Valid after Finish().
  bool WasDamaged() const { return AnswerWasDamaged(*ended_); }

 private:
  static grpc::Status Changed() {
    return grpc::Status(
        grpc::StatusCode::DATA_LOSS,
        "the collector's answer was damaged in transit, and the repeated "
        "answer is a different one");
  }

  void Begin() {
    ++calls_;
    received_ = 0;
    digest_ = 0;
    reader_.reset();
    context_ = std::make_unique<grpc::ClientContext>();
    client_.Prepare(context_.get(), extra_seconds_);
    reader_ = open_(context_.get());
  }

  // Returns the number of messages that the collector announced, or 0 if it
  // announced none.
  uint64_t Announced() const {
    const auto& behind = context_->GetServerTrailingMetadata();
    const auto at = behind.find(kMessagesKey);
    uint64_t count = 0;
    return at != behind.end() &&
                   absl::SimpleAtoi(
                       absl::string_view(at->second.data(), at->second.size()),
                       &count)
               ? count
               : 0;
  }

  void EndCall() {
    ended_ = reader_->Finish();
    if (ended_->ok() && received_ < Announced()) {
      ended_ = DamagedAnswer();
    } else if (ended_->ok() && received_ < returned_) {
      ended_ = Changed();
    }
    // The collector accepted this request before, so the damage is in the
    // answer.
    if (RequestMayBeDamaged(*ended_) && returned_ > 0) ended_ = DamagedAnswer();
    if (!MayRepeat()) return;
    ended_.reset();
    Begin();
  }

  bool MayRepeat() const {
    if (repeats_ == Repeats::kFromItsBegin && returned_ > 0) return false;
    // A collector that ends each connection may take long to do so, so the call
    // is repeated only once.
    if (ConnectionEnded(*ended_)) return calls_ == 1;
    return calls_ < kMostCalls &&
           (AnswerWasDamaged(*ended_) || RequestMayBeDamaged(*ended_));
  }

  const Client& client_;
  const double extra_seconds_;
  const std::function<Reader(grpc::ClientContext*)> open_;
  const Repeats repeats_;
  int calls_ = 0;
  // Messages received by this call, and messages returned by Read() in total,
  // with a digest of each.
  uint64_t received_ = 0, returned_ = 0;
  uint32_t digest_ = 0, returned_digest_ = 0;
  std::unique_ptr<grpc::ClientContext> context_;
  Reader reader_;
  std::optional<grpc::Status> ended_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_
