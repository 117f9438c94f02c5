// SPDX-License-Identifier: Apache-2.0
// The calls of ObjectStore as requests of S3.
#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "collector/object_store/s3_object_store.h"
#include "collector/object_store/s3_xml.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMostParts = 9000;
constexpr size_t kMostListed = 1000;

struct ContentRange {
  uint64_t first = 0, last = 0, total = 0;
};

// Parses "bytes 0-9/100".
absl::StatusOr<ContentRange> ParseContentRange(const HttpResponse& response) {
  ContentRange range;
  const auto it = response.headers.find("content-range");
  if (it != response.headers.end()) {
    absl::string_view text = it->second;
    const size_t dash = text.find('-'), slash = text.find('/');
    if (absl::ConsumePrefix(&text, "bytes ") &&
        dash != absl::string_view::npos && slash != absl::string_view::npos &&
        dash < slash &&
        absl::SimpleAtoi(text.substr(0, dash - 6), &range.first) &&
        absl::SimpleAtoi(text.substr(dash - 5, slash - dash - 1),
                         &range.last) &&
        absl::SimpleAtoi(text.substr(slash - 5), &range.total) &&
        range.first <= range.last && range.last < range.total &&
        response.body.size() == range.last - range.first + 1)
      return range;
  }
  return absl::InternalError(
      "the store gave another range than was asked for, or does not know "
      "ranges");
}

}  // namespace

absl::Status S3ObjectStore::Put(const std::string& key, absl::string_view bytes,
                                PutMode mode) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  Call call;
  call.method = "PUT";
  call.key = key;
  call.body = bytes;
  if (mode == PutMode::kIfAbsent)
    call.headers.emplace_back("If-None-Match", "*");
  return Do(call).status();
}

absl::StatusOr<HttpResponse> S3ObjectStore::GetRange(const std::string& key,
                                                     const std::string& range,
                                                     uint64_t most_bytes) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  Call call;
  call.method = "GET";
  call.key = key;
  call.headers.emplace_back("Range", range);
  call.max_body_bytes = most_bytes;
  return Do(call);
}

absl::StatusOr<std::string> S3ObjectStore::Get(const std::string& key,
                                               uint64_t offset,
                                               uint64_t bytes) {
  if (bytes == 0) return std::string();
  if (offset > UINT64_MAX - bytes)
    return absl::OutOfRangeError(absl::StrCat(key, ": no such bytes"));
  RP_ASSIGN_OR_RETURN(
      HttpResponse response,
      GetRange(key, absl::StrCat("bytes=", offset, "-", offset + bytes - 1),
               bytes));
  RP_ASSIGN_OR_RETURN(const ContentRange range, ParseContentRange(response));
  if (range.first != offset)
    return absl::InternalError("the store gave another range");
  if (response.body.size() != bytes) {
    return absl::OutOfRangeError(absl::StrCat(key, ": ", bytes, " bytes at ",
                                              offset, " go beyond its end"));
  }
  return std::move(response.body);
}

absl::StatusOr<ObjectTail> S3ObjectStore::GetTail(const std::string& key,
                                                  uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  absl::StatusOr<HttpResponse> response =
      GetRange(key, absl::StrCat("bytes=-", bytes), bytes);
  // An empty object has no ranges.
  if (absl::IsOutOfRange(response.status())) return ObjectTail();
  RP_RETURN_IF_ERROR(response.status());
  ObjectTail tail;
  // The store may return the complete object if it is not larger.
  if (response->status == 200 && response->body.size() <= bytes) {
    tail.object_bytes = response->body.size();
    tail.bytes = std::move(response->body);
    return tail;
  }
  RP_ASSIGN_OR_RETURN(const ContentRange range, ParseContentRange(*response));
  if (range.last + 1 != range.total ||
      response->body.size() != std::min(bytes, range.total))
    return absl::InternalError("the store gave another range");
  tail.object_bytes = range.total;
  tail.bytes = std::move(response->body);
  return tail;
}

