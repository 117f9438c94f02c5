// SPDX-License-Identifier: Apache-2.0
#include "common/config/config_reader.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/json_place.h"
#include "common/text/visible_text.h"
#include "rapidjson/error/en.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxDepth = 64;
constexpr int64_t kMaxRangeValue = 1000000;
constexpr rapidjson::SizeType kMaxRanges = 100000;
constexpr char kRangeLegal[] =
    "a list of integers 0..1000000 and ranges \"a-b\" with a <= b";

int Depth(absl::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
  }
  return deepest;
}

// RapidJSON reports a string that ends at the end of a line as an invalid
// escape.
std::string WhyNoJson(absl::string_view json,
                      const rapidjson::Document& document) {
  const rapidjson::ParseErrorCode code = document.GetParseError();
  const size_t at = document.GetErrorOffset();
  const size_t end = absl::StripTrailingAsciiWhitespace(json).size();
  if (code == rapidjson::kParseErrorStringMissQuotationMark ||
      (end > 0 && at >= end))
    return "it ends too early: was it cut off?";
  const bool in_string = code == rapidjson::kParseErrorStringEscapeInvalid ||
                         code == rapidjson::kParseErrorStringInvalidEncoding;
  if (in_string && static_cast<unsigned char>(json[at]) < 0x20)
    return "a string without its closing quote.";
  return rapidjson::GetParseError_En(code);
}

}  // namespace

void ConfigFaults::Add(absl::string_view field, absl::string_view value,
                       absl::string_view legal) {
  lines_.push_back(
      {std::string(field),
       VisibleText(absl::StrCat(field, ": ", value, " is not legal; expected ",
                                legal))});
}

void ConfigFaults::AddText(absl::string_view line) {
  lines_.push_back({"", VisibleText(line)});
}

absl::Status ConfigFaults::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrJoin(lines_, "\n", [](std::string* out, const Line& line) {
        absl::StrAppend(out, line.text);
      }));
}

std::string JsonText(const rapidjson::Value& value) {
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer, rapidjson::UTF8<>,
                    rapidjson::UTF8<>, rapidjson::CrtAllocator,
                    rapidjson::kWriteNanAndInfFlag>
      writer(buffer);
  value.Accept(writer);
  std::string text(buffer.GetString(), buffer.GetSize());
  if (text.size() > 120) text = absl::StrCat(text.substr(0, 117), "...");
  return text;
}

absl::Status ParseConfigDocument(absl::string_view json,
                                 rapidjson::Document* document) {
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the config has ", json.size(), " bytes; at most ",
                     kMaxConfigBytes, " are accepted"));
  }
  if (Depth(json) > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the config is nested deeper than ", kMaxDepth, " levels"));
  }
  document->Parse<rapidjson::kParseValidateEncodingFlag>(json.data(),
                                                         json.size());
  if (document->HasParseError()) {
    const TextPlace place =
        PlaceOfByte(json, std::min(document->GetErrorOffset(), json.size()));
    return absl::InvalidArgumentError(
        absl::StrCat("not valid JSON: ", WhyNoJson(json, *document), " (line ",
                     place.line, ", column ", place.column, ")"));
  }
  if (!document->IsObject())
    return absl::InvalidArgumentError("not a JSON object");
  return absl::OkStatus();
}

ConfigReader::ConfigReader(const rapidjson::Value* object, std::string prefix,
                           ConfigFaults* faults, ConfigSection section)
    : object_(object),
      prefix_(std::move(prefix)),
      faults_(faults),
      section_(section) {}

void ConfigReader::Fault(const char* name, absl::string_view value,
                         absl::string_view legal) {
  faults_->Add(FieldName(name), value, legal);
}

const rapidjson::Value* ConfigReader::Get(const char* name) {
  known_.insert(name);
  const auto it = object_->FindMember(name);
  return it == object_->MemberEnd() ? nullptr : &it->value;
}

bool ConfigReader::Has(const char* name) { return Get(name) != nullptr; }

std::optional<bool> ConfigReader::Bool(const char* name) {
  const rapidjson::Value* v = Get(name);
  if (v == nullptr) return std::nullopt;
  if (!v->IsBool()) {
    Fault(name, JsonText(*v), "true or false");
    return std::nullopt;
  }
  return v->GetBool();
}

