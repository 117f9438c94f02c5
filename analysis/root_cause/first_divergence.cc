// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/first_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "analysis/calls/call_place.h"
#include "analysis/calls/comm_links.h"
#include "analysis/calls/unwritten_tensors.h"
#include "analysis/compare/compare.h"
#include "analysis/compare/mapping_files.h"
#include "analysis/root_cause/collective_counts.h"
#include "analysis/root_cause/row_difference.h"
#include "analysis/root_cause/value_sources.h"
#include "analysis/root_cause/values_text.h"
#include "common/base/status_macros.h"
#include "dump_format/read_manifest.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kMaxExamples = 10;

// Gradients of normalizing functions (a softmax, the weights of experts) are
// differences of nearly equal numbers, so noise is a larger part of them.
constexpr double kGradientNoise = 3;

bool IsGradient(const DumpRow& row) {
  return absl::StrContains(row.name, ".backward") ||
         row.state == RowState::kParametersGrad;
}

std::string WhyWithoutValues(const RowPair& pair) {
  for (const DumpRow* const row : {pair.target, pair.reference}) {
    if (row->not_put_together.empty()) continue;
    return absl::StrCat(" was not assembled: ", row->not_put_together);
  }
  return " has neither statistics nor a checksum";
}

// The first difference of one rank's step, if any.
struct RankOutcome {
  DumpPlace place;
  DumpPlace reference_place;
  std::unique_ptr<DumpReader> target;
  std::unique_ptr<DumpReader> reference;
  bool differs = false;
  bool any_output = false;  // an output differed already
  size_t entry = 0;
  Divergence divergence;
  std::set<std::string> bad_inputs;  // communication with differing inputs
};

bool IsOutput(const DumpRow& row) {
  return row.state == RowState::kOutput ||
         row.state == RowState::kParametersGrad;
}

class Finder {
 public:
  Finder(FileSystem* file_system, const MatchOptions& match,
         const Tolerance& tolerance)
      : file_system_(file_system), match_(match), tolerance_(tolerance) {
    match_.without_checkpoints = true;
  }

  absl::StatusOr<DivergenceReport> Run(const DumpLayout& n,
                                       const DumpLayout& b) {
    for (const std::string& note : {n.note, b.note}) {
      if (!note.empty()) report_.notes.push_back(absl::StrCat(note, "."));
    }
    RP_RETURN_IF_ERROR(CheckMappings(n, match_));
    std::vector<std::string> unpaired;
    RP_ASSIGN_OR_RETURN(const auto pairs, PairDumps(n, b, &unpaired));
    for (const std::string& place : unpaired) {
      ++report_.unseen.lost;
      Example(absl::StrCat(place, ": the other side has no such step or rank"));
    }
    if (!unpaired.empty())
      report_.notes.push_back(absl::StrCat(PairingHint(n, b), "."));
    if (!tolerance_.noise.empty()) {
      RP_ASSIGN_OR_RETURN(const DumpLayout noise,
                          FindDumps(file_system_, tolerance_.noise));
      for (const DumpPlace& place : noise.places) {
        noise_places_[{place.step, place.rank}] = place.directory;
      }
    }
    RP_RETURN_IF_ERROR(ReadGaps(n));
    RP_RETURN_IF_ERROR(ReadGaps(b));
    std::vector<RankOutcome> outcomes;
    for (size_t i = 0; i < pairs.size(); ++i) {
      RP_RETURN_IF_ERROR(CompareRank(pairs[i].first, pairs[i].second));
      if (i + 1 == pairs.size() ||
          pairs[i + 1].first.step != pairs[i].first.step) {
        EndStep();
      }
    }
    if (recomputed_ > 0) {
      report_.notes.push_back(absl::StrCat(
          "The sides have different activation checkpoints: ", recomputed_,
          " calls that were computed again in the backward are not compared."));
    }
    return std::move(report_);
  }

 private:
  void Example(std::string text) {
    if (report_.unseen.examples.size() < kMaxExamples) {
      report_.unseen.examples.push_back(std::move(text));
    }
  }

