// SPDX-License-Identifier: Apache-2.0
// Reading dumps, and the errors for bad ones: one line with the file and the
// reason.
#include "dump_format/dump_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_rows.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using testing::GoldenDump;
using ::testing::HasSubstr;
using testing::TempDir;

class DumpReaderTest : public ::testing::Test {
 protected:
  absl::Status Open(const std::string& dump, const std::string& construct = "",
                    const std::string& stack = "") {
    dir_.Write("dump.json", dump);
    if (!construct.empty()) dir_.Write("construct.json", construct);
    if (!stack.empty()) dir_.Write("stack.json", stack);
    DumpReader::Options options;
    options.construct = !construct.empty();
    auto reader = DumpReader::Open(file_system_.get(), dir_.path(), options);
    options.keep_text = true;
    const auto kept =
        DumpReader::Open(file_system_.get(), dir_.path(), options);
    EXPECT_EQ(kept.status(), reader.status());
    if (!reader.ok() || !kept.ok()) return reader.status();
    reader_ = *std::move(reader);
    ExpectSame(**kept);
    return absl::OkStatus();
  }
  // Compares a file read through the window with one in memory.
  void ExpectSame(const DumpReader& kept) {
    EXPECT_EQ(kept.mode(), reader_->mode());
    ASSERT_EQ(kept.size(), reader_->size());
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(kept.name(i), reader_->name(i));
      JsonDocument a;
      JsonDocument b;
      EXPECT_EQ(kept.Read(i, &a), reader_->Read(i, &b));
      EXPECT_EQ(PythonText(a.root()), PythonText(b.root()));
    }
  }
  void ExpectBad(const absl::Status& status, const std::string& file,
                 const std::string& why) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir_.path() + file));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
  }

  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  TempDir dir_;
  std::unique_ptr<DumpReader> reader_;
};

TEST_F(DumpReaderTest, IndexesAndReads) {
  ASSERT_TRUE(Open(R"({"task":"statistics","level":"mix","framework":"pytorch",
               "dump_data_dir":null,"data":{
               "a\u00e9.0.forward":{"output":[]},
               "b":{"input":[null,{"type":"float","value":NaN}]},
               "b":{"input":[{"type":"int","value":12345678901234567890123}]}
               }})")
                  .ok());
  EXPECT_EQ(reader_->mode(), DumpMode::kStatistics);
  EXPECT_EQ(reader_->level(), "mix");
  ASSERT_EQ(reader_->size(), 2);
  EXPECT_EQ(reader_->name(0), "a\xc3\xa9.0.forward");
  EXPECT_EQ(reader_->Find("b"), 1);
  JsonDocument record;
  std::vector<DumpRow> rows;
  // Of equal keys the last counts.
  ASSERT_TRUE(reader_->Read(1, &record).ok());
  ASSERT_TRUE(ReadRows("b", StatSet(), &record, &rows).ok());
  ASSERT_EQ(rows.size(), 1);
  EXPECT_EQ(PythonText(rows[0].stats[0]), "12345678901234567890123");
}

TEST_F(DumpReaderTest, WhatTaskMonitorWritesStandsBehindTheCalls) {
  const std::string head =
      R"("task": "statistics", "level": "L0", "dump_data_dir": null, "data": )";
  dir_.Write("dump.json", "{" + head + R"({"Module.a.A.forward.0": {}}})");
  dir_.Write("debug.json",
             "{" + head +
                 R"({"mine.0.debug": {}, "Parameter.w.0.debug": {"grad": 1},
                     "Training.0.debug": {"lr": {"type": "int", "value": 2},
                      "step_seconds": {"type": "int", "value": 3}}}})");
  DumpReader::Options options;
  auto reader = DumpReader::Open(file_system_.get(), dir_.path(), options);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->size(), 1u);
  options.monitored = true;
  reader = DumpReader::Open(file_system_.get(), dir_.path(), options);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_EQ((*reader)->size(), 3u);
  EXPECT_EQ((*reader)->name(1), "Parameter.w.0.debug");
  EXPECT_EQ((*reader)->Find("Training.0.debug"), 2u);
  EXPECT_EQ((*reader)->Find("Module.a.A.forward.0"), 0u);
  EXPECT_EQ((*reader)->Find("mine.0.debug"), std::nullopt);
  JsonDocument record;
  std::vector<DumpRow> rows;
  ASSERT_TRUE((*reader)->Read(2, &record).ok());
  ASSERT_TRUE(
      ReadRows((*reader)->name(2), (*reader)->stats(), &record, &rows).ok());
  ASSERT_EQ(rows.size(), 1u);  // not how long the step took
  EXPECT_EQ(rows[0].name, "Training.0.debug.lr");
}

