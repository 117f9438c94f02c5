// SPDX-License-Identifier: Apache-2.0
// The table of fields describes the parser: each property of a field is checked
// with it.
#include "common/config/config_fields.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/plan.h"
#include "common/tensor/statistics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ConfigSection kTasks[] = {kStatisticsSection, kTensorSection,
                                    kStructureSection, kMonitorSection};

// A config with this value of the field, in that section; "" for without it.
std::string ConfigWith(const ConfigField& field, ConfigSection section,
                       const std::string& value) {
  const std::string member =
      value.empty() ? "" : absl::StrCat("\"", field.name, "\": ", value);
  std::vector<std::string> top;
  if (section == kTop) {
    top.push_back(member);
  } else if (section == kSliceItem) {
    // The other fields of an item are required.
    std::vector<std::string> item = {member};
    for (const char* const name : {"dim", "begin", "end"}) {
      if (name != std::string(field.name))
        item.push_back(absl::StrCat("\"", name, "\": 0"));
    }
    top.push_back(absl::StrCat("\"statistics\": {\"slice\": [{",
                               absl::StrJoin(item, ", "), "}]}"));
  } else {
    const std::string task(ConfigSectionName(section));
    top.push_back(absl::StrCat("\"task\": \"", task, "\""));
    top.push_back(absl::StrCat("\"", task, "\": {", member, "}"));
  }
  if (field.name != std::string("dump_path"))
    top.emplace_back("\"dump_path\": \"d\"");
  if (field.name != std::string("level") && section != kMonitorSection)
    top.emplace_back("\"level\": \"mix\"");
  std::vector<std::string> members;
  for (const std::string& one : top) {
    if (!one.empty()) members.push_back(one);
  }
  return absl::StrCat("{", absl::StrJoin(members, ", "), "}");
}

template <typename Visit>
void ForEachField(const Visit& visit) {
  for (const ConfigField& field : ConfigFields()) {
    for (const ConfigSection section :
         {kTop, kSliceItem, kStatisticsSection, kTensorSection,
          kStructureSection, kMonitorSection}) {
      if ((field.sections & section) == 0) continue;
      SCOPED_TRACE(absl::StrCat(ConfigSectionName(section), ".", field.name));
      visit(field, section);
    }
  }
}

absl::StatusOr<ConfigResult> Parse(const std::string& json) {
  return ParseConfig(json, {});
}

TEST(ConfigFieldsTest, ExamplesAreTaken) {
  ForEachField([](const ConfigField& field, ConfigSection section) {
    const std::string json = ConfigWith(field, section, field.example);
    const auto result = Parse(json);
    ASSERT_TRUE(result.ok()) << json << result.status();
    for (const std::string& warning : result->warnings)
      EXPECT_THAT(warning, Not(HasSubstr("unknown key"))) << json;
  });
}

// A plan as text, as far as defaults are concerned.
std::string PlanText(const Plan& p) {
  return absl::StrCat(
      TaskName(p.task), LevelName(p.level), p.ranks.Text(), "/", p.steps.Text(),
      absl::StrJoin(p.scope, ","), absl::StrJoin(p.list, ","),
      absl::StrJoin(p.tensor_list, ","), p.data_mode.forward,
      p.data_mode.backward, p.data_mode.input, p.data_mode.output,
      p.data_mode.parameters_grad, static_cast<int>(p.summary_mode),
      static_cast<int>(p.precision), static_cast<int>(p.risk_level),
      absl::StrJoin(p.extra_statistics.Words(), ","), p.async_dump,
      p.extra_info, p.auto_export, p.dump_enable.has_value(), p.bench_path,
      p.diff_nums, p.slices.size(), p.request_id, p.monitor.every);
}

TEST(ConfigFieldsTest, ADefaultIsWhatAFieldIsWithoutBeingThere) {
  ForEachField([](const ConfigField& field, ConfigSection section) {
    if (field.fallback[0] == '\0') return;
    // The level is given for the other fields; for level itself it is not.
    const auto with = Parse(ConfigWith(field, section, field.fallback));
    const auto without = Parse(ConfigWith(field, section, ""));
    ASSERT_TRUE(with.ok() && without.ok()) << with.status();
    EXPECT_EQ(PlanText(with->plan), PlanText(without->plan));
  });
}

