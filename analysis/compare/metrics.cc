// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {

std::optional<double> TensorMetrics::Finite(TensorMetric metric) const {
  const std::optional<double>& value = values[metric];
  return value.has_value() && std::isfinite(*value) ? value : std::nullopt;
}

TensorMetrics NoMetrics(TensorMetrics::State state, absl::string_view message) {
  TensorMetrics out;
  out.state = state;
  out.message = std::string(message);
  return out;
}

std::string FormatMetric(const TensorMetrics& metrics, size_t metric) {
  switch (metrics.state) {
    case TensorMetrics::State::kNotCompared:
      return "";
    case TensorMetrics::State::kUnsupported:
      return "unsupported";
    case TensorMetrics::State::kShapeMismatch:
      return "shape unmatched";
    case TensorMetrics::State::kSpecialsDiffer:
      return "N/A";
    case TensorMetrics::State::kCompared:
      break;
  }
  const std::optional<double>& value = metrics.values[metric];
  if (!value.has_value()) return "unsupported";
  if (std::isnan(*value)) return "Nan";
  if (std::isinf(*value)) return "inf";
  std::string out;
  AppendPythonFloat(*value, &out);
  return out;
}

namespace {

constexpr int64_t kBlock = 1 << 14;
// Elements per task. Partial sums are added block by block and task by task, so
// the result does not depend on the number of threads.
constexpr int64_t kShare = 1 << 20;
constexpr int64_t kMaxThreads = 16;
constexpr double kEpsilon = 2.220446049250313e-16;  // of a double

// Sums of one pass over both tensors. Single and half precision are compared in
// float, as in PyTorch.
struct Sums {
  double dot = 0;
  double n_square = 0;
  double b_square = 0;
  double d_square = 0;
  double max_absolute = 0;
  double max_relative = 0;
  int64_t below_1e3 = 0;
  int64_t below_5e3 = 0;

  void Add(const Sums& other) {
    dot += other.dot;
    n_square += other.n_square;
    b_square += other.b_square;
    d_square += other.d_square;
    max_absolute = std::max(max_absolute, other.max_absolute);
    max_relative = std::max(max_relative, other.max_relative);
    below_1e3 += other.below_1e3;
    below_5e3 += other.below_5e3;
  }
};

// Sets equal non-finite elements to zero on both sides. Returns false if they
// are not equal.
template <typename S>
bool ZeroSpecials(S* n, S* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(n[i]);
    if (finite && std::isfinite(b[i])) continue;
    // Infinities of opposite sign are also not equal.
    if (std::isnan(n[i]) ? !std::isnan(b[i]) : n[i] != b[i]) return false;
    n[i] = b[i] = 0;
  }
  return true;
}

// The variant is selected when the program starts; all variants add the same
// sums in the same order.
#if defined(__x86_64__) && defined(__linux__)
#define RANKPROBE_WIDE \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RANKPROBE_WIDE
#endif

// S is the type of the elements, T the type in which relative errors are
// computed.
template <typename S, typename T>
[[gnu::always_inline]] inline void AddBlock(const S* n, const S* b,
                                            int64_t count, Sums* sums) {
// Fused multiply-add would make the sums depend on the machine.
#pragma clang fp contract(off)
  // One partial sum for each lane, so that the compiler can vectorise while the
  // order of additions stays the same.
  constexpr int kLanes = 16;
  double dot[kLanes] = {};
  double nn[kLanes] = {};
  double bb[kLanes] = {};
  double dd[kLanes] = {};
  double max_absolute[kLanes] = {};
  T max_relative[kLanes] = {};
  int32_t below_1e3[kLanes] = {};
  int32_t below_5e3[kLanes] = {};
  const auto one = [&](int64_t i, int lane) __attribute__((always_inline)) {
#pragma clang fp contract(off)
    const double x = static_cast<double>(n[i]);
    const double y = static_cast<double>(b[i]);
    const double d = x - y;
    dot[lane] += x * y;
    nn[lane] += x * x;
    bb[lane] += y * y;
    dd[lane] += d * d;
    max_absolute[lane] = std::max(max_absolute[lane], std::fabs(d));
    const T eps = b[i] == 0 ? static_cast<T>(kEpsilon) : T{0};
    const T tx = static_cast<T>(n[i]) + eps;
    const T ty = static_cast<T>(b[i]) + eps;
    const T relative = std::fabs((tx - ty) / ty);
    max_relative[lane] = std::max(max_relative[lane], relative);
    below_1e3[lane] += relative < static_cast<T>(0.001) ? 1 : 0;
    below_5e3[lane] += relative < static_cast<T>(0.005) ? 1 : 0;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
  }
  for (; i < count; ++i) one(i, 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    sums->Add({dot[lane], nn[lane], bb[lane], dd[lane], max_absolute[lane],
               static_cast<double>(max_relative[lane]), below_1e3[lane],
               below_5e3[lane]});
  }
}

