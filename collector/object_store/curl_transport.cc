// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/curl_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collector/object_store/curl_library.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kMaxIdle = 64;
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr long kBufferBytes = 512 << 10;  // NOLINT: a varargs long

// One transfer, passed to libcurl's callbacks.
struct Transfer {
  const HttpCall* request = nullptr;
  size_t sent = 0;
  HttpResponse response;
  size_t header_bytes = 0;
  bool too_large = false;
};

size_t OnRead(char* buffer, size_t size, size_t count, void* self) {
  auto* const transfer = static_cast<Transfer*>(self);
  const absl::string_view rest =
      transfer->request->body.substr(transfer->sent, size * count);
  std::memcpy(buffer, rest.data(), rest.size());
  transfer->sent += rest.size();
  return rest.size();
}

int OnSeek(void* self, curl_off_t offset, int origin) {
  auto* const transfer = static_cast<Transfer*>(self);
  if (origin != SEEK_SET || offset < 0 ||
      static_cast<size_t>(offset) > transfer->request->body.size())
    return CURL_SEEKFUNC_FAIL;
  transfer->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t OnWrite(char* data, size_t size, size_t count, void* self) {
  auto* const transfer = static_cast<Transfer*>(self);
  const size_t bytes = size * count;
  if (bytes >
      transfer->request->max_body_bytes - transfer->response.body.size()) {
    transfer->too_large = true;
    return 0;
  }
  transfer->response.body.append(data, bytes);
  return bytes;
}

size_t OnHeader(char* data, size_t size, size_t count, void* self) {
  auto* const transfer = static_cast<Transfer*>(self);
  const size_t bytes = size * count;
  transfer->header_bytes += bytes;
  if (transfer->header_bytes > kMaxHeaderBytes) {
    transfer->too_large = true;
    return 0;
  }
  const absl::string_view line =
      absl::StripAsciiWhitespace(absl::string_view(data, bytes));
  // Earlier headers are of a proxy or of "100 Continue"; only the last ones
  // count.
  if (line.substr(0, 5) == "HTTP/") transfer->response.headers.clear();
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos) {
    transfer->response.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripLeadingAsciiWhitespace(line.substr(colon + 1)));
  }
  return bytes;
}

class CurlTransport : public HttpTransport {
 public:
  CurlTransport(CurlLibrary curl, CurlOptions options)
      : curl_(curl), options_(std::move(options)) {}
  ~CurlTransport() override {
    absl::MutexLock lock(&mutex_);
    for (CURL* const handle : idle_) curl_.easy_cleanup(handle);
  }

