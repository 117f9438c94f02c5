// SPDX-License-Identifier: Apache-2.0
// Exported trees: choice of incarnation, repeated, parallel, linked and resumed
// exports.
#include "collector/archive/export.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "collector/archive/testing/export_fixture.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using testing::Begin;
using testing::ExportTest;
using testing::Frames;
using ::testing::HasSubstr;
using testing::MakeIdentity;
using testing::Payload;
using testing::Phase;
using testing::ReadTextFile;

TEST_F(ExportTest, TheNewestCompleteIncarnationWins) {
  std::unique_ptr<Store> store = OpenStore();
  for (const uint64_t incarnation : {5, 3, 9}) {
    Frames frames(MakeIdentity("run", 0, incarnation));
    v1::RecordBatch* batch = frames.AddBatch(0);
    Begin(batch, 0);
    Phase(batch, 1, "Torch.op" + std::to_string(incarnation) + ".0.forward",
          v1::CALL_KIND_API_FORWARD);
    if (incarnation != 9) {  // the last one died in the step
      v1::Record* end = batch->add_records();
      end->set_order(2);
      end->mutable_step_end()->set_call_phases(1);
    }
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  const v1::ExportDone done = Export(store.get(), "run");
  EXPECT_THAT(ReadTextFile(root_ + "/out/step0/rank0/dump.json"),
              HasSubstr("Torch.op3.0.forward"));
  EXPECT_EQ(Manifest()["conflicts"].Size(), 2u);
  EXPECT_EQ(done.conflicts(), 2u);
}

TEST_F(ExportTest, ARunOfWhichNothingCameHasAManifest) {
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->OpenIncarnation(MakeIdentity("run", 3, 1)).ok());
  ExportOptions options;
  options.run = "run";
  EXPECT_TRUE(
      absl::IsNotFound(ExportRunToDirectory(store.get(), options,
                                            file_system_.get(), root_ + "/tree")
                           .status()));
  v1::Undelivered left;
  left.set_records(9);
  left.set_reason("full");
  ASSERT_TRUE(store->NoteUndelivered(MakeIdentity("run", 3, 1), left).ok());
  const auto done = ExportRunToDirectory(store.get(), options,
                                         file_system_.get(), root_ + "/tree");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->gaps(), 1u);
  EXPECT_THAT(ReadTextFile(root_ + "/tree/manifest.json"),
              HasSubstr("PROCESS_EXIT"));
}

