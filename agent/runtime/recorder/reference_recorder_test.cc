// SPDX-License-Identifier: Apache-2.0
// The Recorder with tensor.bench_path: which payloads are sent, and when
// recording ends.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/runtime/testing/recorder_fixture.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Received;
using ::testing::SizeIs;

using Data = std::vector<float>;

uint32_t Crc(const Data& data) {
  const auto size = static_cast<int64_t>(data.size());
  const int64_t stride = 1;
  SummaryRequest request;
  request.checksum = ChecksumMode::kCrc32;
  return Summarize({data.data(), v1::DTYPE_FLOAT32, {&size, 1}, {&stride, 1}},
                   request)
      .crc32;
}

class ReferenceRecorderTest : public testing::RecorderFixture {
 protected:
  void MakeFor(const std::string& diff_nums) {
    recorder_ = Make(absl::StrCat(
                         R"({"task": "tensor", "dump_path": "d", "level": "L1",
                "risk_level": "ALL", "tensor": {"summary_mode": "md5",
                "bench_path": "run:good", "diff_nums": )",
                         diff_nums, "}}"),
                     4);
  }

  void Reference(const std::string& entry, const Data& input,
                 const Data& output) {
    v1::ReferenceEntry* reference = received_.reference.add_entries();
    reference->set_entry(entry);
    reference->set_has_inputs(true);
    reference->set_has_outputs(true);
    for (const Data* data : {&input, &output}) {
      v1::ReferenceTensor* tensor = reference->add_tensors();
      tensor->set_output(data == &output);
      tensor->add_shape(static_cast<int64_t>(data->size()));
      tensor->set_crc32(Crc(*data));
    }
  }

  static void Add(const Data& data, CallBuilder& builder, v1::ValueList* list) {
    const std::vector<int64_t> sizes = {static_cast<int64_t>(data.size())},
                               strides = {1};
    TensorInfo info;
    info.view = {data.data(), v1::DTYPE_FLOAT32, sizes, strides};
    builder.Tensor(info, list->add_items());
  }

  RecordedCall Begin(const char* op, const Data& input) {
    const RecordedCall call = recorder_->calls().BeginApi("Torch", op);
    recorder_->calls().Inputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      Add(input, b, p->mutable_input_args());
    });
    return call;
  }
  RecordedCall Call(const char* op, const Data& input, const Data& output) {
    const RecordedCall call = Begin(op, input);
    recorder_->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
      Add(output, b, p->mutable_output());
    });
    return call;
  }

  // Payloads that were received, as floats.
  std::vector<Data> Payloads() const {
    std::vector<Data> out;
    for (const auto& [digest, bytes] : received_.payloads) {
      Data data(bytes.size() / sizeof(float));
      std::memcpy(data.data(), bytes.data(), bytes.size());
      out.push_back(data);
    }
    return out;
  }
  const v1::StepEnd* End() const {
    for (const Received::Entry& e : received_.records)
      if (e.record.has_step_end()) return &e.record.step_end();
    return nullptr;
  }

  std::unique_ptr<Recorder> recorder_;
};

TEST_F(ReferenceRecorderTest, OnlyADifferenceSendsBytesAndNothingElseIsAGap) {
  Reference("Torch.same.0.forward", {1}, {2});
  Reference("Torch.inputs.0.forward", {3}, {4});
  Reference("Torch.differs.0.forward", {5}, {6});
  MakeFor("-1");
  recorder_->Start();
  Call("same", {1}, {2});
  Call("inputs", {30}, {40});
  Call("differs", {5}, {60});
  const RecordedCall unknown = Call("unknown", {7}, {8});
  recorder_->calls().Backward(unknown, [&](CallBuilder& b, v1::CallPhase* p) {
    Add({9}, b, p->mutable_input());
  });
  recorder_->Stop();
  recorder_->Step();
  EXPECT_THAT(Payloads(), ::testing::UnorderedElementsAre(Data{5}, Data{60}));
  size_t named = 0, with_bytes = 0;
  for (const Received::Entry& e : received_.records) {
    if (!e.record.has_call()) continue;
    v1::CallPhase call = e.record.call();
    ForEachTensor(&call, [&](v1::TensorSummary* tensor) {
      named += tensor->name_without_payload() ? 1 : 0;
      with_bytes += tensor->has_payload() ? 1 : 0;
      if (tensor->has_payload()) {
        EXPECT_EQ(tensor->payload().length_bytes(), 4u);
        EXPECT_EQ(received_.payloads.count(tensor->payload().digest()), 1u);
      }
    });
  }
  // Nine values, and the inputs of the difference a second time.
  EXPECT_EQ(named, 10u);
  EXPECT_EQ(with_bytes, 2u);
  EXPECT_EQ(End()->payloads(), 2u);
  EXPECT_EQ(End()->lost_payloads(), 0u);
  ASSERT_THAT(received_.events, SizeIs(1));
  EXPECT_EQ(received_.events[0].difference().entry(),
            "Torch.differs.0.forward");
  EXPECT_EQ(received_.reference_asked, 1);
}

