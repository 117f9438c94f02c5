// SPDX-License-Identifier: Apache-2.0
#include "cli/output/answer_schema.h"

#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "rankprobe/v1/analysis.pb.h"
#include "rankprobe/v1/archive.pb.h"
#include "rankprobe/v1/control.pb.h"
#include "rankprobe/v1/query.pb.h"
#include "rankprobe/v1/triggers.pb.h"
#include "rapidjson/document.h"
#include "rapidjson/prettywriter.h"
#include "rapidjson/stringbuffer.h"

namespace rankprobe {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Writer = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

struct Answer {
  const char* command;
  // The command prints one of these messages; if `lines`, one on each line.
  std::vector<const Descriptor*> messages;
  bool lines = false;
  // The schema of a program in Python, which has no message.
  const char* schema = nullptr;
};

constexpr char kAddress[] =
    R"({"type": "object", "required": ["address"], "additionalProperties": false,
  "properties": {"address": {"type": "string"}}})";
constexpr char kDoctor[] =
    R"({"type": "object", "required": ["findings"], "additionalProperties": false, "properties": {
  "findings": {"type": "array", "items": {"type": "object", "required": ["check", "state", "text", "remedy"],
    "additionalProperties": false, "properties": {"check": {"type": "string"}, "state": {"enum": ["ok", "note", "warning", "fault"]},
    "text": {"type": "string"}, "remedy": {"type": "string"}}}}}})";
constexpr char kIsolate[] =
    R"({"type": "object", "required": ["exit_code", "step", "ranks"], "additionalProperties": false, "properties": {
  "exit_code": {"enum": [0, 1, 2]}, "step": {"type": "integer"}, "ranks": {"type": "object", "additionalProperties": {
    "type": "object", "required": ["reference", "exit_code", "failing", "notes", "rows"], "additionalProperties": false,
    "properties": {"reference": {"type": "string"}, "exit_code": {"enum": [0, 1, 2]},
      "failing": {"type": "array", "items": {"type": "string"}}, "notes": {"type": "array", "items": {"type": "string"}},
      "rows": {"type": "array", "items": {"type": "object",
        "required": ["name", "module", "direction", "verdict", "error", "tolerance", "where", "reason", "source"],
        "additionalProperties": false, "properties": {"name": {"type": "string"}, "module": {"type": "string"},
          "direction": {"type": "string"}, "verdict": {"type": "string"}, "error": {"type": ["number", "null"]},
          "tolerance": {"type": ["number", "null"]}, "where": {"type": "string"}, "reason": {"type": "string"},
          "source": {"type": "string"}}}}}}}}})";
constexpr char kCheck[] =
    R"({"type": "object", "required": ["golden", "step", "exit_code", "updated", "compared", "stored_with", "made_with", "rewritten",
  "differences"], "additionalProperties": false, "properties": {"golden": {"type": "string"}, "step": {"type": "integer"},
  "exit_code": {"enum": [0, 1]}, "updated": {"type": "boolean"}, "compared": {"type": "integer"},
  "stored_with": {"type": "object", "additionalProperties": {"type": "string"}},
  "made_with": {"type": "object", "additionalProperties": {"type": "string"}},
  "rewritten": {"type": "array", "items": {"type": "string"}},
  "differences": {"type": "array", "items": {"type": "object",
    "required": ["call", "stored_call", "layer", "code", "inputs_agree", "tensors"], "additionalProperties": false,
    "properties": {"call": {"type": "string"}, "stored_call": {"type": "string"}, "layer": {"type": "string"},
      "code": {"type": "string"}, "inputs_agree": {"type": ["boolean", "null"]}, "tensors": {"type": "array", "items": {
        "type": "object", "required": ["place", "what", "statistics"], "additionalProperties": false, "properties": {
          "place": {"type": "string"}, "what": {"type": "string"}, "statistics": {"type": "array", "items": {
            "type": "object", "required": ["name", "stored", "now", "relative", "allowed"], "additionalProperties": false,
            "properties": {"name": {"enum": ["Max", "Min", "Mean", "Norm"]}, "stored": {"$ref": "#/$defs/number"},
              "now": {"$ref": "#/$defs/number"}, "relative": {"$ref": "#/$defs/number"},
              "allowed": {"$ref": "#/$defs/number"}}}}}}}}}}},
  "$defs": {"number": {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}}})";
