// SPDX-License-Identifier: Apache-2.0
#include "cli/client/request_tokens.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "cli/client/card_sections.h"
#include "common/base/status_macros.h"
#include "common/config/trigger_spec.h"
#include "common/detect/token_checks.h"
#include "common/records/request_names.h"
#include "common/text/counted.h"
#include "common/text/visible_text.h"
#include "dump_format/json_value.h"

namespace rankprobe {
namespace {

// By index: a request may have been written several times.
using Tokens = std::map<int64_t, RequestToken>;

struct OfRank {
  Tokens tokens;
  // Why they were written.
  std::string why;
};

// Adds tokens of the form [[index, id, log probability, entropy, step], ..].
void AddTokens(absl::string_view text, Tokens* tokens) {
  JsonDocument document;
  if (!document.Parse(std::string(text)).ok()) return;
  for (const JsonValue& item : document.root().items()) {
    std::vector<double> numbers;
    for (const JsonValue& number : item.items())
      numbers.push_back(number.number);
    if (numbers.size() != 5) continue;
    RequestToken token;
    token.index = static_cast<int64_t>(numbers[0]);
    token.id = static_cast<int64_t>(numbers[1]);
    token.logprob = numbers[2];
    token.entropy = numbers[3];
    token.step = static_cast<int64_t>(numbers[4]);
    tokens->insert_or_assign(token.index, token);
  }
}

void ReadTokens(const JsonValue& section, const std::string& request,
                OfRank* out) {
  for (const JsonMember& fact : section.fields()) {
    absl::string_view name = fact.key;
    if (!fact.value.is_string() || !absl::ConsumePrefix(&name, request) ||
        !absl::ConsumePrefix(&name, " "))
      continue;
    if (name == "why") {
      out->why = std::string(fact.value.text);
    } else {
      AddTokens(fact.value.text, &out->tokens);
    }
  }
}

// The tokens from the first one of the request on that follow each other, at
// most kMaxReferenceTokens.
std::vector<RequestToken> FirstTokens(const Tokens& tokens) {
  std::vector<RequestToken> run;
  for (const auto& [index, token] : tokens) {
    if (index != static_cast<int64_t>(run.size()) ||
        index == kMaxReferenceTokens)
      break;
    run.push_back(token);
  }
  return run;
}

// The newest tokens that follow each other.
std::vector<RequestToken> LastRun(const Tokens& tokens) {
  std::vector<RequestToken> run;
  for (const auto& [index, token] : tokens) {
    if (!run.empty() && index != run.back().index + 1) run.clear();
    run.push_back(token);
  }
  return run;
}

}  // namespace

absl::Status ReadReferenceTokens(FileSystem* file_system,
                                 const DumpLayout& layout,
                                 v1::TokenReference* reference) {
  // By rank and by the server's name of a request.
  std::map<std::pair<int64_t, std::string>, Tokens> requests;
  RP_RETURN_IF_ERROR(ReadCardSections(
      file_system, layout, kTokenRule,
      [&](const DumpPlace& place, const JsonValue& section) {
        const int64_t rank = place.process ? -1 : analysis::RankOf(place);
        for (const JsonMember& fact : section.fields()) {
          const size_t end = fact.key.rfind(' ');
          if (!fact.value.is_string() || end == absl::string_view::npos)
            continue;
          AddTokens(fact.value.text,
                    &requests[{rank, std::string(fact.key.substr(0, end))}]);
        }
      }));
  for (v1::TokenReference::Answer& answer : *reference->mutable_answers()) {
    if (!answer.ids().empty()) continue;
    // The same request may have been asked several times.
    std::vector<RequestToken> longest;
    for (const auto& [key, tokens] : requests) {
      if (key.second != answer.request() &&
          !IsRequestMadeOf(key.second, answer.request()))
        continue;
      std::vector<RequestToken> found = FirstTokens(tokens);
      if (found.size() > longest.size()) longest = std::move(found);
    }
    if (longest.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "the reference has no tokens of request \"",
          VisibleText(answer.request()), "\": `rankprobe flag ",
          VisibleText(answer.request()),
          "` writes those that the server's flight recorder has in memory"));
    }
    for (const RequestToken& token : longest) {
      answer.add_ids(token.id);
      answer.add_logprobs(token.logprob);
    }
  }
  return absl::OkStatus();
}

absl::Status DiagnoseTokens(FileSystem* file_system, const DumpLayout& layout,
                            const std::string& request,
                            DiagnosisReport* report) {
  std::map<int64_t, OfRank> ranks;
  RP_RETURN_IF_ERROR(ReadCardSections(
      file_system, layout, kTokenRule,
      [&](const DumpPlace& place, const JsonValue& section) {
        ReadTokens(section, request,
                   &ranks[place.process ? -1 : analysis::RankOf(place)]);
      }));
  std::erase_if(ranks,
                [](const auto& one) { return one.second.tokens.empty(); });
  if (ranks.empty()) {
    report->Unjudged(
        "log probability and entropy of its tokens: the flight recorder of "
        "tokens was off, or neither a rule nor a user named the request",
        "rankprobe triggers set FILE, then rankprobe flag REQUEST");
    return absl::OkStatus();
  }
  for (const auto& [rank, of_rank] : ranks) {
    const std::vector<RequestToken> tokens = LastRun(of_rank.tokens);
    const std::string scope = absl::StrCat("tokens ", tokens.front().index,
                                           " to ", tokens.back().index);
    report->Note(absl::StrCat("Log probability and entropy of ", scope, ": ",
                              VisibleText(of_rank.why)));
    const int before = report->findings();
    for (const TokenCheck& check : UsualTokenChecks()) {
      const std::optional<TokenFinding> found =
          FirstTokenFinding(check, tokens);
      if (!found.has_value()) continue;
      report->Add(kTokenRule, found->step, rank,
                  absl::StrCat("token ", found->first), found->text,
                  /*exact=*/found->is_nan);
    }
    if (report->findings() > before) continue;
    if (absl::StartsWith(of_rank.why, "rule ")) {
      // Its bounds are the user's.
      report->Add(kTokenRule, tokens.back().step, rank, scope,
                  VisibleText(of_rank.why), /*exact=*/false);
    } else {
      report->Healthy(absl::StrCat("log probability and entropy of ", scope,
                                   ": no NaN, no break, no repetition"));
    }
  }
  return absl::OkStatus();
}

}  // namespace rankprobe
