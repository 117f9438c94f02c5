// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/reference/reference_dump.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

constexpr char kTensor[] =
    R"({"type": "torch.Tensor", "dtype": "torch.float32", "shape": [%s],
        "Max": NaN, "Min": -Infinity, "Mean": 1e-3, "Norm": Infinity,
        "requires_grad": false, "md5": "%s"})";

std::string Tensor(const std::string& shape, const std::string& md5) {
  std::string text = kTensor;
  text.replace(text.find("%s"), 2, shape);
  text.replace(text.find("%s"), 2, md5);
  return text;
}

// {"data": {"f.forward": {"input_args": [..], "output": [..]}}}
std::string File(const std::string& inputs, const std::string& outputs) {
  return absl::StrCat(
      R"({"task": "tensor", "level": "L1", "dump_data_dir": null, "data": {)",
      R"("f.forward": {"input_args": [)", inputs,
      R"(], "input_kwargs": {"a": )", Tensor("9", "99999999"),
      R"(}, "output": [)", outputs, R"(]}, "f.backward": {"input": [)",
      Tensor("1", "aaaaaaaa"), R"(], "output": [)", Tensor("1", "bbbbbbbb"),
      "]}}}");
}

v1::Value Value(std::vector<int64_t> shape, uint32_t crc32) {
  v1::Value value;
  value.mutable_tensor()->mutable_shape()->Assign(shape.begin(), shape.end());
  value.mutable_tensor()->mutable_checksum()->set_crc32(crc32);
  return value;
}

v1::ValueList Values(const std::vector<v1::Value>& values) {
  v1::ValueList list;
  for (const v1::Value& value : values) *list.add_items() = value;
  return list;
}

class ReferenceDumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = absl::StrCat(::testing::TempDir(), "benchXXXXXX");
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = directory_ + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  absl::Status Load(std::optional<int64_t> rank = 3, int64_t step = 7) {
    return reference_.LoadDirectory(files_.get(), directory_, step, rank);
  }

  std::string directory_;
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  ReferenceDump reference_;
};

TEST_F(ReferenceDumpTest, ReadsPositionsOfTensorsThatStandByThemselves) {
  Write("step7/rank3/dump.json",
        File(absl::StrCat(R"({"type": "int", "value": 4}, null, [)",
                          Tensor("5", "55555555"), "], ",
                          Tensor("2, 3", "0a0b0c0d")),
             Tensor("", "00000001")));
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(reference_.entries(), 1u);
  const v1::Value none;
  EXPECT_TRUE(reference_.InputsMatch(
      "f.forward", Values({none, none, none, Value({2, 3}, 0x0a0b0c0d)})));
  // Another position, md5 or shape; one tensor more or less; an unknown call.
  EXPECT_FALSE(reference_.InputsMatch(
      "f.forward", Values({none, none, Value({2, 3}, 0x0a0b0c0d)})));
  EXPECT_FALSE(reference_.InputsMatch(
      "f.forward", Values({none, none, none, Value({2, 3}, 1)})));
  EXPECT_FALSE(reference_.InputsMatch(
      "f.forward", Values({none, none, none, Value({3, 2}, 0x0a0b0c0d)})));
  EXPECT_FALSE(reference_.InputsMatch(
      "f.forward",
      Values({Value({1}, 1), none, none, Value({2, 3}, 0x0a0b0c0d)})));
  EXPECT_FALSE(reference_.InputsMatch("f.forward", Values({none, none, none})));
  EXPECT_FALSE(reference_.InputsMatch("g.forward", Values({})));
  EXPECT_FALSE(reference_.Has("f.backward"));
}

TEST_F(ReferenceDumpTest, ADifferenceIsAnotherMd5InTheSameShape) {
  Write("step7/rank3/dump.json",
        File("", absl::StrCat(Tensor("2", "00000001"), ", ",
                              Tensor("2", "00000002"))));
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_TRUE(reference_.InputsMatch("f.forward", Values({})));
  EXPECT_EQ(reference_.Difference("f.forward",
                                  Values({Value({2}, 1), Value({2}, 2)})),
            std::nullopt);
  EXPECT_EQ(reference_.Difference("f.forward",
                                  Values({Value({2}, 1), Value({3}, 7)})),
            std::nullopt);
  EXPECT_EQ(reference_.Difference("f.forward", Values({Value({2}, 1)})),
            std::nullopt);
  EXPECT_EQ(*reference_.Difference("f.forward",
                                   Values({Value({2}, 1), Value({2}, 7)})),
            "output 1: md5 00000007, reference 00000002");
}

