// SPDX-License-Identifier: Apache-2.0
// One rule about the course of values (Move, Vanished): the history of each
// value, and whether the rule has fired. A value is found by its complete name,
// "Parameter.fc.weight.0.debug.grad"; values of one rule cost their names, and
// 8 bytes for each number of its window. Not thread-safe: guarded by the
// TriggerWatcher's lock.
#ifndef RANKPROBE_AGENT_RUNTIME_TRIGGERS_COURSE_WATCH_H_
#define RANKPROBE_AGENT_RUNTIME_TRIGGERS_COURSE_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/detect/course.h"
#include "rankprobe/v1/triggers.pb.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// What all rules of a process may keep together; values that come beyond it are
// not looked at.
class CourseMemory {
 public:
  static constexpr size_t kDefaultBytes = size_t{32} << 20;
  explicit CourseMemory(size_t bytes = kDefaultBytes) : free_(bytes) {}

  bool Take(size_t bytes) {
    if (bytes > free_) {
      ++left_out_;
      return false;
    }
    free_ -= bytes;
    return true;
  }
  void Give(size_t bytes) { free_ += bytes; }
  // Times that something had no room.
  uint64_t left_out() const { return left_out_; }

 private:
  size_t free_;
  uint64_t left_out_ = 0;
};

class CourseWatch {
 public:
  static bool Looks(const v1::TriggerRule& rule) {
    return rule.has_move() || rule.has_vanished();
  }
  // `rule` has its defaults filled in, and Looks. `memory` outlives this.
  CourseWatch(const v1::TriggerRule& rule, CourseMemory* memory);
  CourseWatch(const CourseWatch&) = delete;
  CourseWatch& operator=(const CourseWatch&) = delete;
  ~CourseWatch();

  // Whether it is one for `rule`, too: what it has seen is worth as much.
  bool IsFor(const v1::TriggerRule& rule) const;

  // One number of a value. What has come true, for a person, if something has.
  // While the rule `rests` a move goes by, and what has vanished is told later,
  // if it is 0 then.
  std::optional<std::string> Look(int64_t step, absl::string_view entry,
                                  absl::string_view value,
                                  const v1::TensorStats& stats, bool rests);

 private:
  struct Watched {
    CourseLimits limits;
    Course course;
    ZeroRun zeros;
    // Numbers that are no move of their own, behind one.
    uint32_t quiet = 0;
    bool told = false;
  };
  // Of one parameter what the optimizer keeps.
  struct State {
    int64_t last_step = -1;
    bool told = false;
  };

  Watched* Find(const std::string& name);
  std::optional<std::string> LookForMove(absl::string_view value, double number,
                                         bool rests, const CourseLimits& limits,
                                         Watched* watched) const;
  std::optional<std::string> LookForZeros(absl::string_view value,
                                          double number, bool rests,
                                          Watched* watched) const;
  std::optional<std::string> LookForState(int64_t step, absl::string_view entry,
                                          absl::string_view value, bool rests);

  const v1::TriggerRule rule_;
  const CourseOptions options_;
  CourseMemory* const memory_;
  size_t bytes_ = 0;
  absl::flat_hash_map<std::string, Watched> values_;
  // The entry of the last update, if that is of one number: what the update is
  // to it has no course where it passes through 0.
  std::string one_number_;
  // By the name of the parameter, "fc.weight.0.debug".
  absl::flat_hash_map<std::string, State> states_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_COURSE_WATCH_H_
