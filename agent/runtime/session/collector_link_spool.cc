// SPDX-License-Identifier: Apache-2.0
// The connection's spool: frames on disk, and what earlier lives left there.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/session/collector_link.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

// Records that wait for the collector, where stop() does not.
constexpr uint64_t kMaxKeptBytes = 64 << 20;
constexpr uint64_t kKeptFileBytes = 8 << 20;
// What a private collector leaves free, too.
constexpr uint64_t kKeptFreeBytes = 64 << 20;

}  // namespace

void CollectorLink::OpenSpool() {
  if (options_.spool_directory.empty()) return;
  v1::Identity identity;
  {
    absl::MutexLock lock(&mutex_);
    identity = identity_;
  }
  Spool::Options spool_options;
  spool_options.directory = options_.spool_directory;
  spool_options.max_bytes = options_.spool_bytes;
  if (Keeps()) {
    spool_options.max_bytes = std::min(options_.spool_bytes, kMaxKeptBytes);
    spool_options.file_bytes = kKeptFileBytes;
    spool_options.min_free_bytes = kKeptFreeBytes;
  }
  spool_options.secret = options_.incarnation_secret;
  absl::StatusOr<std::unique_ptr<Spool>> spool =
      Spool::Open(spool_options, identity, file_system_);
  absl::MutexLock lock(&spool_mutex_);
  if (spool.ok()) {
    spool_ = *std::move(spool);
    return;
  }
  no_spool_ = true;
  if (!Keeps()) queue_->NoteSpooled(UINT64_MAX);
  TellSpool(spool.status());
}

void CollectorLink::SpoolNewFrames() {
  EncodedFrame frame;
  while (queue_->NextUnspooled(&frame)) {
    absl::Status status;
    if (frame.head.empty()) {
      spool_->Skip(frame.sequence);
    } else {
      status =
          spool_->Append(frame.sequence, frame.head, frame.tail, frame.foot);
      if (!status.ok()) TellSpool(status);
      if (status.ok() || !Keeps()) queue_->NoteSpooled(frame.sequence);
    }
  }
}

bool CollectorLink::Keep() {
  if (!Keeps()) return false;
  {
    absl::MutexLock lock(&spool_mutex_);
    if (spool_ == nullptr) return false;
    SpoolNewFrames();
  }
  return queue_->AllKept();
}

// Puts new frames on disk.
void CollectorLink::SpoolFrames() {
  absl::MutexLock spool_lock(&spool_mutex_);
  if (spool_ == nullptr) return;
  SpoolNewFrames();
  SessionStats stats;
  queue_->FillStats(&stats);
  spool_->Committed(stats.committed_sequence);
  absl::MutexLock lock(&mutex_);
  spooled_bytes_ = spool_->bytes();
}

absl::Status CollectorLink::DrainOrphan(OrphanSpool* orphan, SpoolDrain* drain,
                                        CollectorFinder* finder) {
  RP_ASSIGN_OR_RETURN(const std::shared_ptr<Target> target,
                      Locate(finder, orphan->identity()));
  const absl::Status status = drain->Run(target->channel.get(), orphan);
  if (absl::IsUnavailable(status)) finder->NoteNotReached();
  return status;
}

SpoolDrain CollectorLink::NewDrain(CollectorFinder* finder) {
  return SpoolDrain(
      options_.security, options_.agent_version, [this] { outbox_->Wake(); },
      [this](absl::Duration timeout) {
        SpoolFrames();
        return outbox_->Wait(timeout);
      },
      [this, finder] {
        finder->NoteReached();
        absl::MutexLock lock(&mutex_);
        heard_ = true;
      });
}

// What earlier lives left behind goes first: their sequence numbers and
// their ranks are their own. False when stopping.
bool CollectorLink::DrainOrphans() {
  if (options_.spool_directory.empty()) return true;
  int passed_over = 0;
  const std::vector<std::unique_ptr<OrphanSpool>> orphans = OrphanSpool::Find(
      options_.spool_directory, file_system_,
      options_.file_system == nullptr ? IsOwnFile
                                      : [](const std::string&) { return true; },
      &passed_over);
  if (passed_over > 0) {
    const std::string line = absl::StrCat(
        "rankprobe: ", passed_over, " spools in ", options_.spool_directory,
        " are not sent: others made them or can change them\n");
    std::fputs(line.c_str(), stderr);
  }
  for (const auto& orphan : orphans) {
    CollectorFinder finder = NewFinder();
    SpoolDrain drain = NewDrain(&finder);
    absl::Status status;
    for (;;) {
      status = DrainOrphan(orphan.get(), &drain, &finder);
      if (!absl::IsUnavailable(status)) break;
      NoteError(status);
      // A try that fails at once has spooled nothing, and a barrier may wait.
      SpoolFrames();
      if (!outbox_->Wait(options_.reconnect_max)) return false;
    }
    if (absl::IsCancelled(status)) return false;
    // Refused: it stays for another time.
    if (!status.ok()) NoteError(status);
  }
  return true;
}

void CollectorLink::TellSpool(const absl::Status& status) {
  NoteError(status);
  // stop() waits for the collector instead.
  if (Keeps() || std::exchange(told_spool_, true)) return;
  const std::string line = absl::StrCat(
      "rankprobe: records from now on are not kept in ",
      options_.spool_directory,
      ", and is lost if the process ends before a collector has it: ",
      status.message(), "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace rankprobe
