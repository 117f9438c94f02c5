// SPDX-License-Identifier: Apache-2.0
#include "analysis/align/step_files.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "dump_format/pt_writer.h"

namespace rankprobe::analysis {

absl::StatusOr<std::unique_ptr<StepRows>> StepRows::Open(
    FileSystem* file_system, const StepTokens& step) {
  DumpReader::Options options;
  options.keep_text = true;
  RP_ASSIGN_OR_RETURN(
      auto dump, DumpReader::Open(file_system, step.place.directory, options));
  return std::unique_ptr<StepRows>(
      new StepRows(file_system, &step, std::move(dump)));
}

absl::StatusOr<absl::Span<const DumpRow>> StepRows::EntryRows(size_t index) {
  std::unique_ptr<Kept>& kept = kept_[index];
  if (kept == nullptr) {
    kept = std::make_unique<Kept>();
    RP_RETURN_IF_ERROR(dump_->Read(index, &kept->record));
    RP_RETURN_IF_ERROR(ReadRows(dump_->name(index), dump_->stats(),
                                &kept->record, &kept->rows));
  }
  return absl::MakeConstSpan(kept->rows);
}

absl::StatusOr<const DumpRow*> StepRows::Find(absl::string_view name) {
  // The entry's name is a prefix of the row's name.
  for (size_t end = name.rfind('.'); end != absl::string_view::npos && end > 0;
       end = name.rfind('.', end - 1)) {
    const std::optional<size_t> index = dump_->Find(name.substr(0, end));
    if (!index.has_value()) continue;
    RP_ASSIGN_OR_RETURN(const auto rows, EntryRows(*index));
    for (const DumpRow& row : rows) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

absl::StatusOr<AlignedTensor> StepRows::Tensor(const DumpRow& row,
                                               v1::DType dtype, bool payload) {
  const JsonValue* const shape =
      row.record == nullptr ? nullptr : row.record->Find("shape");
  AlignedTensor out;
  out.dtype = ParseDtype(row.dtype);
  if (!row.has_dtype || row.derived || shape == nullptr ||
      out.dtype == v1::DTYPE_UNSPECIFIED) {
    return absl::FailedPreconditionError("is not a tensor");
  }
  for (const JsonValue& size : shape->items()) {
    if (!(size.number >= 0 && size.number < 1e12)) {
      return absl::FailedPreconditionError("has a bad shape");
    }
    out.shape.push_back(static_cast<int64_t>(size.number));
  }
  const v1::DType wanted = dtype == v1::DTYPE_UNSPECIFIED ? out.dtype : dtype;
  if (!payload) {
    for (size_t i = 0; i < kUsualStatCount; ++i) {
      if (row.stats[i].is_number()) out.stats[i] = row.stats[i].number;
    }
    if (CanBecome(out.dtype, wanted)) out.dtype = wanted;
    return out;
  }
  // A name with a slash could refer to a file outside of the directory.
  if (!absl::EndsWith(row.data_name, ".pt") ||
      absl::StrContains(row.data_name, '/') || dump_->data_dir().empty()) {
    return absl::FailedPreconditionError("has no .pt file");
  }
  const std::string path = absl::StrCat(dump_->data_dir(), "/", row.data_name);
  if (!file_system_->Exists(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("has a .pt file that is not there: ", path));
  }
  RP_ASSIGN_OR_RETURN(const PtTensor tensor, OpenPt(file_system_, path));
  if (tensor.shape != out.shape) {
    return absl::FailedPreconditionError(
        absl::StrCat("has another shape in ", path));
  }
  RP_ASSIGN_OR_RETURN(out.bytes, ReadBytes(tensor, wanted));
  out.dtype = wanted;
  return out;
}

absl::Status StepWriter::Begin(const DumpReader& target) {
  RP_RETURN_IF_ERROR(
      file_system_->CreateDirectories(payloads_ ? data_ : directory_));
  json_.BeginObject();
  json_.Key("task");
  json_.String(payloads_ ? "tensor" : "statistics");
  json_.Key("level");
  json_.String(target.level());
  json_.Key("framework");
  json_.String(target.framework());
  json_.Key("dump_data_dir");
  if (payloads_) {
    json_.String(data_);
  } else {
    json_.Null();
  }
  json_.Key("data");
  json_.BeginObject();
  return absl::OkStatus();
}

void StepWriter::BeginEntry(absl::string_view name) {
  json_.Key(name);
  json_.BeginObject();
  section_.clear();
}

absl::Status StepWriter::Row(absl::string_view section, absl::string_view place,
                             absl::string_view name,
                             const AlignedTensor& tensor,
                             absl::string_view of) {
  if (section != section_) {
    if (!section_.empty()) json_.EndObject();
    section_ = std::string(section);
    json_.Key(section);
    json_.BeginObject();
  }
  RP_ASSIGN_OR_RETURN(const UsualStats stats, StatsOf(tensor));
  json_.Key(place);
  json_.BeginObject();
  json_.Key("type");
  json_.String("torch.Tensor");
  json_.Key("dtype");
  json_.String(TorchDtypeName(tensor.dtype));
  json_.Key("shape");
  json_.BeginArray();
  for (const int64_t size : tensor.shape) json_.Int(size);
  json_.EndArray();
  for (size_t i = 0; i < kUsualStatCount; ++i) {
    json_.Key(kStatInfo[i].key);
    if (stats[i].has_value()) {
      json_.Float(*stats[i]);
    } else {
      json_.Null();
    }
  }
  json_.Key("requires_grad");
  json_.Bool(false);
  if (tensor.bytes.has_value()) {
    const std::string file = absl::StrCat(name, ".pt");
    json_.Key("data_name");
    json_.String(file);
    RP_RETURN_IF_ERROR(WritePt(file, tensor));
  }
  if (!of.empty()) {
    json_.Key("of");
    json_.String(of);
  }
  json_.EndObject();
  return absl::OkStatus();
}

void StepWriter::EndEntry() {
  if (!section_.empty()) json_.EndObject();
  json_.EndObject();
}

absl::Status StepWriter::End(const std::string& from) {
  json_.EndObject();
  json_.EndObject();
  RP_RETURN_IF_ERROR(Write("dump.json", text_));
  for (const char* const name : {"stack.json", "construct.json"}) {
    const std::string path = absl::StrCat(from, "/", name);
    if (!file_system_->Exists(path)) continue;
    RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
    RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForRead(path));
    std::string copy(size, '\0');
    RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(copy)));
    RP_RETURN_IF_ERROR(Write(name, copy));
  }
  return absl::OkStatus();
}

absl::Status StepWriter::Write(absl::string_view name, absl::string_view text) {
  RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForWrite(
                                           absl::StrCat(directory_, "/", name),
                                           FileSystem::OpenMode::kCreateNew));
  RP_RETURN_IF_ERROR(file->Append(text));
  return file->Close();
}

absl::Status StepWriter::WritePt(const std::string& name,
                                 const AlignedTensor& tensor) {
  PtWriter pt(absl::StripSuffix(name, ".pt"), tensor.dtype, tensor.shape,
              tensor.bytes->size());
  pt.AddData(*tensor.bytes);
  RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForWrite(
                                           absl::StrCat(data_, "/", name),
                                           FileSystem::OpenMode::kCreateNew));
  const std::string suffix = pt.Suffix();
  const absl::string_view pieces[] = {pt.prefix(), *tensor.bytes, suffix};
  RP_RETURN_IF_ERROR(file->Append(pieces));
  return file->Close();
}

}  // namespace rankprobe::analysis
