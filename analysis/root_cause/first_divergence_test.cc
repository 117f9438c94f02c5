// SPDX-License-Identifier: Apache-2.0
// The first call that differs between two runs.
#include "analysis/root_cause/first_divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "analysis/compare/mapping_files.h"
#include "analysis/testing/dump_text.h"

namespace rankprobe::analysis {
namespace {

using rankprobe::testing::AnalysisGolden;
using rankprobe::testing::Call;
using rankprobe::testing::GoldenDump;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class FirstDivergenceTest : public ::testing::Test {
 protected:
  DivergenceReport Diverge(const std::string& target,
                           const std::string& reference,
                           const Tolerance& tolerance = {},
                           const MatchOptions& match = {}) {
    auto report =
        FindDivergence(file_system_.get(), target, reference, match, tolerance);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : DivergenceReport();
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  rankprobe::testing::DumpDir dir_;
};

TEST_F(FirstDivergenceTest, DivergenceNamesTheFirstCall) {
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "1"),
                   Call("Torch.b.0.forward", "1", "2"),
                   Call("Torch.c.0.forward", "2", "3")});
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "1"),
                   Call("Torch.b.0.forward", "1", "2.5"),
                   Call("Torch.c.0.forward", "2.5", "3.5")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].call, "Torch.b.0.forward");
  EXPECT_EQ(report.origins[0].row, "Torch.b.0.forward.output.0");
  EXPECT_FALSE(report.origins[0].from_outside);
  EXPECT_EQ(report.origins[0].inputs_matched, 1);
  EXPECT_NEAR(report.origins[0].difference, 0.2, 1e-12);
  EXPECT_EQ(report.calls_differing, 2);
  EXPECT_FALSE(report.unseen.Any());
}

// A run of MindSpore compared with one of PyTorch: layers are paired by their
// position.
class OfTwoFrameworksTest : public FirstDivergenceTest {
 protected:
  std::string Write(const std::string& place, const std::string& framework,
                    const std::string& dtype,
                    const std::vector<std::string>& calls) const {
    dir_.Write(place, calls);
    const std::string dump = absl::StrCat(place, "/dump.json");
    dir_.WriteFile(
        dump,
        absl::StrReplaceAll(
            rankprobe::testing::ReadText(absl::StrCat(dir_.path(), "/", dump)),
            {{R"("data":)",
              absl::StrCat(R"("framework":")", framework, R"(","data":)")},
             {"torch.float32", dtype}}));
    return absl::StrCat(dir_.path(), "/", place);
  }
  std::string Mindspore(const std::string& second,
                        const std::string& dtype = "Float32") const {
    dir_.WriteFile("n/construct.json", R"({"Cell.fc1.Dense.forward.0":null,)"
                                       R"("Cell.head.Dense.forward.0":null})");
    return Write("n", "mindspore", dtype,
                 {Call("Cell.fc1.Dense.forward.0", "1", "1.0000002"),
                  Call("Cell.head.Dense.forward.0", "1.0000002", second)});
  }
  std::string Pytorch(const std::string& dtype = "torch.float32") const {
    dir_.WriteFile("b/construct.json",
                   R"({"Module.fc1.Linear.forward.0":null,)"
                   R"("Module.lm_head.Linear.forward.0":null})");
    return Write("b", "pytorch", dtype,
                 {Call("Module.fc1.Linear.forward.0", "1", "1"),
                  Call("Module.lm_head.Linear.forward.0", "1", "1")});
  }
  MatchOptions Layers() const {
    dir_.WriteFile("layers.yaml", "TopLayer: {head: lm_head}");
    MatchOptions match;
    match.layers =
        *ReadLayerRules(file_system_.get(), dir_.path() + "/layers.yaml");
    return match;
  }
};

TEST_F(OfTwoFrameworksTest, TheLayerIsNamed) {
  const DivergenceReport report =
      Diverge(Mindspore("1.01"), Pytorch(), {}, Layers());
  EXPECT_EQ(report.calls_compared, 2);
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].call, "Cell.head.Dense.forward.0");
  EXPECT_EQ(report.origins[0].reference_call,
            "Module.lm_head.Linear.forward.0");
}

TEST_F(OfTwoFrameworksTest, WhatMatchedSoFarIsNoise) {
  EXPECT_THAT(Diverge(Mindspore("1.0000005"), Pytorch(), {}, Layers()).origins,
              IsEmpty());
  EXPECT_THAT(Diverge(Mindspore("1.000001"), Pytorch(), {}, Layers()).origins,
              SizeIs(1));
}

