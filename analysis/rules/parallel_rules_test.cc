// SPDX-License-Identifier: Apache-2.0
// Rules on parts, copies and micro batches: each on its fault and on what is
// sound and looks like it.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/rules/rank_rule.h"
#include "analysis/rules/testing/rank_input_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr size_t kParallelSteps = 8;

// Different numbers for different places, the same in each run.
RankCell Some(size_t a, size_t b, size_t c = 0, double scale = 1) {
  const double x = std::sin(static_cast<double>(11 * a + 5 * b + 101 * c + 1));
  return {true, scale * (3 + x), scale * 0.1 * (x + 0.3), scale * (1 + x / 3),
          -scale * (1 - x / 4)};
}
RankCell Times(const RankCell& cell, double factor) {
  return {true, cell.norm * factor, cell.mean * factor, cell.largest * factor,
          cell.smallest * factor};
}

class ParallelRulesTest : public RankInputFixture {
 protected:
  ParallelRulesTest() : RankInputFixture(kParallelSteps, 2) {}
  // What a rank backwards and what its optimizer takes and holds.
  void Gradient(size_t rank, const std::string& module, size_t step,
                const RankCell& held, const RankCell& own,
                const RankCell& taken) {
    At(rank,
       absl::StrCat("Module.", module, ".Linear.parameters_grad.0.weight"),
       step) = own;
    const std::string parameter =
        absl::StrCat("Parameter.", module, ".weight.0.debug.");
    At(rank, absl::StrCat(parameter, "param"), step) = held;
    At(rank, absl::StrCat(parameter, "grad"), step) = taken;
  }
  std::vector<RankFinding> Find(absl::string_view name) const {
    for (const auto& rule : AllRankRules()) {
      if (rule->name() != name) continue;
      EXPECT_FALSE(rule->needs().empty() || rule->cost().empty() ||
                   rule->twin().empty());
      if (!rule->CanJudge(input_)) return {};
      return rule->Look(input_);
    }
    ADD_FAILURE() << "no rule " << name;
    return {};
  }
};

TEST_F(ParallelRulesTest, ASumOfWhatEachRankHasWhole) {
  const std::string in = "Distributed.all_reduce.0.forward.input.0",
                    out = "Distributed.all_reduce.0.forward.output.0",
                    taken = "Module.mlp.Linear.backward.0.input.0";
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      At(r, in, i) = Some(1, i);
      At(r, out, i) = Times(Some(1, i), 2);
    }
  }
  // A gradient that is divided before a module takes it.
  EXPECT_THAT(Find("copies-summed"), IsEmpty());
  for (size_t i = 0; i < kParallelSteps; ++i)
    At(0, taken, i) = Times(Some(1, i), 2);
  const auto found = Find("copies-summed");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr(taken));
  // Parts, in one step.
  At(1, in, 5) = Some(2, 5);
  EXPECT_THAT(Find("copies-summed"), IsEmpty());
  // Counts.
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      At(r, in, i) = {true, 48, 48, 48, 48};
      At(r, out, i) = {true, 96, 96, 96, 96};
    }
    At(0, taken, i) = {true, 96, 96, 96, 96};
  }
  EXPECT_THAT(Find("copies-summed"), IsEmpty());
}

TEST_F(ParallelRulesTest, LossesOfPartsOfOneModel) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (const size_t layer : {0UL, 1UL, 2UL})
        Gradient(r, absl::StrCat("layers.", layer), i, Some(layer, i), {}, {});
      Gradient(r, "head", i, Some(9, i, r), {}, {});
      Training(r, "loss", i, 3 - 0.1 * static_cast<double>(i));
      Training(r, "input_checksum", i, static_cast<double>(7 * i + 1));
    }
  }
  EXPECT_THAT(Find("losses-part"), IsEmpty());
  for (size_t i = 0; i < kParallelSteps; ++i) Training(1, "loss", i, 3.01);
  ASSERT_THAT(Find("losses-part"), SizeIs(1));
  EXPECT_THAT(Find("losses-part")[0].what, HasSubstr("ranks 0 and 1"));
  const RankInput apart = input_;
  // Other data, other targets, masks of dropouts.
  for (const char* name :
       {"input_checksum", "target_checksum", "dropout_checksum"}) {
    input_ = apart;
    Training(0, name, 2, 5);
    EXPECT_THAT(Find("losses-part"), IsEmpty()) << name;
  }
  // Replicas, and models of their own.
  input_ = apart;
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) Gradient(r, "head", i, Some(9, i), {}, {});
  }
  EXPECT_THAT(Find("losses-part"), IsEmpty());
  input_ = apart;
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (const size_t layer : {0UL, 1UL, 2UL})
      Gradient(1, absl::StrCat("layers.", layer), i, Some(layer, i, 7), {}, {});
  }
  EXPECT_THAT(Find("losses-part"), IsEmpty());
}

