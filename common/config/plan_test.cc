// SPDX-License-Identifier: Apache-2.0
#include "common/config/plan.h"

#include <time.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/testing/source_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ErrorOf(absl::string_view json,
                    const ConfigOverrides& overrides = {}) {
  const auto result = ParseConfig(json, overrides);
  EXPECT_FALSE(result.ok()) << json;
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

Plan PlanOf(absl::string_view json, const ConfigOverrides& overrides = {}) {
  auto result = ParseConfig(json, overrides);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->plan : Plan();
}

// Configs that msprobe was seen to refuse (tests/golden/invalid_config), and
// the field named in rankprobe's message. Empty: rankprobe accepts it, for the
// reason given.
const std::map<std::string, std::string>& Cases() {
  static const auto* const cases = new std::map<std::string, std::string>{
      {"bad_L0_nomodel", ""},  // a rule of start(), not of the file
      {"bad_acc_check", "task"},
      {"bad_async_str", "async_dump"},
      {"bad_bench_missing",
       ""},  // the path may exist on another machine; checked at start
      {"bad_bench_nomd5", ""},  // msprobe accepts it too; we warn
      {"bad_data_mode", "data_mode"},
      {"bad_data_mode_all", "data_mode"},
      {"bad_data_mode_many", "data_mode"},
      {"bad_data_mode_str", "data_mode"},
      {"bad_diff_check", "task"},
      {"bad_diff_nums", "diff_nums"},  // msprobe accepts any type here
      {"bad_dump_path", "dump_path"},
      {"bad_enable_str", "dump_enable"},
      {"bad_exception_dump", "task"},
      {"bad_extra_str", "extra_info"},
      {"bad_kernel_dump", "task"},
      {"bad_l2_stat", "level"},
      {"bad_level", "level"},
      {"bad_list_elem", "list"},
      {"bad_list_type", "list"},
      {"bad_nan_check", "task"},
      {"bad_nodump_path", "dump_path"},
      {"bad_notjson", ""},  // the recorded file is valid after all
      {"bad_overflow", "task"},
      {"bad_precision", "precision"},
      {"bad_rank_bad", "rank"},
      {"bad_rank_neg", "rank"},
      {"bad_rank_range", "rank"},
      {"bad_rank_str", "rank"},
      {"bad_risk", "risk_level"},
      {"bad_scope_len", "scope"},
      {"bad_scope_level", "scope"},
      {"bad_scope_mixed_L0", "scope"},
      {"bad_scope_name", "scope"},
      {"bad_scope_type", "scope"},
      {"bad_slice_bad", "slice"},
      {"bad_step_bool", "step"},
      {"bad_step_float", "step"},
      {"bad_step_notlist", "step"},
      {"bad_summary", "summary_mode"},
      {"bad_task", "task"},
      {"bad_tensor_list", "tensor_list"},
      {"bad_unknown_key", ""},  // warned about
  };
  return *cases;
}

// A24: a selection of statistics of kernels, which rankprobe does not have.
TEST(ConfigTest, ListsOfStatisticsAreCheckedAndRefused) {
  const auto refusal = [](const char* list) {
    return ErrorOf(absl::StrCat(R"({"dump_path": "d", "statistics": )",
                                R"({"summary_mode": )", list, "}}"));
  };
  EXPECT_THAT(refusal(R"(["max", "hash", "nan count"])"),
              AllOf(HasSubstr("MindSpore static graphs"),
                    ::testing::Not(HasSubstr("l2norm"))));
  EXPECT_THAT(refusal(R"(["max", "median"])"),
              AllOf(HasSubstr("median"), HasSubstr("l2norm")));
}

TEST(ConfigTest, GoldenInvalidConfigs) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           testing::GoldenDir() + "/invalid_config")) {
    const std::string name = entry.path().filename();
    const auto it = Cases().find(name);
    ASSERT_NE(it, Cases().end()) << "no expectation for " << name;
    const auto result = ParseConfig(ReadFile(entry.path() / "config.json"), {});
    ++seen;
    if (it->second.empty()) {
      EXPECT_TRUE(result.ok()) << name << ": " << result.status();
    } else {
      EXPECT_FALSE(result.ok()) << name;
      EXPECT_THAT(std::string(result.status().message()), HasSubstr(it->second))
          << name;
    }
  }
  EXPECT_EQ(seen, static_cast<int>(Cases().size()));
}

TEST(ConfigTest, ConfigsOfRealDumpsAreAccepted) {
  int seen = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::GoldenDir() + "/dumps")) {
    const auto result = ParseConfig(ReadFile(entry.path() / "config.json"), {});
    EXPECT_TRUE(result.ok()) << entry.path() << ": " << result.status();
    ++seen;
  }
  EXPECT_GE(seen, 20);
}

