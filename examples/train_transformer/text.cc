// SPDX-License-Identifier: Apache-2.0
#include "examples/train_transformer/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

std::string LoadText(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, error)) {
    if (entry.is_regular_file() && !entry.is_symlink())
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::stringstream text;
  for (const auto& path : paths)
    text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::pair<at::Tensor, at::Tensor> RandomBatch(const std::string& text,
                                              int64_t batch, int64_t length,
                                              at::Generator generator) {
  const int64_t last = static_cast<int64_t>(text.size()) - length - 1;
  const at::Tensor starts =
      torch::randint(0, last, {batch}, generator, torch::kLong);
  at::Tensor input = torch::empty({batch, length}, torch::kLong),
             target = torch::empty_like(input);
  for (int64_t b = 0; b < batch; ++b) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data()) +
                        starts[b].item<int64_t>();
    for (int64_t i = 0; i < length; ++i) {
      input.data_ptr<int64_t>()[b * length + i] = bytes[i];
      target.data_ptr<int64_t>()[b * length + i] = bytes[i + 1];
    }
  }
  return {input, target};
}
