// SPDX-License-Identifier: Apache-2.0
// Reader of a collector's answer in many messages. The call is repeated once if the
// first message or the request was damaged on the way; later damage ends the call,
// since messages that were read may have been used.
#ifndef RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_
#define RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "cli/client/client.h"
#include "common/rpc/damaged_answers.h"

namespace rankprobe {

// From one thread. The client outlives it, and so does what `open` refers to.
template <typename Message>
class AnswerStream {
 public:
  using Open = std::function<std::unique_ptr<grpc::ClientReader<Message>>(
      grpc::ClientContext*)>;

  // `extra_seconds`: see Client::Prepare.
  AnswerStream(const Client& client, double extra_seconds, Open open)
      : client_(client), extra_seconds_(extra_seconds), open_(std::move(open)) {
    Begin();
  }

  // False: it has ended, Finish says why.
  bool Read(Message* message) {
    if (ended_.has_value()) return false;
    if (reader_->Read(message)) {
      first_ = false;
      return true;
    }
    ended_ = reader_->Finish();
    if (!first_ || !(AnswerWasDamaged(*ended_) || RequestMayBeDamaged(*ended_)))
      return false;
    first_ = false;
    ended_.reset();
    Begin();
    return Read(message);
  }
  // Nothing more is read.
  void Cancel() {
    first_ = false;
    context_->TryCancel();
  }
  absl::Status Finish() {
    if (!ended_.has_value()) ended_ = reader_->Finish();
    return client_.ToStatus(*ended_);
  }

  // After Finish().
  bool WasDamaged() const { return AnswerWasDamaged(*ended_); }

 private:
  void Begin() {
    reader_.reset();
    context_ = std::make_unique<grpc::ClientContext>();
    client_.Prepare(context_.get(), extra_seconds_);
    reader_ = open_(context_.get());
  }

  const Client& client_;
  const double extra_seconds_;
  const Open open_;
  bool first_ = true;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<Message>> reader_;
  std::optional<grpc::Status> ended_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_ANSWER_STREAM_H_
