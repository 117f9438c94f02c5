// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/zip_file.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr uint64_t kMaxDirectoryBytes = 1 << 20;
constexpr uint64_t kMaxComment = 65535;
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kEndBytes = 22;
constexpr size_t kEntryBytes = 46;
constexpr size_t kHeaderBytes = 30;
constexpr uint32_t kWide = 0xFFFFFFFF;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

template <typename T>
T Get(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// What is told of a member while its pieces go by.
class Checked {
 public:
  Checked(uint64_t size, uint32_t crc, const PieceFn* piece)
      : size_(size), wanted_(crc), piece_(piece) {}
  absl::Status Add(absl::string_view bytes) {
    if (bytes.size() > size_ - seen_) {
      return Bad("a zip member is longer than the directory says");
    }
    seen_ += bytes.size();
    crc_ = crc32(crc_, reinterpret_cast<const Bytef*>(bytes.data()),
                 static_cast<uInt>(bytes.size()));
    return bytes.empty() ? absl::OkStatus() : (*piece_)(bytes);
  }
  absl::Status Finish() const {
    if (seen_ != size_) return Bad("a zip member is cut off");
    if (crc_ != wanted_) return Bad("a zip member is damaged (CRC)");
    return absl::OkStatus();
  }

 private:
  const uint64_t size_;
  const uint32_t wanted_;
  const PieceFn* const piece_;
  uint64_t seen_ = 0;
  uLong crc_ = 0;
};

struct Inflater {
  Inflater() { ok = inflateInit2(&stream, -MAX_WBITS) == Z_OK; }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ok) inflateEnd(&stream);
  }
  z_stream stream{};
  bool ok = false;
};

}  // namespace

absl::StatusOr<ZipFile> ZipFile::Open(const RandomAccessFile* file,
                                      uint64_t file_size) {
  ZipFile zip;
  zip.file_ = file;
  zip.file_size_ = file_size;
  if (file_size < kEndBytes) return Bad("is no zip file");
  std::string tail(std::min<uint64_t>(file_size, kMaxComment + kEndBytes),
                   '\0');
  RP_RETURN_IF_ERROR(file->Read(file_size - tail.size(), absl::MakeSpan(tail)));
  const size_t end = tail.rfind("PK\5\6", tail.size() - kEndBytes);
  if (end == std::string::npos) return Bad("is no zip file (no directory)");
  const uint64_t count = Get<uint16_t>(tail, end + 10);
  const uint64_t length = Get<uint32_t>(tail, end + 12);
  const uint64_t offset = Get<uint32_t>(tail, end + 16);
  if (count == 0xFFFF || length == kWide || offset == kWide) {
    return Bad("is a zip64 file, which no table needs");
  }
  const uint64_t end_offset = file_size - tail.size() + end;
  if (offset > end_offset || length > end_offset - offset) {
    return Bad("has a bad zip directory");
  }
  if (length > kMaxDirectoryBytes) {
    return Bad("has a zip directory of more than 1 MiB");
  }
  std::string directory(length, '\0');
  RP_RETURN_IF_ERROR(file->Read(offset, absl::MakeSpan(directory)));
  RP_RETURN_IF_ERROR(zip.ReadDirectory(directory, count));
  return zip;
}

