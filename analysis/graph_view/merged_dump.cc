// SPDX-License-Identifier: Apache-2.0
#include "analysis/graph_view/merged_dump.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/text/json_text.h"
#include "dump_format/dump_rows.h"
#include "dump_format/json_value.h"
#include "dump_format/statistics.h"

namespace rankprobe::analysis {
namespace {

constexpr size_t kFlushBytes = 1 << 20;

// Writes one record with the merged statistics.
class RecordWriter {
 public:
  RecordWriter(const GraphNode& node, JsonTextWriter* out)
      : node_(node), out_(out), is_gradient_(IsParametersGradEntry(node.id)) {}

  // `input` and `output` are the records of the two sides.
  void Write(const JsonValue& input, const JsonValue& output) {
    out_->Key(node_.id);
    out_->BeginObject();
    bool has_output = false;
    for (const JsonMember& member : input.fields()) {
      const JsonValue* value = &member.value;
      if (member.key == "output") {
        has_output = true;
        value = output.Find("output");
        if (value == nullptr) continue;
      }
      Section(member.key, *value);
    }
    const JsonValue* const other = output.Find("output");
    if (!has_output && other != nullptr) Section("output", *other);
    if (node_.merged != nullptr && !node_.merged->notes.empty()) {
      out_->Key("parallel_merge_info");
      out_->BeginArray();
      for (const std::string& note : node_.merged->notes) out_->String(note);
      out_->EndArray();
    }
    out_->EndObject();
  }

 private:
  void Section(absl::string_view key, const JsonValue& value) {
    out_->Key(key);
    // Positional and keyword inputs share one numbering.
    const bool own_place =
        is_gradient_ || key == "output" || key == "parameters";
    Value(value, own_place ? absl::StrCat(".", key) : ".input");
  }

  // `place` is the part of the row's name after the node's name.
  void Value(const JsonValue& value, const std::string& place) {
    if (value.is_object()) {
      Object(value, place);
    } else if (value.is_array()) {
      out_->BeginArray();
      size_t index = 0;
      for (const JsonValue& item : value.items()) {
        Value(item, is_gradient_ ? place : absl::StrCat(place, ".", index));
        ++index;
      }
      out_->EndArray();
    } else {
      WriteJson(value, out_);
    }
  }

  void Object(const JsonValue& value, const std::string& place) {
    const JsonValue* const type = value.Find("type");
    const bool is_leaf = type != nullptr && type->is_string();
    // A P2POp is represented by the row of its tensor.
    const bool is_wrapper = value.Find("class_type") != nullptr;
    const MergedValues::Stats* const stats = is_leaf ? StatsOf(place) : nullptr;
    out_->BeginObject();
    for (const JsonMember& member : value.fields()) {
      out_->Key(member.key);
      if (stats != nullptr && Number(*stats, member.key)) continue;
      Value(member.value, is_leaf || is_wrapper
                              ? place
                              : absl::StrCat(place, ".", member.key));
    }
    out_->EndObject();
  }

  const MergedValues::Stats* StatsOf(const std::string& place) const {
    if (node_.merged == nullptr) return nullptr;
    for (const MergedValues::Stats& stats : node_.merged->stats) {
      if (stats.place == place) return &stats;
    }
    return nullptr;
  }

  bool Number(const MergedValues::Stats& stats, absl::string_view key) {
    for (size_t i = 0; i < kStatCount; ++i) {
      if (key != kStatInfo[i].key || !stats.numbers[i].has_value()) continue;
      if (stats.numbers[i]->is_null) {
        out_->Null();
      } else if (stats.numbers[i]->is_int) {
        out_->Raw(stats.numbers[i]->text);
      } else {
        out_->Float(stats.numbers[i]->value);
      }
      return true;
    }
    return false;
  }

