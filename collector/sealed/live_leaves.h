// SPDX-License-Identifier: Apache-2.0
// Leaves that can be asked for what they have not stored yet, as the caller
// sees them (collector/rpc/leaf_questions.h asks them over their links).
// Threads: thread-safe; an Answer is one thread's.
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
    // That of its logs in the store.
    std::string name;
    // For people.
    std::string address;
    // Empty: it can be asked. Else why not, naming it, for a person.
    std::string away;
    // The runs that it has something of, sorted, as it said last; null: any.
    std::shared_ptr<const std::vector<std::string>> runs;
  };
  // What comes of a question, part by part.
  class Answer {
   public:
    // Gives up what has not come.
    virtual ~Answer() = default;
    // False: all has come. Waits a bounded time for each part, and for all of
    // them. What the leaf answers, or UNAVAILABLE naming it.
    virtual absl::StatusOr<bool> Next(v1::LiveAnswer* part) = 0;
  };

  virtual ~LiveLeaves() = default;
  // Those that are there, and those that were and have gone.
  virtual std::vector<Leaf> Leaves() = 0;
  // Sends the question, without an id, and waits for nothing.
  virtual std::unique_ptr<Answer> Ask(const std::string& leaf,
                                      v1::LiveQuestion question) = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_LIVE_LEAVES_H_
