// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/sealed_keys.h"

#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/io/content_hash.h"
#include "common/io/crc32c.h"

namespace rankprobe::sealed {
namespace {

constexpr absl::string_view kEntryMagic = "RPSLOG\1\n";
constexpr size_t kEntryHeadBytes = 12;
constexpr size_t kSequenceDigits = 20;

}  // namespace

std::string RunPrefix(absl::string_view run_key) {
  return absl::StrCat("v1/runs/", run_key, "/");
}
std::string ShardsPrefix(absl::string_view run_key) {
  return absl::StrCat(RunPrefix(run_key), "shards/");
}
std::string ShardKey(absl::string_view run_key, absl::string_view shard) {
  return absl::StrCat(ShardsPrefix(run_key), shard);
}

bool IsMaintenance(const v1::SealedLogEntry& entry) {
  return entry.has_tombstone() || entry.has_merge() || entry.has_collection() ||
         entry.has_sweep();
}

bool IsHexName(absl::string_view text) {
  return text.size() == 32 && absl::c_all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string RunKey(absl::string_view run) {
  PayloadHash hash;
  hash.Add("rankprobe run ");
  hash.Add(run);
  return absl::BytesToHexString(hash.Digest());
}

std::string NameKey(absl::string_view run_key) {
  return absl::StrCat(kNamesPrefix, run_key);
}
std::string RecordsPrefix(absl::string_view run_key) {
  return absl::StrCat(RunPrefix(run_key), "records/");
}
std::string PacksPrefix(absl::string_view run_key) {
  return absl::StrCat(RunPrefix(run_key), "packs/");
}
std::string RecordsKey(absl::string_view run_key, absl::string_view name) {
  return absl::StrCat(RecordsPrefix(run_key), name);
}
std::string PackKey(absl::string_view run_key, absl::string_view name) {
  return absl::StrCat(PacksPrefix(run_key), name);
}
bool IsObjectKey(absl::string_view run_key, absl::string_view key) {
  return (absl::ConsumePrefix(&key, RecordsPrefix(run_key)) ||
          absl::ConsumePrefix(&key, PacksPrefix(run_key))) &&
         IsHexName(key);
}
std::string LogPrefix(absl::string_view run_key) {
  return absl::StrCat(RunPrefix(run_key), "log/");
}
std::string LogPrefix(absl::string_view run_key, absl::string_view shard) {
  return absl::StrCat(LogPrefix(run_key), shard, "/");
}
std::string LogKey(absl::string_view run_key, absl::string_view shard,
                   uint64_t sequence) {
  return absl::StrFormat("%s%020d", LogPrefix(run_key, shard), sequence);
}

std::optional<LogPlace> ParseLogKey(absl::string_view run_key,
                                    absl::string_view key) {
  if (!absl::ConsumePrefix(&key, LogPrefix(run_key))) return std::nullopt;
  const size_t slash = key.find('/');
  if (slash == absl::string_view::npos) return std::nullopt;
  LogPlace place;
  place.shard = std::string(key.substr(0, slash));
  const absl::string_view digits = key.substr(slash + 1);
  if (!IsHexName(place.shard) || digits.size() != kSequenceDigits ||
      !absl::c_all_of(digits, [](char c) { return c >= '0' && c <= '9'; }) ||
      !absl::SimpleAtoi(digits, &place.sequence) || place.sequence == 0)
    return std::nullopt;
  return place;
}

std::string EncodeEntry(const v1::SealedLogEntry& entry) {
  const std::string body = entry.SerializeAsString();
  const uint32_t checksum = Crc32c(body);
  std::string bytes(kEntryMagic);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes + body;
}

absl::StatusOr<v1::SealedLogEntry> DecodeEntry(absl::string_view bytes) {
  uint32_t checksum = 0;
  v1::SealedLogEntry entry;
  if (bytes.size() < kEntryHeadBytes || !absl::StartsWith(bytes, kEntryMagic))
    return absl::DataLossError("it is not an entry of a log");
  std::memcpy(&checksum, bytes.data() + kEntryMagic.size(), sizeof(checksum));
  const absl::string_view body = bytes.substr(kEntryHeadBytes);
  if (Crc32c(body) != checksum ||
      !entry.ParseFromArray(body.data(), static_cast<int>(body.size())))
    return absl::DataLossError("it is damaged");
  if (entry.format() != kFormat && entry.format() != kMaintenanceFormat) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it has format ", entry.format(), "; this version reads formats ",
        kFormat, " and ", kMaintenanceFormat));
  }
  bool names = !entry.has_records() || IsHexName(entry.records().name());
  for (const v1::SealedObject& pack : entry.packs())
    names = names && IsHexName(pack.name());
  for (const std::string& pack : entry.collection().packs())
    names = names && IsHexName(pack);
  for (const std::string& records : entry.collection().records())
    names = names && IsHexName(records);
  if (entry.has_merge()) {
    names = names && IsHexName(entry.merge().shard()) &&
            entry.merge().first() > 0 &&
            entry.merge().first() <= entry.merge().last();
  }
  if (!names) return absl::DataLossError("it names no objects");
  return entry;
}

}  // namespace rankprobe::sealed
