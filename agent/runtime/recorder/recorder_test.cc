// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/recorder/recorder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "agent/runtime/testing/recorder_fixture.h"
#include "common/base/step_range.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::FakeSession;
using ::testing::IsEmpty;
using testing::Received;

class RecorderTest : public testing::RecorderFixture {
 protected:
  RecordedCall Api(Recorder* recorder, const char* op) {
    const RecordedCall call = recorder->calls().BeginApi("Torch", op);
    const TensorInfo info = Info(data_, sizes_, strides_);
    recorder->calls().Inputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      b.Tensor(info, p->mutable_input_args()->add_items());
    });
    recorder->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      b.Tensor(info, p->mutable_output()->add_items());
    });
    return call;
  }

  void Gradient(Recorder* recorder, const RecordedCall& call) {
    const TensorInfo info = Info(data_, sizes_, strides_);
    recorder->calls().Backward(call, [&](CallBuilder& b, v1::CallPhase* p) {
      b.Tensor(info, p->mutable_input()->add_items());
      b.Tensor(info, p->mutable_output()->add_items());
    });
  }

  std::vector<std::string> Edges() const {
    std::vector<std::string> edges;
    for (const Received::Entry& e : received_.records) {
      if (!e.record.has_edge()) continue;
      edges.push_back(
          e.record.edge().entry() + " <- " +
          (e.record.edge().has_parent() ? e.record.edge().parent() : "null"));
    }
    return edges;
  }

  const std::vector<float> data_ = {1, -2, 3};
  const std::vector<int64_t> sizes_ = {3}, strides_ = {1};
};

// A step that was ended is not found unfinished after a kill -9.
TEST_F(RecorderTest, TheEndOfAStepIsKeptAsItsRecordsAre) {
  class KeptSession : public FakeSession {
   public:
    KeptSession(Received* received, std::vector<size_t>* kept)
        : FakeSession(received), received_(received), kept_(kept) {}
    bool Keep() override {
      kept_->push_back(received_->records.size());
      return true;
    }

   private:
    const Received* const received_;
    std::vector<size_t>* const kept_;
  };
  RecorderOptions options;
  options.config_json = R"({"dump_path": "d", "level": "L1"})";
  std::vector<size_t> kept;
  auto recorder = *Recorder::Create(
      options, std::make_unique<KeptSession>(&received_, &kept), &clock_);
  recorder->Start();
  Api(recorder.get(), "relu");
  recorder->Stop();
  ASSERT_EQ(kept.size(), 1u);
  recorder->Step();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1], received_.records.size());
  EXPECT_TRUE(received_.records[kept[1] - 1].record.has_step_end());
  // A step in which nothing was begun has nothing to keep.
  recorder->Step();
  EXPECT_EQ(kept.size(), 2u);
}

// The caller holds a lock of the program, so the recorder must not wait.
TEST_F(RecorderTest, RecordsThatAreDueLeaveWithACallThatMayWait) {
  const auto recorder =
      Make(R"({"task": "statistics", "level": "L1", "dump_path": "/d"})");
  recorder->Start();
  clock_.Advance(absl::Seconds(1));
  CallRecorder& calls = recorder->calls();
  const auto call = [&](int numbers, bool may_wait) {
    calls.Outputs(
        calls.BeginApi("Torch", "relu"),
        [&](CallBuilder& b, v1::CallPhase* p) {
          for (int i = 0; i < numbers; ++i)
            b.Int(i, p->mutable_output()->add_items());
        },
        /*late=*/false, may_wait);
  };
  call(10, false);
  EXPECT_FALSE(calls.Due());
  call(1000, false);
  EXPECT_TRUE(calls.Due());
  EXPECT_THAT(received_.records, IsEmpty());
  call(10, true);
  EXPECT_FALSE(calls.Due());
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("Torch.relu.0.forward", "Torch.relu.1.forward",
                          "Torch.relu.2.forward"));
}

