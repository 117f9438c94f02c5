// SPDX-License-Identifier: Apache-2.0
#include "collector/archive/load_step.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/config/plan.h"
#include "common/records/call_values.h"
#include "common/records/cut_value.h"

namespace rankprobe {
namespace {

bool MovesToTheEnd(v1::CallKind kind) {
  return kind == v1::CALL_KIND_MODULE_FORWARD ||
         kind == v1::CALL_KIND_MODULE_BACKWARD ||
         kind == v1::CALL_KIND_PARAMETERS_GRAD;
}

// Merges the statistics that several starts of a step requested.
void AddStatistics(const v1::StepBegin& begin, v1::StepBegin* all) {
  if (begin.extra_statistics().empty() || &begin == all) return;
  std::set<int> ids(all->extra_statistics().begin(),
                    all->extra_statistics().end());
  for (const int id : begin.extra_statistics()) {
    if (ids.insert(id).second)
      all->add_extra_statistics(static_cast<v1::StatisticId>(id));
  }
}

// Puts `leaf` at `path` inside `value`; a path that leads nowhere is ignored.
// The depth of each record is limited, but records could fill each other's
// leaves to any depth: a value deeper than one record may be is marked as cut.
void FillPath(const std::string& path, const v1::Value& leaf,
              v1::Value* value) {
  int messages = 0;
  uint64_t level = 0;
  if (!path.empty()) {
    for (const absl::string_view part : absl::StrSplit(path, '.')) {
      int index = 0;
      if (!absl::SimpleAtoi(part, &index) || index < 0) return;
      if (value->has_list() && index < value->list().items_size()) {
        value = value->mutable_list()->mutable_items(index);
        messages += kListMessages;
      } else if (value->has_map() && index < value->map().items_size()) {
        value = value->mutable_map()->mutable_items(index)->mutable_value();
        messages += kMapMessages;
      } else {
        return;
      }
      ++level;
    }
  }
  if (messages + NestedMessages(leaf) <= kMaxValueMessages) {
    *value = leaf;
    return;
  }
  value->Clear();
  SetCut("", 0, level, "depth", value);
}

// Merges the phases of one step's calls.
class CallMerger {
 public:
  explicit CallMerger(std::vector<v1::CallPhase>* calls) : calls_(calls) {}

  // Moves the content out of `phase`.
  void Merge(v1::CallPhase* phase, size_t index) {
    v1::CallPhase* const call = &(*calls_)[index];
    if (phase->has_input_args())
      call->mutable_input_args()->Swap(phase->mutable_input_args());
    if (phase->has_input_kwargs())
      call->mutable_input_kwargs()->Swap(phase->mutable_input_kwargs());
    if (phase->has_output())
      call->mutable_output()->Swap(phase->mutable_output());
    if (phase->has_parameters())
      call->mutable_parameters()->Swap(phase->mutable_parameters());
    if (phase->has_input()) call->mutable_input()->Swap(phase->mutable_input());
    if (phase->gradients().items_size() > 0) {
      MergeGradients(phase->mutable_gradients(), index,
                     call->mutable_gradients()->mutable_items());
    }
    if (phase->has_debug()) {
      if (phase->debug_path().empty() && !call->has_debug()) {
        call->mutable_debug()->Swap(phase->mutable_debug());
      } else {
        FillPath(phase->debug_path(), phase->debug(), call->mutable_debug());
      }
    }
  }

 private:
  using Items = google::protobuf::RepeatedPtrField<v1::NamedValue>;

  // A parameter's gradient replaces the last one of its name.
  void MergeGradients(v1::ValueMap* gradients, size_t call, Items* known) {
    auto& places = places_[call];
    for (int i = static_cast<int>(places.seen); i < known->size(); ++i)
      places.of_name[known->Get(i).name()] = i;
    for (v1::NamedValue& gradient : *gradients->mutable_items()) {
      const auto [it, is_new] =
          places.of_name.try_emplace(gradient.name(), known->size());
      (is_new ? known->Add() : known->Mutable(it->second))->Swap(&gradient);
    }
    places.seen = static_cast<size_t>(known->size());
  }

  struct GradientPlaces {
    absl::flat_hash_map<std::string, int> of_name;
    size_t seen = 0;
  };

