// SPDX-License-Identifier: Apache-2.0
// Difference of two values of a dump, and the difference that rounding alone
// allows (docs/analysis.md, "Tolerances"). Pure functions.
#ifndef RANKPROBE_ANALYSIS_ROOT_CAUSE_ROW_DIFFERENCE_H_
#define RANKPROBE_ANALYSIS_ROOT_CAUSE_ROW_DIFFERENCE_H_

#include <limits>
#include <optional>

#include "absl/types/span.h"
#include "analysis/compare/verdict.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the distance of two rows relative to the size of the reference row,
// or nullopt if one of them has no values. Infinite if they cannot be equal
// (dtype, shape, checksum, a word).
std::optional<double> RowDifference(const RowPair& pair, DumpMode mode);

// Whether the statistics are equal only because both contain an infinity,
// whatever the other elements are (a mask at other positions), and neither
// checksums nor elements show more.
bool IsHiddenByInfinity(const RowPair& pair, DumpMode mode);

// Whether both rows have a digest and the digests differ.
bool DigestsDiffer(const RowPair& pair);

// Returns a bound from the dtype of `output` and the length of the sums over
// `operands` that produced it.
double AutoTolerance(const DumpRow& output,
                     absl::Span<const DumpRow* const> operands);

// Returns the bound between two programs, neither of which records all operands
// (a server packs its weights). It assumes sums as long as the last dimension
// of the inputs and outputs; each program rounds its results and accumulates
// types narrower than float32 in float32.
double TwoProgramTolerance(const DumpRow& output,
                           absl::Span<const DumpRow* const> operands);

// Returns by how much cancellation magnifies relative errors. The gradient of a
// bias is a sum over the rows that the backward call received. If the norm of
// these is larger than that of their sum, their error is a larger part of the
// sum by the same factor. Returns 1 for other rows and where nothing cancels.
double Cancellation(const RowPair& pair,
                    absl::Span<const DumpRow* const> operands);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_ROW_DIFFERENCE_H_
