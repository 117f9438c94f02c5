// SPDX-License-Identifier: Apache-2.0
// Leaves that can be asked for data that they have not stored yet, as the
// caller sees them (collector/rpc/leaf_questions.h asks them over their links).
// Threads: thread-safe; an Answer is used by one thread.
#ifndef RANKPROBE_COLLECTOR_SEALED_LIVE_LEAVES_H_
#define RANKPROBE_COLLECTOR_SEALED_LIVE_LEAVES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {

class LiveLeaves {
 public:
  struct Leaf {
    // The name of its logs in the store.
    std::string name;
    // For display.
    std::string address;
    // Empty if the leaf can be asked; otherwise why not, with its name, for
    // display.
    std::string away;
    // The runs of which it has data, sorted, as it reported last; null if
    // unknown.
    std::shared_ptr<const std::vector<std::string>> runs;
  };
  // The answer to a question, part by part.
  class Answer {
   public:
    // Cancels the parts that have not arrived.
    virtual ~Answer() = default;
    // Returns false after the last part. Waits a bounded time for each part,
    // and for all of them. The error is the leaf's, or UNAVAILABLE with its
    // name.
    virtual absl::StatusOr<bool> Next(v1::LiveAnswer* part) = 0;
  };

  virtual ~LiveLeaves() = default;
  // Returns the connected leaves, and those that were connected before.
  virtual std::vector<Leaf> Leaves() = 0;
  // Sends the question, without an id, and does not wait.
  virtual std::unique_ptr<Answer> Ask(const std::string& leaf,
                                      v1::LiveQuestion question) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_LIVE_LEAVES_H_
