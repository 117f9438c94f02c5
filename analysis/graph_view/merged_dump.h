// SPDX-License-Identifier: Apache-2.0
// Writes merged graphs as dumps: step{S}/rank{R}/dump.json, construct.json and
// stack.json of the usual form, dump.json with "is_merged" and, in an entry,
// "parallel_merge_info". What reads a dump reads them. Used by one thread.
#ifndef RANKPROBE_ANALYSIS_GRAPH_VIEW_MERGED_DUMP_H_
#define RANKPROBE_ANALYSIS_GRAPH_VIEW_MERGED_DUMP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "analysis/graph_view/graph_writer.h"
#include "common/io/file_system.h"

namespace rankprobe::analysis {

class MergedDumpWriter final : public GraphWriter {
 public:
  // Nothing shows in `directory` before Finish.
  MergedDumpWriter(FileSystem* file_system, std::string directory,
                   VisualizeResult* result);
  MergedDumpWriter(const MergedDumpWriter&) = delete;
  MergedDumpWriter& operator=(const MergedDumpWriter&) = delete;
  ~MergedDumpWriter() override;

  // `other` is null: there is no dump of two sides.
  absl::Status Write(const GraphSide& side, const GraphSide* other,
                     bool judge) override;
  absl::Status LinkCommunication(int64_t) override { return absl::OkStatus(); }
  absl::Status Finish();

 private:
  absl::Status WriteFile(const std::string& path, const std::string& text);

  FileSystem* const file_system_;
  const std::string directory_;
  const std::string temporary_;
  VisualizeResult* const result_;
  // Where a finished rank stands, and where it goes.
  std::vector<std::pair<std::string, std::string>> ranks_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_MERGED_DUMP_H_
