// SPDX-License-Identifier: Apache-2.0
// Losses of a FrameQueue: what was dropped, cut or refused, until LossEvents
// report it to ledger and export, and the lines on stderr.
//
// Ownership: the queue's; used under its lock. Nothing fails: beyond a limit
// losses are added up, and lines are left out.
#ifndef RANKPROBE_AGENT_RUNTIME_QUEUE_LOSS_REPORTS_H_
#define RANKPROBE_AGENT_RUNTIME_QUEUE_LOSS_REPORTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/runtime/queue/frame_encoding.h"
#include "agent/runtime/queue/session_stats.h"
#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

class LossReports {
 public:
  // Counts records that found no room.
  void NoteShed(int64_t step, v1::LossReason reason, uint64_t records);
  // Counts a lost payload; the record that refers to it names the reason.
  void NotePayload() { ++lost_payloads_; }
  // Adds a loss with details.
  void Note(int64_t step, v1::LossEvent loss);
  // Counts the records of a frame that the collector has refused.
  void NoteRefused(uint64_t sequence, const EncodedBatch& records,
                   const std::string& why);
  // Report on stderr that a payload was refused, and that the collector has no
  // room for payloads.
  void TellRefusedPayload(uint64_t bytes, const std::string& why);
  void TellNoRoom();

  bool any() const { return !shed_.empty() || !events_.empty(); }
  // Returns the losses that were not returned yet, one record each, and forgets
  // them.
  std::vector<EncodedBatch> Take();
  void ForEach(const std::function<void(int64_t step, uint64_t records,
                                        uint64_t payloads)>& add) const;
  void FillStats(SessionStats* stats) const {
    stats->lost_records = lost_records_;
    stats->lost_payloads = lost_payloads_;
  }

 private:
  // Dropped records, by step and reason, until a LossEvent reports them.
  std::map<std::pair<int64_t, v1::LossReason>, uint64_t> shed_;
  std::vector<std::pair<int64_t, v1::LossEvent>> events_;
  uint64_t orders_ = 0;
  uint64_t lost_records_ = 0, lost_payloads_ = 0;
  // Lines printed of each kind.
  uint64_t refused_frames_ = 0, credit_lines_ = 0;
};

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_RUNTIME_QUEUE_LOSS_REPORTS_H_
