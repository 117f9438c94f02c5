// SPDX-License-Identifier: Apache-2.0
#include "dump_format/json_stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

constexpr uint64_t kWindowBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 1 << 20;

bool EndsLiteral(char c) {
  return IsJsonSpace(c) || c == ',' || c == ']' || c == '}' || c == ':' ||
         c == '"' || c == '[' || c == '{';
}

}  // namespace

JsonStream::JsonStream(const RandomAccessFile* file, uint64_t size)
    : file_(file), size_(size) {}

JsonStream::JsonStream(absl::string_view text)
    : file_(nullptr), text_(text), size_(text.size()), window_(text) {}

bool JsonStream::Fill() {
  if (at_ < window_.size()) return true;
  window_offset_ += window_.size();
  at_ = 0;
  const uint64_t length =
      std::min(kWindowBytes, size_ - std::min(size_, window_offset_));
  window_ = {};
  if (length == 0) return false;
  buffer_.resize(length);
  read_status_ = file_->Read(window_offset_, absl::MakeSpan(buffer_));
  if (!read_status_.ok()) return false;
  window_ = buffer_;
  return true;
}

absl::Status JsonStream::Fault(absl::string_view what) const {
  if (!read_status_.ok()) return read_status_;
  return absl::InvalidArgumentError(
      absl::StrCat("invalid JSON at byte ", offset(), ": ", what));
}

absl::Status JsonStream::EndFault() const {
  return Fault("the file ends too early (truncated?)");
}

char JsonStream::Peek() {
  do {
    const char* const begin = window_.data();
    const char* const end = begin + window_.size();
    const char* c = begin + at_;
    while (c != end && IsJsonSpace(*c)) ++c;
    at_ = static_cast<size_t>(c - begin);
    if (c != end) return *c;
  } while (Fill());
  return 0;
}

bool JsonStream::Take(char c) {
  if (Peek() != c || at_ >= window_.size()) return false;
  ++at_;
  return true;
}

absl::Status JsonStream::Expect(char c) {
  if (Take(c)) return absl::OkStatus();
  if (at_ >= window_.size()) return EndFault();
  return Fault(absl::StrCat("expected ", absl::string_view(&c, 1)));
}

absl::Status JsonStream::ReadString(std::string* out) {
  absl::Status status = Expect('"');
  if (!status.ok()) return status;
  out->assign(1, '"');
  bool escaped = false;
  bool has_escape = false;
  while (true) {
    if (!Fill()) return EndFault();
    const char c = window_[at_++];
    out->push_back(c);
    if (out->size() > kMaxKeyBytes) return Fault("a key of over 1 MiB");
    if (escaped) {
      escaped = false;
    } else if (c == '\\') {
      escaped = has_escape = true;
    } else if (c == '"') {
      break;
    }
  }
  if (!has_escape) {
    *out = out->substr(1, out->size() - 2);
    return absl::OkStatus();
  }
  JsonDocument document;
  status = document.Parse(*out);
  if (!status.ok()) return Fault("bad escape in a key");
  *out = std::string(document.root().text);
  return absl::OkStatus();
}

// at_ is after the opening quote.
absl::Status JsonStream::SkipString() {
  const absl::string_view rest = window_.substr(at_);
  size_t plain = 0;
  while (plain < rest.size() && rest[plain] != '"' && rest[plain] != '\\') {
    ++plain;
  }
  if (plain < rest.size() && rest[plain] == '"') {
    at_ += plain + 1;
    // Only a string before a colon is a member's name.
    if (rest.substr(0, plain) == "md5" && Peek() == ':') saw_md5_ = true;
    return absl::OkStatus();
  }
  // The string has escapes, or extends beyond the window.
  uint64_t length = 0;
  std::array<char, 4> head{};
  while (true) {
    if (!Fill()) return EndFault();
    const char c = window_[at_++];
    if (c == '"') break;
    if (c == '\\') {
      if (!Fill()) return EndFault();
      ++at_;
      ++length;
    } else if (length < head.size()) {
      head[length] = c;
    }
    ++length;
  }
  if (length == 3 && head[0] == 'm' && head[1] == 'd' && head[2] == '5' &&
      Peek() == ':') {
    saw_md5_ = true;
  }
  return absl::OkStatus();
}

absl::Status JsonStream::SkipValue(uint64_t* begin, uint64_t* end) {
  open_.clear();
  char c = Peek();
  *begin = offset();
  do {
    if (at_ >= window_.size()) return EndFault();
    switch (c) {
      case '{':
      case '[':
        if (open_.size() >= kMaxJsonDepth) return Fault("nested too deep");
        open_.push_back(c == '{' ? '}' : ']');
        ++at_;
        break;
      case '}':
      case ']':
        if (open_.empty() || open_.back() != c) return Fault("wrong bracket");
        open_.pop_back();
        ++at_;
        break;
      case '"': {
        ++at_;
        absl::Status status = SkipString();
        if (!status.ok()) return status;
        break;
      }
      case ',':
      case ':':
        if (open_.empty()) return Fault("expected a value");
        ++at_;
        break;
      default:
        ++at_;
        while (at_ < window_.size() || Fill()) {
          if (EndsLiteral(window_[at_])) break;
          ++at_;
        }
        if (!read_status_.ok()) return read_status_;
        break;
    }
    *end = offset();
    if (open_.empty()) return absl::OkStatus();
    c = Peek();
  } while (true);
}

absl::Status JsonStream::SkipValue() {
  uint64_t begin = 0;
  uint64_t end = 0;
  return SkipValue(&begin, &end);
}

absl::StatusOr<absl::string_view> JsonStream::ReadValue(uint64_t max_bytes,
                                                        std::string* scratch) {
  uint64_t begin = 0;
  uint64_t end = 0;
  RP_RETURN_IF_ERROR(SkipValue(&begin, &end));
  const uint64_t length = end - begin;
  if (length > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a value of over ", max_bytes, " bytes at byte ", begin));
  }
  if (file_ == nullptr) return text_.substr(begin, length);
  // The window still holds the complete value.
  if (begin >= window_offset_)
    return window_.substr(begin - window_offset_, length);
  scratch->resize(length);
  RP_RETURN_IF_ERROR(file_->Read(begin, absl::MakeSpan(*scratch)));
  return *scratch;
}

absl::Status JsonStream::ReadObject(
    absl::FunctionRef<absl::Status(const std::string& name)> member) {
  RP_RETURN_IF_ERROR(Expect('{'));
  std::string name;
  if (Peek() != '}') {
    do {
      RP_RETURN_IF_ERROR(ReadString(&name));
      RP_RETURN_IF_ERROR(Expect(':'));
      RP_RETURN_IF_ERROR(member(name));
    } while (Take(','));
  }
  return Expect('}');
}

absl::Status JsonStream::ReadArray(absl::FunctionRef<absl::Status()> item) {
  RP_RETURN_IF_ERROR(Expect('['));
  if (Peek() != ']') {
    do {
      RP_RETURN_IF_ERROR(item());
    } while (Take(','));
  }
  return Expect(']');
}

}  // namespace rankprobe