TEST(ConfigTest, DefaultsAreThoseOfTheDocuments) {
  const Plan plan = PlanOf(DefaultConfigJson());
  EXPECT_EQ(plan.task, Task::kStatistics);
  EXPECT_EQ(plan.level, Level::kL1);
  EXPECT_EQ(plan.dump_path, "./dump_path");
  EXPECT_EQ(plan.risk_level, RiskLevel::kFocus);
  EXPECT_TRUE(plan.extra_info);
  EXPECT_FALSE(plan.dump_enable.has_value());
  EXPECT_TRUE(plan.WantsRank(std::nullopt));
  EXPECT_TRUE(plan.WantsStep(7));
  EXPECT_FALSE(plan.FinishedBefore(1000));
}

TEST(ConfigTest, AllFaultsInOneAnswer) {
  const std::string error = ErrorOf(
      R"({"task": "bogus", "level": "L9", "rank": [-1, true, "5-2"], "precision": 3,
                                        "statistics": {"scope": ["x"], "list": 4}})");
  EXPECT_THAT(
      error,
      AllOf(HasSubstr("\"bogus\""), HasSubstr("statistics, tensor, structure"),
            HasSubstr("\"L9\""), HasSubstr("rank: -1"), HasSubstr("rank: true"),
            HasSubstr("rank: \"5-2\""), HasSubstr("precision: 3"),
            HasSubstr("dump_path is missing: add ")));
}

TEST(ConfigTest, AFileThatIsCutOffIsSaidToBe) {
  const std::string whole =
      "{\"task\": \"tensor\", \"step\": [1, 2], \"x\": true}";
  for (size_t size = 1; size < whole.size(); ++size) {
    for (const char* end : {"", "\n"}) {
      EXPECT_THAT(ErrorOf(whole.substr(0, size) + end),
                  AnyOf(HasSubstr("was it cut off?"),
                        HasSubstr("without its closing quote")))
          << whole.substr(0, size);
    }
  }
  EXPECT_THAT(ErrorOf("{\"task\": \"a\\qb\"}"), HasSubstr("escape"));
  EXPECT_THAT(ErrorOf("{\"task\": bogus}"), HasSubstr("Invalid value"));
  EXPECT_THAT(ErrorOf("{\"task\": \"tensor,\n\"level\": \"L1\"}"),
              HasSubstr("without its closing quote. (line 1"));
}

TEST(ConfigTest, ExtraStatistics) {
  EXPECT_TRUE(PlanOf(R"({"dump_path": "d"})").extra_statistics.empty());
  EXPECT_TRUE(PlanOf(R"({"dump_path": "d",
                         "statistics": {"extra_statistics": []}})")
                  .extra_statistics.empty());
  EXPECT_THAT(PlanOf(R"({"dump_path": "d", "task": "tensor", "tensor": {
                         "extra_statistics": ["std", "counts", "std"]}})")
                  .extra_statistics.Words(),
              ElementsAre("counts", "std"));
  // The section of another task has no effect.
  EXPECT_TRUE(PlanOf(R"({"dump_path": "d",
                         "tensor": {"extra_statistics": ["std"]}})")
                  .extra_statistics.empty());
  EXPECT_THAT(ErrorOf(R"({"dump_path": "d", "statistics": {"extra_statistics":
                  ["std", "median", 3]}})"),
              AllOf(HasSubstr("statistics.extra_statistics: \"median\""),
                    HasSubstr("a list of counts, std"),
                    HasSubstr("statistics.extra_statistics: 3")));
  EXPECT_THAT(ErrorOf(R"({"dump_path": "d",
                          "statistics": {"extra_statistics": "std"}})"),
              HasSubstr("statistics.extra_statistics: \"std\""));
  const auto xored = ParseConfig(
      R"({"dump_path": "d", "statistics": {"summary_mode": "xor",
          "extra_statistics": ["std"]}})",
      {});
  ASSERT_TRUE(xored.ok());
  EXPECT_TRUE(xored->plan.extra_statistics.empty());
  EXPECT_THAT(xored->warnings,
              ElementsAre("statistics.extra_statistics has no effect: "
                          "summary_mode xor has no statistics"));
}

