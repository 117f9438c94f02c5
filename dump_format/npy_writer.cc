// SPDX-License-Identifier: Apache-2.0
#include "dump_format/npy_writer.h"

#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/tensor/dtype.h"
#include "dump_format/npy_reader.h"
#include "dump_format/pt_reader.h"

namespace rankprobe {
namespace {

constexpr char kMagic[] = "\x93NUMPY\x01";  // and the zero of version 1.0
constexpr size_t kHeaderAlignment = 64;
constexpr int kMaxDimensions = 64;  // NumPy's
constexpr uint64_t kMaxLength = uint64_t{1} << 30;

std::string Prefix(absl::string_view type, absl::Span<const int64_t> shape) {
  std::string header = absl::StrCat("{'descr': '", type,
                                    "', 'fortran_order': False, 'shape': (");
  for (const int64_t size : shape) absl::StrAppend(&header, size, ", ");
  absl::StrAppend(&header, "), }");
  std::string prefix(kMagic, sizeof(kMagic));
  const size_t fixed = prefix.size() + 2 + 1;
  header.append(kHeaderAlignment - (fixed + header.size()) % kHeaderAlignment,
                ' ');
  header.push_back('\n');
  prefix.push_back(static_cast<char>(header.size() & 0xff));
  prefix.push_back(static_cast<char>(header.size() >> 8));
  prefix.append(header);
  return prefix;
}

}  // namespace

std::optional<uint64_t> NumpyTextElementBytes(const v1::TensorSummary& tensor) {
  if (!tensor.numpy() || tensor.dtype() != v1::DTYPE_UNSPECIFIED ||
      tensor.shape_size() > kMaxDimensions)
    return std::nullopt;
  const absl::string_view dtype = tensor.numpy_dtype();
  if (dtype.size() < 3 || dtype.size() > 12) return std::nullopt;
  const bool wide = dtype[1] == 'U' && (dtype[0] == '<' || dtype[0] == '>');
  if (!wide && !absl::StartsWith(dtype, "|S")) return std::nullopt;
  uint64_t length = 0;
  if (!absl::SimpleAtoi(dtype.substr(2), &length) || length > kMaxLength ||
      absl::StrCat(length) != dtype.substr(2)) {
    return std::nullopt;
  }
  return wide ? 4 * length : length;
}

NpyWriter::NpyWriter(const v1::TensorSummary& tensor, uint64_t data_bytes)
    : data_bytes_(data_bytes),
      prefix_(Prefix(tensor.numpy_dtype(), tensor.shape())) {}

NpyWriter::NpyWriter(v1::DType dtype, absl::Span<const int64_t> shape,
                     uint64_t data_bytes)
    : data_bytes_(data_bytes) {
  std::string type(NpyTypeOf(dtype));
  const size_t size = ElementSize(dtype);
  if (type.empty() && size > 0 && DecodeElements(dtype, "", {}).ok()) {
    widened_ = dtype;
    type = std::string(NpyTypeOf(v1::DTYPE_FLOAT32));
    data_bytes_ = data_bytes / size * sizeof(float);
  } else if (type.empty()) {
    type = absl::StrCat("|V", size);  // NumPy's word for bytes without a type
  }
  prefix_ = Prefix(type, shape);
}

absl::string_view NpyWriter::Encode(absl::string_view data) {
  if (widened_ == v1::DTYPE_UNSPECIFIED) return data;
  rest_.append(data.data(), data.size());
  const size_t size = ElementSize(widened_);
  std::vector<double> numbers(rest_.size() / size);
  const size_t whole = numbers.size() * size;
  out_.clear();
  if (DecodeElements(widened_, absl::string_view(rest_).substr(0, whole),
                     absl::MakeSpan(numbers))
          .ok()) {
    const std::vector<float> floats(numbers.begin(), numbers.end());
    out_.assign(reinterpret_cast<const char*>(floats.data()),
                floats.size() * sizeof(float));
  }
  rest_.erase(0, whole);
  return out_;
}

}  // namespace rankprobe
