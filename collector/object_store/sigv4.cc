// SPDX-License-Identifier: Apache-2.0
#include "collector/object_store/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rankprobe {
namespace {

std::string Hmac(absl::string_view key, absl::string_view data) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  unsigned int bytes = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(data.data()), data.size(),
       reinterpret_cast<unsigned char*>(digest.data()), &bytes);
  digest.resize(bytes);
  return digest;
}

// Names in lower case, sorted; values without surrounding blanks, and several
// blanks as one.
std::map<std::string, std::string> CanonicalHeaders(
    const SigV4Request& request) {
  std::map<std::string, std::string> headers;
  for (const auto& [name, value] : request.headers) {
    std::string folded = value;
    absl::RemoveExtraAsciiWhitespace(&folded);
    std::string& known = headers[absl::AsciiStrToLower(name)];
    known = known.empty() ? folded : absl::StrCat(known, ",", folded);
  }
  return headers;
}

std::string SignedNames(const std::map<std::string, std::string>& headers) {
  return absl::StrJoin(headers, ";", [](std::string* out, const auto& header) {
    out->append(header.first);
  });
}

}  // namespace

std::string UriEncode(absl::string_view text, bool keep_slash) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.' ||
        c == '~' || (keep_slash && c == '/')) {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kHex[byte >> 4]);
      out.push_back(kHex[byte & 15]);
    }
  }
  return out;
}

std::string CanonicalQuery(
    std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = UriEncode(name, false);
    value = UriEncode(value, false);
  }
  std::sort(query.begin(), query.end());
  return absl::StrJoin(query, "&", absl::PairFormatter("="));
}

std::string HexSha256(absl::string_view data) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

std::string SigV4Date(absl::Time time) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", time, absl::UTCTimeZone());
}

std::string SigV4CanonicalRequest(const SigV4Request& request) {
  const std::map<std::string, std::string> headers = CanonicalHeaders(request);
  std::string text =
      absl::StrCat(request.method, "\n",
                   request.path.empty() ? "/" : UriEncode(request.path, true),
                   "\n", CanonicalQuery(request.query), "\n");
  for (const auto& [name, value] : headers)
    absl::StrAppend(&text, name, ":", value, "\n");
  absl::StrAppend(&text, "\n", SignedNames(headers), "\n",
                  request.payload_sha256);
  return text;
}

std::string SigV4Authorization(const SigV4Request& request,
                               const SigV4Credentials& credentials,
                               const SigV4Scope& scope, absl::Time time) {
  const std::string date = SigV4Date(time);
  const std::string day = date.substr(0, 8);
  const std::string scope_text =
      absl::StrCat(day, "/", scope.region, "/", scope.service, "/aws4_request");
  const std::string to_sign =
      absl::StrCat("AWS4-HMAC-SHA256\n", date, "\n", scope_text, "\n",
                   HexSha256(SigV4CanonicalRequest(request)));
  std::string key =
      Hmac(absl::StrCat("AWS4", credentials.secret_access_key), day);
  for (const absl::string_view part :
       {absl::string_view(scope.region), absl::string_view(scope.service),
        absl::string_view("aws4_request")})
    key = Hmac(key, part);
  return absl::StrCat(
      "AWS4-HMAC-SHA256 Credential=", credentials.access_key_id, "/",
      scope_text, ", SignedHeaders=", SignedNames(CanonicalHeaders(request)),
      ", Signature=", absl::BytesToHexString(Hmac(key, to_sign)));
}

}  // namespace rankprobe
