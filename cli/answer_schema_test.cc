// SPDX-License-Identifier: Apache-2.0
#include "cli/output/answer_schema.h"

#include <CLI/CLI.hpp>
#include <set>

#include "cli/app.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

namespace rankprobe {
namespace {

using ::testing::HasSubstr;

// Returns "status", "config get" and so on: the words that a user types,
// without groups.
void Leaves(const CLI::App& app, const std::string& before,
            std::set<std::string>* out) {
  for (const CLI::App* const verb :
       app.get_subcommands([](const auto*) { return true; })) {
    const std::string name = before + verb->get_name();
    if (verb->get_subcommands([](const auto*) { return true; }).empty()) {
      out->insert(name);
    } else {
      Leaves(*verb, name + " ", out);
    }
  }
}

TEST(AnswerSchemaTest, EveryCommandHasOneOrPrintsNoJson) {
  CLI::App app;
  Globals globals;
  ParsedCommand command;
  AddGlobals(&app, &globals);
  RegisterCommands(&app, &globals, &command);
  std::set<std::string> there;
  Leaves(app, "", &there);
  // The output of these is that of a program, a page, or a schema.
  for (const char* const without :
       {"run", "sink", "mcp", "top", "config schema", "schema"})
    EXPECT_EQ(there.erase(without), 1U) << without;
  const std::vector<std::string> with = CommandsWithSchema();
  EXPECT_EQ(there, std::set<std::string>(with.begin(), with.end()));
}

TEST(AnswerSchemaTest, IsJsonWhoseReferencesAreThere) {
  for (const std::string& name : CommandsWithSchema()) {
    const auto text = AnswerSchema(name);
    ASSERT_TRUE(text.ok()) << name;
    rapidjson::Document schema;
    schema.Parse(text->c_str());
    ASSERT_FALSE(schema.HasParseError()) << name;
    ASSERT_TRUE(schema.HasMember("$schema")) << name;
    ASSERT_TRUE(schema.HasMember("anyOf") || schema.HasMember("properties"))
        << name;
    const std::string reference = R"("$ref": "#/$defs/)";
    for (size_t at = text->find(reference); at != std::string::npos;
         at = text->find(reference, at + 1)) {
      const size_t begin = at + reference.size();
      const std::string to =
          text->substr(begin, text->find('"', begin) - begin);
      EXPECT_TRUE(schema["$defs"].HasMember(to.c_str())) << name << " " << to;
    }
  }
}

TEST(AnswerSchemaTest, NamesTheCommandsWhereThereIsNone) {
  const auto none = AnswerSchema("top");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("config get"));
}

}  // namespace
}  // namespace rankprobe
