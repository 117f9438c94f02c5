// SPDX-License-Identifier: Apache-2.0
#include "analysis/align/aligned_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"

namespace rankprobe::analysis {
namespace {

constexpr int64_t kMaxBytes = int64_t{8} << 30;

int64_t Product(absl::Span<const int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// Rounds to nearest even, as PyTorch's casts do.
uint16_t FloatToBfloat(float value) {
  const auto bits = absl::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t FloatToHalf(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7E00;
  const double size = std::fabs(static_cast<double>(value));
  if (size >= 65520) return sign | 0x7C00;
  if (size == 0) return sign;
  int exponent = std::max(std::ilogb(size), -14);
  // The mantissa in units of the last bit; nearbyint rounds to even.
  double units = std::nearbyint(std::ldexp(size, 10 - exponent));
  if (units >= 2048) {
    units /= 2;
    ++exponent;
  }
  const auto bits = static_cast<uint16_t>(units);
  if (bits < 1024) return sign | bits;  // subnormal
  return static_cast<uint16_t>(sign | ((exponent + 15) << 10) | (bits - 1024));
}

template <typename T, typename Convert>
std::string Encoded(absl::Span<const double> values, Convert convert) {
  std::string out(values.size() * sizeof(T), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = convert(values[i]);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return out;
}

absl::StatusOr<std::string> Encode(absl::Span<const double> values,
                                   v1::DType dtype) {
  const auto as_float = [](double v) { return static_cast<float>(v); };
  switch (dtype) {
    case v1::DTYPE_FLOAT64:
      return Encoded<double>(values, [](double v) { return v; });
    case v1::DTYPE_FLOAT32:
      return Encoded<float>(values, as_float);
    case v1::DTYPE_BFLOAT16:
      return Encoded<uint16_t>(
          values, [&](double v) { return FloatToBfloat(as_float(v)); });
    case v1::DTYPE_FLOAT16:
      return Encoded<uint16_t>(
          values, [&](double v) { return FloatToHalf(as_float(v)); });
    // Token ids may have 32 bits on one side and 64 on the other.
    case v1::DTYPE_INT64:
      return Encoded<int64_t>(values,
                              [](double v) { return static_cast<int64_t>(v); });
    case v1::DTYPE_INT32:
      for (const double value : values) {
        if (std::fabs(value) > 2147483647.0) {
          return absl::FailedPreconditionError("has no room in torch.int32");
        }
      }
      return Encoded<int32_t>(values,
                              [](double v) { return static_cast<int32_t>(v); });
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("cannot be made ", TorchDtypeName(dtype)));
  }
}

bool IsFloatType(v1::DType dtype) {
  return dtype == v1::DTYPE_FLOAT64 || dtype == v1::DTYPE_FLOAT32 ||
         dtype == v1::DTYPE_FLOAT16 || dtype == v1::DTYPE_BFLOAT16;
}

bool IsWholeType(v1::DType dtype) {
  return dtype == v1::DTYPE_INT64 || dtype == v1::DTYPE_INT32;
}

absl::StatusOr<size_t> DimOf(int64_t dim, const AlignedTensor& tensor) {
  const auto rank = static_cast<int64_t>(tensor.shape.size());
  const int64_t at = dim < 0 ? dim + rank : dim;
  if (at < 0 || at >= rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has no dimension ", dim, ", its shape is ", ShapeText(tensor.shape)));
  }
  return static_cast<size_t>(at);
}

}  // namespace

int64_t AlignedTensor::elements() const { return Product(shape); }

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool CanBecome(v1::DType from, v1::DType to) {
  return from == to || (IsWholeType(from) && IsWholeType(to)) ||
         (IsFloatType(from) && IsFloatType(to));
}

absl::StatusOr<UsualStats> StatsOf(const AlignedTensor& tensor) {
  if (!tensor.bytes.has_value()) return tensor.stats;
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  RP_RETURN_IF_ERROR(
      DecodeElements(tensor.dtype, *tensor.bytes, absl::MakeSpan(values)));
  UsualStats out;
  if (values.empty()) return out;
  double largest = -std::numeric_limits<double>::infinity();
  double smallest = -largest;
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    if (std::isnan(value)) {
      // As in PyTorch, a NaN makes all four statistics NaN.
      out.fill(value);
      return out;
    }
    largest = std::max(largest, value);
    smallest = std::min(smallest, value);
    sum += value;
    squares += value * value;
  }
  out[kMax] = largest;
  out[kMin] = smallest;
  out[kMean] = sum / static_cast<double>(values.size());
  out[kNorm] = std::sqrt(squares);
  return out;
}

absl::StatusOr<std::string> ReadBytes(const PtTensor& tensor, v1::DType dtype) {
  // A conversion needs one double for each element.
  if (tensor.elements > kMaxBytes / static_cast<int64_t>(std::max<size_t>(
                                        sizeof(double), ElementSize(dtype)))) {
    return absl::FailedPreconditionError("is too large to be aligned");
  }
  const auto elements = static_cast<size_t>(tensor.elements);
  if (tensor.dtype == dtype) {
    std::string bytes(elements * ElementSize(dtype), '\0');
    RP_RETURN_IF_ERROR(tensor.ReadRaw(0, elements, bytes.data()));
    return bytes;
  }
  if (!CanBecome(tensor.dtype, dtype)) {
    return absl::FailedPreconditionError(
        absl::StrCat("is ", TorchDtypeName(tensor.dtype), ", the target's ",
                     TorchDtypeName(dtype)));
  }
  std::vector<double> values(elements);
  RP_RETURN_IF_ERROR(tensor.Read(0, absl::MakeSpan(values)));
  return Encode(values, dtype);
}

absl::Status Slice(int64_t dim, int64_t begin, int64_t end,
                   AlignedTensor* tensor) {
  RP_ASSIGN_OR_RETURN(const size_t at, DimOf(dim, *tensor));
  const int64_t size = tensor->shape[at];
  if (begin < 0 || begin > end || end > size) {
    return absl::InvalidArgumentError(
        absl::StrCat("has no ", begin, " to ", end, " in dimension ", at,
                     " of ", ShapeText(tensor->shape)));
  }
  if (begin == 0 && end == size) return absl::OkStatus();
  if (!tensor->bytes.has_value()) {
    return absl::FailedPreconditionError(
        "has statistics only, which cannot be cut: record task tensor");
  }
  const absl::Span<const int64_t> shape = tensor->shape;
  const int64_t outer = Product(shape.subspan(0, at));
  const int64_t inner = Product(shape.subspan(at + 1)) *
                        static_cast<int64_t>(ElementSize(tensor->dtype));
  std::string out;
  out.reserve(static_cast<size_t>(outer * (end - begin) * inner));
  for (int64_t i = 0; i < outer; ++i) {
    out.append(*tensor->bytes, static_cast<size_t>((i * size + begin) * inner),
               static_cast<size_t>((end - begin) * inner));
  }
  tensor->bytes = std::move(out);
  tensor->shape[at] = end - begin;
  return absl::OkStatus();
}

absl::Status Split(const SplitRule& rule, AlignedTensor* tensor) {
  RP_ASSIGN_OR_RETURN(const size_t at, DimOf(rule.dim, *tensor));
  const int64_t all =
      std::accumulate(rule.sizes.begin(), rule.sizes.end(), int64_t{0});
  const int64_t size = tensor->shape[at];
  if (size % all != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dimension ", at, " of ", ShapeText(tensor->shape),
                     " is not a multiple of the ", all, " that split has"));
  }
  const auto first =
      rule.sizes.begin() + static_cast<std::ptrdiff_t>(rule.part);
  const int64_t begin =
      std::accumulate(rule.sizes.begin(), first, int64_t{0}) * (size / all);
  return Slice(static_cast<int64_t>(at), begin, begin + *first * (size / all),
               tensor);
}

