// SPDX-License-Identifier: Apache-2.0
// Bytes nobody can guess, from the operating system: session ids, secrets.
// Thread-safe. A machine without them cannot keep a secret: the process ends.
#ifndef RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_
#define RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

namespace rankprobe {

std::string RandomBytes(size_t count);

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BASE_RANDOM_BYTES_H_
