// SPDX-License-Identifier: Apache-2.0
#include "cli/output/diagnosis_report.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"

namespace rankprobe {
namespace {

// The smaller, the nearer to a cause at one step: a rule names the fault, and a
// difference from a reference shows what came of it.
int WeightOf(const DiagnosisReport::Finding& finding) {
  constexpr absl::string_view kOrder[] = {"kv cache",
                                          "rule: optimizer-step-skipped",
                                          "scan: changed",
                                          "rule: weight-after-forward",
                                          "rule: message-changed",
                                          "rule: all-reduce-wrong",
                                          "rule: gathered-wrong",
                                          "rule: scattered-wrong",
                                          "rule: label-shift",
                                          "rule: output-constant",
                                          "rule: loss-of-probabilities",
                                          "rule: loss-broadcast",
                                          "rule: sequence-dimension",
                                          "rule: view-mixes",
                                          "rule: padding-attended",
                                          "rule: attention-sees-future",
                                          "rule: softmax-dimension",
                                          "rule: positions-merge",
                                          "rule: labels-of-one-rank",
                                          "rule: tokens-weigh-unequally",
                                          "rule: micro-batches-lost",
                                          "rule: gradients-not-zeroed",
                                          "rule: gradient-rounded",
                                          "rule: clip-uneven",
                                          "rule: clip-norm",
                                          "rule: clip-scaled",
                                          "rule: gradient-scaled",
                                          "rule: replicas-never-alike",
                                          "rule: tied-weights-part",
                                          "rule: gradient-stale",
                                          "rule: gradient-of-one-rank",
                                          "rule: gradient-exchanged",
                                          "rule: gradients-mismatched",
                                          "rule: gradient-lost",
                                          "rule: learning-rate-parts",
                                          "rule: loss-scale-parts",
                                          "rule: part-not-sent",
                                          "rule: gradients-not-reduced",
                                          "rule: gradient-not-mean",
                                          "rule: buffer-parts",
                                          "rule: residual-detached",
                                          "rule: gradient-missing",
                                          "rule: updates-rounded",
                                          "rule: update-zero",
                                          "rule: frozen-moves",
                                          "rule: gradient-zero",
                                          "rule: cast-stale",
                                          "rule: recomputation-differs",
                                          "rule: model-in-eval",
                                          "rule: state-not-continued",
                                          "first-divergence",
                                          "scan: ranks part",
                                          "scan: not alike",
                                          "replicas",
                                          "rule: reduced-gradient-parts",
                                          "scan: disappeared",
                                          "overflow_check",
                                          "tokens",
                                          "scan: non-finite",
                                          "rule: learning-rate-zero",
                                          "rule: schedule-restarts",
                                          "rule: schedule-turns-back",
                                          "rule: schedule-ends-early",
                                          "rule: positions-along-batch",
                                          "rule: positions-of-parts",
                                          "rule: documents-mix",
                                          "rule: layers-untrained",
                                          "rule: target-moves",
                                          "rule: likelihood-minimised",
                                          "rule: term-inverted",
                                          "rule: pair-targets",
                                          "rule: logits-bounded",
                                          "rule: gradient-reused",
                                          "rule: message-overwritten",
                                          "rule: copies-summed",
                                          "rule: copies-gathered",
                                          "rule: bias-summed",
                                          "rule: update-undone",
                                          "rule: perturbation-kept",
                                          "rule: follower-parts",
                                          "rule: parts-not-scaled",
                                          "rule: losses-part",
                                          "rule: optimizer-anew",
                                          "rule: clip-misplaced",
                                          "rule: hooks-grow",
                                          "rule: input-scale",
                                          "rule: input-rescaled",
                                          "rule: evaluation-input",
                                          "rule: input-constant",
                                          "rule: target-constant",
                                          "rule: random-repeats",
                                          "rule: loss-constant",
                                          "rule: target-unreachable",
                                          "rule: units-alike",
                                          "rule: layer-gives-zeros",
                                          "rule: gradients-vanish",
                                          "rule: evaluation-in-training",
                                          "rule: dropout-inverted",
                                          "rule: momentum-inverted",
                                          "rule: statistics-left",
                                          "rule: average-inverted",
                                          "rule: padding-in-loss",
                                          "rule: padding-pooled",
                                          "rule: norm-over-places",
                                          "scan: vanished",
                                          "rule: same-batch-on-ranks",
                                          "rule: batch-repeated",
                                          "rule: batches-in-one-order",
                                          "rule: batches-of-one-class",
                                          "rule: block-frozen",
                                          "rule: micro-batches-scaled",
                                          "rule: micro-batch-weights",
                                          "rule: window-incomplete",
                                          "rule: gradient-multiple",
                                          "rule: gradient-factor-unlike",
                                          "rule: worse-than-guessing",
                                          "scan: rank moves",
                                          "scan: move"};
  int weight = 0;
  for (const absl::string_view by : kOrder) {
    if (finding.by() == by) return weight;
    ++weight;
  }
  return weight;
}

// "Module.fc.Linear.forward.0" of the name of a value in it.
std::string CallOf(absl::string_view name) {
  for (const absl::string_view part :
       {".input", ".output", ".parameters", ".parameters_grad"}) {
    const size_t at = name.rfind(part);
    if (at != absl::string_view::npos && at > 0)
      return std::string(name.substr(0, at));
  }
  return std::string(name);
}

// "layers.1" of "Update.layers.1.bias.0.debug.update"; "" of the model's own
// parameter. It ignores what belongs to no parameter.
std::optional<std::string> OwnerOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "Parameter.") &&
      !absl::ConsumePrefix(&name, "Update.") &&
      !absl::ConsumePrefix(&name, "Buffer."))
    return std::nullopt;
  name = name.substr(0, name.rfind(".0.debug."));
  const size_t dot = name.rfind('.');
  return std::string(name.substr(0, dot == absl::string_view::npos ? 0 : dot));
}

}  // namespace

