// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/s3_location.h"

#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "collector/object_store/object_store.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

absl::Status Bad(absl::string_view url, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("object store \"", VisibleText(url), "\": ", why));
}

bool IsBucketName(absl::string_view name) {
  return name.size() >= 3 && name.size() <= 63 &&
         absl::ascii_isalnum(static_cast<unsigned char>(name.front())) &&
         absl::ascii_isalnum(static_cast<unsigned char>(name.back())) &&
         absl::c_all_of(name, [](char c) {
           return absl::ascii_islower(static_cast<unsigned char>(c)) ||
                  absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
                  c == '-' || c == '.';
         });
}

// Decodes "%2F" and similar; nothing if the escape is not valid.
std::optional<std::string> Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size() ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2])))
      return std::nullopt;
    const std::string digits(text.substr(i + 1, 2));
    out.push_back(static_cast<char>(std::strtol(digits.c_str(), nullptr, 16)));
    i += 2;
  }
  return out;
}

// Returns scheme and host of the endpoint.
std::pair<absl::string_view, absl::string_view> SchemeAndHost(
    absl::string_view endpoint) {
  const size_t slashes = endpoint.find("://");
  if (slashes == absl::string_view::npos) return {"", endpoint};
  return {endpoint.substr(0, slashes), endpoint.substr(slashes + 3)};
}

bool IsRegion(absl::string_view name) {
  return !name.empty() && name.size() <= 64 && absl::c_all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
           c == '_';
  });
}

absl::Status CheckEndpoint(absl::string_view url, bool insecure,
                           std::string* endpoint) {
  while (absl::EndsWith(*endpoint, "/")) endpoint->pop_back();
  const auto [scheme, host] = SchemeAndHost(*endpoint);
  if ((scheme != "https" && scheme != "http") || host.empty() ||
      !absl::c_all_of(host, [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
               absl::StrContains("-._:[]", c);
      })) {
    return Bad(url, absl::StrCat("endpoint \"", VisibleText(*endpoint),
                                 "\" is not https://HOST[:PORT]"));
  }
  if (scheme == "http" && !insecure) {
    const absl::StatusOr<HostPort> parsed =
        ParseHostPort(absl::StrContains(host.substr(host.rfind(']') + 1), ":")
                          ? std::string(host)
                          : absl::StrCat(host, ":80"),
                      1);
    if (!parsed.ok() || !IsLoopbackHost(parsed->host)) {
      return Bad(url,
                 "plain http beyond loopback: what is recorded would travel "
                 "unencrypted; use https, or say insecure=1");
    }
  }
  return absl::OkStatus();
}

}  // namespace

EnvironmentFn ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  };
}

std::string S3Location::Name() const {
  return absl::StrCat("s3://", bucket, prefix.empty() ? "" : "/", prefix);
}

std::string S3Location::Host() const {
  const absl::string_view host = SchemeAndHost(endpoint).second;
  return path_style ? std::string(host) : absl::StrCat(bucket, ".", host);
}

std::string S3Location::PathOf(absl::string_view key) const {
  std::string path = path_style ? absl::StrCat("/", bucket) : "";
  if (!key.empty()) {
    if (!prefix.empty()) absl::StrAppend(&path, "/", prefix);
    absl::StrAppend(&path, "/", key);
  }
  return path.empty() ? "/" : path;
}

std::string S3Location::Url() const {
  return absl::StrCat(SchemeAndHost(endpoint).first, "://", Host());
}

absl::StatusOr<S3Location> ParseS3Location(absl::string_view url,
                                           const EnvironmentFn& environment) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "s3://"))
    return Bad(url, "not s3://BUCKET/PREFIX");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('?', 1));
  const std::pair<absl::string_view, absl::string_view> place =
      absl::StrSplit(parts.first, absl::MaxSplits('/', 1));
  S3Location location;
  location.bucket = std::string(place.first);
  if (!IsBucketName(location.bucket)) {
    return Bad(url,
               "the bucket's name is 3 to 63 small letters, digits, '-' and "
               "'.'");
  }
  location.prefix = std::string(place.second);
  while (absl::EndsWith(location.prefix, "/")) location.prefix.pop_back();
  if (!location.prefix.empty() && !CheckObjectKey(location.prefix).ok()) {
    return Bad(url,
               "the prefix has letters, digits, '.', '_', '-' and '/' between "
               "them");
  }
  bool insecure = false;
  std::optional<bool> path_style;
  for (const absl::string_view pair :
       absl::StrSplit(parts.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> option =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const std::optional<std::string> value = Unescape(option.second);
    if (!value.has_value() || value->empty())
      return Bad(url, absl::StrCat(VisibleText(option.first), " has no value"));
    if (option.first == "endpoint") {
      location.endpoint = *value;
    } else if (option.first == "region") {
      location.region = *value;
    } else if (option.first == "profile") {
      location.profile = *value;
    } else if (option.first == "ca") {
      location.ca_file = *value;
    } else if (option.first == "addressing" &&
               (*value == "path" || *value == "virtual")) {
      path_style = *value == "path";
    } else if (option.first == "insecure" && *value == "1") {
      insecure = true;
    } else {
      return Bad(url, absl::StrCat("\"", VisibleText(pair),
                                   "\" is none of endpoint=URL, region=NAME, "
                                   "addressing=path|virtual, profile=NAME, "
                                   "ca=FILE, insecure=1"));
    }
  }
  const auto fill = [&](std::string* field,
                        std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (!field->empty()) return;
      *field = environment(name).value_or("");
    }
  };
  fill(&location.endpoint, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  fill(&location.region, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  fill(&location.profile, {"AWS_PROFILE"});
  fill(&location.ca_file, {"AWS_CA_BUNDLE"});
  if (location.region.empty()) location.region = "us-east-1";
  if (!IsRegion(location.region))
    return Bad(url, "the region is letters, digits and '-'");
  // The wildcard certificate of the host does not cover a bucket with a dot.
  location.path_style = path_style.value_or(
      !location.endpoint.empty() || absl::StrContains(location.bucket, "."));
  if (location.endpoint.empty()) {
    location.endpoint =
        absl::StrCat("https://s3.", location.region, ".amazonaws.com");
  }
  RP_RETURN_IF_ERROR(CheckEndpoint(url, insecure, &location.endpoint));
  return location;
}

}  // namespace rankprobe
