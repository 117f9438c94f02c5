// SPDX-License-Identifier: Apache-2.0
#include "web/tensor/tensor_look.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "dump_format/pt_reader.h"

namespace rankprobe {
namespace {

constexpr size_t kPieceElements = 16 << 10;
constexpr uint32_t kMaxBins = 256;
constexpr uint32_t kMaxWindow = 256;
constexpr int kMaxDimensions = 64;

// Returns the weight of a number in the search for extremes: NaN, then
// infinities, then the absolute value.
double Weight(double value) {
  return std::isnan(value)   ? std::numeric_limits<double>::infinity()
         : std::isinf(value) ? std::numeric_limits<double>::max()
                             : std::fabs(value);
}

absl::StatusOr<uint64_t> ElementsOf(const v1::TensorPlace& place,
                                    absl::string_view bytes) {
  const size_t size = ElementSize(place.dtype());
  if (size == 0) return absl::InvalidArgumentError("a type without numbers");
  if (place.shape_size() > kMaxDimensions)
    return absl::InvalidArgumentError("more than 64 dimensions");
  uint64_t elements = 1;
  for (const int64_t length : place.shape()) {
    if (length < 0) return absl::InvalidArgumentError("a negative dimension");
    if (length != 0 && elements > std::numeric_limits<uint64_t>::max() / size /
                                      static_cast<uint64_t>(length)) {
      return absl::InvalidArgumentError("the shape is too large");
    }
    elements *= static_cast<uint64_t>(length);
  }
  if (elements * size != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor has ", bytes.size(), " bytes, its shape asks ",
                     elements * size));
  }
  return elements;
}

class Look {
 public:
  Look(const v1::TensorLookRequest& request, absl::string_view tensor,
       absl::string_view minus)
      : request_(request), tensor_(tensor), minus_(minus) {}

  absl::StatusOr<v1::TensorLook> Make() {
    RP_ASSIGN_OR_RETURN(elements_, ElementsOf(request_.tensor(), tensor_));
    if (request_.has_minus()) {
      RP_RETURN_IF_ERROR(ElementsOf(request_.minus(), minus_).status());
      if (!std::equal(request_.tensor().shape().begin(),
                      request_.tensor().shape().end(),
                      request_.minus().shape().begin(),
                      request_.minus().shape().end())) {
        return absl::InvalidArgumentError("the two have other shapes");
      }
    }
    if (request_.bins() > 0) {
      if (request_.bins() < 2 || request_.bins() > kMaxBins)
        return absl::InvalidArgumentError("bins: expected 2 to 256");
      RP_RETURN_IF_ERROR(Count());
    }
    if (request_.rows() > 0) RP_RETURN_IF_ERROR(Window());
    return std::move(look_);
  }

 private:
  // Reads elements from `begin` on, as numbers.
  absl::Status Read(uint64_t begin, absl::Span<double> out) {
    RP_RETURN_IF_ERROR(Decode(request_.tensor(), tensor_, begin, out));
    if (!request_.has_minus()) return absl::OkStatus();
    other_.resize(out.size());
    RP_RETURN_IF_ERROR(
        Decode(request_.minus(), minus_, begin, absl::MakeSpan(other_)));
    for (size_t i = 0; i < out.size(); ++i) {
      // Two equal infinities, and two NaN, have the difference 0.
      const bool same =
          out[i] == other_[i] || (std::isnan(out[i]) && std::isnan(other_[i]));
      out[i] = same ? 0 : out[i] - other_[i];
    }
    return absl::OkStatus();
  }

  static absl::Status Decode(const v1::TensorPlace& place,
                             absl::string_view bytes, uint64_t begin,
                             absl::Span<double> out) {
    const size_t size = ElementSize(place.dtype());
    return DecodeElements(place.dtype(),
                          bytes.substr(begin * size, out.size() * size), out);
  }