DiagnosisReport::Finding* DiagnosisReport::Add(std::string by, int64_t step,
                                               int64_t rank, std::string name,
                                               std::string what, bool exact) {
  Finding* const finding = report_.add_findings();
  finding->set_by(std::move(by));
  finding->set_step(step);
  if (rank >= 0) finding->set_rank(rank);
  finding->set_module(analysis::ModuleText(CallOf(name)));
  finding->set_name(std::move(name));
  finding->set_what(std::move(what));
  finding->set_sure(exact ? "exact" : "likely");
  return finding;
}

void DiagnosisReport::Note(std::string what) {
  report_.add_notes(std::move(what));
}

void DiagnosisReport::Healthy(std::string what) {
  report_.add_healthy(std::move(what));
}

void DiagnosisReport::Unjudged(std::string what, std::string record) {
  v1::DiagnoseReport::Unjudged* const unjudged = report_.add_unjudged();
  unjudged->set_what(std::move(what));
  unjudged->set_record(std::move(record));
}

void DiagnosisReport::UnjudgedYet(std::string what, std::string command) {
  v1::DiagnoseReport::Unjudged* const unjudged = report_.add_unjudged();
  unjudged->set_what(std::move(what));
  unjudged->set_judge(std::move(command));
}

void DiagnosisReport::NameOwners(
    absl::Span<const analysis::ScanSeries> values) {
  // By the path of the module; that of the model itself is empty.
  absl::flat_hash_map<std::string, std::string> modules;
  for (const analysis::ScanSeries& series : values) {
    std::string module = analysis::ModuleText(CallOf(series.name));
    if (module.empty()) continue;
    const size_t end = module.rfind(" (");
    std::string path = end == std::string::npos ? "" : module.substr(0, end);
    modules.try_emplace(std::move(path), std::move(module));
  }
  for (Finding& finding : *report_.mutable_findings()) {
    if (!finding.module().empty()) continue;
    const std::optional<std::string> owner = OwnerOf(finding.name());
    if (!owner.has_value()) continue;
    const auto module = modules.find(*owner);
    if (module != modules.end()) finding.set_module(module->second);
  }
}

v1::DiagnoseReport DiagnosisReport::Take() {
  std::stable_sort(
      report_.mutable_findings()->begin(), report_.mutable_findings()->end(),
      [](const Finding& a, const Finding& b) {
        const auto key = [](const Finding& f) {
          return std::make_tuple(f.sure() != "exact", f.step(), WeightOf(f));
        };
        return key(a) < key(b);
      });
  return std::move(report_);
}

}  // namespace rankprobe
