// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/session/config_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/config/config_reader.h"
#include "rapidjson/document.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
// Clocks of file systems are coarse, and file servers have their own.
constexpr absl::Duration kYoung = absl::Seconds(2);
constexpr int kHalfWrittenTries = 50;
constexpr absl::Duration kHalfWrittenWait = absl::Milliseconds(2);

bool Same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

bool IsJsonObject(const std::string& text) {
  rapidjson::Document document;
  return ParseConfigDocument(text, &document).ok();
}

// A lack of resources says nothing about the file.
bool IsPassing(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM ||
         error == EIO || error == EINTR || error == ESTALE ||
         error == ETIMEDOUT;
}

// UNAVAILABLE: the next attempt may succeed.
absl::Status Failure(const char* what) {
  const int error = errno;
  const std::string text = absl::StrCat(what, std::strerror(error));
  return IsPassing(error) ? absl::UnavailableError(text)
                          : absl::InvalidArgumentError(text);
}

absl::StatusOr<std::string> ReadAll(int fd) {
  std::string text;
  char buffer[16 << 10];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failure("cannot be read: ");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("it has more than ", kMaxBytes, " bytes"));
    }
  }
}

}  // namespace

bool ConfigFile::Stamp::operator==(const Stamp& other) const {
  return device == other.device && inode == other.inode && size == other.size &&
         Same(modified, other.modified) && Same(changed, other.changed);
}

ConfigFile::ConfigFile(std::string path) : path_(std::move(path)) {
  const auto text = Read(/*force=*/true);
  if (text.has_value() && text->ok()) said_ = **text;
}

std::optional<absl::StatusOr<std::string>> ConfigFile::Read(bool force) {
  // The file is opened and not only stat'ed, because opening makes network file
  // systems revalidate their caches.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return Failure("cannot be opened: ");
  }
  const absl::Cleanup close = [fd] { ::close(fd); };
  struct stat now = {};
  if (::fstat(fd, &now) != 0) return Failure("cannot be inspected: ");
  if (!S_ISREG(now.st_mode))
    return absl::InvalidArgumentError("is not a regular file");
  const Stamp stamp{now.st_dev, now.st_ino, now.st_size, now.st_mtim,
                    now.st_ctim};
  if (!force && !young_ && stamp == stamp_) return std::nullopt;
  absl::StatusOr<std::string> text = ReadAll(fd);
  if (absl::IsUnavailable(text.status())) {
    stamp_ = {};  // so that the next look reads it, whatever its stamp
    return text;
  }
  stamp_ = stamp;
  young_ = absl::AbsDuration(absl::Now() -
                             absl::TimeFromTimespec(now.st_mtim)) < kYoung;
  return text;
}

std::optional<absl::StatusOr<std::string>> ConfigFile::Look() {
  std::optional<absl::StatusOr<std::string>> read = Read(/*force=*/false);
  if (!read.has_value() || absl::IsUnavailable(read->status()))
    return std::nullopt;
  if (read->ok() && **read != said_) {
    for (int i = 0; i < kHalfWrittenTries && !IsJsonObject(**read); ++i) {
      absl::SleepFor(kHalfWrittenWait);
      auto again = Read(/*force=*/true);
      if (again.has_value() && absl::IsUnavailable(again->status())) {
        stamp_ = {};
        return std::nullopt;
      }
      if (!again.has_value() || !again->ok()) break;
      read = std::move(again);
    }
  }
  std::string said =
      read->ok() ? **read : std::string(read->status().message());
  if (said == said_ && read->ok() != fault_) return std::nullopt;
  said_ = std::move(said);
  fault_ = !read->ok();
  return read;
}

std::string MergeOverrides(const std::string& json,
                           const ConfigOverrides& overrides) {
  rapidjson::Document document;
  if (!ParseConfigDocument(json, &document).ok() || !document.IsObject())
    return json;
  auto& allocator = document.GetAllocator();
  const auto put = [&](const char* name, rapidjson::Value value) {
    document.RemoveMember(name);
    document.AddMember(rapidjson::Value(name, allocator), value, allocator);
  };
  bool any = false;
  for (const auto& [name, value] :
       {std::make_pair("task", &overrides.task),
        std::make_pair("dump_path", &overrides.dump_path),
        std::make_pair("level", &overrides.level)}) {
    if (!value->has_value()) continue;
    any = true;
    put(name, rapidjson::Value((*value)->c_str(), allocator));
  }
  if (overrides.step_json.has_value()) {
    rapidjson::Document step(&allocator);
    step.Parse(overrides.step_json->c_str());
    // A text that is not JSON was rejected when the debugger was made.
    if (!step.HasParseError()) {
      any = true;
      put("step", rapidjson::Value(step, allocator));
    }
  }
  if (!any) return json;
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  document.Accept(writer);
  return {buffer.GetString(), buffer.GetSize()};
}

EditReport SubmitEdit(const std::string& path,
                      const absl::StatusOr<std::string>& json, bool at_once,
                      Session* session) {
  EditReport report;
  ConfigEdit edit;
  edit.path = path;
  absl::StatusOr<ConfigResult> parsed =
      json.ok() ? ParseConfig(*json, {})
                : absl::StatusOr<ConfigResult>(json.status());
  if (parsed.ok()) {
    edit.config_json = *json;
    edit.plan = std::make_shared<const Plan>(std::move(parsed->plan));
    report.warnings = std::move(parsed->warnings);
  } else {
    edit.fault = std::string(parsed.status().message());
    report.fault = edit.fault;
  }
  if (session != nullptr) session->EditConfig(edit, at_once);
  return report;
}

std::string FaultLine(absl::string_view path, absl::string_view fault) {
  return absl::StrCat("rankprobe: ", path,
                      " cannot be used; dumping is off until it is ",
                      "corrected or an operator switches it on: ",
                      absl::StrReplaceAll(fault, {{"\n", "; "}}), "\n");
}

}  // namespace rankprobe
