// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/scan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/scan/replicated_values.h"

namespace rankprobe::analysis {
namespace {

// Number of values of a kind that must agree over ranks before others can stand
// out.
constexpr size_t kLeastAlike = 3;
// Number of steps.
constexpr size_t kLeastAgreed = 3;
constexpr double kMostUnlike = 0.34;
// Multiple of the minimum number of steps of a course, in which a return into
// the earlier range is not reported.
constexpr size_t kFewSteps = 2;
// Share of the largest gradient below which a gradient is rounding.
constexpr double kRounding = 1e-6;
// A loss below this share of its highest value is learned.
constexpr double kLearned = 0.01;
constexpr absl::string_view kOfSquares = "exp_avg_sq";
// Without signs: a loss may be negative, and a course is of logarithms.
ScanCell AmountOf(ScanCell cell) {
  cell.largest = std::fabs(cell.largest);
  cell.smallest = std::fabs(cell.smallest);
  if (cell.largest < cell.smallest) {
    std::swap(cell.largest, cell.smallest);
    std::swap(cell.largest_rank, cell.smallest_rank);
  }
  return cell;
}

// Returns the kind of a value: "Parameter..grad",
// "Module..parameters_grad..weight".
std::string LikeOf(absl::string_view name) {
  return absl::StrCat(
      name.substr(0, name.find('.')), "..",
      absl::StrContains(name, ".parameters_grad.") ? "parameters_grad.." : "",
      name.substr(name.rfind('.') + 1));
}

// Of the tensors of batch_isend_irecv some are received into: before the call
// they hold whatever was in that memory. What is sent is the output of a module.
bool MayBeReceiveBuffer(absl::string_view name) {
  return absl::StartsWith(name, "Distributed.batch_isend_irecv.") &&
         absl::StrContains(name, ".input.");
}

class Scanner {
 public:
  Scanner(const ScanInput& input, const ScanOptions& options)
      : input_(input), options_(options), replicated_(input) {
    for (const ScanSeries& series : input.values) {
      if (series.name == "Training.0.debug.fresh_optimizers.1")
        stepped_ = &series.cells;
    }
  }

  std::vector<ScanFinding> RunReplicas() {
    for (size_t value = 0; value < input_.values.size(); ++value) {
      if (input_.values[value].cells.size() != input_.steps.size()) continue;
      FindParting(value);
      FindChanged(value);
    }
    return Collect();
  }

  std::vector<ScanFinding> Run() {
    for (const ScanSeries& series : input_.values) {
      if (series.passes_zero) pass_zero_.insert(series.name);
    }
    FindLargestGradients();
    for (size_t value = 0; value < input_.values.size(); ++value) {
      if (input_.values[value].cells.size() != input_.steps.size() ||
          MayBeReceiveBuffer(input_.values[value].name))
        continue;
      FindNonFinite(value);
      FindMoves(value);
      FindParting(value);
      FindChanged(value);
      FindVanished(value);
      FindNoMore(value);
    }
    FindNotAlike();
    DropMovesWithoutEffect();
    return Collect();
  }

 private:
  const std::vector<ScanCell>& Cells(size_t value) const {
    return input_.values[value].cells;
  }

  void Add(ScanKind kind, size_t column, size_t value, int64_t rank, double now,
           double before) {
    found_.push_back({column,
                      {kind,
                       input_.steps[column],
                       input_.values[value].name,
                       value,
                       rank,
                       now,
                       before,
                       0,
                       {}}});
  }

  void FindNonFinite(size_t value) {
    const std::vector<ScanCell>& cells = Cells(value);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsPresent(cells[i]) || IsFinite(cells[i]) || cells[i].meant)
        continue;
      const bool one = cells[i].non_finite < cells[i].count;
      Add(ScanKind::kNonFinite, i, value,
          one || cells[i].count == 1 ? cells[i].largest_rank : -1,
          cells[i].largest, 0);
      return;
    }
  }

  // The ratio of an update to a number that passes through 0 is unbounded.
  bool IsRatioToOneNumber(absl::string_view name) const {
    return absl::StartsWith(name, "Update.") &&
           absl::ConsumeSuffix(&name, "ratio") &&
           pass_zero_.contains(absl::StrCat(name, "update"));
  }

