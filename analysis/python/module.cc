// rankprobe._analysis: the analysis as Python functions. rankprobe/analysis.py
// is its face. Work runs without the interpreter's lock; errors are ValueError.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/compare.h"
#include "analysis/divergence.h"
#include "analysis/dump_layout.h"
#include "analysis/first_nodes.h"
#include "analysis/input_files.h"
#include "analysis/mapping_files.h"
#include "analysis/replicas.h"
#include "analysis/visualize.h"
#include "common/status_macros.h"

namespace py = pybind11;

namespace rankprobe::analysis {
namespace {

using Columns = std::vector<std::vector<std::string>>;

struct Table {
  std::vector<std::string> header;
  Columns columns;
};

class MemoryTable : public TableSink {
 public:
  explicit MemoryTable(Columns* columns) : columns_(columns) {}
  absl::Status AddRow(absl::Span<const std::string> cells) override {
    columns_->resize(cells.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      (*columns_)[i].push_back(cells[i]);
    }
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  Columns* const columns_;
};

template <typename T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) {
    throw py::value_error(std::string(value.status().message()));
  }
  return *std::move(value);
}

// The files that a call reads, by the permission rule, and what is to be said
// when it is done.
class Input {
 public:
  explicit Input(bool force)
      : files_(NewInputFiles({force, [this](const std::string& text) {
                                warnings_.push_back(text);
                              }})) {}
  FileSystem* get() const { return files_.get(); }
  std::vector<std::string>* warnings() { return &warnings_; }
  // With the GIL.
  void Warn() const {
    for (const std::string& text : warnings_) {
      if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0)
        throw py::error_already_set();
    }
  }

 private:
  std::vector<std::string> warnings_;
  const std::unique_ptr<FileSystem> files_;
};

absl::StatusOr<Table> CompareTables(Input* files, const std::string& target,
                                    const std::string& golden,
                                    const MappingFiles& mappings) {
  RP_ASSIGN_OR_RETURN(const MatchOptions options,
                      ReadMappings(files->get(), mappings, files->warnings()));
  RP_ASSIGN_OR_RETURN(const DumpLayout n, FindDumps(files->get(), target));
  RP_ASSIGN_OR_RETURN(const DumpLayout b, FindDumps(files->get(), golden));
  RP_RETURN_IF_ERROR(CheckMappings(n, options));
  std::vector<std::string> unpaired;
  RP_ASSIGN_OR_RETURN(const auto pairs, PairDumps(n, b, &unpaired));
  Table table;
  for (const auto& [target_place, golden_place] : pairs) {
    DumpReader::Options open;
    open.debug = n.debug;
    open.construct = options.layers.has_value();
    RP_ASSIGN_OR_RETURN(
        const auto target_dump,
        DumpReader::Open(files->get(), target_place.directory, open));
    RP_ASSIGN_OR_RETURN(
        const auto golden_dump,
        DumpReader::Open(files->get(), golden_place.directory, open));
    Columns columns;
    MemoryTable sink(&columns);
    RP_RETURN_IF_ERROR(CompareDumps(files->get(), *target_dump, *golden_dump,
                                    options, &sink, nullptr, nullptr)
                           .status());
    std::vector<std::string> header =
        CompareHeader(target_dump->mode(), target_dump->has_stack());
    columns.resize(header.size());
    const size_t rows = columns[0].size();
    header.insert(header.begin(), {"step", "rank"});
    columns.insert(
        columns.begin(),
        {std::vector<std::string>(rows, std::to_string(target_place.step)),
         std::vector<std::string>(rows, std::to_string(target_place.rank))});
    if (table.header.empty()) {
      table.header = header;
      table.columns.resize(header.size());
    }
    if (table.header != header) {
      return absl::InvalidArgumentError(target_dump->path() +
                                        ": has other columns than the ranks "
                                        "before it");
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      table.columns[i].insert(table.columns[i].end(), columns[i].begin(),
                              columns[i].end());
    }
  }
  return table;
}

py::dict Compare(const std::string& target, const std::string& golden,
                 bool fuzzy, const std::optional<std::string>& layers,
                 const NameMapSource& cells, const NameMapSource& data,
                 const std::string& apis, bool force) {
  Input input(force);
  MappingFiles mappings;
  mappings.fuzzy = fuzzy;
  mappings.layers = layers;
  mappings.cells = cells;
  mappings.data = data;
  mappings.apis = apis;
  absl::StatusOr<Table> table;
  {
    const py::gil_scoped_release unlocked;
    table = CompareTables(&input, target, golden, mappings);
  }
  input.Warn();
  const Table result = OrThrow(std::move(table));
  py::dict out;
  for (size_t i = 0; i < result.header.size(); ++i) {
    out[py::str(result.header[i])] = py::cast(result.columns[i]);
  }
  return out;
}

