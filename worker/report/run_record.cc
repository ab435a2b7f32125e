#include "worker/report/run_record.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/atomic_file.h"
#include "common/status.h"
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

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

void FillConfig(const RunFacts& facts, v1::RunConfig& config) {
  const WorkerOptions& options = *facts.options;
  config.set_sync(SyncName(options.sync));
  config.set_world_size(options.world_size);
  config.set_server_count(static_cast<int>(options.servers.size()));
  config.set_model(options.model);
  config.set_dataset(options.dataset.name);
  config.set_data_dir(options.dataset.data_dir);
  config.set_augment(options.augment ? "crop_flip" : "none");
  config.set_train_count(static_cast<int>(facts.data->train.count));
  config.set_test_count(static_cast<int>(facts.data->test.count));
  config.set_epochs(static_cast<int>(options.epochs));
  config.set_max_steps(static_cast<int>(options.max_steps));
  config.set_global_batch(static_cast<int>(options.global_batch));
  config.set_seed(options.seed);
  const bool sgd = options.optimizer.kind == OptimizerKind::kSgd;
  config.set_optimizer(sgd ? "sgd" : "adamw");
  config.set_learning_rate(options.schedule.base);
  config.set_momentum(options.optimizer.momentum);
  config.set_nesterov(options.optimizer.nesterov);
  config.set_weight_decay(options.optimizer.weight_decay);
  config.set_beta1(options.optimizer.beta1);
  config.set_beta2(options.optimizer.beta2);
  config.set_epsilon(options.optimizer.epsilon);
  config.set_schedule(ScheduleName(options.schedule.kind));
  config.set_warmup_steps(static_cast<int>(options.schedule.warmup_steps));
  config.set_decay_steps(static_cast<int>(options.schedule.decay_steps));
  config.set_decay_gamma(options.schedule.gamma);
  config.set_total_steps(static_cast<int>(facts.result->total_steps));
  config.set_device(options.device);
  config.set_math(options.math);
  config.set_conv(options.conv);
  config.set_cuda_graph(options.device == "cuda" && options.cuda_graph);
  config.set_share_gpus(options.device == "cuda" && options.share_gpus);
  config.set_cuda_aware_mpi(
      options.device == "cuda" && options.sync == Sync::kRing ? CudaAwareMpiName(options.cuda_aware_mpi) : "");
  config.set_data_on_gpu(options.device != "cuda" ? "" : facts.data_on_gpu ? "on" : "off");
  config.set_threads(options.threads);
  config.set_isa(options.device == "cpu" ? InstructionSetName(options.isa) : "");
  config.set_loader_threads(options.loader_threads);
  config.set_bucket_bytes(static_cast<int>(facts.result->bucket_bytes));
  config.set_lanes(options.sync == Sync::kStar ? options.lanes : 0);
  config.set_security(options.sync == Sync::kStar ? SecurityName(options.security) : "");
  config.set_same_host(options.sync == Sync::kStar ? SameHostName(options.same_host) : "");
  for (const std::string& server : options.servers) config.add_servers(server);
  config.set_checkpoint_dir(options.checkpoint_dir);
  config.set_checkpoint_every_epochs(static_cast<int>(options.checkpoint_every_epochs));
  config.set_checkpoint_every_steps(static_cast<int>(options.checkpoint_every_steps));
  config.set_resume(options.resume);
  config.set_record(options.record);
  config.set_trace(options.trace);
  config.set_tensorboard_dir(options.tensorboard_dir);
  config.set_tensorboard_every_steps(static_cast<int>(options.tensorboard_every_steps));
  config.set_metrics_port(options.metrics_port);
  config.set_metrics_address(options.metrics_address);
  config.set_join_deadline_s(static_cast<int>(absl::ToInt64Seconds(options.join_deadline)));
  config.set_checkpoint_deadline_s(static_cast<int>(absl::ToInt64Seconds(options.checkpoint_deadline)));
  config.set_exchange_deadline_s(static_cast<int>(absl::ToInt64Seconds(options.exchange_deadline)));
  config.set_stall_report_s(static_cast<int>(absl::ToInt64Seconds(options.stall_report)));
}

void FillHost(const RunFacts& facts, v1::RunHost& host) {
  host.set_name(HostName());
  host.set_cpu(ProcessorName());
  host.set_cores_per_worker(facts.cores_per_worker);
  host.set_cores_per_server(facts.cores_per_server);
  host.set_device(facts.device);
  for (const auto& [name, version] : facts.versions) (*host.mutable_versions())[name] = version;
  for (const auto& [shape, engines] : facts.engines) (*host.mutable_engines())[shape] = engines;
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
  record.set_steps(static_cast<int>(result.steps));
  const StepSummary& summary = result.step_summary;
  v1::StepMilliseconds& step = *record.mutable_step_ms();
  step.set_p50(summary.p50_ms);
  step.set_p95(summary.p95_ms);
  step.set_p99(summary.p99_ms);
  step.set_max(summary.max_ms);
  step.set_mean(summary.mean_ms);
  step.set_steps_measured(static_cast<int>(summary.steps_measured));
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
  for (const StepLoss& loss : result.losses) {
    v1::StepLoss& out = *record.add_losses();
    out.set_step(static_cast<int>(loss.step));
    out.set_seconds(loss.seconds);
    out.set_loss(loss.loss);
  }
}

}  // namespace

absl::Status WriteRunRecord(const RunFacts& facts) {
  v1::RunRecord record;
  FillConfig(facts, *record.mutable_config());
  FillHost(facts, *record.mutable_host());
  FillResult(*facts.result, record);
  record.mutable_exchange()->set_gpu_transfer(facts.gpu_transfer);
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(record, &json, print);
  if (!printed.ok()) return absl::InternalError(absl::StrCat("run record: ", std::string(printed.message())));
  return WriteFileAtomically(facts.options->record, json);
}

}  // namespace starring
