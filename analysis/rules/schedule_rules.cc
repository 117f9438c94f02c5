// SPDX-License-Identifier: Apache-2.0
// Sequences that begin again: the learning rate's schedule, the order of batches.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"

namespace rankprobe::analysis {
namespace {

// Of the first parameter group, up to a step that has none.
std::vector<double> FirstRates(const RankInput& input, const RankSeries& rank) {
  std::vector<double> rates;
  for (size_t i = 0; i < input.steps.size(); ++i) {
    const std::vector<double> all = TrainingAt(rank, "lr", i);
    if (all.empty()) break;
    rates.push_back(all[0]);
  }
  return rates;
}

bool Changes(const std::vector<double>& rates) {
  return std::adjacent_find(rates.begin(), rates.end(),
                            std::not_equal_to<>()) != rates.end();
}

// The learning rates of successive steps.
class ScheduleRule : public RankRule {
 public:
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override {
    return "none besides the recording";
  }
  absl::string_view subject() const override {
    return "a learning rate that changes";
  }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "lr");
  }
};

// A scheduler whose state a checkpoint does not have.
class ScheduleRestarts : public ScheduleRule {
 public:
  absl::string_view name() const override { return "schedule-restarts"; }
  absl::string_view twin() const override {
    return "a constant learning rate; warm restarts at the end of a cycle, "
           "which is a tenth of the highest rate or less; other restarts on "
           "purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<std::vector<double>> rates;
      rates.reserve(input.steps.size());
      for (size_t i = 0; i < input.steps.size(); ++i)
        rates.push_back(TrainingAt(rank, "lr", i));
      if (std::adjacent_find(rates.begin(), rates.end(),
                             std::not_equal_to<>()) != rates.end())
        Judge();
      const std::optional<size_t> again = BeginsAgain(rates);
      if (!again.has_value()) continue;
      RankFinding finding;
      finding.step = input.steps[*again];
      finding.name = "Training.0.debug.lr";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the learning rate jumps from ", rates[*again - 1][0], " to ",
          rates[*again][0], " and repeats that of the steps from ",
          input.steps[0],
          " on: the scheduler's state was not restored, or these are warm "
          "restarts");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 4;  // steps that are repeated
  // Of the highest rate.
  static constexpr double kEnd = 0.1;

  static double Highest(const std::vector<std::vector<double>>& rates,
                        size_t steps) {
    double highest = 0;
    for (size_t i = 0; i < steps; ++i) highest = std::max(highest, rates[i][0]);
    return highest;
  }
  static bool AreOfOneSize(const std::vector<std::vector<double>>& rates,
                           size_t from, size_t to) {
    return std::all_of(
        rates.begin() + static_cast<std::ptrdiff_t>(from),
        rates.begin() + static_cast<std::ptrdiff_t>(to),
        [&](const auto& one) { return one.size() == rates[0].size(); });
  }
  // The first step from which on the rates are those of the first steps.
  static std::optional<size_t> BeginsAgain(
      const std::vector<std::vector<double>>& rates) {
    for (size_t at = kLeast; at + kLeast <= rates.size(); ++at) {
      if (rates[0].empty() || rates[at] != rates[0] ||
          !AreOfOneSize(rates, at - kLeast, at))
        continue;
      size_t same = 0, changes = 0;
      while (at + same < rates.size() && same < at &&
             rates[at + same] == rates[same]) {
        if (same > 0 && rates[same] != rates[same - 1]) ++changes;
        ++same;
      }
      // Up to the end, or to where it begins once more.
      if ((same < at && at + same < rates.size()) || changes + 1 < kLeast)
        continue;
      // A course that turns back passes the same rates without a jump.
      const auto change = [&](size_t i) {
        return std::fabs(rates[i][0] - rates[i - 1][0]);
      };
      const double usual =
          std::max({change(at - 1), change(at - 2), change(at - 3)});
      // A warm restart after the end of a cycle is intended.
      const bool is_at_end = rates[at - 1][0] < kEnd * Highest(rates, at);
      if (change(at) > 2 * usual && !is_at_end) return at;
    }
    return std::nullopt;
  }
};