  absl::StatusOr<HttpResponse> Do(const HttpCall& request) override {
    CURL* const handle = Take();
    if (handle == nullptr)
      return absl::ResourceExhaustedError("no memory for a connection");
    Transfer transfer;
    transfer.request = &request;
    curl_slist* const headers = Prepare(handle, &transfer);
    const CURLcode code = curl_.easy_perform(handle);
    long status = 0;  // NOLINT: what libcurl writes
    (void)curl_.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    curl_.slist_free_all(headers);
    GiveBack(handle);
    if (transfer.too_large) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the answer is larger than ", request.max_body_bytes, " bytes"));
    }
    if (code != CURLE_OK) return StatusOf(code);
    transfer.response.status = static_cast<int>(status);
    return std::move(transfer.response);
  }

 private:
  CURL* Take() {
    {
      absl::MutexLock lock(&mutex_);
      if (!idle_.empty()) {
        CURL* const handle = idle_.back();
        idle_.pop_back();
        return handle;
      }
    }
    return curl_.easy_init();
  }

  void GiveBack(CURL* handle) {
    // Keeps connections and the DNS cache; resets all options.
    curl_.easy_reset(handle);
    {
      absl::MutexLock lock(&mutex_);
      if (idle_.size() < kMaxIdle) {
        idle_.push_back(handle);
        return;
      }
    }
    curl_.easy_cleanup(handle);
  }

  template <typename Value>
  void Set(CURL* handle, CURLoption option, Value value) {
    (void)curl_.easy_setopt(handle, option, value);
  }

  // The caller frees the list of headers after the transfer.
  curl_slist* Prepare(CURL* handle, Transfer* transfer) {
    const HttpCall& request = *transfer->request;
    curl_slist* headers = nullptr;
    const auto add = [&](const std::string& line) {
      curl_slist* const longer = curl_.slist_append(headers, line.c_str());
      if (longer != nullptr) headers = longer;
    };
    for (const auto& [name, value] : request.headers)
      add(absl::StrCat(name, ": ", value));
    // Avoids waiting for a "100 Continue" that proxies do not pass on.
    add("Expect:");
    add("Content-Type:");
    Set(handle, CURLOPT_HTTPHEADER, headers);
    Set(handle, CURLOPT_URL, request.url.c_str());
    Set(handle, CURLOPT_PATH_AS_IS, 1L);
    Set(handle, CURLOPT_NOSIGNAL, 1L);
    // A number, because CURLOPT_PROTOCOLS_STR exists only since 7.85; all
    // versions accept the bits.
    Set(handle, static_cast<CURLoption>(181) /* CURLOPT_PROTOCOLS */,
        static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));  // NOLINT
    Set(handle, CURLOPT_FOLLOWLOCATION, 0L);
    Set(handle, CURLOPT_HTTP_VERSION,
        static_cast<long>(CURL_HTTP_VERSION_1_1));  // NOLINT
    Set(handle, CURLOPT_SSL_VERIFYPEER, 1L);
    Set(handle, CURLOPT_SSL_VERIFYHOST, 2L);
    if (!options_.ca_file.empty())
      Set(handle, CURLOPT_CAINFO, options_.ca_file.c_str());
    Set(handle, CURLOPT_USERAGENT, agent_.c_str());
    Set(handle, CURLOPT_TCP_KEEPALIVE, 1L);
    Set(handle, CURLOPT_BUFFERSIZE, kBufferBytes);
    Set(handle, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    const auto ms = static_cast<long>(std::max<int64_t>(  // NOLINT
        1, absl::ToInt64Milliseconds(request.timeout)));
    Set(handle, CURLOPT_TIMEOUT_MS, ms);
    Set(handle, CURLOPT_CONNECTTIMEOUT_MS,
        std::min(ms, static_cast<long>(  // NOLINT
                         absl::ToInt64Milliseconds(kConnectTimeout))));
    SetBody(handle, transfer);
    Set(handle, CURLOPT_WRITEFUNCTION, &OnWrite);
    Set(handle, CURLOPT_WRITEDATA, transfer);
    Set(handle, CURLOPT_HEADERFUNCTION, &OnHeader);
    Set(handle, CURLOPT_HEADERDATA, transfer);
    return headers;
  }

  void SetBody(CURL* handle, Transfer* transfer) {
    const HttpCall& request = *transfer->request;
    if (request.method == "PUT") {
      Set(handle, CURLOPT_UPLOAD, 1L);
      Set(handle, CURLOPT_INFILESIZE_LARGE,
          static_cast<curl_off_t>(request.body.size()));
      Set(handle, CURLOPT_READFUNCTION, &OnRead);
      Set(handle, CURLOPT_READDATA, transfer);
      Set(handle, CURLOPT_SEEKFUNCTION, &OnSeek);
      Set(handle, CURLOPT_SEEKDATA, transfer);
    } else if (request.method == "POST") {
      Set(handle, CURLOPT_POST, 1L);
      Set(handle, CURLOPT_POSTFIELDSIZE_LARGE,
          static_cast<curl_off_t>(request.body.size()));
      Set(handle, CURLOPT_POSTFIELDS, request.body.data());
    } else if (request.method != "GET") {
      Set(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }

  absl::Status StatusOf(CURLcode code) const {
    const char* const text = curl_.easy_strerror(code);
    switch (code) {
      case CURLE_OPERATION_TIMEDOUT:
        return absl::DeadlineExceededError(text);
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
      case CURLE_SSL_CERTPROBLEM:
      case CURLE_SSL_ISSUER_ERROR:
      case CURLE_URL_MALFORMAT:
      case CURLE_UNSUPPORTED_PROTOCOL:
        return absl::FailedPreconditionError(text);
      default:
        return absl::UnavailableError(text);
    }
  }

  const CurlLibrary curl_;
  const CurlOptions options_;
  const std::string agent_ = absl::StrCat("rankprobe/", Version());
  absl::Mutex mutex_;
  std::vector<CURL*> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpTransport>> NewCurlTransport(
    const CurlOptions& options) {
  RP_ASSIGN_OR_RETURN(const CurlLibrary curl, CurlLibrary::Open());
  return std::make_unique<CurlTransport>(curl, options);
}

}  // namespace rankprobe
