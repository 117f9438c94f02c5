// SPDX-License-Identifier: Apache-2.0
#include "common/config/config_schema.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/config/config_fields.h"
#include "rapidjson/document.h"
#include "rapidjson/prettywriter.h"
#include "rapidjson/stringbuffer.h"

namespace rankprobe {
namespace {

using Writer = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

void Text(Writer* out, absl::string_view text) {
  out->String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void Member(Writer* out, const char* key, absl::string_view text) {
  out->Key(key);
  Text(out, text);
}

void Json(Writer* out, const char* key, const char* json) {
  rapidjson::Document value;
  value.Parse(json);
  out->Key(key);
  value.Accept(*out);
}

void Words(Writer* out, const ConfigField& field) {
  out->Key("enum");
  out->StartArray();
  for (const char* const word : field.words) out->String(word);
  out->EndArray();
}

void Bound(Writer* out, const char* key, int64_t bound) {
  if (bound == INT64_MIN || bound == INT64_MAX) return;
  out->Key(key);
  out->Int64(bound);
}

void Items(Writer* out, const char* type) {
  out->Key("items");
  out->StartObject();
  Member(out, "type", type);
  out->EndObject();
}

void Object(Writer* out, ConfigSection section);

// Integers and strings, where a string is "7" or "4-6".
void Ranges(Writer* out) {
  Member(out, "type", "array");
  out->Key("items");
  out->StartObject();
  out->Key("anyOf");
  out->StartArray();
  out->StartObject();
  Member(out, "type", "integer");
  Bound(out, "minimum", 0);
  Bound(out, "maximum", 1'000'000);
  out->EndObject();
  out->StartObject();
  Member(out, "type", "string");
  Member(out, "pattern", "^[0-9]+(-[0-9]+)?$");
  out->EndObject();
  out->EndArray();
  out->EndObject();
}

ConfigSection SectionNamed(absl::string_view name) {
  for (const ConfigSection section : {kStatisticsSection, kTensorSection,
                                      kStructureSection, kMonitorSection}) {
    if (ConfigSectionName(section) == name) return section;
  }
  return kNoSection;
}

void Type(Writer* out, const ConfigField& field) {
  switch (field.type) {
    case ConfigType::kSwitch:
      return Member(out, "type", "boolean");
    case ConfigType::kWord:
      Member(out, "type", "string");
      return Words(out, field);
    case ConfigType::kWords:
      Member(out, "type", "array");
      out->Key("items");
      out->StartObject();
      Member(out, "type", "string");
      Words(out, field);
      return void(out->EndObject());
    case ConfigType::kText:
      return Member(out, "type", "string");
    case ConfigType::kTexts:
      Member(out, "type", "array");
      return Items(out, "string");
    case ConfigType::kInteger:
      Member(out, "type", "integer");
      Bound(out, "minimum", field.min);
      return Bound(out, "maximum", field.max);
    case ConfigType::kRanges:
      return Ranges(out);
    case ConfigType::kObject:
      return Object(out, SectionNamed(field.name));
    case ConfigType::kObjects:
      Member(out, "type", "array");
      out->Key("items");
      out->StartObject();
      Object(out, kSliceItem);
      return void(out->EndObject());
    case ConfigType::kAny:
      return;
  }
}

void Object(Writer* out, ConfigSection section) {
  Member(out, "type", "object");
  out->Key("properties");
  out->StartObject();
  for (const ConfigField& field : ConfigFields()) {
    if ((field.sections & section) == 0) continue;
    out->Key(field.name);
    out->StartObject();
    Member(out, "description", field.meaning);
    Type(out, field);
    if (field.fallback[0] != '\0') Json(out, "default", field.fallback);
    if (field.type != ConfigType::kAny) {
      Json(out, "examples", absl::StrCat("[", field.example, "]").c_str());
    }
    out->EndObject();
  }
  out->EndObject();
  if (section == kSliceItem) Json(out, "required", R"(["dim","begin","end"])");
  out->Key("additionalProperties");
  out->Bool(false);
}

std::string Code(absl::string_view text) {
  return absl::StrCat("`", text, "`");
}

std::string TypeText(const ConfigField& field) {
  const auto words = [&] {
    return absl::StrJoin(field.words, ", ",
                         [](std::string* out, const char* word) {
                           absl::StrAppend(out, Code(word));
                         });
  };
  switch (field.type) {
    case ConfigType::kSwitch:
      return "`true` or `false`";
    case ConfigType::kWord:
      return absl::StrCat("one of ", words());
    case ConfigType::kWords:
      return absl::StrCat("a list of ", words());
    case ConfigType::kText:
      return "a string";
    case ConfigType::kTexts:
      return "a list of strings";
    case ConfigType::kInteger:
      if (field.min == INT64_MIN) return "an integer";
      return field.max == INT64_MAX
                 ? absl::StrCat("an integer from ", field.min, " on")
                 : absl::StrCat("an integer from ", field.min, " to ",
                                field.max);
    case ConfigType::kRanges:
      return "a list of integers from 0 to 1000000 and ranges `\"a-b\"`";
    case ConfigType::kObject:
      return "an object";
    case ConfigType::kObjects:
      return "a list of objects";
    case ConfigType::kAny:
      return "anything";
  }
  return "";
}

std::string SectionsText(const ConfigField& field) {
  std::vector<absl::string_view> names;
  for (const ConfigSection section : {kStatisticsSection, kTensorSection,
                                      kStructureSection, kMonitorSection}) {
    if ((field.sections & section) != 0)
      names.push_back(ConfigSectionName(section));
  }
  return names.size() == 4 ? "all" : absl::StrJoin(names, ", ");
}

void Table(unsigned sections, std::string* out) {
  const bool tasks = (sections & (kTop | kSliceItem)) == 0;
  absl::StrAppend(out, "| field | ", tasks ? "of tasks | " : "",
                  "type and values | default | example | meaning |\n| --- |",
                  tasks ? " --- |" : "", " --- | --- | --- | --- |\n");
  for (const ConfigField& field : ConfigFields()) {
    if ((field.sections & sections) == 0) continue;
    absl::StrAppend(out, "| ", Code(field.name), " | ");
    if (tasks) absl::StrAppend(out, SectionsText(field), " | ");
    absl::StrAppend(out, TypeText(field), " | ",
                    field.fallback[0] == '\0' ? "none" : Code(field.fallback),
                    " | ", Code(field.example), " | ", field.meaning, " |\n");
  }
}

}  // namespace

std::string ConfigJsonSchema() {
  rapidjson::StringBuffer buffer;
  Writer out(buffer);
  out.SetIndent(' ', 1);
  out.StartObject();
  Member(&out, "$schema", "http://json-schema.org/draft-07/schema#");
  Member(&out, "title", "config.json of rankprobe");
  Object(&out, kTop);
  out.EndObject();
  return absl::StrCat(buffer.GetString(), "\n");
}

std::string ConfigMarkdown() {
  std::string out = "## Fields at the top\n\n";
  Table(kTop, &out);
  absl::StrAppend(&out,
                  "\n## Fields of a task's section\n\nThe section has the name "
                  "of the task. One that is left out is as an empty one.\n\n");
  Table(
      kStatisticsSection | kTensorSection | kStructureSection | kMonitorSection,
      &out);
  absl::StrAppend(&out, "\n## Fields of an item of `slice`\n\n");
  Table(kSliceItem, &out);
  return out;
}

}  // namespace rankprobe
