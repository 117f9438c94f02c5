// SPDX-License-Identifier: Apache-2.0
// Rules of data, modes and frozen parameters on values that are made here, with
// and without their fault.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kDataSteps = 16;

// One rank with three parameters that are trained.
class DataRulesTest : public ::testing::Test {
 protected:
  DataRulesTest() {
    for (size_t i = 0; i < kDataSteps; ++i)
      input_.steps.push_back(static_cast<int64_t>(i));
    input_.ranks.emplace_back();
    for (const char* const name : {"a", "b", "c"}) {
      for (size_t i = 0; i < kDataSteps; ++i) {
        const double x = std::sin(static_cast<double>(7 * i + name[0]));
        Set(absl::StrCat("Module.", name, ".L.parameters_grad.0.w"), i, x);
        Set(absl::StrCat("Parameter.", name, ".w.0.debug.grad"), i, x);
        Set(absl::StrCat("Parameter.", name, ".w.0.debug.param"), i, x + 2);
        Set(absl::StrCat("Update.", name, ".w.0.debug.update"), i, 0.1 * x);
        Set(absl::StrCat("Update.", name, ".w.0.debug.param"), i, x + 2.1);
      }
    }
  }
  RankCell& At(const std::string& name, size_t step) {
    std::vector<RankCell>& cells = input_.ranks[0].values[name];
    cells.resize(kDataSteps);
    return cells[step];
  }
  void Set(const std::string& name, size_t step, double value) {
    At(name, step) = {true, std::fabs(value), value / 8, value / 2, -value};
  }
  void Training(const std::string& name, size_t step, double value) {
    At(absl::StrCat("Training.0.debug.", name), step) = {true, std::fabs(value),
                                                         value, value, value};
  }
  // Of the rule of that name alone.
  std::vector<RankFinding> Find(absl::string_view name) const {
    std::vector<RankFinding> found;
    for (const auto& rule : AllRankRules()) {
      EXPECT_FALSE(rule->needs().empty() || rule->cost().empty() ||
                   rule->twin().empty());
      if (rule->name() != name || !rule->CanJudge(input_)) continue;
      found = rule->Look(input_);
      EXPECT_TRUE(found.empty() || rule->has_judged()) << name;
    }
    return found;
  }
  RankInput input_;
};

TEST_F(DataRulesTest, OneInputForAllTargets) {
  const auto take = [&](double input, double target) {
    for (size_t i = 0; i < 3; ++i) {
      const auto step = static_cast<double>(i);
      Training("input_checksum", i, 50 + input * step);
      Training("target_checksum", i, 90 + target * step);
    }
  };
  take(1, 1);
  EXPECT_THAT(Find("input-constant"), IsEmpty());
  // One batch on purpose.
  take(0, 0);
  EXPECT_THAT(Find("input-constant"), IsEmpty());
  take(0, 1);
  const auto found = Find("input-constant");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(DataRulesTest, RandomNumbersThatRepeat) {
  for (const auto& [rule, value] :
       {std::pair("target-constant", "regression_checksum"),
        std::pair("random-repeats", "dropout_checksum")}) {
    const auto take = [&, name = value](double input, double first,
                                        double change) {
      for (size_t i = 0; i < 3; ++i) {
        const auto step = static_cast<double>(i);
        Training("input_checksum", i, 50 + input * step);
        Training(name, i, first + change * step);
      }
    };
    take(1, 7, 1);
    EXPECT_THAT(Find(rule), IsEmpty());
    // One batch on purpose, and labels of a discriminator.
    take(0, 7, 0);
    EXPECT_THAT(Find(rule), IsEmpty());
    take(1, 0, 0);
    EXPECT_THAT(Find(rule), IsEmpty());
    take(1, 7, 0);
    const auto found = Find(rule);
    ASSERT_THAT(found, SizeIs(1)) << rule;
    EXPECT_FALSE(found[0].exact);
    EXPECT_EQ(found[0].name, absl::StrCat("Training.0.debug.", value));
  }
}

TEST_F(DataRulesTest, TheOptimizerStepsTwiceForOneBackward) {
  // In each second step there is a loss and a gradient of its own.
  const auto step = [&](bool is_again) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      const bool is_first = i % 2 == 0;
      if (is_first) Training("loss", i, 2);
      for (const char* const name : {"a", "b", "c"}) {
        At(absl::StrCat("Module.", name, ".L.parameters_grad.0.w"), i)
            .is_there = is_first;
        RankCell& taken =
            At(absl::StrCat("Parameter.", name, ".w.0.debug.grad"), i);
        if (!is_first && is_again)
          taken =
              At(absl::StrCat("Parameter.", name, ".w.0.debug.grad"), i - 1);
      }
    }
  };
  // Another optimizer's.
  step(false);
  EXPECT_THAT(Find("gradient-reused"), IsEmpty());
  step(true);
  const auto found = Find("gradient-reused");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].step, 1);
  EXPECT_THAT(found[0].what, HasSubstr("in 8 of 16 steps"));
}

