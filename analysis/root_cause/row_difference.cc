// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/row_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/tensor/dtype.h"
#include "common/text/json_text.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// Returns the epsilon of a PyTorch dtype ("torch.float32") or a MindSpore dtype
// ("Float32").
double EpsilonOf(absl::string_view word) {
  const std::string dtype = absl::AsciiStrToLower(word);
  if (absl::EndsWith(dtype, "bfloat16")) return std::ldexp(1.0, -8);
  if (absl::EndsWith(dtype, "float16")) return std::ldexp(1.0, -11);
  if (absl::EndsWith(dtype, "float32") || absl::EndsWith(dtype, "complex64")) {
    return std::ldexp(1.0, -24);
  }
  if (absl::EndsWith(dtype, "float64") || absl::EndsWith(dtype, "complex128")) {
    return std::ldexp(1.0, -53);
  }
  if (absl::StrContains(dtype, "float8")) return std::ldexp(1.0, -4);
  return 0;
}

double ElementsOf(const DumpRow& row) {
  const JsonValue* const shape =
      row.record == nullptr ? nullptr : row.record->Find("shape");
  if (shape == nullptr) return 1;
  double elements = 1;
  for (const JsonValue& size : shape->items()) elements *= size.number;
  return elements;
}

// Returns the size of the last dimension.
double LastSizeOf(const DumpRow& row) {
  const JsonValue* const shape =
      row.record == nullptr ? nullptr : row.record->Find("shape");
  if (shape == nullptr || shape->items().empty()) return 1;
  return std::max(1.0, shape->items().back().number);
}

// Returns the number of elements of all dimensions except the last.
double RowsOf(const DumpRow& row) { return ElementsOf(row) / LastSizeOf(row); }

bool IsInteger(absl::string_view dtype) {
  return FamilyOf(ParseDtype(dtype)) == Family::kInt;
}

// Whether the dtype is one of MindSpore, whose names begin with a capital
// letter.
bool HasMindsporeDtype(const DumpRow& row) {
  return !row.dtype.empty() && absl::ascii_isupper(row.dtype[0]);
}

// One framework may have statistics that the other never has: Mean and Norm of
// integers.
bool AreOfTwoFrameworks(const DumpRow& n, const DumpRow& b) {
  return HasMindsporeDtype(n) != HasMindsporeDtype(b);
}

// Also true for integers of two frameworks: the same indices are int32 in one
// and int64 in the other.
bool HaveOneDtype(const DumpRow& n, const DumpRow& b) {
  if (AreOneDtype(n.dtype, b.dtype)) return true;
  return AreOfTwoFrameworks(n, b) && IsInteger(n.dtype) && IsInteger(b.dtype);
}

// Returns the distance of two values of one statistic, relative to `size`.
double ValueDifference(const JsonValue& x, const JsonValue& y, double size) {
  if (!x.is_number() || !y.is_number()) {
    return StatText(x) == StatText(y) ? 0 : kInfinity;
  }
  if (x.number == y.number) return 0;
  if (std::isnan(x.number) && std::isnan(y.number)) return 0;
  if (!std::isfinite(x.number) || !std::isfinite(y.number)) return kInfinity;
  return std::fabs(x.number - y.number) / size;
}

// Whether one row is not a complete tensor; numbers that it lacks are then
// unknown.
bool NotWhole(const DumpRow& n, const DumpRow& b) {
  return !n.not_put_together.empty() || !b.not_put_together.empty();
}

