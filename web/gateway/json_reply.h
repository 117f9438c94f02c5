// SPDX-License-Identifier: Apache-2.0
// Messages as proto3 JSON over HTTP, as every part of the API reads requests
// and answers. Functions without state.
#ifndef RANKPROBE_WEB_GATEWAY_JSON_REPLY_H_
#define RANKPROBE_WEB_GATEWAY_JSON_REPLY_H_

#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "web/http/http_message.h"

namespace rankprobe {

// A number that is 0 and a text that is empty are there like any other.
absl::Status ToJson(const google::protobuf::Message& message,
                    std::string* json);

// INVALID_ARGUMENT: `body` is no such message.
absl::Status FromJson(const std::string& body,
                      google::protobuf::Message* message);

// Adds to an answer the leaves that could not be reached: a member `away` with
// lines of text, if there are any.
void AddAway(const std::vector<std::string>& lines, std::string* json);

// As JSON; a message that cannot be written is an error.
void SendMessage(const google::protobuf::Message& message, HttpReply* reply);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_JSON_REPLY_H_