TEST_F(ReferenceDumpTest, AProcessWithoutRankTakesTheOnlyProcDirectory) {
  Write("step7/proc12/dump.json", File("", Tensor("2", "00000001")));
  EXPECT_EQ(Load(std::nullopt), absl::OkStatus());
  EXPECT_THAT(Load(3).ToString(), HasSubstr("no rank3"));
  EXPECT_EQ(reference_.entries(), 0u);  // empty after a failed load
  Write("step7/proc13/dump.json", File("", Tensor("2", "00000001")));
  EXPECT_THAT(Load(std::nullopt).ToString(), HasSubstr("several"));
  EXPECT_TRUE(absl::IsNotFound(Load(3, 8)));
}

TEST_F(ReferenceDumpTest, WhatIsNoReferenceIsSaidAndNotTaken) {
  const std::string good = File("", Tensor("2", "00000001"));
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{}"),
        good.substr(0, good.size() / 2), good.substr(0, good.size() - 1),
        File("", Tensor("-1", "00000001")),
        std::string(R"({"data": {"f.forward": )") + std::string(5000, '[')}) {
    Write("step7/rank3/dump.json", bad);
    EXPECT_TRUE(absl::IsDataLoss(Load())) << bad.substr(0, 80) << Load();
    EXPECT_EQ(reference_.entries(), 0u);
  }
  std::string no_md5 = good;
  for (size_t at; (at = no_md5.find("\"md5\"")) != std::string::npos;)
    no_md5.replace(at, 5, "\"sum\"");
  Write("step7/rank3/dump.json", no_md5);
  EXPECT_TRUE(absl::IsFailedPrecondition(Load())) << Load();
}

TEST_F(ReferenceDumpTest, AFileLargerThanAReadIsReadWhole) {
  std::string inputs;
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&inputs, i == 0 ? "" : ", ", Tensor("1", "0000002a"));
  Write("step7/rank3/dump.json", File(inputs, Tensor("2", "00000001")));
  ASSERT_EQ(Load(), absl::OkStatus());
  std::vector<v1::Value> values(2000, Value({1}, 42));
  EXPECT_TRUE(reference_.InputsMatch("f.forward", Values(values)));
  values.back() = Value({1}, 43);
  EXPECT_FALSE(reference_.InputsMatch("f.forward", Values(values)));
}

TEST_F(ReferenceDumpTest, WhatIsTooLongForATensorKeepsItsPlace) {
  const std::string dict = absl::StrCat(
      R"({"type": "torch.Tensor", "shape": [1], "md5": "00000009", "x": ")",
      std::string((1 << 20) + 1, 'x'), R"("})");
  Write("step7/rank3/dump.json",
        File(absl::StrCat(dict, ", ", Tensor("2", "0000002a")),
             Tensor("2", "00000001")));
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_TRUE(reference_.InputsMatch("f.forward",
                                     Values({v1::Value(), Value({2}, 42)})));
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) absl::StrAppend(&shape, ", 1");
  Write("step7/rank3/dump.json", File("", Tensor(shape, "00000001")));
  EXPECT_TRUE(absl::IsDataLoss(Load())) << Load();
}

TEST_F(ReferenceDumpTest, APathThatIsNoDirectoryIsAFaultOfTheConfig) {
  Plan plan;
  EXPECT_EQ(CheckReferencePath(plan, files_.get()), absl::OkStatus());
  plan.bench_path = "run:other";
  EXPECT_EQ(CheckReferencePath(plan, files_.get()), absl::OkStatus());
  plan.bench_path = directory_;
  EXPECT_EQ(CheckReferencePath(plan, files_.get()), absl::OkStatus());
  plan.bench_path = directory_ + "/missing";
  EXPECT_THAT(CheckReferencePath(plan, files_.get()).ToString(),
              HasSubstr("missing"));
  Write("file", "x");
  plan.bench_path = directory_ + "/file";
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReferencePath(plan, files_.get())));
}

}  // namespace
}  // namespace rankprobe