RANKPROBE_WIDE void AddWide(const double* n, const double* b, int64_t count,
                            Sums* sums) {
  AddBlock<double, double>(n, b, count, sums);
}
RANKPROBE_WIDE void AddRounded(const double* n, const double* b, int64_t count,
                               Sums* sums) {
  AddBlock<double, float>(n, b, count, sums);
}
RANKPROBE_WIDE void AddFloats(const float* n, const float* b, int64_t count,
                              Sums* sums) {
  AddBlock<float, float>(n, b, count, sums);
}

// Adds one share of both tensors, read as elements of type S. Returns false if
// the non-finite elements of the two differ.
template <typename S>
absl::StatusOr<bool> AddShare(const PtTensor& target, const PtTensor& reference,
                              int64_t begin, int64_t end,
                              void (*add)(const S*, const S*, int64_t, Sums*),
                              Sums* sums) {
  std::vector<S> n(kBlock);
  std::vector<S> b(kBlock);
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    RP_RETURN_IF_ERROR(
        target.Read(at, absl::MakeSpan(n.data(), static_cast<size_t>(count))));
    RP_RETURN_IF_ERROR(reference.Read(
        at, absl::MakeSpan(b.data(), static_cast<size_t>(count))));
    Sums block;
    add(n.data(), b.data(), count, &block);
    // Squares of non-finite values are not finite (and doubles may also
    // overflow).
    if (!std::isfinite(block.n_square + block.b_square)) {
      if (!ZeroSpecials(n.data(), b.data(), count)) return false;
      block = Sums();
      add(n.data(), b.data(), count, &block);
    }
    sums->Add(block);
  }
  return true;
}

bool ComparesInFloat(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
    case v1::DTYPE_FLOAT16:
    case v1::DTYPE_BFLOAT16:
    case v1::DTYPE_FLOAT8_E4M3FN:
    case v1::DTYPE_FLOAT8_E5M2:
    case v1::DTYPE_FLOAT8_E4M3FNUZ:
    case v1::DTYPE_FLOAT8_E5M2FNUZ:
    case v1::DTYPE_FLOAT8_E8M0FNU:
    case v1::DTYPE_COMPLEX64:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<bool> AddShareOfAnyType(const PtTensor& target,
                                       const PtTensor& reference, bool wide,
                                       int64_t begin, int64_t end, Sums* sums) {
  if (wide) {
    return AddShare<double>(target, reference, begin, end, AddWide, sums);
  }
  // The absolute value of a complex element is rounded later, as a double.
  if (target.dtype == v1::DTYPE_COMPLEX64 ||
      reference.dtype == v1::DTYPE_COMPLEX64) {
    return AddShare<double>(target, reference, begin, end, AddRounded, sums);
  }
  return AddShare<float>(target, reference, begin, end, AddFloats, sums);
}

// Adds all shares; large tensors use all processors.
absl::StatusOr<bool> AddTensors(const PtTensor& target,
                                const PtTensor& reference, bool wide,
                                Sums* sums) {
  const int64_t shares = (target.elements + kShare - 1) / kShare;
  std::vector<Sums> parts(static_cast<size_t>(shares));
  std::vector<absl::StatusOr<bool>> results(static_cast<size_t>(shares), true);
  const int64_t processors =
      std::min<int64_t>(std::thread::hardware_concurrency(), kMaxThreads);
  const auto add_share = [&](size_t at, size_t) -> absl::Status {
    const int64_t begin = static_cast<int64_t>(at) * kShare;
    results[at] = AddShareOfAnyType(target, reference, wide, begin,
                                    std::min(begin + kShare, target.elements),
                                    &parts[at]);
    return results[at].ok() && *results[at]
               ? absl::OkStatus()
               : absl::CancelledError("no more is needed");
  };
  // The errors that end it early are in the results.
  ParallelFor(parts.size(), static_cast<size_t>(processors), add_share)
      .IgnoreError();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!results[i].ok() || !*results[i]) return results[i];
    sums->Add(parts[i]);
  }
  return true;
}

