// CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of 3073 bytes, one label, then 1024
// red, 1024 green and 1024 blue pixels, each plane row by row.
#ifndef STARRING_WORKER_DATA_CIFAR_READER_H_
#define STARRING_WORKER_DATA_CIFAR_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/limits.h"
#include "worker/data/dataset.h"

namespace starring {

struct CifarFiles {
  std::vector<std::string> paths;  // plain or gzipped; read in this order
  int64_t bytes_max = kDatasetBytesMax;
};

// Images (32, 32, 3), planes interleaved. Any whole number of records in each file, but one at least. DataLoss, naming
// file, expected and found: a part of a record at the end, a label above 9, more than bytes_max bytes of images in all.
// REQUIRES: at least one path.
absl::StatusOr<Dataset> ReadCifar10(const CifarFiles& files);

}  // namespace starring

#endif  // STARRING_WORKER_DATA_CIFAR_READER_H_
