// SPDX-License-Identifier: Apache-2.0
// Rule files: valid rules, and the errors for invalid ones.
#include "analysis/align/align_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rankprobe::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHead[] = R"(version: 1
tokens: {target: T.input.0, reference: R.input.0}
rules:
)";

std::string Fault(const std::string& rules) {
  const auto parsed = ParseAlignRules("r.yaml", absl::StrCat(kHead, rules));
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

TEST(AlignRulesTest, NamesArePutIn) {
  const auto rules = ParseAlignRules("r.yaml", absl::StrCat(kHead, R"(
- target: M.layers.0.norm.output.0
  reference: first
- target: M.layers.{layer}.qkv.output.0
  reference: ["M.{layer}.q.output.0", "M.{layer-1}.k.output.0"]
  concat: -1
)"));
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto match = rules->Find("M.layers.7.qkv.output.0");
  ASSERT_TRUE(match.has_value());
  EXPECT_THAT(match->reference,
              ElementsAre("M.7.q.output.0", "M.6.k.output.0"));
  EXPECT_EQ(match->rule->concat_dim, -1);
  EXPECT_EQ(rules->Find("M.layers.0.norm.output.0")->reference[0], "first");
  // No layer precedes the first, and {layer} matches one component of the name.
  EXPECT_FALSE(rules->Find("M.layers.0.qkv.output.0").has_value());
  EXPECT_FALSE(rules->Find("M.layers.1.2.qkv.output.0").has_value());
  EXPECT_FALSE(rules->Find("M.layers.7.qkv.output").has_value());
}

TEST(AlignRulesTest, FaultsNameTheLine) {
  EXPECT_EQ(Fault("- {target: a, refrence: b}"),
            "r.yaml: line 4: unknown key refrence; there are concat, dim0, "
            "reference, split, target, transpose");
  EXPECT_EQ(Fault("- {target: a, reference: b}\n- {target: a}"),
            "r.yaml: line 5: reference is missing");
  EXPECT_EQ(Fault("- {target: a, reference: [b, c]}"),
            "r.yaml: line 4: several reference rows and no concat");
  EXPECT_EQ(Fault("- {target: a, reference: b, concat: 0}"),
            "r.yaml: line 4: concat: there is one reference row only");
  EXPECT_EQ(Fault("- {target: a, reference: 'x.{layer}'}"),
            "r.yaml: line 4: {layer} is not in the target's name");
  EXPECT_EQ(
      Fault("- {target: a, reference: b, transpose: [0, 2]}"),
      "r.yaml: line 4: transpose: is not a permutation of the dimensions");
  EXPECT_EQ(Fault("- {target: a, reference: b, split: {part: 2, sizes: [1, "
                  "1]}}"),
            "r.yaml: line 4: part 2 of 2 sizes");
  EXPECT_EQ(Fault("- {target: a, reference: b, dim0: first}"),
            "r.yaml: line 4: dim0: expected tokens, last or none");
  EXPECT_THAT(Fault("- {target: a, reference: b\n"),
              StartsWith("r.yaml: line "));
  for (const char* const text :
       {"", "[]", "version: 2\n", "version: 1\nrules: []\n",
        "version: 1\ntokens: {target: a, reference: b}\nrules: {}\n"}) {
    EXPECT_FALSE(ParseAlignRules("r.yaml", text).ok()) << text;
  }
}

TEST(AlignRulesTest, TheRulesThatComeAlongAreReadByName) {
  const auto file_system = NewPosixFileSystem();
  for (const char* const name : {"vllm-llama", "vllm-qwen2", "vllm-mixtral"}) {
    const auto rules = ReadAlignRules(file_system.get(), name);
    ASSERT_TRUE(rules.ok()) << rules.status();
    const auto qkv = rules->Find(
        "Module.model.layers.31.self_attn.qkv_proj.QKVParallelLinear.forward.0."
        "output.0");
    ASSERT_TRUE(qkv.has_value()) << name;
    EXPECT_EQ(qkv->reference.size(), 3U);
  }
  EXPECT_THAT(ReadAlignRules(file_system.get(), "vllm-lama").status().message(),
              HasSubstr("vllm-llama, vllm-mixtral, vllm-qwen2"));
}

}  // namespace
}  // namespace rankprobe::analysis
