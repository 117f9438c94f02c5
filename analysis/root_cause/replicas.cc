// SPDX-License-Identifier: Apache-2.0
#include "analysis/root_cause/replicas.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "analysis/calls/call_place.h"
#include "analysis/calls/comm_links.h"
#include "analysis/compare/stat_diff.h"
#include "analysis/layout/layout_plan.h"
#include "analysis/root_cause/replica_groups.h"
#include "common/base/status_macros.h"
#include "dump_format/dump_layout.h"
#include "dump_format/dump_reader.h"
#include "dump_format/dump_rows.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

// Returns a text for a tensor's content; empty if the row has no values.
std::string Content(const DumpRow& row) {
  if (row.record == nullptr || row.derived) return "";
  std::string out;
  const JsonValue* const md5 = row.record->Find("md5");
  if (md5 != nullptr && !md5->is_null()) {
    absl::StrAppend(&out, "md5=", PythonText(*md5), " ");
  }
  bool any = !out.empty();
  for (size_t i = 0; i < kStatCount; ++i) {
    if (row.stats[i].is_null()) continue;
    any = true;
    absl::StrAppend(&out, kStatInfo[i].key, "=", StatText(row.stats[i]), " ");
  }
  if (!any) return "";
  return absl::StrCat(out, "shape=", row.shape);
}

// Returns which shard of a DTensor a row is; empty for a complete tensor.
std::string Shard(int64_t rank, StatSet stats, const DumpRow& row) {
  if (row.record == nullptr || row.record->Find("device_mesh") == nullptr) {
    return "";
  }
  const auto part = ReadTensorPart(rank, stats, *row.record);
  // If the placement is unknown, each rank counts as its own shard.
  return part.ok() ? ShardOf(*part) : absl::StrCat("rank ", rank);
}

using Holders = std::map<int64_t, std::string>;  // rank to content

// Returns 0 for a row without numbers.
double ElementsOf(absl::string_view shape) {
  if (!absl::ConsumePrefix(&shape, "[") || !absl::ConsumeSuffix(&shape, "]"))
    return 0;
  double elements = 1;
  for (const absl::string_view part :
       absl::StrSplit(shape, ',', absl::SkipWhitespace())) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size)) return 0;
    elements *= static_cast<double>(size);
  }
  return elements;
}

// The forward calls of training. A module may also be called for validation,
// before or after them and on one rank alone, perhaps with other weights, which
// shifts call numbers between ranks. Calls that have a backward belong to
// training.
class TrainedForwards {
 public:
  explicit TrainedForwards(const DumpReader& dump) {
    for (size_t i = 0; i < dump.size(); ++i) {
      const auto [module, number] = Split(dump.name(i), ".backward.");
      if (number >= 0) numbers_[module].insert(number);
    }
  }

  // Returns the name that a row would have if the module were called in
  // training only; nullopt for a row of another forward call of such a module.
  std::optional<std::string> NameOf(absl::string_view entry,
                                    absl::string_view row) const {
    const auto [module, number] = Split(entry, ".forward.");
    const auto trained = numbers_.find(module);
    if (number < 0 || trained == numbers_.end()) return std::string(row);
    const auto it = trained->second.find(number);
    if (it == trained->second.end()) return std::nullopt;
    return absl::StrCat(module, ".forward.",
                        std::distance(trained->second.begin(), it),
                        absl::StripPrefix(row, entry));
  }

 private:
  // Splits "Module.m.M.forward.3" into module and number; -1 for any other
  // entry.
  static std::pair<std::string, int64_t> Split(absl::string_view entry,
                                               absl::string_view direction) {
    int64_t number = -1;
    const size_t at = entry.rfind(direction);
    if (at == absl::string_view::npos || !absl::StartsWith(entry, "Module.") ||
        !absl::SimpleAtoi(entry.substr(at + direction.size()), &number))
      return {"", -1};
    return {std::string(entry.substr(0, at)), number};
  }

  std::map<std::string, std::set<int64_t>> numbers_;
};

HeldTensor HeldOf(const DumpRow& row) {
  HeldTensor held;
  for (const Stat stat : {kMax, kMin, kMean, kNorm}) {
    if (!row.stats[stat].is_number()) return held;
  }
  held.largest = row.stats[kMax].number;
  held.smallest = row.stats[kMin].number;
  held.mean = row.stats[kMean].number;
  held.norm = row.stats[kNorm].number;
  held.elements = ElementsOf(row.shape);
  return held;
}