  // Exports list the data that was lost.
  absl::Status ReadGaps(const DumpLayout& layout) {
    const std::string path = layout.path + "/manifest.json";
    JsonDocument document;
    const absl::StatusOr<bool> is_there =
        ReadManifest(file_system_, layout.path, &document);
    // Gaps do not prevent the comparison; if their list cannot be read, the
    // report says so.
    if (absl::IsResourceExhausted(is_there.status())) {
      ++report_.unseen.lost;
      Example(absl::StrCat(path, ": is too large, so its gaps are not known"));
      return absl::OkStatus();
    }
    RP_RETURN_IF_ERROR(is_there.status());
    if (!*is_there) return absl::OkStatus();
    CountGaps(path, document.root());
    // Some of the data may belong to runs before the last one.
    if (const JsonValue* const earlier = document.root().Find("earlier_runs");
        earlier != nullptr) {
      for (const JsonValue& run : earlier->items()) {
        // Data in a directory of its own was moved there before a later run and
        // is not compared.
        if (run.Find("directory") == nullptr) CountGaps(path, run);
      }
    }
    return absl::OkStatus();
  }

  void CountGaps(const std::string& path, const JsonValue& manifest) {
    const JsonValue* const gaps = manifest.Find("gaps");
    if (gaps == nullptr) return;
    for (const JsonValue& gap : gaps->items()) {
      ++report_.unseen.lost;
      const JsonValue* const call = gap.Find("entry");
      const JsonValue* const reason = gap.Find("reason");
      Example(absl::StrCat(path, ": ",
                           call == nullptr ? "a gap" : PythonText(*call), " ",
                           reason == nullptr ? "" : PythonText(*reason)));
    }
  }

