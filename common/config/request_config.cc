// SPDX-License-Identifier: Apache-2.0
#include "common/config/request_config.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/config_reader.h"
#include "common/config/plan.h"
#include "common/text/json_text.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace rankprobe {
namespace {

constexpr char kRequestId[] = "request_id";

rapidjson::Value Text(absl::string_view text, rapidjson::Document* document) {
  return rapidjson::Value(text.data(),
                          static_cast<rapidjson::SizeType>(text.size()),
                          document->GetAllocator());
}

std::string JsonOf(const rapidjson::Document& document) {
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
  document.Accept(writer);
  return std::string(buffer.GetString(), buffer.GetSize());
}

}  // namespace

absl::StatusOr<std::string> ConfigForRequest(absl::string_view json,
                                             absl::string_view request_id) {
  RP_ASSIGN_OR_RETURN(const ConfigResult before, ParseConfig(json, {}));
  rapidjson::Document document;
  RP_RETURN_IF_ERROR(ParseConfigDocument(json, &document));
  const std::string name(TaskName(before.plan.task));
  const auto found = document.FindMember(name.c_str());
  if (found == document.MemberEnd()) {
    if (request_id.empty()) return std::string(json);
    document.AddMember(Text(name, &document),
                       rapidjson::Value(rapidjson::kObjectType),
                       document.GetAllocator());
  }
  rapidjson::Value& section = document[name.c_str()];
  while (section.RemoveMember(kRequestId)) {
  }
  if (!request_id.empty()) {
    section.AddMember(rapidjson::StringRef(kRequestId),
                      Text(request_id, &document), document.GetAllocator());
  }
  std::string out = JsonOf(document);
  RP_ASSIGN_OR_RETURN(const ConfigResult after, ParseConfig(out, {}));
  if (after.plan.request_id != request_id) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of a request cannot be selected with task structure or level "
        "debug; the config has task ",
        name, " at level ", std::string(LevelName(after.plan.level))));
  }
  return out;
}

std::string WithDumpPath(absl::string_view json, absl::string_view dump_path) {
  rapidjson::Document document;
  if (!ParseConfigDocument(json, &document).ok() || !document.IsObject() ||
      document.HasMember("dump_path"))
    return std::string(json);
  std::string out(json);
  out.insert(out.rfind('}'),
             absl::StrCat(document.ObjectEmpty() ? "" : ", ",
                          R"("dump_path": )", JsonString(dump_path)));
  return out;
}

std::string WithRanks(absl::string_view json,
                      const std::vector<int64_t>& ranks) {
  rapidjson::Document document;
  if (!ParseConfigDocument(json, &document).ok() || !document.IsObject())
    return std::string(json);
  while (document.RemoveMember("rank")) {
  }
  rapidjson::Value list(rapidjson::kArrayType);
  for (const int64_t rank : ranks) list.PushBack(rank, document.GetAllocator());
  document.AddMember("rank", list, document.GetAllocator());
  return JsonOf(document);
}

}  // namespace rankprobe
