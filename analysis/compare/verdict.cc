// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/verdict.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/tensor/dtype.h"
#include "common/text/json_text.h"

namespace rankprobe::analysis {
namespace {

enum class Exempt { kNo, kInputs, kAll };

// Returns whether an operation is exempt: its outputs are not defined by its
// inputs, or it writes into a buffer that it is given.
Exempt ExemptionOf(absl::string_view entry, bool merged) {
  // msprobe's code has __setitem__, its documentation setitem; both are
  // accepted.
  static const auto* const kAll =
      new absl::flat_hash_set<absl::string_view>{"empty",
                                                 "empty_like",
                                                 "numpy",
                                                 "to",
                                                 "__setitem__",
                                                 "setitem",
                                                 "empty_with_format",
                                                 "new_empty_strided",
                                                 "new_empty",
                                                 "empty_strided"};
  static const auto* const kInputs = new absl::flat_hash_set<absl::string_view>{
      "_reduce_scatter_base", "_all_gather_base", "all_to_all_single",
      "batch_isend_irecv"};
  const size_t first = entry.find('.');
  if (first == absl::string_view::npos) return Exempt::kNo;
  absl::string_view op = entry.substr(first + 1);
  op = op.substr(0, op.find('.'));
  // In merged graphs, calls between modules carry their rank: "mul_rank2".
  if (merged) {
    const size_t at = op.rfind("_rank");
    if (at != absl::string_view::npos && at + 5 < op.size() &&
        std::all_of(op.begin() + static_cast<ptrdiff_t>(at + 5), op.end(),
                    absl::ascii_isdigit)) {
      op = op.substr(0, at);
    }
  }
  if (kAll->contains(op)) return Exempt::kAll;
  if (kInputs->contains(op)) return Exempt::kInputs;
  return Exempt::kNo;
}

bool IsOutput(const RowPair& pair) {
  return pair.target->state == RowState::kOutput;
}

// Returns why one of the two is not a complete tensor; empty if both are.
absl::string_view NotPutTogether(const RowPair& pair) {
  if (!pair.target->not_put_together.empty()) {
    return pair.target->not_put_together;
  }
  return pair.reference == nullptr ? absl::string_view()
                                   : pair.reference->not_put_together;
}

bool IsSpecial(const JsonValue& value) {
  if (value.is_number()) return !std::isfinite(value.number);
  if (!value.is_string()) return false;
  const std::string text =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(value.text));
  return text == "nan" || text == "inf" || text == "-inf";
}

void Mark(Verdict verdict, absl::string_view message, RowPair* pair) {
  pair->verdict = std::max(pair->verdict, verdict);
  pair->messages.push_back(absl::StrCat(VerdictName(verdict), ": ", message));
}

// Returns the ratio of the norms; 0 if unknown, infinite if the reference is
// zero.
double NormRatio(const RowPair& pair) {
  return pair.reference == nullptr ? 0 : pair.stats[kNorm].Ratio().value_or(0);
}

// The messages are exactly those of msprobe, including NPU and bench: they are
// a column of the table in which programs search for them.
class Judge {
 public:
  Judge(Exempt exempt, VerdictOptions options, absl::Span<RowPair> pairs)
      : exempt_(exempt), options_(options), pairs_(pairs) {
    for (RowPair& pair : pairs_) {
      if (!NotPutTogether(pair).empty()) continue;
      if (IsOutput(pair)) {
        outputs_.push_back(&pair);
      } else {
        inputs_.push_back(&pair);
      }
    }
  }

  void Run() {
    for (RowPair& pair : pairs_) {
      if (const absl::string_view why = NotPutTogether(pair); !why.empty()) {
        Mark(Verdict::kWarning, absl::StrCat("not assembled: ", why), &pair);
      }
    }
    if (options_.mode == DumpMode::kMd5) {
      CheckMd5();
      return;
    }
    if (options_.mode == DumpMode::kStructure) return;
    // Err_message lists findings in this order, which is msprobe's.
    CheckSpecials();
    if (options_.mode == DumpMode::kStatistics) CheckRelative();
    if (options_.mode == DumpMode::kTensor) CheckThousandth();
    CheckRequiresGrad();
    CheckScalars();
    CheckDtypes();
    if (!options_.merged) CheckShapes();
    if (options_.mode == DumpMode::kStatistics) CheckGrowth();
    if (options_.mode == DumpMode::kTensor) {
      CheckCosine();
      CheckData();
    }
  }