  absl::Status CompareRank(const DumpPlace& n, const DumpPlace& b) {
    RankOutcome& outcome = outcomes_.emplace_back();
    outcome.place = n;
    outcome.reference_place = b;
    sources_.Clear();
    drift_ = forward_drift_ = 0;
    DumpReader::Options open;
    open.notes = true;
    open.monitored = true;
    open.construct = match_.layers.has_value();
    if (open.construct) {
      RP_ASSIGN_OR_RETURN(outcome.target,
                          DumpReader::Open(file_system_, n.directory, open));
    } else {
      RP_ASSIGN_OR_RETURN(outcome.target,
                          OpenWithModules(file_system_, n.directory, open));
    }
    RP_ASSIGN_OR_RETURN(outcome.reference,
                        DumpReader::Open(file_system_, b.directory, open));
    const DumpReader& target = *outcome.target;
    const DumpReader& reference = *outcome.reference;
    drifting_ = !tolerance_.fixed.has_value() &&
                (tolerance_.two_programs || target.put_together() ||
                 reference.put_together() ||
                 target.framework() != reference.framework());
    if (target.mode() == DumpMode::kStructure ||
        reference.mode() == DumpMode::kStructure) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path(), ": a dump of task structure has no values"));
    }
    RP_RETURN_IF_ERROR(CheckComparable(target, reference));
    RP_RETURN_IF_ERROR(OpenNoise(n, reference));
    const EntryMatch match = EntryMatch::Make(target, reference, match_);
    EntryComparison entry(file_system_, &target, &reference, &match_);
    std::vector<bool> seen(reference.size());
    for (size_t i = 0; i < target.size(); ++i) {
      const std::optional<size_t> partner = match.ReferenceOf(i);
      if (!partner.has_value()) {
        if (match.IsRecomputedInTarget(i)) {
          ++recomputed_;
          continue;
        }
        ++report_.unseen.only_in_target;
        Example(absl::StrCat(target.path(), ": ", target.name(i),
                             " is in this dump only"));
        continue;
      }
      seen[*partner] = true;
      RP_RETURN_IF_ERROR(entry.Load(i, partner));
      ++report_.calls_compared;
      RP_RETURN_IF_ERROR(LookAt(entry, i, *partner, &outcome));
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      if (seen[i]) continue;
      if (match.IsRecomputedInReference(i)) {
        ++recomputed_;
        continue;
      }
      ++report_.unseen.only_in_reference;
      Example(absl::StrCat(reference.path(), ": ", reference.name(i),
                           " is in this dump only"));
    }
    for (std::string& note : CollectivesOfOneSide(n.rank, target, reference))
      report_.notes.push_back(std::move(note));
    return absl::OkStatus();
  }

  absl::Status OpenNoise(const DumpPlace& place, const DumpReader& reference) {
    noise_.reset();
    noise_entry_.reset();
    const auto it = noise_places_.find({place.step, place.rank});
    if (it == noise_places_.end()) return absl::OkStatus();
    RP_ASSIGN_OR_RETURN(noise_, DumpReader::Open(file_system_, it->second, {}));
    RP_RETURN_IF_ERROR(CheckComparable(*noise_, reference));
    noise_entry_ = std::make_unique<EntryComparison>(file_system_, noise_.get(),
                                                     &reference, &no_options_);
    return absl::OkStatus();
  }

  // Loads the differences between the repeated run and the reference, by row.
  absl::Status LoadNoise(const DumpReader& reference, size_t reference_index) {
    noise_of_.clear();
    if (noise_ == nullptr) return absl::OkStatus();
    const auto index = noise_->Find(reference.name(reference_index));
    if (!index.has_value()) return absl::OkStatus();
    RP_RETURN_IF_ERROR(noise_entry_->Load(*index, reference_index));
    for (const RowPair& pair : noise_entry_->pairs()) {
      if (pair.reference == nullptr) continue;
      if (const auto d = RowDifference(pair, reference.mode());
          d.has_value() && std::isfinite(*d)) {
        noise_of_[std::string(pair.reference->name)] = *d;
      }
    }
    return absl::OkStatus();
  }

  std::optional<double> NoiseOf(const RowPair& pair) const {
    const auto it = noise_of_.find(std::string(pair.reference->name));
    if (it == noise_of_.end()) return std::nullopt;
    return it->second;
  }

  double ToleranceOf(const RowPair& pair,
                     absl::Span<const DumpRow* const> inputs) const {
    double tolerance = tolerance_.fixed.has_value() ? *tolerance_.fixed
                       : tolerance_.two_programs
                           ? TwoProgramTolerance(*pair.target, inputs)
                           : AutoTolerance(*pair.target, inputs);
    if (const auto noise = NoiseOf(pair); noise.has_value()) {
      tolerance = std::max(tolerance, tolerance_.noise_factor * *noise);
    }
    // Parameters of two programs were only rounded from one checkpoint, so they
    // do not drift.
    const bool is_given =
        tolerance_.two_programs && pair.target->state == RowState::kParameters;
    if (drifting_ && !is_given) {
      double noise = drift_;
      if (IsGradient(*pair.target)) {
        noise = std::max(noise, kGradientNoise * forward_drift_);
      }
      tolerance = std::max(tolerance, tolerance_.noise_factor * noise) *
                  Cancellation(pair, inputs);
    }
    return tolerance;
  }

  // Returns the rows that the values of an entry were computed from. The record
  // of parameter gradients does not name any: the gradients are products of the
  // inputs of the forward and backward calls of their module, if these were
  // recorded.
  absl::StatusOr<std::vector<const DumpRow*>> OperandsOf(
      const EntryComparison& entry, const DumpReader& target) {
    std::vector<const DumpRow*> operands;
    const auto add = [&operands](const DumpRow& row) {
      if (row.state == RowState::kInput || row.state == RowState::kParameters) {
        operands.push_back(&row);
      }
    };
    if (!IsParametersGradEntry(entry.entry())) {
      for (const RowPair& pair : entry.pairs()) add(*pair.target);
      return operands;
    }
    constexpr absl::string_view kGradients = ".parameters_grad";
    const absl::string_view gradients = entry.entry();
    const size_t at = gradients.rfind(kGradients);
    const absl::string_view number = gradients.substr(at + kGradients.size());
    for (ModuleCall& call : module_calls_) {
      const std::string name =
          absl::StrCat(gradients.substr(0, at), call.direction,
                       number.empty() ? ".0" : number);
      const std::optional<size_t> index = target.Find(name);
      if (!index.has_value()) continue;
      RP_RETURN_IF_ERROR(target.Read(*index, &call.record));
      RP_RETURN_IF_ERROR(
          ReadRows(name, target.stats(), &call.record, &call.rows));
      for (const DumpRow& row : call.rows) {
        if (row.state == RowState::kInput) operands.push_back(&row);
      }
    }
    return operands;
  }

  void CountRowsOfReference(const EntryComparison& entry,
                            Divergence* divergence) {
    for (const DumpRow* const row : entry.only_in_reference()) {
      ++report_.unseen.rows_without_partner;
      Example(absl::StrCat(row->name, " is in the reference only"));
      if (!IsOutput(*row)) ++divergence->inputs_unknown;
    }
  }

  // Returns the call that returned the input which differs most, or an empty
  // text.
  std::string MadeBy(const RowPair* worst, bool is_output) const {
    if (worst == nullptr || is_output || worst->target->derived ||
        worst->target->state != RowState::kInput)
      return "";
    return sources_.MakerOf(*worst->target);
  }

  absl::Status LookAt(const EntryComparison& entry, size_t index,
                      size_t reference_index, RankOutcome* outcome) {
    const DumpMode mode = outcome->target->mode();
    RP_RETURN_IF_ERROR(LoadNoise(*outcome->reference, reference_index));
    RP_ASSIGN_OR_RETURN(const std::vector<const DumpRow*> operands,
                        OperandsOf(entry, *outcome->target));
    bool inputs_differ = false;
    const RowPair* worst = nullptr;
    double worst_ratio = 0;
    bool worst_is_output = true;
    bool outputs_differ = false;
    Divergence divergence;
    // A call may have another name in the reference, and notes only there.
    const UnwrittenTensors unwritten(entry.entry(), &outcome->target->notes());
    const UnwrittenTensors unwritten_reference(
        outcome->reference->name(reference_index),
        &outcome->reference->notes());
    CountRowsOfReference(entry, &divergence);
    for (const RowPair& pair : entry.pairs()) {
      const bool output = IsOutput(*pair.target);
      if (pair.reference == nullptr) {
        ++report_.unseen.rows_without_partner;
        Example(absl::StrCat(pair.target->name, " has no partner"));
        if (!output) ++divergence.inputs_unknown;
        continue;
      }
      // A difference in uninitialised memory is not evidence.
      if (unwritten.Has(*pair.target) ||
          unwritten_reference.Has(*pair.reference)) {
        if (!output) ++divergence.inputs_unknown;
        continue;
      }
      const std::optional<double> difference = RowDifference(pair, mode);
      if (!difference.has_value()) {
        ++report_.unseen.rows_without_values;
        Example(absl::StrCat(pair.target->name, WhyWithoutValues(pair)));
        if (!output) ++divergence.inputs_unknown;
        continue;
      }
      const double tolerance = ToleranceOf(pair, operands);
      // Equal statistics of different data mean other elements or another
      // order.
      const bool reordered =
          *difference == std::numeric_limits<double>::denorm_min();
      if (*difference <= tolerance && !reordered) {
        drift_ = std::max(drift_, *difference);
        if (!IsGradient(*pair.target)) {
          forward_drift_ = std::max(forward_drift_, *difference);
        }
        if (!output)
          ++(DigestsDiffer(pair)              ? divergence.inputs_close
             : IsHiddenByInfinity(pair, mode) ? divergence.inputs_infinite
                                              : divergence.inputs_matched);
        continue;
      }
      const double ratio = tolerance > 0 ? *difference / tolerance : kInfinity;
      if (output) {
        outputs_differ = true;
      } else {
        inputs_differ = true;
      }
      // An input that differs after an output differed is not from outside.
      // Inputs from outside take precedence over the outputs they changed.
      if (!output && outcome->any_output) continue;
      if (worst == nullptr || (!output && worst_is_output) ||
          (output == worst_is_output && ratio > worst_ratio)) {
        if (output && worst != nullptr && !worst_is_output) continue;
        worst_is_output = output;
        worst = &pair;
        worst_ratio = ratio;
        divergence.difference = *difference;
        divergence.tolerance = tolerance;
      }
    }
    const std::string call(entry.entry());
    const std::vector<std::string> unmade =
        worst != nullptr && worst_is_output && !inputs_differ &&
                !outcome->differs
            ? sources_.Unmade(call, entry.pairs())
            : std::vector<std::string>();
    const std::string made_by = MadeBy(worst, worst_is_output);
    const std::string before = sources_.last_call();
    sources_.Add(call, entry.pairs());
    if (IsCommunication(call) && inputs_differ)
      outcome->bad_inputs.insert(call);
    if (outputs_differ) ++report_.calls_differing;
    const bool had_output = outcome->any_output;
    outcome->any_output = had_output || outputs_differ;
    if (worst == nullptr || outcome->differs) return absl::OkStatus();
    // A call that differs because of its inputs is not an origin.
    if (inputs_differ && (had_output || worst_is_output)) {
      return absl::OkStatus();
    }
    outcome->differs = true;
    divergence.from_outside = !worst_is_output;
    outcome->entry = index;
    divergence.made_by = made_by;
    divergence.is_argument = !worst_is_output && worst->target->derived;
    divergence.is_weight =
        !worst_is_output && worst->target->state == RowState::kParameters;
    divergence.step = StepOf(outcome->place);
    divergence.reference_step = StepOf(outcome->reference_place);
    divergence.rank = RankOf(outcome->place);
    divergence.call = call;
    divergence.reference_call =
        std::string(outcome->reference->name(reference_index));
    divergence.module = CallPlaces(*outcome->target).ModuleOf(call);
    if (!unmade.empty() && !before.empty()) {
      divergence.unmade_inputs = unmade;
      divergence.gap_after = before;
    }
    divergence.row = std::string(worst->target->name);
    divergence.target_values = ValuesText(*worst->target);
    divergence.reference_values = ValuesText(*worst->reference);
    divergence.noise = NoiseOf(*worst);
    const std::vector<std::string>* const stack = outcome->target->Stack(call);
    if (stack != nullptr) divergence.stack = *stack;
    divergence.code_line = CodeLineOf(stack);
    outcome->divergence = std::move(divergence);
    return absl::OkStatus();
  }

  // A rank that received its first difference by communication is not an
  // origin.
  void EndStep() {
    std::vector<int64_t> world;
    for (const RankOutcome& outcome : outcomes_) {
      world.push_back(outcome.place.rank);
    }
    CommLinks links(world.size() > 1 ? world : std::vector<int64_t>());
    JsonDocument record;
    std::map<int64_t, const RankOutcome*> by_rank;
    for (const RankOutcome& outcome : outcomes_) {
      by_rank[outcome.place.rank] = &outcome;
      const DumpReader& dump = *outcome.target;
      for (size_t i = 0; i < dump.size(); ++i) {
        if (IsCommunication(dump.name(i)) && dump.Read(i, &record).ok()) {
          links.Add(outcome.place.rank, dump.name(i), record.root());
        }
      }
    }
    links.Match();
    for (RankOutcome& outcome : outcomes_) {
      if (!outcome.differs) continue;
      // The communication did not bring in what this rank put into it.
      const auto* const found =
          links.Find(outcome.place.rank, outcome.divergence.call);
      std::optional<int64_t> from;
      for (const CommLink& link :
           found == nullptr || outcome.divergence.from_outside
               ? std::vector<CommLink>()
               : *found) {
        if (link.kind == CommKind::kSend) continue;
        for (const CommPeer& peer : link.peers) {
          const auto other = by_rank.find(peer.rank);
          if (other != by_rank.end() &&
              other->second->bad_inputs.contains(peer.node)) {
            from = peer.rank;
          }
        }
      }
      if (from.has_value()) {
        report_.carried.push_back({outcome.divergence.step, outcome.place.rank,
                                   outcome.divergence.call, *from});
      } else {
        report_.origins.push_back(std::move(outcome.divergence));
      }
    }
    outcomes_.clear();
  }

  FileSystem* const file_system_;
  MatchOptions match_;
  const Tolerance& tolerance_;
  const MatchOptions no_options_;
  struct ModuleCall {
    absl::string_view direction;
    JsonDocument record;
    std::vector<DumpRow> rows;
  };
  // Calls of the module whose gradients are compared; they keep the rows that
  // OperandsOf() points to alive.
  ModuleCall module_calls_[2] = {{".forward", {}, {}}, {".backward", {}, {}}};
  std::map<std::pair<int64_t, int64_t>, std::string> noise_places_;
  std::unique_ptr<DumpReader> noise_;
  std::unique_ptr<EntryComparison> noise_entry_;
  absl::flat_hash_map<std::string, double> noise_of_;
  // Runs of different layouts or frameworks sum in different orders from the
  // first call on: the largest difference of matching rows of this rank counts
  // as noise.
  bool drifting_ = false;
  double drift_ = 0;
  double forward_drift_ = 0;  // without gradients
  ValueSources sources_;      // of the rank that is compared
  std::vector<RankOutcome> outcomes_;
  int64_t recomputed_ = 0;  // entries, where the checkpoints differ
  DivergenceReport report_;
};

}  // namespace

absl::StatusOr<DivergenceReport> FindDivergence(FileSystem* file_system,
                                                const std::string& target,
                                                const std::string& reference,
                                                const MatchOptions& match,
                                                const Tolerance& tolerance) {
  RP_ASSIGN_OR_RETURN(const DumpLayout n, FindDumps(file_system, target));
  RP_ASSIGN_OR_RETURN(const DumpLayout b, FindDumps(file_system, reference));
  return FindDivergence(file_system, n, b, match, tolerance);
}

absl::StatusOr<DivergenceReport> FindDivergence(FileSystem* file_system,
                                                const DumpLayout& target,
                                                const DumpLayout& reference,
                                                const MatchOptions& match,
                                                const Tolerance& tolerance) {
  return Finder(file_system, match, tolerance).Run(target, reference);
}

}  // namespace rankprobe::analysis
