#include "worker/report/run_record.h"

#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "common/base/not_written.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/flags/flag_table.h"
#include "common/host/host_identity.h"
#include "common/job/cells.h"
#include "google/protobuf/util/json_util.h"
#include "proto/starring/v1/run_record.pb.h"

namespace starring {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    return std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(line.find(':') + 1)));
  }
  return "unknown";
}

// The record's entries that are no flags, or that replace a flag's value, as JSON: a value that meant nothing in this
// run would mislead a reader, and some flags are known only after the run.
std::map<std::string, std::string> ConfigFacts(const RunFacts& facts) {
  const WorkerOptions& options = *facts.options;
  const auto text = [](absl::string_view value) { return FlagJson(FlagSlot::Json::kText, value); };
  std::map<std::string, std::string> config = {
      {"server_count", absl::StrCat(options.ServerCount())},
      {"train_count", absl::StrCat(facts.data->train.count)},
      {"test_count", absl::StrCat(facts.data->test.count)},
      {"security", text("")},
      {"total_steps", absl::StrCat(facts.result->total_steps)},
      {"bucket_bytes", absl::StrCat(facts.result->bucket_bytes)},
      {"chunk_bytes", absl::StrCat(ChunkBytesFor(options.world_size))},
  };
  // Each cell, and each device below, has flags that the others ignore.
  const Cell& cell = options.cell();
  if (cell.May(Cell::kSecret)) config["security"] = text(SecurityName(options.security));
  if (cell.contact != Contact::kServers) {
    config["lanes"] = "0";
    const bool may_share = FindCell({.sync = cell.sync, .same_host = SameHost::kSharedMemory}) != nullptr;
    const bool by_gpus = absl::StartsWith(facts.gpu_transfer, "gpu-memory");
    const char* const shared = by_gpus ? "gpu_memory" : "shared_memory";
    config["same_host"] = text(!may_share ? "" : facts.result->exchange.shared_memory ? shared : "socket");
  }
  config["deterministic"] = options.IsDeterministic() ? "true" : "false";
  config["sync_reason"] = text(facts.sync_reason);
  config["same_host_reason"] = text(facts.same_host_reason);
  // As it was: too little GPU memory, or one rank, leaves the hosts to wait.
  config["gpu_waits"] = text(facts.gpu_transfer == "gpu-memory-graph" ? "graph"
                             : facts.gpu_transfer == "gpu-memory"     ? "host"
                                                                      : "");
  config["generation"] = absl::StrCat(facts.result->generation);
  if (!cell.Exchanges()) config["transport"] = text("");
  if (options.device == DeviceKind::kCuda) {
    config["isa"] = text("");
    config["data_on_gpu"] = text(facts.data_on_gpu ? "on" : "off");
    const CellPattern by_gpus = {.sync = cell.sync, .transport = cell.transport, .may = Cell::kGpuMemory};
    if (FindCell(by_gpus) == nullptr) config["cuda_aware_mpi"] = text("");
  } else {
    config["cuda_graph"] = config["share_gpus"] = "false";
    config["conv"] = config["cuda_aware_mpi"] = config["data_on_gpu"] = text("");
  }
  return config;
}

// The object "config" of the record.
std::string ConfigJson(const RunFacts& facts) {
  std::map<std::string, std::string> values = ConfigFacts(facts);
  std::vector<std::string> lines;
  const auto add = [&lines](absl::string_view name, absl::string_view value) {
    lines.push_back(absl::StrCat("  \"", name, "\": ", value));
  };
  for (const FlagRow& row : WorkerFlags().rows) {
    if (row.Has(kNotRecorded)) continue;
    const auto fact = values.find(std::string(row.name));
    // A fact replaces the flag's value and is taken out. The entries that are left after the loop are not flags.
    if (fact == values.end()) {
      add(row.name, FlagJson(row.resolved().json, row.resolved().print(facts.options)));
    } else {
      add(row.name, fact->second);
      values.erase(fact);
    }
  }
  for (const auto& [name, value] : values) add(name, value);
  return absl::StrCat("{\n", absl::StrJoin(lines, ",\n"), "\n }");
}

void FillHost(const RunFacts& facts, v1::RunHost& host) {
  host.set_name(HostName());
  host.set_cpu(ProcessorName());
  host.set_cores_per_worker(facts.cores_per_worker);
  host.set_cores_per_server(facts.cores_per_server);
  host.set_cpu_quota(facts.cpu_quota);
  host.set_device(facts.device);
  for (const auto& [name, version] : facts.versions) (*host.mutable_versions())[name] = version;
  for (const auto& [shape, engines] : facts.engines) (*host.mutable_engines())[shape] = engines;
}

void FillQuality(const Quality& quality, v1::TestQuality& out) {
  constexpr const char* kNames[] = {"softmax", "mse", "bce"};
  out.set_loss(kNames[static_cast<size_t>(quality.loss)]);
  out.set_mean_loss(quality.loss_mean);
  out.set_accuracy(quality.accuracy);
  out.set_top5_accuracy(quality.top5);
  out.set_auc(quality.auc);
  out.set_rmse(quality.rmse);
  out.set_r2(quality.r2);
  for (const int64_t count : quality.confusion) out.add_confusion(static_cast<int32_t>(count));
}

