// SPDX-License-Identifier: Apache-2.0
#include "cli/client/aligned_dumps.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output/given_names.h"
#include "cli/output/output.h"
#include "common/base/status_macros.h"
#include "common/text/counted.h"

namespace rankprobe {

void AddAlignFlags(CLI::App* verb, AlignFlags* flags) {
  CLI::Option* const rules =
      verb->add_option("--rules", flags->rules,
                       "align the dumps first by rules: a file, or vllm-llama, "
                       "vllm-qwen2, vllm-mixtral");
  verb->add_option(
          "--request", flags->options.request,
          "the request to compare: an id of requests.json, or a part of one")
      ->needs(rules);
  verb->add_option("--reference_request", flags->options.reference_request,
                   "the request on the reference side; without requests.json "
                   "the number of the sequence")
      ->needs(rules);
}

void PrintAligned(std::FILE* out, const analysis::AlignReport& report) {
  if (report.steps.empty()) return;
  Print(out,
        "Request %s: tokens %d to %d, %s, %s aligned with the reference; %s "
        "without a rule\n",
        report.request, report.steps.front().begin, report.steps.back().end - 1,
        Counted(report.steps.size(), "step"), Counted(report.rows, "row"),
        Counted(report.without_rule, "row"));
  if (report.left_out == 0) return;
  Print(out, "Left out: %d\n", report.left_out);
  for (const std::string& text : report.examples) Print(out, "  %s\n", text);
}

absl::StatusOr<AlignedDumps> AlignedDumps::Make(FileSystem* file_system,
                                                const AlignFlags& flags,
                                                const DumpLayout& target,
                                                const DumpLayout& reference) {
  RP_ASSIGN_OR_RETURN(const analysis::AlignRules rules,
                      analysis::ReadAlignRules(file_system, flags.rules));
  RP_ASSIGN_OR_RETURN(ScratchDirectory scratch,
                      ScratchDirectory::Make(file_system));
  AlignedDumps out(std::move(scratch));
  NameTemporary(out.target(), absl::StrCat("aligned ", target.path),
                GivenForm::kSteps);
  NameTemporary(out.reference(), absl::StrCat("aligned ", reference.path),
                GivenForm::kSteps);
  RP_ASSIGN_OR_RETURN(
      out.report_, analysis::AlignDumps(file_system, target, reference, rules,
                                        flags.options, out.scratch_.path()));
  return out;
}

}  // namespace rankprobe
