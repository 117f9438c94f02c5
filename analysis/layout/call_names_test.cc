// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/call_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "analysis/layout/step_ranks.h"
#include "dump_format/testing/testing_files.h"

namespace rankprobe::analysis {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

struct RecordedCall {
  std::string name;
  std::string module;  // empty: outside of all
  std::string line;    // empty: without a stack
};

class CallNamesTest : public ::testing::Test {
 protected:
  // Writes the modules with the calls in them.
  std::unique_ptr<DumpReader> Dump(const std::vector<RecordedCall>& calls,
                                   bool tree = true) {
    const std::string place = absl::StrCat("dump", dumps_++);
    std::vector<std::string> entries;
    std::vector<std::string> edges;
    std::vector<std::string> stacks;
    std::vector<std::string> modules;
    for (const RecordedCall& call : calls) {
      entries.push_back(absl::StrCat("\"", call.name, "\":{\"output\":[]}"));
      edges.push_back(absl::StrCat(
          "\"", call.name, "\":",
          call.module.empty() ? "null"
                              : absl::StrCat("\"", call.module, "\"")));
      if (!call.line.empty()) {
        stacks.push_back(absl::StrCat(
            "\"", stacks.size(), "\":[[\"", call.name, "\"],[\"File /site",
            dumps_, "/m.py, line ", 100 * dumps_ + stacks.size(),
            ", in f, \\n ", call.line, "\"]]"));
      }
      if (!call.module.empty() && std::find(modules.begin(), modules.end(),
                                            call.module) == modules.end()) {
        modules.push_back(call.module);
      }
    }
    for (const std::string& module : modules) {
      entries.push_back(absl::StrCat("\"", module, "\":{\"output\":[]}"));
      edges.push_back(absl::StrCat("\"", module, "\":null"));
    }
    const auto object = [](const std::vector<std::string>& members) {
      return absl::StrCat("{", absl::StrJoin(members, ","), "}");
    };
    dir_.Write(
        place + "/dump.json",
        absl::StrCat(R"({"task":"statistics","data":)", object(entries), "}"));
    if (tree) dir_.Write(place + "/construct.json", object(edges));
    if (!stacks.empty()) dir_.Write(place + "/stack.json", object(stacks));
    auto dump =
        OpenWithTree(file_system_.get(), absl::StrCat(dir_.path(), "/", place));
    EXPECT_TRUE(dump.ok()) << dump.status();
    return *std::move(dump);
  }
  // Names for a run on two ranks that record the same calls.
  CallNames Names(const std::vector<RecordedCall>& calls,
                  const std::vector<RecordedCall>& whole) {
    std::vector<std::unique_ptr<DumpReader>> dumps;
    dumps.push_back(Dump(calls));
    dumps.push_back(Dump(calls));
    const auto one = Dump(whole);
    std::vector<CallNames> names = NamesInWhole(dumps, {0, 1}, *one, 0);
    EXPECT_EQ(names.size(), 2);
    EXPECT_EQ(names[0], names[1]);
    return names[0];
  }

  testing::TempDir dir_;
  std::unique_ptr<FileSystem> file_system_ = NewPosixFileSystem();
  int dumps_ = 0;
};

const char kInExperts[] = "Module.moe.Experts.forward.0";
const char kInNorm[] = "Module.norm.Norm.forward.0";

// Parallel experts make one more division before the calls that both runs make.
TEST_F(CallNamesTest, WhatALayoutCallsByItselfMovesNoOtherCall) {
  EXPECT_THAT(
      Names({{"Tensor.div.0.forward", kInExperts, "own = id // n"},
             {"Tensor.div.1.forward", kInExperts, "x[perm // k]"},
             {"Tensor.view_as.0.forward", kInExperts, "x.view_as(x)"},
             {"Tensor.div.2.forward", kInNorm, "x / size"},
             {"Tensor.div.2.backward", "Module.moe.Experts.backward.0", ""},
             {"Tensor.div.1.backward", "Module.moe.Experts.backward.0", ""}},
            {{"Tensor.div.0.forward", kInExperts, "x[perm // k]"},
             {"Tensor.div.1.forward", kInNorm, "x / size"},
             {"Tensor.div.1.backward", kInNorm, ""},
             {"Tensor.div.0.backward", "Module.moe.Experts.backward.0", ""}}),
      UnorderedElementsAre(Pair("Tensor.div.0", "Tensor.div_extra.0"),
                           Pair("Tensor.div.1", "Tensor.div.0"),
                           Pair("Tensor.div.2", "Tensor.div.1")));
}

// One line that makes two calls, and lines that were changed.
TEST_F(CallNamesTest, OrderTellsWhatLinesDoNot) {
  EXPECT_THAT(Names({{"Tensor.div.0.forward", kInNorm, "a / b"},
                     {"Tensor.div.1.forward", kInNorm, "a / b"},
                     {"Tensor.div.2.forward", kInNorm, "old"}},
                    {{"Tensor.div.0.forward", kInNorm, "new"},
                     {"Tensor.div.1.forward", kInNorm, "a / b"},
                     {"Tensor.div.2.forward", kInNorm, "a / b"}}),
              UnorderedElementsAre(Pair("Tensor.div.0", "Tensor.div.1"),
                                   Pair("Tensor.div.1", "Tensor.div.2"),
                                   Pair("Tensor.div.2", "Tensor.div.0")));
  // One of these two belongs to this run only, and it is unknown which.
  EXPECT_THAT(Names({{"Tensor.div.0.forward", kInNorm, "own"},
                     {"Tensor.div.1.forward", kInNorm, "old"}},
                    {{"Tensor.div.0.forward", kInNorm, "new"}}),
              UnorderedElementsAre(Pair("Tensor.div.0", "Tensor.div_extra.0")));
}

TEST_F(CallNamesTest, WithoutStacksModuleAndOrderTell) {
  EXPECT_THAT(Names({{"Tensor.div.0.forward", "", ""},
                     {"Tensor.div.1.forward", kInNorm, ""},
                     {"Tensor.div.2.forward", kInExperts, "x / y"}},
                    {{"Tensor.div.0.forward", kInNorm, "a / b"},
                     {"Tensor.div.1.forward", kInExperts, ""}}),
              UnorderedElementsAre(Pair("Tensor.div.0", "Tensor.div_extra.0"),
                                   Pair("Tensor.div.1", "Tensor.div.0"),
                                   Pair("Tensor.div.2", "Tensor.div.1")));
}

TEST_F(CallNamesTest, NothingIsSaidWithoutAModuleTree) {
  const std::vector<RecordedCall> calls = {
      {"Tensor.div.0.forward", kInNorm, "a / b"}};
  std::vector<std::unique_ptr<DumpReader>> dumps;
  dumps.push_back(Dump(calls, false));
  EXPECT_THAT(NamesInWhole(dumps, {0}, *Dump(calls), 0), IsEmpty());
}

TEST(SplitDirectionTest, NamesOfOtherForms) {
  EXPECT_EQ(SplitDirection("Tensor.div.0.backward"),
            std::pair(absl::string_view("Tensor.div.0"),
                      absl::string_view(".backward")));
  for (const char* const name : {"", ".", "a", ".a", "a.b"}) {
    EXPECT_EQ(SplitDirection(name).first, name);
    EXPECT_EQ(SplitDirection(name).second, "");
  }
}

}  // namespace
}  // namespace rankprobe::analysis
