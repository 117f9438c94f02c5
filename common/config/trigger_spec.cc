// SPDX-License-Identifier: Apache-2.0
#include "common/config/trigger_spec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/config/config_reader.h"
#include "common/detect/course.h"
#include "common/text/nearest.h"
#include "common/text/visible_text.h"

namespace rankprobe {
namespace {

constexpr int kMaxRules = 64;
constexpr size_t kMaxNameBytes = 64;
constexpr uint32_t kMaxFlightSteps = 1000;
constexpr uint64_t kMaxFlightBytes = uint64_t{4} << 30;
constexpr int64_t kMaxRaisedSteps = 1000;
constexpr uint32_t kMaxWindow = 1000;
constexpr uint32_t kMaxVanishedValues = 1000000;
constexpr size_t kMaxJsonBytes = 1 << 20;
constexpr uint32_t kMaxFlightTokens = 16384;
constexpr uint32_t kMaxFlightRequests = 4096;
constexpr uint32_t kMaxTokensInARow = 1024;
constexpr uint32_t kMaxRepeatedLength = 256;
constexpr int kMaxAnswers = 64;
constexpr size_t kMaxRequestBytes = 256;
constexpr double kReferenceDistance = 0.5;
// The flight recorder's level that keeps no statistics.
constexpr absl::string_view kTokensLevel = "tokens";

bool LegalLevel(const std::string& level) {
  return level.empty() || level == "L0" || level == "L1" || level == "mix";
}

class Checker {
 public:
  absl::Status Check(const v1::TriggerSpec& spec) {
    const v1::FlightSpec& flight = spec.flight();
    if (flight.steps() > kMaxFlightSteps)
      Fault("flight.steps", flight.steps(), "0 .. 1000");
    if (flight.max_bytes() > kMaxFlightBytes)
      Fault("flight.max_bytes", flight.max_bytes(), "0 .. 4 GiB");
    if (flight.level() != kTokensLevel && !LegalLevel(flight.level()))
      Fault("flight.level", flight.level().substr(0, 64),
            "one of L0, L1, mix, tokens");
    if (flight.tokens() > kMaxFlightTokens)
      Fault("flight.tokens", flight.tokens(), "0 .. 16384");
    if (flight.requests() > kMaxFlightRequests)
      Fault("flight.requests", flight.requests(), "0 .. 4096");
    if (spec.rules_size() > kMaxRules)
      Fault("rules", spec.rules_size(), "at most 64 rules");
    std::set<std::string> names;
    for (int i = 0; i < spec.rules_size() && i < kMaxRules; ++i)
      CheckRule(absl::StrCat("rules[", i, "]"), spec.rules(i), &names);
    if (!(spec.budget().ms_per_step() >= 0) ||
        std::isinf(spec.budget().ms_per_step()))
      Fault("budget.ms_per_step", spec.budget().ms_per_step(),
            "0 or a positive number");
    return faults_.ToStatus();
  }

 private:
  template <typename Value>
  void Fault(const std::string& field, const Value& value, const char* legal) {
    faults_.Add(field, absl::StrCat(value), legal);
  }

  void CheckLevel(const std::string& field, const std::string& level) {
    if (!LegalLevel(level))
      Fault(field, level.substr(0, 64), "one of L0, L1, mix");
  }