  // Returns the kind of a gradient or of an average of gradients, or "" for
  // other values.
  static absl::string_view GradientKind(absl::string_view name) {
    if (absl::StrContains(name, ".parameters_grad.")) return "own";
    if (!absl::StartsWith(name, "Parameter.")) return "";
    constexpr absl::string_view kKinds[] = {"grad", "exp_avg", kOfSquares,
                                            "momentum_buffer"};
    for (const absl::string_view kind : kKinds) {
      if (absl::ConsumeSuffix(&name, kind) && absl::EndsWith(name, ".debug."))
        return kind;
    }
    return "";
  }
  void FindLargestGradients() {
    for (const ScanSeries& series : input_.values) {
      const absl::string_view kind = GradientKind(series.name);
      if (kind.empty()) continue;
      double& largest = largest_gradients_[kind];
      for (const ScanCell& cell : series.cells) {
        if (IsFinite(cell)) largest = std::max(largest, cell.largest);
      }
    }
  }
  // The gradient of a bias before a normalization is only rounding.
  bool IsRoundingOfGradients(size_t value) const {
    const absl::string_view kind = GradientKind(input_.values[value].name);
    const auto it = largest_gradients_.find(kind);
    if (it == largest_gradients_.end()) return false;
    const double limit =
        it->second * (kind == kOfSquares ? kRounding * kRounding : kRounding);
    return std::all_of(Cells(value).begin(), Cells(value).end(),
                       [&](const ScanCell& cell) {
                         return !IsFinite(cell) || cell.largest <= limit;
                       });
  }

  // An average of gradients that are 0 in some steps, as those of an expert,
  // falls in these and jumps in the others, and so do its updates.
  bool IsOfSparseGradients(absl::string_view name) const {
    if (!IsStateOfOptimizer(name) && !absl::StartsWith(name, "Update."))
      return false;
    const std::vector<ScanCell>* const gradient =
        replicated_.OfParameter(name, "Parameter", "grad");
    return gradient != nullptr &&
           std::any_of(gradient->begin(), gradient->end(),
                       [](const ScanCell& cell) {
                         return cell.count > 0 && cell.smallest == 0;
                       });
  }

  // The numbers of a course so far. Values fall fast in the first steps of a
  // training, few numbers do not show how far they vary, and a batch may be
  // trained on several times: their trend does not predict the next ones.
  struct Range {
    size_t few;     // steps, in which an earlier number may come again
    double margin;  // the factor by which a number may be beyond them
    size_t known = 0;
    double lowest = HUGE_VAL, highest = 0;
    ScanCell last = {};

    bool Holds(const ScanCell& cell) const {
      // A few numbers do not show how far the value varies.
      return (known < few && IsNear(cell, lowest / margin, highest * margin)) ||
             IsNear(cell, last.smallest, last.largest);
    }
    bool IsNear(const ScanCell& cell, double low, double high) const {
      return cell.largest <= margin * high && cell.smallest * margin >= low;
    }
    void Add(const ScanCell& cell) {
      ++known;
      lowest = std::min(lowest, cell.smallest);
      highest = std::max(highest, cell.largest);
      last = cell;
    }
  };

  bool IsWithoutCourse(size_t value) const {
    const std::string& name = input_.values[value].name;
    return HasNoCourse(name) || IsRatioToOneNumber(name) ||
           IsRoundingOfGradients(value) || IsOfSparseGradients(name);
  }

