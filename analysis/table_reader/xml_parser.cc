// SPDX-License-Identifier: Apache-2.0
#include "analysis/table_reader/xml_parser.h"

#include <expat.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxTokenBytes = 1 << 20;

absl::string_view WithoutPrefix(absl::string_view name) {
  const size_t colon = name.find(':');
  return colon == absl::string_view::npos ? name : name.substr(colon + 1);
}

}  // namespace

absl::string_view XmlAttributes::Find(absl::string_view name) const {
  for (const char** pair = pairs_; *pair != nullptr; pair += 2) {
    const absl::string_view key = pair[0];
    if (WithoutPrefix(key) == name && !absl::StartsWith(key, "xmlns")) {
      return pair[1];
    }
  }
  return {};
}

void XmlParser::Free::operator()(XML_ParserStruct* parser) const {
  XML_ParserFree(parser);
}

XmlParser::XmlParser(XmlHandler* handler)
    : handler_(handler), parser_(XML_ParserCreate(nullptr)) {
  if (parser_ == nullptr) {
    status_ = absl::ResourceExhaustedError("no memory for XML");
    return;
  }
  XML_SetUserData(parser_.get(), this);
  XML_SetElementHandler(parser_.get(), &Start, &End);
  XML_SetCharacterDataHandler(parser_.get(), &Text);
  XML_SetStartDoctypeDeclHandler(parser_.get(), &Doctype);
}

void XmlParser::Stop(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  (void)XML_StopParser(parser_.get(), XML_FALSE);
}

void XmlParser::Start(void* self, const char* name, const char** attributes) {
  auto* const parser = static_cast<XmlParser*>(self);
  // Expat has events left to give after it was stopped.
  if (!parser->status_.ok()) return;
  if (++parser->depth_ > kMaxDepth) {
    parser->Stop(absl::InvalidArgumentError("XML of more than 64 levels"));
    return;
  }
  absl::Status status =
      parser->handler_->OnStart(WithoutPrefix(name), XmlAttributes(attributes));
  if (!status.ok()) parser->Stop(std::move(status));
}

void XmlParser::End(void* self, const char* name) {
  auto* const parser = static_cast<XmlParser*>(self);
  if (!parser->status_.ok()) return;
  --parser->depth_;
  absl::Status status = parser->handler_->OnEnd(WithoutPrefix(name));
  if (!status.ok()) parser->Stop(std::move(status));
}

void XmlParser::Text(void* self, const char* text, int length) {
  auto* const parser = static_cast<XmlParser*>(self);
  if (!parser->status_.ok()) return;
  absl::Status status = parser->handler_->OnText(
      absl::string_view(text, static_cast<size_t>(length)));
  if (!status.ok()) parser->Stop(std::move(status));
}

void XmlParser::Doctype(void* self, const char* /*name*/,
                        const char* /*system*/, const char* /*public_id*/,
                        int /*internal*/) {
  static_cast<XmlParser*>(self)->Stop(absl::InvalidArgumentError(
      "XML with a document type, which no table has"));
}

absl::Status XmlParser::Parse(absl::string_view piece, bool last) {
  if (!status_.ok()) return status_;
  const XML_Status parsed =
      XML_Parse(parser_.get(), piece.data(), static_cast<int>(piece.size()),
                last ? XML_TRUE : XML_FALSE);
  fed_ += static_cast<int64_t>(piece.size());
  if (!status_.ok()) return status_;
  if (parsed != XML_STATUS_OK) {
    status_ = absl::InvalidArgumentError(absl::StrCat(
        "bad XML in line ", XML_GetCurrentLineNumber(parser_.get()), ": ",
        XML_ErrorString(XML_GetErrorCode(parser_.get()))));
    return status_;
  }
  // Expat keeps what has no end yet and reads it again with each piece.
  if (!last && fed_ - XML_GetCurrentByteIndex(parser_.get()) > kMaxTokenBytes) {
    status_ = absl::InvalidArgumentError("an XML tag of more than 1 MiB");
  }
  return status_;
}

absl::Status XmlParser::Feed(absl::string_view piece) {
  return Parse(piece, /*last=*/false);
}

absl::Status XmlParser::Finish() { return Parse("", /*last=*/true); }

}  // namespace rankprobe::analysis