TEST_F(ParallelRulesTest, ABiasThatEachRankAdds) {
  const std::string layer = "Module.down.Linear.forward.0.";
  for (size_t i = 0; i < kParallelSteps; ++i) {
    const double sum = Some(0, i).mean + Some(1, i).mean;
    for (size_t r = 0; r < 2; ++r) {
      At(r, layer + "output.0", i) = Some(r, i);
      At(r, "Distributed.all_reduce.0.forward.input.0", i) = Some(r, i);
      At(r, "Distributed.all_reduce.0.forward.output.0", i) = {true, 5, sum, 2,
                                                               -2};
      At(r, layer + "parameters.bias", i) = Some(7, 7);
      At(r, layer + "parameters.weight", i) = Some(r, 8);
    }
  }
  const auto found = Find("bias-summed");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, layer + "parameters.bias");
  // On one rank alone.
  const RankInput whole = input_;
  for (size_t i = 0; i < kParallelSteps; ++i)
    At(1, layer + "parameters.bias", i) = {true, 0, 0, 0, 0};
  EXPECT_THAT(Find("bias-summed"), IsEmpty());
  // Copies of a layer, whose mean is taken.
  input_ = whole;
  for (size_t i = 0; i < kParallelSteps; ++i)
    At(1, layer + "parameters.weight", i) = Some(0, 8);
  EXPECT_THAT(Find("bias-summed"), IsEmpty());
  input_ = whole;
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r)
      At(r, "Distributed.all_reduce.0.forward.output.0", i).mean /= 2;
  }
  EXPECT_THAT(Find("bias-summed"), IsEmpty());
}

TEST_F(ParallelRulesTest, GradientsOfPartsBesideMeans) {
  // copies: what a mean is multiplied by; parts: what is left of a part.
  const auto scale = [&](double copies, double parts, bool differ = true) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      for (size_t r = 0; r < 2; ++r) {
        for (size_t p = 0; p < 4; ++p) {
          const RankCell one = Some(p, i), other = Some(p, i, differ ? 1 : 0);
          const double mean = (one.mean + other.mean) / 2;
          Gradient(r, absl::StrCat("l", p), i, Some(p, 3), r == 0 ? one : other,
                   {true, copies, copies * mean, 1, -1});
        }
        const RankCell own = Some(9, i, 5 * r);
        Gradient(r, "expert", i, Some(9, 9, r), own, Times(own, parts));
      }
    }
  };
  // Means and sums, each with what belongs to it, and clipped.
  for (const double clip : {1.0, 0.3}) {
    scale(clip, 0.5 * clip);
    EXPECT_THAT(Find("parts-not-scaled"), IsEmpty());
    scale(2 * clip, clip);
    EXPECT_THAT(Find("parts-not-scaled"), IsEmpty());
    scale(clip, clip);
    const auto found = Find("parts-not-scaled");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].name, "Parameter.expert.weight.0.debug.grad");
  }
  // Copies that have one gradient on all ranks, as of a tensor-parallel model.
  scale(1, 1, false);
  EXPECT_THAT(Find("parts-not-scaled"), IsEmpty());
}

TEST_F(ParallelRulesTest, AnAverageThatIsNotTheSameOnReplicas) {
  const std::string name =
      "Module.teacher.fc.Linear.forward.0.parameters.weight";
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      Gradient(r, "fc", i, Some(1, i), Some(2, i, r), Some(3, i));
      At(r, name, i) = Some(4, i);
    }
  }
  EXPECT_THAT(Find("follower-parts"), IsEmpty());
  // Frozen parts.
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) At(r, name, i) = Some(4, 0, r);
  }
  EXPECT_THAT(Find("follower-parts"), IsEmpty());
  for (size_t i = 0; i < kParallelSteps; ++i) At(0, name, i) = Some(4, i);
  const auto found = Find("follower-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_EQ(found[0].name, name);
}

