// SPDX-License-Identifier: Apache-2.0
// Sources of a query over steps: the records of an archive, and the statistics
// derived from them if the archive has any.
// Ownership: both outlive the query. Threads: as the interfaces.
#ifndef RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SOURCES_H_
#define RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SOURCES_H_

#include "collector/store/archive_reader.h"
#include "collector/store/series_reader.h"
#include "collector/store/store.h"

namespace rankprobe {

struct QuerySources {
  // NOLINTNEXTLINE(google-explicit-constructor): a local store is both.
  QuerySources(Store* store) : records(store), series(store) {}
  QuerySources(ArchiveReader* archive, SeriesReader* derived)
      : records(archive), series(derived) {}

  ArchiveReader* records;
  // Null if no statistics are derived; then the records are read.
  SeriesReader* series;
};

}  // namespace rankprobe

#endif  // RANKPROBE_COLLECTOR_ARCHIVE_QUERY_SOURCES_H_
