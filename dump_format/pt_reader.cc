// SPDX-License-Identifier: Apache-2.0
#include "dump_format/pt_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "common/tensor/float8.h"
#include "dump_format/npy_reader.h"
#include "dump_format/pickle_tensor.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxDirectoryBytes = 1 << 20;
constexpr uint64_t kMaxPickleBytes = 1 << 20;
constexpr uint32_t kWide32 = 0xFFFFFFFF;

struct ZipMember {
  uint64_t header_offset = 0;
  uint64_t size = 0;
  uint16_t method = 0;
};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

template <typename T>
T Get(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

absl::StatusOr<std::string> ReadAt(const RandomAccessFile& file,
                                   uint64_t offset, uint64_t length) {
  std::string out(length, '\0');
  RP_RETURN_IF_ERROR(file.Read(offset, absl::MakeSpan(out)));
  return out;
}

// Sizes and offsets of over 32 bits are in an extra field.
bool ApplyZip64(absl::string_view extra, bool wide_size, bool wide_stored,
                bool wide_offset, ZipMember* member) {
  while (extra.size() >= 4) {
    const auto id = Get<uint16_t>(extra, 0);
    const auto length = Get<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (length > extra.size()) return false;
    if (id == 1) {
      absl::string_view field = extra.substr(0, length);
      const auto next = [&field](uint64_t* out) {
        if (field.size() < 8) return false;
        *out = Get<uint64_t>(field, 0);
        field.remove_prefix(8);
        return true;
      };
      uint64_t stored = 0;
      return (!wide_size || next(&member->size)) &&
             (!wide_stored || next(&stored)) &&
             (!wide_offset || next(&member->header_offset));
    }
    extra.remove_prefix(length);
  }
  return false;
}

absl::StatusOr<std::map<std::string, ZipMember>> ReadDirectory(
    const RandomAccessFile& file, uint64_t file_size) {
  // The end record with its longest comment, and the two records of zip64
  // before it.
  const uint64_t tail_size = std::min<uint64_t>(file_size, 65536 + 22 + 76);
  RP_ASSIGN_OR_RETURN(const std::string tail,
                      ReadAt(file, file_size - tail_size, tail_size));
  const size_t end = tail.rfind("PK\x05\x06");
  if (end == std::string::npos || tail.size() - end < 22) {
    return Bad("is not a .pt file (no zip directory)");
  }
  uint64_t count = Get<uint16_t>(tail, end + 10);
  uint64_t size = Get<uint32_t>(tail, end + 12);
  uint64_t offset = Get<uint32_t>(tail, end + 16);
  if (offset == kWide32 || size == kWide32 || count == 0xFFFF) {
    const size_t wide = tail.rfind("PK\x06\x06");
    if (wide == std::string::npos || tail.size() - wide < 56) {
      return Bad("has no zip64 directory");
    }
    count = Get<uint64_t>(tail, wide + 32);
    size = Get<uint64_t>(tail, wide + 40);
    offset = Get<uint64_t>(tail, wide + 48);
  }
  if (size > kMaxDirectoryBytes || size > file_size ||
      offset > file_size - size) {
    return Bad("has a bad zip directory");
  }
  RP_ASSIGN_OR_RETURN(const std::string directory, ReadAt(file, offset, size));
  std::map<std::string, ZipMember> members;
  absl::string_view rest = directory;
  for (uint64_t i = 0; i < count; ++i) {
    if (rest.size() < 46 || !absl::StartsWith(rest, "PK\x01\x02")) {
      return Bad("has a bad zip directory");
    }
    ZipMember member;
    const auto flags = Get<uint16_t>(rest, 8);
    member.method = Get<uint16_t>(rest, 10);
    const auto stored = Get<uint32_t>(rest, 20);
    member.size = Get<uint32_t>(rest, 24);
    const size_t name_length = Get<uint16_t>(rest, 28);
    const size_t extra_length = Get<uint16_t>(rest, 30);
    const size_t comment_length = Get<uint16_t>(rest, 32);
    member.header_offset = Get<uint32_t>(rest, 42);
    if ((flags & 1) != 0) return Bad("is encrypted");
    if (rest.size() < 46 + name_length + extra_length + comment_length) {
      return Bad("has a bad zip directory");
    }
    const std::string name(rest.substr(46, name_length));
    const bool wide_size = member.size == kWide32;
    const bool wide_stored = stored == kWide32;
    const bool wide_offset = member.header_offset == kWide32;
    if ((wide_size || wide_offset) &&
        !ApplyZip64(rest.substr(46 + name_length, extra_length), wide_size,
                    wide_stored, wide_offset, &member)) {
      return Bad("has a bad zip directory");
    }
    rest.remove_prefix(46 + name_length + extra_length + comment_length);
    if (!members.emplace(name, member).second) {
      return Bad("has two zip members of one name");
    }
  }
  return members;
}

// The offset of a member's bytes.
absl::StatusOr<uint64_t> DataOffset(const RandomAccessFile& file,
                                    uint64_t file_size,
                                    const ZipMember& member) {
  if (member.method != 0) return Bad("has compressed members");
  if (file_size < 30 || member.header_offset > file_size - 30) {
    return Bad("has a bad zip directory");
  }
  RP_ASSIGN_OR_RETURN(const std::string header,
                      ReadAt(file, member.header_offset, 30));
  if (!absl::StartsWith(header, "PK\x03\x04")) {
    return Bad("has a bad zip member");
  }
  const uint64_t begin = member.header_offset + 30 + Get<uint16_t>(header, 26) +
                         Get<uint16_t>(header, 28);
  if (begin > file_size || member.size > file_size - begin) {
    return Bad("is shorter than it says");
  }
  return begin;
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31
                            ? 0x7F800000 | (mantissa << 13)
                            : ((exponent + 112) << 23) | (mantissa << 13);
  return absl::bit_cast<float>(sign | wide);
}

float BfloatToFloat(uint16_t bits) {
  return absl::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

template <typename T, typename Out>
void Widen(const char* bytes, absl::Span<Out> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = static_cast<Out>(value);
  }
}

template <typename T, typename Out>
void WidenComplex(const char* bytes, absl::Span<Out> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T parts[2];
    std::memcpy(parts, bytes + i * sizeof(parts), sizeof(parts));
    out[i] = static_cast<Out>(std::hypot(static_cast<double>(parts[0]),
                                         static_cast<double>(parts[1])));
  }
}