  absl::Status Each(absl::FunctionRef<void(uint64_t, double)> visit) {
    std::vector<double> piece;
    for (uint64_t begin = 0; begin < elements_; begin += piece.size()) {
      piece.resize(std::min<uint64_t>(kPieceElements, elements_ - begin));
      RP_RETURN_IF_ERROR(Read(begin, absl::MakeSpan(piece)));
      for (size_t i = 0; i < piece.size(); ++i) visit(begin + i, piece[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Count() {
    v1::TensorNumbers& n = *look_.mutable_numbers();
    n.set_elements(elements_);
    uint64_t nan = 0, above = 0, below = 0, zeros = 0, finite = 0, place = 0;
    double max = -std::numeric_limits<double>::infinity(), min = -max;
    double mean = 0, squares = 0, distances = 0, weight = -1;
    // Range of the values that the histogram counts.
    double low = std::numeric_limits<double>::infinity(), high = -low;
    RP_RETURN_IF_ERROR(Each([&](uint64_t i, double value) {
      if (Weight(value) > weight) {
        weight = Weight(value);
        place = i;
      }
      if (std::isnan(value)) {
        ++nan;
        return;
      }
      if (std::isinf(value)) {
        ++(value > 0 ? above : below);
        return;
      }
      ++finite;
      zeros += value == 0 ? 1 : 0;
      max = std::max(max, value);
      min = std::min(min, value);
      squares += value * value;
      const double from = value - mean;
      mean += from / static_cast<double>(finite);
      distances += from * (value - mean);
      if (const double at = Scaled(value); std::isfinite(at)) {
        low = std::min(low, at);
        high = std::max(high, at);
      }
    }));
    n.set_nan(nan);
    n.set_positive_infinite(above);
    n.set_negative_infinite(below);
    n.set_zeros(zeros);
    if (finite > 0) {
      n.set_max(max);
      n.set_min(min);
      n.set_mean(mean);
      n.set_standard_deviation(
          std::sqrt(distances / static_cast<double>(finite)));
      n.set_norm(std::sqrt(squares));
    }
    if (elements_ > 0) {
      std::vector<int64_t> at(request_.tensor().shape_size());
      for (int d = request_.tensor().shape_size() - 1; d >= 0; --d) {
        const auto length = static_cast<uint64_t>(request_.tensor().shape(d));
        at[d] = static_cast<int64_t>(place % length);
        place /= length;
      }
      n.mutable_largest_at()->Assign(at.begin(), at.end());
    }
    if (low > high || !std::isfinite(high - low)) return absl::OkStatus();
    return Histogram(low, high);
  }

  double Scaled(double value) const {
    return request_.logarithmic() ? std::log10(std::fabs(value)) : value;
  }

  absl::Status Histogram(double low, double high) {
    const uint32_t bins = low == high ? 1 : request_.bins();
    std::vector<uint64_t> counts(bins);
    RP_RETURN_IF_ERROR(Each([&](uint64_t, double value) {
      const double at = Scaled(value);
      if (!std::isfinite(at)) return;
      const double bin = low == high ? 0 : (at - low) / (high - low) * bins;
      ++counts[std::min<size_t>(bins - 1, static_cast<size_t>(bin))];
    }));
    for (uint32_t i = 0; i <= bins; ++i) {
      look_.add_edges(i == bins ? high
                                : low + (high - low) * (double{1} * i / bins));
    }
    look_.mutable_counts()->Assign(counts.begin(), counts.end());
    return absl::OkStatus();
  }

  // One dimension of the slice: its length and its stride.
  struct Axis {
    int64_t length = 1;
    uint64_t stride = 0;
  };

  absl::Status Window() {
    const auto& shape = request_.tensor().shape();
    std::vector<uint64_t> strides(shape.size(), 1);
    for (int d = shape.size() - 2; d >= 0; --d)
      strides[d] = strides[d + 1] * static_cast<uint64_t>(shape[d + 1]);
    if (request_.at_size() != shape.size())
      return absl::InvalidArgumentError("at: expected an index a dimension");
    Axis row, column;
    const auto axis = [&](int32_t dimension, Axis* out) {
      if (dimension == -1) return true;
      if (dimension < 0 || dimension >= shape.size()) return false;
      *out = {shape[dimension], strides[dimension]};
      return true;
    };
    if (!axis(request_.row_dimension(), &row) ||
        !axis(request_.column_dimension(), &column) ||
        (request_.row_dimension() == request_.column_dimension() &&
         request_.row_dimension() != -1)) {
      return absl::InvalidArgumentError("the slice has no such dimensions");
    }
    uint64_t offset = 0;
    for (int d = 0; d < shape.size(); ++d) {
      if (d == request_.row_dimension() || d == request_.column_dimension())
        continue;
      if (request_.at(d) < 0 || request_.at(d) >= shape[d]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "at: dimension ", d, " has no index ", request_.at(d)));
      }
      offset += static_cast<uint64_t>(request_.at(d)) * strides[d];
    }
    return Fill(row, column, offset);
  }

  absl::Status Fill(const Axis& row, const Axis& column, uint64_t offset) {
    const int64_t row_step = std::max<uint32_t>(1, request_.row_step());
    const int64_t column_step = std::max<uint32_t>(1, request_.column_step());
    if (request_.rows() > kMaxWindow || request_.columns() > kMaxWindow ||
        request_.first_row() < 0 || request_.first_column() < 0) {
      return absl::InvalidArgumentError(
          "a window has at most 256 cells a side");
    }
    const auto cells = [](int64_t length, int64_t first, int64_t step,
                          uint32_t most) -> uint32_t {
      if (first >= length) return 0;
      return static_cast<uint32_t>(
          std::min<int64_t>(most, (length - first - 1) / step + 1));
    };
    const uint32_t rows =
        cells(row.length, request_.first_row(), row_step, request_.rows());
    const uint32_t columns = cells(column.length, request_.first_column(),
                                   column_step, request_.columns());
    look_.set_rows_total(row.length);
    look_.set_columns_total(column.length);
    look_.set_rows(rows);
    look_.set_columns(columns);
    std::vector<double> window(size_t{rows} * columns);
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = 0; c < columns; ++c) {
        RP_ASSIGN_OR_RETURN(
            window[size_t{r} * columns + c],
            Cell(row, request_.first_row() + r * row_step, row_step, column,
                 request_.first_column() + c * column_step, column_step,
                 offset));
      }
    }
    look_.mutable_cells()->Assign(window.begin(), window.end());
    return absl::OkStatus();
  }