TEST_F(DumpReaderTest, TheHeadNamesExtraStatistics) {
  ASSERT_TRUE(Open(R"({"task":"statistics","data":{}})").ok());
  EXPECT_FALSE(reader_->stats().has_extra());
  EXPECT_TRUE(reader_->stats().Has(kNorm));
  // Also after the data; unknown names, and values that are not texts, are
  // ignored.
  ASSERT_TRUE(Open(R"({"task":"statistics","data":{"b":{"output":[{
      "type":"torch.Tensor","dtype":"torch.int8","Max":1,"Min":1,"Mean":null,
      "Norm":null,"ZeroCount":3,"NanCount":0}]}},
      "extra_statistics":["ZeroCount","Median",4,"Max"]})")
                  .ok());
  EXPECT_TRUE(reader_->stats().Has(kZeroCount));
  EXPECT_FALSE(reader_->stats().Has(kNanCount));
  JsonDocument record;
  std::vector<DumpRow> rows;
  ASSERT_TRUE(reader_->Read(0, &record).ok());
  ASSERT_TRUE(ReadRows("b", reader_->stats(), &record, &rows).ok());
  EXPECT_EQ(PythonText(rows[0].stats[kZeroCount]), "3");
  EXPECT_TRUE(rows[0].stats[kNanCount].is_null());
  EXPECT_TRUE(
      Open(R"({"task":"statistics","data":{},"extra_statistics":{"a":1}})")
          .ok());
  EXPECT_FALSE(reader_->stats().has_extra());
}

TEST_F(DumpReaderTest, ARecordLargerThanTheWindowIsWhole) {
  std::string text = R"({"task":"tensor","data":{"x.0.debug":{"type":"str",)";
  text += "\"value\":\"" + std::string(3 << 20, 'q') + "\"}}}";
  ASSERT_TRUE(Open(text).ok());
  JsonDocument record;
  ASSERT_TRUE(reader_->Read(0, &record).ok());
  EXPECT_EQ(record.root().Find("value")->text.size(), 3 << 20);
}

TEST_F(DumpReaderTest, Md5IsSeenAtAnyDepth) {
  ASSERT_TRUE(
      Open(R"({"task":"statistics","data":{"a":{"output":[[{"md5":"1"}]]}}})")
          .ok());
  EXPECT_EQ(reader_->mode(), DumpMode::kMd5);
  ASSERT_TRUE(
      Open(R"({"task":"statistics","data":{"a":{"output":["md5"]}}})").ok());
  EXPECT_EQ(reader_->mode(), DumpMode::kStatistics);
}

TEST_F(DumpReaderTest, StacksOfBothGenerations) {
  const std::string dump = R"({"task":"statistics","data":{}})";
  ASSERT_TRUE(Open(dump, "", R"({"0":[["a","b"],["f1","f2"]]})").ok());
  ASSERT_NE(reader_->Stack("b"), nullptr);
  EXPECT_THAT(*reader_->Stack("b"), ElementsAre("f1", "f2"));
  EXPECT_EQ(reader_->StackId("a"), reader_->StackId("b"));
  ASSERT_TRUE(Open(dump, "", R"({"a":["f1"],"b":["f1"],"c":[]})").ok());
  EXPECT_THAT(*reader_->Stack("a"), ElementsAre("f1"));
  EXPECT_EQ(reader_->StackId("a"), reader_->StackId("b"));
  EXPECT_EQ(reader_->Stack("x"), nullptr);
}

TEST_F(DumpReaderTest, MegatronConstruct) {
  ASSERT_TRUE(Open(R"({"task":"statistics","data":{}})",
                   R"({"a":[null,0],"b":["a",1],"c":"b",
                       "megatron_micro_step_number":1})")
                  .ok());
  EXPECT_EQ(reader_->micro_step_count(), 2);
  ASSERT_EQ(reader_->construct().size(), 3);
  EXPECT_EQ(reader_->construct()[1].parent, "a");
  EXPECT_EQ(reader_->construct()[1].micro_step, 1);
}

TEST_F(DumpReaderTest, BadDumps) {
  const std::string good =
      testing::ReadText(GoldenDump("cnn_stat_mix") + "/dump.json");
  for (const size_t part : {2, 3, 5, 9}) {
    ExpectBad(Open(good.substr(0, good.size() * (part - 1) / part)),
              "/dump.json", "too early");
  }
  ExpectBad(Open(""), "/dump.json", "too early");
  ExpectBad(Open("[]"), "/dump.json", "expected {");
  ExpectBad(Open("{}"), "/dump.json", "no \"data\"");
  ExpectBad(Open(R"({"data":{}})"), "/dump.json", "no \"task\"");
  ExpectBad(Open(R"({"task":"dance","data":{}})"), "/dump.json", "dance");
  ExpectBad(Open(R"({"task":7,"data":{}})"), "/dump.json", "not a string");
  ExpectBad(Open(R"({"task":"tensor","data":[]})"), "/dump.json",
            "not an object");
  ExpectBad(Open(R"({"task":"tensor","data":{"a":[1}}})"), "/dump.json",
            "bracket");
  ExpectBad(Open(R"({"task":"tensor","data":{"a":)" + std::string(600, '[')),
            "/dump.json", "deep");
}

