// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/reference/reference_json.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_walk.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxDimensions = 64;
constexpr size_t kMaxNameBytes = 4096;
// For one item of a section: nothing longer is a tensor. Bounds the memory that
// the training process uses for the file.
constexpr uint64_t kMaxItemBytes = uint64_t{1} << 20;

absl::Status AddShape(const JsonValue& shape, v1::ReferenceTensor* tensor) {
  const absl::Status impossible =
      absl::InvalidArgumentError("a shape that is impossible");
  if (shape.size > kMaxDimensions) return impossible;
  for (const JsonValue& item : shape.items()) {
    int64_t size = 0;
    if (item.kind != JsonValue::Kind::kInt ||
        !absl::SimpleAtoi(item.text, &size) || size < 0)
      return impossible;
    tensor->add_shape(size);
  }
  return absl::OkStatus();
}

// Reads one entry of "data", item by item.
class EntryReader {
 public:
  explicit EntryReader(JsonStream* stream) : stream_(stream) {}

  // Consumes the value of the entry.
  absl::Status Read(v1::ReferenceEntry* entry) {
    if (stream_->Peek() != '{') return stream_->SkipValue();
    return stream_->ReadObject([&](const std::string& name) {
      const bool inputs = name == "input_args";
      if (stream_->Peek() != '[' || (!inputs && name != "output"))
        return stream_->SkipValue();
      if (inputs) entry->set_has_inputs(true);
      if (!inputs) entry->set_has_outputs(true);
      return Section(!inputs, entry);
    });
  }

 private:
  absl::Status Section(bool output, v1::ReferenceEntry* entry) {
    uint32_t position = 0;
    return stream_->ReadArray([&] {
      const uint32_t at = position++;
      // Tensors in lists are not compared.
      return stream_->Peek() == '{' ? Item(output, at, entry)
                                    : stream_->SkipValue();
    });
  }

  absl::Status Item(bool output, uint32_t position, v1::ReferenceEntry* entry) {
    const absl::StatusOr<absl::string_view> text =
        stream_->ReadValue(kMaxItemBytes, &scratch_);
    if (absl::IsResourceExhausted(text.status())) return absl::OkStatus();
    RP_RETURN_IF_ERROR(text.status());
    RP_RETURN_IF_ERROR(item_.ParseView(*text));
    const JsonValue* const type = item_.root().Find("type");
    const JsonValue* const shape = item_.root().Find("shape");
    if (type == nullptr || type->text != "torch.Tensor" || shape == nullptr ||
        !shape->is_array())
      return absl::OkStatus();
    v1::ReferenceTensor tensor;
    RP_RETURN_IF_ERROR(AddShape(*shape, &tensor));
    const JsonValue* const md5 = item_.root().Find("md5");
    uint32_t crc32 = 0;
    if (md5 != nullptr && md5->is_string() && md5->text.size() == 8 &&
        absl::SimpleHexAtoi(md5->text, &crc32))
      tensor.set_crc32(crc32);
    tensor.set_output(output);
    tensor.set_position(position);
    *entry->add_tensors() = std::move(tensor);
    return absl::OkStatus();
  }

  JsonStream* const stream_;
  std::string scratch_;
  JsonDocument item_;
};

}  // namespace

absl::Status ReadReferenceJson(
    FileSystem* file_system, const std::string& path, uint64_t max_bytes,
    const std::function<absl::Status(const v1::ReferenceEntry&)>& add) {
  if (!file_system->Exists(path))
    return absl::NotFoundError(absl::StrCat("there is no ", path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", size, " bytes, over ", max_bytes));
  }
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  JsonStream stream(file.get(), size);
  EntryReader reader(&stream);
  v1::ReferenceEntry entry;
  const absl::Status status =
      WalkDump(&stream, nullptr, [&](const std::string& name) -> absl::Status {
        if (name.size() > kMaxNameBytes || absl::StrContains(name, ".backward"))
          return stream.SkipValue();
        entry.Clear();
        entry.set_entry(name);
        RP_RETURN_IF_ERROR(reader.Read(&entry));
        return entry.has_inputs() || entry.has_outputs() ? add(entry)
                                                         : absl::OkStatus();
      });
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::DataLossError(
      absl::StrCat(path, " is not a dump.json: ", status.message()));
}

}  // namespace rankprobe
