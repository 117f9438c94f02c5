// SPDX-License-Identifier: Apache-2.0
// Requests and answers of a handler of the HTTP server.
#ifndef RANKPROBE_WEB_HTTP_HTTP_MESSAGE_H_
#define RANKPROBE_WEB_HTTP_HTTP_MESSAGE_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rankprobe {

struct HttpRequest {
  std::string method;  // "GET"
  // As it was sent, up to a '?': "/api/v1/about". Escapes are not decoded.
  std::string path;
  std::string body;
  // Token of its `Authorization: Bearer`; it was checked below /api/ only.
  std::string token;
  // The client's address and port.
  std::string peer;
};

// One answer. Owned by the server; used by the thread that runs the handler,
// until the handler returns. If the handler returns without beginning an
// answer, the server sends status 500; an unfinished answer is ended.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Sends the complete answer without waiting. Ignored if an answer was begun.
  virtual void Send(int status, absl::string_view content_type,
                    std::string body) = 0;
  // Begins an answer in pieces. Ignored if an answer was begun.
  virtual void Begin(int status, absl::string_view content_type) = 0;
  // Waits while the client is slow. Returns false if the client has
  // disconnected or has read nothing for the write timeout; further pieces are
  // dropped.
  virtual bool Write(absl::string_view piece) = 0;
  // `callback` runs once, in another thread, if the client disconnects before
  // the answer is complete; immediately if it has already disconnected. It must
  // neither block nor use the reply. After OnGone(nullptr) returns, the
  // callback does not run and is not running.
  virtual void OnGone(std::function<void()> callback) = 0;
};

// Called in several threads at once; may block.
using HttpHandler = std::function<void(const HttpRequest&, HttpReply*)>;

inline constexpr absl::string_view kJsonType = "application/json";
inline constexpr absl::string_view kJsonLinesType = "application/x-ndjson";

// Returns the HTTP status of an error.
int HttpStatusOf(absl::StatusCode code);

// Returns {"error":{"code":"NOT_FOUND","message":".."}}, the body of every
// error.
std::string ErrorJson(absl::string_view code, absl::string_view message);
std::string ErrorJson(const absl::Status& status);
// Sends the complete answer for an error.
void SendError(const absl::Status& status, HttpReply* reply);

// Returns the status line and header of an answer, with headers that forbid a
// browser to run, load, frame, guess or cache anything except what this server
// has sent. Without a length the answer is chunked.
std::string ResponseHead(int status, absl::string_view content_type,
                         const size_t* content_length, bool close);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_HTTP_HTTP_MESSAGE_H_