// Returns the difference of the statistic that differs most, or nullopt if
// neither row has one.
std::optional<double> StatDifference(const DumpRow& n, const DumpRow& b) {
  // A mean near zero is judged relative to the size of the averaged values.
  double scale = 0;
  for (const DumpRow* row : {&n, &b}) {
    for (const Stat stat : {kMax, kMin, kMean}) {
      const JsonValue& value = row->stats[stat];
      if (value.is_number() && std::isfinite(value.number)) {
        scale = std::max(scale, std::fabs(value.number));
      }
    }
  }
  std::optional<double> most;
  for (size_t i = 0; i < kStatCount; ++i) {
    const JsonValue& x = n.stats[i];
    const JsonValue& y = b.stats[i];
    if (x.is_null() && y.is_null()) continue;
    if ((x.is_null() || y.is_null()) &&
        (NotWhole(n, b) || AreOfTwoFrameworks(n, b))) {
      continue;
    }
    double size = scale;
    switch (kStatInfo[i].scale) {
      case DifferenceScale::kElements:
        break;
      case DifferenceScale::kItself:
        size = std::max(std::fabs(x.number), std::fabs(y.number));
        break;
      case DifferenceScale::kExact:
        size = 0;
        break;
      case DifferenceScale::kNone:
        continue;
    }
    // An extra statistic that one dump did not record is no evidence.
    if (i >= kUsualStatCount && (x.is_null() || y.is_null())) continue;
    most = std::max(most.value_or(0), ValueDifference(x, y, size));
  }
  return most;
}

// Returns the norm of the reference. Rows of integers and of float64 have none;
// for them returns the largest possible norm, or nullopt if there is no bound.
std::optional<double> NormOrBound(const RowPair& pair) {
  const JsonValue& norm = pair.reference->stats[kNorm];
  if (norm.is_number()) return std::fabs(norm.number);
  double most = 0;
  for (const Stat stat : {kMax, kMin}) {
    const JsonValue& value = pair.reference->stats[stat];
    if (!value.is_number() || !std::isfinite(value.number)) return std::nullopt;
    most = std::max(most, std::fabs(value.number));
  }
  return most * std::sqrt(ElementsOf(*pair.reference));
}

// Returns the difference of the elements relative to the norm, or nullopt if
// they were not compared.
std::optional<double> ElementDifference(const RowPair& pair) {
  const auto& distance = pair.tensor.values[kEuclideanDistance];
  if (distance == 0) return 0;
  if (const auto norm = NormOrBound(pair);
      distance.has_value() && norm.value_or(0) > 0) {
    return *distance / *norm;
  }
  if (pair.tensor.state == TensorMetrics::State::kSpecialsDiffer ||
      pair.tensor.state == TensorMetrics::State::kShapeMismatch) {
    return kInfinity;
  }
  return std::nullopt;
}

// Returns null if the row has no checksum or a null checksum.
const JsonValue* ChecksumOf(const DumpRow& row) {
  const JsonValue* const md5 = row.record->Find("md5");
  return md5 == nullptr || md5->is_null() ? nullptr : md5;
}

}  // namespace

bool DigestsDiffer(const RowPair& pair) {
  if (pair.reference == nullptr || pair.target->record == nullptr ||
      pair.reference->record == nullptr) {
    return false;
  }
  const JsonValue* const n = ChecksumOf(*pair.target);
  const JsonValue* const b = ChecksumOf(*pair.reference);
  return n != nullptr && b != nullptr && PythonText(*n) != PythonText(*b);
}

bool IsHiddenByInfinity(const RowPair& pair, DumpMode mode) {
  if (pair.reference == nullptr || pair.target->record == nullptr ||
      pair.reference->record == nullptr || pair.target->derived)
    return false;
  const JsonValue& norm = pair.target->stats[kNorm];
  if (!norm.is_number() || std::isfinite(norm.number)) return false;
  const bool checksums = ChecksumOf(*pair.target) != nullptr &&
                         ChecksumOf(*pair.reference) != nullptr;
  return !checksums &&
         !(mode == DumpMode::kTensor && ElementDifference(pair).has_value());
}

