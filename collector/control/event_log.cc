// SPDX-License-Identifier: Apache-2.0
#include "collector/control/event_log.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/little_endian.h"
#include "common/base/status_macros.h"
#include "common/io/crc32c.h"

namespace rankprobe {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr uint32_t kMaxEventBytes = 1 << 20;
// Ids are returned before their events are on disk, and watchers ask for events
// after the last id they have seen. After an unclean end ids continue this much
// higher, so that none is used twice.
constexpr uint64_t kIdGap = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(
    const Options& options, FileSystem* file_system, const Clock* clock) {
  std::unique_ptr<EventLog> log(new EventLog(options, file_system, clock));
  if (options.path.empty()) return log;
  absl::MutexLock file_lock(&log->file_mutex_);
  bool clean_end = true;
  for (const std::string& path :
       {absl::StrCat(options.path, ".1"), options.path}) {
    absl::MutexLock lock(&log->mutex_);
    if (file_system->Exists(path))
      RP_RETURN_IF_ERROR(log->Load(path, &clean_end));
  }
  if (!clean_end) {
    absl::MutexLock lock(&log->mutex_);
    log->next_id_ += kIdGap;
  }
  RP_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

EventLog::~EventLog() {
  if (options_.path.empty()) return;
  {
    absl::MutexLock lock(&mutex_);
    NoteDropped();
  }
  writes_.Wait();
  absl::MutexLock file_lock(&file_mutex_);
  // The empty line marks a clean end: it says that every returned id is before
  // it. A failed write means that there is no such mark.
  if (written_.ok() && file_ != nullptr) WriteFramed("").IgnoreError();
}

absl::Status EventLog::Load(const std::string& path, bool* clean_end) {
  *clean_end = false;
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system_->OpenForRead(path));
  uint64_t offset = 0, end_of_events = 0;
  std::string bytes;
  while (size - offset >= kHeaderBytes) {
    char header[kHeaderBytes];
    RP_RETURN_IF_ERROR(file->Read(offset, absl::MakeSpan(header)));
    const uint32_t length = static_cast<uint32_t>(GetLittleEndian({header, 4}));
    if (length > kMaxEventBytes || length > size - offset - kHeaderBytes) break;
    bytes.resize(length);
    RP_RETURN_IF_ERROR(file->Read(offset + kHeaderBytes,
                                  absl::MakeSpan(bytes.data(), length)));
    v1::Event event;
    if (Crc32c(bytes) != GetLittleEndian({header + 4, 4}) ||
        !event.ParseFromString(bytes))
      break;
    offset += kHeaderBytes + length;
    *clean_end = length == 0;
    if (*clean_end) continue;
    end_of_events = offset;
    next_id_ = std::max(next_id_, event.id() + 1);
    // A rotated file begins with events that were in memory, most of which are
    // already loaded.
    const Ring& ring = *RingOf(event);
    if (ring.events.empty() || ring.events.back().id() < event.id())
      Keep(std::move(event));
  }
  // Data after the last complete event was being written in a crash, or is the
  // mark of a clean end. It is removed, because this process may be killed.
  if (offset < size) *clean_end = false;
  return end_of_events < size ? file_system_->Truncate(path, end_of_events)
                              : absl::OkStatus();
}

absl::Status EventLog::OpenFile() {
  RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                 options_.path, FileSystem::OpenMode::kAppend));
  RP_ASSIGN_OR_RETURN(file_bytes_, file_system_->FileSize(options_.path));
  return absl::OkStatus();
}

EventLog::Ring* EventLog::RingOf(const v1::Event& event) {
  const auto [it, is_new] = rings_.try_emplace(KeyOf(event));
  if (is_new) {
    it->second.allowed = options_.burst;
    it->second.counted_ns = clock_->MonotonicNanos();
    by_size_.emplace(0, it->first);
  }
  return &it->second;
}

bool EventLog::Allow(Ring* ring) const {
  const int64_t now = clock_->MonotonicNanos();
  const double seconds = static_cast<double>(now - ring->counted_ns) / 1e9;
  ring->counted_ns = now;
  ring->allowed = std::min(ring->allowed + seconds * options_.events_per_second,
                           options_.burst);
  if (ring->allowed < 1) {
    ++ring->left_out;
    return false;
  }
  ring->allowed -= 1;
  return true;
}

void EventLog::Resize(const RingKey& key, Ring* ring, uint64_t bytes) {
  by_size_.erase({ring->bytes, key});
  bytes_ = bytes_ - ring->bytes + bytes;
  ring->bytes = bytes;
  by_size_.emplace(bytes, key);
}

void EventLog::Keep(v1::Event event) {
  const RingKey key = KeyOf(event);
  Ring* const ring = RingOf(event);
  Resize(key, ring, ring->bytes + kHeaderBytes + event.ByteSizeLong());
  ring->events.push_back(std::move(event));
  ++count_;
  while (count_ > options_.max_in_memory ||
         (bytes_ > options_.max_file_bytes / 2 && count_ > 1))
    DropOldestOfLargest();
}