constexpr char kMergeResult[] =
    R"({"type": "object", "required": ["file", "ranks", "indices", "rows", "left_out"], "additionalProperties": false, "properties": {
  "file": {"type": "string"}, "ranks": {"type": "array", "items": {"type": "integer"}},
  "indices": {"type": "array", "items": {"type": "string"}}, "rows": {"type": "integer"},
  "left_out": {"type": "array", "items": {"type": "string"}}}})";
constexpr char kAccCheck[] =
    R"({"type": "object", "required": ["pass", "SKIP"], "additionalProperties": false, "properties": {
  "result": {"type": "string"}, "details": {"type": "string"}, "pass": {"type": "integer"}, "error": {"type": "integer"},
  "SKIP": {"type": "integer"}, "once": {"type": "integer"}, "always": {"type": "integer"}, "varies": {"type": "integer"},
  "runs": {"type": "integer"}, "calls": {"type": "array", "items": {"type": "object", "required": ["call", "verdict", "text"],
    "additionalProperties": false, "properties": {"call": {"type": "string"}, "verdict": {"enum": ["pass", "once", "always",
      "varies", "SKIP"]}, "text": {"type": "string"}}}}},
  "oneOf": [{"required": ["result", "details", "error"]}, {"required": ["once", "always", "varies", "runs", "calls"]}]})";

template <typename... Messages>
std::vector<const Descriptor*> Of() {
  return {Messages::descriptor()...};
}

// In the order of the help.
const std::vector<Answer>& Answers() {
  static const auto* const kAnswers = new std::vector<Answer>{
      {"doctor", {}, false, kDoctor},
      {"enable", Of<v1::SwitchResult>()},
      {"disable", Of<v1::SwitchResult>()},
      {"config get", Of<v1::GetConfigResponse>()},
      {"config set", Of<v1::SwitchResult>()},
      {"explain", Of<v1::ExplainResponse>()},
      {"status", Of<v1::ListAgentsResponse, v1::ListStepsResponse>()},
      {"view", {}, false, kAddress},
      {"watch", Of<v1::WatchedEvent, v1::ListAgentsResponse>(), true},
      {"events", Of<v1::ListEventsResponse>()},
      {"triggers set", Of<v1::SetTriggersResponse>()},
      {"triggers get", Of<v1::TriggerSpec>()},
      {"flight", Of<v1::ShipFlightResponse>()},
      {"flag", Of<v1::ListEventsResponse>()},
      {"runs", Of<v1::ListRunsResponse>()},
      {"query", Of<v1::GridHead, v1::GridRow, v1::SeriesRow, v1::ModuleName>(),
       true},
      {"export", Of<v1::ExportDone, v1::ValuesEnd>()},
      {"ledger", Of<v1::StepLedger>(), true},
      {"diagnose", Of<v1::DiagnoseReport>()},
      {"scan", Of<v1::ScanReport>()},
      {"overflow_check", Of<v1::OverflowReport>()},
      {"first-divergence", Of<v1::DivergenceReport>()},
      {"config_check", Of<v1::RunCardReport>()},
      {"compare", Of<v1::CompareReport>()},
      {"merge_result", {}, false, kMergeResult},
      {"graph_visualize", Of<v1::GraphReport>()},
      {"replicas", Of<v1::ReplicaReport>()},
      {"align", Of<v1::AlignReport>()},
      {"acc_check", {}, false, kAccCheck},
      {"isolate", {}, false, kIsolate},
      {"check", {}, false, kCheck},
      {"verify", Of<v1::VerifyReport>()},
      {"delete", Of<v1::DeleteReport>()},
      {"backup", Of<v1::BackupReport>()},
      {"deliver", Of<v1::DeliverReport>()},
  };
  return *kAnswers;
}

std::string NameOf(const Descriptor& message) {
  const std::string& name = message.full_name();
  return name.substr(name.find(".v1.") + 4);
}

std::string Reference(const Descriptor& message) {
  return absl::StrCat("#/$defs/", NameOf(message));
}

void Type(Writer* out, const char* type, bool or_null) {
  out->Key("type");
  if (!or_null) return void(out->String(type));
  out->StartArray();
  out->String(type);
  out->String("null");
  out->EndArray();
}

// Writes {"anyOf": [first, {"..": ..}]}.
void AnyOf(Writer* out, const std::function<void()>& first,
           const std::function<void()>& second) {
  out->Key("anyOf");
  out->StartArray();
  for (const auto& one : {first, second}) {
    out->StartObject();
    one();
    out->EndObject();
  }
  out->EndArray();
}