TEST_F(DumpReaderTest, AFaultInsideARecordIsFoundWhenItIsRead) {
  ASSERT_TRUE(Open(R"({"task":"tensor","data":{"a":{"output":[nil]}}})").ok());
  JsonDocument record;
  ExpectBad(reader_->Read(0, &record), "/dump.json", "entry a");
}

TEST_F(DumpReaderTest, BadNeighbours) {
  const std::string dump = R"({"task":"statistics","data":{}})";
  ExpectBad(Open(dump, "{}"), "/construct.json", "empty");
  ExpectBad(Open(dump, "[]"), "/construct.json", "not an object");
  ExpectBad(Open(dump, R"({"a":3})"), "/construct.json", "entry a");
  ExpectBad(Open(dump, R"({"a":null)"), "/construct.json", "unexpected end");
  ExpectBad(Open(dump, "", R"({"0":[["a"],[1]]})"), "/stack.json",
            "not a stack");
  ExpectBad(Open(dump, "", R"({"0":"a"})"), "/stack.json", "not a stack");
}

TEST_F(DumpReaderTest, MissingFiles) {
  DumpReader::Options options;
  options.construct = true;
  ExpectBad(DumpReader::Open(file_system_.get(), dir_.path(), options).status(),
            "/dump.json", "No such file");
  dir_.Write("dump.json", R"({"task":"statistics","data":{}})");
  ExpectBad(DumpReader::Open(file_system_.get(), dir_.path(), options).status(),
            "/construct.json", "missing");
}

class DumpLayoutTest : public DumpReaderTest {
 protected:
  std::string Fault(const std::string& path) {
    return std::string(
        FindDumps(file_system_.get(), dir_.path() + path).status().message());
  }
};

TEST_F(DumpLayoutTest, AllForms) {
  dir_.Write("d/step1/rank10/dump.json", "{}");
  dir_.Write("d/step1/rank2/dump.json", "{}");
  dir_.Write("d/step0/proc77/dump.json", "{}");
  dir_.Write("d/manifest.json", "{}");
  auto layout = FindDumps(file_system_.get(), dir_.path() + "/d/");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->kind, DumpLayout::Kind::kSteps);
  EXPECT_THAT(layout->Steps(), ElementsAre(0, 1));
  EXPECT_THAT(layout->Ranks(), ElementsAre(0, 2, 10));
  ASSERT_EQ(layout->places.size(), 3);
  EXPECT_EQ(layout->places[1].rank, 2);
  layout = FindDumps(file_system_.get(), dir_.path() + "/d/step1");
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->kind, DumpLayout::Kind::kRanks);
  layout = FindDumps(file_system_.get(), dir_.path() + "/d/step1/rank2");
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->kind, DumpLayout::Kind::kSingle);
  layout =
      FindDumps(file_system_.get(), dir_.path() + "/d/step1/rank2/dump.json");
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->places[0].directory, dir_.path() + "/d/step1/rank2");
}

TEST_F(DumpLayoutTest, BadForms) {
  std::filesystem::create_directories(dir_.path() + "/empty");
  EXPECT_THAT(Fault("/empty"), HasSubstr("is empty; expected"));
  EXPECT_THAT(Fault("/none"), HasSubstr("/none: does not exist"));
  dir_.Write("procs/proc1/dump.json", "{}");
  dir_.Write("procs/proc2/dump.json", "{}");
  EXPECT_THAT(Fault("/procs"),
              HasSubstr("jobs: job 1, process 1 (step 0); job 2, process 2 "
                        "(step 0), and nothing says which is the newest; "
                        "choose one with --job N, or name its directory, as " +
                        dir_.path() + "/procs/proc1"));
  dir_.Write("mixed/step1/rank0/dump.json", "{}");
  dir_.Write("mixed/rank0/dump.json", "{}");
  EXPECT_THAT(Fault("/mixed"), HasSubstr("mixes"));
  dir_.Write("odd/thing/x.json", "{}");
  EXPECT_THAT(Fault("/odd"), HasSubstr("unexpected here"));
  dir_.Write("hollow/rank0/x.json", "{}");
  EXPECT_THAT(Fault("/hollow"), HasSubstr("no dump.json"));
  dir_.Write("file.txt", "");
  EXPECT_THAT(Fault("/file.txt"), HasSubstr("neither a directory"));
}