TEST(ConfigFieldsTest, ValuesOfAnotherTypeAreRefused) {
  ForEachField([](const ConfigField& field, ConfigSection section) {
    if (field.type == ConfigType::kAny) return;
    if (field.type == ConfigType::kObject) {
      // It is read if it is the section of the task.
      const std::string json =
          absl::StrCat("{\"dump_path\": \"d\", \"task\": \"", field.name,
                       "\", \"", field.name, "\": 7}");
      EXPECT_THAT(std::string(Parse(json).status().message()),
                  HasSubstr(field.name));
      return;
    }
    for (const char* const bad : {"{\"a\": 1}", "1.5", "[[]]"}) {
      const std::string json = ConfigWith(field, section, bad);
      const auto result = Parse(json);
      ASSERT_FALSE(result.ok()) << json;
      EXPECT_THAT(std::string(result.status().message()),
                  HasSubstr(field.name));
    }
  });
}

TEST(ConfigFieldsTest, EveryWordAndBoundIsTheParsers) {
  ForEachField([](const ConfigField& field, ConfigSection section) {
    const bool list = field.type == ConfigType::kWords;
    for (const char* const word : field.words) {
      const std::string json = ConfigWith(
          field, section,
          absl::StrCat(list ? "[\"" : "\"", word, list ? "\"]" : "\""));
      EXPECT_TRUE(Parse(json).ok()) << json << Parse(json).status();
    }
    if (!field.words.empty()) {
      const std::string json =
          ConfigWith(field, section, list ? "[\"no word\"]" : "\"no word\"");
      EXPECT_FALSE(Parse(json).ok()) << json;
    }
    if (field.type != ConfigType::kInteger) return;
    const auto taken = [&](int64_t value) {
      return Parse(ConfigWith(field, section, absl::StrCat(value))).ok();
    };
    EXPECT_TRUE(taken(field.min) && taken(field.max));
    if (field.min != INT64_MIN) EXPECT_FALSE(taken(field.min - 1));
    if (field.max != INT64_MAX) EXPECT_FALSE(taken(field.max + 1));
  });
}

TEST(ConfigFieldsTest, OfAnotherSectionAFieldIsUnknown) {
  for (const ConfigField& field : ConfigFields()) {
    for (const ConfigSection section : kTasks) {
      if ((field.sections & section) != 0) continue;
      const std::string json = ConfigWith(field, section, field.example);
      const auto result = Parse(json);
      if (result.ok()) {
        EXPECT_THAT(absl::StrJoin(result->warnings, "\n"),
                    HasSubstr("unknown key"))
            << json;
      } else {  // with its reason
        EXPECT_THAT(std::string(result.status().message()),
                    HasSubstr(field.name));
      }
    }
  }
}

TEST(ConfigFieldsTest, WordsThatOtherTablesHaveToo) {
  std::vector<std::string> words;
  for (const absl::string_view word : ExtraStatisticWords())
    words.emplace_back(word);
  const ConfigField* const extra =
      FindConfigField(kStatisticsSection, "extra_statistics");
  EXPECT_THAT(
      std::vector<std::string>(extra->words.begin(), extra->words.end()),
      ElementsAreArray(words));
  for (const Task task :
       {Task::kStatistics, Task::kTensor, Task::kStructure, Task::kMonitor}) {
    EXPECT_EQ(TaskName(task),
              FindConfigField(kTop, "task")->words[static_cast<size_t>(task)]);
  }
  for (const Level level :
       {Level::kL0, Level::kL1, Level::kMix, Level::kDebug}) {
    EXPECT_EQ(
        LevelName(level),
        FindConfigField(kTop, "level")->words[static_cast<size_t>(level)]);
  }
}

}  // namespace
}  // namespace rankprobe
