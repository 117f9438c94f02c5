// SPDX-License-Identifier: Apache-2.0
// Records of a step in dump.json, including hostile ones.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collector/archive/each_call.h"
#include "collector/archive/export.h"
#include "collector/archive/testing/export_fixture.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "common/records/entry_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

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

TEST_F(ExportTest, PhasesMergeAndModulesMoveToTheirLatestPhase) {
  Frames frames(MakeIdentity("run", 0, 1));
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0);
  Phase(batch, 1, "Module.a.A.forward.0", v1::CALL_KIND_MODULE_FORWARD)
      ->mutable_input_args();
  Phase(batch, 2, "Torch.add.0.forward", v1::CALL_KIND_API_FORWARD)
      ->mutable_input_args();
  Phase(batch, 3, "Torch.mul.0.forward", v1::CALL_KIND_API_FORWARD)
      ->mutable_input_args();
  Phase(batch, 4, "Torch.add.0.forward", v1::CALL_KIND_API_FORWARD)
      ->mutable_output();
  Phase(batch, 5, "Module.a.A.forward.0", v1::CALL_KIND_MODULE_FORWARD)
      ->mutable_output();
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const v1::ExportDone done = Export(store.get(), "run");
  EXPECT_EQ(done.incomplete_steps(), 1u) << "no StepEnd";
  rapidjson::Document dump;
  dump.Parse(ReadTextFile(root_ + "/out/step0/rank0/dump.json").c_str());
  std::vector<std::string> entries;
  for (const auto& member : dump["data"].GetObject())
    entries.push_back(member.name.GetString());
  EXPECT_THAT(entries, ::testing::ElementsAre("Torch.add.0.forward",
                                              "Torch.mul.0.forward",
                                              "Module.a.A.forward.0"));
  EXPECT_TRUE(dump["data"]["Torch.add.0.forward"].HasMember("output"));
}

TEST_F(ExportTest, LostAndMissingPayloadsAreGapsAndHaveNoName) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("stored");
  v1::RecordBatch* batch = frames.AddBatch(3);
  Begin(batch, 0);
  v1::CallPhase* call =
      Phase(batch, 1, "Torch.add.0.forward", v1::CALL_KIND_API_FORWARD);
  Payload(call->mutable_input_args(), "stored");
  Payload(call->mutable_input_args(), "shed")
      ->mutable_payload()
      ->set_lost(v1::LOSS_REASON_AGENT_BUDGET);
  Payload(call->mutable_input_args(), "never arrived");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  const std::string text = ReadTextFile(root_ + "/out/step3/rank0/dump.json");
  EXPECT_THAT(text, HasSubstr("Torch.add.0.forward.input.0.pt"));
  EXPECT_EQ(text.find("input.1.pt"), std::string::npos);
  EXPECT_EQ(text.find("input.2.pt"), std::string::npos);
  const rapidjson::Document manifest = Manifest();
  ASSERT_EQ(manifest["gaps"].Size(), 2u);
  EXPECT_STREQ(manifest["gaps"][0]["reason"].GetString(), "AGENT_BUDGET");
  EXPECT_STREQ(manifest["gaps"][1]["reason"].GetString(), "NOT_STORED");
  EXPECT_STREQ(manifest["gaps"][1]["entry"].GetString(), "Torch.add.0.forward");
  EXPECT_EQ(manifest["gaps"][1]["step"].GetInt(), 3);
}

