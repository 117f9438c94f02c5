// SPDX-License-Identifier: Apache-2.0
// Keys of the index: one table letter, then big-endian fields, so that byte
// order is (run, step, incarnation, order). Pure functions.
//   v                                         schema version
//   r run-name                                RunRow
//   i run(4) incarnation(8)                   IncarnationRow
//   s run(4) step(8) incarnation(8)           StepRow
//   c run(4) step(8) incarnation(8) order(8)  Record
//   k run(4) digest(16) length(8) offset(8)   ChunkRow
//   p run(4) digest(16) length(8)             PayloadRow, once all chunks are
//   f run(4) digest(16) length(8) step(8) incarnation(8)   empty: the step
//                                             refers to the payload
//   q run(4) digest(16) length(8) incarnation(8) offset(8)   ChunkRow of a
//                                             payload that one sender has not
//                                             finished
//   d run(4) [step(8) incarnation(8)]         deletion to finish; empty value
//   u run(4) step(8) incarnation(8)           to be rolled up; empty value
//   h run(4) incarnation(8) step(8)           RollupHead
//   a run(4) incarnation(8) block(4) statistic(1) step(8)   a statistic of a
//                                             block of values
//   n run(4) id(4)                            RollupName: of a value
//   o run(4) number(4)                        RollupLayout
//   j run(4) level(1) incarnation(8) tile(8)  summaries of 64^level steps
//   t run-name                                RunTombstone
//   l run-name                                PlanSpec
//   x                                         closed cleanly
//   g segment(8)                              empty: a row of this index has
//                                             named the segment
//   y              segment(8) offset(8) count(8): how far the segments are
//                  synced, and how often that was written down
//   z count(8)     text: synced writes that the index has lost since
// The rank is not in the keys: it may become known after the first record.
#ifndef RANKPROBE_COLLECTOR_STORE_KEYS_H_
#define RANKPROBE_COLLECTOR_STORE_KEYS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe::keys {

inline constexpr char kSchema[] = "v";
inline constexpr char kClean[] = "x";
inline constexpr char kSynced[] = "y";

std::string Run(absl::string_view run);
std::string Plan(absl::string_view run);
std::string Incarnation(uint32_t run, uint64_t incarnation);
std::string IncarnationPrefix(uint32_t run);
std::string Step(uint32_t run, int64_t step, uint64_t incarnation);
std::string StepPrefix(uint32_t run);
std::string StepPrefix(uint32_t run, int64_t step);
std::string Record(uint32_t run, int64_t step, uint64_t incarnation,
                   uint64_t order);
std::string RecordPrefix(uint32_t run, int64_t step, uint64_t incarnation);
std::string Chunk(uint32_t run, absl::string_view digest, uint64_t length,
                  uint64_t offset);
std::string ChunkPrefix(uint32_t run, absl::string_view digest,
                        uint64_t length);
// Prefix of the chunks of one sender; without `incarnation`, of all.
std::string PartialPrefix(uint32_t run, absl::string_view digest,
                          uint64_t length);
std::string PartialPrefix(uint32_t run, absl::string_view digest,
                          uint64_t length, uint64_t incarnation);
// Returns the key in table k for a chunk of table q.
std::string ChunkOfPartial(absl::string_view partial_key);
std::string Segment(uint64_t segment);
// `last_run`: the greatest number of a run that existed when the loss was
// found.
std::string LostSyncs(uint64_t count, uint64_t last_run);
bool IsOfLostSyncs(absl::string_view key, uint64_t run);
// Returns `prefix` with the offset appended: a key of table k or q.
std::string AtOffset(absl::string_view prefix, uint64_t offset);
std::string Payload(uint32_t run, absl::string_view digest, uint64_t length);
std::string Reference(uint32_t run, absl::string_view digest, uint64_t length,
                      int64_t step, uint64_t incarnation);
std::string ReferencePrefix(uint32_t run, absl::string_view digest,
                            uint64_t length);
std::string DeletedRun(uint32_t run);
std::string DeletedStep(uint32_t run, int64_t step, uint64_t incarnation);
std::string Tombstone(absl::string_view run);
std::string PendingRollup(uint32_t run, int64_t step, uint64_t incarnation);
std::string RollupHeads(uint32_t run, uint64_t incarnation);
std::string RollupColumns(uint32_t run, uint64_t incarnation, uint32_t block,
                          uint8_t statistic);
// Returns a prefix of RollupHeads or RollupColumns with the step appended.
std::string AtStep(absl::string_view prefix, int64_t step);
std::string RollupName(uint32_t run, uint32_t id);
std::string RollupLayout(uint32_t run, uint32_t number);
std::string SummaryTile(uint32_t run, int level, uint64_t incarnation,
                        uint64_t tile);
// Prefix of all summaries of this level in a run.
std::string SummaryLevel(uint32_t run, int level);
// Prefix of all keys of a run in one table.
std::string TableOfRun(char table, uint32_t run);

struct StepParts {
  int64_t step = 0;
  uint64_t incarnation = 0;
};
// Parses a key of table s or d, or of c without its order.
std::optional<StepParts> ParseStep(absl::string_view key);
// Returns the run of any key that has one.
std::optional<uint32_t> ParseRun(absl::string_view key);
struct PayloadParts {
  uint32_t run = 0;
  std::string digest;
  uint64_t length = 0;
};
// Parses a key of table p, k or f.
std::optional<PayloadParts> ParsePayload(absl::string_view key);
// Returns the offset field of a key of table k or q.
std::optional<uint64_t> ParseChunkOffset(absl::string_view key);
std::optional<uint64_t> ParseSegment(absl::string_view key);
// Returns the step of a key of table h or a.
std::optional<int64_t> ParseRollupStep(absl::string_view key);
// Returns the id or number of a key of table n or o.
std::optional<uint32_t> ParseRollupNumber(absl::string_view key);
// Returns the tile of a key of table j.
std::optional<uint64_t> ParseTile(absl::string_view key);
std::optional<uint64_t> ParseTileIncarnation(absl::string_view key);

// The value of kSynced.
struct Synced {
  uint64_t segment = 0;
  uint64_t offset = 0;
  uint64_t count = 0;
};
std::string SyncedValue(const Synced& synced);
// The value of kClean: the sizes of all segments, by number.
std::string CleanValue(const std::map<uint64_t, uint64_t>& sizes);
std::map<uint64_t, uint64_t> ParseClean(absl::string_view value);
std::optional<Synced> ParseSynced(absl::string_view value);

}  // namespace rankprobe::keys

#endif  // RANKPROBE_COLLECTOR_STORE_KEYS_H_
