// SPDX-License-Identifier: Apache-2.0
// Texts of the help and the man page of `rankprobed` except its flags.
#ifndef RANKPROBE_COLLECTOR_SERVER_SERVER_MANUAL_H_
#define RANKPROBE_COLLECTOR_SERVER_SERVER_MANUAL_H_

#include "common/manual/manual.h"

namespace rankprobe {

Manual ServerManual();

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SERVER_SERVER_MANUAL_H_