 private:
  template <typename Fn>
  void EachChecked(const Fn& fn) {
    if (exempt_ == Exempt::kAll) return;
    for (RowPair& pair : pairs_) {
      if (exempt_ == Exempt::kInputs && !IsOutput(pair)) continue;
      if (pair.reference != nullptr && NotPutTogether(pair).empty()) fn(&pair);
    }
  }

  // EachChecked would skip rows without a partner; they are judged here too,
  // and a checksum on only one side is a warning.
  void CheckMd5() {
    if (exempt_ == Exempt::kAll) return;
    for (RowPair& pair : pairs_) {
      if (exempt_ == Exempt::kInputs && !IsOutput(pair)) continue;
      const absl::string_view n = pair.target->md5;
      const absl::string_view b =
          pair.reference == nullptr ? absl::string_view() : pair.reference->md5;
      if (n == b) continue;
      if (n.empty() || b.empty()) {
        Mark(Verdict::kWarning,
             "The parameter of NPU does not match the bench.", &pair);
      } else {
        Mark(Verdict::kError,
             "The CRC-32 value of NPU differs from that of the bench.", &pair);
      }
    }
  }

  void CheckSpecials() {
    EachChecked([](RowPair* pair) {
      bool target = false;
      bool differ = pair->tensor.state == TensorMetrics::State::kSpecialsDiffer;
      for (const Stat stat : {kMax, kMin}) {
        const JsonValue& n = pair->target->stats[stat];
        const JsonValue& b = pair->reference->stats[stat];
        // A special value that the reference also has is not a fault of the
        // target.
        if ((!IsSpecial(n) && !IsSpecial(b)) || StatText(n) == StatText(b))
          continue;
        differ = true;
        target = target || IsSpecial(n);
      }
      if (target) {
        Mark(Verdict::kError,
             "There is nan/inf/-inf in the maximum or minimum value of NPU.",
             pair);
      } else if (differ) {
        Mark(Verdict::kError,
             "There is nan/inf/-inf in bench that NPU does not have.", pair);
      }
    });
  }

  // Compares outputs with inputs, as do three more checks; these are off where
  // inputs do not count.
  void CheckRelative() {
    if (exempt_ != Exempt::kNo) return;
    double in = 0;
    for (const RowPair* pair : inputs_) in = std::max(in, NormRatio(*pair));
    // The call already received different inputs, so it is not the cause.
    if (in >= 0.1) return;
    for (RowPair* pair : outputs_) {
      if (NormRatio(*pair) > 0.5) {
        Mark(Verdict::kError,
             "The NormRelativeErr of output is greater than 0.5.", pair);
      }
    }
  }

  void CheckThousandth() {
    if (exempt_ != Exempt::kNo || outputs_.empty()) return;
    // The documents and the message of msprobe say 0.6, its code tests 0.1
    // (docs/analysis.md, "Intended differences from msprobe 26.2"). The finding
    // concerns the call; as in msprobe it is recorded in the row of the first
    // output.
    if (Least(inputs_, kBelowOneThousandth) > 0.9 &&
        Least(outputs_, kBelowOneThousandth) < 0.6) {
      Mark(Verdict::kError,
           "The input/parameters of One Thousandth Err Ratio > 0.9 while the "
           "output < 0.6.",
           outputs_[0]);
    }
  }

  void CheckRequiresGrad() {
    EachChecked([](RowPair* pair) {
      const JsonValue& n = pair->target->requires_grad;
      const JsonValue& b = pair->reference->requires_grad;
      if (!n.is_null() && !b.is_null() && n.text != b.text) {
        Mark(Verdict::kError,
             "The Required_Grad of NPU and Bench are inconsistent", pair);
      }
    });
  }

  void CheckScalars() {
    if (exempt_ != Exempt::kNo) return;
    for (RowPair* pair : inputs_) {
      if (pair->reference == nullptr) continue;
      // The dtype of a value that is not a tensor is its Python type: "<class
      // 'int'>".
      if (!absl::StrContains(pair->target->dtype, "class") ||
          !absl::StrContains(pair->reference->dtype, "class") ||
          pair->target->shape != "[]") {
        continue;
      }
      if (PythonText(pair->target->stats[kMax]) !=
          PythonText(pair->reference->stats[kMax])) {
        Mark(Verdict::kError,
             "The scalar parameters of NPU and Bench are inconsistent.", pair);
      }
    }
  }

  void CheckDtypes() {
    EachChecked([](RowPair* pair) {
      if (pair->target->dtype.empty() || pair->reference->dtype.empty()) return;
      if (!AreOneDtype(pair->target->dtype, pair->reference->dtype)) {
        Mark(Verdict::kError, "The dtype of NPU and Bench are inconsistent.",
             pair);
      }
    });
  }

