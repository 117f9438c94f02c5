// SPDX-License-Identifier: Apache-2.0
#include "cli/client/request_diagnosis.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/call_place.h"
#include "cli/client/cache_faults.h"
#include "cli/client/dump_diagnosis.h"
#include "cli/client/request_tokens.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"

namespace rankprobe {

absl::StatusOr<RequestInDump> RequestInDump::Find(FileSystem* file_system,
                                                  const DumpLayout& layout,
                                                  const std::string& given,
                                                  const std::string& wanted) {
  RP_ASSIGN_OR_RETURN(const std::vector<analysis::StepTokens> steps,
                      analysis::ReadStepRequests(file_system, layout));
  if (steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        given,
        ": no step names requests (requests.json): it is not a recording "
        "of a server"));
  }
  RequestInDump out;
  RP_ASSIGN_OR_RETURN(out.id_, analysis::ChooseRequest(steps, given, wanted));
  for (const analysis::StepTokens& step : steps) {
    const analysis::RequestRows* const rows = analysis::RowsOf(step, out.id_);
    if (rows == nullptr || rows->begin == rows->end) continue;
    Step& one = out.steps_[analysis::StepOf(step.place)];
    one.rows = *rows;
    one.together = static_cast<int64_t>(step.rows.size());
    one.ranks.kind = layout.kind == DumpLayout::Kind::kSteps
                         ? DumpLayout::Kind::kRanks
                         : layout.kind;
    one.ranks.debug = layout.debug;
    one.ranks.path = layout.kind == DumpLayout::Kind::kSteps
                         ? absl::StrCat(layout.path, "/step", step.place.step)
                         : layout.path;
    for (const DumpPlace& place : layout.places) {
      if (place.step == step.place.step) one.ranks.places.push_back(place);
    }
  }
  if (out.steps_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given, ": no step has rows of request ", out.id_));
  }
  return out;
}

std::string RequestInDump::TokensOf(int64_t step) const {
  const auto it = steps_.find(step);
  if (it == steps_.end()) return "";
  const analysis::RequestRows& rows = it->second.rows;
  const int64_t last = rows.position + rows.end - rows.begin - 1;
  return last == rows.position
             ? absl::StrCat("token ", last)
             : absl::StrCat("tokens ", rows.position, " to ", last);
}

absl::Status RequestInDump::Diagnose(FileSystem* file_system,
                                     DiagnosisReport* report) const {
  int64_t tokens = 0;
  int64_t shared = 0;
  for (const auto& [step, one] : steps_) {
    tokens += one.rows.end - one.rows.begin;
    if (one.together > 1) ++shared;
  }
  report->Note(
      absl::StrCat("Request ", VisibleText(id_), ": ", Counted(tokens, "token"),
                   " in ", Counted(steps_.size(), "step"), ", ",
                   steps_.begin()->first, " to ", steps_.rbegin()->first));
  if (shared > 0) {
    report->UnjudgedYet(
        absl::StrCat("to which request a value belongs: in ", shared,
                     " of these steps the tensors hold the complete batch"),
        "rankprobe enable --request ID records only the rows of this request; "
        "if the recording has tensors, run:NAME extracts them");
  }
  CacheFaults cache;
  for (const auto& [step, one] : steps_) {
    RP_ASSIGN_OR_RETURN(CacheFaults of_step,
                        ReadCacheFaults(file_system, one.ranks));
    cache.Add(std::move(of_step));
  }
  cache.AddTo(id_, report);
  if (!cache.has_witness) {
    report->Unjudged(
        "whether the KV cache held what was written: it had no witness",
        "vllm serve .. --additional-config '{\"dump_kv_cache\": true}'");
  } else if (cache.faults.empty()) {
    report->Healthy(absl::StrCat(
        "the KV cache held what was written, of the right tokens: ",
        cache.blocks_checked, " blocks that these steps read"));
  }
  DumpLayout all;
  for (const auto& [step, one] : steps_) {
    all.places.insert(all.places.end(), one.ranks.places.begin(),
                      one.ranks.places.end());
  }
  RP_RETURN_IF_ERROR(DiagnoseTokens(file_system, all, id_, report));
  for (const auto& [step, one] : steps_) {
    const int before = report->findings();
    RP_RETURN_IF_ERROR(
        DiagnoseOverflow(file_system, one.ranks, step, report).status());
    if (report->findings() > before) return absl::OkStatus();
  }
  report->Healthy(
      absl::StrCat("no call of its ", Counted(steps_.size(), "step"),
                   " makes a NaN or an infinity that later calls receive"));
  return absl::OkStatus();
}

}  // namespace rankprobe
