#include "collector/auth/audit_log.h"

#include <utility>

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

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(
    const std::string& path, FileSystem* file_system, const Clock* clock) {
  RP_ASSIGN_OR_RETURN(
      std::unique_ptr<WritableFile> file,
      file_system->OpenForWrite(path, FileSystem::OpenMode::kAppend));
  return std::unique_ptr<AuditLog>(new AuditLog(std::move(file), clock));
}

absl::Status AuditLog::Write(const AuditRecord& record, Durability durability) {
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
  absl::MutexLock lock(&mutex_);
  RP_RETURN_IF_ERROR(file_->Append(line));
  return durability == Durability::kSynced ? file_->Sync() : absl::OkStatus();
}

}  // namespace rankprobe