TEST_F(OfTwoFrameworksTest, IntegersAreOneTypeAndOtherTypesAreNot) {
  const std::string reference = Pytorch("torch.int64");
  EXPECT_THAT(
      Diverge(Mindspore("1", "Int32"), reference, Tolerance{1e-6}, Layers())
          .origins,
      IsEmpty());
  EXPECT_THAT(
      Diverge(Mindspore("1", "Bool"), reference, Tolerance{1e-6}, Layers())
          .origins,
      SizeIs(1));
  EXPECT_THAT(Diverge(Mindspore("1", "torch.int32"), reference, Tolerance{1e-6},
                      Layers())
                  .origins,
              SizeIs(1));
}

TEST_F(OfTwoFrameworksTest, WhatOnlyOneCountsIsNotCompared) {
  const std::string target = Mindspore("1", "Int32");
  const std::string reference = Pytorch("torch.int64");
  dir_.WriteFile("b/dump.json",
                 absl::StrReplaceAll(
                     rankprobe::testing::ReadText(reference + "/dump.json"),
                     {{R"("Mean":1,"Norm":1)", R"("Mean":null,"Norm":null)"}}));
  EXPECT_THAT(Diverge(target, reference, Tolerance{1e-6}, Layers()).origins,
              IsEmpty());
  EXPECT_THAT(
      Diverge(Mindspore("2", "Int32"), reference, Tolerance{1e-6}, Layers())
          .origins,
      SizeIs(1));
}

// The gradient of a bias that does not affect the result is only rounding.
TEST_F(OfTwoFrameworksTest, GradientsThatCancelAreJudgedByWhatTheySum) {
  const auto write = [this](const std::string& place,
                            const std::string& framework,
                            const std::string& dtype, const std::string& cell,
                            const std::string& bias) {
    const std::string gradient =
        absl::StrReplaceAll(rankprobe::testing::Tensor(bias), {{"[4]", "[2]"}});
    dir_.WriteFile(place + "/construct.json",
                   absl::StrCat("{\"", cell, ".forward.0\":null}"));
    return Write(place, framework, dtype,
                 {Call(cell + ".forward.0", "1", "1"),
                  Call(cell + ".backward.0", "0.01", "0.01"),
                  absl::StrCat("\"", cell, R"(.parameters_grad.0":{"bias":[)",
                               gradient, "]}")});
  };
  const std::string b =
      write("b", "pytorch", "torch.float32", "Module.fc1.Linear", "3e-10");
  const auto origins = [&](const std::string& bias) {
    return Diverge(write("n", "mindspore", "Float32", "Cell.fc1.Dense", bias),
                   b, {}, Layers())
        .origins;
  };
  EXPECT_THAT(origins("-5e-10"), IsEmpty());
  EXPECT_THAT(origins("5e-7"), SizeIs(1));
}

TEST_F(OfTwoFrameworksTest, WithoutAMappingNothingHasAPartner) {
  const DivergenceReport report = Diverge(Mindspore("1.01"), Pytorch());
  EXPECT_EQ(report.calls_compared, 0);
  EXPECT_EQ(report.unseen.only_in_target, 2);
}

TEST_F(OfTwoFrameworksTest, LayersNeedTheirConstruction) {
  const std::string target = Mindspore("1");
  dir_.WriteFile("c/dump.json", rankprobe::testing::ReadText(
                                    absl::StrCat(Pytorch(), "/dump.json")));
  const auto report =
      FindDivergence(file_system_.get(), target,
                     absl::StrCat(dir_.path(), "/c"), Layers(), {});
  EXPECT_TRUE(absl::IsInvalidArgument(report.status())) << report.status();
  EXPECT_THAT(std::string(report.status().message()),
              HasSubstr("construct.json"));
}

TEST_F(OfTwoFrameworksTest, MappingsThatExcludeEachOtherAreRefused) {
  MappingFiles both;
  both.layers = "";
  both.apis = "mindspore";
  MappingFiles missing;
  missing.layers = dir_.path() + "/none.yaml";
  for (const MappingFiles& files : {both, missing}) {
    std::vector<std::string> warnings;
    const absl::Status status =
        ReadMappings(file_system_.get(), files, &warnings).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(files.apis.empty() ? "none.yaml" : "-lm and -dm"));
  }
}

