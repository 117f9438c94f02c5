// SPDX-License-Identifier: Apache-2.0
#include "common/config/plan_digest.h"

#include "absl/strings/str_cat.h"
#include "common/io/content_hash.h"

namespace rankprobe {

std::string PlanDigest(const v1::PlanSpec& spec) {
  PayloadHash hash;
  hash.Add(absl::StrCat("rankprobe plan ", spec.epoch(), " ", spec.enabled(),
                        " ", spec.for_steps(), " ", spec.config_json().size(),
                        " "));
  hash.Add(spec.config_json());
  hash.Add(spec.api_list());
  return hash.Digest();
}

}  // namespace rankprobe
