// SPDX-License-Identifier: Apache-2.0
// XML as a stream of events (expat). What tables do not need and attacks do is
// refused: document types, and so every entity but the five of XML; elements 64
// deep; a tag of more than 1 MiB. One document an object; not thread-safe.
// Failure: INVALID_ARGUMENT with the line, or the handler's own status.
#ifndef RANKPROBE_ANALYSIS_TABLE_READER_XML_PARSER_H_
#define RANKPROBE_ANALYSIS_TABLE_READER_XML_PARSER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

struct XML_ParserStruct;

namespace rankprobe::analysis {

// The attributes of an element, for the length of a call.
class XmlAttributes {
 public:
  explicit XmlAttributes(const char** pairs) : pairs_(pairs) {}
  // By its name without prefix; empty if there is none.
  absl::string_view Find(absl::string_view name) const;

 private:
  const char** pairs_;
};

// Names come without their prefixes, text in UTF-8 and in pieces.
class XmlHandler {
 public:
  virtual ~XmlHandler() = default;
  virtual absl::Status OnStart(absl::string_view name,
                               const XmlAttributes& attributes) = 0;
  virtual absl::Status OnEnd(absl::string_view name) = 0;
  virtual absl::Status OnText(absl::string_view text) = 0;
};

class XmlParser {
 public:
  // `handler` outlives the object.
  explicit XmlParser(XmlHandler* handler);
  XmlParser(const XmlParser&) = delete;
  XmlParser& operator=(const XmlParser&) = delete;

  absl::Status Feed(absl::string_view piece);
  absl::Status Finish();

 private:
  struct Free {
    void operator()(XML_ParserStruct* parser) const;
  };
  // What expat calls; `self` is the XmlParser.
  static void Start(void* self, const char* name, const char** attributes);
  static void End(void* self, const char* name);
  static void Text(void* self, const char* text, int length);
  static void Doctype(void* self, const char* name, const char* system,
                      const char* public_id, int internal);
  void Stop(absl::Status status);
  absl::Status Parse(absl::string_view piece, bool last);

  XmlHandler* const handler_;
  std::unique_ptr<XML_ParserStruct, Free> parser_;
  absl::Status status_;
  int64_t fed_ = 0;
  int depth_ = 0;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_TABLE_READER_XML_PARSER_H_
