// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/store_probe.h"

#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

absl::Status Unfit(const ObjectStore& store, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(store.name(), " is not fit for an archive: ", why,
                   " (docs/scale.md, \"What a store must offer\")"));
}

// Returns bytes that identify the racer at their begin and their end.
std::string Body(int racer, uint64_t bytes) {
  const std::string mark = absl::StrCat("racer ", racer, ";");
  std::string body;
  while (body.size() < bytes) body += mark;
  return body;
}

absl::Status Race(ObjectStore* store, const std::string& key, int racers,
                  uint64_t bytes) {
  std::vector<absl::Status> results(static_cast<size_t>(racers));
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (int i = 0; i < racers; ++i) {
    threads.emplace_back([&, i] {
      results[static_cast<size_t>(i)] =
          store->Put(key, Body(i, bytes), ObjectStore::PutMode::kIfAbsent);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int winners = 0, winner = -1;
  for (int i = 0; i < racers; ++i) {
    const absl::Status& result = results[static_cast<size_t>(i)];
    if (result.ok()) {
      ++winners;
      winner = i;
    } else if (!absl::IsAlreadyExists(result)) {
      return result;
    }
  }
  if (winners > 1) {
    return Unfit(*store,
                 absl::StrCat(winners, " of ", racers,
                              " that created one object at once were "
                              "answered that they had: it does not keep "
                              "If-None-Match"));
  }
  RP_ASSIGN_OR_RETURN(const std::string there,
                      GetObject(store, key, 2 * bytes + 64));
  // Without a winner, the winner's answer was lost and its retry got
  // ALREADY_EXISTS.
  if (winners == 1 && there != Body(winner, bytes))
    return Unfit(*store, "it holds other bytes than those of the one that won");
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeObjectStore(ObjectStore* store, const ProbeOptions& options) {
  const std::string prefix =
      absl::StrCat("probe/", absl::BytesToHexString(RandomBytes(12)), "/");
  std::vector<std::string> keys;
  absl::Status status;
  for (const uint64_t bytes : options.sizes) {
    keys.push_back(absl::StrCat(prefix, keys.size()));
    status = Race(store, keys.back(), options.racers, bytes);
    if (!status.ok()) break;
  }
  if (status.ok()) {
    const absl::StatusOr<ObjectList> list =
        store->List(prefix, /*start_after=*/"", keys.size() + 1);
    status = list.status();
    if (list.ok() && list->objects.size() != keys.size())
      status = Unfit(*store, "it does not list what was put");
  }
  if (status.ok()) {
    const absl::StatusOr<std::string> part = store->Get(keys[0], 6, 3);
    status = part.status();
    if (part.ok() && (part->size() != 3 || (*part)[1] != ';'))
      status = Unfit(*store, "it gives other bytes than a range asks for");
  }
  for (const std::string& key : keys) {
    const absl::Status deleted = store->Delete(key);
    if (status.ok()) status = deleted;
  }
  return status;
}

}  // namespace rankprobe
