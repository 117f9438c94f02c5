#include "collector/auth/authorizer.h"

#include "gtest/gtest.h"

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
      "viewer bob vvvvvvvvvvvvvvvv\n");
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
  // A certificate does not replace the token of a server that asks for none.
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
