// Command lines of the worker that differ in one flag, for tests that try every row of its table.
#ifndef STARRING_TESTS_WORKER_ONE_FLAG_CHANGED_H_
#define STARRING_TESTS_WORKER_ONE_FLAG_CHANGED_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/options/worker_options.h"

namespace starring {

struct OneFlagChanged {
  const FlagRow* row = nullptr;
  std::vector<std::string> words;

  // The command line from which the others differ. It is that of a star, in which several workers need no launcher and
  // every other flag may have any value.
  static std::vector<std::string> Words(const std::map<std::string, std::string>& changes = {}) {
    std::map<std::string, std::string> values = {
        {"servers", "127.0.0.1:1"}, {"world_size", "3"}, {"decay_steps", "7"}, {"bucket_bytes", "1048576"}};
    for (const auto& [name, value] : changes) values[name] = value;
    std::vector<std::string> words;
    for (const auto& [name, value] : values) words.push_back(absl::StrCat("--", name, "=", value));
    return words;
  }

  // One for every flag except --sync, --transport, --mpi, --rendezvous, --port_range, --server_ranks, --elastic and
  // --coordinator, which follow from --servers or contradict it, --resume and --save_best, which need --checkpoint_dir,
  // --clip_norm, which servers refuse, --gpu_waits, which is for stars without servers, the flags that name files of
  // secrets and certificates, which have to exist, and those of one process after training.
  static std::vector<OneFlagChanged> All() {
    std::vector<OneFlagChanged> all;
    for (const FlagRow& row : WorkerFlags().rows) {
      if (row.topic == "security" || row.topic == "after training" || row.name == "sync" || row.name == "transport" ||
          row.name == "rendezvous" || row.name == "mpi" || row.name == "port_range" || row.name == "server_ranks" ||
          row.name == "elastic" || row.name == "coordinator" || row.name == "resume" || row.name == "save_best" ||
          row.name == "clip_norm" || row.name == "gpu_waits") {
        continue;
      }
      all.push_back({.row = &row, .words = Words({{std::string(row.name), OtherValue(row)}})});
    }
    return all;
  }

 private:
  // A value within the limits that is neither the default nor that of Words().
  static std::string OtherValue(const FlagRow& row) {
    const FlagLimits& limits = row.limits();
    const std::string value = row.slot.print(WorkerFlags().defaults);
    switch (limits.kind) {
      case FlagLimits::Kind::kSwitch:
        return value == "true" ? "false" : "true";
      case FlagLimits::Kind::kWhole: {
        if (row.name == "world_size") return "4";
        if (row.name == "bucket_bytes") return "2097152";
        if (row.name == "rank") return "1";
        if (row.name == "micro_batches") return "4";   // each worker has one
        if (row.name == "prefetch_depth") return "2";  // -1 becomes 0 without a core to spare
        int64_t number = 0;
        static_cast<void>(absl::SimpleAtoi(value, &number));
        return absl::StrCat(number + 1);
      }
      case FlagLimits::Kind::kReal:
        return "0.5";
      case FlagLimits::Kind::kChoice:
        return std::string(limits.choices[0] == value ? limits.choices[1] : limits.choices[0]);
      case FlagLimits::Kind::kText:
        break;
    }
    return row.name == "servers" ? "127.0.0.1:2" : "other";
  }
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_ONE_FLAG_CHANGED_H_
