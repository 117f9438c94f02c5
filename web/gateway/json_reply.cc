// SPDX-License-Identifier: Apache-2.0
#include "web/gateway/json_reply.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/text/visible_text.h"

namespace rankprobe {

absl::Status ToJson(const google::protobuf::Message& message,
                    std::string* json) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, json, options);
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "the answer cannot be written as JSON: ",
      absl::string_view(status.message().data(), status.message().size())));
}

absl::Status FromJson(const std::string& body,
                      google::protobuf::Message* message) {
  const auto status =
      google::protobuf::util::JsonStringToMessage(body, message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the request is not a ", message->GetDescriptor()->name(), ": ",
      absl::string_view(status.message().data(), status.message().size())));
}

void AddAway(const std::vector<std::string>& lines, std::string* json) {
  if (lines.empty() || json->empty() || json->back() != '}') return;
  google::protobuf::ListValue list;
  // A leaf's text is not trusted.
  for (const std::string& line : lines)
    list.add_values()->set_string_value(VisibleText(line));
  std::string array;
  if (!ToJson(list, &array).ok()) return;
  json->pop_back();
  absl::StrAppend(json, json->size() > 1 ? "," : "", "\"away\":", array, "}");
}

void SendMessage(const google::protobuf::Message& message, HttpReply* reply) {
  std::string json;
  if (const absl::Status status = ToJson(message, &json); !status.ok()) {
    SendError(status, reply);
    return;
  }
  reply->Send(200, kJsonType, std::move(json));
}

}  // namespace rankprobe