// MindSpore's tools use other names for some fields, and .npy files, in which
// NumPy has no bfloat16.
TEST_F(ExportTest, AStepOfMindsporeHasItsWordsAndFiles) {
  const std::string data("\x80\x3f\x00\xc0", 4);  // 1, -2
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload(data);
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0)->set_framework("mindspore");
  v1::CallPhase* call =
      Phase(batch, 1, "Mint.add.0.forward", v1::CALL_KIND_API_FORWARD);
  v1::TensorSummary* tensor = Payload(call->mutable_input_args(), data);
  tensor->set_dtype(v1::DTYPE_BFLOAT16);
  tensor->set_shape(0, 2);
  v1::ObjectLeaf* dtype =
      call->mutable_input_args()->add_items()->mutable_object();
  dtype->set_kind(v1::ObjectLeaf::KIND_DTYPE);
  dtype->set_text("Float32");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  rapidjson::Document dump;
  dump.Parse(ReadTextFile(root_ + "/out/step0/rank0/dump.json").c_str());
  EXPECT_STREQ(dump["framework"].GetString(), "mindspore");
  const auto& inputs = dump["data"]["Mint.add.0.forward"]["input_args"];
  EXPECT_STREQ(inputs[0]["type"].GetString(), "mindspore.Tensor");
  EXPECT_STREQ(inputs[0]["dtype"].GetString(), "BFloat16");
  EXPECT_FALSE(inputs[0].HasMember("requires_grad"));
  EXPECT_STREQ(inputs[1]["type"].GetString(), "mindspore.dtype");
  EXPECT_STREQ(inputs[1]["value"].GetString(), "Float32");
  const std::string name = "Mint.add.0.forward.input.0.npy";
  EXPECT_EQ(inputs[0]["data_name"].GetString(), name);
  const std::string file =
      ReadTextFile(root_ + "/out/step0/rank0/dump_tensor_data/" + name);
  EXPECT_THAT(file, HasSubstr("'descr': '<f4'"));
  const float numbers[] = {1, -2};
  EXPECT_EQ(file.substr(file.size() - 8),
            std::string(reinterpret_cast<const char*>(numbers), 8));
  EXPECT_EQ(Manifest()["gaps"].Size(), 0u);
}

// A peer may claim any type.
TEST_F(ExportTest, PayloadsOfMindsporeWithoutATypeAreBytes) {
  Frames frames(MakeIdentity("run", 0, 1));
  frames.AddPayload("");
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0)->set_framework("mindspore");
  v1::CallPhase* call =
      Phase(batch, 1, "Mint.add.0.forward", v1::CALL_KIND_API_FORWARD);
  Payload(call->mutable_input_args(), "")->set_dtype(v1::DTYPE_UNSPECIFIED);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  EXPECT_TRUE(std::filesystem::exists(root_ + "/out/step0/rank0/dump.json"));
}

TEST_F(ExportTest, HostileNamesStayInsideTheTree) {
  Frames frames(MakeIdentity("../run/..", 0, 1));
  frames.AddPayload("bytes");
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0);
  const std::string entry = "Torch.../../../../tmp/evil\n.0.forward";
  Payload(
      Phase(batch, 1, entry, v1::CALL_KIND_API_FORWARD)->mutable_input_args(),
      "bytes");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "../run/..");
  int files = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(
           root_ + "/out/step0/rank0/dump_tensor_data")) {
    EXPECT_EQ(file.path().filename(),
              EscapeFileName(entry + ".input.0", ".pt"));
    ++files;
  }
  EXPECT_EQ(files, 1);
  rapidjson::Document dump;
  dump.Parse(ReadTextFile(root_ + "/out/step0/rank0/dump.json").c_str());
  EXPECT_TRUE(dump["data"].HasMember(entry.c_str()))
      << "the true name stays in the JSON";
}

v1::NamedValue* Gradient(v1::CallPhase* call, const std::string& name,
                         int64_t value) {
  v1::NamedValue* item = call->mutable_gradients()->add_items();
  item->set_name(name);
  item->mutable_value()->mutable_scalar()->set_i(value);
  return item;
}