  void FindMoves(size_t value) {
    const std::string& name = input_.values[value].name;
    if (IsWithoutCourse(value)) return;
    CourseLimits limits(options_, name);
    CourseLimits spread_limits = limits;
    spread_limits.only_up = false;
    limits.passes_zero = input_.values[value].passes_zero;
    const std::vector<ScanCell>& cells = Cells(value);
    Course course, spread;
    size_t quiet_until = 0;
    Range range{options_.least * kFewSteps,
                std::exp(limits.least_distance / 2)};
    for (size_t i = 0; i < cells.size(); ++i) {
      const ScanCell cell = AmountOf(cells[i]);
      if (!IsFinite(cell)) continue;
      // 0 has no logarithm; FindVanished handles it.
      if (cell.largest == 0 || cell.smallest == 0) continue;
      const double apart = cell.largest / cell.smallest;
      if (i >= quiet_until) {
        // If only one rank moves, either the smallest or the largest value
        // stays.
        const bool all =
            !range.Holds(cell) && course.IsMove(cell.largest, limits) &&
            (cell.count < 2 || course.IsMove(cell.smallest, limits));
        // The value of a single rank may also pass through 0.
        const bool one =
            !all && cell.count > 1 && spread.IsMove(apart, spread_limits) &&
            (!limits.passes_zero || course.IsMove(cell.largest, limits));
        if (all || one) {
          const bool up = std::fabs(Course::Log(cell.largest) -
                                    Course::Log(course.Usual())) >=
                          std::fabs(Course::Log(cell.smallest) -
                                    Course::Log(course.Usual()));
          Add(all ? ScanKind::kMove : ScanKind::kRankMoves, i, value,
              one || cell.count == 1
                  ? (up ? cell.largest_rank : cell.smallest_rank)
                  : -1,
              up ? cell.largest : cell.smallest, course.Usual());
          quiet_until = i + options_.window;
          continue;  // not added to the usual range
        }
      }
      range.Add(cell);
      course.Add(std::sqrt(cell.largest) * std::sqrt(cell.smallest),
                 options_.window);
      spread.Add(apart, options_.window);
    }
  }

  // Whether the numbers differ by at most two roundings of a float32.
  static bool IsRounding(double a, double b) {
    return std::fabs(a - b) <= 2.4e-7 * std::max(std::fabs(a), std::fabs(b));
  }

