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

// How far two rows are apart, relative to the size of the reference one; unset
// when one of them says nothing. Infinite: they cannot be equal (dtype, shape,
// checksum, a word).
std::optional<double> RowDifference(const RowPair& pair, DumpMode mode);

// Their statistics are the same because an infinity is in both, whatever else is
// (a mask of other places), and neither checksums nor elements say more.
bool IsHiddenByInfinity(const RowPair& pair, DumpMode mode);

// Both rows have a digest, and they are not the same.
bool DigestsDiffer(const RowPair& pair);

// A bound from the dtype of `output` and the sums that made it of `operands`.
double AutoTolerance(const DumpRow& output,
                     absl::Span<const DumpRow* const> operands);

// The same between two programs, of which neither has all operands (a server packs
// its weights): sums are as long as the last dimension of what went in or came
// out, each program rounds what it computed, and what is narrower than float32 is
// added up in float32.
double TwoProgramTolerance(const DumpRow& output,
                           absl::Span<const DumpRow* const> operands);

// The gradient of a bias is a sum over the rows of what came into the backward
// call: how many times larger the norm of these is than that of their sum, which
// an error of theirs is so much a larger part of. 1 for other rows, and where
// nothing cancels.
double Cancellation(const RowPair& pair,
                    absl::Span<const DumpRow* const> operands);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_ROOT_CAUSE_ROW_DIFFERENCE_H_
