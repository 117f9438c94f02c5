#include "agent/runtime/trigger_engine.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxHistories = 65536;
// Weight of the newest value in a norm's running mean.
constexpr double kNewest = 0.2;

// The section of the call, the tensor's place in it, its statistics.
using Visit = absl::FunctionRef<void(const char*, int, const v1::TensorStats&)>;

void VisitTensors(const v1::Value& value, const char* section, int index,
                  Visit visit) {
  if (value.has_tensor()) {
    if (value.tensor().has_stats())
      visit(section, index, value.tensor().stats());
  } else if (value.has_list()) {
    for (const v1::Value& item : value.list().items())
      VisitTensors(item, section, index, visit);
  } else if (value.has_map()) {
    for (const v1::NamedValue& item : value.map().items())
      VisitTensors(item.value(), section, index, visit);
  }
}

void VisitPhase(const v1::CallPhase& phase, Visit visit) {
  const auto list = [&](const char* section, const v1::ValueList& values) {
    for (int i = 0; i < values.items_size(); ++i)
      VisitTensors(values.items(i), section, i, visit);
  };
  const auto map = [&](const char* section, const v1::ValueMap& values) {
    for (int i = 0; i < values.items_size(); ++i)
      VisitTensors(values.items(i).value(), section, i, visit);
  };
  if (phase.has_input_args()) list("input", phase.input_args());
  if (phase.has_input_kwargs()) map("keyword", phase.input_kwargs());
  if (phase.has_output()) list("output", phase.output());
  if (phase.has_parameters()) map("parameter", phase.parameters());
  if (phase.has_input()) list("gradient", phase.input());
  if (phase.has_gradients()) map("gradient", phase.gradients());
  if (phase.has_debug()) VisitTensors(phase.debug(), "value", 0, visit);
}

// What is not a number in a tensor, if anything.
std::optional<std::string> NonFinite(const v1::TensorStats& stats,
                                     bool nan_only) {
  const auto check = [&](const char* name,
                         double value) -> std::optional<std::string> {
    if (std::isnan(value)) return absl::StrCat(name, " NaN");
    if (!nan_only && std::isinf(value))
      return absl::StrCat(name, value > 0 ? " Infinity" : " -Infinity");
    return std::nullopt;
  };
  // The mean of +inf and -inf is NaN in a tensor that holds none.
  if (stats.has_max_f()) {
    if (auto found = check("Max", stats.max_f())) return found;
  }
  if (stats.has_min_f()) return check("Min", stats.min_f());
  return std::nullopt;
}

}  // namespace

void TriggerEngine::Configure(const v1::WatchSpec& spec) {
  std::vector<Rule> rules;
  watches_tensors_ = watches_norms_ = false;
  for (const v1::TriggerRule& rule : spec.rules()) {
    Rule next;
    next.rule = rule;
    // A rule that stays keeps its rest.
    for (const Rule& old : rules_) {
      if (old.rule.name() != rule.name()) continue;
      next.rests_until_ns = old.rests_until_ns;
      next.fires = old.fires;
    }
    watches_norms_ = watches_norms_ || rule.has_norm_jump();
    watches_tensors_ =
        watches_tensors_ || rule.has_norm_jump() || rule.has_non_finite();
    rules.push_back(std::move(next));
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
  if (!watches_tensors_) return all;
  int place = 0;
  VisitPhase(phase, [&](const char* section, int index,
                        const v1::TensorStats& stats) {
    ++place;
    History* history = nullptr;
    double norm = 0;
    if (watches_norms_ && stats.has_norm_f() && std::isfinite(stats.norm_f())) {
      norm = stats.norm_f();
      const std::string key =
          absl::StrCat(phase.entry(), " ", section, " ", place);
      const auto it = norms_.find(key);
      if (it != norms_.end()) {
        history = &it->second;
      } else if (norms_.size() < kMaxHistories) {
        history = &norms_[key];
      }
    }
    for (Rule& rule : rules_) {
      if (!absl::StrContains(phase.entry(), rule.rule.entry_contains()))
        continue;
      std::string detail;
      if (rule.rule.has_non_finite()) {
        const auto found = NonFinite(stats, rule.rule.non_finite().nan_only());
        if (!found.has_value() || Resting(rule)) continue;
        detail = absl::StrCat(section, " ", index, ": ", *found);
      } else if (rule.rule.has_norm_jump() && history != nullptr &&
                 history->count >= rule.rule.norm_jump().warmup() &&
                 norm > rule.rule.norm_jump().factor() * history->mean &&
                 history->mean > 0) {
        if (Resting(rule)) continue;
        detail = absl::StrCat(section, " ", index, ": Norm ", norm, ", ",
                              norm / history->mean, " times its mean of ",
                              history->mean);
      } else {
        continue;
      }
      all.push_back(Fire(&rule, step, phase.entry(), detail));
    }
    if (history != nullptr) {
      history->mean = history->count == 0
                          ? norm
                          : history->mean + kNewest * (norm - history->mean);
      ++history->count;
    }
  });
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
