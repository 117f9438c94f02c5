// SPDX-License-Identifier: Apache-2.0
// The private collectors of jobs on this machine, found by the directories that they
// record into (agent/python/rankprobe/_job_directory.py). An address is believed only
// where nobody else can have written it.
#ifndef RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_
#define RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace rankprobe {

struct PrivateCollector {
  // As the user named it, or the directory above it.
  std::string dump_path;
  std::string run;
  std::string address;
};

struct PrivateCollectors {
  std::string directory;
  std::vector<PrivateCollector> served;
  // dump_paths: whose job begins, ends or was killed; of another machine; with the
  // archive of a job that was not exported.
  std::vector<std::string> silent, elsewhere, left;
};

// Of `directory` and of those directly in it. NOT_FOUND: it is not a directory.
absl::StatusOr<PrivateCollectors> FindPrivateCollectors(
    const std::string& directory);

// Lines about a directory without a private collector that answers: its dumps and
// what to do with them. NOT_FOUND: there is nothing.
absl::StatusOr<std::string> WhatIsThere(const PrivateCollectors& found);

// The address of --collector: one that is a directory is that of the private
// collector there. NOT_FOUND, INVALID_ARGUMENT (several).
absl::StatusOr<std::string> ResolveCollector(const std::string& given);

// Whether nobody has said which collector is meant.
bool IsUsualCollector(const Globals& globals);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_