std::optional<std::string> ConfigReader::String(const char* name) {
  const rapidjson::Value* v = Get(name);
  if (v == nullptr) return std::nullopt;
  if (!v->IsString()) {
    Fault(name, JsonText(*v), "a string");
    return std::nullopt;
  }
  return std::string(v->GetString(), v->GetStringLength());
}

std::optional<int64_t> ConfigReader::Int(const char* name, int64_t min,
                                         int64_t max) {
  const rapidjson::Value* v = Get(name);
  if (v == nullptr) return std::nullopt;
  if (!v->IsInt64() || v->GetInt64() < min || v->GetInt64() > max) {
    Fault(name, JsonText(*v), absl::StrCat("an integer ", min, "..", max));
    return std::nullopt;
  }
  return v->GetInt64();
}

std::optional<int64_t> ConfigReader::Int(const char* name) {
  const ConfigField* const field = FindConfigField(section_, name);
  return field == nullptr ? std::nullopt : Int(name, field->min, field->max);
}

std::optional<size_t> ConfigReader::OneOf(const char* name) {
  const rapidjson::Value* v = Get(name);
  const ConfigField* const field = FindConfigField(section_, name);
  if (v == nullptr || field == nullptr) return std::nullopt;
  if (v->IsString()) {
    for (size_t i = 0; i < field->words.size(); ++i) {
      if (absl::string_view(v->GetString(), v->GetStringLength()) ==
          field->words[i])
        return i;
    }
  }
  Fault(name, JsonText(*v),
        absl::StrCat("one of ", absl::StrJoin(field->words, ", ")));
  return std::nullopt;
}

std::vector<std::string> ConfigReader::StringList(const char* name) {
  const rapidjson::Value* v = Get(name);
  std::vector<std::string> out;
  if (v == nullptr) return out;
  if (!v->IsArray()) {
    Fault(name, JsonText(*v), "a list of strings");
    return out;
  }
  for (const rapidjson::Value& item : v->GetArray()) {
    if (!item.IsString()) {
      Fault(name, JsonText(item), "a list of strings");
      continue;
    }
    out.emplace_back(item.GetString(), item.GetStringLength());
  }
  return out;
}

IntSet ConfigReader::Ranges(const char* name) {
  const rapidjson::Value* v = Get(name);
  std::vector<IntInterval> out;
  if (v == nullptr) return IntSet();
  if (!v->IsArray()) {
    Fault(name, JsonText(*v), kRangeLegal);
    return IntSet();
  }
  if (v->Size() > kMaxRanges) {
    Fault(name, absl::StrCat("a list of ", v->Size(), " items"),
          absl::StrCat("at most ", kMaxRanges, " integers and ranges"));
    return IntSet();
  }
  const auto parse = [](absl::string_view text, int64_t* value) {
    return !text.empty() && absl::c_all_of(text, absl::ascii_isdigit) &&
           absl::SimpleAtoi(text, value) && *value <= kMaxRangeValue;
  };
  for (const rapidjson::Value& item : v->GetArray()) {
    if (item.IsInt64() && item.GetInt64() >= 0 &&
        item.GetInt64() <= kMaxRangeValue) {
      out.push_back({item.GetInt64(), item.GetInt64()});
      continue;
    }
    int64_t first = 0, last = 0;
    if (item.IsString()) {
      const absl::string_view text(item.GetString(), item.GetStringLength());
      const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
      if (ends.size() == 1 && parse(ends[0], &first)) {
        out.push_back({first, first});
        continue;
      }
      if (ends.size() == 2 && parse(ends[0], &first) && parse(ends[1], &last) &&
          first <= last) {
        out.push_back({first, last});
        continue;
      }
    }
    Fault(name, JsonText(item), kRangeLegal);
  }
  return IntSet::OfIntervals(std::move(out));
}

std::vector<std::string> ConfigReader::UnknownNames() const {
  std::vector<std::string> names;
  for (const auto& member : object_->GetObject()) {
    const std::string name(member.name.GetString(),
                           member.name.GetStringLength());
    const bool known = section_ == kNoSection
                           ? known_.count(name) > 0
                           : FindConfigField(section_, name) != nullptr;
    if (!known) names.push_back(prefix_ + name);
  }
  return names;
}

}  // namespace rankprobe