void FillMilliseconds(const StepSummary& summary, v1::StepMilliseconds& out) {
  out.set_p50(summary.p50_ms);
  out.set_p95(summary.p95_ms);
  out.set_p99(summary.p99_ms);
  out.set_max(summary.max_ms);
  out.set_mean(summary.mean_ms);
  out.set_steps_measured(static_cast<int>(summary.steps_measured));
}

void FillResult(const TrainResult& result, v1::RunRecord& record) {
  for (const EpochSummary& epoch : result.epochs) {
    v1::EpochResult& out = *record.add_epochs();
    out.set_epoch(static_cast<int>(epoch.epoch));
    out.set_train_loss(epoch.train_loss);
    out.set_test_loss(epoch.test_loss);
    out.set_test_accuracy(epoch.test_accuracy);
    out.set_seconds(epoch.seconds);
    out.set_samples_per_second(epoch.samples_per_second);
  }
  if (result.converged) record.set_stopped_after_epochs(static_cast<int>(result.next_step / result.steps_per_epoch));
  if (result.quality.has_value()) FillQuality(*result.quality, *record.mutable_test());
  // Counts are int32 and bytes double: proto3's JSON writes 64-bit integers as strings, which most readers do not
  // expect.
  record.set_steps(static_cast<int>(result.steps));
  record.set_resumed_from_step(static_cast<int>(result.resumed_from_step));
  for (const std::string& note : result.resume_notes) record.add_resume_notes(note);
  const StepSummary& summary = result.step_summary;
  FillMilliseconds(summary, *record.mutable_step_ms());
  if (result.gpu_exposed.has_value()) {
    FillMilliseconds(*result.gpu_exposed, *record.mutable_gpu_exposed_exchange_ms());
  }
  const auto part = [&summary](StepPart p) { return summary.part_ms[static_cast<int>(p)]; };
  v1::StepBreakdown& breakdown = *record.mutable_breakdown_ms();
  breakdown.set_data_wait(part(StepPart::kDataWait));
  breakdown.set_h2d(part(StepPart::kHostToDevice));
  breakdown.set_forward(part(StepPart::kForward));
  breakdown.set_backward(part(StepPart::kBackward));
  breakdown.set_exposed_exchange(part(StepPart::kExposedExchange));
  breakdown.set_optimizer(part(StepPart::kOptimizer));
  breakdown.set_other(part(StepPart::kOther));
  record.mutable_exchange()->set_bytes_sent(static_cast<double>(result.exchange.bytes_sent));
  record.mutable_exchange()->set_bytes_received(static_cast<double>(result.exchange.bytes_received));
  record.mutable_exchange()->set_shared_memory(result.exchange.shared_memory);
  record.mutable_exchange()->set_not_shared(result.exchange.not_shared);
  record.set_parameter_sha256(result.parameter_sha256);
  for (const WorkerUse& use : result.workers) {
    v1::WorkerUse& out = *record.add_workers();
    out.set_compute_ms(use.compute_ms);
    out.set_cpu_percent(use.cpu_percent);
  }
  for (const StragglerRecord& found : result.stragglers) {
    v1::Straggler& out = *record.add_stragglers();
    out.set_rank(found.straggler.rank);
    out.set_phase(found.straggler.phase);
    out.set_percent(found.straggler.percent);
    out.set_first_step(static_cast<int>(found.first_step));
    out.set_last_step(static_cast<int>(found.last_step));
  }
  for (const TriedBuckets& tried : result.tried_buckets) {
    v1::TriedBuckets& out = *record.add_tried_buckets();
    out.set_bucket_bytes(static_cast<int>(tried.bucket_bytes));
    out.set_step_ms(tried.step_ms);
  }
  for (const StepLoss& loss : result.losses) {
    v1::StepLoss& out = *record.add_losses();
    out.set_step(static_cast<int>(loss.step));
    out.set_seconds(loss.seconds);
    out.set_loss(loss.loss);
  }
}

}  // namespace

absl::StatusOr<std::string> RunRecordJson(const RunFacts& facts) {
  v1::RunRecord record;
  record.set_version(kRunRecordVersion);
  FillHost(facts, *record.mutable_host());
  FillResult(*facts.result, record);
  for (const auto& [name, value] : facts.facts) (*record.mutable_facts())[name] = value;
  record.mutable_exchange()->set_gpu_transfer(facts.gpu_transfer);
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  // Every record has every key, also those whose value is 0, and keys are spelled as in the proto.
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  // The library has a status type of its own.
  const auto printed = google::protobuf::util::MessageToJsonString(record, &json, print);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("run record: ", std::string(printed.message())));
  // The proto has no field for the flags: they go in front of its first field.
  CHECK(absl::StartsWith(json, "{\n")) << json;
  return absl::StrCat("{\n \"config\": ", ConfigJson(facts), ",\n", json.substr(2));
}

absl::Status CheckRunRecord(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status status = CheckFileWritable(path);
  if (status.ok()) return status;
  return RefuseFlag("record", path,
                    absl::StrCat(std::string(status.message()), ": name a file in a folder that can be written to"));
}

absl::Status WriteRunRecord(const RunFacts& facts) {
  ASSIGN_OR_RETURN(const std::string json, RunRecordJson(facts));
  return NotWritten(WriteFileAtomically(facts.options->record, json), "the run record");
}

}  // namespace starring
