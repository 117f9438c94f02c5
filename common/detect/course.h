// SPDX-License-Identifier: Apache-2.0
// The course of one number from step to step, and its anomalies: a move far off
// the course, a value that is 0 from some step on. `rankprobe scan` and the
// triggers of a rank use it, so that both report the same (docs/monitor.md,
// "Find by itself"). Plain values, whatever the numbers are; not thread-safe.
#ifndef RANKPROBE_COMMON_DETECT_COURSE_H_
#define RANKPROBE_COMMON_DETECT_COURSE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

struct CourseOptions {
  // How many recorded steps a value's own course is taken from, and the fewest.
  size_t window = 20;
  size_t least = 5;
  // A move counts from so many robust deviations of the logarithm on, and from
  // this factor on.
  double deviations = 8;
  double factor = 4;
};

// From where on the next number of a course is a move.
struct CourseLimits {
  CourseLimits(const CourseOptions& options, double factor, bool only_up);
  // Those of a value by its name, as `query` tells it:
  // "Training.0.debug.loss". A loss wanders less than what it is made of; a
  // learning rate falls to nothing, as fast as it likes, and what is added with
  // it.
  CourseLimits(const CourseOptions& options, absl::string_view name);

  size_t least;
  double deviations;
  // In logarithms.
  double least_distance;
  bool only_up;
  // As MayPassZero() says: a move is upwards, and beyond all numbers of the
  // window. Before 0 they fall faster and faster, and behind it they come back:
  // no line in logarithms.
  bool passes_zero = false;
};

// The seconds of a step, which are of the machine, and checksums of data, which
// are no amount, have no course.
bool HasNoCourse(absl::string_view name);
// A parameter's value as the optimizer finds it, or what the optimizer keeps.
bool IsStateOfOptimizer(absl::string_view name);

// Whether a value with this Norm and Mean is one number with a sign, whose norm
// falls to nothing each time that it passes through 0: a tensor of one element
// (of n elements Mean is at most Norm / sqrt(n)), but none of a step as a whole
// (Training), which are amounts. False where it is 0 or not finite.
bool MayPassZero(absl::string_view name, double norm, double mean);

// Costs 8 bytes for each number of its window, and a look at each of them.
class Course {
 public:
  // Against the line through what was: norms fall and rise all the time. False
  // while fewer than `limits.least` numbers are known, and fewer than two.
  bool IsMove(double number, const CourseLimits& limits) const;
  // 0 of a course without a number.
  double Usual() const;
  // A finite number that is not 0, which has no logarithm.
  void Add(double number, size_t window);

  static double Log(double number);

 private:
  std::vector<double> log_;
};

// Whether a value that was there is 0 from some step on.
class ZeroRun {
 public:
  void Add(bool is_zero) {
    before_ += is_zero ? 0 : 1;
    zeros_ = is_zero ? zeros_ + 1 : 0;
  }
  // Numbers other than 0, ever, and zeros since the last one.
  size_t before() const { return before_; }
  size_t zeros() const { return zeros_; }
  bool Vanished(size_t least_before, size_t least_zeros) const {
    return before_ >= least_before &&
           zeros_ >= std::max<size_t>(least_zeros, 1);
  }

 private:
  size_t before_ = 0;
  size_t zeros_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_DETECT_COURSE_H_
