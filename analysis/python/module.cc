// SPDX-License-Identifier: Apache-2.0
// rankprobe._analysis: the analysis as Python functions. rankprobe/analysis.py
// is its public interface. Work runs without the GIL; errors are raised as
// ValueError.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "analysis/compare/entry_match.h"
#include "analysis/compare/layer_mapping.h"
#include "analysis/compare/mapping_files.h"
#include "analysis/compare/run_compare.h"
#include "analysis/graph_view/graph_visualize.h"
#include "analysis/layout/joined_dumps.h"
#include "analysis/root_cause/first_divergence.h"
#include "analysis/root_cause/overflow_check.h"
#include "analysis/root_cause/replicas.h"
#include "analysis/root_cause/report_messages.h"
#include "common/base/status_macros.h"
#include "common/records/entry_names.h"
#include "dump_format/dump_layout.h"
#include "dump_format/input_files.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

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

// Checks the permissions of the files that a call reads, and collects the
// warnings to issue when it is done.
class Input {
 public:
  explicit Input(bool force)
      : files_(NewInputFiles({force, [this](const std::string& text) {
                                warnings_.push_back(text);
                              }})) {}
  FileSystem* get() const { return files_.get(); }
  std::vector<std::string>* warnings() { return &warnings_; }
  // Requires the GIL.
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

// One table of all steps and ranks, with a leading column for each.
class WholeTable : public CompareVisitor {
 public:
  absl::StatusOr<TableSink*> BeginRank(const DumpPlace& place,
                                       const DumpReader& dump,
                                       StatSet stats) override {
    std::vector<std::string> header =
        CompareHeader(dump.mode(), stats, dump.has_stack());
    columns_.assign(header.size(), {});
    header.insert(header.begin(), {"step", "rank"});
    if (!mode_.has_value()) mode_ = dump.mode();
    if (*mode_ != dump.mode()) {
      return absl::InvalidArgumentError(
          dump.path() + ": has other columns than the ranks before it");
    }
    // Steps may differ in their statistics and in having stacks: the table has
    // the columns of all steps, in order of appearance.
    for (const std::string& name : header) {
      if (absl::c_linear_search(table_.header, name)) continue;
      table_.header.push_back(name);
      table_.columns.emplace_back(rows_, "N/A");
    }
    header_ = std::move(header);
    sink_.emplace(&columns_);
    return &*sink_;
  }
  absl::Status EndRank(const DumpPlace& place, std::unique_ptr<DumpReader> dump,
                       const CompareCounts& counts,
                       bool last_of_step) override {
    const size_t rows = columns_[0].size();
    columns_.insert(
        columns_.begin(),
        {std::vector<std::string>(rows, std::to_string(place.step)),
         std::vector<std::string>(rows, std::to_string(place.rank))});
    rows_ += rows;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto at = absl::c_find(table_.header, header_[i]);
      std::move(
          columns_[i].begin(), columns_[i].end(),
          std::back_inserter(
              table_.columns[static_cast<size_t>(at - table_.header.begin())]));
    }
    for (std::vector<std::string>& column : table_.columns)
      column.resize(rows_, "N/A");
    return absl::OkStatus();
  }
  Table Take() { return std::move(table_); }

 private:
  Table table_;
  size_t rows_ = 0;
  std::optional<DumpMode> mode_;
  // State of the current rank.
  std::vector<std::string> header_;
  Columns columns_;
  std::optional<MemoryTable> sink_;
};

absl::StatusOr<Table> CompareTables(Input* files, const std::string& target,
                                    const std::string& reference,
                                    const MappingFiles& mappings) {
  RP_ASSIGN_OR_RETURN(const MatchOptions options,
                      ReadMappings(files->get(), mappings, files->warnings()));
  RP_ASSIGN_OR_RETURN(const DumpLayout n, FindDumps(files->get(), target));
  RP_ASSIGN_OR_RETURN(const DumpLayout b, FindDumps(files->get(), reference));
  std::vector<std::string> unpaired;
  WholeTable table;
  RP_RETURN_IF_ERROR(
      RunCompare(files->get(), n, b, options, &table, &unpaired));
  return table.Take();
}