  void CheckRule(const std::string& at, const v1::TriggerRule& rule,
                 std::set<std::string>* names) {
    if (rule.name().empty() || rule.name().size() > kMaxNameBytes) {
      Fault(absl::StrCat(at, ".name"), rule.name().substr(0, 64),
            "1 to 64 bytes");
    } else if (!names->insert(rule.name()).second) {
      Fault(absl::StrCat(at, ".name"), rule.name(), "a name of its own");
    }
    switch (rule.condition_case()) {
      case v1::TriggerRule::kNormJump:
        if (!(rule.norm_jump().factor() > 1))
          Fault(absl::StrCat(at, ".norm_jump.factor"),
                rule.norm_jump().factor(), "a number above 1");
        break;
      case v1::TriggerRule::kLoss:
        if (!rule.loss().has_above() && !rule.loss().has_below() &&
            !rule.loss().non_finite())
          Fault(absl::StrCat(at, ".loss"), "no bound",
                "one or more of above, below, non_finite");
        break;
      case v1::TriggerRule::kSilence:
        if (rule.silence().after_ms() < 100)
          Fault(absl::StrCat(at, ".silence.after_ms"),
                rule.silence().after_ms(), "at least 100");
        break;
      case v1::TriggerRule::kMove:
        CheckMove(absl::StrCat(at, ".move"), rule.move());
        break;
      case v1::TriggerRule::kVanished:
        if (rule.vanished().values() > kMaxVanishedValues)
          Fault(absl::StrCat(at, ".vanished.values"), rule.vanished().values(),
                "0 .. 1000000");
        break;
      case v1::TriggerRule::CONDITION_NOT_SET:
        Fault(absl::StrCat(at, ".condition"), "absent",
              "one of non_finite, norm_jump, loss, silence, replica, move, "
              "vanished, token_nan, token_entropy, token_logprob, "
              "token_repeat, token_reference");
        break;
      default:
        CheckTokens(at, rule);
        break;
    }
    if (!v1::TriggerRule::Evidence_IsValid(rule.raise_to()))
      Fault(absl::StrCat(at, ".raise_to"), static_cast<int>(rule.raise_to()),
            "an EVIDENCE_ name");
    CheckLevel(absl::StrCat(at, ".level"), rule.level());
    if (rule.for_steps() < 0 || rule.for_steps() > kMaxRaisedSteps)
      Fault(absl::StrCat(at, ".for_steps"), rule.for_steps(), "0 .. 1000");
    if (rule.cool_down_ms() < 0)
      Fault(absl::StrCat(at, ".cool_down_ms"), rule.cool_down_ms(),
            "0 or more");
  }

  // 0 means the default.
  void CheckMove(const std::string& at, const v1::Move& move) {
    if (!v1::Move::Statistic_IsValid(move.statistic()))
      Fault(absl::StrCat(at, ".statistic"), static_cast<int>(move.statistic()),
            "a STATISTIC_ name");
    if (move.window() == 1 || move.window() > kMaxWindow)
      Fault(absl::StrCat(at, ".window"), move.window(), "2 .. 1000");
    if (!(move.deviations() >= 0) || std::isinf(move.deviations()))
      Fault(absl::StrCat(at, ".deviations"), move.deviations(),
            "a positive number");
    if (move.factor() != 0 &&
        (!(move.factor() > 1) || std::isinf(move.factor())))
      Fault(absl::StrCat(at, ".factor"), move.factor(), "a number above 1");
  }

  void CheckTokens(const std::string& at, const v1::TriggerRule& rule) {
    if (rule.has_token_entropy())
      CheckBound(absl::StrCat(at, ".token_entropy"), rule.token_entropy());
    if (rule.has_token_logprob())
      CheckBound(absl::StrCat(at, ".token_logprob"), rule.token_logprob());
    if (rule.has_token_reference()) {
      CheckReference(absl::StrCat(at, ".token_reference"),
                     rule.token_reference());
    }
    const v1::TokenRepeat& repeat = rule.token_repeat();
    if (repeat.length() > kMaxRepeatedLength)
      Fault(absl::StrCat(at, ".token_repeat.length"), repeat.length(),
            "0 .. 256");
    if (repeat.times() == 1 || repeat.times() > kMaxTokensInARow)
      Fault(absl::StrCat(at, ".token_repeat.times"), repeat.times(),
            "2 .. 1024");
  }

  void CheckBound(const std::string& at, const v1::TokenBound& bound) {
    if (!(bound.deviations() >= 0) || std::isinf(bound.deviations()))
      Fault(absl::StrCat(at, ".deviations"), bound.deviations(),
            "a positive number");
    if (!bound.has_above() && !bound.has_below() && bound.deviations() == 0)
      Fault(at, "no bound", "one or more of above, below, deviations");
    if (bound.tokens() > kMaxTokensInARow)
      Fault(absl::StrCat(at, ".tokens"), bound.tokens(), "0 .. 1024");
  }

  void CheckReference(const std::string& at,
                      const v1::TokenReference& reference) {
    if (!(reference.above() >= 0) || std::isinf(reference.above()))
      Fault(absl::StrCat(at, ".above"), reference.above(), "a positive number");
    if (reference.answers().empty() || reference.answers_size() > kMaxAnswers)
      Fault(absl::StrCat(at, ".answers"), reference.answers_size(),
            "1 .. 64 answers");
    for (int i = 0; i < std::min(reference.answers_size(), kMaxAnswers); ++i) {
      const v1::TokenReference::Answer& answer = reference.answers(i);
      const std::string where = absl::StrCat(at, ".answers[", i, "]");
      if (answer.request().empty() ||
          answer.request().size() > kMaxRequestBytes)
        Fault(absl::StrCat(where, ".request"), answer.request().substr(0, 64),
              "1 to 256 bytes");
      if (answer.ids().empty() || answer.ids_size() > kMaxReferenceTokens)
        Fault(absl::StrCat(where, ".ids"), answer.ids_size(),
              "1 .. 1024 tokens, which `triggers set --reference DUMP` reads");
      if (answer.ids_size() != answer.logprobs_size())
        Fault(absl::StrCat(where, ".logprobs"), answer.logprobs_size(),
              "as many numbers as ids");
      if (!std::all_of(answer.logprobs().begin(), answer.logprobs().end(),
                       [](double number) { return std::isfinite(number); }))
        Fault(absl::StrCat(where, ".logprobs"), "NaN or infinite",
              "finite numbers, of a sound server");
    }
  }

