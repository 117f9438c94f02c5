// SPDX-License-Identifier: Apache-2.0
// Fixture of the tests of PrecisionDebugger: a debugger over a session that
// stores what it receives. One fixture a test; one thread.
#ifndef RANKPROBE_AGENT_LIBTORCH_TESTING_DEBUGGER_FIXTURE_H_
#define RANKPROBE_AGENT_LIBTORCH_TESTING_DEBUGGER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/libtorch/precision_debugger.h"
#include "agent/runtime/testing/fake_session.h"
#include "common/base/clock.h"

namespace rankprobe {

class LibtorchDebuggerTest : public ::testing::Test {
 protected:
  std::unique_ptr<PrecisionDebugger> Make(const std::string& config) {
    torch::manual_seed(7);
    RecorderOptions options;
    options.config_json = config;
    auto recorder = Recorder::Create(
        std::move(options), std::make_unique<testing::FakeSession>(&received_),
        &clock_);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return PrecisionDebugger::Over(*std::move(recorder));
  }
  static std::string Config(const std::string& level,
                            const std::string& more = "") {
    return R"({"task": "statistics", "dump_path": "d", "level": ")" + level +
           "\"" + more + "}";
  }
  const v1::CallPhase& Forward(const std::string& entry) {
    const v1::CallPhase* phase = received_.Find(entry, /*output=*/false);
    EXPECT_NE(phase, nullptr) << entry;
    return phase == nullptr ? none_ : *phase;
  }
  const v1::CallPhase& WithOutput(const std::string& entry) {
    const v1::CallPhase* phase = received_.Find(entry, /*output=*/true);
    EXPECT_NE(phase, nullptr) << entry;
    return phase == nullptr ? none_ : *phase;
  }
  std::set<std::string> Names() {
    std::set<std::string> names;
    for (const auto& entry : received_.records)
      if (entry.record.has_call()) names.insert(entry.record.call().entry());
    return names;
  }
  std::vector<std::string> Faults() {
    std::vector<std::string> faults;
    for (const auto& entry : received_.records)
      if (entry.record.has_error())
        faults.push_back(entry.record.error().message());
    return faults;
  }

  SystemClock clock_;
  testing::Received received_;
  const v1::CallPhase none_;
};

inline void ExpectStats(const v1::Value& value, const at::Tensor& tensor) {
  const v1::TensorSummary& summary = value.tensor();
  ASSERT_TRUE(value.has_tensor());
  EXPECT_EQ(
      std::vector<int64_t>(summary.shape().begin(), summary.shape().end()),
      tensor.sizes().vec());
  EXPECT_EQ(summary.stats().max_f(), tensor.max().item<double>());
  EXPECT_EQ(summary.stats().min_f(), tensor.min().item<double>());
  const auto wide = tensor.to(torch::kFloat64);
  EXPECT_NEAR(summary.stats().mean_f(), wide.mean().item<double>(), 1e-6);
  const double norm = wide.norm().item<double>();
  EXPECT_NEAR(summary.stats().norm_f(), norm, 1e-5 * (1 + norm));
}

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_LIBTORCH_TESTING_DEBUGGER_FIXTURE_H_
