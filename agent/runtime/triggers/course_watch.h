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

// Bytes that all rules of a process may use together; further values are not
// watched.
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
  // How often a request was refused.
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
  // `rule` must have its defaults filled in, and Looks must hold for it.
  // `memory` must outlive this object.
  CourseWatch(const v1::TriggerRule& rule, CourseMemory* memory);
  CourseWatch(const CourseWatch&) = delete;
  CourseWatch& operator=(const CourseWatch&) = delete;
  ~CourseWatch();

  // Whether this object can continue with `rule`: its history is valid for it.
  bool IsFor(const v1::TriggerRule& rule) const;

  // Adds one number of a value. Returns a description, for a person, if the
  // rule has become true. While the rule `rests`, a move is ignored, and a
  // value that has vanished is reported later if it is still 0.
  std::optional<std::string> Look(int64_t step, absl::string_view entry,
                                  absl::string_view value,
                                  const v1::TensorStats& stats, bool rests);

 private:
  struct Watched {
    CourseLimits limits;
    Course course;
    ZeroRun zeros;
    // Numbers after a move that are not a move of their own.
    uint32_t quiet = 0;
    bool told = false;
  };
  // State of the optimizer for one parameter.
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
  // The entry of the last update, if it has a single number: the ratio of the
  // update to that number is no course where the number passes through 0.
  std::string one_number_;
  // States by name of the parameter, "fc.weight.0.debug".
  absl::flat_hash_map<std::string, State> states_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_TRIGGERS_COURSE_WATCH_H_
