// SPDX-License-Identifier: Apache-2.0
#include "dump_format/dump_walk.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxHeadBytes = uint64_t{1} << 20;

// Returns null if the name is not a part of the head.
std::optional<std::string>* FieldOf(DumpHead* head, absl::string_view name) {
  if (head == nullptr) return nullptr;
  if (name == "task") return &head->task;
  if (name == "level") return &head->level;
  if (name == "framework") return &head->framework;
  if (name == "dump_data_dir") return &head->dump_data_dir;
  if (name == kPutTogetherKey) return &head->put_together;
  return nullptr;
}

}  // namespace

absl::Status WalkDump(
    JsonStream* stream, DumpHead* head,
    absl::FunctionRef<absl::Status(const std::string& name)> entry) {
  bool has_data = false;
  std::string scratch;
  RP_RETURN_IF_ERROR(
      stream->ReadObject([&](const std::string& name) -> absl::Status {
        if (name == "data") {
          if (stream->Peek() != '{')
            return stream->Fault("data is not an object");
          has_data = true;
          return stream->ReadObject(entry);
        }
        std::optional<std::string>* const field = FieldOf(head, name);
        const bool statistics = head != nullptr && name == kExtraStatisticsKey;
        if (field == nullptr && !statistics) return stream->SkipValue();
        RP_ASSIGN_OR_RETURN(const absl::string_view text,
                            stream->ReadValue(kMaxHeadBytes, &scratch));
        JsonDocument document;
        RP_RETURN_IF_ERROR(document.ParseView(text));
        if (document.root().is_null()) return absl::OkStatus();
        if (statistics) {
          for (const JsonValue& key : document.root().items()) {
            if (key.is_string()) head->extra_statistics.emplace_back(key.text);
          }
          return absl::OkStatus();
        }
        if (!document.root().is_string()) {
          return absl::InvalidArgumentError(
              absl::StrCat(name, " is not a string"));
        }
        *field = std::string(document.root().text);
        return absl::OkStatus();
      }));
  if (stream->Peek() != 0) return stream->Fault("text after the value");
  if (!has_data) return absl::InvalidArgumentError("has no \"data\"");
  return absl::OkStatus();
}

}  // namespace rankprobe
