// SPDX-License-Identifier: Apache-2.0
// A leaf's handler of its root's questions about data that is not stored yet:
// each is answered by a worker, on a stream that the leaf opens, over a
// separate connection, so that switches do not wait behind bulk data.
// Ownership: one per leaf; store and Logger outlive it. Threads: Answer from
// any, and it does not wait. Failure: a root that has disconnected, or does not
// wait any more, ends the answer; lists do not wait behind payloads whose
// reader is slow. The root is informed which questions are queued as long as
// the running ones advance: a leaf whose disk hangs reports nothing, and counts
// as unreachable.
#ifndef RANKPROBE_COLLECTOR_SERVER_LEAF_ANSWERS_H_
#define RANKPROBE_COLLECTOR_SERVER_LEAF_ANSWERS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collector/rpc/worker_pool.h"
#include "collector/sealed/answer_live.h"
#include "collector/store/archive_reader.h"
#include "common/base/monotonic_time.h"
#include "common/rpc/channel_security.h"
#include "rankprobe/v1/leaf.grpc.pb.h"

namespace rankprobe {

class LeafAnswers {
 public:
  struct Options {
    // HOST:PORT.
    std::string root;
    ChannelSecurity security;
    IsStoredFn is_stored;
  };
  LeafAnswers(Options options, ArchiveReader* store);
  ~LeafAnswers();

  void Answer(v1::LiveQuestion question);
  // Returns the value of LeafReport.waiting.
  std::vector<std::string> Waiting();
  // Cancels running answers.
  void Stop();

 private:
  // The questions that one pool of workers answers.
  struct Queue {
    std::unique_ptr<WorkerPool> workers;
    // Ids of waiting questions.
    std::set<std::string> waiting;
    // Workers that wait for the root to read.
    int writing = 0;
    // When a question was begun or advanced last.
    MonotonicTime moved;
  };
  void Work(const v1::LiveQuestion& question, Queue* queue);
  void NoteWriting(bool begins, Queue* queue);

  const Options options_;
  ArchiveReader* const store_;
  const std::unique_ptr<v1::RootService::Stub> stub_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Contexts of the open streams.
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
  // Their workers are created and stopped without the lock.
  Queue lists_, data_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_LEAF_ANSWERS_H_