absl::StatusOr<AlignedTensor> Concat(absl::Span<const AlignedTensor> parts,
                                     int64_t dim) {
  AlignedTensor out = parts[0];
  if (parts.size() == 1) return out;
  RP_ASSIGN_OR_RETURN(const size_t at, DimOf(dim, out));
  bool bytes = out.bytes.has_value();
  int64_t size = 0;
  for (const AlignedTensor& part : parts) {
    std::vector<int64_t> shape = part.shape;
    if (shape.size() == out.shape.size()) {
      size += shape[at];
      shape[at] = out.shape[at];
    }
    if (shape != out.shape || part.dtype != out.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot be concatenated: ", TorchDtypeName(out.dtype),
                       ShapeText(out.shape), " and ",
                       TorchDtypeName(part.dtype), ShapeText(part.shape)));
    }
    bytes = bytes && part.bytes.has_value();
  }
  const absl::Span<const int64_t> shape = out.shape;
  const int64_t outer = Product(shape.subspan(0, at));
  const int64_t inner = Product(shape.subspan(at + 1)) *
                        static_cast<int64_t>(ElementSize(out.dtype));
  if (bytes) {
    std::string text;
    text.reserve(static_cast<size_t>(outer * size * inner));
    for (int64_t i = 0; i < outer; ++i) {
      for (const AlignedTensor& part : parts) {
        const auto length = static_cast<size_t>(part.shape[at] * inner);
        text.append(*part.bytes, static_cast<size_t>(i) * length, length);
      }
    }
    out.bytes = std::move(text);
  } else {
    out.bytes.reset();
    double weighted = 0;
    double squares = 0;
    for (const AlignedTensor& part : parts) {
      for (const auto& value : part.stats) {
        if (!value.has_value()) {
          return absl::FailedPreconditionError("has no statistics");
        }
      }
      // A NaN in any part is a NaN of the result.
      const auto worse = [](double a, double b, double picked) {
        return std::isnan(a) ? a : std::isnan(b) ? b : picked;
      };
      const double high = *out.stats[kMax];
      const double low = *out.stats[kMin];
      out.stats[kMax] =
          worse(high, *part.stats[kMax], std::max(high, *part.stats[kMax]));
      out.stats[kMin] =
          worse(low, *part.stats[kMin], std::min(low, *part.stats[kMin]));
      weighted += *part.stats[kMean] * static_cast<double>(part.elements());
      squares += *part.stats[kNorm] * *part.stats[kNorm];
    }
    out.stats[kNorm] = std::sqrt(squares);
    out.shape[at] = size;
    out.stats[kMean] = weighted / static_cast<double>(out.elements());
  }
  out.shape[at] = size;
  return out;
}

