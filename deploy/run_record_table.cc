#include "deploy/run_record_table.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/starring/v1/run_record.pb.h"

namespace starring {
namespace {

// 48 bits tell runs apart by eye. CompareDigests compares whole digests.
constexpr size_t kShownDigestCharacters = 12;

using google::protobuf::Struct;
using google::protobuf::Value;

// The entry `name` of the record's config as text; empty if there is none. Equal numbers give equal texts, which is all
// that a key needs.
std::string Text(const Struct& config, const std::string& name) {
  const auto found = config.fields().find(name);
  if (found == config.fields().end()) return "";
  const Value& value = found->second;
  if (value.kind_case() == Value::kNumberValue) return absl::StrCat(value.number_value());
  if (value.kind_case() == Value::kBoolValue) return value.bool_value() ? "true" : "false";
  return value.string_value();
}

int Number(const Struct& config, const std::string& name) {
  const auto found = config.fields().find(name);
  return found == config.fields().end() ? 0 : static_cast<int>(found->second.number_value());
}

std::string BitsKey(const v1::RunRecord& record, const Struct& config) {
  const std::string sync = Text(config, "sync");
  // The allreduce of MPI or NCCL, and PyTorch, add in orders of their own, so nothing is promised for them.
  if (sync == "ddp" || sync == "mpi" || sync == "nccl" || record.host().versions().contains("torch")) return "";
  // A build without one of these flags does what the value here says, so its records get that value.
  const std::map<std::string, std::string> before_the_flag = {{"clip_norm", "0"}, {"normalize", "channels"}};
  // Flags that cannot change the bits are left out: sync, servers, bucket size, resuming.
  std::vector<std::string> values;
  for (const char* const name : {"world_size",   "model",        "dataset",        "augment",
                                 "train_count",  "epochs",       "max_steps",      "early_stop",
                                 "global_batch", "seed",         "optimizer",      "learning_rate",
                                 "momentum",     "nesterov",     "weight_decay",   "beta1",
                                 "beta2",        "epsilon",      "clip_norm",      "normalize",
                                 "schedule",     "warmup_steps", "decay_steps",    "decay_gamma",
                                 "total_steps",  "device",       "threads",        "isa",
                                 "math",         "conv",         "synthetic_size", "synthetic_channels"}) {
    const std::string value = Text(config, name);
    const auto usual = before_the_flag.find(name);
    values.push_back(value.empty() && usual != before_the_flag.end() ? usual->second : value);
  }
  return absl::StrJoin(values, "|");
}

std::string RunName(const RunSummary& run) {
  return run.server_count > 0 ? absl::StrFormat("%s %dx%d", run.sync, run.world_size, run.server_count)
                              : absl::StrFormat("%s %d", run.sync, run.world_size);
}

}  // namespace

absl::StatusOr<RunSummary> ParseRunRecord(const std::string& name, const std::string& json) {
  v1::RunRecord record;
  google::protobuf::util::JsonParseOptions options;
  // The record of a newer build may have further fields.
  options.ignore_unknown_fields = true;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &record, options);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat(name, " is no run record: ", std::string(status.message())));
  }
  // The config has no message type of its own, because it follows the worker's flags.
  Struct whole;
  // Without a config the record is refused below.
  if (!google::protobuf::util::JsonStringToMessage(json, &whole, options).ok()) whole.Clear();
  const Struct& config = (*whole.mutable_fields())["config"].struct_value();
  if (Text(config, "sync").empty() || record.epochs().empty()) {
    return absl::DataLossError(absl::StrCat(name, " is no run record: it has no config.sync or no epochs"));
  }
  const v1::EpochResult& last = *record.epochs().rbegin();
  return RunSummary{.sync = Text(config, "sync"),
                    .world_size = Number(config, "world_size"),
                    .server_count = Number(config, "server_count"),
                    .samples_per_second = last.samples_per_second(),
                    .step_ms_p50 = record.step_ms().p50(),
                    .exposed_exchange_ms = record.breakdown_ms().exposed_exchange(),
                    .test_accuracy = last.test_accuracy(),
                    .has_accuracy = record.test().loss() != "mse",
                    .parameter_sha256 = record.parameter_sha256(),
                    .bits_key = BitsKey(record, config)};
}

std::string FormatTable(const std::vector<RunSummary>& runs) {
  constexpr char kHeader[] = "%-6s %7s %7s %10s %12s %20s %14s  %s\n";
  std::string table = absl::StrFormat(kHeader, "sync", "workers", "servers", "samples/s", "step ms p50",
                                      "exposed exchange ms", "test accuracy", "parameter digest");
  for (const RunSummary& run : runs) {
    absl::StrAppendFormat(&table, "%-6s %7d %7s %10.0f %12.3f %20.3f %14s  %s\n", run.sync, run.world_size,
                          run.server_count > 0 ? absl::StrCat(run.server_count) : "-", run.samples_per_second,
                          run.step_ms_p50, run.exposed_exchange_ms,
                          run.has_accuracy ? absl::StrFormat("%.2f %%", 100 * run.test_accuracy) : "-",
                          run.parameter_sha256.substr(0, kShownDigestCharacters));
  }
  return table;
}

absl::StatusOr<std::string> CompareDigests(const std::vector<RunSummary>& runs) {
  // Runs with different keys are not compared: nothing says that they should agree.
  std::map<std::string, std::vector<const RunSummary*>> groups;
  for (const RunSummary& run : runs) {
    if (!run.bits_key.empty()) groups[run.bits_key].push_back(&run);
  }
  std::string text;
  for (const auto& [key, group] : groups) {
    if (group.size() < 2) continue;
    for (const RunSummary* run : group) {
      if (run->parameter_sha256 == group.front()->parameter_sha256) continue;
      return absl::InternalError(absl::StrCat(RunName(*group.front()), " and ", RunName(*run),
                                              " ended with different parameters: ", group.front()->parameter_sha256,
                                              " and ", run->parameter_sha256));
    }
    const auto name = [](std::string* out, const RunSummary* run) { absl::StrAppend(out, RunName(*run)); };
    absl::StrAppend(&text, absl::StrJoin(group, " and ", name), ": the same parameters, bit for bit\n");
  }
  return text;
}

}  // namespace starring
