// SPDX-License-Identifier: Apache-2.0
#include "cli/cli_manual.h"

#include <CLI/CLI.hpp>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/app.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

class CliManualTest : public ::testing::Test {
 protected:
  CliManualTest() : app_(CliDescription(), "rankprobe") {
    UseHelp(manual_, &app_);
    AddGlobals(&app_, &globals_);
    RegisterCommands(&app_, &globals_, &command_);
    root_ = Describe(app_);
  }

  // Returns null if there is none.
  const Command* Find(const std::vector<std::string>& path) const {
    const Command* command = &root_;
    for (const std::string& name : path) {
      const auto it = absl::c_find_if(
          command->commands, [&](const Command& c) { return c.name == name; });
      if (it == command->commands.end()) return nullptr;
      command = &*it;
    }
    return command;
  }

  const Manual manual_ = CliManual();
  Globals globals_;
  ParsedCommand command_;
  CLI::App app_;
  Command root_;
};

TEST_F(CliManualTest, EveryVerbHasAPurpose) {
  for (const Manual::Purpose& purpose : PurposesOf(manual_, root_)) {
    EXPECT_NE(purpose.title, "Other") << "cli_manual.cc does not list "
                                      << absl::StrJoin(purpose.commands, " ");
  }
  for (const Manual::Purpose& purpose : manual_.purposes) {
    for (const std::string& name : purpose.commands)
      EXPECT_NE(Find({name}), nullptr) << name << " is not a verb any more";
  }
}

TEST_F(CliManualTest, ExamplesUseFlagsThatThereAre) {
  for (const auto& [name, lines] : manual_.examples) {
    const std::vector<std::string> path = absl::StrSplit(name, ' ');
    const Command* const command = Find(path);
    ASSERT_NE(command, nullptr) << name;
    // The worker has more flags of its own.
    if (IsPythonVerb(name) || name == "acc_check") continue;
    std::set<std::string> known;
    for (const auto& flags : {command->flags, root_.flags}) {
      for (const Flag& flag : flags)
        known.insert(flag.names.begin(), flag.names.end());
    }
    for (const std::string& line : lines) {
      EXPECT_TRUE(absl::StartsWith(line, absl::StrCat("rankprobe ", name, " ")))
          << line;
      const std::string before_pipe =
          std::pair<std::string, std::string>(
              absl::StrSplit(line, absl::MaxSplits(" | ", 1)))
              .first;
      for (const absl::string_view word : absl::StrSplit(before_pipe, ' ')) {
        if (word.size() > 1 && word[0] == '-') {
          EXPECT_TRUE(known.count(std::string(word)) == 1)
              << word << " in: " << line;
        }
      }
    }
  }
}

// Returns every flag of a command and of its sub-commands.
template <typename Visit>
void ForEachFlag(const Command& command, const std::string& path,
                 const Visit& visit) {
  for (const Flag& flag : command.flags) visit(path, flag);
  for (const Command& below : command.commands)
    ForEachFlag(below, absl::StrCat(path, " ", below.name), visit);
}

TEST_F(CliManualTest, FlagsWithAValueSayWhichOne) {
  // CLI11's names of types, which it prints where a flag has no description of
  // its value.
  const std::set<std::string> types = {"TEXT", "INT", "UINT", "FLOAT"};
  size_t with_value = 0;
  ForEachFlag(root_, root_.name, [&](const std::string& path, const Flag& f) {
    if (f.value.empty() || !f.choices.empty()) return;
    ++with_value;
    EXPECT_TRUE(types.count(f.value) == 0 ||
                manual_.values.count(f.names.back()) == 1)
        << path << " " << f.names.back() << " " << f.value
        << ": cli_manual.cc does not say of what";
  });
  EXPECT_GT(with_value, manual_.values.size());
}

TEST_F(CliManualTest, ValuesAreOfFlagsThatThereAre) {
  std::set<std::string> known;
  ForEachFlag(root_, root_.name, [&](const std::string&, const Flag& flag) {
    known.insert(flag.names.back());
  });
  for (const auto& [flag, value] : manual_.values) {
    EXPECT_EQ(known.count(flag), 1u)
        << flag << " is not a flag any more (" << value << ")";
  }
}

}  // namespace
}  // namespace rankprobe
