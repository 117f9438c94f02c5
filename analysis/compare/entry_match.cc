// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare/entry_match.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "analysis/compare/backward_keys.h"
#include "analysis/compare/checkpoint_names.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "common/tensor/dtype.h"
#include "dump_format/input_files.h"

namespace rankprobe::analysis {

std::string MapCell(absl::string_view name, const NameMap& cells) {
  std::string out(name);
  if (absl::StartsWith(out, "Cell.")) out.replace(0, 4, "Module");
  for (const absl::string_view word :
       {".forward.", ".backward.", ".parameters_grad."}) {
    const size_t end = absl::string_view(out).find(word);
    const size_t begin = out.find('.') + 1;
    if (end == std::string::npos || begin > end) continue;
    const std::string cell = out.substr(begin, end - begin);
    std::string mapped = cell;
    bool whole = false;
    for (const auto& [from, to] : cells) {
      if (from == cell) {
        mapped = to;
        whole = true;
        break;
      }
    }
    for (const auto& [from, to] : cells) {
      if (whole) break;
      const size_t at = mapped.find(from);
      if (at != std::string::npos) mapped.replace(at, from.size(), to);
    }
    out.replace(begin, cell.size(), mapped);
    break;
  }
  return out;
}

namespace {

// Returns the name without the parts that differ between versions of a model:
// an API's call number and a module's class.
std::string FuzzyName(absl::string_view name) {
  for (const absl::string_view word : {".forward", ".backward"}) {
    const size_t at = name.find(word);
    if (at == absl::string_view::npos) continue;
    absl::string_view head = name.substr(0, at);
    const size_t dot = head.rfind('.');
    if (dot != absl::string_view::npos) head = head.substr(0, dot);
    return absl::StrCat(head, name.substr(at));
  }
  return std::string(name);
}

std::vector<std::string> NamesOf(const DumpReader& dump) {
  std::vector<std::string> names;
  names.reserve(dump.size());
  for (size_t i = 0; i < dump.size(); ++i) names.emplace_back(dump.name(i));
  return names;
}

// Walks both sides in parallel. Entries without a partner wait in a queue; a
// match drops the entries that were queued before it.
std::vector<int64_t> MatchFuzzy(const std::vector<std::string>& target,
                                const std::vector<std::string>& reference) {
  struct Side {
    size_t head = 0;  // first entry that waits
    absl::flat_hash_map<std::string, std::deque<size_t>> waiting;
    // Returns the earliest entry waiting under a name.
    std::optional<size_t> Earliest(const std::string& name) {
      const auto it = waiting.find(name);
      if (it == waiting.end()) return std::nullopt;
      while (!it->second.empty() && it->second.front() < head) {
        it->second.pop_front();
      }
      if (it->second.empty()) return std::nullopt;
      return it->second.front();
    }
  };
  std::vector<int64_t> out(target.size(), -1);
  std::vector<std::string> n(target.size());
  std::vector<std::string> b(reference.size());
  for (size_t i = 0; i < n.size(); ++i) n[i] = FuzzyName(target[i]);
  for (size_t i = 0; i < b.size(); ++i) b[i] = FuzzyName(reference[i]);
  Side ns;
  Side bs;
  const auto match = [&](size_t i, size_t j) {
    out[i] = static_cast<int64_t>(j);
    ns.head = i + 1;
    bs.head = j + 1;
  };
  for (size_t i = 0; i < std::max(n.size(), b.size()); ++i) {
    if (i < n.size()) ns.waiting[n[i]].push_back(i);
    if (i < b.size()) bs.waiting[b[i]].push_back(i);
    if (i < n.size() && i >= ns.head) {
      if (const auto j = bs.Earliest(n[i]); j.has_value()) {
        match(i, *j);
        continue;
      }
    }
    if (i < b.size() && i >= bs.head) {
      if (const auto j = ns.Earliest(b[i]); j.has_value()) match(*j, i);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<NameMap> ReadNameMap(FileSystem* file_system,
                                    const std::string& path) {
  RP_ASSIGN_OR_RETURN(const std::string text, ReadInput(file_system, path));
  NameMap out;
  const auto bad = [&path](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", absl::StrReplaceAll(what, {{"\n", " "}})));
  };
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return bad("expected lines of `name: name`");
    for (const auto& item : root) {
      if (!item.first.IsScalar() || !item.second.IsScalar()) {
        return bad("expected lines of `name: name`");
      }
      out.emplace_back(item.first.as<std::string>(),
                       item.second.as<std::string>());
    }
  } catch (const YAML::Exception& fault) {
    return bad(fault.what());
  }
  return out;
}

namespace {

// Returns the reference entry of each target entry by layer mapping. Gradients
// of parameters, which construct.json does not list, follow their module.
std::vector<int64_t> MatchLayers(const LayerRules& rules,
                                 const DumpReader& target,
                                 const DumpReader& reference) {
  const absl::flat_hash_map<std::string, std::string> names =
      MapLayers(rules, target, reference);
  absl::flat_hash_map<std::string, std::string> modules;
  for (const auto& [from, to] : names) {
    const absl::string_view module = ModuleOfEntry(from);
    const absl::string_view partner = ModuleOfEntry(to);
    if (!module.empty() && !partner.empty()) {
      modules.try_emplace(std::string(module), partner);
    }
  }
  std::vector<int64_t> out(target.size(), -1);
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string name(target.name(i));
    std::string wanted = name;
    if (const auto it = names.find(name); it != names.end()) {
      wanted = it->second;
    } else if (const auto module =
                   modules.find(std::string(ModuleOfEntry(name)));
               module != modules.end()) {
      wanted = absl::StrCat(module->second, name.substr(module->first.size()));
    }
    if (const auto index = reference.Find(wanted); index.has_value()) {
      out[i] = static_cast<int64_t>(*index);
    }
  }
  return out;
}

// Changes the names of a dump to those without the calls that its checkpoints
// computed again, and returns which entries are such calls. Those get names
// that no entry of the other side has: ` recomputed` and the side.
std::vector<bool> LeaveOutRecomputed(const RecomputedCalls& calls,
                                     absl::string_view side,
                                     std::vector<std::string>* names) {
  std::vector<bool> recomputed(names->size());
  for (size_t i = 0; i < names->size(); ++i) {
    std::string& name = (*names)[i];
    const std::optional<std::string> without = calls.WithoutThem(name);
    recomputed[i] = !without.has_value();
    name = without.value_or(absl::StrCat(name, " recomputed ", side));
  }
  return recomputed;
}

}  // namespace

EntryMatch EntryMatch::Make(const DumpReader& target,
                            const DumpReader& reference,
                            const MatchOptions& options) {
  EntryMatch match;
  if (options.layers.has_value()) {
    match.reference_ = MatchLayers(*options.layers, target, reference);
    return match;
  }
  std::vector<std::string> n = NamesOf(target);
  std::vector<std::string> b = NamesOf(reference);
  if (options.without_checkpoints) {
    const RecomputedCalls of_target(target);
    const RecomputedCalls of_reference(reference);
    // Two runs with the same checkpoints have the same numbers.
    if (of_target != of_reference) {
      match.target_recomputed_ = LeaveOutRecomputed(of_target, "target", &n);
      match.reference_recomputed_ =
          LeaveOutRecomputed(of_reference, "reference", &b);
    }
    for (std::vector<std::string>* const names : {&n, &b}) {
      for (std::string& name : *names) name = WithoutWrappers(name);
    }
  }
  for (std::string& name : n) {
    if (!options.cells.empty()) name = MapCell(name, options.cells);
    if (const ApiRule* const rule = FindApiRule(options.apis, name);
        rule != nullptr) {
      name = RenamedEntry(*rule, name);
    }
  }
  if (options.fuzzy) {
    match.reference_ = MatchFuzzy(n, b);
    return match;
  }
  const BackwardKeys keys =
      KeysOfBackward(n, b, target.put_together() || reference.put_together());
  absl::flat_hash_map<absl::string_view, size_t> by_key;
  for (size_t i = 0; i < b.size(); ++i) {
    by_key.try_emplace(keys.reference[i], i);
  }
  match.reference_.assign(n.size(), -1);
  for (size_t i = 0; i < n.size(); ++i) {
    const auto it = by_key.find(keys.target[i]);
    if (it != by_key.end()) {
      match.reference_[i] = static_cast<int64_t>(it->second);
    }
  }
  return match;
}

bool DtypesArePartners(const DumpRow& target, const DumpRow& reference) {
  if (target.has_dtype != reference.has_dtype) return false;
  if (AreOneDtype(target.dtype, reference.dtype)) return true;
  const auto is_float = [](absl::string_view dtype) {
    absl::ConsumePrefix(&dtype, "torch.");
    return dtype == "float16" || dtype == "float32" || dtype == "bfloat16" ||
           dtype == "Float16" || dtype == "Float32" || dtype == "BFloat16";
  };
  return is_float(target.dtype) && is_float(reference.dtype);
}

absl::Status EntryComparison::Load(size_t target_index,
                                   std::optional<size_t> reference_index) {
  entry_ = target_->name(target_index);
  RP_RETURN_IF_ERROR(target_->Read(target_index, &target_record_));
  RP_RETURN_IF_ERROR(
      ReadRows(entry_, target_->stats(), &target_record_, &target_rows_));
  reference_rows_.clear();
  if (reference_index.has_value()) {
    RP_RETURN_IF_ERROR(reference_->Read(*reference_index, &reference_record_));
    RP_RETURN_IF_ERROR(ReadRows(reference_->name(*reference_index),
                                reference_->stats(), &reference_record_,
                                &reference_rows_));
  }
  only_in_reference_.clear();
  pairs_.clear();
  pairs_.resize(target_rows_.size());
  for (size_t i = 0; i < pairs_.size(); ++i)
    pairs_[i].target = &target_rows_[i];
  if (options_->rows.empty()) {
    RP_RETURN_IF_ERROR(PairBySuffix(
        reference_index.has_value() ? reference_->name(*reference_index) : ""));
  } else {
    RP_RETURN_IF_ERROR(PairByMap());
  }
  const DumpMode mode = target_->mode();
  const StatSet stats = target_->stats() | reference_->stats();
  for (RowPair& pair : pairs_) {
    ComparePair(mode, stats, &pair);
    if (mode == DumpMode::kTensor) {
      RP_RETURN_IF_ERROR(
          CompareRowData(file_system_, *target_, *reference_, &pair));
    }
  }
  VerdictOptions verdict_options;
  verdict_options.mode = mode;
  verdict_ = JudgeEntry(entry_, verdict_options, absl::MakeSpan(pairs_));
  return absl::OkStatus();
}

namespace {

// Returns PyTorch's name for a parameter of MindSpore's layers, or `name` if
// both use the same name.
absl::string_view PytorchParameter(absl::string_view name) {
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"gamma", "weight"},
      {"beta", "bias"},
      {"embedding_table", "weight"},
      {"moving_mean", "running_mean"},
      {"moving_variance", "running_var"}};
  for (const auto& [mindspore, pytorch] : kNames) {
    if (name == mindspore) return pytorch;
  }
  return name;
}

// Does the same for a row's place: ".parameters.gamma" or, for gradients,
// ".gamma".
std::string PytorchPlace(absl::string_view entry, absl::string_view place) {
  const size_t dot = place.rfind('.');
  const bool parameter = absl::StartsWith(place, ".parameters.") ||
                         absl::StrContains(entry, ".parameters_grad.");
  if (!parameter || dot == absl::string_view::npos) return std::string(place);
  return absl::StrCat(place.substr(0, dot + 1),
                      PytorchParameter(place.substr(dot + 1)));
}

}  // namespace

absl::Status EntryComparison::PairBySuffix(absl::string_view reference_entry) {
  const auto suffix = [](absl::string_view name, absl::string_view entry) {
    return absl::StartsWith(name, entry) ? name.substr(entry.size()) : name;
  };
  absl::flat_hash_map<absl::string_view, const DumpRow*> by_suffix;
  const ApiRule* const rule = FindApiRule(options_->apis, entry_);
  const bool crosses = target_->framework() == "mindspore" &&
                       reference_->framework() == "pytorch";
  std::optional<std::string> renamed;
  std::vector<bool> met(reference_rows_.size());
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const DumpRow& row = target_rows_[i];
    absl::string_view wanted = suffix(row.name, entry_);
    if (rule != nullptr) {
      renamed = RenamedPlace(*rule, wanted);
      if (!renamed.has_value()) continue;
      wanted = *renamed;
    } else if (crosses) {
      renamed = PytorchPlace(entry_, wanted);
      wanted = *renamed;
    }
    const DumpRow* partner = nullptr;
    // The common case: equal calls have equal rows at equal indices.
    if (i < reference_rows_.size() &&
        suffix(reference_rows_[i].name, reference_entry) == wanted) {
      partner = &reference_rows_[i];
    } else if (!reference_rows_.empty()) {
      if (by_suffix.empty()) {
        for (const DumpRow& reference : reference_rows_) {
          by_suffix.try_emplace(suffix(reference.name, reference_entry),
                                &reference);
        }
      }
      const auto it = by_suffix.find(wanted);
      if (it != by_suffix.end()) partner = it->second;
    }
    if (partner == nullptr) continue;
    met[static_cast<size_t>(partner - reference_rows_.data())] = true;
    if (options_->layers.has_value() || DtypesArePartners(row, *partner))
      pairs_[i].reference = partner;
  }
  // A rule lists all places that both APIs have, so the others are not
  // reported.
  for (size_t i = 0; rule == nullptr && i < met.size(); ++i) {
    if (!met[i]) only_in_reference_.push_back(&reference_rows_[i]);
  }
  return absl::OkStatus();
}

