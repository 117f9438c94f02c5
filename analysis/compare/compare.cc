// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/compare.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kMissing = "N/A";

std::string StackText(const std::vector<std::string>& frames) {
  std::string out = "[";
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i > 0) out.append(", ");
    // A table row shows the frames unchanged.
    out.push_back('\'');
    out.append(frames[i]);
    out.push_back('\'');
  }
  out.push_back(']');
  return out;
}

std::string DtypeText(const DumpRow* row) {
  return std::string(row == nullptr || !row->has_dtype ? kMissing : row->dtype);
}
std::string ShapeText(const DumpRow* row) {
  return std::string(row == nullptr || !row->has_dtype ? kMissing : row->shape);
}
std::string GradText(const DumpRow* row) {
  return std::string(row == nullptr || row->requires_grad.is_null()
                         ? kMissing
                         : row->requires_grad.text);
}
std::string Md5Text(const DumpRow* row) {
  return std::string(row == nullptr || row->md5.empty() ? kMissing : row->md5);
}

void AddStats(const DumpRow* row, StatSet stats,
              std::vector<std::string>* cells) {
  for (size_t i = 0; i < kStatCount; ++i) {
    if (!stats.Has(i)) continue;
    cells->push_back(row == nullptr ? std::string(kMissing)
                                    : StatText(row->stats[i]));
  }
}

class RowWriter {
 public:
  RowWriter(const DumpReader& target, const DumpReader& reference,
            TableSink* sink)
      : target_(target),
        stats_(target.stats() | reference.stats()),
        sink_(sink) {}