template <typename T, typename Convert, typename Out>
void WidenWith(const char* bytes, Convert convert, absl::Span<Out> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    out[i] = static_cast<Out>(convert(value));
  }
}

template <typename Out>
bool Decode(v1::DType dtype, const char* bytes, absl::Span<Out> out) {
  if (const auto* const values = Float8Values(dtype); values != nullptr) {
    WidenWith<uint8_t>(
        bytes, [values](uint8_t bits) { return (*values)[bits]; }, out);
    return true;
  }
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      Widen<float>(bytes, out);
      return true;
    case v1::DTYPE_FLOAT64:
      Widen<double>(bytes, out);
      return true;
    case v1::DTYPE_FLOAT16:
      WidenWith<uint16_t>(bytes, HalfToFloat, out);
      return true;
    case v1::DTYPE_BFLOAT16:
      WidenWith<uint16_t>(bytes, BfloatToFloat, out);
      return true;
    case v1::DTYPE_BOOL:
    case v1::DTYPE_UINT8:
      Widen<uint8_t>(bytes, out);
      return true;
    case v1::DTYPE_INT8:
      Widen<int8_t>(bytes, out);
      return true;
    case v1::DTYPE_INT16:
      Widen<int16_t>(bytes, out);
      return true;
    case v1::DTYPE_UINT16:
      Widen<uint16_t>(bytes, out);
      return true;
    case v1::DTYPE_INT32:
      Widen<int32_t>(bytes, out);
      return true;
    case v1::DTYPE_UINT32:
      Widen<uint32_t>(bytes, out);
      return true;
    case v1::DTYPE_INT64:
      Widen<int64_t>(bytes, out);
      return true;
    case v1::DTYPE_UINT64:
      Widen<uint64_t>(bytes, out);
      return true;
    case v1::DTYPE_COMPLEX64:
      WidenComplex<float>(bytes, out);
      return true;
    case v1::DTYPE_COMPLEX128:
      WidenComplex<double>(bytes, out);
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status DecodeElements(v1::DType dtype, absl::string_view bytes,
                            absl::Span<double> out) {
  if (bytes.size() != out.size() * ElementSize(dtype) ||
      !Decode(dtype, bytes.data(), out)) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of ", TorchDtypeName(dtype), " cannot be read"));
  }
  return absl::OkStatus();
}