  // Whether the steps are multiples of the first one: the program itself does
  // what happens in them, such as a periodic merge of adapters.
  static bool IsPeriod(const std::vector<size_t>& steps) {
    if (steps.size() < 2 || steps[1] - steps[0] < 2) return false;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] != (i + 1) * steps[0]) return false;
    }
    return true;
  }

  // Whether optimizers step more often in this step than in the next one. When
  // a second training begins, its first updates belong to one step until its
  // optimizer ends the steps, and only the first of them is recorded.
  bool HasMoreUpdates(size_t i) const {
    if (stepped_ == nullptr || i + 1 >= stepped_->size()) return false;
    const ScanCell& here = (*stepped_)[i];
    const ScanCell& next = (*stepped_)[i + 1];
    return IsFinite(here) && IsFinite(next) && here.largest > next.largest;
  }

  // Only the optimizer changes a parameter, so the next step must find the
  // value that the last one left. If that never holds, the program changes the
  // parameter in each step.
  void FindChanged(size_t value) {
    const std::string& name = input_.values[value].name;
    if (!input_.each_step || !absl::StartsWith(name, "Parameter.") ||
        !absl::EndsWith(name, ".param"))
      return;
    const std::vector<ScanCell>* const left =
        replicated_.OfParameter(name, "Update", "param");
    if (left == nullptr) return;
    const std::vector<ScanCell>& cells = Cells(value);
    size_t same = 0;
    std::vector<size_t> changed;
    for (size_t i = 0; i + 1 < cells.size(); ++i) {
      const ScanCell& before = (*left)[i];
      const ScanCell& now = cells[i + 1];
      if (input_.steps[i + 1] != input_.steps[i] + 1 || !IsFinite(before) ||
          !IsFinite(now) || before.count != now.count || HasMoreUpdates(i))
        continue;
      if (before.largest == now.largest && before.smallest == now.smallest) {
        ++same;
      } else if (IsRounding(before.largest, now.largest) &&
                 IsRounding(before.smallest, now.smallest)) {
        // The program adds a number to the weights and subtracts it again.
        continue;
      } else {
        changed.push_back(i + 1);
      }
    }
    if (changed.empty() || same < kLeastAgreed || changed.size() * 10 > same ||
        IsPeriod(changed))
      return;
    const size_t first = changed[0];
    const ScanCell& before = (*left)[first - 1];
    const bool up = before.largest != cells[first].largest;
    Add(ScanKind::kChanged, first, value, -1,
        up ? cells[first].largest : cells[first].smallest,
        up ? before.largest : before.smallest);
  }

  // Whether ranks train alone and average their weights periodically (local
  // SGD): values that differ become equal again, twice or more often.
  static bool AreAveraged(const std::vector<ScanCell>& cells) {
    size_t times = 0;
    bool has_parted = false;
    for (const ScanCell& cell : cells) {
      if (!IsFinite(cell) || cell.count < 2) continue;
      if (RanksAgree(cell) && has_parted) ++times;
      has_parted = !RanksAgree(cell);
    }
    return times >= 2;
  }

  void FindParting(size_t value) {
    const std::vector<ScanCell>& cells = Cells(value);
    if (!replicated_.IsReplicated(input_.values[value].name) ||
        AreAveraged(cells))
      return;
    size_t agreed = 0;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsFinite(cells[i]) || cells[i].count < 2) continue;
      if (RanksAgree(cells[i])) {
        // Zeros agree even in values that are not replicated.
        if (cells[i].largest != 0) ++agreed;
        continue;
      }
      // One agreement may be chance, except for parameters, which start with
      // equal values.
      const bool is_parameter =
          absl::StartsWith(input_.values[value].name, "Parameter.");
      if (agreed >= (is_parameter ? 1 : kLeastAgreed)) {
        Add(ScanKind::kRanksPart, i, value, -1, cells[i].largest,
            cells[i].smallest);
      }
      return;
    }
  }

  void FindVanished(size_t value) {
    const std::string& name = input_.values[value].name;
    if (HasNoCourse(name)) return;
    const std::vector<ScanCell>& cells = Cells(value);
    size_t since = 0;
    ZeroRun zeros;
    Course course;
    double highest = 0, last = 0;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsFinite(cells[i])) continue;
      zeros.Add(cells[i].smallest == 0);
      if (cells[i].smallest != 0) {
        last = cells[i].smallest;
        highest = std::max(highest, last);
        course.Add(last, options_.window);
      } else if (zeros.zeros() == 1) {
        since = i;
      }
    }
    // A loss that fell before it reached 0 is learned.
    if (name == "Training.0.debug.loss" && last < kLearned * highest) return;
    if (zeros.Vanished(options_.least, options_.least)) {
      const bool one = cells[since].largest != 0;
      Add(ScanKind::kVanished, since, value,
          one ? cells[since].smallest_rank : -1, 0, course.Usual());
    }
  }

  // An optimizer's state exists from its first step to the end. A later
  // optimizer of other parameters begins another phase of the training, such as
  // the head alone before the complete model, and has a state of its own.
  void FindNoMore(size_t value) {
    const std::string& name = input_.values[value].name;
    if (!IsStateOfOptimizer(name)) return;
    const std::vector<ScanCell>& cells = Cells(value);
    std::optional<size_t> last;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (IsPresent(cells[i])) {
        last = i;
      } else if (last.has_value() && IsUpdated(name, i)) {
        if (!AreSameUpdated(*last, i)) return;
        Add(ScanKind::kNoMore, i, value, -1, 0, 0);
        return;
      }
    }
  }

  // Whether the parameter of this state was updated in that step: each of
  // several optimizers may run in other steps.
  bool IsUpdated(absl::string_view state, size_t column) {
    if (updated_.empty()) {
      for (const ScanSeries& series : input_.values) {
        absl::string_view name = series.name;
        if (!absl::ConsumePrefix(&name, "Update.") ||
            series.cells.size() != input_.steps.size())
          continue;
        std::vector<bool>& updated = updated_[UpToKind(name)];
        updated.resize(input_.steps.size(), false);
        for (size_t i = 0; i < series.cells.size(); ++i) {
          if (IsPresent(series.cells[i])) updated[i] = true;
        }
      }
    }
    const auto it =
        updated_.find(UpToKind(absl::StripPrefix(state, "Parameter.")));
    return it != updated_.end() && it->second[column];
  }
  // Whether the same parameters were updated in two steps. Call after
  // IsUpdated().
  bool AreSameUpdated(size_t one, size_t other) const {
    return std::all_of(updated_.begin(), updated_.end(), [&](const auto& of) {
      return of.second[one] == of.second[other];
    });
  }
  // Returns "fc.weight.0.debug" for "fc.weight.0.debug.momentum_buffer".
  static std::string UpToKind(absl::string_view name) {
    return std::string(name.substr(0, name.rfind('.')));
  }

  // A layer that is not reduced differs from the first step on, while the
  // others agree in each step.
  void FindNotAlike() {
    struct Like {
      size_t alike = 0;
      // Column and value.
      std::vector<std::pair<size_t, size_t>> unlike;
    };
    std::map<std::string, Like> likes;
    for (size_t value = 0; value < input_.values.size(); ++value) {
      const std::vector<ScanCell>& cells = Cells(value);
      if (cells.size() != input_.steps.size() ||
          !replicated_.IsReplicated(input_.values[value].name))
        continue;
      size_t columns = 0, agree = 0, first = cells.size();
      for (size_t i = 0; i < cells.size(); ++i) {
        if (!IsFinite(cells[i]) || cells[i].count < 2) continue;
        ++columns;
        if (RanksAgree(cells[i])) {
          ++agree;
        } else {
          first = std::min(first, i);
        }
      }
      if (columns < 2) continue;
      Like& like = likes[LikeOf(input_.values[value].name)];
      if (agree == columns) {
        ++like.alike;
      } else if (agree == 0) {
        like.unlike.emplace_back(first, value);
      }
    }
    for (const auto& [name, like] : likes) {
      const size_t all = like.alike + like.unlike.size();
      if (like.alike < kLeastAlike ||
          static_cast<double>(like.unlike.size()) >
              kMostUnlike * static_cast<double>(all))
        continue;
      for (const auto& [column, value] : like.unlike) {
        const ScanCell& cell = Cells(value)[column];
        Add(ScanKind::kNotAlike, column, value, -1, cell.largest,
            cell.smallest);
      }
    }
  }

  // Where the gradients of parameters are recorded, other gradients that move
  // while no other value does have no effect: those of activations (the row of
  // a zero vector behind a normalization, of a token that is not trained), and
  // their total, of which no part has left its course.
  void DropMovesWithoutEffect() {
    const auto has_no_effect = [](absl::string_view name) {
      return name == "Training.0.debug.grad_norm" ||
             (absl::StartsWith(name, "Module.") &&
              absl::StrContains(name, ".backward."));
    };
    if (largest_gradients_.empty()) return;
    std::set<size_t> with_effect;
    for (const auto& [column, finding] : found_) {
      if (!has_no_effect(finding.name)) with_effect.insert(column);
    }
    found_.erase(std::remove_if(found_.begin(), found_.end(),
                                [&](const auto& one) {
                                  return one.second.kind == ScanKind::kMove &&
                                         has_no_effect(one.second.name) &&
                                         !with_effect.contains(one.first);
                                }),
                 found_.end());
  }

  // A fault of one layer changes all layers after it, but the layer itself
  // most. Returns 0 for the other kinds, for which the first value in the order
  // of execution is reported.
  static double DeviationOf(const ScanFinding& finding) {
    if (finding.kind != ScanKind::kRanksPart &&
        finding.kind != ScanKind::kNotAlike &&
        finding.kind != ScanKind::kChanged)
      return 0;
    const double size =
        std::max(std::fabs(finding.now), std::fabs(finding.before));
    if (size == 0) return 0;
    const double deviation = std::fabs(finding.now - finding.before) / size;
    return std::isfinite(deviation) ? deviation : HUGE_VAL;
  }

  // Keeps, for each kind and step, the first value or the one that differs
  // most, and a lasting finding only once.
  std::vector<ScanFinding> Collect() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) {
                       const double of_a = -DeviationOf(a.second);
                       const double of_b = -DeviationOf(b.second);
                       return std::tie(a.first, of_a, a.second.value) <
                              std::tie(b.first, of_b, b.second.value);
                     });
    std::vector<ScanFinding> out;
    // Index in `out` and column of the last finding of each kind.
    std::map<ScanKind, std::pair<size_t, size_t>> last;
    for (auto& [column, finding] : found_) {
      const auto it = last.find(finding.kind);
      const bool lasts = finding.kind != ScanKind::kMove &&
                         finding.kind != ScanKind::kRankMoves;
      if (it != last.end() &&
          (lasts || column < it->second.second + options_.least)) {
        ++out[it->second.first].others;
        continue;
      }
      last[finding.kind] = {out.size(), column};
      out.push_back(std::move(finding));
    }
    return out;
  }

  const ScanInput& input_;
  const ScanOptions& options_;
  // Findings with the column of their step.
  std::vector<std::pair<size_t, ScanFinding>> found_;
  // For each parameter, the columns in which it was updated.
  std::map<std::string, std::vector<bool>> updated_;
  // Names of values.
  absl::flat_hash_set<std::string> pass_zero_;
  // By kind, over all steps.
  absl::flat_hash_map<absl::string_view, double> largest_gradients_;
  // The number of optimizer steps in each step. Null if it was not recorded.
  const std::vector<ScanCell>* stepped_ = nullptr;
  const ReplicatedValues replicated_;
};

}  // namespace