TEST_F(ParallelRulesTest, UpdatesThatDoNotStay) {
  const auto update = [&](bool first_stays, bool second_stays) {
    const bool stays[] = {first_stays, second_stays};
    for (size_t i = 0; i < kParallelSteps; ++i) {
      for (size_t r = 0; r < 2; ++r) {
        const std::string weight = absl::StrCat("l", r, ".weight.0.debug.");
        At(r, "Parameter." + weight + "param", i) = Some(1, stays[r] ? i : 0);
        At(r, "Update." + weight + "param", i) = Some(1, i + 1);
      }
    }
  };
  update(true, true);
  EXPECT_THAT(Find("update-undone"), IsEmpty());
  // Steps that only try something out.
  update(false, false);
  EXPECT_THAT(Find("update-undone"), IsEmpty());
  update(true, false);
  const auto found = Find("update-undone");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_EQ(found[0].name, "Parameter.l1.weight.0.debug.param");
}

TEST_F(ParallelRulesTest, AMessageInTheBufferOfAnother) {
  const auto receive = [&](size_t first, size_t second, double scale) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      At(1, "Distributed.recv.0.forward.output.0", i) = Some(0, i, 0, scale);
      At(1, "Distributed.recv.1.forward.output.0", i) = Some(1, i);
      At(1, "Module.stage.Block.forward.0.input.0", i) = Some(first, i);
      At(1, "Module.stage.Block.forward.1.input.0", i) = Some(second, i);
    }
  };
  receive(0, 1, 1);
  EXPECT_THAT(Find("message-overwritten"), IsEmpty());
  receive(1, 1, 1);
  const auto found = Find("message-overwritten");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].name, "Distributed.recv.0.forward.output.0");
  EXPECT_EQ(found[0].rank, 1);
  // Labels, and a block that is recomputed.
  receive(1, 1, 40);
  EXPECT_THAT(Find("message-overwritten"), IsEmpty());
}

TEST_F(ParallelRulesTest, GradientsThatAreScaledBetweenMicroBatches) {
  constexpr double kRows = 0.75;
  const std::string layer = "Module.embed.Embedding.";
  // between: what the gradients are multiplied by before the third micro batch.
  const auto accumulate = [&](double between, bool are_averaged = false) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      double held[] = {0, 0};
      for (size_t m = 0; m < 3; ++m) {
        for (size_t r = 0; r < 2; ++r) {
          const RankCell arrives = Some(m, i, r);
          held[r] = held[r] * (m == 2 ? between : 1) + kRows * arrives.mean;
          At(r, absl::StrCat(layer, "backward.", m, ".input.0"), i) = arrives;
          At(r, absl::StrCat(layer, "parameters_grad.", m, ".weight"), i) = {
              true, 3, held[r], 1, -1};
        }
        if (are_averaged) held[0] = held[1] = (held[0] + held[1]) / 2;
      }
      for (size_t r = 0; r < 2; ++r) {
        At(r, "Parameter.embed.weight.0.debug.grad", i) = Some(5, i);
        At(r, "Parameter.embed.weight.0.debug.param", i) = Some(6, i);
      }
    }
  };
  accumulate(1);
  EXPECT_THAT(Find("micro-batches-scaled"), IsEmpty());
  // The mean over ranks behind each one; what is lost is of another rule.
  accumulate(1, true);
  EXPECT_THAT(Find("micro-batches-scaled"), IsEmpty());
  accumulate(0);
  EXPECT_THAT(Find("micro-batches-scaled"), IsEmpty());
  for (const double factor : {0.5, 2.0}) {
    accumulate(factor);
    const auto found = Find("micro-batches-scaled");
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_FALSE(found[0].exact);
    EXPECT_THAT(found[0].what, HasSubstr(absl::StrCat(
                                   "by ", factor, " before micro batch 2")));
  }
}

TEST_F(ParallelRulesTest, AWindowWithFewerMicroBatches) {
  // divisor: of the loss in steps of two micro batches.
  const auto weigh = [&](double divisor) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      const bool is_last = i % 4 == 3;
      for (size_t k = 0; k < (is_last ? 2 : 4); ++k) {
        Training(0, absl::StrCat("loss.", k), i, 2);
        Training(0, absl::StrCat("loss_tokens.", k), i, 40);
        Training(0, absl::StrCat("token_weight.", k), i,
                 1 / (40 * (is_last ? divisor : 4)));
      }
    }
  };
  weigh(2);
  EXPECT_THAT(Find("window-incomplete"), IsEmpty());
  weigh(4);
  const auto found = Find("window-incomplete");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 3);
  EXPECT_THAT(found[0].what, HasSubstr("take 0.5 of the mean"));
}

