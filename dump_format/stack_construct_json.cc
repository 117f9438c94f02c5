// SPDX-License-Identifier: Apache-2.0
// stack.json, construct.json, requests.json and run_card.json: the origin of
// calls, their requests, and the environment in which they ran.
#include "absl/strings/str_cat.h"
#include "common/text/json_text.h"
#include "dump_format/dump_json.h"

namespace rankprobe {

std::string StackJson(const StepView& view) {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  int number = 0;
  for (const StepView::Stack& stack : view.stacks) {
    if (stack.entries.empty()) continue;
    json.Key(absl::StrCat(number++));
    json.BeginArray();
    json.BeginArray();
    for (const std::string& entry : stack.entries) json.String(entry);
    json.EndArray();
    json.BeginArray();
    for (const std::string& frame : stack.frames) json.String(frame);
    json.EndArray();
    json.EndArray();
  }
  json.EndObject();
  return out;
}

std::string ConstructJson(const StepView& view) {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  for (const v1::ConstructEdge& edge : view.edges) {
    json.Key(edge.entry());
    if (edge.has_micro_step()) json.BeginArray();
    if (edge.has_parent()) {
      json.String(edge.parent());
    } else {
      json.Null();
    }
    if (edge.has_micro_step()) {
      json.Int(edge.micro_step());
      json.EndArray();
    }
  }
  if (view.end.has_value() && view.end->has_megatron_micro_step_number()) {
    json.Key("megatron_micro_step_number");
    json.Int(view.end->megatron_micro_step_number());
  }
  json.EndObject();
  return out;
}

std::string RequestsJson(const StepView& view) {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginArray();
  for (const StepView::Requests& part : view.requests) {
    json.BeginObject();
    json.Key("from_entry");
    if (part.first_entry.empty()) {
      json.Null();
    } else {
      json.String(part.first_entry);
    }
    json.Key("rows");
    json.Int(part.requests.rows());
    json.Key("recorded");
    if (part.requests.recorded().empty()) {
      json.Null();
    } else {
      json.String(part.requests.recorded());
    }
    json.Key("requests");
    json.BeginArray();
    for (const v1::RequestRows& request : part.requests.requests()) {
      json.BeginObject();
      json.Key("id");
      json.String(request.id());
      json.Key("begin");
      json.Int(request.begin());
      json.Key("end");
      json.Int(request.end());
      json.Key("position");
      if (request.has_position()) {
        json.Int(request.position());
      } else {
        json.Null();
      }
      json.EndObject();
    }
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  return out;
}

std::string RunCardJson(const StepView& view) {
  std::string out;
  JsonTextWriter json(&out);
  json.BeginObject();
  const std::string* section = nullptr;
  for (const auto& [key, value] : view.facts) {
    if (section == nullptr || *section != key.first) {
      if (section != nullptr) json.EndObject();
      json.Key(key.first);
      json.BeginObject();
      section = &key.first;
    }
    json.Key(key.second);
    json.String(value);
  }
  if (section != nullptr) json.EndObject();
  json.EndObject();
  return out;
}

}  // namespace rankprobe
