// SPDX-License-Identifier: Apache-2.0
#include "dump_format/tensor_notes.h"

#include <gmock/gmock.h>

#include <memory>

#include "absl/strings/match.h"
#include "dump_format/tensor_notes_json.h"
#include "dump_format/testing/testing_files.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

class TensorNotesTest : public ::testing::Test {
 protected:
  absl::StatusOr<TensorNotes> Read(const std::string& text) {
    dir_.Write("tensor_notes.json", text);
    return TensorNotes::Read(files_.get(), dir_.path());
  }

  TempDir dir_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
};

TEST_F(TensorNotesTest, WhatIsWrittenIsRead) {
  StepView view;
  EXPECT_EQ(TensorNotesJson(view), "");
  v1::CallPhase& call = view.calls.emplace_back();
  call.set_entry("_C.rotate.0.forward");
  call.mutable_input_args()->add_items()->mutable_tensor();
  EXPECT_EQ(TensorNotesJson(view), "");
  call.mutable_input_args()->add_items()->mutable_tensor()->set_written(true);
  v1::NamedValue* named = call.mutable_input_kwargs()->add_items();
  named->set_name("outs");
  named->mutable_value()
      ->mutable_list()
      ->add_items()
      ->mutable_tensor()
      ->set_written(true);
  v1::TensorSummary* const part =
      call.mutable_output()->add_items()->mutable_tensor();
  part->add_shape(2);
  part->set_device_mesh_json("[[0, 1], [2, 3]]");
  // Older agents did not record the complete size.
  EXPECT_FALSE(absl::StrContains(TensorNotesJson(view), "global_shape"));
  part->add_global_shape(8);
  v1::Placement* placement = part->add_placements();
  placement->set_kind(v1::Placement::KIND_STRIDED_SHARD);
  placement->set_split_factor(2);
  part->add_placements()->set_kind(v1::Placement::KIND_SHARD);

  const std::string text = TensorNotesJson(view);
  const auto notes = Read(text);
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_FALSE(notes->Written("_C.rotate.0.forward.input.0"));
  EXPECT_TRUE(notes->Written("_C.rotate.0.forward.input.1"));
  EXPECT_TRUE(notes->Written("_C.rotate.0.forward.input.outs.0"));
  const TensorNote* const output = notes->Find("_C.rotate.0.forward.output.0");
  ASSERT_NE(output, nullptr);
  EXPECT_FALSE(output->written);
  EXPECT_THAT(output->global_shape, ElementsAre(8));
  EXPECT_THAT(text, HasSubstr("\"_StridedShard\": {\n     \"dim\": 0,\n"
                              "     \"split_factor\": 2\n"));
}

TEST_F(TensorNotesTest, WithoutAFileThereAreNone) {
  const auto notes = TensorNotes::Read(files_.get(), dir_.path());
  ASSERT_TRUE(notes.ok()) << notes.status();
  EXPECT_EQ(notes->Find("x"), nullptr);
}

TEST_F(TensorNotesTest, BadFiles) {
  for (const char* text :
       {"", "[]", "{\"a\": {}", "{\"a\": 1}",
        R"({"a": {"global_shape": [-1]}})", R"({"a": {"global_shape": [1.5]}})",
        R"({"a": {"global_shape": [NaN]}})"}) {
    const absl::Status status = Read(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor_notes.json"));
    EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
  }
  // A note of a newer version.
  EXPECT_TRUE(Read(R"({"a": {"other": [1], "written": 3}})").ok());
}

}  // namespace
}  // namespace rankprobe
