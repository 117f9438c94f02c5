// SPDX-License-Identifier: Apache-2.0
#include "web/http/request_guard.h"

#include "gtest/gtest.h"

namespace rankprobe {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

constexpr char kPageToken[] = "0123456789abcdef0123456789abcdef";

GuardRules Rules() { return {{"127.0.0.1:80", "localhost:80"}, kPageToken}; }

int StatusOf(const std::string& method, const std::string& path,
             Fields fields) {
  const auto refusal = WhyRefused({method, path, std::move(fields)}, Rules());
  return refusal.has_value() ? refusal->status : 200;
}

// A request of the page, with changed or additional fields.
int Api(const Fields& further, const std::string& host = "127.0.0.1:80") {
  Fields fields = {{"Host", host},
                   {"Authorization", std::string("Bearer ") + kPageToken},
                   {"Content-Type", "application/json"}};
  fields.insert(fields.end(), further.begin(), further.end());
  return StatusOf("POST", "/api/v1/x/y", fields);
}

TEST(RequestGuardTest, ThePageMayAsk) {
  EXPECT_EQ(Api({}), 200);
  EXPECT_EQ(Api({}, "LOCALHOST:80"), 200);
  EXPECT_EQ(Api({{"Origin", "http://127.0.0.1:80"},
                 {"Sec-Fetch-Site", "same-origin"}}),
            200);
  EXPECT_EQ(StatusOf("GET", "/", {{"host", "localhost:80"}}), 200);
  EXPECT_EQ(StatusOf("GET", "/api", {{"host", "localhost:80"}}), 200);
}

TEST(RequestGuardTest, OtherNamesOfThisMachineAreRefused) {
  for (const char* host :
       {"evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:81",
        "localhost", "localhost.:80", "127.0.0.1:80.evil.example", "[::1]:80",
        "0.0.0.0:80", "127.1:80", ""}) {
    EXPECT_EQ(Api({}, host), 403) << host;
    EXPECT_EQ(StatusOf("GET", "/", {{"Host", host}}), 403) << host;
  }
  const auto refusal =
      WhyRefused({"GET", "/", {{"Host", "127.0.0.1:81"}}}, Rules());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_NE(refusal->message.find("127.0.0.1:80 and localhost:80"),
            std::string::npos);
  EXPECT_EQ(StatusOf("GET", "/", {}), 400);
  EXPECT_EQ(Api({{"Host", "127.0.0.1:80"}}), 400) << "two";
}

TEST(RequestGuardTest, APageByTlsHasAnOriginByTls) {
  GuardRules rules = Rules();
  rules.scheme = "https";
  const auto status = [&rules](const std::string& origin) {
    const auto refusal = WhyRefused(
        {"GET", "/", {{"Host", "127.0.0.1:80"}, {"Origin", origin}}}, rules);
    return refusal.has_value() ? refusal->status : 200;
  };
  EXPECT_EQ(status("https://127.0.0.1:80"), 200);
  EXPECT_EQ(status("http://127.0.0.1:80"), 403);
}

TEST(RequestGuardTest, OtherSitesAreRefused) {
  for (const char* origin :
       {"null", "http://evil.example", "https://127.0.0.1:80",
        "http://127.0.0.1", "http://127.0.0.1:81", "http://localhost:80", ""}) {
    EXPECT_EQ(Api({{"Origin", origin}}), 403) << origin;
  }
  for (const char* site : {"cross-site", "same-site", "whatever", ""})
    EXPECT_EQ(Api({{"Sec-Fetch-Site", site}}), 403) << site;
}

TEST(RequestGuardTest, ALinkElsewhereMayOpenThePageOnly) {
  const Fields link = {{"Host", "127.0.0.1:80"},
                       {"Sec-Fetch-Site", "cross-site"},
                       {"Sec-Fetch-Mode", "navigate"},
                       {"Sec-Fetch-Dest", "document"},
                       {"Content-Type", "application/json"},
                       {"Authorization", std::string("Bearer ") + kPageToken}};
  EXPECT_EQ(StatusOf("GET", "/", link), 200);
  EXPECT_EQ(StatusOf("POST", "/", link), 403);
  EXPECT_EQ(StatusOf("GET", "/api/v1/about", link), 403);
  Fields frame = link;
  frame[3].second = "iframe";
  EXPECT_EQ(StatusOf("GET", "/", frame), 403);
  Fields script = link;
  script[2].second = "no-cors";
  EXPECT_EQ(StatusOf("GET", "/assets/app.js", script), 403);
}

TEST(RequestGuardTest, TheApiWantsTheToken) {
  const std::string token = kPageToken;
  for (const std::string& value :
       {std::string(), std::string("Bearer "), token, "Basic " + token,
        "Bearer " + token.substr(0, 31), "Bearer " + token + "0",
        "Bearer " + std::string(32, '0')}) {
    EXPECT_EQ(StatusOf("GET", "/api/v1/about",
                       {{"Host", "127.0.0.1:80"}, {"Authorization", value}}),
              401)
        << value;
  }
  EXPECT_EQ(StatusOf("GET", "/api/v1/about", {{"Host", "127.0.0.1:80"}}), 401);
  EXPECT_EQ(Api({{"Authorization", "Bearer " + token}}), 401) << "two";
  GuardRules without = Rules();
  without.token = "";
  EXPECT_TRUE(
      WhyRefused({"GET",
                  "/api/v1/about",
                  {{"Host", "127.0.0.1:80"}, {"Authorization", "Bearer "}}},
                 without)
          .has_value());
}

TEST(RequestGuardTest, WhatAFormCouldSendIsRefused) {
  const std::string token = std::string("Bearer ") + kPageToken;
  for (const char* type : {"text/plain", "application/x-www-form-urlencoded",
                           "multipart/form-data", "application/jsonp", ""}) {
    EXPECT_EQ(StatusOf("POST", "/api/v1/x/y",
                       {{"Host", "127.0.0.1:80"},
                        {"Authorization", token},
                        {"Content-Type", type}}),
              415)
        << type;
  }
  EXPECT_EQ(StatusOf("POST", "/api/v1/x/y",
                     {{"Host", "127.0.0.1:80"},
                      {"Authorization", token},
                      {"Content-Type", "Application/JSON; charset=utf-8"}}),
            200);
  for (const char* method : {"PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT", ""})
    EXPECT_EQ(StatusOf(method, "/", {{"Host", "127.0.0.1:80"}}), 405) << method;
  EXPECT_EQ(StatusOf("GET", "http://127.0.0.1:80/", {{"Host", "127.0.0.1:80"}}),
            400);
}

}  // namespace
}  // namespace rankprobe
