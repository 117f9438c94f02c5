// SPDX-License-Identifier: Apache-2.0
#include "dump_format/statistics_json.h"

namespace rankprobe {
namespace {

void WriteUsual(const v1::TensorStats& s, JsonTextWriter* json) {
  json->Key(kStatInfo[kMax].key);
  switch (s.max_case()) {
    case v1::TensorStats::kMaxF:
      json->Float(s.max_f());
      break;
    case v1::TensorStats::kMaxI:
      json->Int(s.max_i());
      break;
    case v1::TensorStats::kMaxB:
      json->Bool(s.max_b());
      break;
    case v1::TensorStats::MAX_NOT_SET:
      json->Null();
  }
  json->Key(kStatInfo[kMin].key);
  switch (s.min_case()) {
    case v1::TensorStats::kMinF:
      json->Float(s.min_f());
      break;
    case v1::TensorStats::kMinI:
      json->Int(s.min_i());
      break;
    case v1::TensorStats::kMinB:
      json->Bool(s.min_b());
      break;
    case v1::TensorStats::MIN_NOT_SET:
      json->Null();
  }
  json->Key(kStatInfo[kMean].key);
  switch (s.mean_case()) {
    case v1::TensorStats::kMeanF:
      json->Float(s.mean_f());
      break;
    case v1::TensorStats::kMeanI:
      json->Int(s.mean_i());
      break;
    case v1::TensorStats::MEAN_NOT_SET:
      json->Null();
  }
  json->Key(kStatInfo[kNorm].key);
  switch (s.norm_case()) {
    case v1::TensorStats::kNormF:
      json->Float(s.norm_f());
      break;
    case v1::TensorStats::kNormI:
      json->Int(s.norm_i());
      break;
    case v1::TensorStats::NORM_NOT_SET:
      json->Null();
  }
}

const v1::ExtraStatistic* FindExtra(const v1::TensorSummary& tensor,
                                    const StatInfo& info) {
  const v1::ExtraStatistic* found = nullptr;
  for (const v1::ExtraStatistic& one : tensor.extra()) {
    if (one.id() == info.id) found = &one;
  }
  return found;
}

void WriteExtra(const v1::TensorSummary& tensor, const StatInfo& info,
                JsonTextWriter* json) {
  json->Key(info.key);
  const v1::ExtraStatistic* const found = FindExtra(tensor, info);
  if (found != nullptr && found->has_f()) {
    json->Float(found->f());
  } else if (found != nullptr && found->has_i()) {
    json->Int(found->i());
  } else {
    json->Null();
  }
}

}  // namespace

StatSet StatsOf(const v1::StepBegin& begin) {
  StatSet stats;
  for (const int id : begin.extra_statistics()) {
    for (size_t i = kUsualStatCount; i < kStatCount; ++i) {
      if (kStatInfo[i].id == id) stats.Add(i);
    }
  }
  return stats;
}

std::optional<double> StatisticOf(const v1::TensorSummary& tensor, Stat stat) {
  const v1::TensorStats& s = tensor.stats();
  switch (stat) {
    case kMax:
      if (s.has_max_f()) return s.max_f();
      if (s.has_max_i()) return static_cast<double>(s.max_i());
      if (s.has_max_b()) return s.max_b() ? 1 : 0;
      return std::nullopt;
    case kMin:
      if (s.has_min_f()) return s.min_f();
      if (s.has_min_i()) return static_cast<double>(s.min_i());
      if (s.has_min_b()) return s.min_b() ? 1 : 0;
      return std::nullopt;
    case kMean:
      if (s.has_mean_f()) return s.mean_f();
      if (s.has_mean_i()) return static_cast<double>(s.mean_i());
      return std::nullopt;
    case kNorm:
      if (s.has_norm_f()) return s.norm_f();
      if (s.has_norm_i()) return static_cast<double>(s.norm_i());
      return std::nullopt;
    default:
      break;
  }
  const v1::ExtraStatistic* const found = FindExtra(tensor, kStatInfo[stat]);
  if (found != nullptr && found->has_f()) return found->f();
  if (found != nullptr && found->has_i())
    return static_cast<double>(found->i());
  return std::nullopt;
}

void WriteStatistics(const v1::TensorSummary& tensor, StatSet stats,
                     JsonTextWriter* json) {
  WriteUsual(tensor.stats(), json);
  for (size_t i = kUsualStatCount; i < kStatCount; ++i) {
    if (stats.Has(i)) WriteExtra(tensor, kStatInfo[i], json);
  }
}

}  // namespace rankprobe