TEST_F(DumpLayoutTest, Pairing) {
  dir_.Write("a/rank0/dump.json", "{}");
  dir_.Write("a/rank1/dump.json", "{}");
  dir_.Write("b/rank1/dump.json", "{}");
  dir_.Write("c/rank7/dump.json", "{}");
  const auto find = [&](const std::string& name) {
    return *FindDumps(file_system_.get(), dir_.path() + "/" + name);
  };
  std::vector<std::string> unpaired;
  const auto pairs = PairDumps(find("a"), find("b"), &unpaired);
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(pairs->size(), 1);
  EXPECT_THAT(unpaired, ElementsAre(dir_.path() + "/a/rank0"));
  EXPECT_THAT(
      std::string(
          PairDumps(find("a"), find("c"), &unpaired).status().message()),
      HasSubstr("no step and rank in common. "));
  EXPECT_THAT(
      std::string(
          PairDumps(find("a"), find("a/rank0"), &unpaired).status().message()),
      HasSubstr(
          absl::StrCat("name two of one kind, as ", dir_.path(), "/a/rank0")));
}

TEST_F(DumpLayoutTest, OfSeveralJobsWithoutRanksOneIsRead) {
  for (const char* const place : {"step0/proc9", "step1/proc9", "step2/proc9",
                                  "step0/proc5", "step1/proc5"}) {
    dir_.Write(absl::StrCat("d/", place, "/dump.json"), "{}");
  }
  const auto file = [](absl::string_view place) {
    return absl::StrCat(R"({"path":")", place, R"(/dump.json"})");
  };
  dir_.Write("d/manifest.json",
             absl::StrCat(R"({"run":"b","files":[)", file("step0/proc5"), ",",
                          file("step1/proc5"),
                          R"(],"earlier_runs":[{"run":"a","files":[)",
                          file("step0/proc9"), ",", file("step1/proc9"), ",",
                          file("step2/proc9"), "]}]}"));
  const auto find = [&](const std::string& name,
                        std::optional<int64_t> job = std::nullopt) {
    return FindDumps(file_system_.get(), dir_.path() + "/" + name, job);
  };
  auto layout = find("d");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(layout->Steps(), ElementsAre(0, 1));
  EXPECT_THAT(layout->Ranks(), ElementsAre(0));
  EXPECT_EQ(layout->places[0].directory, dir_.path() + "/d/step0/proc5");
  EXPECT_THAT(layout->note,
              HasSubstr("2 jobs: job 1, process 9 (steps 0-2); job 2, process "
                        "5 (steps 0-1). Read: job 2, the newest; --job N"));
  layout = find("d", 1);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_THAT(layout->Steps(), ElementsAre(0, 1, 2));
  // One step.
  layout = find("d/step1");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->places[0].directory, dir_.path() + "/d/step1/proc5");
  layout = find("d/step2");
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->note, "");
  EXPECT_THAT(std::string(find("d", 3).status().message()),
              HasSubstr("--job 3: "));
  EXPECT_THAT(std::string(find("d/step2", 2).status().message()),
              HasSubstr("is of one job"));
}

TEST_F(DumpLayoutTest, WhatDoesNotPairIsNamedWithAPairThatDoes) {
  for (const char* const place :
       {"a/step0/rank0", "a/step1/rank0", "a/step2/rank0", "b/step2/rank0",
        "b/step3/rank0", "c/step3/rank0", "c/step3/rank1"}) {
    dir_.Write(absl::StrCat(place, "/dump.json"), "{}");
  }
  const auto find = [&](const std::string& name) {
    return *FindDumps(file_system_.get(), dir_.path() + "/" + name);
  };
  const std::string at = dir_.path() + "/";
  EXPECT_EQ(PairingHint(find("a"), find("b")),
            absl::StrCat(at, "a has steps 0-2 and ", at,
                         "b has steps 2-3. Those with different numbers are "
                         "compared when both are named, as ",
                         at, "a/step0 and ", at, "b/step3"));
  EXPECT_THAT(PairingHint(find("b"), find("c")),
              HasSubstr("b has steps 2-3, rank 0 and "));
  // Of one step: two ranks.
  EXPECT_EQ(PairingHint(find("b/step3"), find("c/step3")),
            absl::StrCat(at, "b/step3 has rank 0 and ", at,
                         "c/step3 has ranks 0-1. Those with different numbers "
                         "are compared when both are named, as ",
                         at, "b/step3/rank0 and ", at, "c/step3/rank1"));
}

}  // namespace
}  // namespace rankprobe