TEST_F(RecorderTest, CountersRunOverStopAndStartAndResetWithTheStep) {
  auto recorder =
      Make(R"({"dump_path": "d", "level": "L1", "risk_level": "ALL"})");
  Api(recorder.get(), "before");  // not recording: no entry, no number
  recorder->Start();
  EXPECT_TRUE(recorder->recording());
  Api(recorder.get(), "relu");
  recorder->Stop();
  Api(recorder.get(), "relu");
  recorder->Start();
  Api(recorder.get(), "relu");
  recorder->Stop();
  recorder->Step();
  recorder->Start();
  Api(recorder.get(), "relu");
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("Torch.relu.0.forward", "Torch.relu.0.forward",
                          "Torch.relu.1.forward", "Torch.relu.1.forward"));
  EXPECT_THAT(received_.Calls(1),
              ElementsAre("Torch.relu.0.forward", "Torch.relu.0.forward"));
  EXPECT_EQ(received_.Find("Torch.relu.0.forward", true)
                ->output()
                .items(0)
                .tensor()
                .stats()
                .max_f(),
            3);
}

TEST_F(RecorderTest, FilteredCallsAreCountedAndConsumeTheirNumber) {
  auto recorder = Make(
      R"({"dump_path": "d", "level": "L1", "statistics": {"list": ["add.1"]}})");
  recorder->Start();
  Api(recorder.get(), "add");
  Api(recorder.get(), "add");
  Api(recorder.get(), "mul");
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("Torch.add.1.forward", "Torch.add.1.forward"));
  const v1::Record& last = received_.records.back().record;
  ASSERT_TRUE(last.has_step_end());
  EXPECT_EQ(last.step_end().filtered_calls(), 2u);
  EXPECT_EQ(last.step_end().call_phases(), 2u);
}

TEST_F(RecorderTest, StepAndRankFiltersAndTheInitStep) {
  auto recorder =
      Make(R"({"dump_path": "d", "level": "L1", "step": [11], "rank": [0]})");
  EXPECT_FALSE(recorder->SetInitStep(-1).ok());
  // The collector does not accept larger ones.
  EXPECT_FALSE(recorder->SetInitStep(kMaxStep + 1).ok());
  ASSERT_TRUE(recorder->SetInitStep(10).ok());
  for (int i = 0; i < 4; ++i) {
    recorder->Start();
    EXPECT_EQ(recorder->recording(), i == 1);
    Api(recorder.get(), "relu");
    recorder->Stop();
    recorder->Step();
  }
  EXPECT_THAT(received_.steps_begun, ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(received_.Calls(11).size(), 2u);
  received_.records.clear();
  auto other = Make(R"({"dump_path": "d", "level": "L1", "rank": [1]})");
  other->Start();
  EXPECT_FALSE(other->recording());
  auto unknown = Make(R"({"dump_path": "d", "rank": [0]})", std::nullopt);
  unknown->Start();
  EXPECT_FALSE(unknown->recording()) << "no rank is in no filter";
}

TEST_F(RecorderTest, GradientsAfterStopCountUntilTheStep) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1"})");
  recorder->Start();
  const RecordedCall call = Api(recorder.get(), "relu");
  recorder->Stop();
  Gradient(recorder.get(), call);
  recorder->Step();
  Gradient(recorder.get(), call);
  recorder->Start();
  Gradient(recorder.get(), call);
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("Torch.relu.0.forward", "Torch.relu.0.forward",
                          "Torch.relu.0.backward"));
  EXPECT_THAT(received_.Calls(1), IsEmpty());
}