// D02: records that fill each other's leaves nest to any depth.
TEST_F(ExportTest, MergedNestingIsBounded) {
  Frames frames(MakeIdentity("run", 0, 1));
  std::string path;
  for (int i = 0; i < 1200; ++i) {
    v1::CallPhase* const call =
        Phase(frames.AddBatch(0), static_cast<uint64_t>(i), "x.0.debug",
              v1::CALL_KIND_DEBUG);
    v1::Value* value = call->mutable_debug();
    for (int level = 0; level < 40; ++level)
      value = value->mutable_list()->add_items();
    value->mutable_scalar()->set_i(i);
    call->set_debug_path(path);
    for (int level = 0; level < 40; ++level) path += path.empty() ? "0" : ".0";
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  const std::string text = ReadTextFile(root_ + "/out/step0/rank0/dump.json");
  EXPECT_THAT(text, HasSubstr("rankprobe_cut"));
  EXPECT_THAT(text, HasSubstr("\"limit\": \"depth\""));
  const auto levels = std::count(text.begin(), text.end(), '[');
  EXPECT_GE(levels, 40);
  EXPECT_LE(levels, 45);
}

TEST_F(ExportTest, LaterGradientsReplaceThoseOfTheirName) {
  Frames frames(MakeIdentity("run", 0, 1));
  const std::string entry = "Module.a.A.parameters_grad.0";
  v1::RecordBatch* batch = frames.AddBatch(0);
  v1::CallPhase* call = Phase(batch, 1, entry, v1::CALL_KIND_PARAMETERS_GRAD);
  Gradient(call, "w", 1);
  Gradient(call, "b", 2);
  call = Phase(batch, 2, entry, v1::CALL_KIND_PARAMETERS_GRAD);
  Gradient(call, "c", 3);
  Gradient(call, "w", 4);
  call = Phase(batch, 3, entry, v1::CALL_KIND_PARAMETERS_GRAD);
  Gradient(call, "c", 5);
  Gradient(call, "b", 6);
  Gradient(call, "d", 7);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  StepKey key{.run = "run", .incarnation = 1};
  std::string merged;
  ASSERT_TRUE(
      ForEachCall(store.get(), key, false, [&](const v1::CallEntry& found) {
        for (const auto& item : found.call().gradients().items())
          merged +=
              item.name() + std::to_string(item.value().scalar().i()) + " ";
        return absl::OkStatus();
      }).ok());
  EXPECT_EQ(merged, "w4 b6 c5 d7 ");
}

// W02: the time must not grow with the square of their number, which would be
// minutes here.
TEST_F(ExportTest, ManyGradientsOfOneEntryMerge) {
  Frames frames(MakeIdentity("run", 0, 1));
  constexpr int kGradients = 200000;
  v1::RecordBatch* batch = frames.AddBatch(0);
  for (int i = 0; i < kGradients; i += 50000) {
    v1::CallPhase* const call =
        Phase(batch, static_cast<uint64_t>(i), "Module.a.A.parameters_grad.0",
              v1::CALL_KIND_PARAMETERS_GRAD);
    for (int k = i; k < i + 50000; ++k)
      Gradient(call, "parameter" + std::to_string(k), k);
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  StepKey key{.run = "run", .incarnation = 1};
  int merged = 0;
  const std::clock_t began = std::clock();
  ASSERT_TRUE(
      ForEachCall(store.get(), key, false, [&](const v1::CallEntry& entry) {
        merged += entry.call().gradients().items_size();
        return absl::OkStatus();
      }).ok());
  EXPECT_EQ(merged, kGradients);
  // Processor time, because a busy machine schedules the test late.
  EXPECT_LT((std::clock() - began) / CLOCKS_PER_SEC, 30);
}

TEST_F(ExportTest, CallsWithTheirStackAndParent) {
  Frames frames(MakeIdentity("run", 0, 1));
  v1::RecordBatch* batch = frames.AddBatch(0);
  Phase(batch, 1, "A", v1::CALL_KIND_API_FORWARD);
  Phase(batch, 2, "B", v1::CALL_KIND_API_FORWARD);
  v1::Record* record = batch->add_records();
  record->set_order(3);
  record->mutable_stack()->set_id(7);
  record->mutable_stack()->add_frames("File a.py, line 3, in f, \n x = g(y)");
  record->mutable_stack()->add_frames("File b.py, line 9, in h, \n f()");
  record = batch->add_records();
  record->set_order(4);
  record->mutable_stack_use()->set_id(7);
  record->mutable_stack_use()->set_entry("A");
  record = batch->add_records();
  record->set_order(5);
  record->mutable_edge()->set_entry("A");
  record->mutable_edge()->set_parent("Module.m.M.forward.0");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  StepKey key{.run = "run", .incarnation = 1};
  for (const bool context : {false, true}) {
    std::string said;
    ASSERT_TRUE(
        ForEachCall(store.get(), key, context, [&](const v1::CallEntry& entry) {
          absl::StrAppend(&said, entry.entry(), ":", entry.stack_size(),
                          entry.has_parent() ? entry.parent() : "-", " ");
          return absl::OkStatus();
        }).ok());
    EXPECT_EQ(said, context ? "A:2Module.m.M.forward.0 B:0- " : "A:0- B:0- ");
  }
}

// E05
TEST_F(ExportTest, TwoPayloadsOfOneNameHaveAFileEach) {
  Frames frames(MakeIdentity("run", 0, 1));
  for (const char* data : {"one!", "two!", "three"}) frames.AddPayload(data);
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0);
  Payload(Phase(batch, 1, "A", v1::CALL_KIND_API_FORWARD)->mutable_output(),
          "one!");
  for (const char* data : {"two!", "three"}) {
    v1::ValueList list;
    v1::CallPhase* const call =
        Phase(batch, data[1] == 'w' ? 2 : 3,
              data[1] == 'w' ? "A.output" : "A.output.0", v1::CALL_KIND_DEBUG);
    Payload(&list, data);
    if (data[1] == 'w') {
      *call->mutable_debug()->mutable_list() = list;
    } else {
      *call->mutable_debug() = list.items(0);
    }
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  EXPECT_EQ(Export(store.get(), "run").gaps(), 0u);
  rapidjson::Document dump;
  dump.Parse(ReadTextFile(root_ + "/out/step0/rank0/dump.json").c_str());
  const auto& data = dump["data"];
  const std::string names[] = {data["A"]["output"][0]["data_name"].GetString(),
                               data["A.output"][0]["data_name"].GetString(),
                               data["A.output.0"]["data_name"].GetString()};
  EXPECT_EQ(names[0], "A.output.0.pt");
  const std::string contents[] = {"one!", "two!", "three"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(
        ReadTextFile(root_ + "/out/step0/rank0/dump_tensor_data/" + names[i]),
        HasSubstr(contents[i]));
  }
}

// C07: an agent's text cannot control a terminal that shows the log.
TEST_F(ExportTest, TheErrorLogHoldsNoControlCharacters) {
  Frames frames(MakeIdentity("run", 0, 1));
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0);
  v1::Record* record = batch->add_records();
  record->set_order(1);
  record->mutable_error()->set_message(
      "\x1b]0;owned\x07\nforged line\u009b31m\u202e");
  record = batch->add_records();
  record->set_order(2);
  v1::LossEvent* const loss = record->mutable_loss();
  loss->set_reason(v1::LOSS_REASON_AGENT_BUDGET);
  loss->set_records(1);
  loss->set_detail("\x1b[2Jdetail\r");
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  const std::string log =
      ReadTextFile(root_ + "/out/step0/rank0/dump_error_info.log");
  EXPECT_THAT(log, HasSubstr("\\x1b]0;owned\\x07\\nforged line\\u009b31m"));
  EXPECT_THAT(log, HasSubstr("\\x1b[2Jdetail\\r"));
  for (const char c : log) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7f));
}

