#include "worker/report/run_record.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/not_written.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/one_flag_changed.h"

namespace starring {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// A record with the options of a command line.
Struct Record(const std::vector<std::string>& words, DeviceKind device = DeviceKind::kCpu) {
  std::vector<const char*> argv = {"worker"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  absl::StatusOr<WorkerOptions> options =
      ParseWorkerOptions(static_cast<int>(argv.size()), argv.data(), LauncherEnvironment{});
  EXPECT_TRUE(options.ok()) << options.status();
  options->device = device;
  TrainAndTest data;
  data.train.count = 60;
  data.test.count = 10;
  TrainResult result;
  result.total_steps = 77;
  result.bucket_bytes = 4096;
  result.steps = 3;
  result.tried_buckets = {{.bucket_bytes = 4096, .step_ms = 2.5}, {.bucket_bytes = 8192, .step_ms = 3}};
  const absl::StatusOr<std::string> json =
      RunRecordJson({.options = &*options, .data = &data, .result = &result, .cpu_quota = 0.5});
  EXPECT_TRUE(json.ok()) << json.status();
  Struct record;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(*json, &record).ok()) << *json;
  return record;
}

const Struct& Config(const Struct& record) { return record.fields().at("config").struct_value(); }

TEST(RunRecordTest, HasTheFlagsAndWhatBecameOfTheRun) {
  const Struct record = Record({"--sync=local", "--seed=18446744073709551615", "--nesterov", "--epsilon=0.5"});
  EXPECT_EQ(record.fields().at("steps").number_value(), 3);
  const auto& config = Config(record).fields();
  EXPECT_EQ(config.at("sync").string_value(), "local");
  EXPECT_EQ(config.at("model").string_value(), "lenet5");
  EXPECT_EQ(config.at("seed").string_value(), "18446744073709551615");  // a number would lose digits
  EXPECT_TRUE(config.at("nesterov").bool_value());
  EXPECT_EQ(config.at("epsilon").number_value(), 0.5);
  EXPECT_EQ(config.at("join_deadline_s").number_value(), 60);
  EXPECT_EQ(config.at("servers").list_value().values_size(), 0);
  EXPECT_EQ(config.at("train_count").number_value(), 60);
  EXPECT_EQ(config.at("total_steps").number_value(), 77);
  EXPECT_EQ(config.at("bucket_bytes").number_value(), 4096);
  EXPECT_EQ(config.at("chunk_bytes").number_value(), 128 << 10);
  const auto& tried = record.fields().at("tried_buckets").list_value();
  ASSERT_EQ(tried.values_size(), 2);
  EXPECT_EQ(tried.values(1).struct_value().fields().at("bucket_bytes").number_value(), 8192);
  EXPECT_EQ(tried.values(1).struct_value().fields().at("step_ms").number_value(), 3);
}

TEST(RunRecordTest, HasTheQuota) {
  EXPECT_EQ(Record({}).fields().at("host").struct_value().fields().at("cpu_quota").number_value(), 0.5);
}

TEST(RunRecordTest, SaysWhetherFlagsAndSeedDecideTheBits) {
  EXPECT_EQ(Record({}).fields().at("version").number_value(), kRunRecordVersion);
  EXPECT_TRUE(Config(Record({"--sync=local"})).fields().at("deterministic").bool_value());
  EXPECT_TRUE(Config(Record({"--sync=ring", "--transport=mpi"})).fields().at("deterministic").bool_value());
  EXPECT_FALSE(Config(Record({"--sync=mpi"})).fields().at("deterministic").bool_value());
}

TEST(RunRecordTest, AFlagThatMeansNothingInTheRunIsEmpty) {
  const auto on_cpu = Config(Record({})).fields();
  EXPECT_EQ(on_cpu.at("isa").string_value(), "auto");
  EXPECT_EQ(on_cpu.at("lanes").number_value(), 0);
  EXPECT_FALSE(on_cpu.at("cuda_graph").bool_value());
  for (const char* const name : {"conv", "data_on_gpu", "cuda_aware_mpi", "same_host", "security", "transport"}) {
    EXPECT_EQ(on_cpu.at(name).string_value(), "") << name;
  }
  const auto on_gpu = Config(Record({"--servers=a:1,b:2", "--conv=own"}, DeviceKind::kCuda)).fields();
  EXPECT_EQ(on_gpu.at("isa").string_value(), "");
  EXPECT_EQ(on_gpu.at("conv").string_value(), "own");
  EXPECT_EQ(on_gpu.at("lanes").number_value(), 1);
  EXPECT_EQ(on_gpu.at("server_count").number_value(), 2);
  EXPECT_EQ(on_gpu.at("servers").list_value().values(1).string_value(), "b:2");
  EXPECT_EQ(on_gpu.at("security").string_value(), "none");
  EXPECT_EQ(on_gpu.at("data_on_gpu").string_value(), "off");
  EXPECT_EQ(on_gpu.at("transport").string_value(), "grpc");
  EXPECT_EQ(on_gpu.at("cuda_aware_mpi").string_value(), "");
  const auto co_located = Config(Record({"--sync=star", "--transport=mpi"}, DeviceKind::kCuda)).fields();
  EXPECT_EQ(co_located.at("transport").string_value(), "mpi");
  EXPECT_EQ(co_located.at("cuda_aware_mpi").string_value(), "off");
  EXPECT_EQ(co_located.at("server_count").number_value(), 0);
  EXPECT_EQ(co_located.at("lanes").number_value(), 0);
  EXPECT_EQ(co_located.at("security").string_value(), "");
  const auto tcp =
      Config(Record({"--rendezvous=127.0.0.1:1", "--rank=0", "--world_size=2"}, DeviceKind::kCuda)).fields();
  EXPECT_EQ(tcp.at("sync").string_value(), "ring");
  EXPECT_EQ(tcp.at("transport").string_value(), "tcp");
  EXPECT_EQ(tcp.at("security").string_value(), "none");
  EXPECT_EQ(tcp.at("cuda_aware_mpi").string_value(), "");
}

// Each flag in turn gets another value: the record has it if and only if the flag's row says so.
TEST(RunRecordTest, RecordsEveryFlagThatTheTableSays) {
  for (const OneFlagChanged& change : OneFlagChanged::All()) {
    const std::string name(change.row->name);
    bool is_recorded = false;
    // Some flags mean something on one device only; total_steps and bucket_bytes are told as they came out.
    for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
      const auto usual = Config(Record(OneFlagChanged::Words(), device)).fields();
      const auto changed = Config(Record(change.words, device)).fields();
      EXPECT_EQ(changed.contains(name), !change.row->Has(kNotRecorded)) << name;
      if (!changed.contains(name)) continue;
      is_recorded |= changed.at(name).SerializeAsString() != usual.at(name).SerializeAsString();
    }
    const bool came_out = name == "total_steps" || name == "bucket_bytes" || name == "data_on_gpu" ||
                          name == "cuda_aware_mpi" || name == "device" || name == "same_host";
    EXPECT_EQ(is_recorded, !change.row->Has(kNotRecorded) && !came_out) << name;
  }
}

TEST(RunRecordTest, APathThatCannotBeWrittenIsRefusedBeforehandAndIsNoRefusalAfterwards) {
  EXPECT_EQ(CheckRunRecord(""), absl::OkStatus());
  EXPECT_EQ(CheckRunRecord(testing::TempDir() + "/record.json"), absl::OkStatus());
  for (const std::string& bad : {testing::TempDir(), std::string("/no/such/folder/record.json")}) {
    const absl::Status status = CheckRunRecord(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(std::string(status.message()).find("flag --record cannot be \"" + bad), std::string::npos) << status;
    WorkerOptions options;
    options.record = bad;
    const TrainAndTest data;
    const TrainResult result;
    EXPECT_TRUE(IsNotWritten(WriteRunRecord({.options = &options, .data = &data, .result = &result}))) << bad;
  }
}

}  // namespace
}  // namespace starring
