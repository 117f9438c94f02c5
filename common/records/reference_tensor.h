// SPDX-License-Identifier: Apache-2.0
// Values of a call that are compared with a reference (tensor.bench_path):
// agent and collector must agree.
#ifndef RANKPROBE_COMMON_RECORDS_REFERENCE_TENSOR_H_
#define RANKPROBE_COMMON_RECORDS_REFERENCE_TENSOR_H_

#include "rankprobe/v1/types.pb.h"

namespace rankprobe {

// Whether the value is a torch.Tensor at the top level of input_args or output.
inline bool IsReferenceTensor(const v1::Value& value) {
  return value.has_tensor() && !value.tensor().numpy() &&
         value.tensor().type().empty();
}

}  // namespace rankprobe

#endif  // RANKPROBE_COMMON_RECORDS_REFERENCE_TENSOR_H_
