// Whether a data set fits into memory, asked before memory is taken: a process that takes more than its control group
// grants is killed without a word.
//
// Thread safety: any thread.
#ifndef STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_
#define STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace starring {

// ResourceExhausted, with both sizes, if this process may not take `bytes` more for the content of `path`: by the
// memory of the machine and of its control groups (common/host/machine_limits.h), and by its own limit (ulimit -v).
// `root` is as of AvailableMemoryBytes.
absl::Status CheckDataFits(const std::string& path, int64_t bytes, const std::string& root = "");

// Makes room in `data` for `more` elements of the content of `path`, whose length is not known before its end. The room
// doubles, or grows by an eighth where that is too much. CheckDataFits is asked each time if it is a MiB or more.
template <class T>
absl::Status MakeRoom(const std::string& path, int64_t more, std::vector<T>& data) {
  constexpr size_t kRoomMin = 64, kAskedBytesMin = 1 << 20;
  const size_t needed = data.size() + static_cast<size_t>(more);
  if (needed <= data.capacity()) return absl::OkStatus();
  size_t room = std::max({needed, 2 * data.size(), kRoomMin});
  const auto fits = [&] { return CheckDataFits(path, static_cast<int64_t>(room * sizeof(T))); };
  // The old elements keep their memory until the new one has them.
  const bool asks = room * sizeof(T) >= kAskedBytesMin;
  // Twice as much may be more than the file needs.
  if (asks && !fits().ok()) room = needed + needed / 8;
  if (asks && !fits().ok()) room = needed;
  if (absl::Status status = asks ? fits() : absl::OkStatus(); !status.ok()) return status;
  data.reserve(room);
  return absl::OkStatus();
}

}  // namespace starring

#endif  // STARRING_WORKER_DATA_FILES_DATA_MEMORY_H_
