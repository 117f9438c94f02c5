// SPDX-License-Identifier: Apache-2.0
// Statistics, histogram and slices of a tensor, or of the difference of two,
// computed piecewise: memory holds the bytes and one piece. Pure; the request
// is not trusted.
#ifndef RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_
#define RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/tensor_look.pb.h"

namespace rankprobe {

// Computes the answer. `minus` is empty unless the request has one. Returns
// INVALID_ARGUMENT with one line if the bytes do not fit the shape, the type
// has no numbers, or a slice or window is invalid.
absl::StatusOr<v1::TensorLook> LookAtTensor(
    const v1::TensorLookRequest& request, absl::string_view tensor,
    absl::string_view minus);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_
