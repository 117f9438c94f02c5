// SPDX-License-Identifier: Apache-2.0
// Gradient averaging over all ranks with gloo. One per process, one thread.
// Throws c10::Error when a peer goes away.
#ifndef RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_DATA_PARALLEL_H_
#define RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_DATA_PARALLEL_H_

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

class DataParallel {
 public:
  // Ranks meet through the file `store`; `host` is the name under which the
  // others reach this one.
  DataParallel(const std::string& store, const std::string& host, int rank,
               int world_size);
  ~DataParallel();

  // Averages all gradients in one all-reduce. True if any rank wants to stop:
  // the wish travels in the same reduction, so all ranks agree on the step.
  bool AverageGradients(const std::vector<at::Tensor>& parameters,
                        bool want_stop);

 private:
  struct Group;
  const int world_size_;
  std::unique_ptr<Group> group_;
};

#endif  // RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_DATA_PARALLEL_H_
