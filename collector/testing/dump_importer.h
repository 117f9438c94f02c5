// SPDX-License-Identifier: Apache-2.0
// Conversion of a dump directory (dump.json, stack.json, construct.json or
// debug.json) into the records that a rank would have sent for it. For tests.
#ifndef RANKPROBE_COLLECTOR_TESTING_DUMP_IMPORTER_H_
#define RANKPROBE_COLLECTOR_TESTING_DUMP_IMPORTER_H_

#include <string>

#include "collector/testing/frames.h"

namespace rankprobe::testing {

// Payloads get the bytes "payload of {data_name}" cut or repeated to the
// tensor's size. Fails the test if a file cannot be read.
void ImportDump(const std::string& directory, int64_t step,
                const std::string& dump_path, Frames* frames);

std::string ReadTextFile(const std::string& path);

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_TESTING_DUMP_IMPORTER_H_