// A cosine that is stepped beyond its end rises again.
class ScheduleTurnsBack : public ScheduleRule {
 public:
  absl::string_view name() const override { return "schedule-turns-back"; }
  absl::string_view twin() const override {
    return "a schedule that ends at its lowest rate; cycles that begin at "
           "their lowest rate; cycles on purpose: worth a look, no fault";
  }
  size_t LeastSteps() const override { return 2 * kLeast + 1; }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<double> rates = FirstRates(input, rank);
      if (Changes(rates)) Judge();
      const size_t low = TurnsAt(rates);
      if (low == 0) continue;
      RankFinding finding;
      finding.step = input.steps[low];
      finding.name = "Training.0.debug.lr";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the learning rate falls from ", rates[0], " to ", rates[low],
          " and rises again by the same course: a cosine schedule is stepped "
          "beyond its T_max (once a batch, with a T_max in epochs), or these "
          "are cycles on purpose");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 4;  // steps down, and up
  // Of the first rate, which is the highest.
  static constexpr double kLowest = 0.05;
  static constexpr double kRisen = 0.5;

  // The step of the lowest rate; 0: it does not turn back.
  static size_t TurnsAt(const std::vector<double>& rates) {
    if (rates.empty()) return 0;
    const double first = rates[0];
    for (size_t low = kLeast; low + kLeast < rates.size(); ++low) {
      if (rates[low - 1] > first * (1 + 1e-6)) return 0;
      if (rates[low] > kLowest * first) continue;
      size_t up = 0;
      while (up < low && low + up + 1 < rates.size() &&
             rates[low + up + 1] > rates[low + up] &&
             std::fabs(rates[low + up + 1] - rates[low - up - 1]) <
                 1e-5 * first)
        ++up;
      if (up >= kLeast && rates[low + up] > kRisen * first) return low;
    }
    return 0;
  }
};

// A schedule in epochs that is stepped once a batch is over long before the
// training is.
class ScheduleEndsEarly : public ScheduleRule {
 public:
  absl::string_view name() const override { return "schedule-ends-early"; }
  absl::string_view twin() const override {
    return "a schedule that ends at its lowest rate; rates that rise again";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      const std::vector<double> rates = FirstRates(input, rank);
      if (!Changes(rates)) continue;
      Judge();
      const double highest = *std::max_element(rates.begin(), rates.end());
      size_t from = rates.size();
      while (from > 0 && rates[from - 1] < kNothing * highest) --from;
      const size_t rest = rates.size() - from;
      if (rest < kLeast || rest * 4 < rates.size()) continue;
      while (from > 0 && rates[from - 1] < kLittle * highest) --from;
      RankFinding finding;
      finding.step = input.steps[from];
      finding.name = "Training.0.debug.lr";
      finding.exact = false;
      finding.what = absl::StrCat(
          "the learning rate falls from ", highest, " to ", rates.back(),
          " and is below a ten-thousandth of its highest in the last ", rest,
          " of ", rates.size(), " steps, which change next to nothing: ",
          FallsInJumps(rates)
              ? "it falls in jumps. ReduceLROnPlateau watches a number that "
                "does not improve (mode='max' with a loss), or the milestones "
                "are too early"
              : "the schedule is made for epochs and stepped once a batch, or "
                "made for fewer steps");
      return {finding};
    }
    return {};
  }

 private:
  // Whether the rate stays in most steps.
  static bool FallsInJumps(const std::vector<double>& rates) {
    size_t jumps = 0;
    for (size_t i = 1; i < rates.size(); ++i)
      jumps += rates[i] != rates[i - 1] ? 1 : 0;
    return jumps > 1 && jumps * 2 < rates.size();
  }

  static constexpr size_t kLeast = 6;  // steps
  // Of the highest rate.
  static constexpr double kNothing = 1e-4, kLittle = 0.05;
};