TEST_F(DataRulesTest, AnAverageOfTheWeights) {
  // `before`: taken of the weights that the optimizer finds.
  const auto follow = [&](double weight, bool before) {
    double average = 0.4;
    for (size_t i = 0; i < kDataSteps; ++i) {
      At("Module.teacher.w.L.forward.0.parameters.w", i) = {true, 1, average, 1,
                                                            -1};
      const RankCell& newest = At(absl::StrCat(before ? "Parameter" : "Update",
                                               ".net.w.w.0.debug.param"),
                                  i);
      average += weight * (newest.mean - average);
    }
  };
  for (size_t i = 0; i < kDataSteps; ++i) {
    Set("Parameter.net.w.w.0.debug.grad", i, 1);
    Set("Parameter.net.w.w.0.debug.param", i, 3 + std::sin(i));
    Set("Update.net.w.w.0.debug.param", i, 3 + std::sin(i + 1));
    Set("Update.net.w.w.0.debug.update", i, 1);
  }
  for (const bool before : {false, true}) {
    for (const double sound : {0.001, 0.1, 0.5, 1.}) {
      follow(sound, before);
      EXPECT_THAT(Find("average-inverted"), IsEmpty()) << sound;
    }
    for (const double wrong : {0.99, 0.999, -0.01}) {
      follow(wrong, before);
      const auto found = Find("average-inverted");
      ASSERT_THAT(found, SizeIs(1)) << wrong;
      EXPECT_FALSE(found[0].exact);
      EXPECT_THAT(found[0].what, HasSubstr("of the weights of net.w.w"));
      EXPECT_THAT(found[0].what,
                  HasSubstr(wrong < 0 ? "subtracted" : "nearly a copy"));
    }
  }
}

TEST_F(DataRulesTest, ObjectivesThatCannotBeLearned) {
  Training("loss", 1, 2);
  const auto range = [&](double apart, double classes) {
    Training("logits_range.0", 1, apart);
    Training("logits_range.1", 1, classes);
    return Find("logits-bounded");
  };
  // No bound, a temperature of 0.5, two classes behind a tanh.
  EXPECT_THAT(range(0, 10), IsEmpty());
  EXPECT_THAT(range(4, 4096), IsEmpty());
  EXPECT_THAT(range(2, 2), IsEmpty());
  EXPECT_THAT(range(2, 16), SizeIs(1));
  const auto found = range(1, 10);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("cannot fall below 1.46"));
  for (const auto& [rule, value] :
       {std::pair("pair-targets", "pair_targets"),
        std::pair("likelihood-minimised", "minimised_likelihood")}) {
    Training(value, 1, 0);
    EXPECT_THAT(Find(rule), IsEmpty());
    Training(value, 1, 1);
    ASSERT_THAT(Find(rule), SizeIs(1));
    EXPECT_FALSE(Find(rule)[0].exact);
  }
  Training("loss_of_probabilities", 1, 7);
  ASSERT_THAT(Find("loss-of-probabilities"), SizeIs(1));
  EXPECT_FALSE(Find("loss-of-probabilities")[0].exact);
  EXPECT_THAT(Find("loss-of-probabilities")[0].what,
              HasSubstr("several classes of a sample"));
  for (const auto& [name, first] :
       {std::pair("pooled_over_batch", 1.), std::pair("mixed_views", 5.)}) {
    Training(absl::StrCat(name, ".0"), 1, first);
    Training(absl::StrCat(name, ".1"), 1, 8);
  }
  ASSERT_THAT(Find("softmax-dimension"), SizeIs(1));
  EXPECT_FALSE(Find("softmax-dimension")[0].exact);
  ASSERT_THAT(Find("view-mixes"), SizeIs(1));
  EXPECT_TRUE(Find("view-mixes")[0].exact);
  EXPECT_THAT(Find("view-mixes")[0].what, HasSubstr("places and classes mix"));
}

