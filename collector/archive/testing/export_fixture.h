// SPDX-License-Identifier: Apache-2.0
// Fixture of export tests: runs with hand-made steps, exported to a directory
// below the test's own.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_TESTING_EXPORT_FIXTURE_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_TESTING_EXPORT_FIXTURE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "collector/archive/export.h"
#include "collector/testing/dump_importer.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"
#include "rapidjson/document.h"

namespace rankprobe::testing {

class ExportTest : public TempDirTest {
 protected:
  v1::ExportDone Export(Store* store, const std::string& run,
                        std::vector<int64_t> ranks = {}) {
    ExportOptions options;
    options.run = run;
    options.ranks = IntSet(std::move(ranks));
    const auto done = ExportRunToDirectory(store, options, file_system_.get(),
                                           root_ + "/out");
    EXPECT_TRUE(done.ok()) << done.status();
    return done.ok() ? *done : v1::ExportDone();
  }

  rapidjson::Document Manifest() {
    rapidjson::Document document;
    document.Parse(ReadTextFile(root_ + "/out/manifest.json").c_str());
    EXPECT_TRUE(document.IsObject());
    return document;
  }
};

inline v1::StepBegin* Begin(v1::RecordBatch* batch, uint64_t order,
                            const char* task = "tensor") {
  v1::Record* record = batch->add_records();
  record->set_order(order);
  record->mutable_step_begin()->set_task(task);
  record->mutable_step_begin()->set_level("mix");
  record->mutable_step_begin()->set_framework("pytorch");
  record->mutable_step_begin()->set_dump_path("d");
  record->mutable_step_begin()->set_has_payloads(true);
  return record->mutable_step_begin();
}

inline v1::CallPhase* Phase(v1::RecordBatch* batch, uint64_t order,
                            const std::string& entry, v1::CallKind kind) {
  v1::Record* record = batch->add_records();
  record->set_order(order);
  record->mutable_call()->set_entry(entry);
  record->mutable_call()->set_kind(kind);
  return record->mutable_call();
}

inline v1::TensorSummary* Payload(v1::ValueList* list,
                                  const std::string& data) {
  v1::TensorSummary* tensor = list->add_items()->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_UINT8);
  tensor->add_shape(static_cast<int64_t>(data.size()));
  tensor->mutable_stats();
  tensor->mutable_payload()->set_digest(DigestOf(data));
  tensor->mutable_payload()->set_length_bytes(data.size());
  return tensor;
}

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_TESTING_EXPORT_FIXTURE_H_
