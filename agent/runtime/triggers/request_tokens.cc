// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/request_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/records/request_names.h"
#include "common/text/counted.h"

namespace rankprobe {
namespace {

constexpr char kSection[] = "tokens";
// As many as fit into one fact (common/base/limits.h).
constexpr size_t kTokensOfFact = 40;
constexpr size_t kMaxWanted = 64;
constexpr size_t kMaxNamed = 8;

v1::RunFact TokenFact(std::string name, std::string value) {
  v1::RunFact fact;
  fact.set_section(kSection);
  fact.set_name(std::move(name));
  fact.set_value(std::move(value));
  return fact;
}

// NaN as Python's json writes it.
std::string TokenNumber(double number) {
  return number != number ? "NaN" : absl::StrFormat("%.6g", number);
}

}  // namespace

void RequestTokens::SetLimits(size_t requests, size_t tokens) {
  max_requests_ = requests;
  max_tokens_ = tokens;
  if (tokens == 0) requests_.clear();
  while (requests_.size() > max_requests_) DropOldest();
}

absl::Span<const RequestToken> RequestTokens::Of(const Kept& kept) const {
  const absl::Span<const RequestToken> all = kept.tokens;
  return all.last(std::min(all.size(), max_tokens_));
}

void RequestTokens::DropOldest() {
  const auto oldest = std::min_element(
      requests_.begin(), requests_.end(), [](const auto& a, const auto& b) {
        return a.second.newest < b.second.newest;
      });
  requests_.erase(oldest);
}

absl::Span<const RequestToken> RequestTokens::Add(const std::string& request,
                                                  const RequestToken& token) {
  if (max_tokens_ == 0 || max_requests_ == 0) return {};
  auto it = requests_.find(request);
  if (it == requests_.end()) {
    if (requests_.size() == max_requests_) DropOldest();
    it = requests_.try_emplace(request).first;
  }
  std::vector<RequestToken>& tokens = it->second.tokens;
  it->second.newest = ++count_;
  // Dropping half at a time keeps the tokens contiguous at a constant cost.
  if (tokens.size() >= 2 * max_tokens_)
    tokens.erase(tokens.begin(),
                 tokens.begin() + static_cast<ptrdiff_t>(max_tokens_));
  tokens.push_back(token);
  return Of(it->second);
}

void RequestTokens::Want(const std::string& request, std::string why) {
  if (wanted_.size() < kMaxWanted) wanted_[request] = std::move(why);
}

v1::RequestFlagged RequestTokens::Flag(const std::string& name) {
  v1::RequestFlagged answer;
  answer.set_request(name);
  answer.set_step(-1);
  std::vector<std::string> found;
  for (const auto& [request, kept] : requests_) {
    if (request != name && !IsRequestMadeOf(request, name)) continue;
    Want(request, "flagged by a user");
    answer.set_step(std::max(answer.step(), kept.tokens.back().step));
    found.push_back(
        absl::StrCat(request, ": ", Counted(Of(kept).size(), "token")));
  }
  if (!found.empty()) {
    if (found.size() > kMaxNamed) found.resize(kMaxNamed);
    answer.set_detail(absl::StrJoin(found, ", "));
    return answer;
  }
  if (max_tokens_ == 0) {
    answer.set_detail("no tokens of requests are kept (flight.tokens)");
    return answer;
  }
  // The newest ones are what a user can still mean.
  std::vector<std::pair<uint64_t, std::string>> others;
  for (const auto& [request, kept] : requests_)
    others.emplace_back(kept.newest, request);
  std::sort(others.rbegin(), others.rend());
  if (others.size() > kMaxNamed) others.resize(kMaxNamed);
  answer.set_detail(absl::StrCat(
      "no such request: ",
      requests_.empty()
          ? "there was none yet"
          : absl::StrCat(Counted(requests_.size(), "request"),
                         " in memory, the newest are ",
                         absl::StrJoin(others, ", ",
                                       [](std::string* out, const auto& one) {
                                         absl::StrAppend(out, one.second);
                                       }))));
  return answer;
}

std::vector<RequestTokens::Wanted> RequestTokens::TakeWanted() {
  std::vector<Wanted> all;
  for (const auto& [request, why] : wanted_) {
    const auto it = requests_.find(request);
    if (it == requests_.end()) continue;
    absl::Span<const RequestToken> rest = Of(it->second);
    Wanted& wanted = all.emplace_back();
    wanted.step = rest.back().step;
    wanted.facts.push_back(TokenFact(absl::StrCat(request, " why"), why));
    while (!rest.empty()) {
      const absl::Span<const RequestToken> some =
          rest.first(std::min(rest.size(), kTokensOfFact));
      rest.remove_prefix(some.size());
      std::string text;
      for (const RequestToken& token : some) {
        absl::StrAppend(&text, text.empty() ? "[" : ", ", "[", token.index,
                        ", ", token.id, ", ", TokenNumber(token.logprob), ", ",
                        TokenNumber(token.entropy), ", ", token.step, "]");
      }
      wanted.facts.push_back(
          TokenFact(absl::StrFormat("%s %06d", request, some.front().index),
                    absl::StrCat(text, "]")));
    }
  }
  wanted_.clear();
  return all;
}

}  // namespace rankprobe
