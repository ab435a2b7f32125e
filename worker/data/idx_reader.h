// IDX files, the format of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist): big-endian 32-bit words, then
// unsigned bytes. Images: 0x00000803, count, rows, columns, then pixels. Labels: 0x00000801, count, then labels.
#ifndef STARRING_WORKER_DATA_IDX_READER_H_
#define STARRING_WORKER_DATA_IDX_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace starring {

struct IdxFiles {
  std::string images;  // paths; plain or gzipped
  std::string labels;
  int64_t classes = 10;
};

// One channel. The files must hold what their headers say and not a byte more. DataLoss, naming file, expected and
// found: wrong magic number, no images or absurdly large ones (common/limits.h), data that ends early or goes on,
// counts that disagree, a label that is not below `classes`. Nothing is allocated before the header is believable.
absl::StatusOr<Dataset> ReadIdx(const IdxFiles& files);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_IDX_READER_H_
