// SPDX-License-Identifier: Apache-2.0
#include "common/detect/token_checks.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rankprobe {
namespace {

// Tokens that a request's own mean is computed from, and the minimum.
constexpr size_t kOwnTokens = 256;
constexpr size_t kLeastOwnTokens = 16;
// A greedy request has log probabilities that hardly differ.
constexpr double kLeastSpread = 0.1;

struct Own {
  double mean = 0;
  double deviation = 0;
};

double NumberOf(const RequestToken& token, TokenCheck::Kind kind) {
  return kind == TokenCheck::Kind::kEntropy ? token.entropy : token.logprob;
}

std::optional<Own> OwnOf(TokenCheck::Kind kind,
                         absl::Span<const RequestToken> tokens) {
  if (tokens.size() > kOwnTokens)
    tokens.remove_prefix(tokens.size() - kOwnTokens);
  double sum = 0;
  double squares = 0;
  size_t count = 0;
  for (const RequestToken& token : tokens) {
    const double number = NumberOf(token, kind);
    if (!std::isfinite(number)) continue;
    sum += number;
    squares += number * number;
    ++count;
  }
  if (count < kLeastOwnTokens) return std::nullopt;
  const double mean = sum / static_cast<double>(count);
  const double variance = squares / static_cast<double>(count) - mean * mean;
  return Own{mean, std::max(std::sqrt(std::max(variance, 0.0)), kLeastSpread)};
}

// Returns "token 37" or "tokens 37 to 44".
std::string TokensText(const RequestToken& first, const RequestToken& last) {
  return first.index == last.index
             ? absl::StrCat("token ", first.index)
             : absl::StrCat("tokens ", first.index, " to ", last.index);
}

std::optional<TokenFinding> CheckNan(const RequestToken& last) {
  const bool logprob = std::isnan(last.logprob);
  if (!logprob && !std::isnan(last.entropy)) return std::nullopt;
  return TokenFinding{
      last.index, last.step,
      absl::StrCat("token ", last.index, ": ",
                   logprob ? "log probability" : "entropy", " NaN"),
      /*is_nan=*/true};
}

std::optional<TokenFinding> CheckBound(const TokenCheck& check,
                                       absl::Span<const RequestToken> tokens) {
  if (tokens.size() < check.tokens) return std::nullopt;
  const absl::Span<const RequestToken> judged =
      tokens.last(std::max<size_t>(check.tokens, 1));
  const bool entropy = check.kind == TokenCheck::Kind::kEntropy;
  const auto all = [&](auto is_off) {
    return std::all_of(judged.begin(), judged.end(),
                       [&](const RequestToken& token) {
                         return is_off(NumberOf(token, check.kind));
                       });
  };
  std::string why;
  if (check.below.has_value() &&
      all([&](double number) { return number < *check.below; })) {
    why = absl::StrFormat("below %g", *check.below);
  } else if (check.above.has_value() &&
             all([&](double number) { return number > *check.above; })) {
    why = absl::StrFormat("above %g", *check.above);
  } else if (check.deviations > 0) {
    const std::optional<Own> own =
        OwnOf(check.kind, tokens.first(tokens.size() - judged.size()));
    if (!own.has_value()) return std::nullopt;
    const double distance = check.deviations * own->deviation;
    const bool off =
        all([&](double number) { return number < own->mean - distance; }) ||
        (entropy &&
         all([&](double number) { return number > own->mean + distance; }));
    if (!off) return std::nullopt;
    why = absl::StrFormat(
        "the request's mean before is %.4g, its deviation "
        "%.2g",
        own->mean, own->deviation);
  }
  if (why.empty()) return std::nullopt;
  return TokenFinding{
      judged.front().index, judged.front().step,
      absl::StrFormat("%s: %s %.4g, %s",
                      TokensText(judged.front(), judged.back()),
                      entropy ? "entropy" : "log probability",
                      NumberOf(judged.back(), check.kind), why)};
}

std::optional<TokenFinding> CheckRepeat(const TokenCheck& check,
                                        absl::Span<const RequestToken> tokens) {
  for (size_t length = 1; length <= check.length; ++length) {
    const size_t needed = length * check.times;
    if (needed > tokens.size()) return std::nullopt;
    size_t equal = 0;
    while (equal < needed - length &&
           tokens[tokens.size() - 1 - equal].id ==
               tokens[tokens.size() - 1 - equal - length].id)
      ++equal;
    if (equal < needed - length) continue;
    const RequestToken& first = tokens[tokens.size() - needed];
    return TokenFinding{
        first.index, first.step,
        absl::StrFormat("%s: the same %d %s %d times",
                        TokensText(first, tokens.back()), length,
                        length == 1 ? "token" : "tokens", check.times)};
  }
  return std::nullopt;
}

std::optional<TokenFinding> CheckReference(
    double distance, absl::Span<const RequestToken> tokens,
    const TokenAnswer& answer) {
  const RequestToken& last = tokens.back();
  // Numbers behind another token, or behind tokens that are no longer in
  // memory, cannot be compared.
  if (tokens.front().index != 0 || tokens.size() > answer.ids.size() ||
      tokens.size() > answer.logprobs.size() ||
      !std::equal(
          tokens.begin(), std::prev(tokens.end()), answer.ids.begin(),
          [](const RequestToken& token, int64_t id) { return token.id == id; }))
    return std::nullopt;
  const double expected = answer.logprobs[tokens.size() - 1];
  if (std::abs(last.logprob - expected) <= distance) return std::nullopt;
  return TokenFinding{
      last.index, last.step,
      absl::StrFormat("token %d: log probability %.4g, %.4g in the reference",
                      last.index, last.logprob, expected)};
}

}  // namespace

std::optional<TokenFinding> CheckLastToken(
    const TokenCheck& check, absl::Span<const RequestToken> tokens,
    const TokenAnswer* answer) {
  if (tokens.empty()) return std::nullopt;
  switch (check.kind) {
    case TokenCheck::Kind::kNan:
      return CheckNan(tokens.back());
    case TokenCheck::Kind::kEntropy:
    case TokenCheck::Kind::kLogprob:
      return CheckBound(check, tokens);
    case TokenCheck::Kind::kRepeat:
      return CheckRepeat(check, tokens);
    case TokenCheck::Kind::kReference:
      if (answer == nullptr || !check.above.has_value()) return std::nullopt;
      return CheckReference(*check.above, tokens, *answer);
  }
  return std::nullopt;
}

std::vector<TokenCheck> UsualTokenChecks() {
  TokenCheck nan;
  TokenCheck entropy;
  entropy.kind = TokenCheck::Kind::kEntropy;
  // An entropy cannot fall below 0, which is a few deviations from its mean.
  entropy.deviations = 4;
  entropy.tokens = 8;
  TokenCheck logprob;
  logprob.kind = TokenCheck::Kind::kLogprob;
  logprob.deviations = 8;
  TokenCheck repeat;
  repeat.kind = TokenCheck::Kind::kRepeat;
  return {nan, entropy, logprob, repeat};
}

std::optional<TokenFinding> FirstTokenFinding(
    const TokenCheck& check, absl::Span<const RequestToken> tokens) {
  for (size_t count = 1; count <= tokens.size(); ++count) {
    std::optional<TokenFinding> found =
        CheckLastToken(check, tokens.first(count));
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

}  // namespace rankprobe
