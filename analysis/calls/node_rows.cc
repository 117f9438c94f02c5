// SPDX-License-Identifier: Apache-2.0
#include "analysis/calls/node_rows.h"

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace rankprobe::analysis {
namespace {

absl::Status ReadSource(absl::Span<const std::unique_ptr<DumpReader>> dumps,
                        const NodeSource& source, absl::string_view id,
                        JsonDocument* record, std::vector<DumpRow>* rows) {
  rows->clear();
  if (!source.entry.has_value()) return absl::OkStatus();
  const DumpReader& dump = *dumps[static_cast<size_t>(source.dump)];
  RP_RETURN_IF_ERROR(dump.Read(*source.entry, record));
  return ReadRowsInRecordOrder(id, dump.stats(), record, rows);
}

void SetStats(const GraphNode& node, std::vector<DumpRow>* rows) {
  for (const MergedValues::Stats& stats : node.merged->stats) {
    for (DumpRow& row : *rows) {
      if (!absl::StartsWith(row.name, node.id) ||
          row.name.substr(node.id.size()) != stats.place) {
        continue;
      }
      row.merged_stats = true;
      for (size_t i = 0; i < stats.numbers.size(); ++i) {
        // A rank has no number for this statistic, so none was merged.
        if (!stats.numbers[i].has_value()) continue;
        JsonValue& value = row.stats[i];
        value = JsonValue();
        if (stats.numbers[i]->is_null) continue;
        value.kind = stats.numbers[i]->is_int ? JsonValue::Kind::kInt
                                              : JsonValue::Kind::kFloat;
        value.number = stats.numbers[i]->value;
        value.text = stats.numbers[i]->text;
      }
    }
  }
}

}  // namespace

absl::Status ReadNodeRows(absl::Span<const std::unique_ptr<DumpReader>> dumps,
                          const GraphNode& node, NodeRecords* records,
                          std::vector<DumpRow>* rows) {
  const NodeSource own{node.dump, node.entry};
  if (node.merged == nullptr) {
    return ReadSource(dumps, own, node.id, &records->own, rows);
  }
  const NodeSource& input = node.merged->input.value_or(own);
  const NodeSource& output = node.merged->output.value_or(own);
  RP_RETURN_IF_ERROR(ReadSource(dumps, input, node.id, &records->own, rows));
  // A pipeline's wrapper module has the inputs of one stage and the outputs of
  // another (docs/layouts.md, "Parallel layouts").
  if (input.dump != output.dump || input.entry != output.entry) {
    const auto is_output = [](const DumpRow& row) {
      return row.state == RowState::kOutput;
    };
    RP_RETURN_IF_ERROR(ReadSource(dumps, output, node.id, &records->other,
                                  &records->other_rows));
    std::erase_if(*rows, is_output);
    for (const DumpRow& row : records->other_rows) {
      if (is_output(row)) rows->push_back(row);
    }
  }
  SetStats(node, rows);
  return absl::OkStatus();
}

}  // namespace rankprobe::analysis