  ConfigFaults faults_;
};

void FillMove(v1::Move* move) {
  const CourseOptions usual;
  if (move->statistic() == v1::Move::STATISTIC_UNSPECIFIED)
    move->set_statistic(v1::Move::STATISTIC_NORM);
  if (move->window() == 0)
    move->set_window(static_cast<uint32_t>(usual.window));
  if (move->deviations() == 0) move->set_deviations(usual.deviations);
  if (move->factor() == 0) move->set_factor(usual.factor);
}

void FillTokens(v1::TriggerRule* rule) {
  if (rule->has_token_entropy() && rule->token_entropy().tokens() == 0)
    rule->mutable_token_entropy()->set_tokens(8);
  if (rule->has_token_logprob() && rule->token_logprob().tokens() == 0)
    rule->mutable_token_logprob()->set_tokens(1);
  if (rule->has_token_repeat() && rule->token_repeat().length() == 0)
    rule->mutable_token_repeat()->set_length(8);
  if (rule->has_token_repeat() && rule->token_repeat().times() == 0)
    rule->mutable_token_repeat()->set_times(8);
  if (rule->has_token_reference() && rule->token_reference().above() == 0)
    rule->mutable_token_reference()->set_above(kReferenceDistance);
}

}  // namespace

absl::Status CheckTriggerSpec(const v1::TriggerSpec& untrusted) {
  return Checker().Check(untrusted);
}

v1::TriggerSpec WithDefaults(v1::TriggerSpec spec) {
  v1::FlightSpec& flight = *spec.mutable_flight();
  if (flight.level().empty()) flight.set_level("L0");
  if (flight.max_bytes() == 0) flight.set_max_bytes(16 << 20);
  if (flight.requests() == 0) flight.set_requests(256);
  const bool checks_tokens = std::any_of(
      spec.rules().begin(), spec.rules().end(),
      [](const auto& rule) { return TokenCheckOf(rule).has_value(); });
  if (flight.tokens() == 0 && checks_tokens) flight.set_tokens(1024);
  for (v1::TriggerRule& rule : *spec.mutable_rules()) {
    FillTokens(&rule);
    if (rule.raise_to() == v1::TriggerRule::EVIDENCE_UNSPECIFIED)
      rule.set_raise_to(v1::TriggerRule::EVIDENCE_TENSORS);
    if (rule.level().empty()) rule.set_level("mix");
    if (rule.for_steps() == 0) rule.set_for_steps(2);
    if (rule.cool_down_ms() == 0) rule.set_cool_down_ms(60000);
    if (rule.max_fires() == 0) rule.set_max_fires(10);
    if (rule.has_norm_jump() && rule.norm_jump().warmup() == 0)
      rule.mutable_norm_jump()->set_warmup(5);
    if (rule.has_move()) FillMove(rule.mutable_move());
    if (rule.has_vanished() && rule.vanished().values() == 0)
      rule.mutable_vanished()->set_values(
          static_cast<uint32_t>(CourseOptions().least));
  }
  return spec;
}

namespace {

void AddKeys(const google::protobuf::Descriptor& type,
             std::vector<std::string>* keys) {
  for (int i = 0; i < type.field_count(); ++i) {
    keys->push_back(type.field(i)->name());
    if (const auto* const inner = type.field(i)->message_type())
      AddKeys(*inner, keys);
  }
}

// The parser's message is "(rules[0].non_finite) nan_onyl: Cannot find field."
// for an unknown key; of others, the first line says what is wrong.
std::string WhyNotParsed(absl::string_view message) {
  message = message.substr(0, message.find('\n'));
  if (!absl::ConsumeSuffix(&message, ": Cannot find field."))
    return absl::StrCat("not a trigger spec: ", message);
  std::vector<std::string> keys;
  AddKeys(*v1::TriggerSpec::descriptor(), &keys);
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(message, absl::MaxSplits(' ', 1));
  const bool is_inside = !parts.second.empty();
  const absl::string_view key = is_inside ? parts.second : parts.first;
  return absl::StrCat("unknown key ", key, is_inside ? " in " : "",
                      is_inside ? parts.first : "", DidYouMean(key, keys));
}

}  // namespace

absl::StatusOr<v1::TriggerSpec> ParseTriggerSpec(
    absl::string_view json,
    const std::function<absl::Status(v1::TriggerSpec*)>& complete) {
  if (json.size() > kMaxJsonBytes)
    return absl::InvalidArgumentError("over 1 MiB of JSON");
  v1::TriggerSpec spec;
  const auto status = google::protobuf::util::JsonStringToMessage(
      std::string(json), &spec, google::protobuf::util::JsonParseOptions());
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        VisibleText(WhyNotParsed(std::string(status.message()))));
  }
  if (complete != nullptr) RP_RETURN_IF_ERROR(complete(&spec));
  RP_RETURN_IF_ERROR(CheckTriggerSpec(spec));
  return spec;
}