TEST_F(FirstDivergenceTest, WhatMatchedSoFarIsNoiseBetweenLayouts) {
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "1"),
                   Call("Torch.b.0.forward", "1", "1"),
                   Call("Torch.c.0.forward", "1", "1")});
  // Each difference is a little larger than the one before.
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "1.0000002"),
                   Call("Torch.b.0.forward", "1.0000002", "1.0000005"),
                   Call("Torch.c.0.forward", "1.0000005", "1.00001")});
  const std::string n = dir_.path() + "/n";
  const std::string b = dir_.path() + "/b";
  EXPECT_EQ(Diverge(n, b).origins.at(0).call, "Torch.b.0.forward");
  dir_.WriteFile(
      "n/dump.json",
      absl::StrReplaceAll(
          rankprobe::testing::ReadText(n + "/dump.json"),
          {{R"("data":)", R"("put_together":"of 2 ranks","data":)"}}));
  const DivergenceReport report = Diverge(n, b);
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].call, "Torch.c.0.forward");
  EXPECT_NEAR(report.origins[0].tolerance, 1.5e-6, 1e-7);
  Tolerance fixed;
  fixed.fixed = 0;
  EXPECT_EQ(Diverge(n, b, fixed).origins.at(0).call, "Torch.a.0.forward");
}

TEST_F(FirstDivergenceTest, GradientsThatCancelHaveMoreNoiseBetweenLayouts) {
  const auto write = [this](const std::string& place, const std::string& second,
                            const std::string& third, const std::string& out) {
    dir_.Write(place, {Call("Torch.a.0.forward", "1", out),
                       Call("Torch.b.0.backward", "1", second),
                       Call("Torch.c.0.backward", second, third)});
    const std::string path = absl::StrCat(place, "/dump.json");
    dir_.WriteFile(
        path,
        absl::StrReplaceAll(
            rankprobe::testing::ReadText(absl::StrCat(dir_.path(), "/", path)),
            {{R"("data":)", R"("put_together":"of 2 ranks","data":)"}}));
    return absl::StrCat(dir_.path(), "/", place);
  };
  const std::string b = write("b", "1", "1", "1");
  // Nine times 2e-7, the largest difference of forward calls; gradients do not
  // raise it.
  EXPECT_THAT(
      Diverge(write("n", "1.0000015", "1.0000015", "1.0000002"), b).origins,
      IsEmpty());
  EXPECT_EQ(Diverge(write("m", "1.0000015", "1.000006", "1.0000002"), b)
                .origins.at(0)
                .call,
            "Torch.c.0.backward");
  EXPECT_EQ(Diverge(write("f", "1.000003", "1.000003", "1.0000002"), b)
                .origins.at(0)
                .call,
            "Torch.b.0.backward");
}

TEST_F(FirstDivergenceTest, WhatWasNotPutTogetherIsNoDifference) {
  const auto sum = [](const std::string& mean) {
    return absl::StrReplaceAll(
        Call("Torch.a.0.forward", "1", mean),
        {{absl::StrCat(R"("Max":)", mean, R"(,"Min":)", mean, R"(,"Mean":)",
                       mean, R"(,"Norm":)", mean),
          absl::StrCat(R"("Max":null,"Min":null,"Mean":)", mean,
                       R"(,"Norm":null,"not_put_together":"a sum")")}});
  };
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "3")});
  dir_.Write("n", {sum("3")});
  dir_.Write("wrong", {sum("4")});
  dir_.Write("none", {absl::StrReplaceAll(sum("3"),
                                          {{"\"Mean\":3", "\"Mean\":null"}})});
  const std::string b = dir_.path() + "/b";
  const DivergenceReport same = Diverge(dir_.path() + "/n", b);
  EXPECT_THAT(same.origins, IsEmpty());
  EXPECT_FALSE(same.unseen.Any());
  // The mean is known and wrong.
  EXPECT_THAT(Diverge(dir_.path() + "/wrong", b).origins, SizeIs(1));
  const DivergenceReport none = Diverge(dir_.path() + "/none", b);
  EXPECT_THAT(none.origins, IsEmpty());
  EXPECT_EQ(none.unseen.rows_without_values, 1);
  ASSERT_THAT(none.unseen.examples, SizeIs(1));
  EXPECT_THAT(none.unseen.examples[0], HasSubstr("was not assembled: a sum"));
}

TEST_F(FirstDivergenceTest, MemoryThatNobodyHasWrittenIsNoDifference) {
  // The value that both hold before the call differs; the call's result does
  // not.
  dir_.Write("b", {Call("Torch.a.0.forward", "NaN", "1")});
  dir_.Write("n", {Call("Torch.a.0.forward", "5", "1")});
  const std::string b = dir_.path() + "/b";
  const std::string n = dir_.path() + "/n";
  ASSERT_THAT(Diverge(n, b).origins, SizeIs(1));
  // One of the two may be from an older agent, which wrote no notes.
  dir_.WriteFile("b/tensor_notes.json",
                 R"({"Torch.a.0.forward.input.0":{"written":true}})");
  EXPECT_THAT(Diverge(n, b).origins, IsEmpty());
  EXPECT_THAT(Diverge(b, n).origins, IsEmpty());
}