TEST_F(DataRulesTest, ClippingThatDoesNothing) {
  // Misplaced, repeated and all clippings of a step.
  const auto clip = [&](double misplaced, double repeated, double all) {
    for (size_t i = 0; i < 6; ++i) {
      Training("clips.0", i, i == 0 ? 0 : misplaced);
      Training("clips.1", i, repeated);
      Training("clips.2", i, all);
    }
    return Find("clip-misplaced");
  };
  EXPECT_THAT(clip(0, 0, 1), IsEmpty());
  // One of two models.
  EXPECT_THAT(clip(1, 0, 2), IsEmpty());
  auto found = clip(1, 0, 1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("in 5 of 6 steps"));
  EXPECT_THAT(found[0].what, HasSubstr("no effect"));
  found = clip(0, 3, 4);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("after each micro batch"));
  // A generator of parameters that is used up; beside another clipping it is
  // one of a model without any.
  for (size_t i = 0; i < 6; ++i) Training("empty_clips", i, 1);
  found = clip(0, 0, 1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("used up"));
  EXPECT_THAT(clip(0, 0, 2), IsEmpty());
  clip(0, 3, 4);
  // Steps that a scaler leaves out, now and then.
  Training("clips.1", 2, 0);
  Training("clips.1", 3, 0);
  EXPECT_THAT(Find("clip-misplaced"), IsEmpty());
}

TEST_F(DataRulesTest, AnOptimizerThatIsMadeInTheLoop) {
  const auto step = [&](double fresh, double all) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      Training("fresh_optimizers.0", i, i == 0 ? all : fresh);
      Training("fresh_optimizers.1", i, all);
    }
    return Find("optimizer-anew");
  };
  EXPECT_THAT(step(0, 1), IsEmpty());
  EXPECT_THAT(step(1, 2), IsEmpty());
  const auto found = step(1, 1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  // Made again once.
  Training("fresh_optimizers.0", 7, 0);
  EXPECT_THAT(Find("optimizer-anew"), IsEmpty());
}

TEST_F(DataRulesTest, PositionsAlongTheBatch) {
  // Of three features in two steps; a dropout hides one of the first step.
  const auto apart = [&](double first, double second) {
    for (size_t k = 0; k < 4; ++k) {
      const std::string name = absl::StrCat("positions_of_batch.", k);
      const double x = 0.1 * static_cast<double>(k + 1);
      Training(name, 0, k == 3 ? 0 : x * first);
      Training(name, 1, x * second);
      Training(name, 2, 0);
    }
    return Find("positions-along-batch");
  };
  EXPECT_THAT(apart(0, 0), IsEmpty());
  EXPECT_THAT(apart(0, 1), IsEmpty());
  // A condition of each sample.
  EXPECT_THAT(apart(1, 1.1), IsEmpty());
  const auto found = apart(1, 1);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
}

TEST_F(DataRulesTest, ALossThatDivergesIsNoGradientThatIsNotZeroed) {
  // Gradients grow, each a little more than the one before.
  for (size_t i = 0; i < kDataSteps; ++i) {
    const double x = 1 + static_cast<double>(i);
    for (const char* const name : {"a", "b", "c"}) {
      Set(absl::StrCat("Module.", name, ".L.parameters_grad.0.w"), i, x);
      Set(absl::StrCat("Parameter.", name, ".w.0.debug.grad"), i, x);
    }
  }
  ASSERT_THAT(Find("gradients-not-zeroed"), SizeIs(1));
  // 32 rows arrive in each step: the gradient holds one backward.
  const auto arrive = [&](double more) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      const double x = 1 + static_cast<double>(i);
      Set("Module.a.L.parameters_grad.0.bias", i, x);
      At("Module.a.L.backward.0.input.0", i) = {true, x, x / 256 + more * x * x,
                                                x / 32, -x};
    }
  };
  arrive(1e-4);
  EXPECT_THAT(Find("gradients-not-zeroed"), SizeIs(1));
  arrive(0);
  EXPECT_THAT(Find("gradients-not-zeroed"), IsEmpty());
  // Of the second call of a generator, whose first has no backward.
  auto& values = input_.ranks[0].values;
  values["Module.a.L.backward.1.input.0"] =
      values["Module.a.L.backward.0.input.0"];
  EXPECT_THAT(Find("gradients-not-zeroed"), SizeIs(1));
  values.erase("Module.a.L.backward.0.input.0");
  EXPECT_THAT(Find("gradients-not-zeroed"), IsEmpty());
}

