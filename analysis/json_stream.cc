#include "analysis/json_stream.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "analysis/json_value.h"

namespace rankprobe::analysis {
namespace {

constexpr uint64_t kWindowBytes = 1 << 20;
constexpr size_t kMaxKeyBytes = 1 << 20;
constexpr size_t kMaxDepth = 512;

constexpr std::array<bool, 256> MakeSpaces() {
  std::array<bool, 256> table{};
  table[' '] = table['\n'] = table['\r'] = table['\t'] = true;
  return table;
}
constexpr std::array<bool, 256> kIsSpace = MakeSpaces();

bool IsSpace(char c) { return kIsSpace[static_cast<unsigned char>(c)]; }

bool EndsLiteral(char c) {
  return IsSpace(c) || c == ',' || c == ']' || c == '}' || c == ':' ||
         c == '"' || c == '[' || c == '{';
}

}  // namespace

JsonStream::JsonStream(const RandomAccessFile* file, uint64_t size)
    : file_(file), size_(size) {}

bool JsonStream::Fill() {
  if (at_ < window_.size()) return true;
  window_offset_ += window_.size();
  at_ = 0;
  const uint64_t length =
      std::min(kWindowBytes, size_ - std::min(size_, window_offset_));
  window_.resize(length);
  if (length == 0) return false;
  read_status_ = file_->Read(window_offset_, absl::MakeSpan(window_));
  if (!read_status_.ok()) {
    window_.clear();
    return false;
  }
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
  while (Fill()) {
    while (at_ < window_.size()) {
      if (!IsSpace(window_[at_])) return window_[at_];
      ++at_;
    }
  }
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

// at_ is behind the opening quote.
absl::Status JsonStream::SkipString() {
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
        if (open_.size() >= kMaxDepth) return Fault("nested too deep");
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
        while (Fill() && !EndsLiteral(window_[at_])) ++at_;
        if (!read_status_.ok()) return read_status_;
        break;
    }
    *end = offset();
    if (open_.empty()) return absl::OkStatus();
    c = Peek();
  } while (true);
}

}  // namespace rankprobe::analysis
