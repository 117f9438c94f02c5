// SPDX-License-Identifier: Apache-2.0
// Statistics, histogram and slices of a tensor, or of the difference of two,
// computed in pieces: it needs memory for the bytes and for one piece. Pure;
// the request is not trusted.
#ifndef RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_
#define RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rankprobe/v1/tensor_look.pb.h"

namespace rankprobe {

// `minus` is empty unless the request has one. INVALID_ARGUMENT in one line:
// bytes that are not those of the shape, a type without numbers, a slice or a
// window that is none.
absl::StatusOr<v1::TensorLook> LookAtTensor(
    const v1::TensorLookRequest& request, absl::string_view tensor,
    absl::string_view minus);

}  // namespace rankprobe

#endif  // RANKPROBE_WEB_TENSOR_TENSOR_LOOK_H_