TEST_F(DataRulesTest, ALossThatStaysWhileWeightsMove) {
  const auto lose = [&](double loss, double change) {
    for (size_t i = 0; i < kDataSteps; ++i)
      Training("loss", i, loss + change * static_cast<double>(i));
  };
  lose(0.693147, 1e-4);
  EXPECT_THAT(Find("loss-constant"), IsEmpty());
  // Divided by itself, or less itself.
  for (const double whole : {0., 1., 3.}) {
    lose(whole, 0);
    EXPECT_THAT(Find("loss-constant"), IsEmpty());
  }
  lose(0.693147, 0);
  const auto found = Find("loss-constant");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  // Nothing is trained.
  for (const char* const name : {"a", "b", "c"})
    for (size_t i = 0; i < kDataSteps; ++i)
      Set(absl::StrCat("Parameter.", name, ".w.0.debug.grad"), i, 0);
  EXPECT_THAT(Find("loss-constant"), IsEmpty());
}

TEST_F(DataRulesTest, AFrozenParameterThatMoves) {
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  const auto freeze = [&](double gradient, double moved) {
    for (size_t i = 8; i < kDataSteps; ++i) {
      At("Update.b.w.0.debug.update", i).is_there = false;
      Set("Parameter.b.w.0.debug.grad", i, gradient);
      Set("Parameter.b.w.0.debug.param", i, 2);
      Set("Update.b.w.0.debug.param", i, 2 + moved);
    }
  };
  freeze(0, 0);
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  // The program makes its gradient.
  freeze(1, 0.1);
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  freeze(0, 0.1);
  const auto found = Find("frozen-moves");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_EQ(found[0].step, 8);
  EXPECT_THAT(found[0].what, HasSubstr("b.w requires no gradient"));
}

TEST_F(DataRulesTest, ABackwardThatReachesNothing) {
  for (size_t i = 0; i < kDataSteps; ++i) Training("loss", i, 2);
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
  for (const char* const name : {"a", "b", "c"}) {
    input_.ranks[0].values.erase(
        absl::StrCat("Parameter.", name, ".w.0.debug.grad"));
    for (size_t i = 0; i < kDataSteps; ++i)
      Set(absl::StrCat("Update.", name, ".w.0.debug.update"), i, 0);
  }
  // What backward leaves goes to other tensors.
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
  for (const char* const name : {"a", "b", "c"})
    input_.ranks[0].values.erase(
        absl::StrCat("Module.", name, ".L.parameters_grad.0.w"));
  const auto found = Find("gradient-zero");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("the loss has no graph"));
  // An optimizer whose closure makes the gradients.
  Set("Update.b.w.0.debug.update", 3, 0.1);
  EXPECT_THAT(Find("gradient-zero"), IsEmpty());
}

TEST_F(DataRulesTest, AnEvaluationInTrainingMode) {
  // Calls without gradients in each `every`th step, before the one that trains.
  const auto evaluate = [&](size_t every, const std::string& module,
                            const char* given, double out) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      const size_t calls = i % every == 1 ? 3 : 1;
      for (size_t n = 0; n < 3; ++n) {
        const std::string call = absl::StrCat(module, ".forward.", n, ".");
        const bool is_there = n < calls, is_last = n + 1 == calls;
        At(absl::StrCat(call, given), i) = {is_there, 3, 0.2, 1, -1};
        At(absl::StrCat(call, "output.0"), i) = {
            is_there, is_last ? 3.5 : 3 + 10 * out, is_last ? 0.3 : 0.2 + out,
            1, -1};
        At(absl::StrCat(module, ".backward.", n, ".input.0"), i) = {
            is_last, 0.1, 0, 0.1, -0.1};
      }
    }
  };
  const std::string dropout = "Module.drop.Dropout";
  evaluate(4, dropout, "input.0", 0);
  EXPECT_THAT(Find("evaluation-in-training"), IsEmpty());
  // A generator's, in each step.
  evaluate(2, dropout, "input.0", 0.01);
  EXPECT_THAT(Find("evaluation-in-training"), IsEmpty());
  evaluate(4, dropout, "input.0", 0.01);
  auto found = Find("evaluation-in-training");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].step, 1);
  EXPECT_THAT(found[0].what, HasSubstr("in 4 of 16 steps"));
  evaluate(4, dropout, "input.0", 0);
  // A norm leaves the mean of its bias, unless it is in evaluation.
  evaluate(4, "Module.bn.BatchNorm2d", "parameters.bias", 0.01);
  EXPECT_THAT(Find("evaluation-in-training"), IsEmpty());
  evaluate(4, "Module.bn.BatchNorm2d", "parameters.bias", 0);
  EXPECT_THAT(Find("evaluation-in-training"), SizeIs(1));
}

