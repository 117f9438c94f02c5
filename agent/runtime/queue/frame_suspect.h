// SPDX-License-Identifier: Apache-2.0
// Finds the frame that ends an upload. A stream that ends does not say which of
// the frames on their way was the cause, so these are sent again one at a time,
// and a frame that was alone each time a stream ended is dropped. Not
// thread-safe.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_SUSPECT_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_SUSPECT_H_

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rankprobe {

class FrameSuspect {
 public:
  // After this many damaged transfers a frame is given up; kDamaged is the
  // reason.
  static constexpr int kMaxDamages = 5;
  static constexpr char kDamaged[] = "it was damaged in transit 5 times";

  // The upload ended with frames `first` to `last` in flight. Returns true if
  // `first` was the only one, for the `most`th time or more.
  bool NoteEnd(uint64_t first, uint64_t last, int most) {
    alone_until_ = std::max(alone_until_, last);
    if (std::exchange(frame_, first) != first) ends_ = 0;
    return first == last && ++ends_ >= most;
  }
  // Whether this frame must be sent with no other in flight.
  bool GoesAlone(uint64_t sequence) const { return sequence <= alone_until_; }

 private:
  uint64_t frame_ = 0, alone_until_ = 0;
  int ends_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_FRAME_SUSPECT_H_