// A sampler that does not get the epoch, or data that begins again after a
// resume.
class BatchesInOneOrder : public RankRule {
 public:
  absl::string_view name() const override { return "batches-in-one-order"; }
  absl::string_view needs() const override { return "training"; }
  absl::string_view cost() const override { return "that of batch-repeated"; }
  absl::string_view subject() const override {
    return "16 targets or more in each loss of a step";
  }
  absl::string_view twin() const override {
    return "epochs that are shuffled; a few batches that are used again and "
           "again on purpose";
  }
  size_t LeastSteps() const override { return 2 * kLeast; }
  bool NeedsEachStep() const override { return true; }
  bool CanJudge(const RankInput& input) const override {
    return KnowsTraining(input, "target_checksum");
  }
  std::vector<RankFinding> Look(const RankInput& input) const override {
    for (const RankSeries& rank : input.ranks) {
      std::vector<std::vector<double>> batches;
      batches.reserve(input.steps.size());
      for (size_t i = 0; i < input.steps.size(); ++i)
        batches.push_back(TargetsOf(rank, i));
      if (std::any_of(batches.begin(), batches.end(),
                      [](const auto& batch) { return !batch.empty(); }))
        Judge();
      const std::optional<std::pair<size_t, size_t>> again = Repeated(batches);
      if (!again.has_value()) continue;
      RankFinding finding;
      finding.step = input.steps[again->first + again->second];
      if (input.ranks.size() > 1) finding.rank = rank.rank;
      finding.name = "Training.0.debug.target_checksum";
      finding.exact = false;
      finding.what = absl::StrCat(
          "from here on the targets are those of the steps from ",
          input.steps[again->first], " on, in the same order: ", again->second,
          " steps later the data begins again and is not shuffled "
          "(DistributedSampler.set_epoch() is not called), or a resume did not "
          "skip what was trained on");
      return {finding};
    }
    return {};
  }

 private:
  static constexpr size_t kLeast = 6;  // batches in one order

  static std::vector<double> TargetsOf(const RankSeries& rank, size_t step) {
    const std::vector<double> tokens = TrainingAt(rank, "loss_tokens", step);
    // Few targets may be the same by chance.
    const bool are_many =
        std::all_of(tokens.begin(), tokens.end(),
                    [](double count) { return count >= kLeastTargets; });
    if (!are_many) return {};
    return TrainingAt(rank, "target_checksum", step);
  }
  static constexpr double kLeastTargets = 16;

  // The first of the steps that come again, and after how many steps they do so:
  // the fewest.
  static std::optional<std::pair<size_t, size_t>> Repeated(
      const std::vector<std::vector<double>>& batches) {
    // Equal batches have one number; 0: its targets say nothing.
    std::map<std::vector<double>, size_t> known;
    std::vector<size_t> numbers;
    numbers.reserve(batches.size());
    for (const std::vector<double>& batch : batches) {
      numbers.push_back(
          batch.empty()
              ? 0
              : known.try_emplace(batch, known.size() + 1).first->second);
    }
    // (steps later, step)
    std::optional<std::pair<size_t, size_t>> again, constant;
    std::map<std::vector<size_t>, std::vector<size_t>> rows;
    std::map<size_t, std::vector<size_t>> twice;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == 0) continue;
      KeepNearest(twice[numbers[i]], i, &constant);
      if (i > 0 && numbers[i] == numbers[i - 1]) twice[numbers[i]].push_back(i);
      if (i + kLeast > numbers.size()) continue;
      const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(i);
      std::vector<size_t> row(begin, begin + kLeast);
      if (std::find(row.begin(), row.end(), 0) != row.end()) continue;
      std::vector<size_t>& places = rows[std::move(row)];
      KeepNearest(places, i, &again);
      places.push_back(i);
    }
    if (!again.has_value()) return std::nullopt;
    // One batch for all of the training.
    if (constant.has_value() &&
        *constant < std::make_pair(again->first, again->second + kLeast))
      return std::nullopt;
    return std::make_pair(again->second, again->first);
  }

  // The last of these places that is kLeast or more before `at`.
  static void KeepNearest(const std::vector<size_t>& places, size_t at,
                          std::optional<std::pair<size_t, size_t>>* kept) {
    if (at < kLeast) return;
    const auto behind =
        std::upper_bound(places.begin(), places.end(), at - kLeast);
    if (behind == places.begin()) return;
    const size_t place = *std::prev(behind);
    const auto found = std::make_pair(at - place, place);
    if (!kept->has_value() || found < **kept) *kept = found;
  }
};

}  // namespace

void AddScheduleRules(std::vector<std::unique_ptr<RankRule>>* rules) {
  rules->push_back(std::make_unique<ScheduleRestarts>());
  rules->push_back(std::make_unique<ScheduleTurnsBack>());
  rules->push_back(std::make_unique<ScheduleEndsEarly>());
  rules->push_back(std::make_unique<BatchesInOneOrder>());
}

}  // namespace rankprobe::analysis
