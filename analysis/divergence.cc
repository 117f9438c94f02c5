#include "analysis/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "analysis/comm_links.h"
#include "analysis/compare.h"
#include "common/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMaxExamples = 10;

double EpsilonOf(absl::string_view dtype) {
  if (absl::EndsWith(dtype, "bfloat16")) return std::ldexp(1.0, -8);
  if (absl::EndsWith(dtype, "float16")) return std::ldexp(1.0, -11);
  if (absl::EndsWith(dtype, "float32") || absl::EndsWith(dtype, "complex64")) {
    return std::ldexp(1.0, -24);
  }
  if (absl::EndsWith(dtype, "float64") || absl::EndsWith(dtype, "complex128")) {
    return std::ldexp(1.0, -53);
  }
  if (absl::StrContains(dtype, "float8")) return std::ldexp(1.0, -4);
  return 0;
}

double ElementsOf(const Row& row) {
  const JsonValue* const shape =
      row.record == nullptr ? nullptr : row.record->Find("shape");
  if (shape == nullptr) return 1;
  double elements = 1;
  for (const JsonValue& size : shape->items()) elements *= size.number;
  return elements;
}

bool SameSpecial(const JsonValue& a, const JsonValue& b) {
  return a.is_number() && b.is_number() && std::isnan(a.number) &&
         std::isnan(b.number);
}

std::string StatsText(const Row& row) {
  if (row.record == nullptr) return "null";
  std::string out;
  for (size_t i = 0; i < kStatNames.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : " ", kStatNames[i], "=",
                    StatText(row.stats[i]));
  }
  absl::StrAppend(&out, " dtype=", row.dtype, " shape=", row.shape);
  const JsonValue* const md5 = row.record->Find("md5");
  if (md5 != nullptr) absl::StrAppend(&out, " md5=", PythonText(*md5));
  return out;
}

}  // namespace

std::optional<double> RowDifference(const RowPair& pair, DumpMode mode) {
  if (pair.benchmark == nullptr) return std::nullopt;
  const Row& n = *pair.target;
  const Row& b = *pair.benchmark;
  if (n.record == nullptr || b.record == nullptr) {
    return n.record == b.record ? 0 : kInfinity;
  }
  if (n.dtype != b.dtype || n.shape != b.shape) return kInfinity;
  if (n.derived) {
    // No tensor: what it says must be the same.
    for (size_t i = 0; i < n.stats.size(); ++i) {
      if (StatText(n.stats[i]) != StatText(b.stats[i])) return kInfinity;
    }
    return 0;
  }
  const JsonValue* const md5_n = n.record->Find("md5");
  const JsonValue* const md5_b = b.record->Find("md5");
  if (md5_n != nullptr && md5_b != nullptr && !md5_n->is_null() &&
      !md5_b->is_null()) {
    if (PythonText(*md5_n) == PythonText(*md5_b)) return 0;
  }
  double scale = 0;
  for (const Row* row : {&n, &b}) {
    for (size_t i = 0; i < 3; ++i) {
      if (row->stats[i].is_number() && std::isfinite(row->stats[i].number)) {
        scale = std::max(scale, std::fabs(row->stats[i].number));
      }
    }
  }
  double difference = 0;
  bool any = false;
  for (size_t i = 0; i < n.stats.size(); ++i) {
    const JsonValue& x = n.stats[i];
    const JsonValue& y = b.stats[i];
    if (x.is_null() && y.is_null()) continue;
    any = true;
    if (SameSpecial(x, y)) continue;
    if (!x.is_number() || !y.is_number()) {
      if (StatText(x) != StatText(y)) return kInfinity;
      continue;
    }
    if (x.number == y.number) continue;
    if (!std::isfinite(x.number) || !std::isfinite(y.number)) return kInfinity;
    // A mean near zero is judged by the size of what it is a mean of.
    const double size =
        i == 3 ? std::max(std::fabs(x.number), std::fabs(y.number)) : scale;
    difference = std::max(difference, std::fabs(x.number - y.number) / size);
  }
  if (mode == DumpMode::kTensor && !pair.tensor.text[1].empty()) {
    double distance = 0;
    if (absl::SimpleAtod(pair.tensor.text[1], &distance) &&
        b.stats[3].is_number() && b.stats[3].number > 0) {
      any = true;
      difference = std::max(difference, distance / b.stats[3].number);
    } else if (pair.tensor.text[0] == "N/A" ||
               pair.tensor.text[0] == "shape unmatched") {
      return kInfinity;
    }
  }
  if (md5_n != nullptr && md5_b != nullptr && difference == 0) {
    // Equal summaries of different data.
    return std::numeric_limits<double>::denorm_min();
  }
  if (!any && ElementsOf(n) > 0) return std::nullopt;
  return difference;
}