TEST_F(ParallelRulesTest, OneLossOfAllRanksIsNoSumOverThem) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      Training(r, "loss", i, 2 + 0.1 * Some(r, i).mean);
      Training(r, "loss_tokens", i, 16);
      Training(r, "token_weight", i, 2.0 / 16);
      Training(r, "target_checksum", i, static_cast<double>(100 + r));
      for (size_t p = 0; p < 4; ++p) {
        const double mean = (Some(p, i).mean + Some(p, i, 1).mean) / 2;
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3), Some(p, i, r),
                 {true, 2, mean, 1, -1});
      }
    }
  }
  EXPECT_THAT(Find("gradient-multiple"), SizeIs(1));
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      Training(r, "loss", i, 2);
      Training(r, "target_checksum", i, 100);
    }
  }
  EXPECT_THAT(Find("gradient-multiple"), IsEmpty());
}

TEST_F(ParallelRulesTest, NormsOfRanksThatAreClippedBy) {
  // Behind the clipping, of parts whose norms change from step to step.
  const auto clip = [&](auto norm) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      const double one = Some(1, i).norm, other = 2 * Some(2, i).norm;
      for (size_t r = 0; r < 2; ++r) {
        for (size_t p = 0; p < 4; ++p) {
          const RankCell own = {true, r == 0 ? one : other, 0.1, 1, -1};
          Gradient(r, absl::StrCat("l", p), i, Some(p, 3, r), own,
                   Times(own, 0.1 / norm(one, other)));
        }
      }
    }
  };
  clip([](double one, double other) { return std::hypot(one, other); });
  EXPECT_THAT(Find("clip-norm"), IsEmpty());
  clip([](double one, double other) { return (one + other) / 2; });
  auto found = Find("clip-norm");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("is the mean of the ranks' norms"));
  clip([](double one, double other) { return std::max(one, other); });
  found = Find("clip-norm");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("is the largest of the ranks' norms"));
}

TEST_F(ParallelRulesTest, ARankClipsCopiesWithItsOwnParts) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      const double clip = r == 0 ? 0.5 : 0.4;
      for (size_t p = 0; p < 4; ++p) {
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3), Some(p, i, r),
                 Times(Some(p, i), clip));
      }
      Gradient(r, "expert", i, Some(9, 9, r), Some(9, i, r),
               Times(Some(9, i, r), clip));
    }
  }
  const auto found = Find("gradients-not-reduced");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("those of rank 1 are 0.8 times"));
}

// One seed on each rank makes the layers of two stages alike.
TEST_F(ParallelRulesTest, StagesOfAPipelineAreNoReplicas) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t p = 0; p < 4; ++p) {
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3), Some(p, i, r),
                 Some(p, i, r));
      }
    }
    Training(1, "loss", i, 2.0);
  }
  EXPECT_THAT(Find("gradients-not-reduced"), IsEmpty());
  EXPECT_THAT(ReplicasOf(input_), SizeIs(2));
  // Replicas all compute a loss.
  for (size_t i = 0; i < kParallelSteps; ++i) Training(0, "loss", i, 2.1);
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
  EXPECT_THAT(ReplicasOf(input_), SizeIs(1));
  // Stages may share one parameter: the others begin with other numbers.
  for (size_t r = 0; r < 2; ++r)
    input_.ranks[r].values.erase("Training.0.debug.loss");
  for (size_t i = 0; i < kParallelSteps; ++i) {
    Training(1, "loss", i, 2.0);
    Gradient(1, "l4", i, Some(4, 3, 1), Some(4, i, 1), Some(4, i, 1));
    Gradient(0, "l4", i, Some(4, 3, 0), Some(4, i, 0), Some(4, i, 0));
  }
  EXPECT_THAT(WithoutStages(input_), SizeIs(1));
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
}

// The first and the last layer of a model have one name, and begin apart.
TEST_F(ParallelRulesTest, StagesWhoseOuterLayersHaveOneName) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t p = 0; p < 5; ++p) {
        Gradient(r, absl::StrCat("l", p), i, p < 4 ? Some(p, 3) : Some(p, 3, r),
                 Some(p, i, r), Some(p, i, r));
      }
    }
    Training(1, "loss", i, 2.0);
  }
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
  At(0, "Distributed.send.0.forward.input.0", 0) = Some(8, 1);
  At(1, "Distributed.recv.0.forward.output.0", 0) = Some(8, 1);
  EXPECT_THAT(Find("gradients-not-reduced"), IsEmpty());
}

