// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/channel_security.h"

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/file_system.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxTokenBytes = 4096;

absl::Status ReadPem(const std::string& path, absl::string_view marker,
                     std::string* pem) {
  if (path.empty()) return absl::OkStatus();
  RP_ASSIGN_OR_RETURN(*pem, ReadSmallFile(path));
  if (absl::StrContains(*pem, marker)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": not PEM (no \"", marker, "\" in it)"));
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const auto file = files->OpenForRead(path);
  const auto size = files->FileSize(path);
  if (!file.ok() || !size.ok()) {
    const absl::Status& why = file.ok() ? size.status() : file.status();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be read: ", why.message()));
  }
  if (*size > kMaxFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, ": over 1 MiB"));
  std::string text(*size, '\0');
  if (!(*file)->Read(0, absl::MakeSpan(text)).ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return text;
}

absl::StatusOr<ChannelSecurity> ReadChannelSecurity(
    const ChannelSecurityFiles& files) {
  if (files.tls_cert.empty() != files.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "a TLS certificate and its key go together: one of them is missing");
  }
  if (files.tls_ca.empty() &&
      (!files.tls_cert.empty() || !files.tls_server_name.empty())) {
    return absl::InvalidArgumentError(
        "a TLS certificate or server name without a CA: the connection would "
        "be plain text");
  }
  ChannelSecurity security;
  RP_RETURN_IF_ERROR(
      ReadPem(files.tls_ca, "BEGIN CERTIFICATE", &security.ca_pem));
  RP_RETURN_IF_ERROR(
      ReadPem(files.tls_cert, "BEGIN CERTIFICATE", &security.cert_pem));
  RP_RETURN_IF_ERROR(ReadPem(files.tls_key, "PRIVATE KEY", &security.key_pem));
  security.server_name = files.tls_server_name;
  if (!files.token_file.empty()) {
    RP_ASSIGN_OR_RETURN(const std::string text,
                        ReadSmallFile(files.token_file));
    security.token = std::string(absl::StripAsciiWhitespace(text));
    bool legal = !security.token.empty();
    for (const char c : security.token)
      legal = legal && absl::ascii_isgraph(static_cast<unsigned char>(c));
    if (!legal || security.token.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(files.token_file, ": not one token of 1 to ",
                       kMaxTokenBytes, " printable characters"));
    }
  }
  return security;
}

}  // namespace rankprobe
