// SPDX-License-Identifier: Apache-2.0
// The private collectors of jobs on this machine, found by the directories that
// they record into (agent/python/rankprobe/_job_directory.py). An address is
// used only if no other user can have written it.
#ifndef RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_
#define RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/client/client.h"

namespace rankprobe {

struct PrivateCollector {
  // The path that the user gave, or the directory above it.
  std::string dump_path;
  std::string run;
  std::string address;
};

struct PrivateCollectors {
  std::string directory;
  std::vector<PrivateCollector> served;
  // dump_paths: of jobs that are starting or ending or were killed; of jobs on
  // another machine; with the archive of a job that was not exported.
  std::vector<std::string> silent, elsewhere, left;
};

// Searches `directory` and its direct subdirectories. Returns INVALID_ARGUMENT
// if it is not a directory that can be read.
absl::StatusOr<PrivateCollectors> FindPrivateCollectors(
    const std::string& directory);

// Returns lines about a directory in which no private collector answers: its
// dumps and what to do with them. Returns NOT_FOUND if there is nothing.
absl::StatusOr<std::string> WhatIsThere(const PrivateCollectors& found);

// Returns the address for --collector: a directory stands for the private
// collector in it. Returns UNAVAILABLE if none answers there, INVALID_ARGUMENT
// if there are several.
absl::StatusOr<std::string> ResolveCollector(const std::string& given);

// Whether the user did not choose a collector.
bool IsUsualCollector(const Globals& globals);

}  // namespace rankprobe

#endif  // RANKPROBE_CLI_CLIENT_PRIVATE_COLLECTORS_H_
