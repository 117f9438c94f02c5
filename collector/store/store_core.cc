// SPDX-License-Identifier: Apache-2.0
#include "collector/store/store_core.h"

#include <cstring>
#include <utility>

#include "common/base/limits.h"
#include "common/base/random_bytes.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

uint64_t NewLife() {
  uint64_t life = 0;
  const std::string random = RandomBytes(sizeof(life));
  std::memcpy(&life, random.data(), sizeof(life));
  return life | 1;  // never 0
}

}  // namespace

StoreCore::StoreCore(const StoreOptions& store_options, FileSystem* files,
                     const Clock* store_clock, std::unique_ptr<FileLock> lock,
                     std::unique_ptr<Index> opened,
                     std::unique_ptr<PayloadStore> chunks)
    : options(store_options),
      file_system(files),
      clock(store_clock),
      life(NewLife()),
      directory_lock(std::move(lock)),
      index(std::move(opened)),
      segments(std::move(chunks)),
      runs(index.get(), clock),
      steps(index.get()),
      payloads(index.get(), segments.get(), clock),
      series(index.get(), clock) {}

absl::Status StoreCore::Exclusive(const std::function<absl::Status()>& fn) {
  absl::MutexLock lock(&mutex);
  RP_RETURN_IF_ERROR(sticky);
  absl::Status status = fn();
  return absl::IsFailedPrecondition(status) ? status : NoteWrite(status);
}

absl::Status StoreCore::NoteWrite(const absl::Status& status) {
  if (sticky.ok() && !absl::IsResourceExhausted(status)) sticky = status;
  return status;
}

absl::StatusOr<uint32_t> StoreCore::RunNumber(const std::string& run) {
  absl::MutexLock lock(&mutex);
  RP_ASSIGN_OR_RETURN(const v1::RunRow* const row, runs.Find(run));
  return row->id();
}

std::optional<uint32_t> StoreCore::RunWithPayload(const std::string& run,
                                                  absl::string_view digest,
                                                  uint64_t length_bytes) {
  if (digest.size() != kPayloadDigestBytes) return std::nullopt;
  const absl::StatusOr<v1::RunRow*> row = runs.Find(run);
  if (!row.ok()) return std::nullopt;
  const absl::StatusOr<bool> whole =
      payloads.IsWhole((*row)->id(), digest, length_bytes);
  if (!whole.ok() || !*whole) return std::nullopt;
  return (*row)->id();
}

int64_t StoreCore::QuietSince() const {
  return clock->MonotonicNanos() - absl::ToInt64Nanoseconds(options.quiet_time);
}

void StoreCore::ForgetStep(const StepId& id) {
  steps.Erase(id);
  series.Erase(id);
}

void StoreCore::ForgetRun(const std::string& run, uint32_t number) {
  runs.Erase(run);
  steps.EraseRun(number);
  payloads.EraseRun(number);
  series.EraseRun(number);
}

void StoreCore::MarkDamaged(const std::string& payload_key,
                            const v1::ChunkRow& row) {
  absl::MutexLock lock(&mutex);
  if (sticky.ok()) payloads.MarkDamaged(payload_key, row);
}

void StoreCore::MarkSound(const std::string& payload_key) {
  absl::MutexLock lock(&mutex);
  if (sticky.ok()) payloads.MarkSound(payload_key);
}

}  // namespace rankprobe