// Describes a field's value as cli/output/output.cc writes it.
void Value(Writer* out, const FieldDescriptor& field, bool or_null) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return Type(out, "integer", or_null);
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      Type(out, "integer", or_null);
      out->Key("minimum");
      out->Int(0);
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return AnyOf(
          out, [&] { Type(out, "number", or_null); },
          [&] {
            out->Key("enum");
            out->StartArray();
            for (const char* const word : {"nan", "inf", "-inf"})
              out->String(word);
            out->EndArray();
          });
    case FieldDescriptor::CPPTYPE_BOOL:
      return Type(out, "boolean", or_null);
    case FieldDescriptor::CPPTYPE_ENUM:
      out->Key("enum");
      out->StartArray();
      for (int i = 0; i < field.enum_type()->value_count(); ++i)
        out->String(field.enum_type()->value(i)->name().c_str());
      if (or_null) out->Null();
      out->EndArray();
      return;
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      const auto reference = [&] {
        out->Key("$ref");
        out->String(Reference(*field.message_type()).c_str());
      };
      if (!or_null) return reference();
      return AnyOf(out, reference,
                   [&] { Type(out, "null", /*or_null=*/false); });
    }
    default:
      Type(out, "string", or_null);
  }
}

// Collects the message and those that it contains, by name.
void Collect(const Descriptor& message,
             std::map<std::string, const Descriptor*>* known) {
  if (!known->emplace(NameOf(message), &message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    if (message.field(i)->message_type() != nullptr)
      Collect(*message.field(i)->message_type(), known);
  }
}

// Every key is required.
void Object(Writer* out, const Descriptor& message) {
  out->StartObject();
  out->Key("type");
  out->String("object");
  out->Key("properties");
  out->StartObject();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    out->Key(field.name().c_str());
    out->StartObject();
    if (field.is_repeated()) {
      Type(out, "array", /*or_null=*/false);
      out->Key("items");
      out->StartObject();
      Value(out, field, /*or_null=*/false);
      out->EndObject();
    } else {
      Value(out, field, field.has_presence());
    }
    out->EndObject();
  }
  out->EndObject();
  out->Key("required");
  out->StartArray();
  for (int i = 0; i < message.field_count(); ++i)
    out->String(message.field(i)->name().c_str());
  out->EndArray();
  out->Key("additionalProperties");
  out->Bool(false);
  out->EndObject();
}

void Messages(Writer* out, const Answer& answer) {
  out->Key("anyOf");
  out->StartArray();
  std::map<std::string, const Descriptor*> known;
  for (const Descriptor* const message : answer.messages) {
    Collect(*message, &known);
    out->StartObject();
    out->Key("$ref");
    out->String(Reference(*message).c_str());
    out->EndObject();
  }
  out->EndArray();
  out->Key("$defs");
  out->StartObject();
  for (const auto& [name, message] : known) {
    out->Key(name.c_str());
    Object(out, *message);
  }
  out->EndObject();
}

// Writes the members of the schema into the open object.
void Literal(Writer* out, const char* schema) {
  rapidjson::Document value;
  value.Parse(schema);
  for (const auto& member : value.GetObject()) {
    out->Key(member.name.GetString());
    member.value.Accept(*out);
  }
}

}  // namespace

std::vector<std::string> CommandsWithSchema() {
  std::vector<std::string> names;
  names.reserve(Answers().size());
  for (const Answer& answer : Answers()) names.emplace_back(answer.command);
  return names;
}

absl::StatusOr<std::string> AnswerSchema(absl::string_view command) {
  for (const Answer& answer : Answers()) {
    if (answer.command != command) continue;
    rapidjson::StringBuffer buffer;
    Writer out(buffer);
    out.SetIndent(' ', 2);
    out.StartObject();
    out.Key("$schema");
    out.String("https://json-schema.org/draft/2020-12/schema");
    out.Key("title");
    out.String(absl::StrCat("rankprobe ", command, " --json",
                            answer.lines ? ", each line" : "")
                   .c_str());
    if (answer.schema != nullptr) {
      Literal(&out, answer.schema);
    } else {
      Messages(&out, answer);
    }
    out.EndObject();
    return absl::StrCat(buffer.GetString(), "\n");
  }
  return absl::NotFoundError(
      absl::StrCat(command, " prints no JSON; these do: ",
                   absl::StrJoin(CommandsWithSchema(), ", ")));
}

}  // namespace rankprobe
