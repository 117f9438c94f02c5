// SPDX-License-Identifier: Apache-2.0
#include "analysis/layout/step_ranks.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "analysis/calls/unwritten_tensors.h"
#include "analysis/layout/joined_step.h"
#include "analysis/layout/record_leaves.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

constexpr absl::string_view kModulePrefix = "Module.";
constexpr absl::string_view kWrapped = "module.";

// Returns the position of ".forward" or its counterparts in the name of a
// module's entry.
size_t DirectionAt(absl::string_view entry) {
  for (const absl::string_view word :
       {".forward", ".backward", ".parameters_grad"}) {
    const size_t at = entry.rfind(word);
    if (at != absl::string_view::npos) return at;
  }
  return absl::string_view::npos;
}

// Returns the DTensors of a value if `placed`, else its plain tensors.
std::vector<TensorPart> PartsIn(const JsonValue& value, bool placed,
                                int64_t rank, StatSet stats) {
  std::vector<TensorPart> out;
  std::string place;
  EachLeaf(value, &place, [&](const std::string&, const JsonValue& leaf) {
    if ((leaf.Find("device_mesh") != nullptr) != placed) return;
    auto part = ReadTensorPart(rank, stats, leaf);
    if (part.ok() && part->mesh.has_value() == placed) {
      out.push_back(*std::move(part));
    }
  });
  return out;
}

bool HasFeatures(const JsonValue* value, int64_t features) {
  if (value == nullptr) return false;
  const std::vector<TensorPart> parts = PartsIn(*value, false, 0, StatSet());
  return std::any_of(parts.begin(), parts.end(), [&](const TensorPart& part) {
    return !part.shape.empty() && part.shape.back() == features;
  });
}

// Turns "Module.a.Experts.backward.0" into "Module.a.Experts".
absl::string_view ModuleOf(absl::string_view call) {
  for (const absl::string_view word : {".forward.", ".backward."}) {
    const size_t end = call.rfind(word);
    if (end != absl::string_view::npos) return call.substr(0, end);
  }
  return call;
}

bool IsShared(const TensorPart& weight, int64_t dim) {
  return weight.mesh->ranks.size() > 1 && weight.mesh->shape.size() == 1 &&
         weight.placements.size() == 1 &&
         weight.placements[0].kind == Placement::Kind::kShard &&
         weight.placements[0].dim == dim;
}

// Whether the weight holds the stacked matrices of several experts.
bool HasSomeExperts(const TensorPart& weight) {
  return weight.shape.size() == 3 && IsShared(weight, 0);
}

// Whether a linear module computes with its part of the weight. With a part of
// the rows it outputs that many features, with a part of the columns it takes
// that many inputs. If the weight is sharded only for storage, tensors have all
// features.
bool ComputesWithPart(const TensorPart& weight, const JsonValue& call) {
  if (weight.shape.size() != 2) return false;
  return (IsShared(weight, 0) &&
          HasFeatures(call.Find("output"), weight.shape[0])) ||
         (IsShared(weight, 1) &&
          HasFeatures(call.Find("input_args"), weight.shape[1]));
}

}  // namespace

int CountWrappers(const DumpReader& dump) {
  std::optional<int> fewest;
  for (size_t i = 0; i < dump.size(); ++i) {
    absl::string_view name = dump.name(i);
    if (!absl::ConsumePrefix(&name, kModulePrefix)) continue;
    // The words of the path, without the class and the parts after it.
    const size_t after_class = DirectionAt(name);
    if (after_class == absl::string_view::npos) continue;
    const size_t end = name.substr(0, after_class).rfind('.');
    absl::string_view path = end == absl::string_view::npos
                                 ? absl::string_view()
                                 : name.substr(0, end + 1);
    int above = 0;
    while (absl::ConsumePrefix(&path, kWrapped)) ++above;
    // Skips the wrappers themselves and the object in the outermost wrapper.
    if (path.empty() && above > 0) continue;
    if (!fewest.has_value() || above < *fewest) fewest = above;
  }
  return fewest.value_or(0);
}