absl::Status PtTensor::Gather(int64_t begin, size_t count, char* bytes) const {
  const size_t size = ElementSize(dtype);
  if (contiguous_) {
    return file_->Read(data_begin_ + static_cast<uint64_t>(begin) * size,
                       absl::MakeSpan(bytes, count * size));
  }
  for (size_t i = 0; i < count; ++i) {
    int64_t rest = begin + static_cast<int64_t>(i);
    int64_t at = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      at += rest % shape[d] * stride_[d];
      rest /= shape[d];
    }
    RP_RETURN_IF_ERROR(
        file_->Read(data_begin_ + static_cast<uint64_t>(at) * size,
                    absl::MakeSpan(bytes + i * size, size)));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status PtTensor::ReadAs(int64_t begin, absl::Span<T> out) const {
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  if (dtype == (kIsFloat ? v1::DTYPE_FLOAT32 : v1::DTYPE_FLOAT64)) {
    return Gather(begin, out.size(), reinterpret_cast<char*>(out.data()));
  }
  char bytes[1 << 15];
  const size_t most = sizeof(bytes) / ElementSize(dtype);
  while (!out.empty()) {
    const absl::Span<T> piece = out.subspan(0, most);
    RP_RETURN_IF_ERROR(Gather(begin, piece.size(), bytes));
    if (!Decode(dtype, bytes, piece)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, ": elements of ", TorchDtypeName(dtype), " cannot be read"));
    }
    begin += static_cast<int64_t>(piece.size());
    out.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::Status PtTensor::Read(int64_t begin, absl::Span<double> out) const {
  return ReadAs(begin, out);
}
absl::Status PtTensor::Read(int64_t begin, absl::Span<float> out) const {
  return ReadAs(begin, out);
}

namespace {

struct Located {
  PickledTensor tensor;
  uint64_t data_begin = 0;
  int64_t elements = 0;
  bool contiguous = true;
};

absl::StatusOr<Located> Locate(const RandomAccessFile& file,
                               uint64_t file_size) {
  RP_ASSIGN_OR_RETURN(const auto members, ReadDirectory(file, file_size));
  std::string root;
  const ZipMember* pickle = nullptr;
  for (const auto& [name, member] : members) {
    if (absl::EndsWith(name, "/data.pkl")) {
      root = name.substr(0, name.size() - 8);
      pickle = &member;
    } else if (absl::EndsWith(name, "/byteorder")) {
      RP_ASSIGN_OR_RETURN(const uint64_t at,
                          DataOffset(file, file_size, member));
      RP_ASSIGN_OR_RETURN(
          const std::string order,
          ReadAt(file, at, std::min<uint64_t>(member.size, 16)));
      if (order != "little") return Bad("is not little-endian");
    }
  }
  if (pickle == nullptr) return Bad("is not a .pt file (no data.pkl)");
  if (pickle->size > kMaxPickleBytes) return Bad("has a pickle over 1 MiB");
  RP_ASSIGN_OR_RETURN(const uint64_t pickle_begin,
                      DataOffset(file, file_size, *pickle));
  RP_ASSIGN_OR_RETURN(const std::string text,
                      ReadAt(file, pickle_begin, pickle->size));
  Located out;
  RP_ASSIGN_OR_RETURN(out.tensor, ParseTensorPickle(text));
  const PickledTensor& tensor = out.tensor;
  const auto data =
      members.find(absl::StrCat(root, "data/", tensor.storage_key));
  if (data == members.end()) return Bad("lacks its storage");
  RP_ASSIGN_OR_RETURN(const uint64_t begin,
                      DataOffset(file, file_size, data->second));
  const int64_t size = static_cast<int64_t>(ElementSize(tensor.dtype));
  if (size == 0) return Bad("has an unknown dtype");
  const int64_t stored = static_cast<int64_t>(data->second.size) / size;
  if (tensor.offset > stored) return Bad("points outside its storage");
  out.elements = 1;
  int64_t last = 0;
  int64_t expected = 1;
  bool empty = false;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    const int64_t n = tensor.shape[d];
    const int64_t stride = tensor.stride[d];
    if (n == 0) {
      empty = true;
      continue;
    }
    if (n != 1 && stride != expected) out.contiguous = false;
    int64_t span = 0;
    if (__builtin_mul_overflow(n - 1, stride, &span) ||
        __builtin_add_overflow(last, span, &last) ||
        __builtin_mul_overflow(out.elements, n, &out.elements) ||
        __builtin_mul_overflow(expected, n, &expected)) {
      return Bad("has a bad shape");
    }
  }
  if (empty) {
    out.elements = 0;
  } else if (last >= stored - tensor.offset) {
    return Bad("points outside its storage");
  }
  out.data_begin = begin + static_cast<uint64_t>(tensor.offset * size);
  return out;
}

absl::StatusOr<Located> LocateNpy(const RandomAccessFile& file,
                                  uint64_t file_size) {
  RP_ASSIGN_OR_RETURN(
      const std::string head,
      ReadAt(file, 0, std::min<uint64_t>(file_size, kMaxNpyHeaderBytes)));
  RP_ASSIGN_OR_RETURN(NpyHeader header, ParseNpyHeader(head));
  Located out;
  out.data_begin = header.data_begin;
  out.tensor.dtype = header.dtype;
  out.tensor.shape = std::move(header.shape);
  const std::vector<int64_t>& shape = out.tensor.shape;
  out.tensor.stride.assign(shape.size(), 1);
  out.elements = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t d = header.fortran_order ? i : shape.size() - 1 - i;
    out.tensor.stride[d] = out.elements;
    if (__builtin_mul_overflow(out.elements, shape[d], &out.elements))
      return Bad("has a bad shape");
  }
  out.contiguous = !header.fortran_order || shape.size() < 2;
  if (static_cast<uint64_t>(out.elements) >
      (file_size - header.data_begin) / ElementSize(header.dtype))
    return Bad("is shorter than it says");
  return out;
}

}  // namespace

absl::StatusOr<PtTensor> OpenPt(FileSystem* file_system,
                                const std::string& path) {
  RP_ASSIGN_OR_RETURN(auto file, file_system->OpenForRead(path));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  absl::StatusOr<Located> located = absl::EndsWith(path, ".npy")
                                        ? LocateNpy(*file, size)
                                        : Locate(*file, size);
  if (!located.ok()) {
    const absl::StatusCode code = absl::IsUnimplemented(located.status())
                                      ? absl::StatusCode::kUnimplemented
                                      : absl::StatusCode::kInvalidArgument;
    return absl::Status(code,
                        absl::StrCat(path, ": ", located.status().message()));
  }
  PtTensor tensor;
  tensor.dtype = located->tensor.dtype;
  tensor.shape = std::move(located->tensor.shape);
  tensor.stride_ = std::move(located->tensor.stride);
  tensor.elements = located->elements;
  tensor.data_begin_ = located->data_begin;
  tensor.contiguous_ = located->contiguous;
  tensor.path_ = path;
  tensor.file_ = std::move(file);
  return tensor;
}

}  // namespace rankprobe
