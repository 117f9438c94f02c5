// SPDX-License-Identifier: Apache-2.0
// A collector's archive that is sealed into objects in memory; for tests.
#ifndef RANKPROBE_COLLECTOR_SEALED_TESTING_SEALER_FIXTURE_H_
#define RANKPROBE_COLLECTOR_SEALED_TESTING_SEALER_FIXTURE_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collector/sealed/sealed_reader.h"
#include "collector/sealed/sealer.h"
#include "collector/sealed/testing/sealed_fixture.h"
#include "collector/testing/frames.h"

namespace rankprobe::testing {

class SealerTest : public TempDirTest {
 protected:
  std::unique_ptr<Sealer> OpenSealer(Store* store, ObjectStore* objects,
                                     SealerOptions options = {}) {
    if (options.directory.empty()) options.directory = root_ + "/data/sealing";
    auto sealer = Sealer::Open(std::move(options), store, objects,
                               file_system_.get(), &clock_);
    EXPECT_TRUE(sealer.ok()) << sealer.status();
    return sealer.ok() ? *std::move(sealer) : nullptr;
  }
  static absl::Status SealAll(Sealer* sealer,
                              Sealer::Report* report = nullptr) {
    Sealer::Report own;
    return sealer->SealReady([] { return false; },
                             report == nullptr ? &own : report);
  }
  // What a reader sees of the run: by step and incarnation the entries of its
  // records, and the bytes of the available payloads.
  using Seen = std::map<std::pair<int64_t, uint64_t>, std::vector<std::string>>;
  static Seen See(ArchiveReader* archive, const std::string& run) {
    Seen seen;
    const auto steps = archive->ListSteps(run);
    if (absl::IsNotFound(steps.status())) return seen;
    EXPECT_TRUE(steps.ok()) << steps.status();
    if (!steps.ok()) return seen;
    for (const v1::StepInfo& info : *steps) {
      StepKey key{
          .run = run, .step = info.step(), .incarnation = info.incarnation()};
      auto& lines = seen[{info.step(), info.incarnation()}];
      lines.push_back(absl::StrCat("records ", info.records(), " complete ",
                                   info.complete()));
      if (info.deleted()) {
        lines.emplace_back("deleted");
        continue;
      }
      const absl::Status read =
          archive->ForEachRecord(key, [&](const v1::Record& record) {
            lines.push_back(absl::BytesToHexString(record.SerializeAsString()));
            if (!record.has_call()) return absl::OkStatus();
            for (const v1::Value& value : record.call().output().items()) {
              const v1::PayloadRef& ref = value.tensor().payload();
              std::string data;
              const bool has =
                  archive->HasPayload(run, ref.digest(), ref.length_bytes());
              const absl::Status got = archive->ReadPayload(
                  run, ref.digest(), ref.length_bytes(),
                  [&](absl::string_view piece) {
                    data.append(piece.data(), piece.size());
                    return absl::OkStatus();
                  });
              EXPECT_EQ(has, got.ok()) << got;
              lines.push_back(has ? DigestOf(data) : "no payload");
              if (has) {
                EXPECT_EQ(DigestOf(data), ref.digest());
              }
            }
            return absl::OkStatus();
          });
      EXPECT_TRUE(read.ok()) << read;
    }
    return seen;
  }
  static void Commit(Store* store, const Frames& frames) {
    ASSERT_TRUE(store->OpenIncarnation(frames.identity()).ok());
    ASSERT_TRUE(store->Commit(frames.All()).ok());
  }
};

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_SEALED_TESTING_SEALER_FIXTURE_H_