double AutoTolerance(const Row& output, absl::Span<const Row* const> inputs) {
  const double epsilon = EpsilonOf(output.dtype);
  const double out = std::max(1.0, ElementsOf(output));
  std::vector<double> sizes;
  for (const Row* row : inputs) {
    if (!row->derived && row->has_dtype) sizes.push_back(ElementsOf(*row));
  }
  std::sort(sizes.rbegin(), sizes.rend());
  double length = 1;
  if (sizes.size() >= 2) {
    // A product of matrices, [m, k] by [k, n]: k = sqrt(mk * kn / mn).
    length =
        std::max({1.0, std::sqrt(sizes[0] * sizes[1] / out), sizes[0] / out});
  } else if (sizes.size() == 1) {
    length = std::max(1.0, sizes[0] / out);
  }
  return 4 * epsilon * std::sqrt(length);
}

namespace {

// One rank's step: what differs first there, if anything.
struct RankOutcome {
  DumpPlace place;
  std::unique_ptr<DumpReader> target;
  std::unique_ptr<DumpReader> golden;
  bool differs = false;
  bool any_output = false;  // an output differed already
  size_t entry = 0;
  Divergence divergence;
  std::set<std::string> bad_inputs;  // communication with differing inputs
};

class Finder {
 public:
  Finder(FileSystem* file_system, const MatchOptions& match,
         const Tolerance& tolerance)
      : file_system_(file_system), match_(match), tolerance_(tolerance) {}

  absl::StatusOr<DivergenceReport> Run(const std::string& target,
                                       const std::string& golden) {
    RP_ASSIGN_OR_RETURN(const DumpLayout n, FindDumps(file_system_, target));
    RP_ASSIGN_OR_RETURN(const DumpLayout b, FindDumps(file_system_, golden));
    std::vector<std::string> unpaired;
    RP_ASSIGN_OR_RETURN(const auto pairs, PairDumps(n, b, &unpaired));
    for (const std::string& place : unpaired) {
      ++report_.unseen.lost;
      Example(absl::StrCat(place, ": the other side has no such step or rank"));
    }
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
    return std::move(report_);
  }

 private:
  void Example(std::string text) {
    if (report_.unseen.examples.size() < kMaxExamples) {
      report_.unseen.examples.push_back(std::move(text));
    }
  }

