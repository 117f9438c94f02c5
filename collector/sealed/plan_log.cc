// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/plan_log.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"
#include "common/io/crc32c.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe {
namespace {

constexpr char kPlanMagic[] = "RPPLAN\x01\n";
constexpr size_t kPlanMagicBytes = sizeof(kPlanMagic) - 1;
constexpr size_t kPlanHeadBytes = kPlanMagicBytes + 4;
constexpr size_t kPlansListed = 1000;
constexpr uint64_t kMaxPlanBytes = 4 << 20;

std::string NameOfLog(const std::string& key) {
  PayloadHash hash;
  hash.Add("rankprobe plan ");
  hash.Add(key);
  return absl::BytesToHexString(hash.Digest());
}

std::string PlanObjectKey(const std::string& name, uint64_t number) {
  return absl::StrFormat("%s%s/%020d", kPlansPrefix, name, number);
}

std::string EncodePlan(const v1::SealedPlan& plan) {
  const std::string body = plan.SerializeAsString();
  const uint32_t crc = Crc32c(body);
  std::string bytes(kPlanMagic, kPlanMagicBytes);
  for (int shift = 0; shift < 32; shift += 8)
    bytes.push_back(static_cast<char>(crc >> shift));
  return bytes + body;
}

absl::StatusOr<v1::SealedPlan> DecodePlan(const std::string& object,
                                          const std::string& bytes) {
  v1::SealedPlan plan;
  if (bytes.size() < kPlanHeadBytes ||
      bytes.compare(0, kPlanMagicBytes, kPlanMagic, kPlanMagicBytes) != 0)
    return absl::DataLossError(absl::StrCat(object, " is not a plan"));
  uint32_t crc = 0;
  for (size_t i = 0; i < 4; ++i) {
    crc |= uint32_t{static_cast<unsigned char>(bytes[kPlanMagicBytes + i])}
           << (8 * i);
  }
  const std::string body = bytes.substr(kPlanHeadBytes);
  if (Crc32c(body) != crc || !plan.ParseFromString(body))
    return absl::DataLossError(absl::StrCat(object, " is damaged"));
  return plan;
}

absl::Status Another(const std::string& object) {
  return absl::AbortedError(
      absl::StrCat("another root has decided on a plan of this run (", object,
                   "): end one of the two, and start this one again"));
}

}  // namespace

std::pair<std::string, uint64_t> ParsePlanKey(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  uint64_t number = 0;
  if (parts.size() != 4 || !sealed::IsHexName(parts[2]) ||
      !absl::SimpleAtoi(parts[3], &number) ||
      key != PlanObjectKey(parts[2], number))
    return {"", 0};
  return {parts[2], number};
}

absl::StatusOr<std::unique_ptr<PlanLog>> PlanLog::Open(ObjectStore* store) {
  std::unique_ptr<PlanLog> log(new PlanLog(store));
  absl::MutexLock lock(&log->mutex_);
  // The last missing version of each log.
  std::map<std::string, uint64_t> missing;
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store->List(kPlansPrefix, after, kPlansListed));
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      const auto [name, number] = ParsePlanKey(object.key);
      if (number == 0)
        return absl::DataLossError(absl::StrCat(object.key, " is not a plan"));
      uint64_t& last = log->logs_[name].last;
      if (number != last + 1) missing[name] = number - 1;
      last = number;
    }
    if (list.more) continue;
    // Older versions were removed by a janitor.
    for (const auto& [name, number] : missing) {
      const uint64_t last = log->logs_[name].last;
      if (number + kKeptPlans > last) {
        return absl::DataLossError(
            absl::StrCat(PlanObjectKey(name, number), " is missing"));
      }
    }
    return log;
  }
}

absl::StatusOr<std::optional<v1::PlanSpec>> PlanLog::Load(
    const std::string& key) {
  const std::string name = NameOfLog(key);
  absl::MutexLock lock(&mutex_);
  const auto found = logs_.find(name);
  if (found == logs_.end() || found->second.last == 0)
    return std::optional<v1::PlanSpec>();
  Versions& versions = found->second;
  if (!versions.plan.has_value()) {
    const std::string object = PlanObjectKey(name, versions.last);
    RP_ASSIGN_OR_RETURN(const std::string bytes,
                        GetObject(store_, object, kMaxPlanBytes));
    RP_ASSIGN_OR_RETURN(v1::SealedPlan plan, DecodePlan(object, bytes));
    if (plan.key() != key || plan.number() != versions.last)
      return absl::DataLossError(absl::StrCat(object, " is another plan"));
    versions.plan = std::move(*plan.mutable_plan());
  }
  return versions.plan;
}

absl::Status PlanLog::Save(const std::string& key, const v1::PlanSpec& plan) {
  const std::string name = NameOfLog(key);
  v1::SealedPlan next;
  next.set_key(key);
  *next.mutable_plan() = plan;
  absl::MutexLock lock(&mutex_);
  Versions& versions = logs_[name];
  while (true) {
    next.set_number(versions.last + 1);
    const std::string object = PlanObjectKey(name, next.number());
    std::string bytes = EncodePlan(next);
    const absl::Status put =
        store_->Put(object, bytes, ObjectStore::PutMode::kIfAbsent);
    if (absl::IsAlreadyExists(put)) {
      RP_ASSIGN_OR_RETURN(const std::string there,
                          GetObject(store_, object, kMaxPlanBytes));
      const bool is_earlier = !versions.unsure.empty() &&
                              there == versions.unsure && there != bytes;
      if (is_earlier) {
        // An earlier put succeeded although its answer was lost.
        versions.last = next.number();
        versions.plan.reset();
        versions.unsure.clear();
        continue;
      }
      if (there != bytes) {
        return Another(object);
      }
    } else if (!put.ok()) {
      versions.unsure = std::move(bytes);
      return put;
    }
    // The number may be free because its version was removed long ago, so check
    // for newer ones.
    const absl::StatusOr<ObjectList> newer =
        store_->List(absl::StrCat(kPlansPrefix, name, "/"), object, 1);
    if (!newer.ok()) {
      versions.unsure = std::move(bytes);
      return newer.status();
    }
    if (!newer->objects.empty()) return Another(object);
    versions.last = next.number();
    versions.plan = plan;
    versions.unsure.clear();
    return absl::OkStatus();
  }
}

}  // namespace rankprobe
