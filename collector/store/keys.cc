// SPDX-License-Identifier: Apache-2.0
#include "collector/store/keys.h"

namespace rankprobe::keys {
namespace {

// Table, run, digest, length.
constexpr size_t kPayloadKeyBytes = 1 + 4 + 16 + 8;

template <typename T>
void AppendBigEndian(T value, std::string* out) {
  char bytes[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<char>((value >> (8 * (sizeof(T) - 1 - i))) & 0xff);
  }
  out->append(bytes, sizeof(T));
}

uint64_t ReadBigEndian64(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Room for the longest key of fixed-size parts, so that appending allocates
// once.
constexpr size_t kUsualKeyBytes = 48;

std::string Table(char letter, uint32_t run) {
  std::string key;
  key.reserve(kUsualKeyBytes);
  key.push_back(letter);
  AppendBigEndian(run, &key);
  return key;
}

std::string WithName(char letter, absl::string_view name) {
  std::string key(1, letter);
  key.append(name.data(), name.size());
  return key;
}

}  // namespace

std::string Run(absl::string_view run) { return WithName('r', run); }
std::string Plan(absl::string_view run) { return WithName('l', run); }

std::string IncarnationPrefix(uint32_t run) { return Table('i', run); }
std::string Incarnation(uint32_t run, uint64_t incarnation) {
  std::string key = IncarnationPrefix(run);
  AppendBigEndian(incarnation, &key);
  return key;
}

std::string StepPrefix(uint32_t run) { return Table('s', run); }
std::string StepPrefix(uint32_t run, int64_t step) {
  std::string key = StepPrefix(run);
  AppendBigEndian(static_cast<uint64_t>(step), &key);
  return key;
}
std::string Step(uint32_t run, int64_t step, uint64_t incarnation) {
  std::string key = StepPrefix(run, step);
  AppendBigEndian(incarnation, &key);
  return key;
}

std::string RecordPrefix(uint32_t run, int64_t step, uint64_t incarnation) {
  std::string key = Table('c', run);
  AppendBigEndian(static_cast<uint64_t>(step), &key);
  AppendBigEndian(incarnation, &key);
  return key;
}
std::string Record(uint32_t run, int64_t step, uint64_t incarnation,
                   uint64_t order) {
  std::string key = RecordPrefix(run, step, incarnation);
  AppendBigEndian(order, &key);
  return key;
}

std::string Payload(uint32_t run, absl::string_view digest, uint64_t length) {
  std::string key = Table('p', run);
  key.append(digest.data(), digest.size());
  AppendBigEndian(length, &key);
  return key;
}
std::string ChunkPrefix(uint32_t run, absl::string_view digest,
                        uint64_t length) {
  std::string key = Payload(run, digest, length);
  key[0] = 'k';
  return key;
}
std::string Chunk(uint32_t run, absl::string_view digest, uint64_t length,
                  uint64_t offset) {
  std::string key = ChunkPrefix(run, digest, length);
  AppendBigEndian(offset, &key);
  return key;
}

std::string PartialPrefix(uint32_t run, absl::string_view digest,
                          uint64_t length) {
  std::string key = Payload(run, digest, length);
  key[0] = 'q';
  return key;
}
std::string PartialPrefix(uint32_t run, absl::string_view digest,
                          uint64_t length, uint64_t incarnation) {
  std::string key = PartialPrefix(run, digest, length);
  AppendBigEndian(incarnation, &key);
  return key;
}
std::string ChunkOfPartial(absl::string_view partial_key) {
  std::string key(partial_key.substr(0, kPayloadKeyBytes));
  key[0] = 'k';
  const absl::string_view offset = partial_key.substr(kPayloadKeyBytes + 8);
  key.append(offset.data(), offset.size());
  return key;
}
std::string AtOffset(absl::string_view prefix, uint64_t offset) {
  std::string key(prefix);
  AppendBigEndian(offset, &key);
  return key;
}
std::string Segment(uint64_t segment) { return AtOffset("g", segment); }
std::string LostSyncs(uint64_t count, uint64_t last_run) {
  return AtOffset(AtOffset("z", count), last_run);
}
bool IsOfLostSyncs(absl::string_view key, uint64_t run) {
  return run <= ReadBigEndian64(key.substr(1 + sizeof(uint64_t)));
}

std::string Reference(uint32_t run, absl::string_view digest, uint64_t length,
                      int64_t step, uint64_t incarnation) {
  std::string key = ReferencePrefix(run, digest, length);
  AppendBigEndian(static_cast<uint64_t>(step), &key);
  AppendBigEndian(incarnation, &key);
  return key;
}
std::string ReferencePrefix(uint32_t run, absl::string_view digest,
                            uint64_t length) {
  std::string key = Payload(run, digest, length);
  key[0] = 'f';
  return key;
}

std::string TableOfRun(char table, uint32_t run) { return Table(table, run); }
std::string DeletedRun(uint32_t run) { return Table('d', run); }
std::string DeletedStep(uint32_t run, int64_t step, uint64_t incarnation) {
  std::string key = Step(run, step, incarnation);
  key[0] = 'd';
  return key;
}
std::string Tombstone(absl::string_view run) { return WithName('t', run); }

std::string PendingRollup(uint32_t run, int64_t step, uint64_t incarnation) {
  std::string key = Step(run, step, incarnation);
  key[0] = 'u';
  return key;
}
std::string RollupHeads(uint32_t run, uint64_t incarnation) {
  std::string key = Table('h', run);
  AppendBigEndian(incarnation, &key);
  return key;
}
std::string RollupColumns(uint32_t run, uint64_t incarnation, uint32_t block,
                          uint8_t statistic) {
  std::string key = Table('a', run);
  AppendBigEndian(incarnation, &key);
  AppendBigEndian(block, &key);
  key.push_back(static_cast<char>(statistic));
  return key;
}
std::string AtStep(absl::string_view prefix, int64_t step) {
  return AtOffset(prefix, static_cast<uint64_t>(step));
}
std::string RollupName(uint32_t run, uint32_t id) {
  std::string key = Table('n', run);
  AppendBigEndian(id, &key);
  return key;
}
std::string RollupLayout(uint32_t run, uint32_t number) {
  std::string key = Table('o', run);
  AppendBigEndian(number, &key);
  return key;
}

std::string SummaryLevel(uint32_t run, int level) {
  std::string key = Table('j', run);
  key.push_back(static_cast<char>(level));
  return key;
}
std::string SummaryTile(uint32_t run, int level, uint64_t incarnation,
                        uint64_t tile) {
  std::string key = SummaryLevel(run, level);
  AppendBigEndian(incarnation, &key);
  AppendBigEndian(tile, &key);
  return key;
}

std::optional<uint32_t> ParseRun(absl::string_view key) {
  if (key.size() < 1 + 4) return std::nullopt;
  uint32_t run = 0;
  for (size_t i = 1; i < 5; ++i)
    run = run << 8 | static_cast<unsigned char>(key[i]);
  return run;
}

std::optional<PayloadParts> ParsePayload(absl::string_view key) {
  if (key.size() < kPayloadKeyBytes) return std::nullopt;
  return PayloadParts{*ParseRun(key), std::string(key.substr(5, 16)),
                      ReadBigEndian64(key.substr(21))};
}

std::optional<StepParts> ParseStep(absl::string_view key) {
  if (key.size() != 1 + 4 + 8 + 8 && key.size() != 1 + 4 + 8 + 8 + 8)
    return std::nullopt;
  return StepParts{static_cast<int64_t>(ReadBigEndian64(key.substr(5))),
                   ReadBigEndian64(key.substr(13))};
}

std::optional<uint64_t> ParseChunkOffset(absl::string_view key) {
  if (key.size() != kPayloadKeyBytes + 8 && key.size() != kPayloadKeyBytes + 16)
    return std::nullopt;
  return ReadBigEndian64(key.substr(key.size() - 8));
}
std::optional<uint64_t> ParseSegment(absl::string_view key) {
  if (key.size() != 1 + 8) return std::nullopt;
  return ReadBigEndian64(key.substr(1));
}

std::optional<int64_t> ParseRollupStep(absl::string_view key) {
  if (key.size() != 1 + 4 + 8 + 8 && key.size() != 1 + 4 + 8 + 4 + 8 &&
      key.size() != 1 + 4 + 8 + 4 + 1 + 8)
    return std::nullopt;
  return static_cast<int64_t>(ReadBigEndian64(key.substr(key.size() - 8)));
}
std::optional<uint32_t> ParseRollupNumber(absl::string_view key) {
  if (key.size() != 1 + 4 + 4) return std::nullopt;
  return ParseRun(key.substr(4));
}
std::optional<uint64_t> ParseTile(absl::string_view key) {
  if (key.size() != 1 + 4 + 1 + 8 + 8) return std::nullopt;
  return ReadBigEndian64(key.substr(14));
}
std::optional<uint64_t> ParseTileIncarnation(absl::string_view key) {
  if (key.size() != 1 + 4 + 1 + 8 + 8) return std::nullopt;
  return ReadBigEndian64(key.substr(6));
}

std::string SyncedValue(const Synced& synced) {
  return AtOffset(AtOffset(AtOffset("", synced.segment), synced.offset),
                  synced.count);
}
std::string CleanValue(const std::map<uint64_t, uint64_t>& sizes) {
  std::string value;
  for (const auto& [segment, bytes] : sizes)
    value = AtOffset(AtOffset(value, segment), bytes);
  return value;
}
std::map<uint64_t, uint64_t> ParseClean(absl::string_view value) {
  std::map<uint64_t, uint64_t> sizes;
  for (; value.size() >= 16; value.remove_prefix(16))
    sizes[ReadBigEndian64(value)] = ReadBigEndian64(value.substr(8));
  return sizes;
}
std::optional<Synced> ParseSynced(absl::string_view value) {
  if (value.size() != 24) return std::nullopt;
  return Synced{ReadBigEndian64(value), ReadBigEndian64(value.substr(8)),
                ReadBigEndian64(value.substr(16))};
}

}  // namespace rankprobe::keys
