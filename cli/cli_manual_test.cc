#include "cli/cli_manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

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

  // Null if there is none.
  const Command* Find(const std::vector<std::string>& path) const {
    const Command* command = &root_;
    for (const std::string& name : path) {
      const auto it =
          std::find_if(command->commands.begin(), command->commands.end(),
                       [&](const Command& c) { return c.name == name; });
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
      EXPECT_NE(Find({name}), nullptr) << name << " is no verb any more";
  }
}

TEST_F(CliManualTest, ExamplesUseFlagsThatThereAre) {
  for (const auto& [name, lines] : manual_.examples) {
    const std::vector<std::string> path = absl::StrSplit(name, ' ');
    const Command* const command = Find(path);
    ASSERT_NE(command, nullptr) << name;
    // The worker's own flags are behind these.
    if (name == "run" || name == "acc_check") continue;
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

TEST_F(CliManualTest, FlagsWithAValueSayWhichOne) {
  for (const auto& [flag, value] : manual_.values) {
    bool used = false;
    for (const Command& command : root_.commands) {
      std::vector<const Command*> all = {&command};
      for (const Command& sub : command.commands) all.push_back(&sub);
      for (const Command* const c : all) {
        for (const Flag& f : c->flags) used = used || f.names.back() == flag;
      }
    }
    EXPECT_TRUE(used) << flag << " is no flag any more (" << value << ")";
  }
}

}  // namespace
}  // namespace rankprobe
