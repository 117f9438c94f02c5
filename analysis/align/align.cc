// SPDX-License-Identifier: Apache-2.0
#include "analysis/align/align.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "analysis/align/aligned_tensor.h"
#include "analysis/align/step_files.h"
#include "analysis/align/token_rows.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxExamples = 10;

// Tokens of the reference that correspond to tokens [begin, ..) of the target.
struct Piece {
  size_t step = 0;  // of the reference
  int64_t begin = 0;
  int64_t end = 0;
};
struct StepPlan {
  size_t step = 0;  // of the target
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<Piece> pieces;
};

absl::string_view SectionOf(RowState state) {
  switch (state) {
    case RowState::kInput:
      return "input_kwargs";
    case RowState::kOutput:
      return "output";
    case RowState::kParameters:
      return "parameters";
    default:
      return "";
  }
}

// Returns the place in the section, "0" for the row
// "Module.x.forward.0.input.0", or an empty text for a name of another form.
absl::string_view PlaceOf(absl::string_view row, absl::string_view entry) {
  if (!absl::ConsumePrefix(&row, entry)) return "";
  for (const absl::string_view section :
       {".input.", ".output.", ".parameters."}) {
    if (absl::ConsumePrefix(&row, section)) return row;
  }
  return absl::StartsWith(row, ".output") ? "0" : "";
}

class Aligner {
 public:
  Aligner(FileSystem* file_system, const AlignRules& rules)
      : file_system_(file_system), rules_(rules) {}

