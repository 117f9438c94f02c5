// SPDX-License-Identifier: Apache-2.0
// Output of a running command: its answer, its messages for people, and its
// progress. Not thread-safe.
#ifndef RANKPROBE_WEB_JOBS_JOB_OUTPUT_H_
#define RANKPROBE_WEB_JOBS_JOB_OUTPUT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe {

class JobOutput {
 public:
  static constexpr size_t kMaxAnswerBytes = 16 << 20;
  static constexpr size_t kMaxMessageBytes = 16 << 10;

  // Adds standard output, piece by piece; bytes beyond the limit are dropped,
  // and cut() returns true.
  void AddAnswer(absl::string_view piece);
  // Adds standard error: lines such as "STAGE 40%" are progress, others are
  // messages, and the last of these are kept.
  void AddError(absl::string_view piece);
  // Adds the last line if it has no line break.
  void Finish();

  const std::string& answer() const { return answer_; }
  const std::string& messages() const { return messages_; }
  const std::string& stage() const { return stage_; }
  int32_t percent() const { return percent_; }
  bool cut() const { return cut_; }

 private:
  void AddLine(absl::string_view line);

  std::string answer_;
  std::string messages_;
  std::string line_;
  std::string stage_;
  int32_t percent_ = -1;
  bool cut_ = false;
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOB_OUTPUT_H_