absl::StatusOr<DivergenceReport> Diverge(Input* files,
                                         const std::string& target,
                                         const std::string& reference,
                                         const MappingFiles& mappings,
                                         const Tolerance& tolerance) {
  RP_ASSIGN_OR_RETURN(const MatchOptions options,
                      ReadMappings(files->get(), mappings, files->warnings()));
  return FindDivergence(files->get(), target, reference, options, tolerance);
}

py::object ToPython(const google::protobuf::Message& message,
                    const google::protobuf::FieldDescriptor& field, int index);

// Returns every field of a message by its name; an absent optional field is
// None.
py::dict ToDict(const google::protobuf::Message& message) {
  py::dict out;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field =
        *message.GetDescriptor()->field(i);
    py::object value = py::none();
    if (field.is_repeated()) {
      py::list items;
      for (int k = 0; k < reflection.FieldSize(message, &field); ++k)
        items.append(ToPython(message, field, k));
      value = items;
    } else if (!field.has_presence() || reflection.HasField(message, &field)) {
      value = ToPython(message, field, -1);
    }
    out[py::str(field.name())] = value;
  }
  return out;
}

// Converts one value; `index` is -1 for a singular field. Covers the kinds of
// fields in analysis.proto.
py::object ToPython(const google::protobuf::Message& message,
                    const google::protobuf::FieldDescriptor& field, int index) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& r = *message.GetReflection();
  const bool many = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return py::int_(many ? r.GetRepeatedInt64(message, &field, index)
                           : r.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return py::bool_(many ? r.GetRepeatedBool(message, &field, index)
                            : r.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return py::float_(many ? r.GetRepeatedDouble(message, &field, index)
                             : r.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return py::str(many ? r.GetRepeatedString(message, &field, index)
                          : r.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToDict(many ? r.GetRepeatedMessage(message, &field, index)
                         : r.GetMessage(message, &field));
    default:
      throw py::type_error("no Python value for " + field.full_name());
  }
}

py::dict Compare(const std::string& target, const std::string& reference,
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
    table = CompareTables(&input, target, reference, mappings);
  }
  input.Warn();
  const Table result = OrThrow(std::move(table));
  py::dict out;
  for (size_t i = 0; i < result.header.size(); ++i) {
    out[py::str(result.header[i])] = py::cast(result.columns[i]);
  }
  return out;
}

py::dict FirstDivergence(const std::string& target,
                         const std::string& reference,
                         std::optional<double> tolerance,
                         const std::string& noise, bool fuzzy,
                         const std::optional<std::string>& layers,
                         const std::string& apis, bool force) {
  Input files(force);
  Tolerance limits;
  limits.fixed = tolerance;
  limits.noise = noise;
  MappingFiles mappings;
  mappings.fuzzy = fuzzy;
  mappings.layers = layers;
  mappings.apis = apis;
  absl::StatusOr<DivergenceReport> found;
  {
    const py::gil_scoped_release unlocked;
    found = Diverge(&files, target, reference, mappings, limits);
  }
  files.Warn();
  return ToDict(ToMessage(OrThrow(std::move(found))));
}

// Returns the paths that the modules (path, class) have in a reference.
std::vector<std::string> ModuleNames(
    const std::vector<std::pair<std::string, std::string>>& modules,
    const std::optional<std::string>& layers, const NameMapSource& cells,
    bool force) {
  Input input(force);
  MappingFiles mappings;
  mappings.layers = layers;
  mappings.cells = cells;
  const MatchOptions options =
      OrThrow(ReadMappings(input.get(), mappings, input.warnings()));
  input.Warn();
  absl::flat_hash_map<std::string, std::string> classes;
  for (const auto& [path, name] : modules) classes[path] = name;
  std::vector<std::string> out;
  out.reserve(modules.size());
  for (const auto& [path, name] : modules) {
    if (options.layers.has_value()) {
      out.push_back(MapLayerPath(*options.layers, classes, path));
      continue;
    }
    const std::string entry = MapCell(
        absl::StrCat("Module.", path, ".", name, ".forward.0"), options.cells);
    const std::string module(ModuleOfEntry(entry));
    const size_t begin = module.find('.') + 1, end = module.rfind('.');
    out.push_back(end > begin ? module.substr(begin, end - begin) : path);
  }
  return out;
}

std::vector<std::string> PutTogether(const std::string& target,
                                     const std::string& reference,
                                     const std::string& directory,
                                     bool split_batch,
                                     const std::string& layout, bool force) {
  Input files(force);
  LayoutOptions options;
  options.split_batch = split_batch;
  if (layout != "auto") {
    options.file = OrThrow(ReadLayoutFile(files.get(), layout));
  }
  absl::StatusOr<LayoutReport> report;
  {
    const py::gil_scoped_release unlocked;
    report = [&]() -> absl::StatusOr<LayoutReport> {
      RP_ASSIGN_OR_RETURN(const DumpLayout n, FindDumps(files.get(), target));
      RP_ASSIGN_OR_RETURN(const DumpLayout b,
                          FindDumps(files.get(), reference));
      return JoinDumps(files.get(), n, b, options, directory);
    }();
  }
  files.Warn();
  return LayoutTexts(OrThrow(std::move(report)));
}

py::dict Replicas(const std::string& dump,
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
  return ToDict(ToMessage(OrThrow(std::move(found))));
}

py::dict Overflow(const std::string& dump, bool force) {
  Input files(force);
  absl::StatusOr<OverflowFindings> found;
  {
    const py::gil_scoped_release unlocked;
    found = CheckOverflow(files.get(), dump);
  }
  files.Warn();
  return ToDict(ToMessage(OrThrow(std::move(found)), ""));
}

// Numbers of ranks, tensor, pipeline and virtual pipeline sizes, and the order.
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
                  const std::string& reference, bool overflow_check, bool fuzzy,
                  const std::string& layer_mapping,
                  const std::optional<LayoutTuple>& target_layout,
                  const std::optional<LayoutTuple>& reference_layout,
                  bool merged_as_dump, bool force) {
  VisualizeOptions options;
  options.target = target;
  options.reference = reference;
  options.overflow_check = overflow_check;
  options.fuzzy = fuzzy;
  options.layer_mapping = layer_mapping;
  options.target_layout = LayoutOf(target_layout);
  options.reference_layout = LayoutOf(reference_layout);
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
  module.def("compare", &Compare, py::arg("target"), py::arg("reference"),
             py::arg("fuzzy") = false, py::arg("layers") = py::none(),
             py::arg("cells") = "", py::arg("data") = "", py::arg("apis") = "",
             py::arg("force") = false);
  module.def("first_divergence", &FirstDivergence, py::arg("target"),
             py::arg("reference"), py::arg("tolerance") = py::none(),
             py::arg("noise") = "", py::arg("fuzzy") = false,
             py::arg("layers") = py::none(), py::arg("apis") = "",
             py::arg("force") = false);
  module.def("put_together", &PutTogether, py::arg("target"),
             py::arg("reference"), py::arg("directory"),
             py::arg("split_batch") = false, py::arg("layout") = "auto",
             py::arg("force") = false);
  module.def("replicas", &Replicas, py::arg("dump"),
             py::arg("groups") = std::vector<std::vector<int64_t>>(),
             py::arg("gradients") = false, py::arg("force") = false);
  module.def("module_names", &ModuleNames, py::arg("modules"),
             py::arg("layers") = py::none(), py::arg("cells") = "",
             py::arg("force") = false);
  module.def("overflow_check", &Overflow, py::arg("dump"),
             py::arg("force") = false);
  module.def("graph", &Graph, py::arg("path"), py::arg("target"),
             py::arg("reference") = "", py::arg("overflow_check") = false,
             py::arg("fuzzy") = false, py::arg("layer_mapping") = "",
             py::arg("target_layout") = py::none(),
             py::arg("reference_layout") = py::none(),
             py::arg("merged_as_dump") = false, py::arg("force") = false);
}
