// SPDX-License-Identifier: Apache-2.0
#include "dump_format/npy_reader.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/little_endian.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kNpyMagic = "\x93NUMPY";
constexpr int64_t kMaxNpySize = int64_t{1} << 40;
constexpr size_t kMaxNpyDimensions = 64;

struct NpyType {
  v1::DType dtype;
  absl::string_view name;
};

constexpr NpyType kNpyTypes[] = {
    {v1::DTYPE_FLOAT32, "<f4"}, {v1::DTYPE_FLOAT64, "<f8"},
    {v1::DTYPE_FLOAT16, "<f2"}, {v1::DTYPE_UINT8, "|u1"},
    {v1::DTYPE_INT8, "|i1"},    {v1::DTYPE_INT16, "<i2"},
    {v1::DTYPE_INT32, "<i4"},   {v1::DTYPE_INT64, "<i8"},
    {v1::DTYPE_BOOL, "|b1"},    {v1::DTYPE_COMPLEX64, "<c8"},
    {v1::DTYPE_UINT16, "<u2"},  {v1::DTYPE_UINT32, "<u4"},
    {v1::DTYPE_UINT64, "<u8"},  {v1::DTYPE_COMPLEX128, "<c16"},
};

absl::Status BadNpy(absl::string_view what) {
  return absl::InvalidArgumentError(what);
}

// The text after `'key':` in the header's dict, without leading blanks.
bool ValueOf(absl::string_view header, absl::string_view key,
             absl::string_view* value) {
  const std::string quoted = absl::StrCat("'", key, "':");
  const size_t at = header.find(quoted);
  if (at == absl::string_view::npos) return false;
  *value = absl::StripLeadingAsciiWhitespace(header.substr(at + quoted.size()));
  return true;
}

}  // namespace

absl::string_view NpyTypeOf(v1::DType dtype) {
  for (const NpyType& type : kNpyTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view bytes) {
  constexpr size_t kVersion = kNpyMagic.size();
  if (!absl::StartsWith(bytes, kNpyMagic) || bytes.size() < kVersion + 6)
    return BadNpy("is not an .npy file");
  const size_t length_bytes = bytes[kVersion] == 1 ? 2 : 4;
  if (bytes[kVersion] < 1 || bytes[kVersion] > 3)
    return BadNpy("is of an unknown version of .npy");
  const size_t begin = kVersion + 2 + length_bytes;
  const uint64_t length =
      GetLittleEndian(bytes.substr(kVersion + 2, length_bytes));
  if (length > kMaxNpyHeaderBytes || begin + length > bytes.size())
    return BadNpy("has a bad .npy header");
  const absl::string_view header = bytes.substr(begin, length);
  NpyHeader out;
  out.data_begin = begin + length;
  absl::string_view type, order, shape;
  if (!ValueOf(header, "descr", &type) ||
      !ValueOf(header, "fortran_order", &order) ||
      !ValueOf(header, "shape", &shape) || !absl::ConsumePrefix(&shape, "("))
    return BadNpy("has a bad .npy header");
  const size_t end = shape.find(')');
  if (end == absl::string_view::npos) return BadNpy("has a bad .npy header");
  out.fortran_order = absl::StartsWith(order, "True");
  for (absl::string_view text : absl::StrSplit(shape.substr(0, end), ',')) {
    text = absl::StripAsciiWhitespace(text);
    if (text.empty()) continue;
    int64_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size < 0 || size > kMaxNpySize ||
        out.shape.size() == kMaxNpyDimensions)
      return BadNpy("has a bad shape");
    out.shape.push_back(size);
  }
  if (absl::ConsumePrefix(&type, "'")) {
    type = type.substr(0, type.find('\''));
    for (const NpyType& known : kNpyTypes) {
      if (known.name == type) out.dtype = known.dtype;
    }
  }
  if (out.dtype == v1::DTYPE_UNSPECIFIED) {
    return absl::UnimplementedError(absl::StrCat(
        "has elements that are not numbers: ", type.substr(0, 20)));
  }
  return out;
}

}  // namespace rankprobe
