// SPDX-License-Identifier: Apache-2.0
#include "collector/sealed/bucket_upkeep.h"

#include "absl/strings/str_cat.h"
#include "collector/sealed/store_deletion.h"
#include "collector/sealed/store_verify.h"

namespace rankprobe {

absl::StatusOr<v1::VerifyReport> BucketUpkeep::Verify(
    const v1::VerifyRequest& request,
    const std::function<absl::Status(const v1::VerifyReport&)>& progress) {
  return VerifyObjectStore(objects_, request, progress);
}

absl::StatusOr<v1::DeleteReport> BucketUpkeep::Delete(
    const DeleteOptions& options) {
  if (deletion_ == Deletion::kRefused) {
    return absl::FailedPreconditionError(
        absl::StrCat("the archive ", objects_->name(),
                     " is read-only here; ask its root, or delete with "
                     "`rankprobe --object-store URL delete`"));
  }
  return DeleteFromStore(objects_, options.run, options.steps, clock_->Now(),
                         "delete");
}

}  // namespace rankprobe