TEST_F(ParallelRulesTest, WeightsThatAreAveragedNowAndThen) {
  const auto fill = [&](size_t period) {
    for (size_t i = 0; i < kParallelSteps; ++i) {
      for (size_t r = 0; r < 2; ++r) {
        for (size_t p = 0; p < 4; ++p) {
          Gradient(r, absl::StrCat("l", p), i,
                   Some(p, i, i % period == 0 ? 0 : r), Some(p, i, r),
                   Some(p, i, r));
        }
      }
    }
  };
  fill(kParallelSteps);
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
  fill(3);
  EXPECT_THAT(Find("gradients-not-reduced"), IsEmpty());
}

// Each rank has other rows of a table, which one seed has started.
TEST_F(ParallelRulesTest, RowsOfATable) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t p = 0; p < 4; ++p) {
        Gradient(r, absl::StrCat("l", p), i, Some(p, i), Some(p, i, p),
                 Some(p, i, p));
      }
      Gradient(r, "table", i, i == 0 ? Some(9, 3) : Some(9, i, r),
               Some(9, i, r), Some(9, i, r));
    }
  }
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
  for (size_t r = 0; r < 2; ++r) {
    At(r, "Module.table.Linear.forward.0.output.0", 0) = Some(4, 4);
    At(r, "Module.table.Linear.backward.0.input.0", 0) = Some(5, 5);
  }
  EXPECT_THAT(Find("gradients-not-reduced"), IsEmpty());
  // Data of each rank.
  At(1, "Module.table.Linear.backward.0.input.0", 0) = Some(5, 6);
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
}

// One seed has started the experts of the ranks, which no reduction sums.
TEST_F(ParallelRulesTest, ExpertsOfRanksAreNoReplicas) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t p = 0; p < 5; ++p)
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3), Some(p, i),
                 Some(p, i));
      Gradient(r, "moe.experts.0", i, i == 0 ? Some(7, 3) : Some(7, i, r),
               Some(8, i, r), Some(8, i, r));
    }
  }
  EXPECT_THAT(Find("gradients-not-reduced"), SizeIs(1));
  At(1, "Distributed.all_to_all_single.0.forward.0.output.0", 0) = Some(1, 1);
  EXPECT_THAT(Find("gradients-not-reduced"), IsEmpty());
}

// Stages before the last one compute no loss and pass tensors.
TEST_F(ParallelRulesTest, StagesWithoutALossAreNoReplicas) {
  input_.ranks.emplace_back().rank = 2;
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 3; ++r) {
      for (size_t p = 0; p < 4; ++p) {
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3), Some(p, i, r),
                 Some(p, i, r));
      }
    }
    Training(2, "loss", i, 2.0);
  }
  EXPECT_THAT(WithoutStages(input_), SizeIs(2));
  for (size_t r = 0; r < 2; ++r)
    At(r, "Distributed.isend.0.forward.0.input.0", 0) = Some(1, r);
  EXPECT_THAT(WithoutStages(input_), SizeIs(3));
}

TEST_F(ParallelRulesTest, TheModuleInWhichRanksPart) {
  const auto pass = [&](const std::string& call, bool is_given, bool is_made) {
    for (size_t r = 0; r < 2; ++r) {
      At(r, absl::StrCat("Module.", call, ".0.input.0"), 0) =
          Some(1, 0, is_given ? 0 : r);
      At(r, absl::StrCat("Module.", call, ".0.output.0"), 0) =
          Some(2, 0, is_made ? 0 : r);
    }
  };
  for (size_t r = 0; r < 2; ++r) {
    for (size_t p = 0; p < 4; ++p) {
      Gradient(r, absl::StrCat("l", p), 0, Some(p, 3), Some(p, 0, r),
               Some(p, 0, r));
    }
    At(r, "Module.a.mlp.up.Linear.forward.0.parameters.weight", 0) =
        Some(7, 7, r);
  }
  // A part of a layer gives a part, and the sum is behind it.
  pass("a.mlp.up.Linear.forward", true, false);
  pass("a.mlp.Mlp.forward", true, true);
  auto found = Find("gradients-not-reduced");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what,
              HasSubstr("Module.a.mlp.up.Linear.forward.0 takes the same"));
  // One of several parts.
  for (size_t r = 0; r < 2; ++r) {
    At(r, "Module.b.mlp.up.Linear.forward.0.parameters.weight", 0) =
        Some(7, 8, r);
  }
  pass("b.mlp.up.Linear.forward", true, false);
  found = Find("gradients-not-reduced");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("they are not reduced over the ranks"));
  // Its gradient is not summed.
  pass("a.mlp.Mlp.forward", true, true);
  pass("a.mlp.Mlp.backward", true, false);
  pass("a.Block.backward", true, false);
  found = Find("gradients-not-reduced");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what,
              HasSubstr("what Module.a.mlp.Mlp.backward.0 takes is"));
  EXPECT_EQ(found[0].name, "Module.a.mlp.Mlp.backward.0.output.0");
  // Its forward took something else on each rank.
  pass("a.mlp.Mlp.forward", false, false);
  found = Find("gradients-not-reduced");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, Not(HasSubstr("a.mlp.Mlp.backward")));
}