py::dict FirstDivergence(const std::string& target, const std::string& golden,
                         std::optional<double> tolerance,
                         const std::string& noise, bool fuzzy, bool force) {
  Input files(force);
  Tolerance limits;
  limits.fixed = tolerance;
  limits.noise = noise;
  MatchOptions options;
  options.fuzzy = fuzzy;
  absl::StatusOr<DivergenceReport> found;
  {
    const py::gil_scoped_release unlocked;
    found = FindDivergence(files.get(), target, golden, options, limits);
  }
  files.Warn();
  const DivergenceReport report = OrThrow(std::move(found));
  py::list origins;
  for (const Divergence& d : report.origins) {
    py::dict one;
    one["step"] = d.step;
    one["rank"] = d.rank;
    one["call"] = d.call;
    one["golden_call"] = d.golden_call;
    one["row"] = d.row;
    one["from_outside"] = d.from_outside;
    one["target"] = d.target_values;
    one["golden"] = d.golden_values;
    one["difference"] = d.difference;
    one["tolerance"] = d.tolerance;
    one["noise"] = d.noise;
    one["inputs_matched"] = d.inputs_matched;
    one["inputs_unknown"] = d.inputs_unknown;
    one["stack"] = d.stack;
    origins.append(one);
  }
  py::list carried;
  for (const DivergenceReport::Carried& c : report.carried) {
    py::dict one;
    one["step"] = c.step;
    one["rank"] = c.rank;
    one["call"] = c.call;
    one["from_rank"] = c.from_rank;
    carried.append(one);
  }
  py::dict unseen;
  unseen["only_in_target"] = report.unseen.only_in_target;
  unseen["only_in_golden"] = report.unseen.only_in_golden;
  unseen["rows_without_partner"] = report.unseen.rows_without_partner;
  unseen["rows_without_values"] = report.unseen.rows_without_values;
  unseen["lost"] = report.unseen.lost;
  unseen["examples"] = report.unseen.examples;
  py::dict out;
  out["origins"] = origins;
  out["carried"] = carried;
  out["unseen"] = unseen;
  out["calls_compared"] = report.calls_compared;
  out["calls_differing"] = report.calls_differing;
  return out;
}

py::list Replicas(const std::string& dump,
                  const std::vector<std::vector<int64_t>>& groups,
                  bool gradients, bool force) {
  Input files(force);
  ReplicaOptions options;
  options.groups = groups;
  options.gradients = gradients;
  absl::StatusOr<ReplicaReport> found;
  {
    const py::gil_scoped_release unlocked;
    found = CheckReplicas(files.get(), dump, options);
  }
  files.Warn();
  py::list out;
  for (const ReplicaDifference& d : OrThrow(std::move(found)).differences) {
    py::dict one;
    one["kind"] = ReplicaKindName(d.kind);
    one["step"] = d.step;
    one["row"] = d.row;
    one["values"] = d.values;
    out.append(one);
  }
  return out;
}

// Ranks, tensor, pipeline and virtual pipeline sizes, and the order.
using LayoutTuple = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;

std::optional<ParallelLayout> LayoutOf(
    const std::optional<LayoutTuple>& sizes) {
  if (!sizes.has_value()) return std::nullopt;
  ParallelLayout layout;
  std::tie(layout.ranks, layout.tensor, layout.pipeline,
           layout.virtual_pipeline, layout.order) = *sizes;
  return layout;
}

std::string Graph(const std::string& path, const std::string& target,
                  const std::string& golden, bool overflow_check, bool fuzzy,
                  const std::string& layer_mapping,
                  const std::optional<LayoutTuple>& target_layout,
                  const std::optional<LayoutTuple>& golden_layout,
                  bool merged_as_dump, bool force) {
  VisualizeOptions options;
  options.target = target;
  options.golden = golden;
  options.overflow_check = overflow_check;
  options.fuzzy = fuzzy;
  options.layer_mapping = layer_mapping;
  options.target_layout = LayoutOf(target_layout);
  options.golden_layout = LayoutOf(golden_layout);
  options.merged_as_dump = merged_as_dump;
  Input files(force);
  absl::StatusOr<VisualizeResult> result;
  {
    const py::gil_scoped_release unlocked;
    result = Visualize(files.get(), options, path, nullptr);
  }
  for (const std::string& text : OrThrow(std::move(result)).warnings)
    files.warnings()->push_back(text);
  files.Warn();
  return path;
}

}  // namespace
}  // namespace rankprobe::analysis

PYBIND11_MODULE(_analysis, module) {
  using namespace rankprobe::analysis;
  module.def("compare", &Compare, py::arg("target"), py::arg("golden"),
             py::arg("fuzzy") = false, py::arg("layers") = py::none(),
             py::arg("cells") = "", py::arg("data") = "", py::arg("apis") = "",
             py::arg("force") = false);
  module.def("first_divergence", &FirstDivergence, py::arg("target"),
             py::arg("golden"), py::arg("tolerance") = py::none(),
             py::arg("noise") = "", py::arg("fuzzy") = false,
             py::arg("force") = false);
  module.def("replicas", &Replicas, py::arg("dump"),
             py::arg("groups") = std::vector<std::vector<int64_t>>(),
             py::arg("gradients") = false, py::arg("force") = false);
  module.def("graph", &Graph, py::arg("path"), py::arg("target"),
             py::arg("golden") = "", py::arg("overflow_check") = false,
             py::arg("fuzzy") = false, py::arg("layer_mapping") = "",
             py::arg("target_layout") = py::none(),
             py::arg("golden_layout") = py::none(),
             py::arg("merged_as_dump") = false, py::arg("force") = false);
}
