// SPDX-License-Identifier: Apache-2.0
#include "common/records/unwritten.h"

#include <utility>

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

TEST(UnwrittenTest, WhatIsOverwrittenNeedNotHoldAnything) {
  for (const char* entry :
       {"Tensor.bernoulli_.0.forward", "Tensor.copy_.12.forward",
        "Tensor.__setitem__.3.forward", "Aten.normal_.0.forward"}) {
    const UnwrittenPlaces places = UnwrittenPlacesOf(entry);
    EXPECT_TRUE(places.HasInput("0")) << entry;
    EXPECT_FALSE(places.HasInput("1")) << entry;
    EXPECT_FALSE(places.HasOutput("0")) << entry;
  }
  // These read what they change.
  for (const char* entry :
       {"Tensor.add_.0.forward", "Tensor.masked_fill_.0.forward",
        "Tensor.clamp_.0.forward", "Functional.relu.0.forward"}) {
    EXPECT_FALSE(UnwrittenPlacesOf(entry).HasInput("0")) << entry;
    EXPECT_TRUE(UnwrittenPlacesOf(entry).HasInput("out")) << entry;
  }
}

TEST(UnwrittenTest, WhatIsAllocatedIsNotWritten) {
  EXPECT_TRUE(UnwrittenPlacesOf("Torch.empty.0.forward").HasOutput("0"));
  EXPECT_FALSE(UnwrittenPlacesOf("Torch.empty_like.0.forward").HasInput("0"));
  EXPECT_TRUE(UnwrittenPlacesOf("Tensor.new_empty.0.forward").HasInput("0"));
  EXPECT_FALSE(UnwrittenPlacesOf("Torch.zeros.0.forward").HasOutput("0"));
}

TEST(UnwrittenTest, CollectivesFillBuffersAndCallsOfThatNameDoNot) {
  EXPECT_TRUE(UnwrittenPlacesOf("Distributed.gather.0.forward")
                  .HasInput("gather_list"));
  EXPECT_FALSE(UnwrittenPlacesOf("Torch.gather.0.forward").HasInput("1"));
  EXPECT_TRUE(UnwrittenPlacesOf("Distributed.recv.0.forward").HasInput("0"));
  EXPECT_FALSE(
      UnwrittenPlacesOf("Distributed.all_reduce.0.forward").HasInput("0"));
}

TEST(UnwrittenTest, ModulesGradientsAndForeignNamesHaveNone) {
  for (const char* entry :
       {"Module.fill_.Linear.forward.0", "Tensor.fill_.0.backward", "", "fill_",
        "Tensor.", "Tensor.fill_"}) {
    const UnwrittenPlaces places = UnwrittenPlacesOf(entry);
    EXPECT_FALSE(places.HasInput("0") || places.HasInput("out")) << entry;
  }
}

TEST(UnwrittenTest, MoversMakeNoValues) {
  for (const char* entry : {"Tensor.narrow.0.forward", "Tensor.view.1.backward",
                            "Torch.split.0.forward", "Tensor.t.0.forward"})
    EXPECT_TRUE(MovesValuesOnly(entry)) << entry;
  for (const char* entry : {"Tensor.to.0.forward", "Tensor.half.0.forward",
                            "Module.view.View.forward.0", "view", "",
                            "Distributed.split.0.forward"})
    EXPECT_FALSE(MovesValuesOnly(entry)) << entry;
}

TEST(UnwrittenTest, KeywordsAreFoundByTheirName) {
  v1::CallPhase phase;
  phase.set_entry("Torch.add.0.forward");
  phase.mutable_input_kwargs()->add_items()->set_name("alpha");
  phase.mutable_input_kwargs()->add_items()->set_name("out");
  const UnwrittenPlaces places = UnwrittenPlacesOf(phase.entry());
  const v1::TensorSummary tensor;
  const auto unwritten = [&](CallSection section, int index) {
    return IsUnwritten(places, phase, {section, index}, tensor);
  };
  EXPECT_FALSE(unwritten(CallSection::kInputKwargs, 0));
  EXPECT_TRUE(unwritten(CallSection::kInputKwargs, 1));
  EXPECT_FALSE(unwritten(CallSection::kInputArgs, 0));
  EXPECT_FALSE(unwritten(CallSection::kOutput, 0));
  EXPECT_FALSE(unwritten(CallSection::kParameters, 0));
}

TEST(UnwrittenTest, AnArgumentThatTheSchemaSaysIsWrittenIsNone) {
  v1::CallPhase phase;
  phase.set_entry("_C.silu_and_mul.0.forward");
  phase.mutable_input_kwargs()->add_items()->set_name("result");
  v1::TensorSummary written;
  written.set_written(true);
  const UnwrittenPlaces places = UnwrittenPlacesOf(phase.entry());
  for (const auto& [section, expected] :
       {std::pair{CallSection::kInputArgs, true},
        {CallSection::kInputKwargs, true},
        {CallSection::kOutput, false}}) {
    EXPECT_EQ(IsUnwritten(places, phase, {section, 0}, written), expected);
    EXPECT_FALSE(IsUnwritten(places, phase, {section, 0}, {}));
  }
}

}  // namespace
}  // namespace rankprobe
