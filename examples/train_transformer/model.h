// SPDX-License-Identifier: Apache-2.0
// A small decoder-only transformer over bytes. Every module is called through
// the debugger, so that L0 and mix see it; without one it is plain LibTorch.
#ifndef RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_MODEL_H_
#define RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_MODEL_H_

#include <torch/torch.h>

#include <limits>
#include <string>

#include "agent/libtorch/precision_debugger.h"

struct ModelOptions {
  int64_t vocabulary = 256;
  int64_t width = 64;
  int64_t heads = 4;
  int64_t blocks = 2;
  int64_t length = 64;
};

// Calls a module with or without the debugger.
class Caller {
 public:
  // `poisoned`: path of the module whose input is made NaN; outlives this, may
  // change between calls, empty for none.
  explicit Caller(rankprobe::PrecisionDebugger* debugger,
                  const std::string* poisoned = nullptr)
      : debugger_(debugger), poisoned_(poisoned) {}
  template <typename Module>
  at::Tensor operator()(const std::string& path, Module& module,
                        const at::Tensor& input) const {
    const bool poison = poisoned_ != nullptr && *poisoned_ == path;
    const at::Tensor x =
        poison ? input * std::numeric_limits<double>::quiet_NaN() : input;
    return debugger_ == nullptr ? module->forward(x)
                                : debugger_->Forward(path, module, x);
  }

 private:
  rankprobe::PrecisionDebugger* const debugger_;
  const std::string* const poisoned_;
};

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const ModelOptions& options, Caller call, std::string path);
  at::Tensor forward(const at::Tensor& x);

 private:
  const int64_t heads_;
  const Caller call_;
  const std::string path_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
};
TORCH_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(const ModelOptions& options, Caller call, std::string path);
  at::Tensor forward(const at::Tensor& x);

 private:
  const Caller call_;
  const std::string path_;
  torch::nn::LayerNorm ln1_{nullptr}, ln2_{nullptr};
  Attention attn_{nullptr};
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(Block);

// Logits [batch, length, vocabulary] of byte windows [batch, length].
class TransformerImpl : public torch::nn::Module {
 public:
  TransformerImpl(const ModelOptions& options, Caller call);
  at::Tensor forward(const at::Tensor& tokens);

 private:
  const Caller call_;
  torch::nn::Embedding token_{nullptr}, position_{nullptr};
  std::vector<Block> blocks_;
  torch::nn::LayerNorm ln_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Transformer);

#endif  // RANKPROBE_EXAMPLES_TRAIN_TRANSFORMER_MODEL_H_