  absl::Status Write(const EntryComparison& entry) {
    bool first = true;
    for (const RowPair& pair : entry.pairs()) {
      RP_RETURN_IF_ERROR(WriteRow(entry, pair, first));
      first = false;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteRow(const EntryComparison& entry, const RowPair& pair,
                        bool first) {
    const DumpRow* const n = pair.target;
    const DumpRow* const b = pair.reference;
    const DumpMode mode = target_.mode();
    cells_.clear();
    cells_.emplace_back(n->name);
    cells_.emplace_back(b == nullptr ? kMissing : b->name);
    cells_.push_back(DtypeText(n));
    cells_.push_back(DtypeText(b));
    cells_.push_back(ShapeText(n));
    cells_.push_back(ShapeText(b));
    cells_.push_back(GradText(n));
    cells_.push_back(GradText(b));
    if (mode == DumpMode::kMd5) {
      cells_.push_back(Md5Text(n));
      cells_.push_back(Md5Text(b));
    } else {
      if (mode == DumpMode::kTensor) {
        for (size_t i = 0; i < kTensorMetricCount; ++i) {
          cells_.push_back(FormatMetric(pair.tensor, i));
        }
      } else {
        for (size_t i = 0; i < kStatCount; ++i) {
          if (stats_.Has(i)) cells_.push_back(DifferenceText(pair.stats[i]));
        }
        for (size_t i = 0; i < kStatCount; ++i) {
          if (stats_.Has(i)) cells_.push_back(RelativeText(pair.stats[i]));
        }
      }
      AddStats(n, stats_, &cells_);
      AddStats(b, stats_, &cells_);
    }
    cells_.emplace_back(pair.requires_grad_consistent ? "True" : "False");
    AddVerdict(pair);
    if (target_.has_stack()) {
      // Only the first row of a call has the stack.
      const std::vector<std::string>* const stack =
          first ? target_.Stack(entry.entry()) : nullptr;
      cells_.push_back(stack == nullptr ? std::string(kMissing)
                                        : StackText(*stack));
    }
    if (mode == DumpMode::kTensor) {
      cells_.push_back(absl::StrCat("['", n->data_name, "', '",
                                    b == nullptr ? kMissing : b->data_name,
                                    "']"));
    }
    return sink_->AddRow(cells_);
  }

  // A value that was not seen is never reported as equal.
  void AddVerdict(const RowPair& pair) {
    if (pair.reference == nullptr && pair.messages.empty()) {
      cells_.emplace_back(VerdictName(Verdict::kWarning));
      cells_.emplace_back("[\"warning: No bench data matched.\"]");
      return;
    }
    cells_.emplace_back(VerdictName(pair.verdict));
    cells_.push_back(pair.MessagesText());
  }

  const DumpReader& target_;
  const StatSet stats_;
  TableSink* const sink_;
  std::vector<std::string> cells_;
};

void Count(const EntryComparison& entry, CompareCounts* counts) {
  for (const RowPair& pair : entry.pairs()) {
    ++counts->rows;
    if (pair.reference == nullptr) {
      ++counts->unmatched;
    } else if (pair.verdict == Verdict::kError) {
      ++counts->error;
    } else if (pair.verdict == Verdict::kWarning) {
      ++counts->warning;
    } else {
      ++counts->pass;
    }
  }
}

}  // namespace

std::vector<std::string> CompareHeader(DumpMode mode, StatSet stats,
                                       bool has_stack) {
  std::vector<std::string> header = {
      "NPU Name",          "Bench Name",         "NPU Dtype",
      "Bench Dtype",       "NPU Tensor Shape",   "Bench Tensor Shape",
      "NPU Requires_grad", "Bench Requires_grad"};
  const auto each = [stats](const auto& fn) {
    for (size_t i = 0; i < kStatCount; ++i) {
      if (stats.Has(i)) fn(kStatInfo[i]);
    }
  };
  const auto add = [&header](std::initializer_list<const char*> names) {
    header.insert(header.end(), names.begin(), names.end());
  };
  if (mode == DumpMode::kMd5) {
    add({"NPU MD5", "BENCH MD5"});
  } else {
    if (mode == DumpMode::kTensor) {
      for (const absl::string_view name : kTensorMetricNames) {
        header.emplace_back(name);
      }
    } else {
      each([&](const StatInfo& s) { header.emplace_back(s.difference); });
      each([&](const StatInfo& s) { header.emplace_back(s.relative); });
    }
    for (const absl::string_view side : {"NPU ", "Bench "}) {
      each([&](const StatInfo& s) {
        header.push_back(absl::StrCat(side, s.column));
      });
    }
  }
  add({"Requires_grad Consistent", "Result", "Err_message"});
  if (has_stack) add({"NPU_Stack_Info"});
  if (mode == DumpMode::kTensor) add({"Data_name"});
  return header;
}

absl::Status CheckComparable(const DumpReader& target,
                             const DumpReader& reference) {
  if (target.task() != reference.task()) {
    return absl::InvalidArgumentError(absl::StrCat(
        target.path(), " and ", reference.path(), ": their tasks differ (",
        target.task(), ", ", reference.task(), ")"));
  }
  if (target.mode() != reference.mode()) {
    return absl::InvalidArgumentError(
        absl::StrCat(target.path(), " and ", reference.path(),
                     ": only one of them has md5 checksums"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CompareCounts> CompareDumps(
    FileSystem* file_system, const DumpReader& target,
    const DumpReader& reference, const MatchOptions& options, TableSink* sink,
    const EntryFn& on_entry, const ProgressFn& progress) {
  RP_RETURN_IF_ERROR(CheckComparable(target, reference));
  if (target.mode() == DumpMode::kStructure) {
    return absl::InvalidArgumentError(
        absl::StrCat(target.path(),
                     ": a dump of task structure has no values to compare; use "
                     "graph_visualize"));
  }
  const EntryMatch match = EntryMatch::Make(target, reference, options);
  EntryComparison entry(file_system, &target, &reference, &options);
  RowWriter writer(target, reference, sink);
  CompareCounts counts;
  for (size_t i = 0; i < target.size(); ++i) {
    RP_RETURN_IF_ERROR(entry.Load(i, match.ReferenceOf(i)));
    Count(entry, &counts);
    if (sink != nullptr) RP_RETURN_IF_ERROR(writer.Write(entry));
    if (on_entry) RP_RETURN_IF_ERROR(on_entry(entry, i));
    if (progress && (i % 256 == 255 || i + 1 == target.size())) {
      progress(i + 1, target.size());
    }
  }
  return counts;
}

}  // namespace rankprobe::analysis
