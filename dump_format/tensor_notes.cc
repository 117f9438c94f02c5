// SPDX-License-Identifier: Apache-2.0
#include "dump_format/tensor_notes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/json_stream.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxNoteBytes = 1 << 20;

absl::StatusOr<TensorNote> ReadNote(const JsonValue& value) {
  TensorNote note;
  if (!value.is_object()) return absl::InvalidArgumentError("is not an object");
  const JsonValue* const written = value.Find("written");
  note.written = written != nullptr && written->kind == JsonValue::Kind::kTrue;
  const JsonValue* const sizes = value.Find("global_shape");
  if (sizes == nullptr) return note;
  for (const JsonValue& size : sizes->items()) {
    if (size.kind != JsonValue::Kind::kInt ||
        !(size.number >= 0 && size.number < 1e15)) {
      return absl::InvalidArgumentError("has a bad global_shape");
    }
    note.global_shape.push_back(static_cast<int64_t>(size.number));
  }
  return note;
}

}  // namespace

std::string WrittenNotesJson(absl::Span<const std::string> rows) {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  for (const std::string& row : rows) {
    json.Key(row);
    json.BeginObject();
    json.Key("written");
    json.Bool(true);
    json.EndObject();
  }
  json.EndObject();
  return out;
}

absl::StatusOr<TensorNotes> TensorNotes::Read(FileSystem* file_system,
                                              const std::string& directory) {
  TensorNotes notes;
  const std::string path = absl::StrCat(directory, "/tensor_notes.json");
  if (!file_system->Exists(path)) return notes;
  RP_ASSIGN_OR_RETURN(const auto file, file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  JsonStream stream(file.get(), size);
  JsonDocument document;
  std::string scratch;
  const absl::Status status =
      stream.ReadObject([&](const std::string& row) -> absl::Status {
        RP_ASSIGN_OR_RETURN(const absl::string_view text,
                            stream.ReadValue(kMaxNoteBytes, &scratch));
        RP_RETURN_IF_ERROR(document.ParseView(text));
        absl::StatusOr<TensorNote> note = ReadNote(document.root());
        if (!note.ok()) {
          return absl::InvalidArgumentError(
              absl::StrCat(OneLine(row), " ", note.status().message()));
        }
        notes.notes_[row] = *std::move(note);
        return absl::OkStatus();
      });
  if (status.ok()) return notes;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", OneLine(status.message())));
}

const TensorNote* TensorNotes::Find(absl::string_view row) const {
  const auto it = notes_.find(row);
  return it == notes_.end() ? nullptr : &it->second;
}

}  // namespace rankprobe