void EventLog::DropOldestOfLargest() {
  const RingKey key = by_size_.rbegin()->second;
  const auto it = rings_.find(key);
  Ring& ring = it->second;
  Resize(key, &ring,
         ring.bytes - kHeaderBytes - ring.events.front().ByteSizeLong());
  ring.events.pop_front();
  --count_;
  if (!ring.events.empty()) return;
  by_size_.erase({ring.bytes, key});
  rings_.erase(it);
}

std::vector<const v1::Event*> EventLog::InOrder(const std::string& run,
                                                uint64_t after_id) const {
  std::vector<const v1::Event*> found;
  auto it = run.empty() ? rings_.begin() : rings_.lower_bound({run, INT_MIN});
  for (; it != rings_.end() && (run.empty() || it->first.first == run); ++it) {
    const std::deque<v1::Event>& events = it->second.events;
    for (auto event = events.rbegin();
         event != events.rend() && event->id() > after_id; ++event)
      found.push_back(&*event);
  }
  std::sort(
      found.begin(), found.end(),
      [](const v1::Event* a, const v1::Event* b) { return a->id() < b->id(); });
  return found;
}

absl::Status EventLog::TurnOver(uint64_t first_id) {
  RP_RETURN_IF_ERROR(file_->Close());
  file_.reset();
  RP_RETURN_IF_ERROR(
      file_system_->Rename(options_.path, absl::StrCat(options_.path, ".1")));
  RP_RETURN_IF_ERROR(OpenFile());
  std::vector<v1::Event> before;
  {
    absl::MutexLock lock(&mutex_);
    for (const v1::Event* event : InOrder("", 0)) {
      if (event->id() < first_id) before.push_back(*event);
    }
  }
  for (const v1::Event& event : before) RP_RETURN_IF_ERROR(Write(event));
  return absl::OkStatus();
}

void EventLog::WriteLater(const v1::Event& event) {
  // After an error nothing is written until the next start: a gap would hide
  // what follows it.
  if (options_.path.empty() || !status_.ok()) return;
  if (unwritten_.size() >= options_.max_unwritten) {
    ++dropped_;
    return;
  }
  unwritten_.push_back(event);
  // One task writes everything that is queued when it runs.
  if (unwritten_.size() == 1) writes_.Add([this] { WriteWaiting(); });
}

void EventLog::NoteDropped() {
  if (dropped_ == 0 || unwritten_.size() >= options_.max_unwritten) return;
  v1::Event note;
  note.set_kind(v1::Event::KIND_ERROR);
  note.set_step(-1);
  note.set_detail(absl::StrCat(std::exchange(dropped_, 0),
                               " events before this one waited too long for "
                               "the disk and are not in the file"));
  Number(&note);
  WriteLater(note);
  Keep(std::move(note));
}

void EventLog::Number(v1::Event* event) {
  event->set_id(next_id_++);
  event->set_time_unix_ns(absl::ToUnixNanos(clock_->Now()));
}

void EventLog::WriteWaiting() {
  absl::MutexLock file_lock(&file_mutex_);
  std::vector<v1::Event> events;
  {
    absl::MutexLock lock(&mutex_);
    events = std::exchange(unwritten_, {});
  }
  for (const v1::Event& event : events) {
    if (written_.ok() && file_bytes_ > options_.max_file_bytes)
      written_ = TurnOver(event.id());
    if (written_.ok()) written_ = Write(event);
  }
  absl::MutexLock lock(&mutex_);
  status_.Update(written_);
}

absl::Status EventLog::Write(const v1::Event& event) {
  return WriteFramed(event.SerializeAsString());
}

absl::Status EventLog::WriteFramed(absl::string_view bytes) {
  char header[kHeaderBytes];
  PutLittleEndian(static_cast<uint32_t>(bytes.size()), header);
  PutLittleEndian(Crc32c(bytes), header + 4);
  file_bytes_ += kHeaderBytes + bytes.size();
  return file_->Append({absl::string_view(header, kHeaderBytes), bytes});
}

uint64_t EventLog::Append(v1::Event event) {
  const RunQueuedAfter write(&writes_);
  absl::MutexLock lock(&mutex_);
  Ring* const ring = RingOf(event);
  if (!Allow(ring)) return 0;
  if (ring->left_out > 0) {
    event.set_detail(absl::StrCat(event.detail(), " (", ring->left_out,
                                  " before it were left out)"));
    ring->left_out = 0;
  }
  // Numbered first, because the note is about earlier events.
  NoteDropped();
  Number(&event);
  const uint64_t id = event.id();
  WriteLater(event);
  Keep(std::move(event));
  return id;
}

std::vector<v1::Event> EventLog::List(const std::string& run, uint64_t after_id,
                                      size_t limit) const {
  absl::MutexLock lock(&mutex_);
  const std::vector<const v1::Event*> found = InOrder(run, after_id);
  std::vector<v1::Event> events;
  for (size_t i = found.size() - std::min(found.size(), limit);
       i < found.size(); ++i)
    events.push_back(*found[i]);
  return events;
}

absl::Status EventLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace rankprobe
