// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/link_spool.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

// For records that wait for the collector, where stop() does not wait for it.
constexpr uint64_t kMaxKeptBytes = 64 << 20;
constexpr uint64_t kKeptFileBytes = 8 << 20;
// A private collector leaves the same space free.
constexpr uint64_t kKeptFreeBytes = 64 << 20;

}  // namespace

LinkSpool::LinkSpool(const SessionOptions& options, FrameQueue* queue,
                     LinkStatus* status)
    : options_(options),
      queue_(queue),
      status_(status),
      posix_(options.file_system == nullptr ? NewPosixFileSystem() : nullptr),
      file_system_(options.file_system == nullptr ? posix_.get()
                                                  : options.file_system) {}

void LinkSpool::Open() {
  if (options_.spool_directory.empty()) return;
  Spool::Options spool_options;
  spool_options.directory = options_.spool_directory;
  spool_options.max_bytes = options_.spool_bytes;
  if (keeps()) {
    spool_options.max_bytes = std::min(options_.spool_bytes, kMaxKeptBytes);
    spool_options.file_bytes = kKeptFileBytes;
    spool_options.min_free_bytes = kKeptFreeBytes;
  }
  spool_options.secret = options_.incarnation_secret;
  absl::StatusOr<std::unique_ptr<Spool>> spool =
      Spool::Open(spool_options, status_->identity(), file_system_);
  absl::MutexLock lock(&mutex_);
  if (spool.ok()) {
    spool_ = *std::move(spool);
    return;
  }
  status_->NoteNoSpool();
  // Nothing waits for a spool that does not exist. Under kKept frames must not
  // count as safe in it: stop() waits for the collector instead.
  if (!keeps()) queue_->NoteSpooled(UINT64_MAX);
  NoteFault(spool.status());
}

void LinkSpool::Append() {
  EncodedFrame frame;
  while (queue_->NextUnspooled(&frame)) {
    absl::Status status;
    if (frame.head.empty()) {
      spool_->Skip(frame.sequence);
    } else {
      status =
          spool_->Append(frame.sequence, frame.head, frame.tail, frame.foot);
      if (!status.ok()) NoteFault(status);
      // Under kKept a refused frame must not count as safe in the file.
      if (status.ok() || !keeps()) queue_->NoteSpooled(frame.sequence);
    }
  }
}

bool LinkSpool::Keep() {
  if (!keeps()) return false;
  {
    absl::MutexLock lock(&mutex_);
    if (spool_ == nullptr) return false;
    Append();
  }
  return queue_->AllKept();
}

void LinkSpool::Update() {
  absl::MutexLock lock(&mutex_);
  if (spool_ == nullptr) return;
  Append();
  SessionStats stats;
  queue_->FillStats(&stats);
  spool_->Committed(stats.committed_sequence);
  status_->NoteSpooled(spool_->bytes());
}

void LinkSpool::NoteFault(const absl::Status& status) {
  status_->NoteError(status);
  // stop() waits for the collector instead.
  if (keeps() || std::exchange(told_, true)) return;
  const std::string line = absl::StrCat(
      "rankprobe: records from now on are not kept in ",
      options_.spool_directory,
      ", and is lost if the process ends before a collector has it: ",
      status.message(), "\n");
  std::fputs(line.c_str(), stderr);
}

void LinkSpool::TellLeft(const v1::Undelivered& left) const {
  if (left.records() + left.payloads() == 0) return;
  const std::string line = absl::StrCat(
      "rankprobe: ", left.records(), " records and ", left.payloads(),
      " payloads are kept in ", options_.spool_directory,
      ", the next process that records with it sends them, or: rankprobe "
      "deliver ",
      options_.spool_directory, "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace rankprobe
