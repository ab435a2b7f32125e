// Writes the run record: what the run was, and how it went, as one JSON file. proto/starring/v1/run_record.proto says
// what is in it.
#ifndef STARRING_WORKER_REPORT_RUN_RECORD_H_
#define STARRING_WORKER_REPORT_RUN_RECORD_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/options/deciding_facts.h"
#include "worker/options/worker_options.h"
#include "worker/train/train_result.h"

namespace starring {

// RunRecord::version. It changes when an entry or a field comes, goes or gets another meaning.
inline constexpr int kRunRecordVersion = 3;

struct RunFacts {
  const WorkerOptions* options = nullptr;
  const TrainAndTest* data = nullptr;
  const TrainResult* result = nullptr;
  Facts facts;                                  // what decided the numbers besides flags
  std::string device;                           // Device::name
  std::string gpu_transfer;                     // TrainingStep::transfer
  bool data_on_gpu = false;                     // whether the data set was in the GPU's memory
  std::string cores_per_worker;                 // as deploy/launch pinned them; without it this process's own
  std::string cores_per_server;                 // as deploy/launch pinned them; without it empty
  double cpu_quota = 0;                         // CoreLimits::quota
  std::map<std::string, std::string> versions;  // of what decides bits and speed
  std::map<std::string, std::string> engines;   // CudaDevice::engines
  std::string sync_reason;                      // why the ranks chose this --sync; empty if they did not
  std::string same_host_reason;                 // ExchangeFacts::same_host_reason
};

// Versions of what decides bits and speed, as built or as running, by name: starring, compiler, kernel, protobuf.
std::map<std::string, std::string> LibraryVersions();

// The text of the record.
absl::StatusOr<std::string> RunRecordJson(const RunFacts& facts);

// InvalidArgument if --record, unless it is empty, names a file that cannot be written now. Called before the training.
absl::Status CheckRunRecord(const std::string& path);

// Writes the text to `options->record`; replaces the file as a whole or not at all. NotWrittenError if it cannot be
// written.
absl::Status WriteRunRecord(const RunFacts& facts);

}  // namespace starring

#endif  // STARRING_WORKER_REPORT_RUN_RECORD_H_