TEST(ConfigTest, RangesAndFilters) {
  const Plan plan = PlanOf(
      R"({"dump_path": "d", "rank": [3, "1", "4-6"], "step": ["0", "2-3"]})");
  EXPECT_EQ(plan.ranks.Text(), "1,3-6");
  EXPECT_FALSE(plan.WantsRank(std::nullopt));
  EXPECT_TRUE(plan.WantsRank(5));
  EXPECT_FALSE(plan.WantsStep(1));
  EXPECT_FALSE(plan.FinishedBefore(3));
  EXPECT_TRUE(plan.FinishedBefore(4));
}

TEST(IntSetTest, IsWhatASetOfItsMembersIs) {
  // Compared with std::set, for overlapping, adjacent and repeated intervals.
  uint32_t random = 1;
  const auto next = [&random](uint32_t below) {
    random = random * 1664525 + 1013904223;
    return static_cast<int64_t>((random >> 16) % below);
  };
  for (int round = 0; round < 300; ++round) {
    std::set<int64_t> members;
    std::vector<IntInterval> intervals;
    for (int64_t i = 0, n = 1 + next(8); i < n; ++i) {
      const int64_t first = next(60), last = first + next(9);
      intervals.push_back({first, last});
      for (int64_t v = first; v <= last; ++v) members.insert(v);
    }
    const IntSet set = IntSet::OfIntervals(intervals);
    const IntSet same(std::vector<int64_t>(members.begin(), members.end()));
    ASSERT_EQ(set.Text(), same.Text());
    ASSERT_EQ(set.size(), members.size());
    ASSERT_EQ(set.Max(), *members.rbegin());
    for (int64_t v = -2; v < 75; ++v)
      ASSERT_EQ(set.Contains(v), members.count(v) == 1) << v << set.Text();
    for (size_t i = 1; i < set.intervals().size(); ++i)
      ASSERT_GT(set.intervals()[i].first, set.intervals()[i - 1].last + 1);
  }
  EXPECT_TRUE(IntSet::OfIntervals({}).all());
  EXPECT_TRUE(IntSet().Contains(INT64_MIN));
  const IntSet ends = IntSet::OfIntervals({{INT64_MAX, INT64_MAX},
                                           {INT64_MIN, INT64_MIN},
                                           {INT64_MAX - 1, INT64_MAX - 1}});
  EXPECT_TRUE(ends.Contains(INT64_MIN) && ends.Contains(INT64_MAX));
  EXPECT_FALSE(ends.Contains(0));
  EXPECT_EQ(ends.intervals().size(), 2u);
}

// D04, D05: 80,000 ranges of a million numbers each are one interval.
TEST(ConfigTest, ManyWideRangesStayOneInterval) {
  std::string json = R"({"dump_path": "d", "step": [)";
  for (int i = 0; i < 70000; ++i)
    json += absl::StrCat(i == 0 ? "" : ",", "\"0-1000000\"");
  const Plan plan = PlanOf(json + "]}");
  EXPECT_EQ(plan.steps.Text(), "0-1000000");
  EXPECT_EQ(plan.steps.intervals().size(), 1u);
  std::string many = R"({"dump_path": "d", "step": [0)";
  for (int i = 0; i < 100000; ++i) many += ",1";
  EXPECT_THAT(ErrorOf(many + "]}"),
              HasSubstr("step: a list of 100001 items is not legal"));
}

TEST(ConfigTest, NamespacesOfOperators) {
  const auto named = [](const char* names) {
    return PlanOf(absl::StrCat(R"({"dump_path": "d", "custom_op_namespaces": )",
                               names, "}"))
        .custom_op_namespaces;
  };
  EXPECT_EQ(PlanOf(R"({"dump_path": "d"})").custom_op_namespaces, std::nullopt);
  EXPECT_EQ(named("null"), std::nullopt);
  EXPECT_THAT(named("[]"), ::testing::Optional(::testing::IsEmpty()));
  EXPECT_THAT(named(R"(["_C", "vllm"])"),
              ::testing::Optional(::testing::ElementsAre("_C", "vllm")));
  for (const char* bad : {R"("_C")", "[1]", R"({"_C": 1})"}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat(R"({"dump_path": "d", "custom_op_namespaces": )",
                             bad, "}")),
        HasSubstr("custom_op_namespaces: "));
  }
}

TEST(ConfigTest, ConstructorArgumentsBeatTheFile) {
  ConfigOverrides overrides;
  overrides.task = "tensor";
  overrides.dump_path = "other";
  overrides.level = "mix";
  overrides.step_json = "[\"7-8\"]";
  const Plan plan =
      PlanOf(R"({"dump_path": "d", "step": [1], "level": "L0"})", overrides);
  EXPECT_EQ(plan.task, Task::kTensor);
  EXPECT_EQ(plan.dump_path, "other");
  EXPECT_EQ(plan.level, Level::kMix);
  EXPECT_EQ(plan.steps.Text(), "7-8");
  overrides.step_json = "[7";
  EXPECT_THAT(ErrorOf(R"({"dump_path": "d"})", overrides), HasSubstr("step"));
}

