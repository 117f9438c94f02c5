// SPDX-License-Identifier: Apache-2.0
// Checks of the tokens that a server chose for one request: NaN, entropy and
// log probability off their bounds, off the request's own mean or off those of
// a reference, repetition.
// The triggers of a rank and `rankprobe diagnose` use them, so that both report
// the same. Pure functions.
#ifndef RANKPROBE_COMMON_DETECT_TOKEN_CHECKS_H_
#define RANKPROBE_COMMON_DETECT_TOKEN_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace rankprobe {

struct RequestToken {
  // Among the tokens generated for the request, from 0.
  int64_t index = 0;
  // The number of the token in the vocabulary.
  int64_t id = 0;
  // Of the token, and of the logits it was chosen from, in nats.
  double logprob = 0;
  double entropy = 0;
  // The step that computed it.
  int64_t step = 0;
};

// Tokens of a reference, from the first one on; as many ids as logprobs.
struct TokenAnswer {
  // The request, as its client calls it.
  std::string request;
  std::vector<int64_t> ids;
  std::vector<double> logprobs;
};

struct TokenCheck {
  enum class Kind { kNan, kEntropy, kLogprob, kRepeat, kReference };
  Kind kind = Kind::kNan;
  // kEntropy, kLogprob: see TokenBound of triggers.proto, which has the
  // defaults. kReference: see TokenReference, whose default of `above` is set.
  std::optional<double> above, below;
  double deviations = 0;
  size_t tokens = 1;
  // kRepeat: see TokenRepeat.
  size_t length = 8;
  size_t times = 8;
  std::vector<TokenAnswer> answers;
};

struct TokenFinding {
  // The first token that is part of it.
  int64_t first = 0;
  int64_t step = 0;
  // "token 37: log probability NaN", for a person.
  std::string text;
  bool is_nan = false;
};

// Returns what the check finds at the last of these tokens, which follow each
// other. `answer`: that of the request, for kReference.
std::optional<TokenFinding> CheckLastToken(
    const TokenCheck& check, absl::Span<const RequestToken> tokens,
    const TokenAnswer* answer = nullptr);

// Returns the first finding of the check in these tokens.
std::optional<TokenFinding> FirstTokenFinding(
    const TokenCheck& check, absl::Span<const RequestToken> tokens);

// Returns the checks of `rankprobe diagnose`, which need no bound.
std::vector<TokenCheck> UsualTokenChecks();

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_DETECT_TOKEN_CHECKS_H_
