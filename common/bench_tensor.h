// Which values of a call are compared with a bench (tensor.bench_path): agent
// and collector must agree.
#ifndef RANKPROBE_COMMON_BENCH_TENSOR_H_
#define RANKPROBE_COMMON_BENCH_TENSOR_H_

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// A torch.Tensor at the top of input_args or output.
inline bool IsBenchTensor(const v1::Value& value) {
  return value.has_tensor() && !value.tensor().numpy() &&
         value.tensor().type().empty();
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_BENCH_TENSOR_H_