TEST(ConfigTest, DataModes) {
  const auto mode = [](const char* modes) {
    return PlanOf(std::string(
                      R"({"dump_path": "d", "statistics": {"data_mode": )") +
                  modes + "}}")
        .data_mode;
  };
  EXPECT_TRUE(mode("[\"backward\"]").input);
  EXPECT_FALSE(mode("[\"backward\"]").forward);
  EXPECT_FALSE(mode("[\"forward\", \"input\"]").output);
  EXPECT_FALSE(mode("[\"forward\"]").parameters_grad);
  EXPECT_TRUE(mode("[\"input\"]").parameters_grad);
  EXPECT_TRUE(mode("[]").output);
}

TEST(ConfigTest, StructureBecomesMix) {
  const auto result = ParseConfig(
      R"({"task": "structure", "dump_path": "d", "level": "L1"})", {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->plan.level, Level::kMix);
  EXPECT_EQ(result->warnings.size(), 1u);
}

TEST(ConfigTest, AsyncCombinations) {
  EXPECT_THAT(
      ErrorOf(R"({"task": "tensor", "dump_path": "d", "async_dump": true})"),
      HasSubstr("async_dump"));
  EXPECT_THAT(
      ErrorOf(
          R"({"dump_path": "d", "async_dump": true, "statistics": {"summary_mode": "md5"}})"),
      HasSubstr("md5"));
}

TEST(ConfigTest, AReferenceIsADirectoryOrARun) {
  const auto plan_of = [](const std::string& reference,
                          const std::string& mode) {
    const auto config = ParseConfig(
        R"({"task": "tensor", "dump_path": "d", "tensor": {"summary_mode": ")" +
            mode + R"(", "bench_path": ")" + reference + R"("}})",
        {});
    EXPECT_TRUE(config.ok()) << config.status();
    return config->plan;
  };
  EXPECT_EQ(plan_of("run:good", "md5").ReferenceRun(), "good");
  EXPECT_EQ(plan_of("/dumps/run:x", "md5").ReferenceRun(), "");
  EXPECT_TRUE(plan_of("/dumps", "md5").ComparesWithReference());
  EXPECT_FALSE(plan_of("/dumps", "statistics").ComparesWithReference());
  EXPECT_FALSE(plan_of("", "md5").ComparesWithReference());
  for (const std::string& name : {std::string(), std::string(256, 'x')}) {
    EXPECT_THAT(ErrorOf(R"({"task": "tensor", "dump_path": "d", "tensor": {)"
                        R"("summary_mode": "md5", "bench_path": "run:)" +
                        name + "\"}}"),
                HasSubstr("tensor.bench_path"));
  }
}

TEST(ConfigTest, UnknownKeysWarn) {
  const auto result = ParseConfig(
      R"({"dump_path": "d", "keep_all_ranks": 1, "statistics": {"frobnicate": 2}})",
      {});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->warnings, ElementsAre("unknown key statistics.frobnicate",
                                            "unknown key keep_all_ranks"));
}

// A user who can edit config.json must not control the terminal of the
// training.
TEST(ConfigTest, WhatItQuotesSteersNoTerminal) {
  const std::string error = ErrorOf(
      "{\"task\": \"\\u001b]0;owned\\u0007\\u202e\", \"dump_path\": \"d\"}");
  EXPECT_THAT(error, HasSubstr("\\u202e"));
  const auto result =
      ParseConfig("{\"dump_path\": \"d\", \"\\u001b[31m\": 1}", {});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->warnings, ElementsAre("unknown key \\x1b[31m"));
  for (const char c : error + result->warnings[0])
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c != '\x7f')) << error;
}

// A20: for static graphs of MindSpore; checked and without effect.
TEST(ConfigTest, RegularExpressionsAmongNames) {
  const auto config = [](const std::string& item) {
    return absl::StrCat(R"({"dump_path": "d", "statistics": {"list": [")", item,
                        R"("]}})");
  };
  for (const char* good :
       {"name-regex(conv.*)", "name-regex()", "name-regex((a|b)+)",
        "name-regex((?=a)b)", R"(name-regex((a)\\1))", "name-regex(.{1000})"}) {
    const auto result = ParseConfig(config(good), {});
    ASSERT_TRUE(result.ok()) << good << result.status();
    EXPECT_THAT(result->warnings,
                ElementsAre(HasSubstr("statistics.list: name-regex")))
        << good;
  }
  for (const std::string& bad : std::vector<std::string>{
           "name-regex([)", "name-regex(a", "name-regex(*)", "name-regex((a)",
           R"(name-regex(\\))", "name-regex(" + std::string(100000, '(')}) {
    EXPECT_THAT(ErrorOf(config(bad)), HasSubstr("statistics.list"))
        << bad.substr(0, 40);
  }
}

