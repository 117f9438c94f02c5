// SPDX-License-Identifier: Apache-2.0
// One call: sign, send, evaluate, retry. The calls are in s3_calls.cc.
#include "collector/object_store/s3_object_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "collector/object_store/s3_xml.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxErrorBytes = 64 << 10;
constexpr size_t kMaxShownBytes = 300;

bool IsSuccess(int status) { return status >= 200 && status < 300; }

std::string Shown(absl::string_view text) {
  return VisibleText(text.substr(0, kMaxShownBytes));
}

}  // namespace

S3ObjectStore::S3ObjectStore(S3Options options, HttpTransport* transport,
                             const Clock* clock)
    : options_(std::move(options)),
      transport_(transport),
      clock_(clock),
      pacer_(options_.pacing, clock) {}

std::string S3ObjectStore::Describe(const Call& call) const {
  return absl::StrCat(call.method, " ", call.key,
                      call.key.empty() ? "" : " of ", name());
}

absl::StatusOr<SigV4Credentials> S3ObjectStore::Credentials(bool anew) {
  {
    absl::MutexLock lock(&mutex_);
    if (has_credentials_ && !anew) return credentials_;
  }
  RP_ASSIGN_OR_RETURN(SigV4Credentials loaded, options_.credentials());
  absl::MutexLock lock(&mutex_);
  credentials_ = std::move(loaded);
  has_credentials_ = true;
  return credentials_;
}

absl::StatusOr<HttpResponse> S3ObjectStore::Attempt(
    const Call& call, const SigV4Credentials& credentials,
    absl::Duration timeout) {
  const S3Location& location = options_.location;
  const absl::Time now = clock_->Now();
  SigV4Request to_sign;
  to_sign.method = call.method;
  to_sign.path = location.PathOf(call.key);
  to_sign.query = call.query;
  to_sign.payload_sha256 = HexSha256(call.body);
  to_sign.headers = call.headers;
  to_sign.headers.emplace_back("x-amz-content-sha256", to_sign.payload_sha256);
  to_sign.headers.emplace_back("x-amz-date", SigV4Date(now));
  if (!credentials.session_token.empty())
    to_sign.headers.emplace_back("x-amz-security-token",
                                 credentials.session_token);
  HttpCall request;
  request.headers = to_sign.headers;
  to_sign.headers.emplace_back("host", location.Host());
  request.headers.emplace_back(
      "Authorization",
      SigV4Authorization(to_sign, credentials, {location.region, "s3"}, now));
  request.method = call.method;
  request.url = absl::StrCat(location.Url(), UriEncode(to_sign.path, true));
  if (!call.query.empty())
    absl::StrAppend(&request.url, "?", CanonicalQuery(call.query));
  request.body = call.body;
  request.max_body_bytes = std::max(call.max_body_bytes, kMaxErrorBytes);
  request.timeout = timeout;
  return transport_->Do(request);
}

S3ObjectStore::Verdict S3ObjectStore::Judge(
    const Call& call, const absl::StatusOr<HttpResponse>& response) const {
  Verdict verdict;
  if (!response.ok()) {
    verdict.status = absl::Status(
        response.status().code(),
        absl::StrCat(Describe(call), ": ", response.status().message()));
    verdict.again = absl::IsUnavailable(response.status()) ||
                    absl::IsDeadlineExceeded(response.status());
    return verdict;
  }
  const int status = response->status;
  const S3Error error = IsSuccess(status) && call.method != "POST"
                            ? S3Error()
                            : ParseS3Error(response->body);
  // A CompleteMultipartUpload may return an error in the body of "200 OK".
  if (IsSuccess(status) && error.code.empty()) return verdict;
  if (status == call.also_fine) return verdict;
  const std::string text =
      absl::StrCat(Describe(call), ": ", status, " ", Shown(error.code),
                   error.message.empty() ? "" : ": ", Shown(error.message));
  verdict.overload = status == 503 || status == 429 ||
                     error.code == "SlowDown" ||
                     error.code == "RequestLimitExceeded";
  verdict.again = verdict.overload || (status >= 500 && status != 501) ||
                  status == 408 || IsSuccess(status) ||
                  error.code == "RequestTimeout" ||
                  error.code == "ConditionalRequestConflict" ||
                  error.code == "OperationAborted";
  verdict.expired =
      error.code == "ExpiredToken" || error.code == "TokenRefreshRequired";
  if (verdict.again) {
    verdict.status = absl::UnavailableError(text);
  } else if (error.code == "NoSuchBucket") {
    verdict.status = absl::FailedPreconditionError(text);
  } else if (status == 404) {
    verdict.status = absl::NotFoundError(text);
  } else if (status == 412) {
    verdict.status = absl::AlreadyExistsError(text);
  } else if (status == 416) {
    verdict.status = absl::OutOfRangeError(text);
  } else if (status == 401 || status == 403) {
    verdict.status = absl::PermissionDeniedError(
        error.code == "RequestTimeTooSkewed"
            ? absl::StrCat(text, "; set this machine's clock")
            : text);
  } else if (status == 301 || status == 307 || status == 308) {
    const auto region = response->headers.find("x-amz-bucket-region");
    verdict.status = absl::FailedPreconditionError(absl::StrCat(
        text, "; the bucket is elsewhere",
        region == response->headers.end()
            ? ""
            : absl::StrCat(" (region ", Shown(region->second), ")")));
  } else if (status == 501) {
    verdict.status = absl::UnimplementedError(text);
  } else {
    verdict.status = absl::InternalError(text);
  }
  return verdict;
}

absl::StatusOr<HttpResponse> S3ObjectStore::Do(const Call& call) {
  const absl::Duration more = absl::Seconds(
      static_cast<int64_t>((call.body.size() + call.max_body_bytes) >> 20));
  const int64_t begin_ns = clock_->MonotonicNanos();
  const auto left = [&] {
    return options_.call_timeout + more -
           absl::Nanoseconds(clock_->MonotonicNanos() - begin_ns);
  };
  bool anew = false, was_anew = false;
  for (int attempt = 1;; ++attempt) {
    RP_ASSIGN_OR_RETURN(const SigV4Credentials credentials,
                        Credentials(std::exchange(anew, false)));
    if (!pacer_.Enter(left())) {
      return absl::DeadlineExceededError(
          absl::StrCat(Describe(call), ": others are before it for ",
                       absl::FormatDuration(options_.call_timeout)));
    }
    absl::StatusOr<HttpResponse> response =
        Attempt(call, credentials,
                std::min(options_.request_timeout + more,
                         std::max(left(), absl::Milliseconds(1))));
    pacer_.Leave();
    const Verdict verdict = Judge(call, response);
    if (verdict.overload) pacer_.OnOverload();
    if (verdict.status.ok()) {
      pacer_.OnSuccess();
      return response;
    }
    // Expired credentials are loaded again once; a second refusal is an error.
    if (verdict.expired && !was_anew) {
      anew = was_anew = true;
      continue;
    }
    if (!verdict.again) return verdict.status;
    const absl::Duration wait = pacer_.WaitAfter(attempt);
    if (wait >= left() || !options_.sleep(wait)) {
      return absl::Status(
          verdict.status.code(),
          absl::StrCat(verdict.status.message(), " (", attempt, " attempts)"));
    }
  }
}

}  // namespace rankprobe