std::string NameWithoutSharding(absl::string_view entry, int wrappers) {
  std::string out(entry);
  if (!absl::StartsWith(entry, kModulePrefix)) return out;
  const size_t end = DirectionAt(entry);
  if (end != absl::string_view::npos) {
    const size_t begin = entry.rfind('.', end - 1) + 1;
    const absl::string_view name = entry.substr(begin, end - begin);
    if (absl::StartsWith(name, "FSDP") && name.size() > 4 &&
        absl::ascii_isupper(static_cast<unsigned char>(name[4]))) {
      out.erase(begin, 4);
    }
  }
  for (; wrappers > 0; --wrappers) {
    if (!absl::StartsWith(absl::string_view(out).substr(kModulePrefix.size()),
                          kWrapped)) {
      break;
    }
    out.erase(kModulePrefix.size(), kWrapped.size());
  }
  return out;
}

absl::StatusOr<std::unique_ptr<DumpReader>> OpenWithTree(
    FileSystem* file_system, const std::string& directory) {
  DumpReader::Options options;
  options.keep_text = true;
  options.notes = true;
  // The file of a dump of calls alone is an empty tree, "{}".
  const auto construct = file_system->FileSize(directory + "/construct.json");
  options.construct = construct.ok() && *construct > 4;
  return DumpReader::Open(file_system, directory, options);
}

const TensorNote* StepRanks::NoteOf(const Source& source,
                                    absl::string_view place) const {
  const DumpReader& dump = *dumps_[source.rank];
  return dump.notes().Find(absl::StrCat(dump.name(source.entry), RowOf(place)));
}

bool StepRanks::IsUnwritten(const Source& source,
                            absl::string_view place) const {
  const DumpReader& dump = *dumps_[source.rank];
  return absl::ConsumePrefix(&place, ".input_args.") &&
         UnwrittenTensors(dump.name(source.entry), &dump.notes())
             .HasInput(place.substr(0, place.find('.')));
}

std::string StepRanks::NameOf(size_t rank, absl::string_view name) const {
  if (rank < call_names_.size()) {
    const auto [call, direction] = SplitDirection(name);
    const auto it = call_names_[rank].find(call);
    if (it != call_names_[rank].end()) {
      return absl::StrCat(it->second, direction);
    }
  }
  return NameWithoutSharding(name, wrappers_);
}

std::string StepRanks::ParentOf(const Call& call) const {
  const Source& source = call.sources[0];
  const auto& parents = parents_[source.rank];
  const auto it = parents.find(dumps_[source.rank]->name(source.entry));
  return it == parents.end() ? "" : NameOf(source.rank, it->second);
}

std::string StepRanks::ExpertsOf(const Call& call) const {
  if (shared_experts_.empty()) return "";
  const Source& source = call.sources[0];
  const auto& parents = parents_[source.rank];
  absl::string_view name = dumps_[source.rank]->name(source.entry);
  // No real tree is deeper; a damaged one may have a cycle.
  for (int depth = 0; depth < 100; ++depth) {
    const auto it = parents.find(name);
    if (it == parents.end()) return "";
    name = it->second;
    std::string experts = NameOf(source.rank, name);
    if (shared_experts_.contains(ModuleOf(experts))) return experts;
  }
  return "";
}

void StepRanks::Describe(const Call& call, LayoutFacts* facts) const {
  facts->inside_experts = !ExpertsOf(call).empty();
  facts->function_gradients = !absl::StartsWith(call.name, "Module.") &&
                              absl::EndsWith(call.name, ".backward");
}

absl::StatusOr<StepRanks> StepRanks::Open(FileSystem* file_system,
                                          absl::Span<const DumpPlace> ranks,
                                          const DumpReader* whole,
                                          int wrappers) {
  StepRanks out;
  out.wrappers_ = wrappers;
  for (const DumpPlace& place : ranks) {
    RP_ASSIGN_OR_RETURN(auto dump, OpenWithTree(file_system, place.directory));
    if (dump->mode() == DumpMode::kMd5 ||
        dump->mode() == DumpMode::kStructure) {
      return absl::InvalidArgumentError(absl::StrCat(
          dump->path(), ": holds ",
          dump->mode() == DumpMode::kMd5 ? "checksums" : "no values",
          ", from which no complete tensor can be assembled; record task "
          "statistics or tensor"));
    }
    if (!out.dumps_.empty() && dump->mode() != out.dumps_[0]->mode()) {
      return absl::InvalidArgumentError(absl::StrCat(dump->path(), " and ",
                                                     out.dumps_[0]->path(),
                                                     ": their tasks differ"));
    }
    auto& parents = out.parents_.emplace_back();
    for (const ConstructEdge& edge : dump->construct()) {
      if (edge.parent.has_value()) parents[edge.child] = *edge.parent;
    }
    out.dumps_.push_back(std::move(dump));
    out.ranks_.push_back(place.rank);
  }
  if (whole != nullptr) {
    out.call_names_ = NamesInWhole(out.dumps_, out.ranks_, *whole, wrappers);
  }
  out.Order(whole);
  RP_RETURN_IF_ERROR(out.ReadModules());
  return out;
}

