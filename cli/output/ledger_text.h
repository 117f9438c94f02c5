// SPDX-License-Identifier: Apache-2.0
// The loss ledger as text for people: totals by reason. Not thread-safe.
#ifndef RANKPROBE_CLI_OUTPUT_LEDGER_TEXT_H_
#define RANKPROBE_CLI_OUTPUT_LEDGER_TEXT_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "cli/client/client.h"

namespace rankprobe {

// Sums over all steps and ranks that were added.
class LedgerTotals {
 public:
  void Add(const v1::StepLedger& ledger);
  bool whole() const { return lost_.empty() && open_ == 0; }
  // Returns "ledger: 1,200 of 1,203 records stored, ..." with a line for each
  // reason and for each rank that several processes recorded.
  std::string ToText() const;

 private:
  struct Lost {
    uint64_t records = 0;
    uint64_t payloads = 0;
    // Gaps with neither count: lost frames.
    uint64_t uncounted = 0;
  };
  // One process and the steps that it recorded as its rank.
  struct Life {
    int64_t pid = 0;
    std::string host;
    int64_t first_step = 0, last_step = 0;
  };
  // By rank and incarnation.
  std::map<int64_t, std::map<uint64_t, Life>> lives_;
  uint64_t steps_ = 0, open_ = 0;
  uint64_t stored_records_ = 0, filtered_ = 0;
  std::map<std::string, Lost> lost_;
};

// Returns "rank 1 (newest step here: 11)". `newest_step` is -1 if there is
// none.
std::string EndedRankText(absl::string_view name, int64_t newest_step);

// Processes among the added ones that disconnected without a goodbye.
class EndedRanks {
 public:
  void Add(const v1::StepLedger& ledger);
  // Returns "rank 1 (newest step here: 11), rank 2 (no step here)"; empty if
  // there are none.
  std::string ToText() const;

 private:
  struct Life {
    std::string name;
    int64_t newest = -1;
    bool has_ended = false;
  };
  // By incarnation.
  std::map<uint64_t, Life> lives_;
};

// Returns "3", "proc4711" if the rank is unknown, or "-" for an entry without a
// rank: a leaf that was not queried may have any.
std::string LedgerRank(const v1::StepLedger& ledger);

// Reads the processes of a run that ended early, by its ledger. Only of these
// processes; of all if `incarnations` is empty.
absl::StatusOr<std::string> ReadEndedRanks(
    const Client& client, const std::string& run,
    const std::set<uint64_t>& incarnations = {});

// Requests the ledger of a run and prints the totals. Prints nothing if the
// archive has no data of the run yet.
absl::Status PrintLedgerSummary(const Client& client, const std::string& run);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_OUTPUT_LEDGER_TEXT_H_
