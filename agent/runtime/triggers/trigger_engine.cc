// SPDX-License-Identifier: Apache-2.0
#include "agent/runtime/triggers/trigger_engine.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/trigger_spec.h"
#include "common/records/call_values.h"
#include "common/records/request_names.h"
#include "common/records/unwritten.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxHistories = 65536;
// Weight of the newest value in a norm's running mean.
constexpr double kNewest = 0.2;

const char* SectionName(CallSection section) {
  switch (section) {
    case CallSection::kInputArgs:
      return "input";
    case CallSection::kInputKwargs:
      return "keyword";
    case CallSection::kOutput:
      return "output";
    case CallSection::kParameters:
      return "parameter";
    case CallSection::kInput:
    case CallSection::kGradients:
      return "gradient";
    case CallSection::kDebug:
      break;
  }
  return "value";
}

// Returns the reference of a request, or nullptr if it has none.
const TokenAnswer* AnswerOf(const TokenCheck& check,
                            const std::string& request) {
  for (const TokenAnswer& answer : check.answers) {
    if (request == answer.request || IsRequestMadeOf(request, answer.request))
      return &answer;
  }
  return nullptr;
}

// Describes the non-finite statistic of a tensor, if there is one that was not
// intended.
std::optional<std::string> WhatIsNonFinite(const v1::TensorStats& stats,
                                           bool nan_only,
                                           const NonFinite& meant) {
  const auto check = [&](const char* name,
                         double value) -> std::optional<std::string> {
    if (std::isnan(value)) return absl::StrCat(name, " NaN");
    if (nan_only || !std::isinf(value) ||
        (value > 0 ? meant.positive : meant.negative))
      return std::nullopt;
    return absl::StrCat(name, value > 0 ? " Infinity" : " -Infinity");
  };
  // The mean of +inf and -inf is NaN in a tensor without NaN.
  if (stats.has_max_f()) {
    if (auto found = check("Max", stats.max_f())) return found;
  }
  if (stats.has_min_f()) return check("Min", stats.min_f());
  return std::nullopt;
}

TensorNumbers NumbersOf(const v1::TensorSummary& tensor) {
  TensorNumbers numbers;
  const v1::TensorStats& stats = tensor.stats();
  if (stats.has_max_f()) numbers.max = stats.max_f();
  if (stats.has_min_f()) numbers.min = stats.min_f();
  if (stats.has_mean_f()) numbers.mean = stats.mean_f();
  if (stats.has_norm_f()) numbers.norm = stats.norm_f();
  double elements = 1;
  for (const int64_t size : tensor.shape())
    elements *= static_cast<double>(size);
  numbers.elements = elements;
  return numbers;
}

void AddConstants(const v1::Value& value, NonFinite* constants) {
  if (value.has_scalar() && value.scalar().has_f())
    constants->Add(value.scalar().f());
  for (const v1::Value& item : value.list().items())
    AddConstants(item, constants);
  for (const v1::NamedValue& item : value.map().items())
    AddConstants(item.value(), constants);
}

bool HasGiven(const v1::CallPhase& phase) {
  return phase.has_input_args() || phase.has_input_kwargs() ||
         phase.has_input();
}

}  // namespace

NonFinite TriggerEngine::MeantInfinities(const v1::CallPhase& phase) {
  CallNumbers call;
  ForEachPlacedTensor(
      phase, [&](TensorPlace at, const v1::TensorSummary& tensor) {
        if (!tensor.has_stats()) return;
        if (at.section == CallSection::kOutput) {
          call.AddOutput(NumbersOf(tensor));
        } else if (at.section == CallSection::kInputArgs ||
                   at.section == CallSection::kInputKwargs ||
                   (at.section == CallSection::kInput &&
                    phase.kind() != v1::CALL_KIND_MODULE_FORWARD)) {
          call.AddInput(NumbersOf(tensor));
        }
      });
  for (const v1::Value& value : phase.input_args().items())
    AddConstants(value, &call.constants);
  for (const v1::NamedValue& value : phase.input_kwargs().items())
    AddConstants(value.value(), &call.constants);
  NonFinite meant = call.inputs;
  // A gradient is not a mask.
  if (absl::StrContains(phase.entry(), ".backward")) meant = NonFinite();
  meant.Join(call.constants);
  const auto before = given_.find(phase.entry());
  if (before != given_.end()) meant.Join(before->second);
  if (HasGiven(phase) && !phase.has_output()) {
    // Masks are inputs of a few calls; for other calls there is nothing to
    // store.
    if (call.mask_input || call.zero_one_input || call.empty_input)
      meant.negative = true;
    if (meant.infinite() && given_.size() < kMaxHistories)
      given_[phase.entry()] = meant;
  } else if (before != given_.end()) {
    given_.erase(before);
  }
  const MadeNonFinite made = WhatCallMade(phase.entry(), call);
  if (made == MadeNonFinite::kMeant || made == MadeNonFinite::kPerhapsMeant)
    meant.Join(call.outputs);
  meant.nan = false;
  return meant;
}

