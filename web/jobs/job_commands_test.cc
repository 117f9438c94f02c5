// SPDX-License-Identifier: Apache-2.0
#include "web/jobs/job_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rankprobe {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobSpec Spec(const std::string& command,
                 std::map<std::string, std::string> options) {
  v1::JobSpec spec;
  spec.set_command(command);
  for (const auto& [name, value] : options)
    (*spec.mutable_options())[name] = value;
  return spec;
}

std::string WhyNot(const v1::JobSpec& spec) {
  const auto command = ToCommand(spec, "/d");
  return command.ok() ? "" : std::string(command.status().message());
}

TEST(JobCommandsTest, OptionsBecomeArguments) {
  v1::JobSpec spec = Spec("compare", {{"target_path", "run:a b@3"},
                                      {"golden_path", "run:c"},
                                      {"fuzzy_match", "true"}});
  (*spec.mutable_files())["cell_mapping"] = "a: b\n";
  const auto command = ToCommand(spec, "/d");
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(
      command->arguments,
      ElementsAre("compare", "--target_path=run:a b@3", "--golden_path=run:c",
                  "--fuzzy_match", "--cell_mapping=/d/in/cell_mapping.yaml",
                  "--output_path=/d/out", "--json"));
  ASSERT_EQ(command->inputs.size(), 1u);
  EXPECT_EQ(command->inputs[0].path, "/d/in/cell_mapping.yaml");
  EXPECT_EQ(command->inputs[0].content, "a: b\n");
  EXPECT_EQ(command->text,
            "rankprobe compare '--target_path=run:a b@3' --golden_path=run:c "
            "--fuzzy_match --cell_mapping=cell_mapping.yaml");
}

TEST(JobCommandsTest, WhatStandsByItsPlaceIsNoOption) {
  const auto command = ToCommand(
      Spec("scan", {{"run", "--x"}, {"match", "--token-file=/x"}}), "/d");
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(command->arguments, ElementsAre("scan", "--run=--x", "--json",
                                              "--", "--token-file=/x"));
}

TEST(JobCommandsTest, NoPathOfThisMachineComesIn) {
  EXPECT_THAT(WhyNot(Spec("compare",
                          {{"target_path", "/etc"}, {"golden_path", "run:a"}})),
              HasSubstr("target_path: expected run:NAME"));
  EXPECT_THAT(WhyNot(Spec("overflow_check", {{"input_path", "run:"}})),
              HasSubstr("expected run:NAME"));
  for (const char* const path : {"/etc/passwd", "a.yaml", "../x"}) {
    EXPECT_THAT(WhyNot(Spec("compare", {{"target_path", "run:a"},
                                        {"golden_path", "run:b"},
                                        {"layout", path}})),
                HasSubstr("expected a word"))
        << path;
  }
  EXPECT_THAT(WhyNot(Spec("compare", {{"target_path", "run:a"},
                                      {"golden_path", "run:b"},
                                      {"cell_mapping", "/etc/passwd"}})),
              HasSubstr("expected the content of a file"));
  for (const char* const option :
       {"output_path", "output", "server-dir", "tar", "collector", "token-file",
        "tls-key", "force", "json", "input_path"}) {
    EXPECT_THAT(WhyNot(Spec("export", {{"run", "a"}, {option, "x"}})),
                HasSubstr("has no option"))
        << option;
  }
}

TEST(JobCommandsTest, OnlyCommandsOfTheList) {
  for (const char* const command :
       {"", "run", "archive", "view", "enable", "acc_check", "compare "}) {
    EXPECT_THAT(WhyNot(Spec(command, {})), HasSubstr("no such command"))
        << command;
  }
}

TEST(JobCommandsTest, BadValuesAreSaid) {
  EXPECT_THAT(WhyNot(Spec("compare", {{"target_path", "run:a"}})),
              HasSubstr("compare needs golden_path"));
  EXPECT_THAT(WhyNot(Spec("scan", {{"run", ""}})), HasSubstr("run: expected"));
  EXPECT_THAT(WhyNot(Spec("scan", {{"run", "a\nb"}})),
              HasSubstr("control characters"));
  EXPECT_THAT(WhyNot(Spec("scan", {{"run", std::string(5000, 'a')}})),
              HasSubstr("4096"));
  EXPECT_THAT(WhyNot(Spec("export", {{"run", "a"}, {"link", "yes"}})),
              HasSubstr("link: expected true"));
  v1::JobSpec large =
      Spec("compare", {{"target_path", "run:a"}, {"golden_path", "run:b"}});
  (*large.mutable_files())["api_mapping"] = std::string(1 << 20, 'x');
  EXPECT_THAT(WhyNot(large), HasSubstr("768 KiB"));
}