  // Exports say what was lost on the way.
  absl::Status ReadGaps(const DumpLayout& layout) {
    const std::string path = layout.path + "/manifest.json";
    if (!file_system_->Exists(path)) return absl::OkStatus();
    RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForRead(path));
    RP_ASSIGN_OR_RETURN(const uint64_t size, file_system_->FileSize(path));
    if (size > (uint64_t{256} << 20)) return absl::OkStatus();
    std::string text(size, '\0');
    RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(text)));
    JsonDocument document;
    if (!document.Parse(std::move(text)).ok()) {
      return absl::InvalidArgumentError(path + ": is no JSON");
    }
    const JsonValue* const gaps = document.root().Find("gaps");
    if (gaps == nullptr) return absl::OkStatus();
    for (const JsonValue& gap : gaps->items()) {
      ++report_.unseen.lost;
      const JsonValue* const call = gap.Find("entry");
      const JsonValue* const reason = gap.Find("reason");
      Example(absl::StrCat(path, ": ",
                           call == nullptr ? "a gap" : PythonText(*call), " ",
                           reason == nullptr ? "" : PythonText(*reason)));
    }
    return absl::OkStatus();
  }

  absl::Status CompareRank(const DumpPlace& n, const DumpPlace& b) {
    RankOutcome& outcome = outcomes_.emplace_back();
    outcome.place = n;
    RP_ASSIGN_OR_RETURN(outcome.target,
                        DumpReader::Open(file_system_, n.directory, {}));
    RP_ASSIGN_OR_RETURN(outcome.golden,
                        DumpReader::Open(file_system_, b.directory, {}));
    const DumpReader& target = *outcome.target;
    const DumpReader& golden = *outcome.golden;
    if (target.mode() == DumpMode::kStructure ||
        golden.mode() == DumpMode::kStructure) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path(), ": a dump of task structure has no values"));
    }
    RP_RETURN_IF_ERROR(CheckComparable(target, golden));
    RP_RETURN_IF_ERROR(OpenNoise(n, golden));
    const EntryMatch match = EntryMatch::Make(target, golden, match_);
    EntryComparison entry(file_system_, &target, &golden, &match_);
    std::vector<bool> seen(golden.size());
    for (size_t i = 0; i < target.size(); ++i) {
      const std::optional<size_t> partner = match.Golden(i);
      if (!partner.has_value()) {
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
      ++report_.unseen.only_in_golden;
      Example(absl::StrCat(golden.path(), ": ", golden.name(i),
                           " is in this dump only"));
    }
    return absl::OkStatus();
  }

  absl::Status OpenNoise(const DumpPlace& place, const DumpReader& golden) {
    noise_.reset();
    noise_entry_.reset();
    const auto it = noise_places_.find({place.step, place.rank});
    if (it == noise_places_.end()) return absl::OkStatus();
    RP_ASSIGN_OR_RETURN(noise_, DumpReader::Open(file_system_, it->second, {}));
    RP_RETURN_IF_ERROR(CheckComparable(*noise_, golden));
    noise_entry_ = std::make_unique<EntryComparison>(file_system_, noise_.get(),
                                                     &golden, &no_options_);
    return absl::OkStatus();
  }

  // Differences of the repeated run from the golden one, by row.
  absl::Status LoadNoise(const DumpReader& golden, size_t golden_index) {
    noise_of_.clear();
    if (noise_ == nullptr) return absl::OkStatus();
    const auto index = noise_->Find(golden.name(golden_index));
    if (!index.has_value()) return absl::OkStatus();
    RP_RETURN_IF_ERROR(noise_entry_->Load(*index, golden_index));
    for (const RowPair& pair : noise_entry_->pairs()) {
      if (pair.benchmark == nullptr) continue;
      if (const auto d = RowDifference(pair, golden.mode());
          d.has_value() && std::isfinite(*d)) {
        noise_of_[std::string(pair.benchmark->name)] = *d;
      }
    }
    return absl::OkStatus();
  }

  std::optional<double> NoiseOf(const RowPair& pair) const {
    const auto it = noise_of_.find(std::string(pair.benchmark->name));
    if (it == noise_of_.end()) return std::nullopt;
    return it->second;
  }

  double ToleranceOf(const RowPair& pair,
                     absl::Span<const Row* const> inputs) const {
    double tolerance = tolerance_.fixed.has_value()
                           ? *tolerance_.fixed
                           : AutoTolerance(*pair.target, inputs);
    if (const auto noise = NoiseOf(pair); noise.has_value()) {
      tolerance = std::max(tolerance, tolerance_.noise_factor * *noise);
    }
    return tolerance;
  }

  absl::Status LookAt(const EntryComparison& entry, size_t index,
                      size_t golden_index, RankOutcome* outcome) {
    const DumpMode mode = outcome->target->mode();
    RP_RETURN_IF_ERROR(LoadNoise(*outcome->golden, golden_index));
    std::vector<const Row*> inputs;
    for (const RowPair& pair : entry.pairs()) {
      if (pair.target->state != RowState::kOutput) {
        inputs.push_back(pair.target);
      }
    }
    bool inputs_differ = false;
    const RowPair* worst = nullptr;
    double worst_ratio = 0;
    bool worst_is_output = true;
    bool outputs_differ = false;
    Divergence divergence;
    for (const RowPair& pair : entry.pairs()) {
      const bool output = pair.target->state == RowState::kOutput ||
                          pair.target->state == RowState::kParametersGrad;
      if (pair.benchmark == nullptr) {
        ++report_.unseen.rows_without_partner;
        Example(absl::StrCat(pair.target->name, " has no partner"));
        if (!output) ++divergence.inputs_unknown;
        continue;
      }
      const std::optional<double> difference = RowDifference(pair, mode);
      if (!difference.has_value()) {
        ++report_.unseen.rows_without_values;
        Example(absl::StrCat(pair.target->name,
                             " has neither statistics nor a checksum"));
        if (!output) ++divergence.inputs_unknown;
        continue;
      }
      const double tolerance = ToleranceOf(pair, inputs);
      if (*difference <= tolerance) {
        if (!output) ++divergence.inputs_matched;
        continue;
      }
      const double ratio = tolerance > 0 ? *difference / tolerance : kInfinity;
      if (output) {
        outputs_differ = true;
      } else {
        inputs_differ = true;
      }
      // Inputs that came in from outside go before what they did.
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
    if (IsCommunication(call) && inputs_differ)
      outcome->bad_inputs.insert(call);
    if (outputs_differ) ++report_.calls_differing;
    const bool had_output = outcome->any_output;
    outcome->any_output = had_output || outputs_differ;
    if (worst == nullptr || outcome->differs) return absl::OkStatus();
    // What differs because of its inputs is no origin.
    if (inputs_differ && (had_output || worst_is_output)) {
      return absl::OkStatus();
    }
    outcome->differs = true;
    divergence.from_outside = !worst_is_output;
    outcome->entry = index;
    divergence.step = outcome->place.step;
    divergence.rank = outcome->place.rank;
    divergence.call = call;
    divergence.golden_call = std::string(outcome->golden->name(golden_index));
    divergence.row = std::string(worst->target->name);
    divergence.target_values = StatsText(*worst->target);
    divergence.golden_values = StatsText(*worst->benchmark);
    divergence.noise = NoiseOf(*worst);
    const std::vector<std::string>* const stack = outcome->target->Stack(call);
    if (stack != nullptr) divergence.stack = *stack;
    outcome->divergence = std::move(divergence);
    return absl::OkStatus();
  }

  // A rank whose first difference came in by communication is no origin.
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
      const auto* const found =
          links.Find(outcome.place.rank, outcome.divergence.call);
      std::optional<int64_t> from;
      for (const CommLink& link :
           found == nullptr ? std::vector<CommLink>() : *found) {
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
        report_.carried.push_back({outcome.place.step, outcome.place.rank,
                                   outcome.divergence.call, *from});
      } else {
        report_.origins.push_back(std::move(outcome.divergence));
      }
    }
    outcomes_.clear();
  }

  FileSystem* const file_system_;
  const MatchOptions& match_;
  const Tolerance& tolerance_;
  const MatchOptions no_options_;
  std::map<std::pair<int64_t, int64_t>, std::string> noise_places_;
  std::unique_ptr<DumpReader> noise_;
  std::unique_ptr<EntryComparison> noise_entry_;
  absl::flat_hash_map<std::string, double> noise_of_;
  std::vector<RankOutcome> outcomes_;
  DivergenceReport report_;
};

}  // namespace

absl::StatusOr<DivergenceReport> FindDivergence(FileSystem* file_system,
                                                const std::string& target,
                                                const std::string& golden,
                                                const MatchOptions& match,
                                                const Tolerance& tolerance) {
  return Finder(file_system, match, tolerance).Run(target, golden);
}

}  // namespace rankprobe::analysis