void TriggerEngine::Configure(const v1::TriggerSpec& spec) {
  std::vector<Rule> rules;
  watches_tensors_ = watches_norms_ = watches_courses_ = false;
  watches_infinities_ = false;
  given_.clear();
  notice_given_ = false;
  for (const v1::TriggerRule& rule : spec.rules()) {
    Rule next;
    next.rule = rule;
    next.tokens = TokenCheckOf(rule);
    // A rule that stays keeps its pause.
    for (Rule& old : rules_) {
      if (old.rule.name() != rule.name()) continue;
      next.rests_until_ns = old.rests_until_ns;
      next.fires = old.fires;
      if (old.courses != nullptr && old.courses->IsFor(rule))
        next.courses = std::move(old.courses);
    }
    watches_norms_ = watches_norms_ || rule.has_norm_jump();
    watches_infinities_ =
        watches_infinities_ ||
        (rule.has_non_finite() && !rule.non_finite().nan_only());
    watches_courses_ = watches_courses_ || CourseWatch::Looks(rule);
    rules.push_back(std::move(next));
  }
  for (Rule& old : rules_) old.courses = nullptr;  // gives its memory back
  for (Rule& rule : rules) {
    watches_tensors_ = watches_tensors_ || watches_norms_ || watches_courses_ ||
                       rule.rule.has_non_finite();
    if (rule.courses == nullptr && CourseWatch::Looks(rule.rule))
      rule.courses = std::make_unique<CourseWatch>(rule.rule, &course_memory_);
  }
  rules_ = std::move(rules);
  if (!watches_norms_) norms_.clear();
}

bool TriggerEngine::Resting(const Rule& rule) const {
  return rule.fires >= rule.rule.max_fires() ||
         clock_->MonotonicNanos() < rule.rests_until_ns;
}

v1::TriggerFired TriggerEngine::Fire(Rule* rule, int64_t step,
                                     const std::string& entry,
                                     const std::string& detail) {
  ++rule->fires;
  rule->rests_until_ns =
      clock_->MonotonicNanos() +
      absl::ToInt64Nanoseconds(absl::Milliseconds(rule->rule.cool_down_ms()));
  v1::TriggerFired fired;
  fired.set_rule(rule->rule.name());
  fired.set_step(step);
  fired.set_entry(entry);
  fired.set_detail(detail);
  return fired;
}

std::vector<v1::TriggerFired> TriggerEngine::OnPhase(
    int64_t step, const v1::CallPhase& phase) {
  std::vector<v1::TriggerFired> all;
  // The values of a view were produced, or passed in, elsewhere: they are
  // judged there, and where they are used in a computation.
  if (!watches_tensors_ || MovesValuesOnly(phase.entry())) return all;
  const UnwrittenPlaces unwritten = UnwrittenPlacesOf(phase.entry());
  const NonFinite meant =
      watches_infinities_ ? MeantInfinities(phase) : NonFinite();
  int number = 0;
  const auto look = [&](TensorPlace at, absl::string_view value,
                        const v1::TensorSummary& tensor) {
    if (!tensor.has_stats()) return;
    ++number;
    if (IsUnwritten(unwritten, phase, at, tensor)) return;
    // Infinities of a parameter are never intended, those of an argument may be
    // a mask's.
    NonFinite of_tensor;
    if (at.section == CallSection::kOutput) {
      of_tensor = meant;
    } else if (at.section != CallSection::kParameters &&
               at.section != CallSection::kGradients) {
      of_tensor.negative = meant.negative;
    }
    LookAtTensor(step, phase, at, number, tensor.stats(), of_tensor, &all);
    if (watches_courses_) {
      LookAtCourses(step, phase.entry(),
                    phase.debug_path().empty() ? value : phase.debug_path(),
                    tensor.stats(), &all);
    }
  };
  if (watches_courses_) {
    ForEachNamedTensor(phase, look);
  } else {
    ForEachPlacedTensor(
        phase, [&look](TensorPlace at, const v1::TensorSummary& tensor) {
          look(at, "", tensor);
        });
  }
  return all;
}

