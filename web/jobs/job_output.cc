// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_output.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// Splits "step 3 rank 0 40%  1.5 MiB" into "step 3 rank 0" and 40.
bool ReadProgress(absl::string_view line, std::string* stage,
                  int32_t* percent) {
  const size_t sign = line.rfind("% ") != absl::string_view::npos
                          ? line.rfind("% ")
                          : line.size() - 1;
  if (line.empty() || line[sign] != '%') return false;
  const size_t space = line.rfind(' ', sign);
  int32_t value = 0;
  if (space == absl::string_view::npos ||
      !absl::SimpleAtoi(line.substr(space + 1, sign - space - 1), &value) ||
      value < 0 || value > 100) {
    return false;
  }
  *stage = std::string(line.substr(0, space));
  *percent = value;
  return true;
}

}  // namespace

void JobOutput::AddAnswer(absl::string_view piece) {
  const size_t room = kMaxAnswerBytes - answer_.size();
  cut_ = cut_ || piece.size() > room;
  absl::StrAppend(&answer_, piece.substr(0, room));
}

void JobOutput::AddError(absl::string_view piece) {
  for (const char c : piece) {
    if (c == '\n') {
      AddLine(line_);
      line_.clear();
    } else if (line_.size() < kMaxMessageBytes) {
      line_.push_back(absl::ascii_iscntrl(c) && c != '\t' ? '?' : c);
    }
  }
}

void JobOutput::Finish() {
  if (!line_.empty()) AddLine(line_);
  line_.clear();
}

void JobOutput::AddLine(absl::string_view line) {
  if (ReadProgress(line, &stage_, &percent_)) return;
  absl::StrAppend(&messages_, line, "\n");
  if (messages_.size() > kMaxMessageBytes) {
    const size_t begin =
        messages_.find('\n', messages_.size() - kMaxMessageBytes);
    messages_.erase(0, std::min(begin, messages_.size() - 1) + 1);
  }
}

}  // namespace rankprobe