TEST_F(RecorderTest, ModulesNestAndEdgesComeInTheObservedOrder) {
  auto recorder =
      Make(R"({"dump_path": "d", "level": "mix", "risk_level": "ALL"})");
  recorder->Start();
  const RecordedCall outer = recorder->calls().BeginModule("Module.a.A");
  const RecordedCall inner = recorder->calls().BeginModule("Module.a.b.B");
  Api(recorder.get(), "relu");
  recorder->calls().Outputs(
      inner, [](CallBuilder&, v1::CallPhase* p) { p->mutable_output(); });
  Api(recorder.get(), "add");
  recorder->calls().Outputs(
      outer, [](CallBuilder&, v1::CallPhase* p) { p->mutable_output(); });
  Api(recorder.get(), "mul");
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(Edges(),
              ElementsAre("Torch.relu.0.forward <- Module.a.b.B.forward.0",
                          "Module.a.A.forward.0 <- null",
                          "Module.a.b.B.forward.0 <- Module.a.A.forward.0",
                          "Torch.add.0.forward <- Module.a.A.forward.0",
                          "Torch.mul.0.forward <- null"));
}

TEST_F(RecorderTest, AModuleLeftByAnExceptionDoesNotKeepItsPlace) {
  auto recorder = Make(R"({"dump_path": "d", "level": "mix"})");
  recorder->Start();
  const RecordedCall outer = recorder->calls().BeginModule("Module.a.A");
  recorder->calls().BeginModule("Module.a.b.B");  // thrown through
  recorder->calls().Abandon(outer);
  Api(recorder.get(), "relu");
  recorder->Stop();
  recorder->Step();
  EXPECT_EQ(Edges().front(), "Torch.relu.0.forward <- null");
}

TEST_F(RecorderTest, ParameterGradientsCountRoundsNotCalls) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L0"})");
  recorder->Start();
  const TensorInfo g = Info(data_, sizes_, strides_);
  for (const char* p : {"bias", "weight", "bias", "weight"}) {
    recorder->calls().ParameterGradient("Module.a.A", p, g);
  }
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(received_.Calls(0), ElementsAre("Module.a.A.parameters_grad.0",
                                              "Module.a.A.parameters_grad.0",
                                              "Module.a.A.parameters_grad.1",
                                              "Module.a.A.parameters_grad.1"));
}

TEST_F(RecorderTest, EqualPayloadsAreSubmittedOnceAndShedOnesAreMarked) {
  auto recorder = Make(
      R"({"task": "tensor", "dump_path": "d", "level": "L1", "tensor": {}})");
  recorder->Start();
  Api(recorder.get(), "relu");
  EXPECT_TRUE(received_.payloads.size() == 1);
  received_.shed_payloads = true;
  const std::vector<float> other = {9, 9};
  const std::vector<int64_t> sizes = {2};
  const RecordedCall call = recorder->calls().BeginApi("Torch", "add");
  recorder->calls().Inputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
    b.Tensor(Info(other, sizes, strides_),
             p->mutable_input_args()->add_items());
  });
  recorder->Stop();
  recorder->Step();
  const v1::TensorSummary& shed = received_.Find("Torch.add.0.forward", false)
                                      ->input_args()
                                      .items(0)
                                      .tensor();
  EXPECT_EQ(shed.payload().lost(), v1::LOSS_REASON_AGENT_BUDGET);
  EXPECT_EQ(shed.stats().max_f(), 9) << "the statistics stay";
  const v1::StepEnd& end = received_.records.back().record.step_end();
  EXPECT_EQ(end.payloads(), 3u);
  EXPECT_EQ(end.lost_payloads(), 1u);
}

TEST_F(RecorderTest, ATensorSeenTwiceUnchangedIsSummarisedOnce) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1"})");
  recorder->Start();
  std::vector<float> data = {1, 2, 3};
  const int storage = 0;
  const auto max_of = [&](uint64_t version) {
    const RecordedCall call = recorder->calls().BeginApi("Torch", "relu");
    double max = 0;
    recorder->calls().Inputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      TensorInfo info = Info(data, sizes_, strides_);
      info.identity = {&storage, version};
      v1::Value* value = p->mutable_input_args()->add_items();
      b.Tensor(info, value);
      max = value->tensor().stats().max_f();
    });
    return max;
  };
  EXPECT_EQ(max_of(0), 3);
  data[0] = 100;  // without a new version, to show that the cache is used
  EXPECT_EQ(max_of(0), 3);
  EXPECT_EQ(max_of(1), 100);
  recorder->Step();
  recorder->Start();
  EXPECT_EQ(max_of(0), 100) << "the cache ends with the step";
}