void StepRanks::Order(const DumpReader* whole) {
  std::list<Call> order;
  absl::flat_hash_map<std::string, std::list<Call>::iterator> known;
  bool all_have_all = true;
  for (size_t rank = 0; rank < dumps_.size(); ++rank) {
    // A call that this rank has and earlier ranks do not have is inserted after
    // the call before it.
    auto after = order.end();
    for (size_t i = 0; i < dumps_[rank]->size(); ++i) {
      std::string name = NameOf(rank, dumps_[rank]->name(i));
      auto [it, fresh] = known.try_emplace(name, order.end());
      if (fresh) {
        all_have_all = all_have_all && rank == 0;
        it->second =
            order.insert(after == order.end() ? order.end() : std::next(after),
                         Call{std::move(name), {}});
      }
      std::vector<Source>& sources = it->second->sources;
      if (sources.empty() || sources.back().rank != rank) {
        sources.push_back({rank, i});
      }
      after = it->second;
    }
  }
  for (Call& call : order) {
    all_have_all = all_have_all && call.sources.size() == dumps_.size();
    calls_.push_back(std::move(call));
  }
  if (all_have_all || whole == nullptr) return;
  // For pipeline stages, the run that has all calls determines their order.
  std::vector<size_t> place(calls_.size());
  size_t last = 0;
  for (size_t i = 0; i < calls_.size(); ++i) {
    last = whole->Find(calls_[i].name).value_or(last);
    place[i] = last;
  }
  std::vector<size_t> sorted(calls_.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](size_t a, size_t b) { return place[a] < place[b]; });
  std::vector<Call> calls;
  calls.reserve(sorted.size());
  for (const size_t i : sorted) calls.push_back(std::move(calls_[i]));
  calls_ = std::move(calls);
}

// Ranks whose modules compute with one DTensor belong to one model. A parameter
// counts only if a module computes with its own part of it, because ranks of
// FSDP also share parameters but compute independently.
absl::Status StepRanks::ReadModules() {
  std::map<int64_t, int64_t> parent;
  const auto root = [&parent](int64_t rank) {
    while (true) {
      const auto it = parent.try_emplace(rank, rank).first;
      if (it->second == rank) return rank;
      rank = it->second;
    }
  };
  const auto one_model = [&](const DeviceMesh& mesh) {
    const int64_t first = root(mesh.ranks[0]);
    for (const int64_t other : mesh.ranks) parent[root(other)] = first;
  };
  JsonDocument record;
  for (size_t rank = 0; rank < dumps_.size() && dumps_.size() > 1; ++rank) {
    const DumpReader& dump = *dumps_[rank];
    for (size_t i = 0; i < dump.size(); ++i) {
      const absl::string_view name = dump.name(i);
      if (!absl::StartsWith(name, "Module.") ||
          absl::StrContains(name, ".parameters_grad")) {
        continue;
      }
      RP_RETURN_IF_ERROR(dump.Read(i, &record));
      for (const JsonMember& section : record.root().fields()) {
        if (section.key == "parameters") continue;
        for (const TensorPart& part :
             PartsIn(section.value, true, ranks_[rank], dump.stats())) {
          one_model(*part.mesh);
        }
      }
      const JsonValue* const parameters = record.root().Find("parameters");
      if (parameters == nullptr) continue;
      for (const TensorPart& weight :
           PartsIn(*parameters, true, ranks_[rank], dump.stats())) {
        if (ComputesWithPart(weight, record.root())) one_model(*weight.mesh);
        if (HasSomeExperts(weight)) {
          shared_experts_.emplace(ModuleOf(NameOf(rank, name)));
        }
      }
    }
  }
  for (const auto& [rank, unused] : parent) groups_[rank] = root(rank);
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
