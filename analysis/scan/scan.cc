// SPDX-License-Identifier: Apache-2.0
#include "analysis/scan/scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

// The logarithm of a norm wanders by some percent in a sound run; no move is
// measured in less.
constexpr double kLeastDeviation = 0.1;
// Of normal numbers: what a median of absolute deviations stands for.
constexpr double kDeviationOfMad = 1.4826;
// Of a kind of values so many must agree over ranks for the rest to stand out.
constexpr size_t kLeastAlike = 3;
// It wanders less than what it is made of.
constexpr double kLossFactor = 2;
// Steps.
constexpr size_t kLeastAgreed = 3;
constexpr double kMostUnlike = 0.34;

bool IsPresent(const ScanCell& cell) { return cell.count > 0; }
bool IsFinite(const ScanCell& cell) {
  return cell.count > 0 && cell.non_finite == 0 &&
         std::isfinite(cell.largest) && std::isfinite(cell.smallest);
}
bool RanksAgree(const ScanCell& cell) { return cell.largest == cell.smallest; }

double Median(std::vector<double> numbers) {
  const auto middle =
      numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

// A parameter's value as the optimizer finds it, or what the optimizer keeps.
bool IsState(absl::string_view name) {
  return absl::StartsWith(name, "Parameter.") &&
         !absl::EndsWith(name, ".grad") && !absl::EndsWith(name, ".param");
}

bool IsLoss(absl::string_view name) {
  return absl::StartsWith(name, "Training.") &&
         absl::StrContains(name, ".debug.loss");
}

// A learning rate falls to nothing, as fast as it likes, and what is added with
// it.
bool IsOfTheSchedule(absl::string_view name) {
  return absl::StartsWith(name, "Update.") ||
         (absl::StartsWith(name, "Training.") &&
          absl::StrContains(name, ".debug.lr"));
}

// Values of one kind: "Parameter..grad", "Module..parameters_grad..weight".
std::string LikeOf(absl::string_view name) {
  return absl::StrCat(
      name.substr(0, name.find('.')), "..",
      absl::StrContains(name, ".parameters_grad.") ? "parameters_grad.." : "",
      name.substr(name.rfind('.') + 1));
}

// The course of a number up to now, and how far the next one is off it.
class Course {
 public:
  Course(const ScanOptions& options, double factor, bool only_up = false)
      : options_(options),
        least_distance_(std::log(factor)),
        only_up_(only_up) {}

  // Against the line through what was: norms fall and rise all the time.
  bool IsMove(double number) const {
    const size_t count = log_.size();
    if (count < options_.least) return false;
    const auto half = static_cast<std::ptrdiff_t>(count / 2);
    const double slope = (Median({log_.end() - half, log_.end()}) -
                          Median({log_.begin(), log_.begin() + half})) /
                         static_cast<double>(count - static_cast<size_t>(half));
    std::vector<double> level, off;
    for (size_t i = 0; i < count; ++i)
      level.push_back(log_[i] + slope * static_cast<double>(count - i));
    const double middle = Median(level);
    for (const double past : level) off.push_back(std::fabs(past - middle));
    const double deviation =
        std::max(kDeviationOfMad * Median(std::move(off)), kLeastDeviation);
    const double off_by = Log(number) - middle;
    const double distance = only_up_ ? off_by : std::fabs(off_by);
    return distance > options_.deviations * deviation &&
           distance > least_distance_;
  }

  double Usual() const { return log_.empty() ? 0 : std::exp(Median(log_)); }

  void Add(double number) {
    log_.push_back(Log(number));
    if (log_.size() > options_.window) log_.erase(log_.begin());
  }

  static double Log(double number) {
    return std::log(
        std::max(std::fabs(number), std::numeric_limits<double>::min()));
  }

 private:
  const ScanOptions& options_;
  const double least_distance_;
  const bool only_up_;
  std::vector<double> log_;
};

class Scanner {
 public:
  Scanner(const ScanInput& input, const ScanOptions& options)
      : input_(input), options_(options) {}

  std::vector<ScanFinding> Run() {
    for (size_t value = 0; value < input_.values.size(); ++value) {
      if (input_.values[value].cells.size() != input_.steps.size()) continue;
      FindNonFinite(value);
      FindMoves(value);
      FindParting(value);
      FindVanished(value);
      FindNoMore(value);
    }
    FindNotAlike();
    return Collect();
  }

 private:
  const std::vector<ScanCell>& Cells(size_t value) const {
    return input_.values[value].cells;
  }

  void Add(ScanKind kind, size_t column, size_t value, int64_t rank, double now,
           double before) {
    found_.push_back({column,
                      {kind, input_.steps[column], input_.values[value].name,
                       value, rank, now, before, 0}});
  }

  void FindNonFinite(size_t value) {
    const std::vector<ScanCell>& cells = Cells(value);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsPresent(cells[i]) || IsFinite(cells[i])) continue;
      const bool one = cells[i].non_finite < cells[i].count;
      Add(ScanKind::kNonFinite, i, value,
          one || cells[i].count == 1 ? cells[i].largest_rank : -1,
          cells[i].largest, 0);
      return;
    }
  }

  void FindMoves(size_t value) {
    const std::string& name = input_.values[value].name;
    // Of the machine, not of the training.
    if (absl::EndsWith(name, ".step_seconds")) return;
    const double factor =
        IsLoss(name) ? std::min(options_.factor, kLossFactor) : options_.factor;
    const std::vector<ScanCell>& cells = Cells(value);
    Course course(options_, factor, IsOfTheSchedule(name)),
        spread(options_, factor);
    size_t quiet_until = 0;
    for (size_t i = 0; i < cells.size(); ++i) {
      const ScanCell& cell = cells[i];
      if (!IsFinite(cell)) continue;
      // 0 has no logarithm: FindVanished looks at it.
      if (cell.largest == 0 || cell.smallest == 0) continue;
      const double apart = cell.largest / cell.smallest;
      if (i >= quiet_until) {
        // Where one rank alone moves the smallest one stays, or the largest.
        const bool all = course.IsMove(cell.largest) &&
                         (cell.count < 2 || course.IsMove(cell.smallest));
        const bool one = !all && cell.count > 1 && spread.IsMove(apart);
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
          continue;  // not part of the course
        }
      }
      course.Add(std::sqrt(cell.largest) * std::sqrt(cell.smallest));
      spread.Add(apart);
    }
  }

  void FindParting(size_t value) {
    const std::vector<ScanCell>& cells = Cells(value);
    size_t agreed = 0;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsFinite(cells[i]) || cells[i].count < 2) continue;
      if (RanksAgree(cells[i])) {
        // Zeros agree in values that are not alike, too.
        if (cells[i].largest != 0) ++agreed;
        continue;
      }
      // Once is chance, but of parameters, which begin alike.
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
    const std::vector<ScanCell>& cells = Cells(value);
    size_t before = 0, since = cells.size(), zeros = 0;
    Course course(options_, options_.factor);
    for (size_t i = 0; i < cells.size(); ++i) {
      if (!IsFinite(cells[i])) continue;
      if (cells[i].smallest != 0) {
        ++before;
        course.Add(cells[i].smallest);
        since = cells.size();
        zeros = 0;
      } else if (zeros++ == 0) {
        since = i;
      }
    }
    if (since < cells.size() && before >= options_.least &&
        zeros >= options_.least) {
      const bool one = cells[since].largest != 0;
      Add(ScanKind::kVanished, since, value,
          one ? cells[since].smallest_rank : -1, 0, course.Usual());
    }
  }

  // An optimizer's state is there from its first step to the end.
  void FindNoMore(size_t value) {
    if (!IsState(input_.values[value].name)) return;
    const std::vector<ScanCell>& cells = Cells(value);
    bool there = false;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (IsPresent(cells[i])) {
        there = true;
      } else if (there && IsRecorded(i)) {
        Add(ScanKind::kNoMore, i, value, -1, 0, 0);
        return;
      }
    }
  }

  // Whether parameters were recorded in that step at all.
  bool IsRecorded(size_t column) {
    if (recorded_.empty()) {
      recorded_.resize(input_.steps.size(), false);
      for (const ScanSeries& series : input_.values) {
        if (!absl::StartsWith(series.name, "Update.") ||
            series.cells.size() != input_.steps.size())
          continue;
        for (size_t i = 0; i < series.cells.size(); ++i) {
          if (IsPresent(series.cells[i])) recorded_[i] = true;
        }
      }
    }
    return recorded_[column];
  }

  // A layer that is not reduced differs from the first step on, where the others
  // agree in each.
  void FindNotAlike() {
    struct Like {
      size_t alike = 0;
      // (column, value)
      std::vector<std::pair<size_t, size_t>> unlike;
    };
    std::map<std::string, Like> likes;
    for (size_t value = 0; value < input_.values.size(); ++value) {
      const std::vector<ScanCell>& cells = Cells(value);
      if (cells.size() != input_.steps.size()) continue;
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

  // Of each kind and step the first value; what lasts, only once.
  std::vector<ScanFinding> Collect() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const auto& a, const auto& b) {
                       return std::tie(a.first, a.second.value) <
                              std::tie(b.first, b.second.value);
                     });
    std::vector<ScanFinding> out;
    // Index in `out` and column of the last one of a kind.
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
  // With the column of its step.
  std::vector<std::pair<size_t, ScanFinding>> found_;
  std::vector<bool> recorded_;
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
    case ScanKind::kNoMore:
      return "no more there";
  }
  return "";
}

std::vector<ScanFinding> Scan(const ScanInput& input,
                              const ScanOptions& options) {
  return Scanner(input, options).Run();
}

}  // namespace rankprobe::analysis