// Tensors on a device, by slot; `bytes`: being copied to that memory.
class DeferredTest : public RecorderTest {
 protected:
  void Device(Recorder* recorder, const char* op, uint64_t slot,
              const std::vector<float>* bytes = nullptr) {
    const RecordedCall call = recorder->calls().BeginApi("Torch", op);
    recorder->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      TensorInfo info = Info(data_, sizes_, strides_);
      info.view.data = bytes == nullptr ? nullptr : bytes->data();
      info.arrival = bytes == nullptr ? Arrival::kNumbers : Arrival::kBytes;
      info.slot = slot;
      b.Tensor(info, p->mutable_output()->add_items());
    });
  }
  static ReducedNumbers Max(double max) {
    ReducedNumbers out{};
    std::memcpy(out.words.data(), &max, sizeof(max));
    return out;
  }
  const v1::TensorSummary& Output(const char* entry) {
    return received_.Find(entry, true)->output().items(0).tensor();
  }
};

TEST_F(DeferredTest, NumbersArriveBeforeTheRecordsLeave) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1"})");
  recorder->Start();
  Device(recorder.get(), "relu", 5);
  Api(recorder.get(), "add");
  Device(recorder.get(), "relu", 6);
  const std::vector<ReducedNumbers> numbers = {Max(50), Max(60)};
  recorder->ResolveDeferred({5, 7, numbers});
  recorder->Stop();
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().max_f(), 50);
  EXPECT_EQ(Output("Torch.relu.1.forward").stats().max_f(), 60);
  EXPECT_THAT(Output("Torch.relu.1.forward").shape(), ElementsAre(3));
  EXPECT_EQ(Output("Torch.add.0.forward").stats().max_f(), 3);
}

TEST_F(DeferredTest, AnotherThreadsSlotsWaitOrAreLostButAreNeverMixedUp) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1"})");
  recorder->Start();
  Device(recorder.get(), "ahead", 3);  // requested after the delivery began
  const std::vector<ReducedNumbers> first = {Max(10), Max(20)};
  recorder->ResolveDeferred({1, 3, first});
  const std::vector<float> gone = {1, 2, 3};
  Device(recorder.get(), "late", 2);  // recorded after its delivery
  Device(recorder.get(), "late", 1, &gone);
  EXPECT_TRUE(received_.records.empty());
  const std::vector<ReducedNumbers> second = {Max(30)};
  recorder->ResolveDeferred({3, 4, second});
  recorder->Stop();
  EXPECT_EQ(Output("Torch.ahead.0.forward").stats().max_f(), 30);
  EXPECT_FALSE(Output("Torch.late.0.forward").stats().has_max_f());
  EXPECT_FALSE(Output("Torch.late.1.forward").stats().has_max_f());
  EXPECT_TRUE(Output("Torch.late.1.forward").has_stats()) << "null, not absent";
}

TEST_F(DeferredTest, BytesAreSummarisedWhenTheyAreThere) {
  auto recorder = Make(
      R"({"task": "tensor", "dump_path": "d", "level": "L1", "tensor": {}})");
  recorder->Start();
  EXPECT_EQ(recorder->calls().BeginApi("Torch", "x").needs,
            RecordedCall::Needs::kBytes);
  std::vector<float> host = {77, 77, 77};
  Device(recorder.get(), "relu", 1, &host);
  EXPECT_TRUE(received_.payloads.empty());
  host = {1, 2, 9};
  const std::vector<ReducedNumbers> numbers(1);
  recorder->ResolveDeferred({1, 2, numbers});
  recorder->Stop();
  EXPECT_EQ(Output("Torch.relu.0.forward").stats().max_f(), 9);
  ASSERT_EQ(received_.payloads.size(), 1u);
  EXPECT_EQ(received_.payloads.begin()->second,
            std::string(reinterpret_cast<const char*>(host.data()), 12));
}

