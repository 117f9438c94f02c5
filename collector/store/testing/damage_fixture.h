// SPDX-License-Identifier: Apache-2.0
// Fixture of damage tests: an archive in the test's directory whose files are
// changed while it is closed.
#ifndef RANKPROBE_COLLECTOR_STORE_TESTING_DAMAGE_FIXTURE_H_
#define RANKPROBE_COLLECTOR_STORE_TESTING_DAMAGE_FIXTURE_H_

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "collector/store/index.h"
#include "collector/store/keys.h"
#include "collector/store/store.h"
#include "collector/testing/frames.h"
#include "gtest/gtest.h"

namespace rankprobe::testing {

class DamageTest : public TempDirTest {
 protected:
  absl::StatusOr<std::unique_ptr<Store>> Open(uint64_t segment_bytes = 1 << 20,
                                              bool compress = false) {
    StoreOptions options = Options(segment_bytes);
    options.compress_payloads = compress;
    return Store::Open(options, file_system_.get(), &clock_);
  }
  std::string Segment(uint64_t number) const {
    return absl::StrCat(root_, "/data/segments/000000000", number, ".seg");
  }
  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file),
            std::istreambuf_iterator<char>()};
  }
  static void Spit(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static void Flip(const std::string& path, size_t offset, int bit = 0) {
    std::string bytes = Slurp(path);
    ASSERT_LT(offset, bytes.size()) << path;
    bytes[offset] = static_cast<char>(bytes[offset] ^ (1 << bit));
    Spit(path, bytes);
  }
  // Removes the mark of a clean end, as if the process had been killed.
  void ForgetCleanEnd() {
    const auto index = *OpenLevelDbIndex(
        {root_ + "/data/index", 1 << 20, 1 << 20, file_system_.get()});
    std::unique_ptr<IndexBatch> batch = index->NewBatch();
    batch->Delete(keys::kClean);
    ASSERT_TRUE(index->Write(std::move(batch), true).ok());
  }
  static v1::VerifyReport Verify(Store* store, bool read_data = true) {
    v1::VerifyRequest request;
    request.set_read_data(read_data);
    const auto report = store->Verify(request, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : v1::VerifyReport();
  }
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_STORE_TESTING_DAMAGE_FIXTURE_H_