// Rounds to 12 decimals. The result is the double that prints with these 12
// decimals, which multiplication does not give.
double Rounded(double value) {
  if (!std::isfinite(value)) return value;
  double rounded = value;
  (void)absl::SimpleAtod(absl::StrFormat("%.12f", value), &rounded);
  return rounded;
}

std::vector<int64_t> Squeezed(const std::vector<int64_t>& shape) {
  std::vector<int64_t> out;
  for (const int64_t n : shape) {
    if (n != 1) out.push_back(n);
  }
  return out;
}

// Returns NaN, with the reason in `message`, if there is no cosine.
double CosineOf(const Sums& sums, std::string* message) {
  const double n_norm = std::sqrt(sums.n_square);
  const double b_norm = std::sqrt(sums.b_square);
  if (n_norm <= kEpsilon && b_norm <= kEpsilon) return 1;
  if (n_norm <= kEpsilon || b_norm <= kEpsilon) {
    *message = absl::StrCat("Cosine: all elements of ",
                            n_norm <= kEpsilon ? "NPU" : "bench", " are zero.");
    return std::numeric_limits<double>::quiet_NaN();
  }
  const double cosine = sums.dot / (n_norm * b_norm);
  if (std::isnan(cosine)) {
    *message = "Cosine: the sums overflow.";
    return cosine;
  }
  if (cosine > 0.9999) return std::round(cosine * 1e6) / 1e6;
  return Rounded(cosine);
}

}  // namespace

absl::StatusOr<TensorMetrics> CompareTensors(const PtTensor& target,
                                             const PtTensor& reference) {
  using State = TensorMetrics::State;
  if (target.elements == 0 || reference.elements == 0) {
    return NoMetrics(State::kUnsupported,
                     "This is empty data, can not compare.");
  }
  if (Squeezed(target.shape) != Squeezed(reference.shape)) {
    return NoMetrics(State::kShapeMismatch,
                     "Shape of NPU and bench tensor do not match.");
  }
  // Integers are compared in double; floats of at most 32 bits and complex
  // values of such floats in float.
  const bool wide =
      !ComparesInFloat(target.dtype) || !ComparesInFloat(reference.dtype);
  Sums sums;
  RP_ASSIGN_OR_RETURN(const bool comparable,
                      AddTensors(target, reference, wide, &sums));
  if (!comparable) {
    return NoMetrics(State::kSpecialsDiffer,
                     "The positions of inf or nan in NPU and bench tensor do "
                     "not match.");
  }
  TensorMetrics out;
  out.state = State::kCompared;
  const bool scalar = Squeezed(target.shape).empty();
  const double elements = static_cast<double>(target.elements);
  out.values[kMaxAbsoluteError] = Rounded(sums.max_absolute);
  out.values[kMaxRelativeError] = Rounded(sums.max_relative);
  if (scalar) {
    out.message = "A tensor of one element has no cosine, distance and ratios.";
  } else {
    out.values[kCosine] = CosineOf(sums, &out.message);
    out.values[kEuclideanDistance] = std::sqrt(sums.d_square);
    out.values[kBelowOneThousandth] =
        Rounded(static_cast<double>(sums.below_1e3) / elements);
    out.values[kBelowFiveThousandths] =
        Rounded(static_cast<double>(sums.below_5e3) / elements);
  }
  if (target.dtype != reference.dtype) {
    absl::StrAppend(&out.message, out.message.empty() ? "" : " ",
                    "Dtype of NPU and bench tensor do not match.");
  }
  return out;
}

}  // namespace rankprobe::analysis