TEST_F(FirstDivergenceTest, DivergenceThatCameInByCommunication) {
  dir_.Write("b/rank0", {Call("Torch.a.0.forward", "1", "1"),
                         Call("Distributed.all_reduce.0.forward", "1", "2")});
  dir_.Write("b/rank1", {Call("Distributed.all_reduce.0.forward", "1", "2")});
  dir_.Write("n/rank0", {Call("Torch.a.0.forward", "1", "5"),
                         Call("Distributed.all_reduce.0.forward", "5", "6")});
  dir_.Write("n/rank1", {Call("Distributed.all_reduce.0.forward", "1", "6")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_EQ(report.origins[0].rank, 0);
  EXPECT_EQ(report.origins[0].call, "Torch.a.0.forward");
  ASSERT_THAT(report.carried, SizeIs(1));
  EXPECT_EQ(report.carried[0].rank, 1);
  EXPECT_EQ(report.carried[0].from_rank, 0);
}

TEST_F(FirstDivergenceTest, AWeightThatDiffersCameFromOutside) {
  const DivergenceReport report = Diverge(
      AnalysisGolden("dumps/cnn_stat_perturbed"), GoldenDump("cnn_stat_mix"));
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_TRUE(report.origins[0].from_outside);
  EXPECT_EQ(report.origins[0].row, "Functional.linear.0.forward.input.1");
  EXPECT_THAT(report.origins[0].stack, ::testing::Not(IsEmpty()));
}

TEST_F(FirstDivergenceTest, WhatWasNotSeenIsSaid) {
  const DivergenceReport report = Diverge(
      AnalysisGolden("dumps/cnn_stat_planted"), GoldenDump("cnn_stat_mix"));
  EXPECT_EQ(report.unseen.only_in_target, 1);
  EXPECT_EQ(report.unseen.only_in_reference, 1);
  EXPECT_EQ(report.unseen.rows_without_partner, 1);
  // The ledger of an export.
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "1")});
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "1")});
  EXPECT_FALSE(Diverge(dir_.path() + "/n", dir_.path() + "/b").unseen.Any());
  dir_.WriteFile("n/manifest.json",
                 R"({"gaps":[{"step":0,"entry":"x","reason":"queue full"}]})");
  const DivergenceReport lost = Diverge(dir_.path() + "/n", dir_.path() + "/b");
  EXPECT_EQ(lost.unseen.lost, 1);
  ASSERT_THAT(lost.unseen.examples, SizeIs(1));
  EXPECT_THAT(lost.unseen.examples[0], HasSubstr("queue full"));
  // Belongs to a run whose trees the last one did not replace.
  dir_.WriteFile("n/manifest.json",
                 R"({"gaps":[],"earlier_runs":[{"gaps":[{"reason":"a"}]},)"
                 R"({"run":"x"},{"gaps":[{"reason":"b"},{"reason":"c"}]},)"
                 R"({"directory":"earlier/x","gaps":[{"reason":"d"}]}]})");
  EXPECT_EQ(Diverge(dir_.path() + "/n", dir_.path() + "/b").unseen.lost, 3);
  // One that is not read.
  std::filesystem::resize_file(dir_.path() + "/n/manifest.json",
                               (uint64_t{256} << 20) + 1);
  const DivergenceReport large =
      Diverge(dir_.path() + "/n", dir_.path() + "/b");
  ASSERT_THAT(large.unseen.examples, SizeIs(1));
  EXPECT_THAT(large.unseen.examples[0], HasSubstr("its gaps are not known"));
}

TEST_F(FirstDivergenceTest, RowsOfOneSideAreSaidWhicheverSideHasThem) {
  const std::string tensor = rankprobe::testing::Tensor("1");
  const auto call = [](const std::string& inputs, const std::string& outputs) {
    return absl::StrCat(R"("Torch.a.0.forward":{"input_args":[)", inputs,
                        R"(],"input_kwargs":{},"output":[)", outputs, "]}");
  };
  dir_.Write("less", {call(tensor, "")});
  dir_.Write("more", {call(absl::StrCat(tensor, ",", tensor), tensor)});
  for (const auto& [target, reference] :
       {std::pair("/less", "/more"), std::pair("/more", "/less")}) {
    const DivergenceReport report =
        Diverge(dir_.path() + target, dir_.path() + reference);
    EXPECT_EQ(report.unseen.rows_without_partner, 2) << target;
    ASSERT_THAT(report.unseen.examples, SizeIs(2)) << target;
    EXPECT_THAT(report.unseen.examples[0], HasSubstr("Torch.a.0.forward."));
  }
}

