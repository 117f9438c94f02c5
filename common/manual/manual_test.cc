// SPDX-License-Identifier: Apache-2.0
#include "common/manual/manual.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A program with two commands, one of them of two words.
class ManualTest : public ::testing::Test {
 protected:
  ManualTest() : app_("does things\nIn several ways.", "tool") {
    manual_.purposes = {{"First", {"paint", "gone"}}};
    manual_.examples = {{"paint", {"tool paint wall.txt"}}};
    manual_.values = {{"--name", "NAME"}};
    manual_.exit_codes = {{"0", "done"}};
    UseHelp(manual_, &app_);
    app_.add_option("--name", name_, "whose");
    app_.add_flag("--hidden", flag_, "nobody sees it")->group("");
    CLI::App* const paint = app_.add_subcommand("paint", ".paints it's walls");
    paint->add_option("--name", name_, "whose");
    paint->add_option("-w,--wall,wall", wall_, "a wall")->required();
    paint->add_option("ceiling", ceiling_, "a ceiling");
    paint->add_option("--colour", colour_, "of the paint")
        ->check(CLI::IsMember({"red", "blue"}));
    paint->add_option("--coats_of_paint", coats_, "-cp [N]: how many, a\\b")
        ->check(CLI::Range(1, 9))
        ->required();
    CLI::App* const set = app_.add_subcommand("set", "sets");
    set->add_subcommand("all", "everything");
  }

  Command root() const { return Describe(app_); }
  const Command& Find(const Command& root, const std::string& name) const {
    return *std::find_if(root.commands.begin(), root.commands.end(),
                         [&](const Command& c) { return c.name == name; });
  }

  std::string name_, wall_, ceiling_, colour_;
  int coats_ = 0;
  bool flag_ = false;
  Manual manual_;
  CLI::App app_;
};

TEST_F(ManualTest, DescribesWhatIsParsed) {
  const Command tool = root();
  EXPECT_EQ(tool.summary, "does things");
  EXPECT_EQ(tool.details, "In several ways.");
  ASSERT_THAT(tool.flags, SizeIs(2));  // --help, --name
  const Command paint = Find(tool, "paint");
  ASSERT_THAT(paint.positionals, SizeIs(2));
  EXPECT_EQ(paint.positionals[0].value, "WALL");
  EXPECT_EQ(PlaceOf(paint.positionals[0]), "WALL");
  EXPECT_EQ(PlaceOf(paint.positionals[1]), "[CEILING]");
  ASSERT_THAT(paint.flags, SizeIs(2)) << "without those of the root";
  EXPECT_THAT(paint.flags[0].choices, ElementsAre("red", "blue"));
  EXPECT_THAT(paint.flags[1].names, ElementsAre("-cp", "--coats_of_paint"));
  EXPECT_EQ(paint.flags[1].value, "[N]");
  EXPECT_EQ(paint.flags[1].text, "how many, a\\b");
  EXPECT_TRUE(paint.flags[1].required);
}

TEST_F(ManualTest, CommandsOfNoPurposeAreShownAllTheSame) {
  const std::vector<Manual::Purpose> purposes = PurposesOf(manual_, root());
  ASSERT_THAT(purposes, SizeIs(2));
  EXPECT_THAT(purposes[0].commands, ElementsAre("paint"));
  EXPECT_EQ(purposes[1].title, "Other");
  EXPECT_THAT(purposes[1].commands, ElementsAre("set"));
}

TEST_F(ManualTest, HelpFitsATerminal) {
  for (const std::string& text :
       {app_.help(), HelpText(manual_, root(), {"paint"}),
        HelpText(manual_, root(), {"set"})}) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), 79u) << line;
      EXPECT_TRUE(line.empty() || line.back() != ' ') << "'" << line << "'";
    }
  }
  EXPECT_THAT(app_.help(), HasSubstr("--name NAME"));
  EXPECT_THAT(app_.help(), HasSubstr("First:\n  paint "));
  EXPECT_THAT(app_.help(), HasSubstr("Exit codes: 0 done."));
  EXPECT_THAT(app_.help(), Not(HasSubstr("hidden")));
  const std::string paint = HelpText(manual_, root(), {"paint"});
  EXPECT_THAT(
      paint,
      HasSubstr("Usage: tool paint WALL [CEILING] --coats_of_paint [N]"));
  EXPECT_THAT(paint, HasSubstr("For example:\n  tool paint wall.txt\n"));
  EXPECT_THAT(paint, HasSubstr("--colour red|blue"));
}

// Flags of every length: one of 25 columns once ran into its text.
TEST_F(ManualTest, NoFlagTouchesItsText) {
  std::string value;
  for (size_t length = 1; length < 40; ++length)
    app_.add_option("--" + std::string(length, 'x'), value, "what it does");
  for (const absl::string_view line : absl::StrSplit(app_.help(), '\n')) {
    const size_t at = line.find("what it does");
    if (at == absl::string_view::npos) continue;
    EXPECT_EQ(at, 26u) << line;
    EXPECT_EQ(line[at - 1], ' ') << line;
  }
}

TEST_F(ManualTest, TextIsNoRequestOfRoff) {
  const std::string page = ManPage(manual_, root());
  EXPECT_THAT(page, HasSubstr("\n\\&.paints it's walls\n"));
  EXPECT_THAT(page, HasSubstr("a\\eb"));
  EXPECT_THAT(page, HasSubstr("\\fBset all\\fR"));
  EXPECT_THAT(page, HasSubstr("\\fIWALL\\fR [\\fICEILING\\fR] "));
  EXPECT_THAT(page, HasSubstr(".SH EXIT STATUS\n"));
}

TEST_F(ManualTest, QuotesOfTextsEndNoWordOfTheShell) {
  for (const std::string& text :
       {ZshCompletion(root()), FishCompletion(root())}) {
    EXPECT_THAT(text, HasSubstr("paint"));
    EXPECT_THAT(text, Not(HasSubstr("it's")));
  }
  EXPECT_THAT(BashCompletion(root()),
              HasSubstr("'paint --colour') words='red blue'"));
}

TEST_F(ManualTest, ShellsCompleteTheFlagOfWhatHasAPlaceToo) {
  EXPECT_THAT(BashCompletion(root()), HasSubstr("words='-w --wall --colour"));
  EXPECT_THAT(ZshCompletion(root()), HasSubstr("'--wall[a wall]:WALL:_files'"));
  EXPECT_THAT(FishCompletion(root()), HasSubstr(" -s w -l wall -r "));
}

TEST_F(ManualTest, WritesWhatTheBuildAsksFor) {
  const auto written = [&](std::vector<const char*> argv) {
    return WrittenHelp(static_cast<int>(argv.size()), argv.data(), app_,
                       manual_);
  };
  EXPECT_FALSE(written({"tool"}).has_value());
  EXPECT_FALSE(written({"tool", "paint", "--dump-help=man"}).has_value());
  for (const char* format : {"--dump-help=man", "--dump-help=bash",
                             "--dump-help=zsh", "--dump-help=fish"}) {
    const auto text = written({"tool", format});
    ASSERT_TRUE(text.has_value());
    ASSERT_TRUE(text->ok()) << text->status();
    EXPECT_THAT(**text, Not(IsEmpty()));
  }
  EXPECT_TRUE(
      absl::IsInvalidArgument(written({"tool", "--dump-help=html"})->status()));
}

}  // namespace
}  // namespace rankprobe
