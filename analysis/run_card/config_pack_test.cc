// SPDX-License-Identifier: Apache-2.0
#include "analysis/run_card/config_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/run_card/run_card.h"
#include "analysis/testing/zip_text.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ZipPart;

class ConfigPackTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    dir_.Write(name, content);
    return dir_.path() + "/" + name;
  }
  absl::StatusOr<v1::RunCardReport> Compare(const std::vector<ZipPart>& a,
                                            const std::vector<ZipPart>& b) {
    return CompareConfigPacks(file_system_.get(),
                              Write("a.zip", testing::ZipText(a)),
                              Write("b.zip", testing::ZipText(b)));
  }
  static std::vector<std::string> Texts(const v1::RunCardReport& report) {
    std::vector<std::string> out;
    for (const auto& d : report.differences()) out.push_back(DifferenceText(d));
    return out;
  }

  rankprobe::testing::TempDir dir_;
  const std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
};

std::vector<ZipPart> Pack(const std::string& lr, const std::string& norm,
                          const std::string& environment) {
  const std::string tensor = absl::StrCat(
      R"({"max": 1.0, "min": 0.0, "mean": 0.5, "norm": )", norm, "}");
  return {
      {"pip", "torch=2.13.0\nnumpy=1.26\n"},
      {"env", environment},
      {"hyperparameters/hyperparameters_static.json",
       absl::StrCat(R"({"--learning-rate": ")", lr, R"(", "api-key": "k)", lr,
                    R"("})")},
      {"weights/step0/rank1/weight.json",
       absl::StrCat(R"({"fc.weight": )", tensor, "}")},
      {"dataset/step0/rank1/dataset.json",
       absl::StrCat(R"({"args": {"0": )", tensor, R"(}, "kwargs": {}})")},
      {"random/rank1.json",
       R"({"torch.randn": [{"count": 2, "stack": []}, {"count": 1, "stack": []}]})"},
  };
}

TEST_F(ConfigPackTest, WhatUsuallyMattersComesFirst) {
  const auto report =
      Compare(Pack("0.1", "2.0", R"({"NCCL_ALGO": "Ring", "HOME": "/a"})"),
              Pack("0.2", "3.0", R"({"NCCL_ALGO": "Tree", "HOME": "/b"})"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(
      Texts(*report),
      ElementsAre(HasSubstr("weights fc.weight, step 0, rank 1: {'max': 1.0"),
                  HasSubstr("batch args.0, step 0, rank 1: "),
                  "hyperparameters learning_rate, rank 0: 0.1 | 0.2",
                  "environment NCCL_ALGO, rank 0: Ring | Tree"));
  EXPECT_THAT(report->unseen(), IsEmpty());
}

TEST_F(ConfigPackTest, EqualOnesDifferInNothing) {
  const auto report = Compare(Pack("1", "2", "{}"), Pack("1", "2", "{}"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->differences(), IsEmpty());
  EXPECT_EQ(report->steps_compared(), 1);
  EXPECT_EQ(report->ranks_compared(), 2);
}

// As made by `config_check -d` before a program runs.
TEST_F(ConfigPackTest, PacksWithoutStepsAreComparedWhole) {
  const auto pack = [](const std::string& torch) {
    return std::vector<ZipPart>{{"pip", absl::StrCat("torch=", torch, "\n")},
                                {"env", "{}"}};
  };
  const auto same = Compare(pack("2.13.0"), pack("2.13.0"));
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->differences(), IsEmpty());
  EXPECT_THAT(same->unseen(), IsEmpty());
  const auto other = Compare(pack("2.13.0"), pack("2.12.0"));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(Texts(*other),
              ElementsAre("packages torch, rank 0: 2.13.0 | 2.12.0"));
}

// Each member has at most 64 MiB, whatever the zip directory says.
TEST_F(ConfigPackTest, ABombIsNamedAndTheOthersAreCompared) {
  std::vector<ZipPart> bomb = Pack("1", "2", "{}");
  bomb[1].content = std::string(size_t{65} << 20, ' ');
  std::vector<ZipPart> liar = Pack("2", "2", "{}");
  liar[1].content = std::string(size_t{65} << 20, ' ');
  liar[1].size = 10;
  const auto report = Compare(bomb, liar);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->unseen(),
              ElementsAre(HasSubstr("a.zip, env: has more than 67108864 bytes"),
                          HasSubstr("b.zip, env: ")));
  EXPECT_THAT(Texts(*report), ::testing::Contains(HasSubstr("learning_rate")));
}

TEST_F(ConfigPackTest, OneCallMoreIsADifferenceHoweverManyThereAre) {
  const auto calls = [](int count) {
    return std::vector<ZipPart>{
        {"random/rank0.json",
         absl::StrCat(R"({"torch.randn": [{"count": )", count, "}]}")}};
  };
  const auto report = Compare(calls(1234567), calls(1234568));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report),
              ElementsAre("random calls torch.randn, rank 0: 1234567 | "
                          "1234568"));
}