TEST_F(DeferredTest, APayloadThatNeverArrivesIsCountedAsLost) {
  auto recorder = Make(
      R"({"task": "tensor", "dump_path": "d", "level": "L1", "tensor": {}})");
  recorder->Start();
  const std::vector<float> host = {1, 2, 3};
  Device(recorder.get(), "relu", 1, &host);
  recorder->ResolveDeferred({1, 2, {}});
  recorder->Step();
  EXPECT_EQ(Output("Torch.relu.0.forward").payload().lost(),
            v1::LOSS_REASON_AGENT_FAULT);
  EXPECT_EQ(received_.records.back().record.step_end().lost_payloads(), 1u);
}

TEST_F(DeferredTest, WhatNeverArrivesIsNullAndTheStepIsWhole) {
  auto recorder = Make(
      R"({"dump_path": "d", "level": "L1",
          "statistics": {"summary_mode": "md5"}})");
  recorder->Start();
  const std::vector<float> host = {1, 2, 3};
  Device(recorder.get(), "relu", 1, &host);
  recorder->ResolveDeferred({1, 2, {}});  // the device failed
  Device(recorder.get(), "relu", 2, &host);
  recorder->Step();  // the results were never requested
  for (const char* entry : {"Torch.relu.0.forward", "Torch.relu.1.forward"}) {
    EXPECT_TRUE(Output(entry).checksum().null());
    EXPECT_FALSE(Output(entry).stats().has_max_f());
  }
  EXPECT_TRUE(received_.records.back().record.has_step_end());
}

TEST_F(RecorderTest, StructureKeepsEdgesAndNoValues) {
  auto recorder = Make(R"({"task": "structure", "dump_path": "d"})");
  recorder->Start();
  Api(recorder.get(), "relu");
  recorder->Stop();
  recorder->Step();
  EXPECT_THAT(received_.Calls(0), IsEmpty());
  EXPECT_THAT(Edges(), ElementsAre("Torch.relu.0.forward <- null"));
}

TEST_F(RecorderTest, DebugLevelSavesWithoutStart) {
  auto recorder = Make(R"({"dump_path": "d", "level": "debug"})");
  const TensorInfo info = Info(data_, sizes_, strides_);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(recorder->saved().Save(
        "y", [&](CallBuilder& b, v1::Value* v) { b.Tensor(info, v); },
        [](CallBuilder&, v1::Value*) {}));
  }
  recorder->Step();
  EXPECT_THAT(received_.Calls(0), ElementsAre("y.0.debug", "y_grad.0.debug",
                                              "y.1.debug", "y_grad.1.debug"));
  EXPECT_FALSE(recorder->recording());
}

TEST_F(RecorderTest, ARemotePlanReplacesTheLocalOne) {
  auto recorder =
      Make(R"({"dump_path": "d", "level": "L1", "dump_enable": false})");
  recorder->Start();
  EXPECT_FALSE(recorder->recording());
  recorder->Step();
  auto plan = std::make_shared<Plan>();
  plan->level = Level::kL0;
  received_.remote = {plan, 4, true};
  recorder->Start();
  EXPECT_TRUE(recorder->recording());
  EXPECT_EQ(received_.records.size(), 0u) << "nothing is sent before submit";
  recorder->Stop();
  ASSERT_EQ(received_.records.size(), 1u);
  EXPECT_EQ(received_.records[0].record.step_begin().plan_epoch(), 4u);
  EXPECT_EQ(received_.records[0].record.step_begin().level(), "L0");
}

TEST_F(RecorderTest, AForkedChildRecordsNothing) {
  auto recorder = Make(R"({"dump_path": "d", "level": "L1"})");
  recorder->Start();
  const pid_t child = fork();
  if (child == 0) {
    Api(recorder.get(), "relu");
    recorder->Stop();
    recorder->Step();
    _exit(received_.records.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rankprobe
