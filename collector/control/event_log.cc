#include "collector/control/event_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr uint32_t kMaxEventBytes = 1 << 20;

void PutLittleEndian(uint32_t value, char* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

uint32_t GetLittleEndian(const char* in) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i)
    value = value << 8 | static_cast<unsigned char>(in[i]);
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Open(
    const Options& options, FileSystem* file_system, const Clock* clock) {
  std::unique_ptr<EventLog> log(new EventLog(options, file_system, clock));
  if (options.path.empty()) return log;
  absl::MutexLock lock(&log->mutex_);
  for (const std::string& path :
       {absl::StrCat(options.path, ".1"), options.path}) {
    if (file_system->Exists(path)) RP_RETURN_IF_ERROR(log->Load(path));
  }
  RP_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

absl::Status EventLog::Load(const std::string& path) {
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system_->OpenForRead(path));
  uint64_t offset = 0;
  std::string bytes;
  while (size - offset >= kHeaderBytes) {
    char header[kHeaderBytes];
    RP_RETURN_IF_ERROR(file->Read(offset, absl::MakeSpan(header)));
    const uint32_t length = GetLittleEndian(header);
    if (length > kMaxEventBytes || length > size - offset - kHeaderBytes) break;
    bytes.resize(length);
    RP_RETURN_IF_ERROR(file->Read(offset + kHeaderBytes,
                                  absl::MakeSpan(bytes.data(), length)));
    v1::Event event;
    if (Crc32c(bytes) != GetLittleEndian(header + 4) ||
        !event.ParseFromString(bytes))
      break;
    offset += kHeaderBytes + length;
    next_id_ = std::max(next_id_, event.id() + 1);
    events_.push_back(std::move(event));
    if (events_.size() > options_.max_in_memory) events_.pop_front();
  }
  // What is behind the last whole event was being written in a crash.
  if (offset < size) return file_system_->Truncate(path, offset);
  return absl::OkStatus();
}

absl::Status EventLog::OpenFile() {
  RP_ASSIGN_OR_RETURN(file_, file_system_->OpenForWrite(
                                 options_.path, FileSystem::OpenMode::kAppend));
  RP_ASSIGN_OR_RETURN(file_bytes_, file_system_->FileSize(options_.path));
  return absl::OkStatus();
}

absl::Status EventLog::Write(const v1::Event& event) {
  if (file_bytes_ > options_.max_file_bytes) {
    RP_RETURN_IF_ERROR(file_->Close());
    file_.reset();
    RP_RETURN_IF_ERROR(
        file_system_->Rename(options_.path, absl::StrCat(options_.path, ".1")));
    RP_RETURN_IF_ERROR(OpenFile());
  }
  const std::string bytes = event.SerializeAsString();
  char header[kHeaderBytes];
  PutLittleEndian(static_cast<uint32_t>(bytes.size()), header);
  PutLittleEndian(Crc32c(bytes), header + 4);
  file_bytes_ += kHeaderBytes + bytes.size();
  return file_->Append({absl::string_view(header, kHeaderBytes), bytes});
}

uint64_t EventLog::Append(v1::Event event) {
  absl::MutexLock lock(&mutex_);
  const uint64_t id = next_id_++;
  event.set_id(id);
  event.set_time_unix_ns(absl::ToUnixNanos(clock_->Now()));
  // After a fault nothing is written until the next start: a hole would hide
  // what follows it.
  if (file_ != nullptr && status_.ok()) status_ = Write(event);
  events_.push_back(std::move(event));
  if (events_.size() > options_.max_in_memory) events_.pop_front();
  return id;
}

std::vector<v1::Event> EventLog::List(const std::string& run, uint64_t after_id,
                                      size_t limit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::Event> found;
  for (auto it = events_.rbegin();
       it != events_.rend() && it->id() > after_id && found.size() < limit;
       ++it) {
    if (run.empty() || it->run() == run) found.push_back(*it);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

absl::Status EventLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace rankprobe
