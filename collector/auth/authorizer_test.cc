// SPDX-License-Identifier: Apache-2.0
#include "collector/auth/authorizer.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor_database.h"
#include "gtest/gtest.h"
#include "rankprobe/v1/access.pb.h"
#include "rankprobe/v1/leaf.pb.h"

namespace rankprobe {
namespace {

constexpr char kSetConfig[] = "/rankprobe.v1.ControlService/SetConfig";
constexpr char kListAgents[] = "/rankprobe.v1.ControlService/ListAgents";
constexpr char kSession[] = "/rankprobe.v1.AgentService/Session";

Credentials Token(const std::string& token) {
  Credentials credentials;
  credentials.authorization = "Bearer " + token;
  return credentials;
}

Credentials Certificate(const std::string& uri) {
  Credentials credentials;
  credentials.certificate_uri = uri;
  credentials.certificate_name = "node";
  return credentials;
}

TokenTable Table() {
  return *TokenTable::Parse(
      "agent jobs aaaaaaaaaaaaaaaa\n"
      "operator alice oooooooooooooooo\n"
      "viewer bob vvvvvvvvvvvvvvvv\n"
      "leaf node0 llllllllllllllll\n");
}

// A leaf's token opens one stream, and no other token opens that.
TEST(AuthorizerTest, ALeafLinksAndNothingElse) {
  constexpr char kLink[] = "/rankprobe.v1.RootService/Link";
  constexpr char kFind[] = "/rankprobe.v1.RootService/FindCollector";
  const Authorizer authorizer(Table(), /*client_certificates=*/false);
  const Credentials leaf = Token("llllllllllllllll");
  EXPECT_TRUE(authorizer.Check(leaf, kLink).ok());
  for (const char* const path : {kFind, kSession, kListAgents, kSetConfig}) {
    EXPECT_TRUE(absl::IsPermissionDenied(authorizer.Check(leaf, path).status()))
        << path;
  }
  for (const char* const token :
       {"aaaaaaaaaaaaaaaa", "oooooooooooooooo", "vvvvvvvvvvvvvvvv"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(
        authorizer.Check(Token(token), kLink).status()))
        << token;
  }
  EXPECT_TRUE(authorizer.Check(Token("aaaaaaaaaaaaaaaa"), kFind).ok());
  const Authorizer by_certificate(std::nullopt, /*client_certificates=*/true);
  EXPECT_TRUE(by_certificate.Check(Certificate("rankprobe:leaf"), kLink).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(
      by_certificate.Check(Certificate("rankprobe:leaf"), kSession).status()));
}

TEST(AuthorizerTest, RolesReachTheirMethodsOnly) {
  const Authorizer authorizer(Table(), /*client_certificates=*/false);
  const Credentials agent = Token("aaaaaaaaaaaaaaaa"),
                    op = Token("oooooooooooooooo"),
                    viewer = Token("vvvvvvvvvvvvvvvv");
  EXPECT_TRUE(authorizer.Check(agent, kSession).ok());
  EXPECT_TRUE(
      absl::IsPermissionDenied(authorizer.Check(agent, kListAgents).status()));
  EXPECT_TRUE(
      absl::IsPermissionDenied(authorizer.Check(agent, kSetConfig).status()));
  EXPECT_TRUE(authorizer.Check(op, kSetConfig).ok());
  EXPECT_TRUE(authorizer.Check(op, kListAgents).ok());
  EXPECT_TRUE(
      absl::IsPermissionDenied(authorizer.Check(op, kSession).status()));
  EXPECT_TRUE(authorizer.Check(viewer, kListAgents).ok());
  EXPECT_TRUE(
      absl::IsPermissionDenied(authorizer.Check(viewer, kSetConfig).status()));
  EXPECT_EQ(authorizer.Check(viewer, kListAgents)->name, "bob");
}

TEST(AuthorizerTest, NoTokenAWrongOneAndAnotherSchemeAreUnauthenticated) {
  const Authorizer authorizer(Table(), false);
  Credentials basic;
  basic.authorization = "Basic oooooooooooooooo";
  for (const Credentials& c : {Credentials(), Token("wrong"), basic}) {
    EXPECT_TRUE(
        absl::IsUnauthenticated(authorizer.Check(c, kListAgents).status()));
  }
  // A certificate does not replace the token if the server requests no
  // certificates.
  EXPECT_FALSE(
      authorizer.Check(Certificate("rankprobe:operator"), kSetConfig).ok());
}

TEST(AuthorizerTest, CertificatesNameTheirRole) {
  const Authorizer authorizer(std::nullopt, /*client_certificates=*/true);
  EXPECT_TRUE(authorizer.Check(Certificate("rankprobe:agent"), kSession).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(
      authorizer.Check(Certificate("rankprobe:agent"), kSetConfig).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(
      authorizer.Check(Certificate(""), kListAgents).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(
      authorizer.Check(Certificate("rankprobe:root"), kListAgents).status()));
}

TEST(AuthorizerTest, ATokenBeatsTheCertificate) {
  const Authorizer authorizer(Table(), true);
  Credentials both = Certificate("rankprobe:operator");
  both.authorization = "Bearer vvvvvvvvvvvvvvvv";
  EXPECT_TRUE(
      absl::IsPermissionDenied(authorizer.Check(both, kSetConfig).status()));
  both.authorization = "Bearer nobody";
  EXPECT_TRUE(
      absl::IsUnauthenticated(authorizer.Check(both, kSetConfig).status()));
}

// The complete table: every method of every service of this program.
TEST(AccessTest, EveryMethodNamesItsRole) {
  int methods = 0;
  std::vector<std::string> files;
  google::protobuf::DescriptorPool::internal_generated_database()
      ->FindAllFileNames(&files);
  for (const std::string& name : files) {
    if (!absl::StartsWith(name, "rankprobe/")) continue;
    const google::protobuf::FileDescriptor* const file =
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
            name);
    ASSERT_NE(file, nullptr) << name;
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const google::protobuf::MethodDescriptor* const method =
            file->service(s)->method(m);
        ++methods;
        if (method->options().GetExtension(v1::leaf_only)) {
          EXPECT_EQ(NeededRole(absl::StrCat("/", method->service()->full_name(),
                                            "/", method->name())),
                    Role::kLeaf);
          EXPECT_FALSE(method->options().HasExtension(v1::access))
              << method->full_name() << " is for leaves and for others";
          continue;
        }
        ASSERT_TRUE(method->options().HasExtension(v1::access))
            << method->full_name() << " names no role (access.proto)";
        const v1::Access access = method->options().GetExtension(v1::access);
        EXPECT_NE(access.role(), v1::ACCESS_ROLE_UNSPECIFIED)
            << method->full_name();
        // The authorizer uses the same option.
        const std::string path = absl::StrCat(
            "/", method->service()->full_name(), "/", method->name());
        const std::optional<Role> needed = NeededRole(path);
        ASSERT_TRUE(needed.has_value()) << path;
        EXPECT_EQ(absl::StrCat("ACCESS_ROLE_",
                               absl::AsciiStrToUpper(RoleName(*needed))),
                  v1::AccessRole_Name(access.role()))
            << path;
        EXPECT_EQ(IsAudited(path), access.audited()) << path;
        if (access.role() == v1::ACCESS_ROLE_OPERATOR)
          EXPECT_TRUE(access.audited()) << path << " changes something";
      }
    }
  }
  EXPECT_GE(methods, 21);
}

TEST(AuthorizerTest, WhatAnArgumentAsksForMayNeedAnOperator) {
  const Authorizer authorizer(Table(), false);
  EXPECT_TRUE(authorizer.CheckOperator(Token("oooooooooooooooo"), "it").ok());
  const absl::Status viewer =
      authorizer.CheckOperator(Token("vvvvvvvvvvvvvvvv"), "server_directory");
  EXPECT_TRUE(absl::IsPermissionDenied(viewer));
  EXPECT_EQ(viewer.message(),
            "bob has the role viewer; server_directory needs operator");
  EXPECT_TRUE(Authorizer(std::nullopt, false).CheckOperator({}, "it").ok());
}

TEST(AuthorizerTest, UnlistedMethodsNeedAnOperatorAndHealthNobody) {
  EXPECT_EQ(NeededRole("/rankprobe.v1.ArchiveService/DeleteRun"),
            Role::kOperator);
  EXPECT_EQ(NeededRole("/other.Service/Get"), Role::kOperator);
  EXPECT_EQ(NeededRole(""), Role::kOperator);
  EXPECT_EQ(NeededRole("/grpc.health.v1.Health/Check"), std::nullopt);
  const Authorizer closed(Table(), false);
  EXPECT_TRUE(closed.Check({}, "/grpc.health.v1.Health/Check").ok());
}

TEST(AuthorizerTest, WithNothingConfiguredEverybodyMay) {
  const Authorizer authorizer(std::nullopt, false);
  EXPECT_TRUE(authorizer.Check({}, kSetConfig).ok());
  EXPECT_TRUE(authorizer.Check({}, kSession).ok());
}

}  // namespace
}  // namespace rankprobe
