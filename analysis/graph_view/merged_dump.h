// SPDX-License-Identifier: Apache-2.0
// A writer of merged graphs as dumps: step{S}/rank{R}/dump.json, construct.json
// and stack.json in the usual format, dump.json with "is_merged" and, in an
// entry, "parallel_merge_info". Every reader of dumps can read them. Used by
// one thread.
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
  // `directory` is not changed before Finish.
  MergedDumpWriter(FileSystem* file_system, std::string directory,
                   VisualizeResult* result);
  MergedDumpWriter(const MergedDumpWriter&) = delete;
  MergedDumpWriter& operator=(const MergedDumpWriter&) = delete;
  ~MergedDumpWriter() override;

  // `other` must be null: a dump cannot hold two sides.
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
  // Temporary and final path of each finished rank.
  std::vector<std::pair<std::string, std::string>> ranks_;
};

}  // namespace rankprobe::analysis

#endif  // RANKPROBE_ANALYSIS_GRAPH_VIEW_MERGED_DUMP_H_