void TriggerEngine::LookAtTensor(int64_t step, const v1::CallPhase& phase,
                                 TensorPlace at, int number,
                                 const v1::TensorStats& stats,
                                 const NonFinite& meant,
                                 std::vector<v1::TriggerFired>* all) {
  const char* const section = SectionName(at.section);
  History* history = nullptr;
  double norm = 0;
  if (watches_norms_ && stats.has_norm_f() && std::isfinite(stats.norm_f())) {
    norm = stats.norm_f();
    const std::string key =
        absl::StrCat(phase.entry(), " ", section, " ", number);
    const auto it = norms_.find(key);
    if (it != norms_.end()) {
      history = &it->second;
    } else if (norms_.size() < kMaxHistories) {
      history = &norms_[key];
    }
  }
  for (Rule& rule : rules_) {
    if (!absl::StrContains(phase.entry(), rule.rule.entry_contains())) continue;
    std::string detail;
    if (rule.rule.has_non_finite()) {
      const auto found =
          WhatIsNonFinite(stats, rule.rule.non_finite().nan_only(), meant);
      if (!found.has_value() || Resting(rule)) continue;
      detail = absl::StrCat(section, " ", at.index, ": ", *found);
    } else if (rule.rule.has_norm_jump() && history != nullptr &&
               history->count >= rule.rule.norm_jump().warmup() &&
               norm > rule.rule.norm_jump().factor() * history->mean &&
               history->mean > 0) {
      if (Resting(rule)) continue;
      detail = absl::StrCat(section, " ", at.index, ": Norm ", norm, ", ",
                            norm / history->mean, " times its mean of ",
                            history->mean);
    } else {
      continue;
    }
    all->push_back(Fire(&rule, step, phase.entry(), detail));
  }
  if (history != nullptr) {
    history->mean = history->count == 0
                        ? norm
                        : history->mean + kNewest * (norm - history->mean);
    ++history->count;
  }
}

void TriggerEngine::LookAtCourses(int64_t step, const std::string& entry,
                                  absl::string_view value,
                                  const v1::TensorStats& stats,
                                  std::vector<v1::TriggerFired>* all) {
  for (Rule& rule : rules_) {
    if (rule.courses == nullptr) continue;
    const auto found =
        rule.courses->Look(step, entry, value, stats, Resting(rule));
    if (found.has_value()) all->push_back(Fire(&rule, step, entry, *found));
  }
}

std::optional<std::string> TriggerEngine::TakeNotice() {
  if (notice_given_ || course_memory_.left_out() == left_out_before_)
    return std::nullopt;
  notice_given_ = true;
  left_out_before_ = course_memory_.left_out();
  return "trigger rules `move` and `vanished` have no memory for more values: "
         "the latest ones are not watched (set entry_contains, a smaller "
         "window)";
}

std::vector<v1::TriggerFired> TriggerEngine::OnToken(
    const std::string& request, absl::Span<const RequestToken> tokens) {
  std::vector<v1::TriggerFired> all;
  for (Rule& rule : rules_) {
    if (!rule.tokens.has_value() || Resting(rule) ||
        !absl::StrContains(request, rule.rule.entry_contains()))
      continue;
    const std::optional<TokenFinding> found =
        CheckLastToken(*rule.tokens, tokens, AnswerOf(*rule.tokens, request));
    if (found.has_value())
      all.push_back(Fire(&rule, tokens.back().step, request, found->text));
  }
  return all;
}

std::vector<v1::TriggerFired> TriggerEngine::OnLoss(int64_t step, double loss) {
  std::vector<v1::TriggerFired> all;
  for (Rule& rule : rules_) {
    if (!rule.rule.has_loss()) continue;
    const v1::LossBound& bound = rule.rule.loss();
    std::string detail;
    if (!std::isfinite(loss)) {
      if (bound.non_finite()) detail = absl::StrCat("loss ", loss);
    } else if (bound.has_above() && loss > bound.above()) {
      detail = absl::StrCat("loss ", loss, " above ", bound.above());
    } else if (bound.has_below() && loss < bound.below()) {
      detail = absl::StrCat("loss ", loss, " below ", bound.below());
    }
    if (!detail.empty() && !Resting(rule))
      all.push_back(Fire(&rule, step, "", detail));
  }
  return all;
}

}  // namespace rankprobe
