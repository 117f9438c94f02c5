// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_xml.h"

#include <expat.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxTextBytes = 64 << 10;

// Reports each element that has only text, by its path from the root,
// "ListBucketResult/Contents/Key", and the end of every element.
class LeafReader {
 public:
  using OnElement =
      std::function<void(const std::string& path, absl::string_view text)>;

  explicit LeafReader(OnElement on_element)
      : on_element_(std::move(on_element)),
        parser_(XML_ParserCreate(nullptr), &XML_ParserFree) {}

  absl::Status Read(absl::string_view untrusted) {
    if (parser_ == nullptr)
      return absl::ResourceExhaustedError("no memory for XML");
    if (untrusted.size() > kMaxS3XmlBytes) return Bad("too large");
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(parser_.get(), &Start, &End);
    XML_SetCharacterDataHandler(parser_.get(), &Text);
    XML_SetStartDoctypeDeclHandler(parser_.get(), &Doctype);
    const XML_Status parsed =
        XML_Parse(parser_.get(), untrusted.data(),
                  static_cast<int>(untrusted.size()), /*isFinal=*/1);
    RP_RETURN_IF_ERROR(status_);
    if (parsed != XML_STATUS_OK)
      return Bad(XML_ErrorString(XML_GetErrorCode(parser_.get())));
    return absl::OkStatus();
  }

 private:
  static absl::Status Bad(absl::string_view why) {
    return absl::InternalError(
        absl::StrCat("the store's answer is not XML that S3 gives: ", why));
  }
  void Stop(absl::string_view why) {
    if (status_.ok()) status_ = Bad(why);
    (void)XML_StopParser(parser_.get(), XML_FALSE);
  }

  static void Start(void* self, const char* name, const char** /*unused*/) {
    auto* const reader = static_cast<LeafReader*>(self);
    if (!reader->status_.ok()) return;
    if (reader->path_.size() >= kMaxDepth) {
      reader->Stop("more than 16 levels");
      return;
    }
    reader->path_.emplace_back(name);
    reader->text_.clear();
  }
  static void End(void* self, const char* /*unused*/) {
    auto* const reader = static_cast<LeafReader*>(self);
    if (!reader->status_.ok()) return;
    reader->on_element_(absl::StrJoin(reader->path_, "/"), reader->text_);
    reader->path_.pop_back();
    reader->text_.clear();
  }
  static void Text(void* self, const char* text, int length) {
    auto* const reader = static_cast<LeafReader*>(self);
    if (!reader->status_.ok()) return;
    if (reader->text_.size() + static_cast<size_t>(length) > kMaxTextBytes) {
      reader->Stop("a text of more than 64 KiB");
      return;
    }
    reader->text_.append(text, static_cast<size_t>(length));
  }
  // Without a document type there are no entities to expand.
  static void Doctype(void* self, const char*, const char*, const char*, int) {
    static_cast<LeafReader*>(self)->Stop("a document type");
  }

  const OnElement on_element_;
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser_;
  absl::Status status_;
  std::vector<std::string> path_;
  std::string text_;
};

}  // namespace

S3Error ParseS3Error(absl::string_view untrusted) {
  S3Error error;
  LeafReader reader([&](const std::string& path, absl::string_view text) {
    if (path == "Error/Code") error.code = std::string(text);
    if (path == "Error/Message") error.message = std::string(text);
  });
  // An incomplete error is still an error.
  reader.Read(untrusted).IgnoreError();
  return error;
}

absl::StatusOr<ObjectList> ParseS3List(absl::string_view untrusted) {
  ObjectList list;
  ObjectInfo object;
  bool has_size = false, is_list = false;
  absl::Status status;
  LeafReader reader([&](const std::string& path, absl::string_view text) {
    if (path == "ListBucketResult/Contents/Key") {
      object.key = std::string(text);
    } else if (path == "ListBucketResult/Contents/Size") {
      has_size = absl::SimpleAtoi(text, &object.bytes);
    } else if (path == "ListBucketResult/Contents") {
      if (object.key.empty() || !has_size)
        status = absl::InternalError(
            "the store lists an object without a key "
            "or size");
      list.objects.push_back(std::exchange(object, ObjectInfo()));
      has_size = false;
    } else if (path == "ListBucketResult/IsTruncated") {
      list.more = absl::StripAsciiWhitespace(text) == "true";
    } else if (path == "ListBucketResult") {
      is_list = true;
    }
  });
  RP_RETURN_IF_ERROR(reader.Read(untrusted));
  RP_RETURN_IF_ERROR(status);
  if (!is_list)
    return absl::InternalError("the store's answer is not a ListBucketResult");
  return list;
}

absl::StatusOr<std::string> ParseS3UploadId(absl::string_view untrusted) {
  std::string id;
  LeafReader reader([&](const std::string& path, absl::string_view text) {
    if (path == "InitiateMultipartUploadResult/UploadId")
      id = std::string(text);
  });
  RP_RETURN_IF_ERROR(reader.Read(untrusted));
  if (id.empty()) return absl::InternalError("the store gave no UploadId");
  return id;
}

std::string S3CompleteUpload(const std::vector<std::string>& etags) {
  std::string xml = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    absl::StrAppend(
        &xml, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>",
        absl::StrReplaceAll(etags[i],
                            {{"&", "&amp;"}, {"<", "&lt;"}, {"\"", "&quot;"}}),
        "</ETag></Part>");
  }
  absl::StrAppend(&xml, "</CompleteMultipartUpload>");
  return xml;
}

}  // namespace rankprobe
