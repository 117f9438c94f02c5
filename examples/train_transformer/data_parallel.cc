// SPDX-License-Identifier: Apache-2.0
#include "examples/train_transformer/data_parallel.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

struct DataParallel::Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
};

DataParallel::DataParallel(const std::string& store, const std::string& host,
                           int rank, int world_size)
    : world_size_(world_size), group_(std::make_unique<Group>()) {
  if (world_size == 1) return;
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForHostname(host));
  options->timeout = std::chrono::seconds(120);
  group_->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(store, world_size), rank, world_size,
      options);
}

DataParallel::~DataParallel() = default;

bool DataParallel::AverageGradients(const std::vector<at::Tensor>& parameters,
                                    bool want_stop) {
  if (world_size_ == 1) return want_stop;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters)
    flat.push_back(parameter.grad().reshape(-1));
  flat.push_back(torch::full({1}, want_stop ? 1.0 : 0.0));
  std::vector<at::Tensor> all = {torch::cat(flat)};
  group_->gloo->allreduce(all)->wait();
  int64_t at = 0;
  for (const at::Tensor& parameter : parameters) {
    const int64_t count = parameter.numel();
    parameter.grad().copy_(all[0].slice(0, at, at + count).view_as(parameter) /
                           world_size_);
    at += count;
  }
  return all[0][at].item<float>() > 0;
}
