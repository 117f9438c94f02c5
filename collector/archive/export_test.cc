#include "collector/archive/export.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "common/records/entry_names.h"
#include "common/testing/fault_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

namespace rankprobe {
namespace {

using testing::Frames;
using ::testing::HasSubstr;
using testing::ImportDump;
using testing::MakeIdentity;
using testing::ReadTextFile;

class ExportTest : public testing::TempDirTest {
 protected:
  v1::ExportDone Export(Store* store, const std::string& run,
                        std::vector<int64_t> ranks = {}) {
    ExportOptions options;
    options.run = run;
    options.ranks = IntSet(std::move(ranks));
    const auto done = ExportRunToDirectory(store, options, file_system_.get(),
                                           root_ + "/out");
    EXPECT_TRUE(done.ok()) << done.status();
    return done.ok() ? *done : v1::ExportDone();
  }

  rapidjson::Document Manifest() {
    rapidjson::Document document;
    document.Parse(ReadTextFile(root_ + "/out/manifest.json").c_str());
    EXPECT_TRUE(document.IsObject());
    return document;
  }
};

struct Golden {
  const char* name;
  const char* directory;
};

class GoldenExport : public ExportTest,
                     public ::testing::WithParamInterface<Golden> {};

// A dump made by msprobe, through records, store and export: the same bytes.
TEST_P(GoldenExport, IsByteExact) {
  const std::string golden = std::string(RANKPROBE_GOLDEN_DIR) + "/dumps/" +
                             GetParam().name + "/step0/" + GetParam().directory;
  const std::string directory = GetParam().directory;
  v1::Identity identity = MakeIdentity("run", -1, 77);
  if (directory.substr(0, 4) == "rank") {
    identity.set_rank(std::stoll(directory.substr(4)));
  } else {
    identity.set_pid(std::stoll(directory.substr(4)));
  }
  Frames frames(identity);
  ImportDump(golden, 0, "./dump", &frames);
  std::unique_ptr<Store> store = OpenStore();
  ASSERT_TRUE(store->OpenIncarnation(identity).ok());
  ASSERT_TRUE(store->Commit(frames.All()).ok());
  const v1::ExportDone done = Export(store.get(), "run");
  EXPECT_EQ(done.gaps(), 0u);
  EXPECT_EQ(done.incomplete_steps(), 0u);
  const std::string out = root_ + "/out/step0/" + directory;
  int compared = 0;
  for (const char* file :
       {"dump.json", "stack.json", "construct.json", "debug.json"}) {
    const std::string want = golden + "/" + file;
    ASSERT_EQ(std::filesystem::exists(want),
              std::filesystem::exists(out + "/" + file))
        << file;
    if (!std::filesystem::exists(want)) continue;
    EXPECT_TRUE(ReadTextFile(out + "/" + file) == ReadTextFile(want)) << file;
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

// No xor dump: msprobe writes 0-dim tensors of that mode as plain numbers, we
// as checksums (docs/formats.md, "Intended differences").
INSTANTIATE_TEST_SUITE_P(
    Dumps, GoldenExport,
    ::testing::Values(Golden{"cnn_stat_mix", "proc27098"},
                      Golden{"weird_stat_mix", "proc27105"},
                      Golden{"cnn_md5_mix", "proc27146"},
                      Golden{"cnn_tensor_md5_mix", "proc27141"},
                      Golden{"save_debug_tensor", "proc29761"},
                      Golden{"ddp_stat_mix", "rank1"},
                      Golden{"cnn_stat_L1", "proc27078"},
                      Golden{"cnn_extra_info_false", "proc27775"},
                      Golden{"cnn_structure", "proc27185"}),
    [](const auto& info) { return std::string(info.param.name); });

v1::StepBegin* Begin(v1::RecordBatch* batch, uint64_t order,
                     const char* task = "tensor") {
  v1::Record* record = batch->add_records();
  record->set_order(order);
  record->mutable_step_begin()->set_task(task);
  record->mutable_step_begin()->set_level("mix");
  record->mutable_step_begin()->set_framework("pytorch");
  record->mutable_step_begin()->set_dump_path("d");
  record->mutable_step_begin()->set_has_payloads(true);
  return record->mutable_step_begin();
}

v1::CallPhase* Phase(v1::RecordBatch* batch, uint64_t order,
                     const std::string& entry, v1::CallKind kind) {
  v1::Record* record = batch->add_records();
  record->set_order(order);
  record->mutable_call()->set_entry(entry);
  record->mutable_call()->set_kind(kind);
  return record->mutable_call();
}

v1::TensorSummary* Payload(v1::ValueList* list, const std::string& data) {
  v1::TensorSummary* tensor = list->add_items()->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_UINT8);
  tensor->add_shape(static_cast<int64_t>(data.size()));
  tensor->mutable_stats();
  tensor->mutable_payload()->set_digest(testing::DigestOf(data));
  tensor->mutable_payload()->set_length_bytes(data.size());
  return tensor;
}

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
  StepKey key;
  key.run = "run";
  key.incarnation = 1;
  std::string merged;
  ASSERT_TRUE(ForEachCall(store.get(), key, [&](const v1::CallEntry& found) {
                for (const auto& item : found.call().gradients().items())
                  merged += item.name() +
                            std::to_string(item.value().scalar().i()) + " ";
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(merged, "w4 b6 c5 d7 ");
}

// W02: not in the square of their number, which here would take minutes.
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
  StepKey key;
  key.run = "run";
  key.incarnation = 1;
  int merged = 0;
  const absl::Time began = absl::Now();
  ASSERT_TRUE(ForEachCall(store.get(), key, [&](const v1::CallEntry& entry) {
                merged += entry.call().gradients().items_size();
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(merged, kGradients);
  EXPECT_LT(absl::Now() - began, absl::Seconds(30));
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

// C07: what an agent says cannot steer a terminal that shows the log.
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

// E01, in an archive that was written before admission looked; C06.
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
  Export(store.get(), "run");
  EXPECT_THAT(ReadTextFile(root_ + "/out/step0/rank0/dump.json"),
              HasSubstr("Torch.op3.0.forward"));
  EXPECT_EQ(Manifest()["conflicts"].Size(), 2u);
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

// Several threads write what one would, byte for byte, manifest included.
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
    // Files of the tree, not the marks beside it.
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
  // One of the two tensors that are there is not what it should be.
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