// E01, in an archive that was written before admission checked this; C06.
TEST_F(ExportTest, TextsOfAnArchiveCannotForgeJson) {
  Frames frames(MakeIdentity("run", 0, 1));
  v1::RecordBatch* batch = frames.AddBatch(0);
  Begin(batch, 0);
  v1::CallPhase* const call =
      Phase(batch, 1, "Torch.relu.0.forward", v1::CALL_KIND_API_FORWARD);
  const std::string forged = "0, \"placements\": []}]}, \"Forged\": {\"x\": 1";
  for (const std::string& mesh : {std::string("[[0, 1]]"), forged}) {
    v1::Value* const value = call->mutable_output()->add_items();
    value->mutable_tensor()->set_device_mesh_json(mesh);
    value->mutable_tensor()->add_shape(INT64_MAX);
    value->mutable_tensor()->add_shape(INT64_MAX);
    value->mutable_tensor()->set_dtype(static_cast<v1::DType>(999));
  }
  for (const std::string& digits :
       {std::string("-12"), std::string("007"), std::string(5000, '9')}) {
    v1::ScalarValue* const scalar =
        call->mutable_output()->add_items()->mutable_scalar();
    scalar->set_type("int");
    scalar->set_big_int(digits);
  }
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  Export(store.get(), "run");
  rapidjson::Document dump;
  dump.Parse(ReadTextFile(root_ + "/out/step0/rank0/dump.json").c_str());
  ASSERT_FALSE(dump.HasParseError());
  ASSERT_EQ(dump["data"].MemberCount(), 1u);
  const auto& output = dump["data"]["Torch.relu.0.forward"]["output"];
  EXPECT_EQ(output[0]["device_mesh"][0][1].GetInt(), 1);
  EXPECT_EQ(output[1]["device_mesh"].GetString(), forged);
  EXPECT_EQ(output[2]["value"].GetInt(), -12);
  EXPECT_STREQ(output[3]["value"].GetString(), "007");
  EXPECT_EQ(output[4]["value"].GetStringLength(), 5000u);
}

}  // namespace
}  // namespace rankprobe
