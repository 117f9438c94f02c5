// SPDX-License-Identifier: Apache-2.0
// Leaves in this process that a root asks without a link; for tests.
// Ownership: stores and sealers outlive it. Not thread-safe.
#ifndef RANKPROBE_COLLECTOR_SEALED_TESTING_FAKE_LEAVES_H_
#define RANKPROBE_COLLECTOR_SEALED_TESTING_FAKE_LEAVES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "collector/sealed/answer_live.h"
#include "collector/sealed/live_leaves.h"
#include "collector/sealed/sealer.h"
#include "collector/store/store.h"

namespace rankprobe::testing {

// Answers of leaves in this process, computed when they are requested.
class FakeLeaves : public LiveLeaves {
 public:
  struct One {
    Store* store = nullptr;
    Sealer* sealer = nullptr;
    std::string away;
    // After this many parts the answer ends.
    size_t parts = SIZE_MAX;
  };
  // Called before and after each answer.
  std::function<void(const v1::LiveQuestion&)> before, after;
  size_t asked = 0;

  void Add(Store* store, Sealer* sealer) {
    ones_[sealer->shard()] = {store, sealer, "", SIZE_MAX};
  }
  One* one(const Sealer& sealer) { return &ones_[sealer.shard()]; }
  void Remove(const Sealer& sealer) { ones_.erase(sealer.shard()); }

  std::vector<Leaf> Leaves() override {
    std::vector<Leaf> leaves;
    for (const auto& [name, one] : ones_) {
      leaves.push_back({name, "leaf-" + name.substr(0, 2), one.away,
                        std::make_shared<const std::vector<std::string>>(
                            one.store->RunNames())});
    }
    return leaves;
  }
  std::unique_ptr<Answer> Ask(const std::string& leaf,
                              v1::LiveQuestion question) override {
    ++asked;
    if (before) before(question);
    auto answer = std::make_unique<Made>();
    const One& one = ones_[leaf];
    if (!one.away.empty()) {
      answer->status = absl::UnavailableError(leaf + " " + one.away);
      return answer;
    }
    answer->status = AnswerLive(
        one.store,
        [&](const std::string& run, const v1::StepInfo& info) {
          return one.sealer->IsStored(run, info);
        },
        question,
        [&](v1::LiveAnswer part) {
          if (answer->parts.size() >= one.parts)
            return absl::UnavailableError(leaf + " hangs");
          answer->parts.push_back(std::move(part));
          return absl::OkStatus();
        });
    if (after) after(question);
    return answer;
  }

 private:
  struct Made : Answer {
    absl::StatusOr<bool> Next(v1::LiveAnswer* part) override {
      if (next == parts.size()) {
        if (!status.ok()) return status;
        return false;
      }
      *part = parts[next++];
      return true;
    }
    std::vector<v1::LiveAnswer> parts;
    size_t next = 0;
    absl::Status status;
  };
  std::map<std::string, One> ones_;
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_SEALED_TESTING_FAKE_LEAVES_H_