absl::Status ZipFile::ReadDirectory(absl::string_view directory,
                                    uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (directory.size() < kEntryBytes ||
        directory.substr(0, 4) != absl::string_view("PK\1\2", 4)) {
      return Bad("has a bad zip directory");
    }
    Member member;
    member.encrypted = (Get<uint16_t>(directory, 8) & 1) != 0;
    member.method = Get<uint16_t>(directory, 10);
    member.crc = Get<uint32_t>(directory, 16);
    member.stored_size = Get<uint32_t>(directory, 20);
    member.size = Get<uint32_t>(directory, 24);
    member.header_offset = Get<uint32_t>(directory, 42);
    const size_t name = Get<uint16_t>(directory, 28);
    const size_t length = kEntryBytes + name + Get<uint16_t>(directory, 30) +
                          Get<uint16_t>(directory, 32);
    if (length > directory.size() || member.stored_size == kWide ||
        member.size == kWide || member.header_offset == kWide) {
      return Bad("has a bad zip directory");
    }
    if (!members_
             .emplace(std::string(directory.substr(kEntryBytes, name)), member)
             .second) {
      return Bad("has two zip members of one name");
    }
    directory.remove_prefix(length);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ZipFile::DataOffset(const Member& member) const {
  if (member.header_offset > file_size_ ||
      file_size_ - member.header_offset < kHeaderBytes) {
    return Bad("has a bad zip member");
  }
  std::string header(kHeaderBytes, '\0');
  RP_RETURN_IF_ERROR(file_->Read(member.header_offset, absl::MakeSpan(header)));
  if (absl::string_view(header).substr(0, 4) !=
      absl::string_view("PK\3\4", 4)) {
    return Bad("has a bad zip member");
  }
  const uint64_t offset = member.header_offset + kHeaderBytes +
                          Get<uint16_t>(header, 26) + Get<uint16_t>(header, 28);
  if (offset > file_size_ || file_size_ - offset < member.stored_size) {
    return Bad("has a bad zip member");
  }
  return offset;
}

absl::Status ZipFile::Copy(const Member& member, uint64_t offset,
                           const PieceFn& piece) const {
  if (member.stored_size != member.size) return Bad("has a bad zip member");
  Checked checked(member.size, member.crc, &piece);
  std::string bytes;
  for (uint64_t left = member.size; left > 0;) {
    bytes.resize(std::min<uint64_t>(left, kPieceBytes));
    RP_RETURN_IF_ERROR(file_->Read(offset, absl::MakeSpan(bytes)));
    RP_RETURN_IF_ERROR(checked.Add(bytes));
    offset += bytes.size();
    left -= bytes.size();
  }
  return checked.Finish();
}

absl::Status ZipFile::Inflate(const Member& member, uint64_t offset,
                              const PieceFn& piece) const {
  Checked checked(member.size, member.crc, &piece);
  Inflater inflater;
  if (!inflater.ok) return absl::ResourceExhaustedError("no memory to inflate");
  z_stream& stream = inflater.stream;
  std::string input;
  std::string output(kPieceBytes, '\0');
  uint64_t left = member.stored_size;
  for (int state = Z_OK; state != Z_STREAM_END;) {
    if (stream.avail_in == 0 && left > 0) {
      input.resize(std::min<uint64_t>(left, kPieceBytes));
      RP_RETURN_IF_ERROR(file_->Read(offset, absl::MakeSpan(input)));
      offset += input.size();
      left -= input.size();
      stream.next_in = reinterpret_cast<Bytef*>(input.data());
      stream.avail_in = static_cast<uInt>(input.size());
    }
    stream.next_out = reinterpret_cast<Bytef*>(output.data());
    stream.avail_out = static_cast<uInt>(output.size());
    state = inflate(&stream, Z_NO_FLUSH);
    // Z_BUF_ERROR: nothing left to read, and the stream has no end.
    if (state != Z_OK && state != Z_STREAM_END) {
      return Bad("a zip member is damaged");
    }
    RP_RETURN_IF_ERROR(checked.Add(
        absl::string_view(output.data(), output.size() - stream.avail_out)));
  }
  return checked.Finish();
}

std::vector<std::string> ZipFile::Names() const {
  std::vector<std::string> names;
  names.reserve(members_.size());
  for (const auto& [name, member] : members_) names.push_back(name);
  return names;
}

absl::Status ZipFile::Read(const std::string& name, uint64_t max_bytes,
                           const PieceFn& piece) const {
  const auto it = members_.find(name);
  if (it == members_.end()) return Bad(absl::StrCat("has no ", name));
  const Member& member = it->second;
  if (member.encrypted) return Bad("is encrypted");
  if (member.size > max_bytes) {
    return Bad(absl::StrCat(name, " has ", member.size, " bytes; at most ",
                            max_bytes, " are read"));
  }
  RP_ASSIGN_OR_RETURN(const uint64_t offset, DataOffset(member));
  if (member.method == kStored) return Copy(member, offset, piece);
  if (member.method == kDeflated) return Inflate(member, offset, piece);
  return Bad(absl::StrCat(name, " is compressed by method ", member.method));
}

}  // namespace rankprobe::analysis
