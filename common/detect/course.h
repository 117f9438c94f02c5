// SPDX-License-Identifier: Apache-2.0
// The course of one number from step to step, and its anomalies: a move far off
// the course, a value that is 0 from some step on. `rankprobe scan` and the
// triggers of a rank use it, so that both report the same (docs/monitor.md,
// "Find by itself"). Plain values, whatever the numbers are; not thread-safe.
#ifndef RANKPROBE_COMMON_DETECT_COURSE_H_
#define RANKPROBE_COMMON_DETECT_COURSE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"

namespace rankprobe {

struct CourseOptions {
  // Number of recorded steps that a course is computed from, and the minimum.
  size_t window = 20;
  size_t least = 5;
  // A number is a move if it is off its course by this many robust deviations
  // of the logarithm, and by this factor.
  double deviations = 8;
  double factor = 4;
};

// Limits beyond which the next number of a course is a move.
struct CourseLimits {
  CourseLimits(const CourseOptions& options, double factor, bool only_up);
  // Limits for a value by its name, as `query` prints it:
  // "Training.0.debug.loss". A loss varies less than the values it is computed
  // from. A learning rate may fall to zero at any speed, and so may the updates
  // that depend on it.
  CourseLimits(const CourseOptions& options, absl::string_view name);

  size_t least;
  double deviations;
  // Minimum distance from the course, in units of the logarithm.
  double least_distance;
  bool only_up;
  // Set if MayPassZero(): a move is then upwards only, and beyond all numbers
  // of the window. Near 0 such a norm falls faster and faster and then rises
  // again, which is not a line in logarithms.
  bool passes_zero = false;
};

// Whether a value has no course: the duration of a step depends on the machine,
// a checksum of data is not an amount, and the optimizers that step in a step
// are what the program calls.
bool HasNoCourse(absl::string_view name);
// Whether the value is a parameter before the optimizer's step, or a state of
// the optimizer.
bool IsStateOfOptimizer(absl::string_view name);

// Whether a value with this Norm and Mean is a single signed number, whose norm
// falls to zero each time that it passes through 0. That is a tensor of one
// element (with n elements Mean is at most Norm / sqrt(n)), except values of
// the complete step (Training), which are amounts. False if it is 0 or not
// finite.
bool MayPassZero(absl::string_view name, double norm, double mean);

// Costs 8 bytes and one comparison for each number of its window.
class Course {
 public:
  // Compares with the line through the earlier numbers, because norms rise and
  // fall during a training. False while fewer than `limits.least` numbers, or
  // fewer than two, are known.
  bool IsMove(double number, const CourseLimits& limits) const;
  // Returns 0 for a course without numbers.
  double Usual() const;
  // Adds a finite number that is not 0, because 0 has no logarithm.
  void Add(double number, size_t window);

  static double Log(double number);

 private:
  std::vector<double> log_;
};

// Detects a value that becomes 0 and stays 0.
class ZeroRun {
 public:
  void Add(bool is_zero) {
    before_ += is_zero ? 0 : 1;
    zeros_ = is_zero ? zeros_ + 1 : 0;
  }
  // Number of values other than 0 so far, and of zeros since the last of them.
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