  absl::StatusOr<double> Cell(const Axis& row, int64_t first_row,
                              int64_t row_step, const Axis& column,
                              int64_t first_column, int64_t column_step,
                              uint64_t offset) {
    double best = 0, weight = -1;
    const int64_t last_row = std::min(row.length, first_row + row_step);
    const int64_t last_column =
        std::min(column.length, first_column + column_step);
    // Neighbours in memory are read together, piece by piece, because a row of
    // a large tensor may not fit into memory.
    const bool dense = column.stride == 1;
    std::vector<double> run;
    for (int64_t r = first_row; r < last_row; ++r) {
      const uint64_t begin = offset + static_cast<uint64_t>(r) * row.stride;
      for (int64_t c = first_column; c < last_column;
           c += static_cast<int64_t>(run.size())) {
        run.resize(dense ? std::min<int64_t>(kPieceElements, last_column - c)
                         : 1);
        RP_RETURN_IF_ERROR(
            Read(begin + static_cast<uint64_t>(c) * column.stride,
                 absl::MakeSpan(run)));
        for (const double value : run) {
          if (Weight(value) <= weight) continue;
          weight = Weight(value);
          best = value;
        }
      }
    }
    return best;
  }

  const v1::TensorLookRequest& request_;
  const absl::string_view tensor_;
  const absl::string_view minus_;
  uint64_t elements_ = 0;
  std::vector<double> other_;
  v1::TensorLook look_;
};

}  // namespace

absl::StatusOr<v1::TensorLook> LookAtTensor(
    const v1::TensorLookRequest& request, absl::string_view tensor,
    absl::string_view minus) {
  return Look(request, tensor, minus).Make();
}

}  // namespace rankprobe