  void CheckShapes() {
    EachChecked([](RowPair* pair) {
      if (!pair->target->has_dtype || !pair->reference->has_dtype) return;
      if (pair->target->shape != pair->reference->shape) {
        Mark(Verdict::kError, "The shape of NPU and Bench are inconsistent.",
             pair);
      }
    });
  }

  void CheckGrowth() {
    if (exempt_ != Exempt::kNo || outputs_.empty()) return;
    double in = 0;
    double out = 0;
    for (const RowPair* pair : inputs_) in = std::max(in, NormRatio(*pair));
    for (const RowPair* pair : outputs_) out = std::max(out, NormRatio(*pair));
    // With inputs that match exactly, any rounding would exceed ten times their
    // error.
    if (in == 0 ? out > 0.1 : out / in > 10) {
      Mark(Verdict::kWarning,
           "The norm relative error of output is 10 times that of input.",
           outputs_[0]);
    }
  }

  void CheckCosine() {
    if (exempt_ != Exempt::kNo || outputs_.empty()) return;
    const double in = Least(inputs_, kCosine);
    if (in > 0.9 && in - Least(outputs_, kCosine) > 0.1) {
      Mark(Verdict::kWarning,
           "The input/parameters of Cosine > 0.9, and input/parameters - "
           "output > 0.1",
           outputs_[0]);
    }
  }

  // A tensor whose elements were not compared does not pass. Only its
  // statistics are known, and any difference in them counts.
  void CheckData() {
    EachChecked([](RowPair* pair) {
      if (!pair->data_missing) return;
      bool differs = false;
      for (const StatDiff& stat : pair->stats) {
        using Kind = StatDiff::Kind;
        differs = differs || (stat.kind != Kind::kNotCompared &&
                              stat.kind != Kind::kMissing && !stat.IsZero());
      }
      if (differs) {
        Mark(Verdict::kError,
             "the .pt file is not there, and the statistics differ.", pair);
      } else {
        Mark(Verdict::kWarning,
             "the .pt file is not there; the statistics are equal.", pair);
      }
    });
  }

  static double Least(const std::vector<RowPair*>& pairs, TensorMetric metric) {
    double least = 1;
    for (const RowPair* pair : pairs) {
      // A row without this metric (one element, no data) does not count.
      least = std::min(least, pair->tensor.Finite(metric).value_or(1));
    }
    return least;
  }

  const Exempt exempt_;
  const VerdictOptions options_;
  const absl::Span<RowPair> pairs_;
  std::vector<RowPair*> inputs_;
  std::vector<RowPair*> outputs_;
};

}  // namespace

absl::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWarning:
      return "warning";
    case Verdict::kError:
      return "error";
    default:
      return "pass";
  }
}

std::string RowPair::MessagesText() const {
  std::string out = "[";
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0) out.append(", ");
    AppendJsonString(messages[i], &out);
  }
  out.push_back(']');
  return out;
}

Verdict JudgeEntry(absl::string_view entry, VerdictOptions options,
                   absl::Span<RowPair> pairs) {
  Judge(ExemptionOf(entry, options.merged), options, pairs).Run();
  Verdict worst = Verdict::kPass;
  for (const RowPair& pair : pairs) worst = std::max(worst, pair.verdict);
  return worst;
}

void ComparePair(DumpMode mode, StatSet stats, RowPair* pair) {
  if (pair->reference == nullptr) {
    pair->requires_grad_consistent = pair->target->requires_grad.is_null();
    for (size_t i = 0; i < pair->stats.size(); ++i) {
      if (stats.Has(i)) pair->stats[i].kind = StatDiff::Kind::kMissing;
    }
    return;
  }
  const JsonValue& n = pair->target->requires_grad;
  const JsonValue& b = pair->reference->requires_grad;
  pair->requires_grad_consistent = n.kind == b.kind && n.text == b.text;
  if (mode != DumpMode::kStatistics && mode != DumpMode::kTensor) return;
  for (size_t i = 0; i < pair->stats.size(); ++i) {
    if (!stats.Has(i)) continue;
    if (!NotPutTogether(*pair).empty() &&
        (pair->target->stats[i].is_null() ||
         pair->reference->stats[i].is_null())) {
      pair->stats[i].kind = StatDiff::Kind::kMissing;
      continue;
    }
    pair->stats[i] =
        CompareStat(pair->target->stats[i], pair->reference->stats[i]);
  }
}

}  // namespace rankprobe::analysis
