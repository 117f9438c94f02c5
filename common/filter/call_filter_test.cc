// SPDX-License-Identifier: Apache-2.0
#include "common/filter/call_filter.h"

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/records/entry_names.h"
#include "common/testing/source_tree.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

namespace rankprobe {
namespace {

std::string GoldenText(const std::string& name) {
  std::ifstream file(testing::GoldenDir() + "/dumps/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> KeysOf(const std::string& json, const char* member) {
  rapidjson::Document document;
  document.Parse<rapidjson::kParseNanAndInfFlag>(json.c_str());
  const rapidjson::Value& object =
      member == nullptr ? document : document[member];
  std::vector<std::string> keys;
  for (const auto& m : object.GetObject()) keys.push_back(m.name.GetString());
  return keys;
}

// The order of begins and ends of the unfiltered CNN run: dump.json lists a
// module's forward where it ended and construct.json gives its parent.
struct Event {
  enum Kind { kApi, kBegin, kEnd } kind;
  std::string entry;
};

std::vector<Event> CnnEvents() {
  rapidjson::Document construct;
  construct.Parse(
      GoldenText("cnn_stat_mix/step0/proc27098/construct.json").c_str());
  const auto parent_of = [&](const std::string& entry) -> std::string {
    if (!construct.HasMember(entry.c_str())) return "";
    const rapidjson::Value& parent = construct[entry.c_str()];
    return parent.IsString() ? parent.GetString() : "";
  };
  std::vector<Event> events;
  std::vector<std::string> open;
  for (const std::string& entry :
       KeysOf(GoldenText("cnn_stat_mix/step0/proc27098/dump.json"), "data")) {
    const EntryKind kind = ClassifyEntry(entry);
    if (kind == EntryKind::kParametersGrad) continue;
    std::vector<std::string> chain;
    for (std::string p = parent_of(entry); absl::StartsWith(p, "Module.");
         p = parent_of(p))
      chain.insert(chain.begin(), p);
    for (const std::string& p : chain) {
      if (std::find(open.begin(), open.end(), p) == open.end()) {
        open.push_back(p);
        events.push_back({Event::kBegin, p});
      }
    }
    if (kind == EntryKind::kApi) {
      events.push_back({Event::kApi, entry});
    } else {
      if (std::find(open.begin(), open.end(), entry) == open.end())
        events.push_back({Event::kBegin, entry});
      events.push_back({Event::kEnd, entry});
      open.erase(std::remove(open.begin(), open.end(), entry), open.end());
    }
  }
  return events;
}

std::set<std::string> Kept(const std::string& config,
                           const std::vector<Event>& events) {
  const auto parsed = ParseConfig(config, {});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  CallFilter filter(&parsed->plan);
  filter.BeginStep();
  std::set<std::string> kept;
  for (const Event& event : events) {
    Verdict verdict = Verdict::kKeep;
    switch (event.kind) {
      case Event::kApi:
        verdict = filter.Api(event.entry);
        break;
      case Event::kBegin:
        filter.ModuleBegin(event.entry);
        continue;
      case Event::kEnd:
        verdict = filter.ModuleEnd(event.entry);
        break;
    }
    if (verdict == Verdict::kKeep) kept.insert(event.entry);
  }
  return kept;
}

struct GoldenCase {
  const char* directory;
  const char* dump;
};

class GoldenFilter : public ::testing::TestWithParam<GoldenCase> {};

// For the same calls rankprobe keeps what msprobe kept.
TEST_P(GoldenFilter, KeepsTheSameEntries) {
  const std::string base = GetParam().directory;
  std::set<std::string> want;
  for (const std::string& key :
       KeysOf(GoldenText(base + "/step0/" + GetParam().dump + "/dump.json"),
              "data")) {
    if (ClassifyEntry(key) != EntryKind::kParametersGrad) want.insert(key);
  }
  EXPECT_EQ(Kept(GoldenText(base + "/config.json"), CnnEvents()), want);
}

INSTANTIATE_TEST_SUITE_P(
    Cnn, GoldenFilter,
    ::testing::Values(GoldenCase{"cnn_scope_api", "proc27297"},
                      GoldenCase{"cnn_scope_api_bwd", "proc27302"},
                      GoldenCase{"cnn_scope_module_L0", "proc27307"},
                      GoldenCase{"cnn_scope_module_bwd_L0", "proc27312"},
                      GoldenCase{"cnn_list_and_scope", "proc27705"},
                      GoldenCase{"cnn_list_fullapi", "proc27675"},
                      GoldenCase{"cnn_list_regex", "proc27710"},
                      GoldenCase{"cnn_datamode_bwd", "proc27731"},
                      GoldenCase{"cnn_datamode_fwd", "proc27725"},
                      GoldenCase{"cnn_datamode_in", "proc27736"},
                      GoldenCase{"cnn_stat_L0", "proc27056"},
                      GoldenCase{"cnn_stat_L1", "proc27078"},
                      GoldenCase{"cnn_default_risk", "proc27281"}),
    [](const auto& info) { return std::string(info.param.directory); });

Plan MakePlan(Level level, std::vector<std::string> scope,
              std::vector<std::string> list) {
  Plan plan;
  plan.level = level;
  plan.scope = std::move(scope);
  plan.list = std::move(list);
  return plan;
}

TEST(CallFilterTest, BothEndsOfAScopeAreInclusiveAndItReopens) {
  const Plan plan =
      MakePlan(Level::kL1, {"Torch.a.0.forward", "Torch.c.0.forward"}, {});
  CallFilter filter(&plan);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(filter.Api("Torch.x.0.forward"), Verdict::kScope);
    EXPECT_EQ(filter.Api("Torch.a.0.forward"), Verdict::kKeep);
    EXPECT_EQ(filter.Api("Torch.b.0.forward"), Verdict::kKeep);
    EXPECT_EQ(filter.Api("Torch.c.0.forward"), Verdict::kKeep);
    EXPECT_EQ(filter.Api("Torch.d.0.forward"), Verdict::kScope);
  }
}

TEST(CallFilterTest, MixListKeepsEverythingInsideAMatchingModule) {
  const Plan plan = MakePlan(Level::kMix, {}, {"attn"});
  CallFilter filter(&plan);
  EXPECT_EQ(filter.ModuleBegin("Module.block.Block.forward.0"), Verdict::kList);
  EXPECT_EQ(filter.ModuleBegin("Module.block.attn.Attn.forward.0"),
            Verdict::kKeep);
  EXPECT_EQ(filter.ModuleBegin("Module.block.attn.qkv.Linear.forward.0"),
            Verdict::kKeep);
  EXPECT_EQ(filter.Api("Functional.linear.0.forward"), Verdict::kKeep);
  EXPECT_EQ(filter.ModuleEnd("Module.block.attn.qkv.Linear.forward.0"),
            Verdict::kKeep);
  EXPECT_EQ(filter.ModuleEnd("Module.block.attn.Attn.forward.0"),
            Verdict::kKeep);
  EXPECT_EQ(filter.Api("Functional.linear.1.forward"), Verdict::kList);
  EXPECT_EQ(filter.ModuleEnd("Module.block.Block.forward.0"), Verdict::kList);
}

TEST(CallFilterTest, ModulesLeftByAnExceptionDoNotKeepTheirWindowOpen) {
  const Plan plan = MakePlan(Level::kMix, {}, {"inner"});
  CallFilter filter(&plan);
  filter.ModuleBegin("Module.outer.Outer.forward.0");
  filter.ModuleBegin("Module.outer.inner.Inner.forward.0");
  filter.ModuleEnd("Module.outer.Outer.forward.0");
  EXPECT_EQ(filter.Api("Torch.add.0.forward"), Verdict::kList);
}

TEST(CallFilterTest, RiskLevels) {
  EXPECT_TRUE(RiskLevelKeeps(RiskLevel::kCore, "Functional.linear.0.forward"));
  EXPECT_TRUE(
      RiskLevelKeeps(RiskLevel::kCore, "Distributed.broadcast.0.forward"));
  EXPECT_FALSE(RiskLevelKeeps(RiskLevel::kCore, "Functional.relu.0.forward"));
  EXPECT_TRUE(RiskLevelKeeps(RiskLevel::kFocus, "Functional.relu.0.forward"));
  EXPECT_FALSE(RiskLevelKeeps(RiskLevel::kFocus, "Tensor.reshape.0.forward"));
  EXPECT_TRUE(RiskLevelKeeps(RiskLevel::kAll, "Tensor.reshape.0.forward"));
}

// The collector replays the agent's calls: verdicts depend only on the plan and
// the sequence.
TEST(CallFilterTest, ReplayGivesTheSameVerdicts) {
  std::mt19937 random(9);
  const std::vector<std::string> modules = {"Module.a.A", "Module.a.b.B",
                                            "Module.c.C"};
  const std::vector<std::string> ops = {"relu", "linear", "reshape", "cat"};
  for (int round = 0; round < 300; ++round) {
    Plan plan = MakePlan(random() % 2 ? Level::kMix : Level::kL0, {}, {});
    if (random() % 2) plan.list = {modules[random() % 3].substr(7)};
    if (random() % 2)
      plan.scope = {ModuleEntry(modules[random() % 3], 0, true),
                    ModuleEntry(modules[random() % 3], 1, true)};
    CallFilter agent(&plan), collector(&plan);
    std::vector<std::string> open;
    for (int i = 0; i < 60; ++i) {
      const int what = static_cast<int>(random() % 3);
      if (what == 0) {
        open.push_back(ModuleEntry(modules[random() % 3],
                                   static_cast<int64_t>(random() % 2),
                                   random() % 2));
        EXPECT_EQ(agent.ModuleBegin(open.back()),
                  collector.ModuleBegin(open.back()));
      } else if (what == 1 && !open.empty()) {
        EXPECT_EQ(agent.ModuleEnd(open.back()),
                  collector.ModuleEnd(open.back()));
        open.pop_back();
      } else {
        const std::string entry =
            ApiEntry("Torch", ops[random() % 4],
                     static_cast<int64_t>(random() % 2), random() % 2);
        EXPECT_EQ(agent.Api(entry), collector.Api(entry));
      }
    }
  }
}

}  // namespace
}  // namespace rankprobe