  const GraphNode& node_;
  JsonTextWriter* const out_;
  const bool is_gradient_;
};

std::string ConstructText(const Graph& graph,
                          const std::vector<int32_t>& order) {
  std::string text;
  JsonTextWriter out(&text);
  out.BeginObject();
  for (const int32_t index : order) {
    const GraphNode& node = graph.nodes()[static_cast<size_t>(index)];
    if (node.parent < 0) continue;
    out.Key(node.id);
    const std::string& parent =
        graph.nodes()[static_cast<size_t>(node.parent)].id;
    if (graph.micro_step_count() > 0 && node.micro_step.has_value()) {
      out.BeginArray();
      out.String(parent);
      out.Int(*node.micro_step);
      out.EndArray();
    } else {
      out.String(parent);
    }
  }
  if (graph.micro_step_count() > 0) {
    out.Key("megatron_micro_step_number");
    out.Int(graph.micro_step_count() - 1);
  }
  out.EndObject();
  return text;
}

std::string StackText(const GraphSide& side,
                      const std::vector<int32_t>& order) {
  // Maps frames to nodes; groups are in the order of their first node.
  std::map<std::vector<std::string>, size_t> known;
  std::vector<std::pair<const std::vector<std::string>*,
                        std::vector<absl::string_view>>>
      groups;
  for (const int32_t index : order) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    if (!node.stack.has_value()) continue;
    const std::vector<std::string>& frames =
        (*side.dumps)[static_cast<size_t>(node.dump)]->stacks()[*node.stack];
    if (frames.empty()) continue;
    const auto [it, is_new] = known.try_emplace(frames, groups.size());
    if (is_new) groups.push_back({&it->first, {}});
    groups[it->second].second.push_back(node.id);
  }
  std::string text;
  JsonTextWriter out(&text);
  out.BeginObject();
  for (size_t i = 0; i < groups.size(); ++i) {
    out.Key(absl::StrCat(i));
    out.BeginArray();
    out.BeginArray();
    for (const absl::string_view node : groups[i].second) out.String(node);
    out.EndArray();
    out.BeginArray();
    for (const std::string& frame : *groups[i].first) out.String(frame);
    out.EndArray();
    out.EndArray();
  }
  out.EndObject();
  return text;
}

// Reads the record of a side, or an empty one if the side has none.
absl::Status ReadSource(const Dumps& dumps, const NodeSource& source,
                        JsonDocument* record) {
  if (!source.entry.has_value()) return record->Parse("{}");
  return dumps[static_cast<size_t>(source.dump)]->Read(*source.entry, record);
}

absl::Status WriteEntries(const GraphSide& side,
                          const std::vector<int32_t>& order, std::string* text,
                          WritableFile* file) {
  JsonTextWriter out(text);
  out.BeginObject();
  out.Key("task");
  out.String(side.dump->task());
  out.Key("level");
  out.String(side.dump->level());
  out.Key("framework");
  out.String(side.dump->framework());
  out.Key("dump_data_dir");
  out.Null();
  out.Key("is_merged");
  out.Bool(true);
  StatSet stats;
  for (const auto& dump : *side.dumps) stats = stats | dump->stats();
  WriteExtraStatisticsHead(stats, &out);
  out.Key("data");
  out.BeginObject();
  JsonDocument input_record;
  JsonDocument output_record;
  for (const int32_t index : order) {
    const GraphNode& node = side.graph.nodes()[static_cast<size_t>(index)];
    const NodeSource own{node.dump, node.entry};
    const MergedValues* const merged = node.merged.get();
    const NodeSource& input =
        merged == nullptr ? own : merged->input.value_or(own);
    const NodeSource& output =
        merged == nullptr ? own : merged->output.value_or(own);
    if (!input.entry.has_value() && !output.entry.has_value()) continue;
    RP_RETURN_IF_ERROR(ReadSource(*side.dumps, input, &input_record));
    const bool same = input.dump == output.dump && input.entry == output.entry;
    if (!same) {
      RP_RETURN_IF_ERROR(ReadSource(*side.dumps, output, &output_record));
    }
    RecordWriter(node, &out)
        .Write(input_record.root(),
               same ? input_record.root() : output_record.root());
    if (text->size() < kFlushBytes) continue;
    RP_RETURN_IF_ERROR(file->Append(*text));
    text->clear();
  }
  out.EndObject();
  out.EndObject();
  return file->Append(*text);
}

}  // namespace

MergedDumpWriter::MergedDumpWriter(FileSystem* file_system,
                                   std::string directory,
                                   VisualizeResult* result)
    : file_system_(file_system),
      directory_(std::move(directory)),
      temporary_(absl::StrCat(directory_, "/.merged.part")),
      result_(result) {}

MergedDumpWriter::~MergedDumpWriter() {
  if (file_system_->Exists(temporary_)) {
    (void)file_system_->DeleteTree(temporary_);
  }
}

absl::Status MergedDumpWriter::WriteFile(const std::string& path,
                                         const std::string& text) {
  RP_ASSIGN_OR_RETURN(
      const auto file,
      file_system_->OpenForWrite(path, FileSystem::OpenMode::kTruncate));
  RP_RETURN_IF_ERROR(file->Append(text));
  return file->Close();
}

absl::Status MergedDumpWriter::Write(const GraphSide& side,
                                     const GraphSide* other, bool) {
  if (other != nullptr) {
    return absl::InvalidArgumentError("two dumps do not make one");
  }
  const std::string name =
      absl::StrCat("/step", side.place.step, "/rank", side.place.rank);
  const std::string path = directory_ + name;
  if (file_system_->Exists(path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": already exists"));
  }
  const std::string directory = temporary_ + name;
  RP_RETURN_IF_ERROR(file_system_->CreateDirectories(directory));
  const std::vector<int32_t> order = side.graph.PostOrder();
  RP_ASSIGN_OR_RETURN(const auto file, file_system_->OpenForWrite(
                                           directory + "/dump.json",
                                           FileSystem::OpenMode::kTruncate));
  std::string text;
  RP_RETURN_IF_ERROR(WriteEntries(side, order, &text, file.get()));
  RP_RETURN_IF_ERROR(file->Close());
  RP_RETURN_IF_ERROR(WriteFile(directory + "/construct.json",
                               ConstructText(side.graph, order)));
  RP_RETURN_IF_ERROR(
      WriteFile(directory + "/stack.json", StackText(side, order)));
  result_->nodes += static_cast<int64_t>(order.size());
  ranks_.emplace_back(directory, path);
  return absl::OkStatus();
}

absl::Status MergedDumpWriter::Finish() {
  for (const auto& [from, to] : ranks_) {
    RP_RETURN_IF_ERROR(
        file_system_->CreateDirectories(to.substr(0, to.rfind('/'))));
    RP_RETURN_IF_ERROR(file_system_->Rename(from, to));
  }
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
