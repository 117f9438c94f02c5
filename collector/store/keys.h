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
//   d run(4) [step(8) incarnation(8)]         deletion to finish; empty value
//   t run-name                                RunTombstone
//   l run-name                                PlanSpec
//   x                                         closed cleanly
// The rank is not in the keys: it may become known after the first record.
#ifndef RANKPROBE_COLLECTOR_STORE_KEYS_H_
#define RANKPROBE_COLLECTOR_STORE_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rankprobe::keys {

inline constexpr char kSchema[] = "v";
inline constexpr char kClean[] = "x";

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
std::string Payload(uint32_t run, absl::string_view digest, uint64_t length);
std::string Reference(uint32_t run, absl::string_view digest, uint64_t length,
                      int64_t step, uint64_t incarnation);
std::string ReferencePrefix(uint32_t run, absl::string_view digest,
                            uint64_t length);
std::string DeletedRun(uint32_t run);
std::string DeletedStep(uint32_t run, int64_t step, uint64_t incarnation);
std::string Tombstone(absl::string_view run);
// All keys of a run in one table.
std::string TableOfRun(char table, uint32_t run);

struct StepParts {
  int64_t step = 0;
  uint64_t incarnation = 0;
};
// A key of table s or d; of c without its order.
std::optional<StepParts> ParseStep(absl::string_view key);
// Run of any key that has one.
std::optional<uint32_t> ParseRun(absl::string_view key);
struct PayloadParts {
  uint32_t run = 0;
  std::string digest;
  uint64_t length = 0;
};
// A key of table p, k or f.
std::optional<PayloadParts> ParsePayload(absl::string_view key);
// Offset field of a chunk key.
std::optional<uint64_t> ParseChunkOffset(absl::string_view key);

}  // namespace rankprobe::keys

#endif  // RANKPROBE_COLLECTOR_STORE_KEYS_H_