absl::StatusOr<AlignedTensor> Sum(absl::Span<const AlignedTensor> terms,
                                  bool average) {
  AlignedTensor out = terms[0];
  std::vector<double> sums(static_cast<size_t>(out.elements()));
  std::vector<double> values(sums.size());
  for (const AlignedTensor& term : terms) {
    if (!term.bytes.has_value()) {
      return absl::FailedPreconditionError(
          "has statistics only, which do not add up: record task tensor");
    }
    if (term.shape != out.shape || term.dtype != out.dtype ||
        !IsFloatType(term.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot be added: ", TorchDtypeName(out.dtype), ShapeText(out.shape),
          " and ", TorchDtypeName(term.dtype), ShapeText(term.shape)));
    }
    RP_RETURN_IF_ERROR(
        DecodeElements(term.dtype, *term.bytes, absl::MakeSpan(values)));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
  }
  if (average) {
    for (double& sum : sums) sum /= static_cast<double>(terms.size());
  }
  RP_ASSIGN_OR_RETURN(out.bytes, Encode(sums, out.dtype));
  return out;
}

absl::Status Transpose(absl::Span<const int64_t> order, AlignedTensor* tensor) {
  if (order.size() != tensor->shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("transpose names ", order.size(),
                     " dimensions, its shape is ", ShapeText(tensor->shape)));
  }
  std::vector<int64_t> strides(order.size(), 1);
  for (size_t d = order.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * tensor->shape[d];
  }
  std::vector<int64_t> shape;
  std::vector<int64_t> steps;
  for (const int64_t d : order) {
    shape.push_back(tensor->shape[static_cast<size_t>(d)]);
    steps.push_back(strides[static_cast<size_t>(d)]);
  }
  if (tensor->bytes.has_value()) {
    const size_t size = ElementSize(tensor->dtype);
    std::string out;
    out.reserve(tensor->bytes->size());
    std::vector<int64_t> index(order.size(), 0);
    for (int64_t i = tensor->elements(); i > 0; --i) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) at += index[d] * steps[d];
      out.append(*tensor->bytes, static_cast<size_t>(at) * size, size);
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < shape[d]) break;
        index[d] = 0;
      }
    }
    tensor->bytes = std::move(out);
  }
  tensor->shape = std::move(shape);
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
