// SPDX-License-Identifier: Apache-2.0
// Rules over the values of each rank: the values of one rank must be consistent
// with those of another, or with those of the same rank elsewhere in the step
// (docs/rules.md). They need no reference. Pure functions of plain values.
#ifndef RANKPROBE_ANALYSIS_RULES_RANK_RULE_H_
#define RANKPROBE_ANALYSIS_RULES_RANK_RULE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "analysis/rules/judged.h"

namespace rankprobe::analysis {

// The statistics of a value at one step on one rank.
struct RankCell {
  bool is_there = false;
  double norm = 0;
  double mean = 0;
  double largest = 0;
  double smallest = 0;
};

// Values of one rank. Every series has one cell for each step.
struct RankSeries {
  int64_t rank = 0;
  std::map<std::string, std::vector<RankCell>, std::less<>> values;

  // Returns null if the value was not recorded.
  const std::vector<RankCell>* Find(absl::string_view name) const;
  // Returns the series for a prefix such as "Parameter", a parameter such as
  // "layers.0.fc.weight" and a word such as "grad".
  const std::vector<RankCell>* Of(absl::string_view prefix,
                                  absl::string_view parameter,
                                  absl::string_view what) const;
};

struct RankInput {
  std::vector<int64_t> steps;
  std::vector<RankSeries> ranks;
};

struct RankFinding {
  int64_t step = 0;
  int64_t rank = -1;
  std::string name;
  std::string what;  // a sentence
  // True if numbers that must agree do not; false if they are only unusual.
  bool exact = true;
  size_t others = 0;
  // Relative difference of the values that must be equal. Of a rule's findings
  // in one step, the one with the largest deviation is reported.
  double deviation = 0;
};

class RankRule : public Judged {
 public:
  // The name of the rule, such as "clip-uneven".
  virtual absl::string_view name() const = 0;
  // The required words of monitor.values.
  virtual absl::string_view needs() const = 0;
  virtual absl::string_view cost() const {
    return "the values of each rank: one query of the archive for each "
           "statistic";
  }
  // Correct programs that look similar and must not be reported.
  virtual absl::string_view twin() const = 0;
  virtual bool IsOfRanks() const { return false; }
  // The number of recorded steps that the rule needs to find anything, and
  // whether they must be successive.
  virtual size_t LeastSteps() const = 0;
  virtual bool NeedsEachStep() const { return false; }
  // Whether the required values were recorded.
  virtual bool CanJudge(const RankInput& input) const = 0;
  virtual std::vector<RankFinding> Look(const RankInput& input) const = 0;
};

std::vector<std::unique_ptr<RankRule>> AllRankRules();
// The rules of each file.
void AddGradientRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddClipRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddReductionRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddForwardRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddReplicaRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddCollectiveRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddGatherRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddParallelRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddMicroRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddMessageRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddWeightRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddLossRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddBatchRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddAttentionRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddAverageRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddModeRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddBlockRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddOriginRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddDataRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddScheduleRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddObjectiveRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddShapeRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddStartRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddLayerRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddStateRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddCallRules(std::vector<std::unique_ptr<RankRule>>* rules);
void AddResidualRules(std::vector<std::unique_ptr<RankRule>>* rules);

// Gradients that backward left in a parameter on one rank, for each micro
// batch.
struct OwnGradient {
  std::string parameter;
  // In the order of the micro batches. If a module is called several times in
  // one backward, there is one for each call.
  std::vector<const std::vector<RankCell>*> micro;
};
std::vector<OwnGradient> OwnGradientsOf(const RankSeries& rank);
// Returns the gradient of the last micro batch of a step (an index), or null.
const RankCell* LastMicro(const OwnGradient& own, size_t step);

// Whether a bias shows that gradients hold one backward alone: its gradient is
// the sum of what arrives at its layer, so that the quotient of their means, the
// number of rows, is the same in each step. False if no bias shows it.
bool AreOfOneBackward(const RankSeries& rank,
                      const std::vector<OwnGradient>& gradients);

// Returns false if the backwards of a step belong to several losses: some
// parameters have fewer backwards than others, or one loss is always larger.
bool MayBeMicroBatches(const RankInput& input, const RankSeries& rank);

// Returns the names of the parameters that the rank's optimizer held.
std::vector<std::string> ParametersOf(const RankSeries& rank);
bool HasParameters(const RankInput& input);
// Whether any rank has a value whose name ends so.
bool HasValueEnding(const RankInput& input, absl::string_view suffix);
// Whether a rank recorded both the gradients that backward left and those that
// its optimizer holds.
bool HasOwnGradients(const RankInput& input);

// Returns the finite values of `name` in Training at a step (an index): one
// value, or a list.
std::vector<double> TrainingAt(const RankSeries& rank, absl::string_view name,
                               size_t step);
// Whether a rank recorded the value in any step.
bool KnowsTraining(const RankInput& input, absl::string_view name);

// Returns groups of ranks, as indices of input.ranks, that hold the same
// parameters in the first step that has them: replicas of each other. Each rank
// is in one group. Stages of a pipeline are in different ones.
std::vector<std::vector<size_t>> ReplicasOf(const RankInput& input);
// Returns groups of ranks, as indices of input.ranks, none of which are stages of
// one pipeline that begin with the same numbers, as one seed on each rank makes
// them. Stages that share only some parameters are in one group.
std::vector<std::vector<size_t>> WithoutStages(const RankInput& input);

// The finite values of `name` at a step on the ranks of a group that recorded
// it, with their ranks. They point into `input`.
using HeldCells = std::vector<std::pair<int64_t, const RankCell*>>;
HeldCells HeldAt(const RankInput& input, const std::vector<size_t>& group,
                 absl::string_view name, size_t step);
bool AreAllEqual(const HeldCells& held);

// Calls `see` for each value of the module with this path ("layers.0.fc"), which
// is called "Module.{path}.{class}{what}": with its name, with `what`, such as
// ".backward.0.input.0", and with its cells. Values of modules in it are seen,
// too; their `what` begins with their own name.
void ForEachOfModule(
    const RankSeries& rank, absl::string_view path,
    absl::FunctionRef<void(const std::string& name, absl::string_view what,
                           const std::vector<RankCell>& cells)>
        see);

// Keeps the earliest of the findings of several values in `found`; within one
// step, that with the largest deviation. Counts the others of that step.
void KeepEarliest(std::optional<RankFinding> one,
                  std::optional<RankFinding>* found);

// Returns the largest difference of a statistic, relative to the norm.
double DeviationOf(const RankCell& a, const RankCell& b);
// Whether each of the four statistics is equal.
bool AreEqual(const RankCell& a, const RankCell& b);
// Whether both may be of one tensor: the order of a sum may depend on where a
// tensor is in memory, and with it the last digits of Norm and Mean.
bool AreClose(const RankCell& a, const RankCell& b);
bool IsFinite(const RankCell& cell);
// Returns the largest absolute value.
double LargestOf(const RankCell& cell);
double MedianOf(std::vector<double> values);

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_RULES_RANK_RULE_H_
