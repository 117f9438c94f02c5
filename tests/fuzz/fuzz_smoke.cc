// SPDX-License-Identifier: Apache-2.0
// Runs every fuzz target for a share of the time on inputs made from valid
// ones: bytes flipped, cut, repeated. Prints the seed; the same seed makes the
// same inputs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/io/crc32c.h"
#include "google/protobuf/stubs/logging.h"
#include "rankprobe/v1/agent.pb.h"
#include "rankprobe/v1/sealed.pb.h"
#include "rankprobe/v1/store.pb.h"
#include "tests/fuzz/targets.h"

namespace rankprobe::fuzz {
namespace {

// Inputs near which the interesting ones lie.
std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {"", "..", "a/b", "Module.x.0.forward"};
  v1::UploadFrame frame;
  frame.set_sequence(1);
  v1::PayloadChunk* const chunk = frame.mutable_chunk();
  chunk->set_digest(std::string(16, 'd'));
  chunk->set_length_bytes(8);
  chunk->set_data("12345678");
  chunk->set_crc32c(Crc32c(chunk->data()));
  seeds.push_back(frame.SerializeAsString());
  v1::Record* const record = frame.mutable_batch()->add_records();
  v1::CallPhase* const call = record->mutable_call();
  call->set_entry("Torch.add.0.forward");
  v1::TensorSummary* const tensor =
      call->mutable_output()->add_items()->mutable_tensor();
  tensor->set_dtype(v1::DTYPE_FLOAT32);
  tensor->add_shape(2);
  tensor->mutable_payload()->set_digest(std::string(16, 'd'));
  tensor->mutable_payload()->set_length_bytes(8);
  seeds.push_back(frame.SerializeAsString());
  seeds.push_back("\x03" + record->SerializeAsString());
  v1::ChunkRow row;
  row.set_segment(1);
  row.set_offset_bytes(52);
  row.set_length_bytes(8);
  seeds.push_back("\x05" + row.SerializeAsString());
  std::string segment = "RPS1";
  segment.push_back(8);
  segment.resize(60, '\0');
  seeds.push_back(segment + segment);
  v1::SealedPackIndex pack;
  v1::SealedPayload* const payload = pack.add_payloads();
  payload->set_digest(std::string(16, 'd'));
  payload->set_length_bytes(8);
  payload->set_offset_bytes(8);
  payload->add_frames()->set_stored_bytes(8);
  payload->mutable_frames(0)->set_crc32c(Crc32c("12345678"));
  seeds.push_back(pack.SerializeAsString());
  v1::SealedRecordsIndex records;
  records.add_members()->set_offset_bytes(8);
  records.mutable_members(0)->add_frames()->set_stored_bytes(4);
  records.mutable_members(0)->mutable_frames(0)->set_raw_bytes(1 << 20);
  seeds.push_back(records.SerializeAsString());
  seeds.push_back(
      "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a"
      "</Key><Size>1</Size></Contents></ListBucketResult>");
  std::string spool = "RPQ3";
  spool.push_back(4);
  spool.resize(40, '\0');
  seeds.push_back(spool);
  return seeds;
}

std::string Mutate(std::string data, std::mt19937_64* random) {
  const auto pick = [random](size_t below) {
    return below == 0 ? 0 : (*random)() % below;
  };
  for (size_t i = 0, n = 1 + pick(6); i < n; ++i) {
    switch (pick(5)) {
      case 0:
        if (!data.empty())
          data[pick(data.size())] = static_cast<char>(pick(256));
        break;
      case 1:
        data.insert(pick(data.size() + 1), 1 + pick(8),
                    static_cast<char>(pick(256)));
        break;
      case 2:
        data.resize(pick(data.size() + 1));
        break;
      case 3:
        data += data.substr(0, std::min<size_t>(data.size(), 500));
        break;
      default:
        for (size_t k = 0; k < 8; ++k)
          data.push_back(static_cast<char>(pick(256)));
    }
  }
  return data;
}

int Main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 0;
  CLI::App app("Runs the fuzz targets on made-up inputs.");
  app.add_option("--seconds", seconds, "for all targets together (10)");
  app.add_option("--seed", seed, "0: a new one");
  CLI11_PARSE(app, argc, argv);
  if (seed == 0) seed = std::random_device()() | 1u;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  // It complains of every string that is not UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  std::mt19937_64 random(seed);
  const std::vector<std::string> seeds = Seeds();
  const absl::Duration share =
      absl::Seconds(seconds) / static_cast<int64_t>(std::size(kTargets));
  for (const Target& target : kTargets) {
    const absl::Time end = absl::Now() + share;
    uint64_t runs = 0;
    for (const std::string& input : seeds) target.run(input);
    while (absl::Now() < end) {
      target.run(Mutate(seeds[random() % seeds.size()], &random));
      ++runs;
    }
    std::printf("%s: %llu inputs\n", target.name,
                static_cast<unsigned long long>(runs));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace rankprobe::fuzz

int main(int argc, char** argv) {
  try {
    return rankprobe::fuzz::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_smoke: %s\n", error.what());
    return 2;
  }
}
