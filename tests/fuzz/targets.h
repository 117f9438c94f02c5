// SPDX-License-Identifier: Apache-2.0
// Fuzz targets: each takes any bytes and must neither crash, nor leak,
// nor use more memory than the bytes warrant. libFuzzer runs one per binary;
// fuzz_smoke runs all of them on made-up inputs as a test.
#ifndef RANKPROBE_TESTS_FUZZ_TARGETS_H_
#define RANKPROBE_TESTS_FUZZ_TARGETS_H_

#include "absl/strings/string_view.h"

namespace rankprobe::fuzz {

// An UploadFrame off the wire through admission and into a store.
void Frame(absl::string_view data);
// Chunks of payloads with any lengths, offsets and cuts; what is whole in the
// end has its digest.
void ChunkAssembly(absl::string_view data);
// A segment file found at open.
void SegmentRecovery(absl::string_view data);
// A value of the index, in every table.
void IndexValue(absl::string_view data);
// A name from a model on its way to a file name.
void DumpName(absl::string_view data);
// A spool file left by another process.
void SpoolFile(absl::string_view data);
// What lies in an object store: an object whose index is the input, an object and
// an entry of a log that are the input.
void SealedObject(absl::string_view data);
// XML from a store.
void S3Answer(absl::string_view data);
// A row of pieces (pieces.h): frames, most of them references into shared memory,
// and writes to that memory, through admission and into a store.
void LaneReference(absl::string_view data);

struct Target {
  const char* name;
  void (*run)(absl::string_view);
};
inline constexpr Target kTargets[] = {
    {"frame", Frame},
    {"chunk_assembly", ChunkAssembly},
    {"segment", SegmentRecovery},
    {"index_value", IndexValue},
    {"dump_name", DumpName},
    {"spool", SpoolFile},
    {"sealed_object", SealedObject},
    {"s3_answer", S3Answer},
    {"lane", LaneReference},
};

}  // namespace rankprobe::fuzz

#endif  // RANKPROBE_TESTS_FUZZ_TARGETS_H_
