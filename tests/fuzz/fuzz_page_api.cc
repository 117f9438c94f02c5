// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a page may send: a job, whose command has no option that
// says where to write or as whom to ask; and a look at a tensor. The first byte
// says which; the rest is JSON, behind the first 64 bytes of a look.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "web/jobs/job_commands.h"
#include "web/jobs/job_output.h"
#include "web/tensor/tensor_look.h"

namespace rankprobe {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool Read(const std::string& json, google::protobuf::Message* message) {
  return google::protobuf::util::JsonStringToMessage(json, message).ok();
}

void Job(const std::string& json) {
  v1::JobSpec spec;
  if (!Read(json, &spec)) return;
  const auto command = ToCommand(spec, "/directory");
  if (!command.ok()) return;
  bool places = false;
  for (const std::string& argument : command->arguments) {
    places = places || argument == "--";
    if (places) continue;
    const std::string name = argument.substr(0, argument.find('='));
    for (const char* const option :
         {"--output", "--output_path", "--tar", "--server-dir"}) {
      Require(name != option || absl::StrContains(argument, "=/directory/out"));
    }
    for (const char* const option :
         {"--collector", "--token", "--tls", "--force", "--resume"}) {
      Require(!absl::StartsWith(argument, option));
    }
  }
  for (const JobInputFile& input : command->inputs)
    Require(absl::StartsWith(input.path, "/directory/in/"));
}

void Output(const std::string& text) {
  JobOutput output;
  output.AddError(text);
  output.AddError("\n");
  output.AddError(text);
  output.Finish();
  Require(output.messages().size() <= JobOutput::kMaxMessageBytes);
  Require(output.percent() >= -1 && output.percent() <= 100);
}

void TensorLook(const std::string& bytes, const std::string& json) {
  v1::TensorLookRequest request;
  if (!Read(json, &request)) return;
  const auto look = LookAtTensor(request, bytes, bytes);
  if (!look.ok()) return;
  uint64_t counted = 0;
  for (const uint64_t count : look->counts()) counted += count;
  Require(counted <= look->numbers().elements());
  Require(look->cells_size() ==
          static_cast<int>(look->rows() * look->columns()));
}

}  // namespace
}  // namespace rankprobe

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr size_t kBytes = 64;
  switch (data[0] % 3) {
    case 0:
      rankprobe::Job(rest);
      break;
    case 1:
      rankprobe::Output(rest);
      break;
    default:
      rankprobe::TensorLook(rest.substr(0, kBytes),
                            rest.substr(std::min(kBytes, rest.size())));
  }
  return 0;
}
