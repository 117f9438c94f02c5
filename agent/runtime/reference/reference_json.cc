#include "agent/runtime/reference/reference_json.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "rapidjson/error/en.h"
#include "rapidjson/reader.h"

namespace rankprobe {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
constexpr int kMaxDepth = 1024;
constexpr int kMaxDimensions = 64;
constexpr size_t kMaxNameBytes = 4096;

// RapidJSON's input: blocks of a file. A failed read ends the input.
class FileStream {
 public:
  using Ch = char;

  FileStream(const RandomAccessFile* file, uint64_t size)
      : file_(file), size_(size) {
    Fill();
  }
  Ch Peek() const { return at_ < filled_ ? block_[at_] : '\0'; }
  Ch Take() {
    const Ch c = Peek();
    if (at_ < filled_ && ++at_ == filled_) Fill();
    return c;
  }
  size_t Tell() const { return static_cast<size_t>(base_ + at_); }
  const absl::Status& status() const { return status_; }
  // Writing is no part of reading; RapidJSON wants the names.
  Ch* PutBegin() { return nullptr; }
  void Put(Ch) {}
  size_t PutEnd(Ch*) { return 0; }

 private:
  void Fill() {
    base_ += filled_;
    at_ = filled_ = 0;
    const uint64_t want = std::min<uint64_t>(kBlockBytes, size_ - base_);
    if (want == 0 || !status_.ok()) return;
    status_ = file_->Read(
        base_, absl::MakeSpan(block_.data(), static_cast<size_t>(want)));
    if (status_.ok()) filled_ = static_cast<size_t>(want);
  }

  const RandomAccessFile* const file_;
  const uint64_t size_;
  uint64_t base_ = 0;
  size_t at_ = 0, filled_ = 0;
  std::array<char, kBlockBytes> block_;
  absl::Status status_;
};

// data > entry > section > list > element > field. Depth counts what is open:
// 1 the file, 2 data, 3 an entry, 4 a section, 5 an element, 6 its shape.
class Handler
    : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Handler> {
 public:
  using Add = std::function<absl::Status(const v1::ReferenceEntry&)>;
  explicit Handler(const Add* add) : add_(add) {}

  const absl::Status& status() const { return status_; }
  bool saw_data() const { return saw_data_; }

  bool Key(const char* text, rapidjson::SizeType length, bool) {
    const std::string_view key(text, length);
    if (depth_ == 1) in_data_ = key == "data";
    if (!in_data_) return true;
    if (depth_ == 2) {
      wanted_ = key.size() <= kMaxNameBytes &&
                key.find(".backward") == std::string_view::npos;
      entry_.Clear();
      if (wanted_) entry_.set_entry(std::string(key));
    } else if (depth_ == 3) {
      section_ = key == "input_args" ? Section::kInputs
                 : key == "output"   ? Section::kOutputs
                                     : Section::kNone;
    } else if (depth_ == 5 && in_element_) {
      field_ = key == "type"    ? Field::kType
               : key == "md5"   ? Field::kMd5
               : key == "shape" ? Field::kShape
                                : Field::kOther;
    }
    return true;
  }
  bool String(const char* text, rapidjson::SizeType length, bool) {
    if (depth_ == 5 && in_element_) {
      const std::string_view value(text, length);
      if (field_ == Field::kType) is_tensor_ = value == "torch.Tensor";
      uint32_t crc32 = 0;
      if (field_ == Field::kMd5 && length == 8 &&
          absl::SimpleHexAtoi(absl::string_view(text, length), &crc32))
        tensor_.set_crc32(crc32);
    }
    return Default();
  }
  bool Int(int value) { return Number(value); }
  bool Uint(unsigned value) { return Number(value); }
  bool Int64(int64_t value) { return Number(value); }
  bool Default() {
    if (InSection()) ++position_;
    return true;
  }

  bool StartObject() {
    if (depth_ == 1 && in_data_) saw_data_ = true;
    if (InSection()) {
      in_element_ = true;
      is_tensor_ = shape_ok_ = false;
      tensor_.Clear();
    }
    return ++depth_ < kMaxDepth;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    if (depth_ == 4 && in_element_) {
      in_element_ = false;
      if (is_tensor_ && shape_ok_) {
        tensor_.set_output(section_ == Section::kOutputs);
        tensor_.set_position(position_);
        *entry_.add_tensors() = tensor_;
      }
      ++position_;
    }
    if (depth_ == 2 && in_data_ && wanted_ &&
        (entry_.has_inputs() || entry_.has_outputs())) {
      status_ = (*add_)(entry_);
      return status_.ok();
    }
    return true;
  }
  bool StartArray() {
    if (depth_ == 3 && in_data_ && wanted_ && section_ != Section::kNone) {
      in_list_ = true;
      position_ = 0;
      if (section_ == Section::kInputs) entry_.set_has_inputs(true);
      if (section_ == Section::kOutputs) entry_.set_has_outputs(true);
    }
    if (depth_ == 5 && in_element_ && field_ == Field::kShape) {
      in_shape_ = shape_ok_ = true;
      tensor_.clear_shape();
    }
    return ++depth_ < kMaxDepth;
  }
  bool EndArray(rapidjson::SizeType) {
    --depth_;
    if (depth_ == 3) in_list_ = false;
    if (depth_ == 5) in_shape_ = false;
    if (InSection()) ++position_;  // a nested list, which is not compared
    return true;
  }

 private:
  enum class Section { kNone, kInputs, kOutputs };
  enum class Field { kOther, kType, kMd5, kShape };

  // At the place of an item of input_args or output.
  bool InSection() const { return depth_ == 4 && in_list_; }

  bool Number(int64_t value) {
    if (depth_ == 6 && in_shape_) {
      if (value < 0 || tensor_.shape_size() >= kMaxDimensions) return false;
      tensor_.add_shape(value);
    }
    return Default();
  }

  const Add* const add_;
  absl::Status status_;
  int depth_ = 0;
  bool in_data_ = false, saw_data_ = false;
  bool wanted_ = false;
  Section section_ = Section::kNone;
  bool in_list_ = false, in_element_ = false, in_shape_ = false;
  bool is_tensor_ = false, shape_ok_ = false;
  Field field_ = Field::kOther;
  uint32_t position_ = 0;
  v1::ReferenceEntry entry_;
  v1::ReferenceTensor tensor_;
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
  const auto stream = std::make_unique<FileStream>(file.get(), size);
  Handler handler(&add);
  rapidjson::Reader reader;
  const rapidjson::ParseResult result =
      reader.Parse<rapidjson::kParseNanAndInfFlag |
                   rapidjson::kParseIterativeFlag>(*stream, handler);
  RP_RETURN_IF_ERROR(handler.status());
  RP_RETURN_IF_ERROR(stream->status());
  if (result.IsError()) {
    return absl::DataLossError(
        absl::StrCat(path, " is no dump.json: at byte ", result.Offset(), ": ",
                     result.Code() == rapidjson::kParseErrorTermination
                         ? "a shape or a depth that is impossible"
                         : rapidjson::GetParseError_En(result.Code())));
  }
  if (!handler.saw_data())
    return absl::DataLossError(
        absl::StrCat(path, " is no dump.json: it has no \"data\""));
  return absl::OkStatus();
}

}  // namespace rankprobe