TEST_F(ParallelRulesTest, TheSameGradientForPartsBesideCopies) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      for (size_t p = 0; p < 8; ++p) {
        Gradient(r, absl::StrCat("l", p), i, Some(p, 3, p < 4 ? r : 0),
                 Some(p, i, r), Some(p, i, 2));
      }
    }
  }
  const auto found = Find("replicas-never-alike");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("a wrong group"));
}

TEST_F(ParallelRulesTest, LossScalesOfPartsPart) {
  for (size_t i = 0; i < kParallelSteps; ++i) {
    for (size_t r = 0; r < 2; ++r) {
      Gradient(r, "l0", i, Some(0, 3, r), Some(0, i, r), Some(0, i, r));
      Training(r, "loss_scale", i, 1024);
    }
  }
  EXPECT_THAT(Find("loss-scale-parts"), IsEmpty());
  Training(1, "loss_scale", 6, 512);
  const auto found = Find("loss-scale-parts");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].step, 6);
}

TEST_F(ParallelRulesTest, RotaryPositionsThatBeginAnew) {
  const auto places = [&](size_t rank, double first, double before,
                          double again, double earlier) {
    for (size_t i = 0; i < 3; ++i) {
      const double values[] = {first, before, again, earlier};
      for (size_t k = 0; k < 4; ++k)
        Training(rank, absl::StrCat("rotary_places.", k), i, values[k]);
    }
  };
  // Documents with a mask each.
  for (size_t r = 0; r < 2; ++r) places(r, 1, 0, 2, 0);
  EXPECT_THAT(Find("documents-mix"), IsEmpty());
  places(1, 1, 0, 2, 1);
  const auto documents = Find("documents-mix");
  ASSERT_THAT(documents, SizeIs(1));
  EXPECT_EQ(documents[0].rank, 1);
  // Parts of a sequence, whose positions go on.
  places(0, 1, 0, 0, 0);
  places(1, 0, 6, 0, 0);
  EXPECT_THAT(Find("documents-mix"), IsEmpty());
  EXPECT_THAT(Find("positions-of-parts"), IsEmpty());
  places(1, 1, 6, 0, 0);
  const auto parts = Find("positions-of-parts");
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_EQ(parts[0].rank, 1);
  // A prefix that all have.
  places(0, 1, 6, 0, 0);
  EXPECT_THAT(Find("positions-of-parts"), IsEmpty());
}

TEST_F(ParallelRulesTest, LabelsThatComeRound) {
  for (size_t i = 0; i < 3; ++i) {
    Training(0, "target_is_input.0", i, 0.02);
    Training(0, "target_is_input.1", i, 1);
    Training(0, "target_is_input.2", i, 0.03);
    Training(0, "target_is_input.3", i, i == 1 ? 0 : 4);
    Training(0, "guessing_loss", i, 3.9);
  }
  EXPECT_THAT(Find("label-shift"), IsEmpty());
  Training(0, "target_is_input.3", 1, 4);
  // One row of four letters each.
  const RankInput many = input_;
  for (size_t i = 0; i < 3; ++i) {
    Training(0, "target_is_input.3", i, 1);
    Training(0, "guessing_loss", i, 1.39);
  }
  EXPECT_THAT(Find("label-shift"), IsEmpty());
  input_ = many;
  const auto found = Find("label-shift");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].exact);
  EXPECT_THAT(found[0].what, HasSubstr("labels are rolled"));
}

}  // namespace
}  // namespace rankprobe::analysis