absl::StatusOr<ObjectList> S3ObjectStore::List(const std::string& prefix,
                                               const std::string& start_after,
                                               size_t most) {
  RP_RETURN_IF_ERROR(CheckObjectPrefix(prefix));
  const std::string& place = options_.location.prefix;
  const std::string own = place.empty() ? "" : absl::StrCat(place, "/");
  Call call;
  call.method = "GET";
  call.query = {
      {"list-type", "2"},
      {"prefix", own + prefix},
      {"max-keys", absl::StrCat(std::clamp<size_t>(most, 1, kMostListed))}};
  if (!start_after.empty())
    call.query.emplace_back("start-after", own + start_after);
  call.max_body_bytes = kMaxS3XmlBytes;
  RP_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
  RP_ASSIGN_OR_RETURN(ObjectList list, ParseS3List(response.body));
  std::string last = start_after;
  for (ObjectInfo& object : list.objects) {
    absl::string_view key = object.key;
    if (!absl::ConsumePrefix(&key, own) || !absl::StartsWith(key, prefix) ||
        key <= last) {
      return absl::InternalError(
          "the store lists keys that were not asked for, or out of order");
    }
    last = std::string(key);
    object.key = last;
  }
  // An empty page with `more` would be requested again forever.
  if (list.objects.empty()) list.more = false;
  return list;
}

absl::Status S3ObjectStore::Delete(const std::string& key) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  Call call;
  call.method = "DELETE";
  call.key = key;
  call.also_fine = 404;
  return Do(call).status();
}

absl::Status S3ObjectStore::PutFile(const std::string& key,
                                    FileSystem* file_system,
                                    const std::string& path) {
  RP_RETURN_IF_ERROR(CheckObjectKey(key));
  RP_ASSIGN_OR_RETURN(const uint64_t size, file_system->FileSize(path));
  RP_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      file_system->OpenForRead(path));
  if (size <= options_.part_bytes) {
    std::string bytes(size, '\0');
    RP_RETURN_IF_ERROR(file->Read(0, absl::MakeSpan(bytes)));
    return Put(key, bytes, PutMode::kReplace);
  }
  Call begin;
  begin.method = "POST";
  begin.key = key;
  begin.query = {{"uploads", ""}};
  RP_ASSIGN_OR_RETURN(const HttpResponse begun, Do(begin));
  RP_ASSIGN_OR_RETURN(const std::string upload_id, ParseS3UploadId(begun.body));
  const absl::Status status = PutParts(key, *file, size, upload_id);
  if (!status.ok()) {
    // If the abort fails, the bucket's lifecycle rule removes the parts.
    Call abort;
    abort.method = "DELETE";
    abort.key = key;
    abort.query = {{"uploadId", upload_id}};
    abort.also_fine = 404;
    Do(abort).status().IgnoreError();
  }
  return status;
}

absl::Status S3ObjectStore::PutParts(const std::string& key,
                                     const RandomAccessFile& file,
                                     uint64_t size,
                                     const std::string& upload_id) {
  const uint64_t part_bytes =
      std::max(options_.part_bytes, (size + kMostParts - 1) / kMostParts);
  std::vector<std::string> etags;
  std::string bytes;
  for (uint64_t at = 0; at < size; at += bytes.size()) {
    bytes.resize(std::min(part_bytes, size - at));
    RP_RETURN_IF_ERROR(file.Read(at, absl::MakeSpan(bytes)));
    Call part;
    part.method = "PUT";
    part.key = key;
    part.query = {{"partNumber", absl::StrCat(etags.size() + 1)},
                  {"uploadId", upload_id}};
    part.body = bytes;
    RP_ASSIGN_OR_RETURN(const HttpResponse put, Do(part));
    const auto etag = put.headers.find("etag");
    if (etag == put.headers.end())
      return absl::InternalError("the store gave no ETag of a part");
    etags.push_back(etag->second);
  }
  const std::string xml = S3CompleteUpload(etags);
  Call complete;
  complete.method = "POST";
  complete.key = key;
  complete.query = {{"uploadId", upload_id}};
  complete.body = xml;
  const absl::Status status = Do(complete).status();
  if (!absl::IsNotFound(status)) return status;
  // The upload does not exist any more: it was completed, and the answer was
  // lost.
  RP_ASSIGN_OR_RETURN(const ObjectTail there, GetTail(key, 1));
  return there.object_bytes == size ? absl::OkStatus() : status;
}

}  // namespace rankprobe
