// A model's answer to each sample, as a file: CSV or an array of NumPy.
//
//   csv   a row for each sample, in the order of the input; %.9g, so that float32 is exact
//         kClasses  index,predicted,name,p0,p1,...   the number of the class that is most likely, its name, and the
//                   probability of each class. Without names of classes the column `name` is not there. A name is
//                   quoted as RFC 4180 says.
//         kBits     index,p0,p1,...   the probability that each bit is 1. With one bit: index,predicted,name,p0
//         kNumbers  index,y0,y1,...
//   npy   float32 (samples, outputs): the same numbers
//
// The file appears whole, under its name, when Commit returns, or not at all. A link is followed.
//
// Thread safety: one thread.
#ifndef STARRING_WORKER_PREDICT_PREDICTION_FILE_H_
#define STARRING_WORKER_PREDICT_PREDICTION_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/atomic_file.h"

namespace starring {

class PredictionFile {
 public:
  enum class Content { kClasses, kBits, kNumbers };
  struct Options {
    std::string path;  // ends in .csv or .npy
    int64_t samples = 0;
    int64_t outputs = 0;
    Content content = Content::kClasses;
    std::vector<std::string> class_names;  // by class; empty: they have none. One bit has two.
  };
  // InvalidArgument for another ending, or a path that is there and no regular file; NotWrittenError as the methods
  // below.
  static absl::StatusOr<std::unique_ptr<PredictionFile>> Create(Options options);

  // The rows after those of the calls before: (rows, outputs). NotWrittenError if the disk is full.
  absl::Status Append(std::span<const float> values);
  // REQUIRES: all samples have been appended.
  absl::Status Commit();

 private:
  PredictionFile(Options options, std::unique_ptr<AtomicFile> file);
  absl::Status Write(const std::string& text);
  std::string CsvRow(std::span<const float> values) const;

  const Options options_;
  const bool is_csv_;
  const std::unique_ptr<AtomicFile> file_;
  int64_t rows_ = 0;
};

}  // namespace starring

#endif  // STARRING_WORKER_PREDICT_PREDICTION_FILE_H_
