// SPDX-License-Identifier: Apache-2.0
// Training text as bytes: the license texts every Debian machine has.
#ifndef RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_TEXT_H_
#define RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_TEXT_H_

#include <torch/torch.h>

#include <string>
#include <utility>

// All regular files of `directory`, joined; empty when there are none.
std::string LoadText(const std::string& directory);

// `batch` random windows: inputs and next bytes, both [batch, length] int64.
std::pair<at::Tensor, at::Tensor> RandomBatch(const std::string& text,
                                              int64_t batch, int64_t length,
                                              at::Generator generator);

#endif  // RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_TEXT_H_