absl::Status EntryComparison::PairByMap() {
  absl::flat_hash_map<absl::string_view, absl::string_view> to;
  for (const auto& [from, name] : options_->rows) to[from] = name;
  mapped_.clear();
  for (RowPair& pair : pairs_) {
    const auto it = to.find(pair.target->name);
    const absl::string_view wanted =
        it == to.end() ? pair.target->name : it->second;
    // The entry is the longest prefix of the row's name that names an entry.
    for (size_t end = wanted.size(); end != absl::string_view::npos && end > 0;
         end = wanted.rfind('.', end - 1)) {
      const std::optional<size_t> index =
          reference_->Find(wanted.substr(0, end));
      if (!index.has_value()) continue;
      std::unique_ptr<Mapped>& mapped = mapped_[*index];
      if (mapped == nullptr) {
        mapped = std::make_unique<Mapped>();
        RP_RETURN_IF_ERROR(reference_->Read(*index, &mapped->record));
        RP_RETURN_IF_ERROR(ReadRows(reference_->name(*index),
                                    reference_->stats(), &mapped->record,
                                    &mapped->rows));
      }
      for (const DumpRow& row : mapped->rows) {
        if (row.name == wanted) pair.reference = &row;
      }
      break;
    }
  }
  return absl::OkStatus();
}