absl::string_view ScanKindText(ScanKind kind) {
  switch (kind) {
    case ScanKind::kNonFinite:
      return "non-finite";
    case ScanKind::kRanksPart:
      return "ranks part";
    case ScanKind::kNotAlike:
      return "not alike";
    case ScanKind::kMove:
      return "move";
    case ScanKind::kRankMoves:
      return "rank moves";
    case ScanKind::kVanished:
      return "vanished";
    case ScanKind::kChanged:
      return "changed";
    case ScanKind::kNoMore:
      return "disappeared";
  }
  return "";
}

// `sign`: 1 or -1.
static bool HasSign(const std::vector<ScanCell>& means, double sign) {
  return std::any_of(means.begin(), means.end(), [&](const ScanCell& mean) {
    return IsFinite(mean) && mean.largest * sign > 0;
  });
}

bool MayPassZero(const ScanSeries& norms, const std::vector<ScanCell>& means) {
  if (norms.cells.size() != means.size()) return false;
  // The loss of a policy or of a critic can have both signs.
  if (absl::StartsWith(norms.name, "Training."))
    return HasSign(means, 1) && HasSign(means, -1);
  bool any = false;
  for (size_t i = 0; i < means.size(); ++i) {
    const ScanCell& norm = norms.cells[i];
    if (!IsFinite(norm) || norm.largest == 0) continue;
    // One step in which the value has several elements is enough to return
    // false.
    const double mean =
        std::max(std::fabs(means[i].largest), std::fabs(means[i].smallest));
    if (means[i].count != norm.count || !IsFinite(means[i]) ||
        !rankprobe::MayPassZero(norms.name, norm.largest, mean))
      return false;
    any = true;
  }
  return any;
}