TEST_F(ExportTest, ExportingAgainReplacesAndLeavesNothingBehind) {
  Frames frames(MakeIdentity("run", 0, 1));
  Begin(frames.AddBatch(0), 0);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  Export(store.get(), "run");
  EXPECT_THAT(*file_system_->List(root_ + "/out"),
              ::testing::ElementsAre("manifest.json", "step0"));
  ExportOptions options;
  options.run = "run";
  options.steps = IntSet({99});
  EXPECT_EQ(ExportRunToDirectory(store.get(), options, file_system_.get(),
                                 root_ + "/out")
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  options.run = "nothing";
  EXPECT_EQ(ExportRunToDirectory(store.get(), options, file_system_.get(),
                                 root_ + "/out")
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(*file_system_->List(root_ + "/out"),
              ::testing::ElementsAre("manifest.json", "step0"));
}

// Several threads write the same bytes as one, including the manifest.
TEST_F(ExportTest, ThreadsChangeNothing) {
  std::unique_ptr<Store> store = OpenStore();
  for (int64_t rank = 0; rank < 3; ++rank) {
    Frames frames(MakeIdentity("run", rank, static_cast<uint64_t>(rank) + 1));
    for (int64_t step = 0; step < 4; ++step) {
      const std::string data(static_cast<size_t>(100 + 10 * step + rank), 'x');
      frames.AddPayload(data);
      v1::RecordBatch* const batch = frames.AddBatch(step);
      v1::Record* record = batch->add_records();
      record->mutable_step_begin()->set_has_payloads(true);
      record = batch->add_records();
      record->set_order(1);
      record->mutable_call()->set_entry("Torch.add.0.forward");
      record->mutable_call()->set_kind(v1::CALL_KIND_API_FORWARD);
      v1::TensorSummary* const tensor = record->mutable_call()
                                            ->mutable_output()
                                            ->add_items()
                                            ->mutable_tensor();
      tensor->set_dtype(v1::DTYPE_INT8);
      tensor->add_shape(static_cast<int64_t>(data.size()));
      tensor->mutable_payload()->set_digest(testing::DigestOf(data));
      tensor->mutable_payload()->set_length_bytes(data.size());
    }
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  ExportOptions options;
  options.run = "run";
  const auto one = ExportRunToDirectory(store.get(), options,
                                        file_system_.get(), root_ + "/one");
  options.threads = 4;
  const auto four = ExportRunToDirectory(store.get(), options,
                                         file_system_.get(), root_ + "/four");
  ASSERT_TRUE(one.ok() && four.ok()) << one.status() << four.status();
  EXPECT_EQ(one->files(), four->files());
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(root_ + "/one")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::string other =
        root_ + "/four" + entry.path().string().substr(root_.size() + 4);
    EXPECT_EQ(ReadTextFile(entry.path().string()), ReadTextFile(other));
  }
  EXPECT_EQ(files, one->files());
  EXPECT_GE(files, 3u * 4u * 2u);
}

// Two calls with the same tensor as output and input.
void AddSharedTensor(Frames* frames, const std::string& data) {
  frames->AddPayload(data);
  v1::RecordBatch* batch = frames->AddBatch(0);
  Begin(batch, 0);
  Payload(Phase(batch, 1, "Torch.add.0.forward", v1::CALL_KIND_API_FORWARD)
              ->mutable_output(),
          data);
  Payload(Phase(batch, 2, "Torch.mul.0.forward", v1::CALL_KIND_API_FORWARD)
              ->mutable_input_args(),
          data);
}

TEST_F(ExportTest, EqualTensorsShareAFileWhenAsked) {
  Frames frames(MakeIdentity("run", 0, 1));
  AddSharedTensor(&frames, "same bytes");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const std::string tensors = root_ + "/out/step0/rank0/dump_tensor_data/";
  const std::string a = tensors + "Torch.add.0.forward.output.0.pt",
                    b = tensors + "Torch.mul.0.forward.input.0.pt";
  Export(store.get(), "run");
  EXPECT_EQ(std::filesystem::hard_link_count(a), 1u);
  ExportOptions options;
  options.run = "run";
  options.link = true;
  const auto done = ExportRunToDirectory(store.get(), options,
                                         file_system_.get(), root_ + "/out");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(std::filesystem::hard_link_count(a), 2u);
  EXPECT_EQ(ReadTextFile(a), ReadTextFile(b));
  EXPECT_EQ(Manifest()["files"].Size(), done->files() - 1);
}

TEST_F(ExportTest, WithoutPayloadsThereAreStatisticsAndNothingIsMissing) {
  Frames frames(MakeIdentity("run", 0, 1));
  AddSharedTensor(&frames, "same bytes");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  ExportOptions options;
  options.run = "run";
  options.without_payloads = true;
  const auto done = ExportRunToDirectory(store.get(), options,
                                         file_system_.get(), root_ + "/out");
  ASSERT_TRUE(done.ok()) << done.status();
  const std::string rank = root_ + "/out/step0/rank0";
  EXPECT_TRUE(std::filesystem::exists(rank + "/dump.json"));
  EXPECT_FALSE(std::filesystem::exists(rank + "/dump_tensor_data"));
  EXPECT_EQ(Manifest()["gaps"].Size(), 0u);
}

// A rank that says it sends no payloads and sends some; one whose step begin
// was lost; one that says so and sends none.
TEST_F(ExportTest, WhatRefersToPayloadsHasThemWhateverTheBeginningSays) {
  std::unique_ptr<Store> store = OpenStore();
  for (const int64_t rank : {0, 1, 2}) {
    Frames frames(MakeIdentity("run", rank, static_cast<uint64_t>(rank) + 1));
    if (rank < 2) frames.AddPayload("some bytes");
    v1::RecordBatch* batch = frames.AddBatch(0);
    if (rank != 1) Begin(batch, 0)->set_has_payloads(false);
    v1::ValueList* const output =
        Phase(batch, 1, "Torch.add.0.forward", v1::CALL_KIND_API_FORWARD)
            ->mutable_output();
    if (rank < 2) Payload(output, "some bytes");
    // The second payload is missing completely.
    if (rank == 0) Payload(output, "lost");
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
  Export(store.get(), "run");
  for (const int64_t rank : {0, 1, 2}) {
    const std::string directory =
        absl::StrCat(root_, "/out/step0/rank", rank, "/");
    rapidjson::Document dump;
    dump.Parse(ReadTextFile(directory + "dump.json").c_str());
    ASSERT_TRUE(dump.IsObject());
    EXPECT_EQ(dump["dump_data_dir"].IsNull(), rank == 2);
    EXPECT_EQ(std::filesystem::exists(directory + "dump_tensor_data/"
                                                  "Torch.add.0.forward."
                                                  "output.0.pt"),
              rank < 2);
  }
  const rapidjson::Document manifest = Manifest();
  ASSERT_EQ(manifest["gaps"].Size(), 1u);
  EXPECT_STREQ(manifest["gaps"][0]["reason"].GetString(), "NOT_STORED");
  EXPECT_STREQ(manifest["gaps"][0]["rank"].GetString(), "rank0");
}

TEST_F(ExportTest, AnInterruptedExportIsTakenUpAndChecked) {
  Frames frames(MakeIdentity("run", 0, 1));
  v1::RecordBatch* batch = nullptr;
  for (const char* data : {"first", "second", "third"}) frames.AddPayload(data);
  batch = frames.AddBatch(0);
  Begin(batch, 0);
  v1::CallPhase* const call =
      Phase(batch, 1, "Torch.cat.0.forward", v1::CALL_KIND_API_FORWARD);
  for (const char* data : {"first", "second", "third"})
    Payload(call->mutable_input_args(), data);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  testing::FaultFileSystem disk;
  int opened = 0;
  disk.FailWhile([&opened](const std::string& op, const std::string& path) {
    // Files of the tree, without the marks next to it.
    if (op != "OpenForWrite" || !absl::StrContains(path, "/new/"))
      return testing::FaultKind::kNone;
    return ++opened == 3 ? testing::FaultKind::kNoSpace
                         : testing::FaultKind::kNone;
  });
  ExportOptions options;
  options.run = "run";
  EXPECT_TRUE(absl::IsResourceExhausted(
      ExportRunToDirectory(store.get(), options, &disk, "/two").status()));
  EXPECT_THAT(*disk.List("/two"), ::testing::ElementsAre(".rankprobe-export"));
  // One of the two existing tensor files has other bytes.
  const std::string path =
      "/step0/rank0/dump_tensor_data/Torch.cat.0.forward.input.1.pt";
  const std::string spoilt = "/two/.rankprobe-export/new" + path;
  const std::string junk(*disk.FileSize(spoilt), '?');
  {
    auto file = disk.OpenForWrite(spoilt, FileSystem::OpenMode::kTruncate);
    ASSERT_TRUE((*file)->Append(junk).ok());
    ASSERT_TRUE((*file)->Close().ok());
  }
  options.resume = true;
  opened = 100;
  const auto done = ExportRunToDirectory(store.get(), options, &disk, "/two");
  ASSERT_TRUE(done.ok()) << done.status();
  // Two of three tensors, dump.json, the manifest.
  EXPECT_EQ(opened, 104);
  EXPECT_THAT(*disk.List("/two"),
              ::testing::ElementsAre("manifest.json", "step0"));

  Export(store.get(), "run");
  const auto same = [&](const std::string& name) {
    std::string text(*disk.FileSize("/two" + name), '\0');
    EXPECT_TRUE(
        (*disk.OpenForRead("/two" + name))->Read(0, absl::MakeSpan(text)).ok());
    return text == ReadTextFile(root_ + "/out" + name);
  };
  EXPECT_TRUE(same(path));
  EXPECT_TRUE(same("/manifest.json"));
}

}  // namespace
}  // namespace rankprobe