namespace {

// A .npy file may also hold an array of texts; OpenData skips it.
bool IsTensorFile(absl::string_view name) {
  return absl::EndsWith(name, ".pt") || absl::EndsWith(name, ".npy");
}

absl::StatusOr<std::optional<PtTensor>> OpenData(FileSystem* file_system,
                                                 const DumpReader& dump,
                                                 absl::string_view name) {
  if (name == "-1" || !IsTensorFile(name) || absl::StrContains(name, '/')) {
    return std::nullopt;
  }
  const std::string path = absl::StrCat(dump.data_dir(), "/", name);
  if (dump.data_dir().empty() || !file_system->Exists(path)) {
    return std::nullopt;
  }
  absl::StatusOr<PtTensor> tensor = OpenPt(file_system, path);
  if (absl::IsUnimplemented(tensor.status())) return std::nullopt;
  RP_RETURN_IF_ERROR(tensor.status());
  return std::make_optional(*std::move(tensor));
}

}  // namespace

absl::Status CompareRowData(FileSystem* file_system, const DumpReader& target,
                            const DumpReader& reference, RowPair* pair) {
  if (pair->reference == nullptr) {
    pair->tensor =
        NoMetrics(TensorMetrics::State::kUnsupported, "No bench data matched.");
    return absl::OkStatus();
  }
  RP_ASSIGN_OR_RETURN(const auto n,
                      OpenData(file_system, target, pair->target->data_name));
  RP_ASSIGN_OR_RETURN(const auto b, OpenData(file_system, reference,
                                             pair->reference->data_name));
  if (!n.has_value() || !b.has_value()) {
    const auto named = [&](const DumpReader& dump, const DumpRow& row) {
      // A .npy file of texts exists but holds no tensor.
      return absl::EndsWith(row.data_name, ".pt") ||
             (absl::EndsWith(row.data_name, ".npy") &&
              !file_system->Exists(
                  absl::StrCat(dump.data_dir(), "/", row.data_name)));
    };
    pair->data_missing = (!n.has_value() && named(target, *pair->target)) ||
                         (!b.has_value() && named(reference, *pair->reference));
    pair->tensor =
        NoMetrics(TensorMetrics::State::kUnsupported, "No real data.");
    return absl::OkStatus();
  }
  RP_ASSIGN_OR_RETURN(pair->tensor, CompareTensors(*n, *b));
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