  std::vector<v1::CallPhase>* const calls_;
  // For the calls into which gradients have been merged.
  absl::flat_hash_map<size_t, GradientPlaces> places_;
};

}  // namespace

absl::StatusOr<StepView> LoadStep(ArchiveReader* store, const StepKey& key,
                                  uint64_t* records) {
  StepView view;
  CallMerger merger(&view.calls);
  std::vector<uint64_t> positions;
  uint64_t count = 0;
  absl::flat_hash_map<std::string, size_t> index_of_call, index_of_edge;
  absl::flat_hash_map<uint32_t, size_t> index_of_stack;
  RP_RETURN_IF_ERROR(store->TakeEachRecord(key, [&](v1::Record* taken) {
    const v1::Record& record = *taken;
    ++count;
    switch (record.body_case()) {
      case v1::Record::kCall: {
        v1::CallPhase& phase = *taken->mutable_call();
        if (!view.requests.empty() && view.requests.back().first_entry.empty())
          view.requests.back().first_entry = phase.entry();
        const auto [it, is_new] =
            index_of_call.try_emplace(phase.entry(), view.calls.size());
        if (is_new) {
          view.calls.push_back(std::move(phase));
          positions.push_back(record.order());
        } else {
          merger.Merge(&phase, it->second);
          if (MovesToTheEnd(phase.kind()))
            positions[it->second] = record.order();
        }
        break;
      }
      case v1::Record::kStack: {
        const auto [it, is_new] =
            index_of_stack.try_emplace(record.stack().id(), view.stacks.size());
        if (is_new) view.stacks.emplace_back();
        StepView::Stack& stack = view.stacks[it->second];
        stack.frames.assign(record.stack().frames().begin(),
                            record.stack().frames().end());
        break;
      }
      case v1::Record::kStackUse: {
        const auto it = index_of_stack.find(record.stack_use().id());
        if (it != index_of_stack.end())
          view.stacks[it->second].entries.push_back(record.stack_use().entry());
        break;
      }
      case v1::Record::kEdge: {
        const auto [it, is_new] =
            index_of_edge.try_emplace(record.edge().entry(), view.edges.size());
        if (is_new) {
          view.edges.push_back(record.edge());
        } else {
          view.edges[it->second] = record.edge();
        }
        break;
      }
      case v1::Record::kTrace:
        break;  // not part of the dump layout
      case v1::Record::kLoss:
        view.losses.push_back(record.loss());
        break;
      case v1::Record::kError:
        view.errors.push_back(record.error());
        break;
      case v1::Record::kStepBegin:
        // The first one is kept: a second start in the same step continues it.
        if (!view.has_begin) view.begin = record.step_begin();
        view.begin.set_has_payloads(view.begin.has_payloads() ||
                                    record.step_begin().has_payloads());
        AddStatistics(record.step_begin(), &view.begin);
        if (record.step_begin().has_requests())
          view.requests.push_back({record.step_begin().requests(), ""});
        view.has_begin = true;
        break;
      case v1::Record::kStepEnd:
        view.end = record.step_end();
        break;
      case v1::Record::kRunCard:
        for (const v1::RunFact& fact : record.run_card().facts())
          view.facts[{fact.section(), fact.name()}] = fact.value();
        break;
      case v1::Record::BODY_NOT_SET:
        break;
    }
    return absl::OkStatus();
  }));
  if (records != nullptr) *records = count;
  std::vector<size_t> order(view.calls.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return positions[a] < positions[b]; });
  std::vector<v1::CallPhase> sorted(view.calls.size());
  for (size_t i = 0; i < order.size(); ++i)
    sorted[i].Swap(&view.calls[order[i]]);
  view.calls = std::move(sorted);
  return view;
}

MonitoredStep SplitMonitored(const StepView& view) {
  MonitoredStep parts;
  parts.modules = view;
  std::vector<v1::CallPhase>& calls = parts.modules.calls;
  const auto others = std::stable_partition(
      calls.begin(), calls.end(), [](const v1::CallPhase& call) {
        return call.kind() != v1::CALL_KIND_DEBUG;
      });
  parts.others.calls.assign(std::make_move_iterator(others),
                            std::make_move_iterator(calls.end()));
  calls.erase(others, calls.end());
  parts.modules.begin.set_task(std::string(TaskName(Task::kStatistics)));
  parts.others.begin = parts.modules.begin;
  parts.others.begin.set_level(std::string(LevelName(Level::kDebug)));
  return parts;
}

}  // namespace rankprobe
