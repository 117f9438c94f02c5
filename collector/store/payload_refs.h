// Walks the tensors of a record. Pure functions; depth is bounded by the
// admission check of the wire (400 levels).
#ifndef RANKPROBE_COLLECTOR_STORE_PAYLOAD_REFS_H_
#define RANKPROBE_COLLECTOR_STORE_PAYLOAD_REFS_H_

#include <functional>

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Calls `fn` for every tensor leaf of the phase.
void ForEachTensor(const v1::CallPhase& call,
                   const std::function<void(const v1::TensorSummary&)>& fn);

// Levels of nesting of the deepest value of the phase.
int ValueDepth(const v1::CallPhase& call);

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_STORE_PAYLOAD_REFS_H_