TEST_F(ReferenceRecorderTest, InputsAreThoseFromBeforeTheCallWroteIntoThem) {
  Reference("Torch.add_.0.forward", {1, 2}, {3, 4});
  MakeFor("1");
  recorder_->Start();
  Data data = {1, 2};
  const RecordedCall call = Begin("add_", data);
  data = {30, 40};
  recorder_->calls().Outputs(call, [&](CallBuilder& b, v1::CallPhase* p) {
    Add(data, b, p->mutable_output());
  });
  recorder_->Stop();
  recorder_->Step();
  EXPECT_THAT(Payloads(),
              ::testing::UnorderedElementsAre(Data{1, 2}, Data{30, 40}));
}

TEST_F(ReferenceRecorderTest, TheLastWantedDifferenceEndsRecordingAtOnce) {
  for (const char* name : {"a", "b", "c"})
    Reference(absl::StrCat("Torch.", name, ".0.forward"), {1}, {2});
  MakeFor("2");
  recorder_->Start();
  const RecordedCall outer = Begin("outer", {1});
  const RecordedCall first = Call("a", {1}, {20});
  EXPECT_TRUE(recorder_->recording());
  Call("b", {1}, {21});
  EXPECT_FALSE(recorder_->recording());
  Call("c", {1}, {22});
  recorder_->calls().Outputs(outer, [&](CallBuilder& b, v1::CallPhase* p) {
    Add({9}, b, p->mutable_output());
  });
  EXPECT_FALSE(recorder_->calls().WantsBackward(first));
  recorder_->calls().ParameterGradient("Module.m.M", "w", TensorInfo());
  recorder_->Start();  // again in this step
  EXPECT_FALSE(recorder_->recording());
  recorder_->Stop();
  recorder_->Step();
  recorder_->Start();
  EXPECT_FALSE(recorder_->recording());
  recorder_->Stop();
  recorder_->Step();
  EXPECT_THAT(received_.Calls(0),
              ElementsAre("Torch.outer.0.forward", "Torch.a.0.forward",
                          "Torch.a.0.forward", "Torch.b.0.forward",
                          "Torch.b.0.forward"));
  EXPECT_THAT(received_.Calls(1), IsEmpty());
  EXPECT_THAT(received_.events, SizeIs(2));
  ASSERT_NE(End(), nullptr);
  EXPECT_EQ(End()->call_phases(), 5u);
}

TEST_F(ReferenceRecorderTest, AnotherPlanHasABudgetOfItsOwn) {
  Reference("Torch.a.0.forward", {1}, {2});
  MakeFor("1");
  recorder_->Start();
  Call("a", {1}, {20});
  recorder_->Step();
  // The run's first plan is the agent's own.
  received_.remote = {recorder_->plan(), 1, true};
  recorder_->Start();
  EXPECT_FALSE(recorder_->recording());
  recorder_->Step();
  received_.remote = {recorder_->plan(), 2, true};
  recorder_->Start();
  EXPECT_TRUE(recorder_->recording());
  Call("a", {1}, {20});
  EXPECT_FALSE(recorder_->recording());
  recorder_->Step();
  EXPECT_THAT(received_.events, SizeIs(2));
  EXPECT_EQ(received_.events[1].difference().plan_epoch(), 2u);
  EXPECT_EQ(received_.events[1].difference().step(), 2);
}

