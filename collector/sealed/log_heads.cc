// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/log_heads.h"

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "collector/sealed/sealed_keys.h"
#include "common/base/status_macros.h"
#include "common/io/content_hash.h"
#include "rankprobe/v1/sealed.pb.h"

namespace rankprobe::sealed {
namespace {

constexpr size_t kHeadsListed = 1000;
constexpr size_t kHexDigits = 32;
constexpr size_t kNumberDigits = 20;
// Length after RUN/: both names, the number, and the separators.
constexpr size_t kPlaceBytes = kHexDigits + 1 + kNumberDigits + 1 + kHexDigits;

std::string HeadsOf(absl::string_view run_key) {
  return absl::StrCat(kHeadsPrefix, run_key, "/");
}

std::string PlaceOf(absl::string_view shard, const LogHead& head) {
  return absl::StrFormat("%s-%020d-%s", shard, head.sequence,
                         absl::BytesToHexString(head.digest));
}

std::optional<std::pair<std::string, LogHead>> ParsePlace(
    absl::string_view place) {
  if (place.size() != kPlaceBytes) return std::nullopt;
  const absl::string_view shard = place.substr(0, kHexDigits);
  const absl::string_view number = place.substr(kHexDigits + 1, kNumberDigits);
  const absl::string_view digest = place.substr(kHexDigits + kNumberDigits + 2);
  LogHead head;
  if (!IsHexName(shard) || !IsHexName(digest) ||
      !absl::SimpleAtoi(number, &head.sequence) || head.sequence == 0)
    return std::nullopt;
  head.digest = absl::HexStringToBytes(digest);
  return std::make_pair(std::string(shard), std::move(head));
}

absl::Status ForEachKey(
    ObjectStore* store, const std::string& prefix,
    const std::function<absl::Status(const std::string&)>& callback) {
  std::string after;
  while (true) {
    RP_ASSIGN_OR_RETURN(const ObjectList list,
                        store->List(prefix, after, kHeadsListed));
    for (const ObjectInfo& object : list.objects) {
      after = object.key;
      RP_RETURN_IF_ERROR(callback(object.key));
    }
    if (!list.more) return absl::OkStatus();
  }
}

}  // namespace

std::string EntryDigest(absl::string_view bytes) {
  PayloadHash hash;
  hash.Add(bytes);
  return hash.Digest();
}

absl::StatusOr<std::map<std::string, LogHead>> ReadHeads(
    ObjectStore* store, absl::string_view run_key) {
  std::map<std::string, LogHead> heads;
  const std::string prefix = HeadsOf(run_key);
  RP_RETURN_IF_ERROR(ForEachKey(store, prefix, [&](const std::string& key) {
    auto place = ParsePlace(absl::string_view(key).substr(prefix.size()));
    if (!place.has_value()) return absl::OkStatus();
    LogHead& known = heads[place->first];
    if (place->second.sequence >= known.sequence)
      known = std::move(place->second);
    return absl::OkStatus();
  }));
  return heads;
}

absl::Status PutHead(ObjectStore* store, const std::string& run,
                     const std::string& shard, const LogHead& head) {
  const std::string prefix = HeadsOf(RunKey(run));
  v1::SealedRunName name;
  name.set_run(run);
  RP_RETURN_IF_ERROR(store->Put(absl::StrCat(prefix, PlaceOf(shard, head)),
                                name.SerializeAsString(),
                                ObjectStore::PutMode::kReplace));
  std::vector<std::string> older;
  RP_RETURN_IF_ERROR(ForEachKey(
      store, absl::StrCat(prefix, shard, "-"), [&](const std::string& key) {
        const auto place =
            ParsePlace(absl::string_view(key).substr(prefix.size()));
        if (place.has_value() && place->second.sequence < head.sequence)
          older.push_back(key);
        return absl::OkStatus();
      }));
  for (const std::string& key : older) RP_RETURN_IF_ERROR(store->Delete(key));
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> ListHeads(
    ObjectStore* store) {
  std::map<std::string, std::string> runs;
  RP_RETURN_IF_ERROR(
      ForEachKey(store, std::string(kHeadsPrefix), [&](const std::string& key) {
        const absl::string_view rest = absl::StripPrefix(key, kHeadsPrefix);
        const size_t slash = rest.find('/');
        if (slash == kHexDigits && IsHexName(rest.substr(0, slash)) &&
            ParsePlace(rest.substr(slash + 1)).has_value())
          runs.try_emplace(std::string(rest.substr(0, slash)), key);
        return absl::OkStatus();
      }));
  return runs;
}

}  // namespace rankprobe::sealed