// Each compilation costs a millisecond of the collector.
TEST(ConfigTest, ManyRegularExpressionsCostLittle) {
  std::string config = R"({"dump_path": "d", "statistics": {"list": ["a")";
  for (int i = 0; config.size() < (1 << 20) - 100; ++i)
    absl::StrAppend(&config, ",\"name-regex(((a{9}){9}){9}", i, ")\"");
  config += "]}}";
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  EXPECT_TRUE(ParseConfig(config, {}).ok());
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  EXPECT_LT(end.tv_sec - begin.tv_sec, 5);
  EXPECT_THAT(ErrorOf(absl::StrCat(
                  "{\"dump_path\": \"d\", \"statistics\": {\"list\": [",
                  "\"name-regex(", std::string(1025, 'a'), ")\"]}}")),
              HasSubstr("at most 1024 bytes"));
}

// The steps are counted from the first selected one, wherever that is.
TEST(ConfigTest, MonitorTakesEachSoManySteps) {
  const Plan all = PlanOf(R"({"task": "monitor", "dump_path": "d"})");
  EXPECT_EQ(all.level, Level::kL0);
  EXPECT_FALSE(all.extra_info);
  EXPECT_TRUE(all.WantsStep(0));
  EXPECT_TRUE(all.WantsStep(50));
  EXPECT_FALSE(all.WantsStep(49));
  const Plan some = PlanOf(
      R"({"task": "monitor", "dump_path": "d", "step": ["7-20", 22], "monitor": {"every": 5}})");
  std::vector<int64_t> wanted;
  for (int64_t step = 0; step < 40; ++step) {
    if (some.WantsStep(step)) wanted.push_back(step);
  }
  EXPECT_THAT(wanted, ElementsAre(7, 12, 17, 22));
  EXPECT_FALSE(some.FinishedBefore(22));
  EXPECT_TRUE(some.FinishedBefore(23));
}

TEST(ConfigTest, MonitorRecordsTheValuesThatAreNamed) {
  const Plan all = PlanOf(R"({"task": "monitor", "dump_path": "d"})");
  EXPECT_TRUE(all.RecordsModules());
  EXPECT_FALSE(all.RecordsSaved());
  EXPECT_TRUE(all.monitor.optimizer && all.monitor.training);
  EXPECT_TRUE(all.RecordsCommunication());
  EXPECT_FALSE(all.RecordsApis());
  const Plan some = PlanOf(
      R"({"task": "monitor", "dump_path": "d", "monitor": {"values": ["training"]}})");
  EXPECT_FALSE(some.RecordsModules());
  EXPECT_FALSE(some.RecordsCommunication());
  EXPECT_TRUE(some.monitor.training);
  EXPECT_TRUE(
      PlanOf(
          R"({"task": "monitor", "dump_path": "d", "monitor": {"values": ["communication"]}})")
          .RecordsCommunication());
  const Plan state = PlanOf(
      R"({"task": "monitor", "dump_path": "d", "monitor": {"values": ["optimizer_state"]}})");
  EXPECT_TRUE(all.monitor.updates && state.monitor.optimizer);
  EXPECT_FALSE(state.monitor.updates);
  EXPECT_FALSE(some.monitor.optimizer || some.monitor.parameters ||
               some.monitor.weight_gradients);
  EXPECT_THAT(
      ErrorOf(
          R"({"task": "monitor", "dump_path": "d", "monitor": {"values": ["x"], "every": -1, "data_mode": ["all"]}})"),
      AllOf(HasSubstr("monitor.values: \"x\""), HasSubstr("monitor.every: -1"),
            HasSubstr("monitor.data_mode")));
  // For another task the section is not read.
  PlanOf(
      R"({"task": "statistics", "dump_path": "d", "monitor": {"every": -1}})");
}

TEST(ConfigTest, HostileInputIsRefused) {
  ErrorOf(std::string(2 << 20, ' '));
  ErrorOf(std::string(100000, '['));
  ErrorOf("[]");
  ErrorOf("");
  ErrorOf("{\"task\": \"\xff\"}");
  ErrorOf(R"({"dump_path": "d", "step": ["0-99999999999999999999"]})");
}

}  // namespace
}  // namespace rankprobe
