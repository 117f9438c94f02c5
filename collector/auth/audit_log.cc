// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/audit_log.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

void AddMember(absl::string_view name, absl::string_view value,
               std::string* line) {
  absl::StrAppend(line, ", ");
  AppendJsonString(name, line);
  absl::StrAppend(line, ": ");
  AppendJsonString(value, line);
}

bool IsOfAgents(absl::string_view role) {
  return role == "agent" || role == AuditLog::kOwnRole;
}

// Reads the role from a line of the file. Quotes in clients' texts are escaped
// in it.
bool IsLineOfAgents(absl::string_view line) {
  constexpr absl::string_view kMember = "\", \"role\": \"";
  const size_t at = line.find(kMember);
  if (at == absl::string_view::npos) return false;
  line.remove_prefix(at + kMember.size());
  return IsOfAgents(line.substr(0, line.find('"')));
}

// Calls `take` with each complete line of the file, including its end.
absl::Status ForEachLine(
    const std::string& path, FileSystem* file_system,
    const std::function<absl::Status(absl::string_view)>& take) {
  constexpr uint64_t kPieceBytes = 1 << 20;
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  std::string rest;
  for (uint64_t offset = 0; offset < size;) {
    const uint64_t bytes = std::min(kPieceBytes, size - offset);
    const size_t before = rest.size();
    rest.resize(before + bytes);
    RP_RETURN_IF_ERROR(
        file->Read(offset, absl::MakeSpan(rest.data() + before, bytes)));
    offset += bytes;
    size_t begin = 0;
    for (size_t end = rest.find('\n', before); end != std::string::npos;
         end = rest.find('\n', begin)) {
      RP_RETURN_IF_ERROR(
          take(absl::string_view(rest).substr(begin, end + 1 - begin)));
      begin = end + 1;
    }
    rest.erase(0, begin);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(
    const Options& options, const std::string& path, FileSystem* file_system,
    const Clock* clock) {
  std::unique_ptr<AuditLog> log(
      new AuditLog(options, path, file_system, clock));
  absl::MutexLock lock(&log->mutex_);
  // Left by an interrupted rotation: the last of its renames is missing, or all
  // are.
  const std::string next = path + ".tmp";
  if (file_system->Exists(next)) {
    RP_RETURN_IF_ERROR(file_system->Exists(path)
                           ? file_system->Delete(next)
                           : file_system->Rename(next, path));
  }
  RP_RETURN_IF_ERROR(log->OpenFile());
  RP_RETURN_IF_ERROR(
      ForEachLine(path, file_system, [&log](absl::string_view line) {
        log->mutex_.AssertHeld();
        if (IsLineOfAgents(line)) log->agent_bytes_ += line.size();
        return absl::OkStatus();
      }));
  return log;
}

absl::Status AuditLog::OpenFile() {
  RP_ASSIGN_OR_RETURN(
      file_, file_system_->OpenForWrite(path_, FileSystem::OpenMode::kAppend));
  return absl::OkStatus();
}

std::string AuditLog::LineOf(const AuditRecord& record) const {
  std::string line = "{\"time\": ";
  AppendJsonString(
      absl::FormatTime(absl::RFC3339_full, clock_->Now(), absl::UTCTimeZone()),
      &line);
  AddMember("actor", record.actor, &line);
  AddMember("role", record.role, &line);
  AddMember("peer", record.peer, &line);
  AddMember("action", record.action, &line);
  AddMember("run", record.run, &line);
  AddMember("detail", record.detail, &line);
  AddMember("outcome", record.outcome, &line);
  absl::StrAppend(&line, ", \"epoch\": ", record.epoch, "}\n");
  return line;
}

absl::Status AuditLog::CarryOver(WritableFile* to) const {
  const std::string older = path_ + ".1";
  if (!file_system_->Exists(older)) return absl::OkStatus();
  return ForEachLine(older, file_system_, [to](absl::string_view line) {
    return IsLineOfAgents(line) ? absl::OkStatus() : to->Append(line);
  });
}

absl::Status AuditLog::TurnOver() {
  const std::string next = path_ + ".tmp";
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<WritableFile> file,
      file_system_->OpenForWrite(next, FileSystem::OpenMode::kTruncate));
  absl::Status status = CarryOver(file.get());
  status.Update(file->Sync());
  status.Update(file->Close());
  // Lines for which an operator already has an answer must be on the disk,
  // under either name.
  if (status.ok()) status.Update(file_->Sync());
  if (status.ok()) status.Update(file_system_->Rename(path_, path_ + ".1"));
  if (!status.ok()) {
    file_system_->Delete(next).IgnoreError();
    return status;
  }
  RP_RETURN_IF_ERROR(file_system_->Rename(next, path_));
  RP_RETURN_IF_ERROR(OpenFile());
  agent_bytes_ = 0;
  const size_t slash = path_.rfind('/');
  return file_system_->SyncDirectory(
      slash == std::string::npos ? "." : path_.substr(0, slash + 1));
}

absl::Status AuditLog::WriteOfAgent(const AuditRecord& record) {
  const size_t slash = path_.rfind('/');
  RP_ASSIGN_OR_RETURN(
      const uint64_t free,
      file_system_->FreeBytes(
          slash == std::string::npos ? "." : path_.substr(0, slash + 1)));
  std::string text = LineOf(record);
  if (dropped_ > dropped_told_) {
    AuditRecord gap;
    gap.actor = kOwnRole;
    gap.role = kOwnRole;
    gap.action = "Dropped";
    gap.detail =
        absl::StrCat(dropped_ - dropped_told_, " lines of agents' actions");
    gap.outcome = "RESOURCE_EXHAUSTED: the disk was full";
    text.insert(0, LineOf(gap));
  }
  if (free < options_.min_free_bytes + text.size()) {
    ++dropped_;
    return absl::OkStatus();
  }
  if (agent_bytes_ + text.size() > options_.max_agent_bytes) {
    if (const absl::Status status = TurnOver(); !status.ok()) {
      ++dropped_;
      return status;
    }
  }
  RP_RETURN_IF_ERROR(file_->Append(text));
  agent_bytes_ += text.size();
  dropped_told_ = dropped_;
  return absl::OkStatus();
}

absl::Status AuditLog::Write(const AuditRecord& record, Durability durability) {
  absl::MutexLock lock(&mutex_);
  if (IsOfAgents(record.role)) {
    RP_RETURN_IF_ERROR(WriteOfAgent(record));
  } else {
    RP_RETURN_IF_ERROR(file_->Append(LineOf(record)));
  }
  return durability == Durability::kSynced ? file_->Sync() : absl::OkStatus();
}

uint64_t AuditLog::CountDropped() const {
  absl::MutexLock lock(&mutex_);
  return dropped_;
}

}  // namespace rankprobe