JobSources Fetched() {
  JobSources sources;
  sources.runs = JobSources::Runs::kFetched;
  sources.below_root =
      [](absl::string_view path) -> absl::StatusOr<std::string> {
    if (path == "a") return std::string("/root/a");
    return absl::NotFoundError("not there");
  };
  return sources;
}

TEST(JobCommandsTest, RunsThatAreFetchedAreFilesOfTheCommand) {
  const auto command = ToCommand(
      Spec("compare",
           {{"target_path", "run:x@3/rank1"}, {"golden_path", "root:a"}}),
      "/d", Fetched());
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_THAT(
      command->arguments,
      ElementsAre("compare", "--target_path=/d/tmp/rankprobe_run0/dump",
                  "--golden_path=/root/a", "--output_path=/d/out", "--json"));
  ASSERT_EQ(command->dumps.size(), 1u);
  EXPECT_EQ(command->dumps[0].name, "run:x@3/rank1");
  EXPECT_TRUE(command->dumps[0].payloads);
  EXPECT_TRUE(command->reads_root);
  EXPECT_EQ(command->text,
            "rankprobe compare --target_path=run:x@3/rank1 "
            "--golden_path=/root/a");
  const auto check = ToCommand(
      Spec("overflow_check", {{"input_path", "run:x@3"}}), "/d", Fetched());
  ASSERT_TRUE(check.ok());
  EXPECT_FALSE(check->dumps[0].payloads) << "statistics say it";
  EXPECT_FALSE(check->reads_root);
  const auto placed = ToCommand(
      Spec("config_check", {{"target", "run:x"}, {"reference", "run:y"}}), "/d",
      Fetched());
  ASSERT_TRUE(placed.ok());
  EXPECT_THAT(placed->text, HasSubstr("run:x run:y"));
  EXPECT_EQ(placed->arguments.back(), "/d/tmp/rankprobe_run1/dump");
}

TEST(JobCommandsTest, WhatAsksACollectorNeedsOne) {
  const auto why = [](const v1::JobSpec& spec, const JobSources& sources) {
    return ToCommand(spec, "/d", sources).status();
  };
  for (const v1::JobSpec& spec :
       {Spec("export", {{"run", "a"}}), Spec("scan", {{"run", "a"}}),
        Spec(
            "first-divergence",
            {{"target", "run:a"}, {"reference", "run:b"}, {"live", "true"}})}) {
    EXPECT_EQ(why(spec, Fetched()).code(),
              absl::StatusCode::kFailedPrecondition)
        << spec.command();
  }
  EXPECT_EQ(
      why(Spec("overflow_check", {{"input_path", "root:b"}}), Fetched()).code(),
      absl::StatusCode::kNotFound);
  JobSources none;
  none.runs = JobSources::Runs::kNone;
  EXPECT_EQ(why(Spec("overflow_check", {{"input_path", "run:b"}}), none).code(),
            absl::StatusCode::kFailedPrecondition);
  // Without a root the prefix has no meaning.
  EXPECT_EQ(why(Spec("overflow_check", {{"input_path", "root:a"}}), {}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JobCommandsTest, AnExportIsOneFileOfTheJob) {
  const auto dump = ToCommand(Spec("export", {{"run", "a"}}), "/d");
  ASSERT_TRUE(dump.ok());
  EXPECT_THAT(dump->arguments, Contains("--tar=/d/out/dump.tar"));
  EXPECT_THAT(dump->text, Not(HasSubstr("/d/")));
  const auto table =
      ToCommand(Spec("export", {{"run", "a"}, {"format", "parquet"}}), "/d");
  ASSERT_TRUE(table.ok());
  EXPECT_THAT(table->arguments, Contains("--output=/d/out/values.parquet"));
}

}  // namespace
}  // namespace rankprobe
