// SPDX-License-Identifier: Apache-2.0
// A root's questions to its leaves for data that they have not stored yet. In
// many networks a root cannot connect to a leaf: the question is sent down the
// Link that the leaf holds, and the leaf opens a stream for its answer
// (RootService.Answer), which is read as fast as the caller takes it.
//
// A leaf that was linked and no longer is stays known, and counts as
// unreachable until it returns; so does one that is silent for kSilence. A root
// that has just started waits for its leaves before it answers.
// Ownership: one per root, outlives its service and answers. Threads:
// thread-safe; callers wait in Next, gRPC's threads never wait. Memory: two
// parts of 1 MiB per question. Failure: an answer that no caller waits for, or
// that comes from another principal than the leaf's, is NOT_FOUND.
#ifndef RANKPROBE_COLLECTOR_RPC_LEAF_QUESTIONS_H_
#define RANKPROBE_COLLECTOR_RPC_LEAF_QUESTIONS_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collector/control/leaf_registry.h"
#include "collector/sealed/live_leaves.h"
#include "common/base/monotonic_time.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class LeafQuestions : public LiveLeaves {
 public:
  struct Options {
    absl::Duration settling = LeafRegistry::kSettling;
    // Limits for each part of an answer, and for all of them except those of a
    // payload.
    absl::Duration part_time = absl::Seconds(5);
    absl::Duration answer_time = absl::Seconds(60);
    absl::Duration silence = LeafRegistry::kSilence;
    size_t max_leaves = 1024;
  };
  LeafQuestions(const Options& options, MonotonicTime began)
      : options_(options), began_(began) {}

  std::vector<Leaf> Leaves() override;
  std::unique_ptr<Answer> Ask(const std::string& leaf,
                              v1::LiveQuestion question) override;

  // Called by RootService. A link is one stream of a leaf; `send` only queues.
  using SendFn = std::function<void(const v1::RootNote&)>;
  void Linked(uint64_t link, const v1::LeafReport& report,
              const std::string& who, SendFn send);
  void Heard(uint64_t link, const v1::LeafReport& report);
  // Called when a rank of the run has connected to the leaf; the leaf's next
  // reports contain the run, too.
  void Began(uint64_t link, const std::string& run);
  void Gone(uint64_t link);
  // Returns the reactor of an answer's stream, whose first part names the
  // question.
  grpc::ServerReadReactor<v1::LiveAnswer>* Receive(const std::string& who);

 private:
  class Pending;
  class Stream;
  class Reader;
  struct Known {
    std::string address;
    std::string who;
    // 0 if it is disconnected.
    uint64_t link = 0;
    MonotonicTime heard;
    SendFn send;
    std::shared_ptr<const std::vector<std::string>> runs;
    // Runs that no report contains yet.
    std::set<std::string> began;
  };

  void Note(const v1::LeafReport& report, Known* leaf)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns why the leaf cannot be asked; empty if it can.
  std::string AwayText(const Known& leaf, MonotonicTime now) const;
  std::shared_ptr<Pending> Take(const std::string& id, const std::string& who);
  void Forget(const std::string& id);

  const Options options_;
  const MonotonicTime began_;
  absl::Mutex mutex_;
  // Only used for its timeout, by callers that wait until the root has settled.
  MonotonicCondVar never_;
  std::map<std::string, Known> leaves_ ABSL_GUARDED_BY(mutex_);
  // Questions whose answer has not begun.
  std::map<std::string, std::shared_ptr<Pending>> pending_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_RPC_LEAF_QUESTIONS_H_