class Checker {
 public:
  Checker(FileSystem* file_system, const ReplicaOptions& options,
          HeldAlike* alike)
      : file_system_(file_system), options_(options), alike_(*alike) {}

  absl::StatusOr<ReplicaReport> Run(DumpLayout layout) {
    // An extra process holds no replica.
    std::erase_if(layout.places,
                  [](const DumpPlace& place) { return place.process; });
    if (layout.kind == DumpLayout::Kind::kSingle || layout.Ranks().size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          layout.path, ": has one rank only; replicas are across ranks"));
    }
    for (size_t i = 0; i < layout.places.size();) {
      size_t end = i;
      while (end < layout.places.size() &&
             layout.places[end].step == layout.places[i].step) {
        ++end;
      }
      RP_RETURN_IF_ERROR(
          CheckStep(absl::MakeConstSpan(layout.places).subspan(i, end - i)));
      i = end;
    }
    return std::move(report_);
  }

 private:
  absl::Status CheckStep(absl::Span<const DumpPlace> places) {
    step_ = StepOf(places[0]);
    std::vector<int64_t> world;
    for (const DumpPlace& place : places) world.push_back(place.rank);
    CommLinks links(world);
    parameters_.clear();
    numbers_.clear();
    shards_.clear();
    sent_.clear();
    received_.clear();
    order_.clear();
    calls_.clear();
    for (const DumpPlace& place : places) {
      RP_RETURN_IF_ERROR(ReadRank(place, &links));
    }
    links.Match();
    const size_t before = report_.differences.size();
    for (const auto& group : GroupsOf(world)) CheckParameters(group);
    CheckHeld();
    RememberAlike();
    CheckLinks(links);
    return FindCalls(places, before);
  }

  // Finds where the program makes the calls of the differences from `first` on.
  absl::Status FindCalls(absl::Span<const DumpPlace> places, size_t first) {
    if (first == report_.differences.size()) return absl::OkStatus();
    for (const DumpPlace& place : places) {
      RP_ASSIGN_OR_RETURN(const auto dump,
                          OpenWithModules(file_system_, place.directory, {}));
      const CallPlaces modules(*dump);
      for (size_t i = first; i < report_.differences.size(); ++i) {
        ReplicaDifference& difference = report_.differences[i];
        if (!difference.call.empty()) continue;
        const auto held = calls_.find(difference.row);
        if (held == calls_.end() || held->second.rank != place.rank) continue;
        difference.row = held->second.row;
        difference.call = held->second.call;
        difference.module = modules.ModuleOf(difference.call);
        difference.code_line = CodeLineOf(dump->Stack(difference.call));
      }
    }
    return absl::OkStatus();
  }

  void RememberAlike() {
    for (const auto& [row, numbers] : numbers_) {
      if (!shards_[row].empty() || alike_.contains(row)) continue;
      std::map<std::string, std::vector<int64_t>> by_content;
      for (const auto& [rank, held] : numbers) {
        if (IsOfOneTensor(held))
          by_content[parameters_[row][rank]].push_back(rank);
      }
      std::vector<std::vector<int64_t>> groups;
      for (auto& [content, ranks] : by_content) {
        if (ranks.size() > 1) groups.push_back(std::move(ranks));
      }
      if (!groups.empty()) alike_.emplace(row, std::move(groups));
    }
  }

  std::vector<std::vector<int64_t>> GroupsOf(
      const std::vector<int64_t>& world) const {
    return options_.groups.empty() ? std::vector<std::vector<int64_t>>{world}
                                   : options_.groups;
  }

  absl::Status ReadRank(const DumpPlace& place, CommLinks* links) {
    RP_ASSIGN_OR_RETURN(const auto dump,
                        DumpReader::Open(file_system_, place.directory, {}));
    const TrainedForwards trained(*dump);
    JsonDocument record;
    std::vector<DumpRow> rows;
    for (size_t i = 0; i < dump->size(); ++i) {
      const absl::string_view name = dump->name(i);
      RP_RETURN_IF_ERROR(dump->Read(i, &record));
      RP_RETURN_IF_ERROR(ReadRows(name, dump->stats(), &record, &rows));
      const bool communication = IsCommunication(name);
      if (communication) links->Add(place.rank, name, record.root());
      for (const DumpRow& row : rows) {
        const bool gradient = row.state == RowState::kParametersGrad;
        if (gradient && !options_.gradients) continue;
        if (row.state == RowState::kParameters || gradient) {
          const std::optional<std::string> named =
              trained.NameOf(name, row.name);
          if (!named.has_value()) continue;
          const std::string& key = *named;
          if (!parameters_.contains(key)) {
            order_.push_back({key, gradient});
            calls_[key] = {place.rank, std::string(name),
                           std::string(row.name)};
          }
          parameters_[key][place.rank] = Content(row);
          if (options_.groups.empty() && !gradient)
            numbers_[key][place.rank] = HeldOf(row);
          const std::string shard = Shard(place.rank, dump->stats(), row);
          if (!shard.empty()) shards_[key][place.rank] = shard;
        } else if (communication) {
          auto& side = row.state == RowState::kOutput ? received_ : sent_;
          std::string& content = side[{place.rank, std::string(name)}];
          // The first tensor is the one that a collective works on.
          if (content.empty()) content = Content(row);
        }
      }
    }
    return absl::OkStatus();
  }

  void CheckParameters(const std::vector<int64_t>& group) {
    for (const auto& [row, gradient] : order_) {
      // Ranks with another shard of a tensor hold different content by design.
      std::map<std::string, Holders> by_shard;
      for (const int64_t rank : group) {
        const auto it = parameters_[row].find(rank);
        if (it == parameters_[row].end()) continue;
        const auto& shards = shards_[row];
        const auto shard = shards.find(rank);
        by_shard[shard == shards.end() ? "" : shard->second][rank] = it->second;
      }
      for (const auto& [shard, holders] : by_shard) {
        Judge(gradient ? ReplicaDifference::Kind::kGradient
                       : ReplicaDifference::Kind::kParameter,
              row, holders, &report_.rows_compared);
      }
    }
  }

  // Judges differences between ranks that were not grouped: replicas or shards.
  void CheckHeld() {
    std::vector<std::vector<HeldTensor>> rows;
    for (const ReplicaDifference& d : unlike_) {
      std::vector<HeldTensor>& row = rows.emplace_back();
      for (const auto& [ranks, content] : d.values) {
        row.push_back(numbers_[d.row][ranks.front()]);
        row.back().ranks = ranks;
        row.back().content = content;
      }
    }
    const std::vector<std::vector<int64_t>> of_rows = GroupsOfRows(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<std::vector<int64_t>> groups = of_rows;
      bool are_replicas = JudgeHeld(rows[i], groups) == HeldAs::kReplicas;
      if (const auto held = alike_.find(unlike_[i].row);
          !are_replicas && held != alike_.end()) {
        groups.insert(groups.end(), held->second.begin(), held->second.end());
        are_replicas = unlike_[i].only_alike_before =
            JudgeHeld(rows[i], groups) == HeldAs::kReplicas;
      }
      if (are_replicas) {
        report_.differences.push_back(std::move(unlike_[i]));
        continue;
      }
      // Uses the row's name in the dump.
      if (report_.rows_of_shards++ == 0)
        report_.first_of_shards = calls_.at(unlike_[i].row).row;
    }
    unlike_.clear();
  }

  // Adds a difference unless all ranks hold equal content.
  void Judge(ReplicaDifference::Kind kind, const std::string& row,
             const Holders& holders, int64_t* compared) {
    if (holders.size() < 2) {
      if (!holders.empty()) ++report_.rows_on_one_rank;
      return;
    }
    std::map<std::string, std::vector<int64_t>> by_content;
    for (const auto& [rank, content] : holders) {
      if (content.empty()) {
        ++report_.rows_without_values;
        return;
      }
      by_content[content].push_back(rank);
    }
    ++*compared;
    if (by_content.size() < 2) return;
    ReplicaDifference difference;
    difference.kind = kind;
    difference.step = step_;
    difference.row = row;
    for (const auto& [content, ranks] : by_content) {
      difference.values.emplace_back(ranks, content);
    }
    std::sort(difference.values.begin(), difference.values.end());
    const bool is_grouped = !options_.groups.empty() || !shards_[row].empty();
    if (kind == ReplicaDifference::Kind::kParameter && !is_grouped) {
      unlike_.push_back(std::move(difference));
      return;
    }
    report_.differences.push_back(std::move(difference));
  }

  std::string ContentOf(
      const std::map<std::pair<int64_t, std::string>, std::string>& side,
      int64_t rank, const std::string& node) const {
    const auto it = side.find({rank, node});
    return it == side.end() ? "" : it->second;
  }

  void CheckLinks(const CommLinks& links) {
    // Calls of collectives that were compared with their group.
    std::set<std::pair<int64_t, std::string>> done;
    links.ForEach([&](int64_t rank, const std::string& node,
                      const std::vector<CommLink>& found) {
      for (const CommLink& link : found) {
        const bool everyone_equal = absl::StrContains(node, ".all_reduce.") ||
                                    absl::StrContains(node, ".all_gather") ||
                                    absl::StrContains(node, "._all_gather");
        if (link.kind == CommKind::kSend) {
          // Other operations transfer only parts of the tensor.
          const bool whole = absl::StrContains(node, ".broadcast.") ||
                             absl::StrContains(node, "send.");
          if (!whole) continue;
          for (const CommPeer& peer : link.peers) {
            const std::string row =
                absl::StrCat(node, " of rank ", rank, " to ", peer.node,
                             " of rank ", peer.rank);
            calls_[row] = {rank, node, row};
            Judge(ReplicaDifference::Kind::kTransfer, row,
                  {{rank, ContentOf(sent_, rank, node)},
                   {peer.rank, ContentOf(received_, peer.rank, peer.node)}},
                  &report_.transfers_compared);
          }
        } else if (link.kind == CommKind::kBoth && everyone_equal &&
                   !done.contains({rank, node})) {
          Holders holders = {{rank, ContentOf(received_, rank, node)}};
          for (const CommPeer& peer : link.peers) {
            holders[peer.rank] = ContentOf(received_, peer.rank, peer.node);
            done.insert({peer.rank, peer.node});
          }
          calls_[node] = {rank, node, node};
          Judge(ReplicaDifference::Kind::kCollective, node, holders,
                &report_.collectives_compared);
        }
      }
    });
  }

  FileSystem* const file_system_;
  const ReplicaOptions& options_;
  HeldAlike& alike_;
  ReplicaReport report_;
  int64_t step_ = 0;
  std::map<std::string, Holders> parameters_;
  std::map<std::string, std::map<int64_t, HeldTensor>> numbers_;
  std::vector<ReplicaDifference> unlike_;
  // For sharded rows: rank to shard.
  std::map<std::string, std::map<int64_t, std::string>> shards_;
  std::vector<std::pair<std::string, bool>> order_;  // row, is a gradient
  // The first rank that has a row, with the call and the row's name there.
  struct CallOfRow {
    int64_t rank = 0;
    std::string call, row;
  };
  std::map<std::string, CallOfRow> calls_;
  std::map<std::pair<int64_t, std::string>, std::string> sent_;
  std::map<std::pair<int64_t, std::string>, std::string> received_;
};

}  // namespace

const char* ReplicaKindName(ReplicaDifference::Kind kind) {
  switch (kind) {
    case ReplicaDifference::Kind::kGradient:
      return "gradient";
    case ReplicaDifference::Kind::kCollective:
      return "collective";
    case ReplicaDifference::Kind::kTransfer:
      return "transfer";
    default:
      return "parameter";
  }
}

absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            const std::string& dump,
                                            const ReplicaOptions& options) {
  RP_ASSIGN_OR_RETURN(DumpLayout layout, FindDumps(file_system, dump));
  return CheckReplicas(file_system, std::move(layout), options);
}

absl::StatusOr<ReplicaReport> CheckReplicas(FileSystem* file_system,
                                            DumpLayout layout,
                                            const ReplicaOptions& options,
                                            HeldAlike* alike) {
  HeldAlike none;
  return Checker(file_system, options, alike == nullptr ? &none : alike)
      .Run(std::move(layout));
}

}  // namespace rankprobe::analysis
