// SPDX-License-Identifier: Apache-2.0
// Short names of the modes in which tests put objects.
#ifndef RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_PUT_MODES_H_
#define RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_PUT_MODES_H_

#include "collector/object_store/object_store.h"

namespace rankprobe::testing {

inline constexpr auto kReplace = ObjectStore::PutMode::kReplace;
inline constexpr auto kIfAbsent = ObjectStore::PutMode::kIfAbsent;

}  // namespace rankprobe::testing

#endif  // RANKPROBE_COLLECTOR_OBJECT_STORE_TESTING_PUT_MODES_H_
