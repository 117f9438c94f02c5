// SPDX-License-Identifier: Apache-2.0
#include "web/http/http_message.h"

#include "absl/strings/str_cat.h"
#include "common/text/json_text.h"

namespace rankprobe {
namespace {

constexpr absl::string_view kSafetyFields =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";

absl::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

std::string ErrorJson(absl::string_view code, absl::string_view message) {
  return absl::StrCat("{\"error\":{\"code\":", JsonString(code),
                      ",\"message\":", JsonString(message), "}}");
}

std::string ErrorJson(const absl::Status& status) {
  return ErrorJson(absl::StatusCodeToString(status.code()), status.message());
}

void SendError(const absl::Status& status, HttpReply* reply) {
  reply->Send(HttpStatusOf(status.code()), kJsonType, ErrorJson(status));
}

std::string ResponseHead(int status, absl::string_view content_type,
                         const size_t* content_length, bool close) {
  return absl::StrCat(
      "HTTP/1.1 ", status, " ", Reason(status), "\r\n",
      "Content-Type: ", content_type, "\r\n",
      content_length == nullptr
          ? "Transfer-Encoding: chunked\r\n"
          : absl::StrCat("Content-Length: ", *content_length, "\r\n"),
      close ? "Connection: close\r\n" : "",
      status == 405 ? "Allow: GET, POST\r\n" : "", kSafetyFields, "\r\n");
}

}  // namespace rankprobe
