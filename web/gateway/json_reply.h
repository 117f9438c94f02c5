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

// Writes all fields, including numbers that are 0 and empty texts.
absl::Status ToJson(const google::protobuf::Message& message,
                    std::string* json);

// Returns INVALID_ARGUMENT if `body` is not such a message.
absl::Status FromJson(const std::string& body,
                      google::protobuf::Message* message);

// Adds the leaves that could not be reached to an answer: a member `away` with
// lines of text, if there are any.
void AddAway(const std::vector<std::string>& lines, std::string* json);

// Sends the message as JSON, or an error if it cannot be converted.
void SendMessage(const google::protobuf::Message& message, HttpReply* reply);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_GATEWAY_JSON_REPLY_H_