  absl::Status Plan(const DumpLayout& target, const DumpLayout& reference,
                    const AlignOptions& options) {
    RP_ASSIGN_OR_RETURN(
        target_, ReadStepTokens(file_system_, target, rules_.target_tokens));
    RP_ASSIGN_OR_RETURN(reference_, ReadStepTokens(file_system_, reference,
                                                   rules_.reference_tokens));
    RP_ASSIGN_OR_RETURN(report_.request,
                        ChooseRequest(target_, target.path, options.request));
    RP_ASSIGN_OR_RETURN(
        report_.reference_request,
        ChooseRequest(reference_, reference.path, options.reference_request));
    RP_RETURN_IF_ERROR(OpenReference());
    for (size_t i = 0; i < target_.size(); ++i) PlanStep(i);
    if (plans_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path, ": the reference has none of the tokens of request ",
          report_.request));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AlignReport> Write(const std::string& output) {
    for (const StepPlan& plan : plans_) {
      RP_RETURN_IF_ERROR(WriteStep(plan, output));
    }
    if (report_.rows == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          rules_.path, ": no rule fits a row of the target",
          report_.examples.empty() ? "" : "; " + report_.examples[0]));
    }
    return std::move(report_);
  }

 private:
  absl::Status OpenReference() {
    for (const StepTokens& step : reference_) {
      RP_ASSIGN_OR_RETURN(auto rows, StepRows::Open(file_system_, step));
      payloads_ = payloads_ && rows->dump().mode() == DumpMode::kTensor;
      reference_rows_.push_back(std::move(rows));
    }
    for (const StepTokens& step : target_) {
      RP_ASSIGN_OR_RETURN(
          const auto dump,
          DumpReader::Open(file_system_, step.place.directory, {}));
      payloads_ = payloads_ && dump->mode() == DumpMode::kTensor;
    }
    return absl::OkStatus();
  }

  void PlanStep(size_t index) {
    const RequestRows* const rows = RowsOf(target_[index], report_.request);
    if (rows == nullptr || rows->begin == rows->end) return;
    StepPlan plan{index, rows->position, rows->position, {}};
    const int64_t end = rows->position + rows->end - rows->begin;
    while (plan.end < end) {
      std::optional<Piece> piece;
      for (size_t i = 0; i < reference_.size() && !piece.has_value(); ++i) {
        const RequestRows* const at =
            RowsOf(reference_[i], report_.reference_request);
        if (at == nullptr || plan.end < at->position ||
            plan.end >= at->position + at->end - at->begin) {
          continue;
        }
        const int64_t begin = at->begin + plan.end - at->position;
        piece = {i, begin, std::min(at->end, begin + end - plan.end)};
      }
      if (!piece.has_value()) break;
      plan.end += piece->end - piece->begin;
      plan.pieces.push_back(*piece);
    }
    if (plan.end < end) {
      LeaveOut(absl::StrCat("step ", target_[index].place.step,
                            ": the reference has no token ", plan.end));
    }
    if (!plan.pieces.empty()) plans_.push_back(std::move(plan));
  }

  void LeaveOut(std::string text) {
    ++report_.left_out;
    if (report_.examples.size() < kMaxExamples) {
      report_.examples.push_back(std::move(text));
    }
  }

  absl::Status WriteStep(const StepPlan& plan, const std::string& output) {
    const StepTokens& step = target_[plan.step];
    RP_ASSIGN_OR_RETURN(const auto rows, StepRows::Open(file_system_, step));
    const std::string place =
        absl::StrCat("/step", step.place.step, "/", step.place.Name());
    StepWriter n(file_system_, output + "/target" + place, payloads_);
    StepWriter b(file_system_, output + "/reference" + place, payloads_);
    RP_RETURN_IF_ERROR(n.Begin(rows->dump()));
    RP_RETURN_IF_ERROR(b.Begin(rows->dump()));
    for (size_t i = 0; i < rows->dump().size(); ++i) {
      RP_RETURN_IF_ERROR(WriteEntry(plan, rows.get(), i, &n, &b));
    }
    RP_RETURN_IF_ERROR(n.End(step.place.directory));
    RP_RETURN_IF_ERROR(b.End(step.place.directory));
    AlignReport::Step& told = report_.steps.emplace_back();
    told.step = step.place.step;
    told.begin = plan.begin;
    told.end = plan.end;
    for (const Piece& piece : plan.pieces) {
      told.reference_steps.push_back(reference_[piece.step].place.step);
    }
    return absl::OkStatus();
  }

  absl::Status WriteEntry(const StepPlan& plan, StepRows* target, size_t index,
                          StepWriter* n, StepWriter* b) {
    const absl::string_view entry = target->dump().name(index);
    RP_ASSIGN_OR_RETURN(const auto rows, target->EntryRows(index));
    bool begun = false;
    for (const DumpRow& row : rows) {
      const absl::string_view section = SectionOf(row.state);
      const absl::string_view place = PlaceOf(row.name, entry);
      const std::optional<AlignMatch> match = rules_.Find(row.name);
      if (!match.has_value() || section.empty() || place.empty() ||
          absl::StrContains(row.name, '/')) {
        ++report_.without_rule;
        continue;
      }
      absl::StatusOr<Laid> laid = Lay(plan, target, row, *match);
      if (!laid.ok()) {
        // A file that may not be read or is damaged ends the alignment; any
        // other error leaves out only this row.
        if (!absl::IsFailedPrecondition(laid.status())) return laid.status();
        LeaveOut(absl::StrCat(row.name, ": ", laid.status().message()));
        continue;
      }
      if (!begun) {
        n->BeginEntry(entry);
        b->BeginEntry(entry);
        begun = true;
      }
      RP_RETURN_IF_ERROR(n->Row(section, place, row.name, laid->target, ""));
      RP_RETURN_IF_ERROR(b->Row(section, place, row.name, laid->reference,
                                absl::StrJoin(match->reference, " + ")));
      ++report_.rows;
    }
    if (begun) {
      n->EndEntry();
      b->EndEntry();
    }
    return absl::OkStatus();
  }

  struct Laid {
    AlignedTensor target;
    AlignedTensor reference;
  };
  // Aligns both sides of one row. Returns FAILED_PRECONDITION with the reason
  // if they cannot be aligned.
  absl::StatusOr<Laid> Lay(const StepPlan& plan, StepRows* target,
                           const DumpRow& row, const AlignMatch& match) {
    Laid out;
    const StepTokens& step = target->step();
    const RequestRows& request = *RowsOf(step, report_.request);
    RP_ASSIGN_OR_RETURN(out.target,
                        target->Tensor(row, v1::DTYPE_UNSPECIFIED, payloads_));
    const int64_t end = request.begin + plan.end - plan.begin;
    switch (match.rule->tokens) {
      case RowTokens::kTokens:
        RP_RETURN_IF_ERROR(
            Named("", TakeTokens(step, request.begin, end, &out.target)));
        break;
      case RowTokens::kLast:
        RP_RETURN_IF_ERROR(
            Named("", TakeLast(step, request, end - 1, &out.target)));
        break;
      case RowTokens::kNone:
        break;
    }
    std::vector<AlignedTensor> parts;
    for (const std::string& name : match.reference) {
      RP_ASSIGN_OR_RETURN(AlignedTensor part,
                          Reference(plan, name, *match.rule, out.target.dtype));
      if (match.rule->split.has_value()) {
        RP_RETURN_IF_ERROR(Named(name, Split(*match.rule->split, &part)));
      }
      parts.push_back(std::move(part));
    }
    absl::StatusOr<AlignedTensor> whole = Concat(parts, match.rule->concat_dim);
    RP_RETURN_IF_ERROR(Named(match.reference[0], whole.status()));
    out.reference = *std::move(whole);
    if (!match.rule->transpose.empty()) {
      RP_RETURN_IF_ERROR(
          Named(match.reference[0],
                Transpose(match.rule->transpose, &out.reference)));
    }
    // One side may keep heads separate: [tokens, heads, size].
    std::vector<int64_t>& n = out.target.shape;
    std::vector<int64_t>& b = out.reference.shape;
    if (n != b && !n.empty() && !b.empty() && n[0] == b[0] &&
        out.target.elements() == out.reference.elements()) {
      b = n;
    }
    if (n != b) {
      return absl::FailedPreconditionError(absl::StrCat(
          "has shape ", ShapeText(n), ", what line ", match.rule->line, " of ",
          rules_.path, " makes of the reference ", ShapeText(b)));
    }
    return out;
  }

  // Names the row in an error that concerns only this row, so that the row is
  // left out and the alignment continues.
  static absl::Status Named(absl::string_view name,
                            const absl::Status& status) {
    if (!absl::IsInvalidArgument(status) &&
        !absl::IsFailedPrecondition(status)) {
      return status;
    }
    return absl::FailedPreconditionError(
        absl::StrCat(name, name.empty() ? "" : " ", status.message()));
  }

  absl::StatusOr<AlignedTensor> Reference(const StepPlan& plan,
                                          const std::string& name,
                                          const AlignRule& rule,
                                          v1::DType dtype) {
    std::vector<AlignedTensor> pieces;
    for (const Piece& piece : plan.pieces) {
      // Parameters are equal in all steps; the last token is in the last step.
      if (rule.tokens == RowTokens::kLast && &piece != &plan.pieces.back()) {
        continue;
      }
      StepRows& rows = *reference_rows_[piece.step];
      RP_ASSIGN_OR_RETURN(const DumpRow* const row, rows.Find(name));
      if (row == nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat("the reference has no ", name));
      }
      absl::StatusOr<AlignedTensor> tensor =
          rows.Tensor(*row, dtype, payloads_);
      RP_RETURN_IF_ERROR(Named(name, tensor.status()));
      const RequestRows& request =
          *RowsOf(rows.step(), report_.reference_request);
      absl::Status taken;
      if (rule.tokens == RowTokens::kTokens) {
        taken = TakeTokens(rows.step(), piece.begin, piece.end, &*tensor);
      } else if (rule.tokens == RowTokens::kLast) {
        taken = TakeLast(rows.step(), request, piece.end - 1, &*tensor);
      }
      RP_RETURN_IF_ERROR(Named(name, taken));
      pieces.push_back(*std::move(tensor));
      if (rule.tokens == RowTokens::kNone) break;
    }
    absl::StatusOr<AlignedTensor> all = Concat(pieces, 0);
    RP_RETURN_IF_ERROR(Named(name, all.status()));
    return all;
  }

  FileSystem* const file_system_;
  const AlignRules& rules_;
  std::vector<StepTokens> target_;
  std::vector<StepTokens> reference_;
  std::vector<std::unique_ptr<StepRows>> reference_rows_;
  std::vector<StepPlan> plans_;
  bool payloads_ = true;
  AlignReport report_;
};

}  // namespace

absl::StatusOr<AlignReport> AlignDumps(FileSystem* file_system,
                                       const DumpLayout& target,
                                       const DumpLayout& reference,
                                       const AlignRules& rules,
                                       const AlignOptions& options,
                                       const std::string& output) {
  Aligner aligner(file_system, rules);
  RP_RETURN_IF_ERROR(aligner.Plan(target, reference, options));
  return aligner.Write(output);
}

}  // namespace rankprobe::analysis
