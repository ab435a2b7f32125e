// Tells by its first bytes what a file is that is no data file: failed downloads, archives, files of other programs.
//
// Thread safety: pure functions.
#ifndef STARRING_WORKER_DATA_FILES_FILE_KIND_H_
#define STARRING_WORKER_DATA_FILES_FILE_KIND_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace starring {

// DataLoss, "PATH is a web page: ...", if `first`, the beginning of the file's content, is that of such a file. OK for
// data files, and for what is not known: neither IDX nor CIFAR-10's records begin as one of these kinds.
absl::Status RefuseOtherKind(const std::string& path, std::span<const uint8_t> first);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_FILE_KIND_H_