TEST_F(ReferenceRecorderTest, AsynchronousOutputsAreComparedWhenTheyAreDone) {
  Reference("Torch.a.0.forward", {1}, {2});
  MakeFor("-1");
  recorder_->Start();
  const RecordedCall call = Begin("a", {1});
  const auto outputs = [&](const Data& data) {
    return [&](CallBuilder& b, v1::CallPhase* p) {
      Add(data, b, p->mutable_output());
    };
  };
  recorder_->calls().Outputs(call, outputs({1}), /*late=*/true);
  EXPECT_THAT(received_.events, IsEmpty());
  recorder_->calls().LateOutputs(call, outputs({7}));
  EXPECT_THAT(received_.events, SizeIs(1));
  EXPECT_THAT(Payloads(), ::testing::UnorderedElementsAre(Data{1}, Data{7}));
}

TEST_F(ReferenceRecorderTest, AMissingReferenceIsToldAndTheStepGoesOnWithout) {
  received_.reference_status = absl::NotFoundError("no such run");
  MakeFor("1");
  for (int step = 0; step < 2; ++step) {
    recorder_->Start();
    EXPECT_TRUE(recorder_->recording());
    Call("a", {1}, {2});
    recorder_->Stop();
    recorder_->Step();
  }
  EXPECT_THAT(received_.payloads, IsEmpty());
  EXPECT_EQ(End()->payloads(), 0u);
  ASSERT_THAT(received_.events, SizeIs(1));  // once
  EXPECT_THAT(received_.events[0].error().message(), HasSubstr("no such run"));
  int errors = 0;
  for (const Received::Entry& e : received_.records)
    errors += e.record.has_error() ? 1 : 0;
  EXPECT_EQ(errors, 2);  // one in each step's dump_error_info.log
  EXPECT_EQ(received_.reference_asked, 2);
}

TEST_F(ReferenceRecorderTest, ACollectorThatDoesNotAnswerIsNotAskedEachStep) {
  received_.reference_status = absl::DeadlineExceededError("slow");
  MakeFor("1");
  for (int step = 0; step < 5; ++step) {
    recorder_->Start();
    recorder_->Step();
  }
  EXPECT_EQ(received_.reference_asked, 1);
  clock_.Advance(ReferenceComparer::kFetchPause + absl::Seconds(1));
  recorder_->Start();
  EXPECT_EQ(received_.reference_asked, 2);
}

TEST_F(ReferenceRecorderTest, HeldBytesAreBoundedAndWhatIsBeyondIsCounted) {
  received_.hold_limit_bytes = 8;
  Reference("Torch.a.0.forward", {1}, {2});
  Reference("Torch.b.0.forward", {1, 2}, {3});
  MakeFor("-1");
  recorder_->Start();
  const RecordedCall outer = Begin("a", {1});  // 4 of 8
  Call("b", {1, 2}, {30});                     // 8 do not fit, 4 do
  recorder_->calls().Outputs(outer, [&](CallBuilder& b, v1::CallPhase* p) {
    Add({20}, b, p->mutable_output());
  });
  Call("b", {1, 2}, {30});  // number 1: not in the reference
  recorder_->Stop();
  recorder_->Step();
  EXPECT_THAT(Payloads(),
              ::testing::UnorderedElementsAre(Data{1}, Data{20}, Data{30}));
  EXPECT_EQ(End()->payloads(), 4u);
  EXPECT_EQ(End()->lost_payloads(), 1u);
  const v1::CallPhase* b = received_.Find("Torch.b.0.forward", true);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->input_args().items(0).tensor().payload().lost(),
            v1::LOSS_REASON_AGENT_BUDGET);
}

TEST(ReferencePath, IsCheckedByTheConstructor) {
  RecorderOptions options;
  options.config_json =
      R"({"task": "tensor", "dump_path": "d", "tensor": {
          "summary_mode": "md5", "bench_path": "/nonexist"}})";
  ManualClock clock;
  Received received;
  const auto recorder = Recorder::Create(
      options, std::make_unique<testing::FakeSession>(&received), &clock);
  EXPECT_TRUE(absl::IsInvalidArgument(recorder.status()));
  EXPECT_THAT(recorder.status().ToString(),
              HasSubstr("tensor.bench_path: \"/nonexist\""));
}

}  // namespace
}  // namespace rankprobe