// msprobe packs the complete environment.
TEST_F(ConfigPackTest, NoSecretIsTold) {
  const auto report = Compare(
      Pack("0.1", "1", R"({"NCCL_AUTH_TOKEN": "s1", "AWS_SECRET": "s1"})"),
      Pack("0.2", "1", R"({"NCCL_AUTH_TOKEN": "s2", "AWS_SECRET": "s2"})"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report),
              ElementsAre("hyperparameters learning_rate, rank 0: 0.1 | 0.2"));
}

TEST_F(ConfigPackTest, NoSecretOfAValueIsTold) {
  const auto pack = [](const std::string& secret) {
    return std::vector<ZipPart>{
        {"env", absl::StrCat(R"({"NCCL_DEBUG_FILE": "http://u:)", secret,
                             R"(@host/x", "NCCL_A": "Api_Key.1' = )", secret,
                             R"(", "NCCL_B": "my-pat:)", secret,
                             R"(", "NCCL_C": "http://host/)", secret,
                             R"(@x", "NCCL_D": "path=)", secret, R"("})")},
        {"hyperparameters/hyperparameters_static.json",
         absl::StrCat(R"({"--pass": ")", secret, R"(", "db": "x://u:)", secret,
                      R"(@h", "hf_tok": ")", secret, R"(", "passes": ")",
                      secret, R"("})")}};
  };
  const auto report = Compare(pack("s1"), pack("s2"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(*report),
              ElementsAre("hyperparameters passes, rank 0: s1 | s2",
                          "environment NCCL_C, rank 0: http://host/s1@x | "
                          "http://host/s2@x",
                          "environment NCCL_D, rank 0: path=s1 | path=s2"));
}

TEST_F(ConfigPackTest, ABrokenMemberIsNamedAndTheOthersAreCompared) {
  std::vector<ZipPart> broken = Pack("1", "2", "{}");
  broken[3].content = "{";
  broken.push_back({"weights/step-1/rankx/weight.json", "{}"});
  const auto report = Compare(broken, Pack("2", "2", "{}"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(
      report->unseen(),
      ElementsAre(HasSubstr("a.zip, weights/step0/rank1/weight.json: ")));
  EXPECT_THAT(Texts(*report), ::testing::Contains(HasSubstr("learning_rate")));
}

TEST_F(ConfigPackTest, ADamagedByteChangesNoValue) {
  const std::string good = testing::ZipText({{"pip", "torch=2.13.0\n"}});
  const std::string reference = Write("b.zip", good);
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 5}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const auto report = CompareConfigPacks(file_system_.get(),
                                             Write("a.zip", bad), reference);
      if (report.ok() && report->unseen().empty())
        EXPECT_THAT(Texts(*report), IsEmpty()) << at;
    }
    EXPECT_FALSE(CompareConfigPacks(file_system_.get(),
                                    Write("a.zip", good.substr(0, at)),
                                    reference)
                     .ok())
        << at;
  }
}

TEST_F(ConfigPackTest, WhatIsNoPackIsRefused) {
  const std::string good =
      Write("b.zip", testing::ZipText(Pack("1", "2", "{}")));
  for (const std::string& text :
       {std::string("no zip"), testing::ZipText({{"other.txt", "x"}})}) {
    const auto report =
        CompareConfigPacks(file_system_.get(), Write("a.zip", text), good);
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(report.status().message(), HasSubstr("a.zip: "));
  }
  std::string deep = "1";
  for (int i = 0; i < 100; ++i) deep = absl::StrCat(R"({"a": )", deep, "}");
  const auto report = Compare({{"dataset/step0/rank0/dataset.json", deep}},
                              Pack("1", "2", "{}"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->unseen(),
              ::testing::Contains(HasSubstr("nested too deep")));
}

}  // namespace
}  // namespace rankprobe::analysis
