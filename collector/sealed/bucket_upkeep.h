// SPDX-License-Identifier: Apache-2.0
// Verification and deletion of an archive in an object store.
// Ownership: the object store and the clock outlive it. Threads: thread-safe.
// Failure: a status; PERMISSION_DENIED if deletion is not allowed.
#ifndef RANKPROBE_COLLECTOR_SEALED_BUCKET_UPKEEP_H_
#define RANKPROBE_COLLECTOR_SEALED_BUCKET_UPKEEP_H_

#include <functional>

#include "absl/status/statusor.h"
#include "collector/object_store/object_store.h"
#include "collector/store/archive_upkeep.h"
#include "common/base/clock.h"

namespace rankprobe {

class BucketUpkeep final : public ArchiveUpkeep {
 public:
  enum class Deletion { kAllowed, kRefused };

  BucketUpkeep(ObjectStore* objects, const Clock* clock, Deletion deletion)
      : objects_(objects), clock_(clock), deletion_(deletion) {}

  absl::StatusOr<v1::VerifyReport> Verify(
      const v1::VerifyRequest& request,
      const std::function<absl::Status(const v1::VerifyReport&)>& progress)
      override;
  absl::StatusOr<v1::DeleteReport> Delete(
      const DeleteOptions& options) override;

 private:
  ObjectStore* const objects_;
  const Clock* const clock_;
  const Deletion deletion_;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_SEALED_BUCKET_UPKEEP_H_
