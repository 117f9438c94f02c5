// SPDX-License-Identifier: Apache-2.0
#include "collector/server/leaf_answers.h"

#include <utility>

#include "collector/server/root_link.h"
#include "common/rpc/grpc_channel.h"

namespace rankprobe {
namespace {

constexpr size_t kListThreads = 2;
// Each thread may be held by a slow reader for as long as the root allows.
constexpr size_t kDataThreads = 8;
constexpr size_t kMaxQueued = 1024;
// The leaf counts as stuck if all workers of a pool wait for the store and none
// has advanced for this long.
constexpr absl::Duration kStuck = absl::Seconds(5);

std::shared_ptr<grpc::Channel> ChannelTo(const LeafAnswers::Options& options) {
  grpc::ChannelArguments arguments;
  // A connection separate from that of the link.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return ChannelToRoot(options.root, options.security, arguments);
}

}  // namespace

LeafAnswers::LeafAnswers(Options options, ArchiveReader* store)
    : options_(std::move(options)),
      store_(store),
      stub_(v1::RootService::NewStub(ChannelTo(options_))) {
  lists_.workers = std::make_unique<WorkerPool>(kListThreads, kMaxQueued);
  data_.workers = std::make_unique<WorkerPool>(kDataThreads, kMaxQueued);
}

LeafAnswers::~LeafAnswers() { Stop(); }

void LeafAnswers::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    for (grpc::ClientContext* const context : contexts_) context->TryCancel();
  }
  lists_.workers.reset();
  data_.workers.reset();
}

void LeafAnswers::Answer(v1::LiveQuestion question) {
  Queue* const queue =
      question.has_records() || question.has_payload() ? &data_ : &lists_;
  const std::string id = question.id();
  {
    absl::MutexLock lock(&mutex_);
    if (queue->waiting.empty()) queue->moved = MonotonicNow();
    queue->waiting.insert(id);
  }
  if (queue->workers->Run([this, queue, question = std::move(question)] {
        Work(question, queue);
      }))
    return;
  // If the queue is full, the root gets no answer, and reports that.
  absl::MutexLock lock(&mutex_);
  queue->waiting.erase(id);
}

std::vector<std::string> LeafAnswers::Waiting() {
  std::vector<std::string> waiting;
  absl::MutexLock lock(&mutex_);
  for (const Queue* queue : {&lists_, &data_}) {
    if (queue->writing > 0 || Since(queue->moved) < kStuck)
      waiting.insert(waiting.end(), queue->waiting.begin(),
                     queue->waiting.end());
  }
  return waiting;
}

void LeafAnswers::NoteWriting(bool begins, Queue* queue) {
  absl::MutexLock lock(&mutex_);
  queue->writing += begins ? 1 : -1;
  queue->moved = MonotonicNow();
}

void LeafAnswers::Work(const v1::LiveQuestion& question, Queue* queue) {
  grpc::ClientContext context;
  AddToken(options_.security, &context);
  {
    absl::MutexLock lock(&mutex_);
    queue->waiting.erase(question.id());
    queue->moved = MonotonicNow();
    if (stopped_) return;
    contexts_.insert(&context);
  }
  v1::LiveAnswered answered;
  const auto stream = stub_->Answer(&context, &answered);
  bool named = false;
  const auto write = [&](v1::LiveAnswer part) {
    if (!std::exchange(named, true)) part.set_id(question.id());
    NoteWriting(true, queue);
    const bool written = stream->Write(part);
    NoteWriting(false, queue);
    return written ? absl::OkStatus()
                   : absl::CancelledError("the question has ended");
  };
  const absl::Status status =
      AnswerLive(store_, options_.is_stored, question, write);
  v1::LiveAnswer last;
  last.mutable_end()->set_code(static_cast<uint32_t>(status.code()));
  last.mutable_end()->set_message(std::string(status.message()));
  (void)write(std::move(last));
  NoteWriting(true, queue);
  stream->WritesDone();
  // The status is ignored: if the root ended the stream early, it knows why.
  (void)stream->Finish();
  NoteWriting(false, queue);
  absl::MutexLock lock(&mutex_);
  contexts_.erase(&context);
}

}  // namespace rankprobe