std::optional<double> RowDifference(const RowPair& pair, DumpMode mode) {
  if (pair.reference == nullptr) return std::nullopt;
  const DumpRow& n = *pair.target;
  const DumpRow& b = *pair.reference;
  if (n.record == nullptr || b.record == nullptr) {
    return n.record == b.record ? 0 : kInfinity;
  }
  if (NotWhole(n, b) && (n.shape != b.shape || n.derived)) return std::nullopt;
  if (!HaveOneDtype(n, b) || n.shape != b.shape) return kInfinity;
  if (n.derived) {
    // The value is not a tensor, so its text must be equal.
    for (size_t i = 0; i < kUsualStatCount; ++i) {
      if (StatText(n.stats[i]) != StatText(b.stats[i])) return kInfinity;
    }
    return 0;
  }
  const JsonValue* const md5_n = ChecksumOf(n);
  const JsonValue* const md5_b = ChecksumOf(b);
  const bool checksums = md5_n != nullptr && md5_b != nullptr;
  if (checksums && PythonText(*md5_n) == PythonText(*md5_b)) return 0;
  std::optional<double> difference = StatDifference(n, b);
  if (mode == DumpMode::kTensor) {
    // An unset optional compares as less than any value.
    difference = std::max(difference, ElementDifference(pair));
  }
  // Only the checksums are known.
  if (checksums && !difference.has_value()) return kInfinity;
  if (checksums && *difference == 0) {
    // Equal statistics of different data.
    return std::numeric_limits<double>::denorm_min();
  }
  if (!difference.has_value() && ElementsOf(n) == 0) return 0;
  return difference;
}

double AutoTolerance(const DumpRow& output,
                     absl::Span<const DumpRow* const> operands) {
  const double epsilon = EpsilonOf(output.dtype);
  const double out = std::max(1.0, ElementsOf(output));
  std::vector<double> sizes;
  for (const DumpRow* row : operands) {
    if (!row->derived && row->has_dtype) sizes.push_back(ElementsOf(*row));
  }
  std::sort(sizes.rbegin(), sizes.rend());
  double length = 1;
  if (sizes.size() >= 2) {
    // A product of matrices, [m, k] by [k, n]: k = sqrt(mk * kn / mn).
    length =
        std::max({1.0, std::sqrt(sizes[0] * sizes[1] / out), sizes[0] / out});
  } else if (sizes.size() == 1) {
    length = std::max(1.0, sizes[0] / out);
  }
  if (output.state == RowState::kParametersGrad) {
    // A sum over all inputs. The bound uses rows because a parameter of several
    // experts has more elements than one product of it uses.
    for (const DumpRow* row : operands) length = std::max(length, RowsOf(*row));
  }
  return 4 * epsilon * std::sqrt(length);
}

double TwoProgramTolerance(const DumpRow& output,
                           absl::Span<const DumpRow* const> operands) {
  double epsilon = EpsilonOf(output.dtype);
  // Integers must be equal.
  if (epsilon == 0) return 0;
  if (output.state == RowState::kParameters) {
    // Parameters were only rounded from one checkpoint, and may be stored wider
    // than the type they were rounded to (a bias on a CPU).
    for (const DumpRow* row : operands)
      epsilon = std::max(epsilon, EpsilonOf(row->dtype));
    return epsilon;
  }
  double length = LastSizeOf(output);
  for (const DumpRow* row : operands) {
    if (!row->derived && row->has_dtype)
      length = std::max(length, LastSizeOf(*row));
  }
  // Kernels accumulate 16-bit types in float32.
  const double of_sums = std::min(epsilon, EpsilonOf("float32"));
  return 8 * (epsilon + of_sums * std::sqrt(length));
}

double Cancellation(const RowPair& pair,
                    absl::Span<const DumpRow* const> operands) {
  if (pair.target->state != RowState::kParametersGrad ||
      absl::StrContains(pair.target->shape, ',')) {
    return 1;
  }
  const auto norm_of = [](const DumpRow& row) {
    const JsonValue& norm = row.stats[kNorm];
    return norm.is_number() && std::isfinite(norm.number) ? norm.number : 0;
  };
  double summed = 0;
  for (const DumpRow* row : operands) {
    if (absl::StrContains(row->name, ".backward."))
      summed = std::max(summed, norm_of(*row));
  }
  const double sum = std::max(norm_of(*pair.target), norm_of(*pair.reference));
  return sum > 0 ? std::max(1.0, summed / sum) : 1;
}

}  // namespace rankprobe::analysis