TEST_F(DataRulesTest, ATeacherInTrainingMode) {
  const std::string dropout = "Module.teacher.2.Dropout";
  const auto teach = [&](double out, double weight) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      const auto step = static_cast<double>(i);
      At(absl::StrCat(dropout, ".forward.0.input.0"), i) = {true, 3 + step, 0.2,
                                                            1, -1};
      At(absl::StrCat(dropout, ".forward.0.output.0"), i) = {
          true, 3 + step + 10 * out, 0.2 + out, 1, -1};
      At("Module.teacher.0.Linear.forward.0.parameters.weight", i) = {
          true, 1 + weight * step, 0.1, 1, -1};
      At("Module.teacher.Net.forward.0.output.0", i) = {true, 7 + step, 0.5, 1,
                                                        -1};
    }
    return Find("evaluation-in-training");
  };
  EXPECT_THAT(teach(0, 0), IsEmpty());
  // An average of the student, with its noise.
  EXPECT_THAT(teach(0.01, 0.1), IsEmpty());
  const auto found = teach(0.01, 0);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("in 16 of 16 steps a model whose"));
  // A frozen backbone, whose output a head takes.
  At("Module.head.Linear.forward.0.input.0", 0) = {true, 7, 0.5, 1, -1};
  EXPECT_THAT(Find("evaluation-in-training"), IsEmpty());
  At("Module.head.Linear.forward.0.input.0", 0).norm = 8;
  EXPECT_THAT(Find("evaluation-in-training"), SizeIs(1));
  // A part of one model.
  At("Module.Net.forward.0.output.0", 0) = {true, 1, 0.5, 1, -1};
  EXPECT_THAT(Find("evaluation-in-training"), IsEmpty());
}

TEST_F(DataRulesTest, ALossWithoutTheFactorOfTheScaler) {
  const auto scale = [&](double first, double second) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      Training("loss_scale", i, 1024);
      for (size_t k = 0; k < 2; ++k) {
        Training(absl::StrCat("loss_tokens.", k), i, 48);
        Training(absl::StrCat("token_weight.", k), i, k == 0 ? first : second);
      }
    }
    Training("target_checksum", 0, 7);
  };
  scale(1024, 512);
  EXPECT_THAT(Find("micro-batch-weights"), IsEmpty());
  scale(1, 1024);
  const auto found = Find("micro-batch-weights");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("without scaler.scale()"));
}

TEST_F(DataRulesTest, AnAdvantageWithAGraph) {
  Training("loss", 1, 2);
  Training("moving_target", 1, 2);
  const auto found = Find("target-moves");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("advantage"));
}

TEST_F(DataRulesTest, AdaptersThatStayInAWeight) {
  const auto merge = [&](size_t period, bool begins_anew) {
    for (size_t i = 0; i < kDataSteps; ++i) {
      const auto trained = static_cast<double>(i);
      Set("Module.b.Lora.forward.0.parameters.base", i,
          3 + 0.1 * static_cast<double>(i / period));
      Set("Parameter.b.w.0.debug.param", i, trained);
      Set("Update.b.w.0.debug.param", i, trained + (begins_anew ? 0.5 : 1));
    }
  };
  merge(kDataSteps, false);
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  merge(6, false);
  const auto found = Find("frozen-moves");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
  EXPECT_FALSE(found[0].exact);
  merge(6, true);
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  // A temperature.
  merge(6, false);
  for (size_t i = 0; i < kDataSteps; ++i) {
    RankCell& cell = At("Module.b.Lora.forward.0.parameters.base", i);
    cell.smallest = cell.largest;
  }
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
  // It follows others in each step.
  merge(1, false);
  EXPECT_THAT(Find("frozen-moves"), IsEmpty());
}

}  // namespace
}  // namespace rankprobe::analysis