std::string TriggerSpecToJson(const v1::TriggerSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(spec, &text, options).ok())
    return "{}";
  return text;
}

std::string FlightConfigJson(const v1::FlightSpec& flight) {
  std::string level = flight.level().empty() ? "L0" : flight.level();
  // At level debug no call is hooked, which keeps a step of a server cheap.
  if (level == kTokensLevel) level = "debug";
  return absl::StrCat(
      R"({"task": "statistics", "dump_path": "./flight", "rank": [], )",
      R"("step": [], "level": ")", level, R"("})");
}

std::string RaisedConfigJson(const v1::TriggerRule& rule) {
  const std::string level = rule.level().empty() ? "mix" : rule.level();
  const bool tensors = rule.raise_to() == v1::TriggerRule::EVIDENCE_TENSORS ||
                       rule.raise_to() == v1::TriggerRule::EVIDENCE_UNSPECIFIED;
  const bool digest = rule.raise_to() == v1::TriggerRule::EVIDENCE_DIGEST;
  return absl::StrCat(
      R"({"task": ")", tensors ? "tensor" : "statistics",
      R"(", "dump_path": "./trigger", "rank": [], "step": [], "level": ")",
      level, R"(", "risk_level": "ALL", ")", tensors ? "tensor" : "statistics",
      R"(": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": ")",
      digest ? "xor" : "statistics", R"("}})");
}

std::optional<TokenCheck> TokenCheckOf(const v1::TriggerRule& rule) {
  TokenCheck check;
  const auto take = [&check](const v1::TokenBound& bound) {
    if (bound.has_above()) check.above = bound.above();
    if (bound.has_below()) check.below = bound.below();
    check.deviations = bound.deviations();
    check.tokens = bound.tokens();
  };
  switch (rule.condition_case()) {
    case v1::TriggerRule::kTokenNan:
      check.kind = TokenCheck::Kind::kNan;
      return check;
    case v1::TriggerRule::kTokenEntropy:
      check.kind = TokenCheck::Kind::kEntropy;
      take(rule.token_entropy());
      return check;
    case v1::TriggerRule::kTokenLogprob:
      check.kind = TokenCheck::Kind::kLogprob;
      take(rule.token_logprob());
      return check;
    case v1::TriggerRule::kTokenRepeat:
      check.kind = TokenCheck::Kind::kRepeat;
      check.length = rule.token_repeat().length();
      check.times = rule.token_repeat().times();
      return check;
    case v1::TriggerRule::kTokenReference:
      check.kind = TokenCheck::Kind::kReference;
      check.above = rule.token_reference().above();
      for (const auto& answer : rule.token_reference().answers()) {
        check.answers.push_back(
            {answer.request(),
             {answer.ids().begin(), answer.ids().end()},
             {answer.logprobs().begin(), answer.logprobs().end()}});
      }
      return check;
    default:
      return std::nullopt;
  }
}

absl::string_view EvidenceName(v1::TriggerRule::Evidence evidence) {
  switch (evidence) {
    case v1::TriggerRule::EVIDENCE_NONE:
      return "nothing";
    case v1::TriggerRule::EVIDENCE_DIGEST:
      return "checksums";
    case v1::TriggerRule::EVIDENCE_STATISTICS:
      return "statistics";
    default:
      return "tensors";
  }
}

}  // namespace rankprobe
