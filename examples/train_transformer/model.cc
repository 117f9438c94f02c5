// SPDX-License-Identifier: Apache-2.0
#include "examples/train_transformer/model.h"

#include <cmath>
#include <limits>
#include <utility>

AttentionImpl::AttentionImpl(const ModelOptions& options, Caller call,
                             std::string path)
    : heads_(options.heads), call_(call), path_(std::move(path)) {
  qkv_ = register_module("qkv",
                         torch::nn::Linear(options.width, 3 * options.width));
  proj_ =
      register_module("proj", torch::nn::Linear(options.width, options.width));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  const at::Tensor qkv = call_(path_ + ".qkv", qkv_, x)
                             .view({batch, length, 3, heads_, width / heads_})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor q = qkv[0], k = qkv[1], v = qkv[2];
  at::Tensor scores = torch::matmul(q, k.transpose(-2, -1)) /
                      std::sqrt(static_cast<double>(width / heads_));
  const at::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
  scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  const at::Tensor mixed = torch::matmul(torch::softmax(scores, -1), v)
                               .transpose(1, 2)
                               .reshape({batch, length, width});
  return call_(path_ + ".proj", proj_, mixed);
}

BlockImpl::BlockImpl(const ModelOptions& options, Caller call, std::string path)
    : call_(call), path_(std::move(path)) {
  ln1_ = register_module(
      "ln1",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  attn_ = register_module("attn", Attention(options, call, path_ + ".attn"));
  ln2_ = register_module(
      "ln2",
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  fc1_ = register_module("fc1",
                         torch::nn::Linear(options.width, 4 * options.width));
  fc2_ = register_module("fc2",
                         torch::nn::Linear(4 * options.width, options.width));
}

at::Tensor BlockImpl::forward(const at::Tensor& input) {
  at::Tensor x =
      input + call_(path_ + ".attn", attn_, call_(path_ + ".ln1", ln1_, input));
  const at::Tensor hidden =
      torch::gelu(call_(path_ + ".fc1", fc1_, call_(path_ + ".ln2", ln2_, x)));
  return x + call_(path_ + ".fc2", fc2_, hidden);
}

TransformerImpl::TransformerImpl(const ModelOptions& options, Caller call)
    : call_(call) {
  token_ = register_module(
      "token", torch::nn::Embedding(options.vocabulary, options.width));
  position_ = register_module(
      "position", torch::nn::Embedding(options.length, options.width));
  for (int64_t i = 0; i < options.blocks; ++i) {
    const std::string name = "block" + std::to_string(i);
    blocks_.push_back(register_module(name, Block(options, call, name)));
  }
  ln_ = register_module(
      "ln", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
  head_ = register_module("head",
                          torch::nn::Linear(options.width, options.vocabulary));
}

at::Tensor TransformerImpl::forward(const at::Tensor& tokens) {
  const at::Tensor positions = torch::arange(tokens.size(1));
  at::Tensor x =
      call_("token", token_, tokens) + call_("position", position_, positions);
  for (size_t i = 0; i < blocks_.size(); ++i)
    x = call_("block" + std::to_string(i), blocks_[i], x);
  return call_("head", head_, call_("ln", ln_, x));
}