absl::string_view ForwardOf(absl::string_view name) {
  constexpr absl::string_view kForward = ".forward";
  const size_t at = name.find(absl::StrCat(kForward, "."));
  return at == absl::string_view::npos ? ""
                                       : name.substr(0, at + kForward.size());
}

bool MayBeMask(absl::string_view name,
               const absl::flat_hash_set<absl::string_view>& given) {
  if (absl::StrContains(name, ".parameters_grad.") ||
      absl::StrContains(name, ".backward.") ||
      absl::StrContains(name, ".parameters."))
    return false;
  if (absl::StartsWith(name, "Module.")) return true;
  const absl::string_view call = ForwardOf(name);
  if (call.empty()) return false;
  // The source of a call's input is another call or the program's code.
  if (absl::StartsWith(name.substr(call.size()), ".input.")) return true;
  // The call passes on an infinity, or an argument of it sets one.
  if (given.contains(call)) return true;
  constexpr absl::string_view kFill[] = {
      "masked_fill", "masked_fill_", "full",          "full_like",
      "new_full",    "fill_",        "scalar_tensor", "where",
      "__setitem__", "index_fill",   "index_fill_",   "pad"};
  const std::vector<absl::string_view> words =
      absl::StrSplit(call, absl::MaxSplits('.', 2));
  return std::find(std::begin(kFill), std::end(kFill), words[1]) !=
         std::end(kFill);
}

bool IsOfExchange(absl::string_view name) {
  return absl::StrContains(name, "all_to_all");
}

bool IsOfExpert(absl::string_view name) {
  return absl::StrContains(name, "expert");
}

void SortFindings(std::vector<ScanFinding>* findings) {
  std::stable_sort(findings->begin(), findings->end(),
                   [](const ScanFinding& a, const ScanFinding& b) {
                     return std::tie(a.step, a.value) <
                            std::tie(b.step, b.value);
                   });
}

std::vector<ScanFinding> ScanReplicas(const ScanInput& input) {
  const ScanOptions options;
  return Scanner(input, options).RunReplicas();
}

std::vector<ScanFinding> Scan(const ScanInput& input,
                              const ScanOptions& options) {
  return Scanner(input, options).Run();
}

}  // namespace rankprobe::analysis
