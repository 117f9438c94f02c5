// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "agent/libtorch/testing/debugger_fixture.h"

namespace rankprobe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST_F(LibtorchDebuggerTest, AtenCallsHaveNamesNumbersAndStatistics) {
  auto debugger = Make(Config("L1"));
  debugger->Start();
  const auto x = torch::randn({3, 4});
  const auto y = torch::relu(x);
  const auto z = torch::relu(y + 1.5);
  debugger->Stop();
  debugger->Step();
  EXPECT_THAT(Names(),
              IsSupersetOf({"Aten.relu.0.forward", "Aten.relu.1.forward",
                            "Aten.add.0.forward"}));
  ExpectStats(Forward("Aten.relu.0.forward").input_args().items(0), x);
  ExpectStats(WithOutput("Aten.relu.0.forward").output().items(0), y);
  ExpectStats(WithOutput("Aten.relu.1.forward").output().items(0), z);
  EXPECT_EQ(Forward("Aten.add.0.forward").input_args().items(1).scalar().f(),
            1.5);
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(LibtorchDebuggerTest, OnlyTheOutermostCallIsRecorded) {
  auto debugger = Make(Config("L1"));
  debugger->Start();
  // layer_norm calls native_layer_norm; linear calls addmm and t.
  torch::layer_norm(torch::randn({2, 8}), {8});
  torch::linear(torch::randn({2, 8}), torch::randn({3, 8}), torch::randn({3}));
  debugger->Step();
  const auto names = Names();
  EXPECT_EQ(names.count("Aten.layer_norm.0.forward"), 1u);
  EXPECT_EQ(names.count("Aten.linear.0.forward"), 1u);
  for (const std::string& name : names) {
    EXPECT_THAT(name, AllOf(Not(HasSubstr("native_layer_norm")),
                            Not(HasSubstr("addmm"))));
  }
}

TEST_F(LibtorchDebuggerTest, BackwardHoldsBothSidesOfTheGradient) {
  auto debugger = Make(Config("L1"));
  const auto x = torch::randn({3, 4}, torch::requires_grad());
  debugger->Start();
  const auto y = torch::sigmoid(x);
  (y * 2.0).sum().backward();
  debugger->Stop();
  debugger->Step();
  const v1::CallPhase& backward = WithOutput("Aten.sigmoid.0.backward");
  ASSERT_EQ(backward.input().items_size(), 1);
  ASSERT_EQ(backward.output().items_size(), 1);
  ExpectStats(backward.input().items(0), torch::full({3, 4}, 2.0));
  ExpectStats(backward.output().items(0), x.grad());
  // Calls of autograd itself are not made by the program.
  for (const std::string& name : Names())
    EXPECT_THAT(name, Not(HasSubstr("sigmoid_backward")));
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(LibtorchDebuggerTest, InPlaceAndNoGrad) {
  auto debugger = Make(Config("L1"));
  debugger->Start();
  auto x = torch::randn({3, 4});
  const auto before = x.clone();
  x.mul_(3.0);
  {
    const torch::NoGradGuard no_grad;
    const auto w = torch::randn({3, 4}, torch::requires_grad());
    torch::tanh(w);
  }
  auto a = torch::randn({4}, torch::requires_grad());
  auto b = torch::sin(a);
  b.mul_(2.0);
  b.sum().backward();
  debugger->Step();
  // The input is recorded as it was before the call overwrote it.
  ExpectStats(Forward("Aten.mul_.0.forward").input_args().items(0), before);
  ExpectStats(WithOutput("Aten.mul_.0.forward").output().items(0), x);
  EXPECT_EQ(Names().count("Aten.tanh.0.backward"), 0u);
  EXPECT_EQ(Names().count("Aten.mul_.1.backward"), 1u);
  EXPECT_EQ(Names().count("Aten.sin.0.backward"), 1u);
}

TEST_F(LibtorchDebuggerTest, OddTensorsAreRecordedCorrectly) {
  auto debugger =
      Make(Config("L1", R"(, "statistics": {"summary_mode": "md5"})"));
  debugger->Start();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  torch::neg(torch::tensor({1.0f, nan, 2.0f}));
  torch::neg(torch::tensor({-inf, 0.0f, inf}));
  torch::neg(torch::empty({0, 4}));
  const auto base = torch::arange(12, torch::kFloat32).reshape({3, 4});
  torch::neg(base.t());               // strided
  torch::neg(base.t().contiguous());  // same values, dense
  torch::neg(torch::tensor(5.0f));    // 0 dimensions
  debugger->Step();
  const auto in = [&](int i) {
    return Forward("Aten.neg." + std::to_string(i) + ".forward")
        .input_args()
        .items(0)
        .tensor();
  };
  EXPECT_TRUE(std::isnan(in(0).stats().max_f()));
  EXPECT_TRUE(std::isnan(in(0).stats().norm_f()));
  EXPECT_EQ(in(1).stats().max_f(), inf);
  EXPECT_EQ(in(1).stats().min_f(), -inf);
  EXPECT_EQ(in(2).shape_size(), 2);
  EXPECT_FALSE(in(2).stats().has_max_f());
  EXPECT_EQ(in(3).checksum().crc32(), in(4).checksum().crc32());
  EXPECT_NE(in(3).checksum().crc32(), 0u);
  EXPECT_EQ(in(5).shape_size(), 0);
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(LibtorchDebuggerTest, DtypesOfTheFramework) {
  auto debugger = Make(Config("L1", R"(, "risk_level": "ALL")"));
  debugger->Start();
  int i = 0;
  for (const auto type :
       {torch::kFloat16, torch::kBFloat16, torch::kFloat64, torch::kInt8,
        torch::kUInt8, torch::kInt16, torch::kInt32, torch::kInt64,
        torch::kBool, torch::kComplexFloat, torch::kComplexDouble}) {
    torch::ones({2, 3}, torch::kInt32).to(type).clone();
    ++i;
  }
  debugger->Step();
  std::set<int> seen;
  for (int k = 0; k < i; ++k) {
    const auto& call =
        WithOutput("Aten.clone." + std::to_string(k) + ".forward");
    ASSERT_EQ(call.output().items_size(), 1);
    seen.insert(call.output().items(0).tensor().dtype());
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(i));
  EXPECT_EQ(seen.count(v1::DTYPE_UNSPECIFIED), 0u);
}

TEST_F(LibtorchDebuggerTest, UnreadableTensorsHaveShapeAndType) {
  auto debugger = Make(Config("L1"));
  debugger->Start();
  const auto sparse = torch::eye(3).to_sparse();
  torch::neg(sparse);
  debugger->Step();
  const auto& tensor =
      Forward("Aten.neg.0.forward").input_args().items(0).tensor();
  EXPECT_EQ(tensor.shape_size(), 2);
  EXPECT_FALSE(tensor.stats().has_max_f());
  EXPECT_THAT(Faults(), IsEmpty());
}

TEST_F(LibtorchDebuggerTest, PayloadsAreTheTensorsBytes) {
  auto debugger = Make(
      R"({"task": "tensor", "dump_path": "d", "level": "L1", "tensor": {"list": ["neg"]}})");
  debugger->Start();
  const auto x = torch::arange(12, torch::kFloat32).reshape({3, 4}).t();
  torch::neg(x);
  torch::relu(x);
  debugger->Step();
  EXPECT_THAT(Names(), ElementsAre("Aten.neg.0.forward"));
  const auto& summary =
      Forward("Aten.neg.0.forward").input_args().items(0).tensor();
  const auto found = received_.payloads.find(summary.payload().digest());
  ASSERT_NE(found, received_.payloads.end());
  const auto dense = x.contiguous();
  ASSERT_EQ(found->second.size(), dense.nbytes());
  EXPECT_EQ(
      0, std::memcmp(found->second.data(), dense.data_ptr(), dense.nbytes()));
}

TEST_F(LibtorchDebuggerTest, AFilterThatMatchesNothingIsSaidAtStop) {
  const auto said = [&](const std::string& more) {
    const auto debugger = Make(Config("L1", more));
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 2; ++step) {
      debugger->Start();
      torch::sin(torch::ones({2}));
      debugger->Stop();
      debugger->Step();
    }
    return ::testing::internal::GetCapturedStderr();
  };
  // Reported once, though there are two steps.
  EXPECT_EQ(said(R"(, "statistics": {"list": ["relu6"]})"),
            "rankprobe: list ['relu6'] matched none of the 2 forwards of step "
            "0: nothing was recorded\n");
  EXPECT_EQ(said(R"(, "statistics": {"list": ["sin"]})"), "");
  EXPECT_EQ(said(""), "");
}

TEST_F(LibtorchDebuggerTest, ARankFilterThatLeavesOutASingleProcessIsSaid) {
  const auto said = [&](const char* world_size) {
    if (world_size == nullptr) {
      ::unsetenv("WORLD_SIZE");
    } else {
      ::setenv("WORLD_SIZE", world_size, /*replace=*/1);
    }
    const auto debugger = Make(Config("L1", R"(, "rank": [3])"));
    ::testing::internal::CaptureStderr();
    for (int step = 0; step < 2; ++step) {
      debugger->Start();
      debugger->Stop();
      debugger->Step();
    }
    const std::string text = ::testing::internal::GetCapturedStderr();
    ::unsetenv("WORLD_SIZE");
    return text;
  };
  const char* const line =
      "rankprobe: config.json asks for rank [3] and this is a single process "
      "without a rank: nothing is recorded; set \"rank\": []\n";
  EXPECT_EQ(said(nullptr), line);
  EXPECT_EQ(said("1"), line);
  EXPECT_EQ(said("8"), "") << "another rank may be there";
}

TEST(LibtorchDebuggerConfig, EveryFaultOfABadConfigIsNamed) {
  DebuggerOptions options;
  options.config_json =
      R"({"task": "nothing", "level": "L9", "dump_path": "d"})";
  const auto debugger = PrecisionDebugger::Create(options);
  ASSERT_FALSE(debugger.ok());
  EXPECT_THAT(std::string(debugger.status().message()),
              AllOf(HasSubstr("task"), HasSubstr("level")));
  options.config_json.clear();
  options.config_path = "/nonexistent/config.json";
  EXPECT_EQ(PrecisionDebugger::Create(options).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rankprobe
