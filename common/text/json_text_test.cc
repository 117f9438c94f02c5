// SPDX-License-Identifier: Apache-2.0
#include "common/text/json_text.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/escaping.h"
#include "common/testing/source_tree.h"
#include "gtest/gtest.h"
#include "rapidjson/reader.h"
#include "rapidjson/stringbuffer.h"

namespace rankprobe {
namespace {

std::string ReadFile(const std::string& name) {
  std::ifstream file(testing::GoldenDir() + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Made by Python's json.dumps over bit patterns.
TEST(JsonTextTest, FloatsAreWhatPythonPrints) {
  std::istringstream lines(ReadFile("json_text/floats.txt"));
  std::string bits_text, expected;
  int count = 0;
  while (lines >> bits_text >> expected) {
    const uint64_t bits = std::stoull(bits_text, nullptr, 16);
    double value;
    std::memcpy(&value, &bits, 8);
    std::string got;
    AppendPythonFloat(value, &got);
    EXPECT_EQ(got, expected) << bits_text;
    ++count;
  }
  EXPECT_GT(count, 3000);
}

TEST(JsonTextTest, StringsAreWhatPythonPrints) {
  std::istringstream lines(ReadFile("json_text/strings.txt"));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    const size_t space = line.find(' ');
    std::string got;
    AppendJsonString(absl::HexStringToBytes(line.substr(0, space)), &got);
    EXPECT_EQ(got, line.substr(space + 1));
    ++count;
  }
  EXPECT_EQ(count, 10);
}

TEST(JsonTextTest, BrokenUtf8DoesNotBreakTheText) {
  std::string got;
  AppendJsonString("a\xff\xc3(\xe2\x82", &got);
  EXPECT_EQ(got, "\"a\\ufffd\\ufffd(\\ufffd\\ufffd\"");
}

TEST(JsonTextTest, EmptyContainersStayOnOneLine) {
  std::string out;
  JsonTextWriter writer(&out);
  writer.BeginObject();
  writer.Key("a");
  writer.BeginArray();
  writer.EndArray();
  writer.Key("b");
  writer.BeginObject();
  writer.EndObject();
  writer.Key("c");
  writer.BeginArray();
  writer.Int(-1);
  writer.Null();
  writer.EndArray();
  writer.EndObject();
  EXPECT_EQ(out,
            "{\n \"a\": [],\n \"b\": {},\n \"c\": [\n  -1,\n  null\n ]\n}");
}

// Renders what a parser reports, so that a whole golden file goes around.
struct Renderer : rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Renderer> {
  explicit Renderer(std::string* out) : writer(out) {}
  bool Null() { return writer.Null(), true; }
  bool Bool(bool b) { return writer.Bool(b), true; }
  // Every number comes as text: integers may be of any length.
  bool RawNumber(const char* s, rapidjson::SizeType n, bool) {
    const std::string text(s, n);
    if (text.find_first_of(".eE") == std::string::npos) {
      writer.Raw(text);
    } else {
      writer.Float(std::strtod(text.c_str(), nullptr));
    }
    return true;
  }
  bool Int(int v) { return writer.Int(v), true; }
  bool Uint(unsigned v) { return writer.Uint(v), true; }
  bool Int64(int64_t v) { return writer.Int(v), true; }
  bool Uint64(uint64_t v) { return writer.Uint(v), true; }
  bool Double(double v) { return writer.Float(v), true; }
  bool String(const char* s, rapidjson::SizeType n, bool) {
    return writer.String({s, n}), true;
  }
  bool Key(const char* s, rapidjson::SizeType n, bool) {
    return writer.Key({s, n}), true;
  }
  bool StartObject() { return writer.BeginObject(), true; }
  bool EndObject(rapidjson::SizeType) { return writer.EndObject(), true; }
  bool StartArray() { return writer.BeginArray(), true; }
  bool EndArray(rapidjson::SizeType) { return writer.EndArray(), true; }
  JsonTextWriter writer;
};

class GoldenRoundTrip : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenRoundTrip, IsByteExact) {
  const std::string text = ReadFile(std::string("dumps/") + GetParam());
  rapidjson::StringStream stream(text.c_str());
  rapidjson::Reader reader;
  std::string out;
  Renderer renderer(&out);
  constexpr unsigned kFlags =
      rapidjson::kParseNanAndInfFlag | rapidjson::kParseNumbersAsStringsFlag;
  ASSERT_TRUE(reader.Parse<kFlags>(stream, renderer));
  EXPECT_TRUE(out == text);
}

INSTANTIATE_TEST_SUITE_P(
    Files, GoldenRoundTrip,
    ::testing::Values("cnn_stat_mix/step0/proc27098/dump.json",
                      "cnn_stat_mix/step0/proc27098/stack.json",
                      "weird_stat_mix/step0/proc27105/dump.json",
                      "weird_stat_mix/step0/proc27105/construct.json"));

}  // namespace
}  // namespace rankprobe
