// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_credentials.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/io/whole_file.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;

// Rejects characters that could end a header.
bool IsPlain(const std::string& text) {
  return absl::c_all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::map<std::string, std::string> ParseProfile(absl::string_view text,
                                                absl::string_view profile) {
  std::map<std::string, std::string> values;
  bool ours = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    // An indented line belongs to the one before (nested settings).
    if (line.empty() ||
        absl::ascii_isspace(static_cast<unsigned char>(line[0])))
      continue;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line.front() == '[') {
      absl::string_view name = line.substr(1, line.find(']') - 1);
      name = absl::StripAsciiWhitespace(name);
      if (absl::ConsumePrefix(&name, "profile "))
        name = absl::StripAsciiWhitespace(name);
      ours = name == profile;
      continue;
    }
    if (!ours) continue;
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    values[absl::AsciiStrToLower(absl::StripAsciiWhitespace(pair.first))] =
        std::string(absl::StripAsciiWhitespace(pair.second));
  }
  return values;
}

absl::StatusOr<SigV4Credentials> LoadS3Credentials(
    const std::string& profile, const EnvironmentFn& environment,
    FileSystem* file_system) {
  SigV4Credentials found;
  std::vector<std::string> looked;
  if (profile.empty()) {
    found.access_key_id = environment("AWS_ACCESS_KEY_ID").value_or("");
    found.secret_access_key = environment("AWS_SECRET_ACCESS_KEY").value_or("");
    found.session_token = environment("AWS_SESSION_TOKEN").value_or("");
    looked.emplace_back("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    const std::string home = environment("HOME").value_or("");
    const std::string section = profile.empty() ? "default" : profile;
    for (const auto& [variable, file] :
         {std::make_pair("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials"),
          std::make_pair("AWS_CONFIG_FILE", "/.aws/config")}) {
      const std::string path =
          environment(variable).value_or(absl::StrCat(home, file));
      looked.push_back(
          absl::StrCat("[", VisibleText(section), "] of ", VisibleText(path)));
      std::map<std::string, std::string> values = ParseProfile(
          ReadWholeFile(file_system, path, kMaxFileBytes).value_or(""),
          section);
      found.access_key_id = values["aws_access_key_id"];
      found.secret_access_key = values["aws_secret_access_key"];
      found.session_token = values["aws_session_token"];
      if (!found.access_key_id.empty() && !found.secret_access_key.empty())
        break;
    }
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no credentials for the object store in ",
                     absl::StrJoin(looked, ", ")));
  }
  if (!IsPlain(found.access_key_id) || !IsPlain(found.session_token)) {
    return absl::FailedPreconditionError(
        "the credentials of the object store have bytes that no header takes");
  }
  return found;
}

}  // namespace rankprobe