TEST_F(FirstDivergenceTest, ADamagedManifestIsRefused) {
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "1")});
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "1")});
  for (const auto& [text, reason] :
       {std::pair("[1]", "is not an object"),
        std::pair(R"({"gaps":1})", "gaps is not a list of objects"),
        std::pair(R"({"gaps":[1]})", "gaps is not a list of objects"),
        std::pair(R"({"files":{}})", "files is not a list of objects"),
        std::pair(R"({"earlier_runs":[{"gaps":{}}]})",
                  "earlier_runs is not a list of objects")}) {
    dir_.WriteFile("n/manifest.json", text);
    const auto report = FindDivergence(file_system_.get(), dir_.path() + "/n",
                                       dir_.path() + "/b", {}, {});
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    EXPECT_THAT(std::string(report.status().message()),
                HasSubstr(absl::StrCat("/n/manifest.json: ", reason)));
  }
}

TEST_F(FirstDivergenceTest, NoiseRaisesTheTolerance) {
  dir_.Write("b", {Call("Torch.a.0.forward", "1", "2")});
  dir_.Write("c", {Call("Torch.a.0.forward", "1", "2.001")});
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "2.002")});
  EXPECT_THAT(Diverge(dir_.path() + "/n", dir_.path() + "/b").origins,
              SizeIs(1));
  Tolerance tolerance;
  tolerance.noise = dir_.path() + "/c";
  EXPECT_THAT(
      Diverge(dir_.path() + "/n", dir_.path() + "/b", tolerance).origins,
      IsEmpty());
  dir_.Write("n", {Call("Torch.a.0.forward", "1", "2.1")});
  const DivergenceReport report =
      Diverge(dir_.path() + "/n", dir_.path() + "/b", tolerance);
  ASSERT_THAT(report.origins, SizeIs(1));
  EXPECT_NEAR(report.origins[0].difference / *report.origins[0].noise, 95, 5);
}

// A linear module of 4 features for 1024 tokens: its gradients are sums over
// the tokens.
TEST_F(FirstDivergenceTest, GradientsAreJudgedByTheCallsOfTheirModule) {
  const auto tensor = [](const std::string& shape, const std::string& value) {
    return absl::StrReplaceAll(
        rankprobe::testing::Tensor(value),
        {{R"("shape":[4])", absl::StrCat(R"("shape":)", shape)}});
  };
  const auto gradients = [&](const std::string& weight,
                             const std::string& bias) {
    return absl::StrCat(R"("Module.m.Linear.parameters_grad.0":{"weight":[)",
                        tensor("[4,4]", weight), R"(],"bias":[)",
                        tensor("[4]", bias), "]}");
  };
  const std::string forward = absl::StrCat(
      R"("Module.m.Linear.forward.0":{"input_args":[)", tensor("[1024,4]", "1"),
      R"(],"input_kwargs":{},"output":[)", tensor("[1024,4]", "1"), "]}");
  const std::string backward =
      absl::StrCat(R"("Module.m.Linear.backward.0":{"input":[)",
                   tensor("[1024,4]", "1"), R"(],"output":[]})");
  const auto origins = [&](const std::vector<std::string>& calls,
                           const std::string& weight, const std::string& bias) {
    std::vector<std::string> target = calls;
    std::vector<std::string> reference = calls;
    target.push_back(gradients(weight, bias));
    reference.push_back(gradients("1", "1"));
    dir_.Write("n", target);
    dir_.Write("b", reference);
    return Diverge(dir_.path() + "/n", dir_.path() + "/b").origins;
  };
  // 4 eps sqrt(1024), eps being 2^-24: 7.6e-6.
  EXPECT_THAT(origins({forward, backward}, "1.000006", "1"), IsEmpty());
  ASSERT_THAT(origins({forward, backward}, "1.000009", "1"), SizeIs(1));
  EXPECT_NEAR(origins({forward, backward}, "1.000009", "1")[0].tolerance,
              std::ldexp(128, -24), 1e-12);
  // The sums are unknown, and the gradients are not their own inputs: 4 eps,
  // 2.4e-7.
  EXPECT_THAT(origins({}, "1", "1.0000002"), IsEmpty());
  const std::vector<Divergence> alone = origins({}, "1", "1.00000035");
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_EQ(alone[0].row, "Module.m.Linear.parameters_grad.0.bias");
  EXPECT_FALSE(alone[0].from_outside);
}

}  // namespace
}  // namespace rankprobe::analysis
