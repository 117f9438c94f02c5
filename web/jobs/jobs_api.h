// SPDX-License-Identifier: Apache-2.0
// Jobs over HTTP, for the page:
//
//   POST /api/v1/JobStart, JobList, JobGet, JobCancel, JobDelete, JobRows
//   POST /api/v1/JobFile    answers with the bytes of the file
//   POST /api/v1/FirstBad, Diagnose   answer with the command's own report, in
//                                     JSON, when it has ended
//
// with the messages of proto/rankprobe/v1/jobs.proto as JSON. Thread-safe; a
// failure is {"error":{..}} with its status, as in web/gateway/gateway.h.
#ifndef RANKPROBE_WEB_JOBS_JOBS_API_H_
#define RANKPROBE_WEB_JOBS_JOBS_API_H_

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/io/descriptor_walk.h"
#include "common/io/file_system.h"
#include "web/http/http_message.h"
#include "web/jobs/job_runner.h"
#include "web/jobs/result_table.h"

namespace rankprobe {

class JobsApi {
 public:
  // `file_system` and `clock` outlive this object.
  JobsApi(const JobRunnerOptions& options, FileSystem* file_system,
          Clock* clock);

  // Returns false, without an answer, if `method` is not one of these.
  bool Answer(absl::string_view method, const std::string& body,
              HttpReply* reply);
  // Opens "ID/NAME", a file that a job made.
  absl::StatusOr<Descriptor> OpenFile(absl::string_view name) const;

 private:
  // Returns the command, with its options, whose report answers `method`
  // (FirstBad or Diagnose).
  static absl::StatusOr<v1::JobSpec> LookOf(absl::string_view method,
                                            const std::string& body);
  // Runs that command and answers with its report.
  void Look(absl::string_view method, const std::string& body,
            HttpReply* reply);
  absl::StatusOr<std::shared_ptr<ResultTable>> Table(const std::string& id,
                                                     const std::string& file);
  absl::StatusOr<v1::JobRows> Rows(const v1::JobRowsRequest& request);
  void SendFile(const v1::JobFileRequest& request, HttpReply* reply) const;

  FileSystem* const file_system_;
  const uint64_t max_table_bytes_;
  JobRunner runner_;
  // Runner for checks on the page of a run: they are not kept, not listed, and
  // independent of other jobs.
  JobRunner checks_;
  absl::Mutex mutex_;
  // Paths and tables, the most recently used first.
  std::list<std::pair<std::string, std::shared_ptr<ResultTable>>> tables_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_JOBS_JOBS_API_H_
