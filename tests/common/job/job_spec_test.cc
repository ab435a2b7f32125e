#include "common/job/job_spec.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/job.pb.h"

namespace starring {
namespace {

using ::testing::HasSubstr;

JobSpec MakeJob() {
  JobSpec job;
  job.world_size = 2;
  job.first_step = 30;
  job.optimizer = {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01, .beta1 = 0.8};
  job.schedule = {.kind = ScheduleKind::kCosine, .base = 0.1, .warmup_steps = 5, .total_steps = 100};
  job.layout = Layout::Create({{.name = "w", .dims = {600, 100}}}).value();
  job.buckets = BucketMap::Create({.element_count = job.layout.element_count(), .bucket_bytes = 40000}).value();
  job.agreed_flags = {{"model", "lenet5"}, {"seed", "1"}};
  return job;
}

std::string Compare(const std::function<void(JobSpec&)>& change) {
  JobSpec other = MakeJob();
  change(other);
  const absl::Status status = CompareAgreements(1, SerializeAgreement(other), 0, SerializeAgreement(MakeJob()));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobSpecTest, EqualJobsAgree) {
  JobSpec other = MakeJob();
  other.rank = 1;  // what need not be equal
  other.join_deadline = absl::Seconds(1);
  EXPECT_TRUE(CompareAgreements(0, SerializeAgreement(MakeJob()), 1, SerializeAgreement(other)).ok());
}

TEST(JobSpecTest, TheOrderOfFlagsDoesNotCountAsADifferentJob) {
  JobSpec other = MakeJob();
  std::swap(other.agreed_flags[0], other.agreed_flags[1]);
  const absl::Status status = CompareAgreements(0, SerializeAgreement(MakeJob()), 1, SerializeAgreement(other));
  EXPECT_TRUE(status.ok()) << status;
}

// A path is bytes; protobuf's strings have to be UTF-8.
TEST(JobSpecTest, AFlagThatIsNotUtf8Agrees) {
  JobSpec job = MakeJob();
  job.agreed_flags[1].second = "net\xff";
  const absl::Status status = CompareAgreements(0, SerializeAgreement(job), 1, SerializeAgreement(job));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(ParseAgreement(SerializeAgreement(job)).ok());
  EXPECT_THAT(Compare([](JobSpec& other) { other.agreed_flags[1].second = "net\xff"; }), HasSubstr("--seed=net\\xff"));
}

TEST(JobSpecTest, ADifferenceIsNamedWithBothValuesAndTheWayOut) {
  EXPECT_EQ(Compare([](JobSpec& job) { job.agreed_flags[1].second = "2"; }),
            "rank 1 has --seed=2, rank 0 has --seed=1: start all workers with the same flags");
  EXPECT_EQ(Compare([](JobSpec& job) { job.first_step = 0; }),
            "rank 1 has first_step=0, rank 0 has first_step=30: resume all workers from the same checkpoint, or none");
  EXPECT_THAT(Compare([](JobSpec& job) { job.world_size = 3; }),
              HasSubstr("rank 1 has world_size=3, rank 0 has world_size=2"));
  EXPECT_THAT(Compare([](JobSpec& job) { job.optimizer.kind = OptimizerKind::kSgd; }),
              HasSubstr("rank 1 has optimizer.kind=SGD, rank 0 has optimizer.kind=ADAMW"));
  EXPECT_THAT(Compare([](JobSpec& job) { job.optimizer.nesterov = true; }),
              HasSubstr("optimizer.nesterov=true, rank 0 has optimizer.nesterov=false"));
  EXPECT_THAT(Compare([](JobSpec& job) { job.schedule.warmup_steps = 6; }),
              HasSubstr("schedule.warmup_steps=6, rank 0 has schedule.warmup_steps=5"));
  EXPECT_THAT(Compare([](JobSpec& job) { job.sum_order = SumOrder::kTree; }),
              HasSubstr("rank 1 has sum_order=TREE, rank 0 has sum_order=CHAIN"));
  EXPECT_EQ(Compare([](JobSpec& job) { job.deterministic = false; }),
            "rank 1 has deterministic=false, rank 0 has deterministic=true: start all workers from the same build");
  EXPECT_THAT(Compare([](JobSpec& job) { job.agreed_flags.pop_back(); }),
              HasSubstr("rank 1 has --seed=(no such flag), rank 0 has --seed=1"));
  EXPECT_THAT(Compare([](JobSpec& job) {
                job.agreed_flags.push_back({"augment", "true"});
              }),
              HasSubstr("rank 1 has --augment=true, rank 0 has --augment=(no such flag)"));
}

// Values that differ in the last bit must not print alike.
TEST(JobSpecTest, DoublesArePrintedExactly) {
  EXPECT_THAT(Compare([](JobSpec& job) { job.schedule.base = 0.1 + 1e-16; }),
              HasSubstr("schedule.base=0.1000000000000001, rank 0 has schedule.base=0.1"));
}

TEST(JobSpecTest, AnotherLayoutIsNamedByItsHash) {
  const std::string message = Compare([](JobSpec& job) {
    job.layout = Layout::Create({{.name = "v", .dims = {300, 100}}}).value();
  });
  EXPECT_THAT(message, HasSubstr("layout_hash=" + MakeJob().layout.hash()));
  EXPECT_THAT(message, HasSubstr("same --model"));
}

// One worker reaches the servers as 127.0.0.1, another by a name.
TEST(JobSpecTest, AnotherDefaultOfBucketBytesIsExplained) {
  EXPECT_THAT(Compare([](JobSpec& job) {
                job.buckets =
                    BucketMap::Create({.element_count = job.layout.element_count(), .bucket_bytes = 1, .world_size = 3})
                        .value();
              }),
              HasSubstr("give all of them the same --servers"));
}

TEST(JobSpecTest, AFactThatDiffersIsNamedAfterTheFlags) {
  const auto add_facts = [](JobSpec& job, const std::string& train) {
    job.agreed_flags.push_back({"data.train", train});
  };
  JobSpec a = MakeJob(), b = MakeJob();
  add_facts(a, "60000 images");
  add_facts(b, "50000 images");
  EXPECT_EQ(std::string(CompareAgreements(1, SerializeAgreement(b), 0, SerializeAgreement(a)).message()),
            "rank 1 has data.train=50000 images, rank 0 has data.train=60000 images: give all workers the same files "
            "in --data_dir, or the same --synthetic_ flags");
  b.agreed_flags[1].second = "2";
  EXPECT_THAT(std::string(CompareAgreements(1, SerializeAgreement(b), 0, SerializeAgreement(a)).message()),
              HasSubstr("--seed=2"));
}

TEST(JobSpecTest, LayerFilesAreNamedByTheirDigests) {
  EXPECT_EQ(Compare([](JobSpec& job) { job.agreed_flags[0].second = "a layer file with digest 0f"; }),
            "rank 1 has --model=a layer file with digest 0f, rank 0 has --model=lenet5: give all workers "
            "the same layer file, by whatever path: the digest is that of its layers");
}

TEST(JobSpecTest, OtherConvolutionsAreNamedWithTheWayOut) {
  const auto compare = [](const char* name, const char* value) {
    JobSpec a = MakeJob(), b = MakeJob();
    a.agreed_flags.push_back({name, "cudnn"});
    b.agreed_flags.push_back({name, value});
    return std::string(CompareAgreements(1, SerializeAgreement(b), 0, SerializeAgreement(a)).message());
  };
  EXPECT_EQ(compare("conv", "own"),
            "rank 1 has --conv=own, rank 0 has --conv=cudnn: with --conv=auto a worker takes cuDNN where it finds it: "
            "install it for all workers, or give all of them --conv=own");
  EXPECT_THAT(compare("cudnn.engines of a convolution 2 x 3", "own"),
              testing::EndsWith("=cudnn: give all workers the same cuDNN and GPUs of one model, or --conv=own"));
}

TEST(JobSpecTest, AnotherCLibraryIsNamedWithTheBundlesOwn) {
  const auto compare = [](const char* name) {
    JobSpec a = MakeJob(), b = MakeJob();
    a.agreed_flags.push_back({name, "2.36"});
    b.agreed_flags.push_back({name, "2.39"});
    return std::string(CompareAgreements(1, SerializeAgreement(b), 0, SerializeAgreement(a)).message());
  };
  EXPECT_EQ(compare("arithmetic.libc"),
            "rank 1 has arithmetic.libc=2.39, rank 0 has arithmetic.libc=2.36: another C library may compute other "
            "bits: start all workers from one bundle, with --libc=own");
  EXPECT_THAT(compare("arithmetic.libm"), HasSubstr("(in a bundle by --libc=own)"));
}

// The size of a chunk follows from the number of workers, so two builds differ if they do not agree on it.
TEST(JobSpecTest, AnotherChunkIsADifferentBuild) {
  const std::string ours = SerializeAgreement(MakeJob());
  v1::JobAgreement proto;
  ASSERT_TRUE(proto.ParseFromString(ours));
  EXPECT_EQ(proto.chunk_bytes(), 128 << 10);
  proto.set_chunk_bytes(64 << 10);
  EXPECT_EQ(std::string(CompareAgreements(1, proto.SerializeAsString(), 0, ours).message()),
            "rank 1 has chunk_bytes=65536, rank 0 has chunk_bytes=131072: start all workers from the same build");
}

// Two names of models are clearer than two hashes of layouts.
TEST(JobSpecTest, FlagsAreNamedBeforeFields) {
  EXPECT_THAT(Compare([](JobSpec& job) {
                job.layout = Layout::Create({{.name = "v", .dims = {300, 100}}}).value();
                job.agreed_flags[0].second = "mlp";
              }),
              HasSubstr("--model=mlp"));
}

TEST(JobSpecTest, BytesThatAreNoAgreementAreRefusedByRank) {
  const absl::Status status = CompareAgreements(1, "\x08", 0, SerializeAgreement(MakeJob()));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 sent: 1 bytes that are no job agreement"));
}

TEST(JobSpecTest, AFieldFromAnotherBuildIsADifference) {
  const std::string ours = SerializeAgreement(MakeJob());
  const absl::Status status = CompareAgreements(1, ours + "\xf8\x07\x01", 0, ours);  // field 127, value 1
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 and rank 0 send agreements that differ in a field"));
}

TEST(JobSpecTest, AServerLearnsTheJobFromAnAgreement) {
  JobSpec job = MakeJob();
  job.sum_order = SumOrder::kTree;
  const absl::StatusOr<Agreement> agreement = ParseAgreement(SerializeAgreement(job));
  ASSERT_TRUE(agreement.ok()) << agreement.status();
  EXPECT_EQ(agreement->world_size, 2);
  EXPECT_EQ(agreement->first_step, 30);
  EXPECT_EQ(agreement->layout_hash, job.layout.hash());
  EXPECT_EQ(agreement->optimizer, job.optimizer);
  EXPECT_EQ(agreement->schedule, job.schedule);
  EXPECT_EQ(agreement->sum_order, SumOrder::kTree);
  EXPECT_EQ(agreement->agreed_flags, job.agreed_flags);
  // The buckets are those of one worker, whose smallest bucket is shorter than that of two.
  ASSERT_EQ(agreement->buckets.bucket_count(), job.buckets.bucket_count());
  for (int b = 0; b < job.buckets.bucket_count(); ++b) EXPECT_EQ(agreement->buckets.bucket(b), job.buckets.bucket(b));
}

TEST(JobSpecTest, RanksAgreeOnTheNormAndServersRefuseIt) {
  const auto clip = [](JobSpec& job) { job.optimizer.clip_norm = 0.5; };
  EXPECT_THAT(Compare(clip), HasSubstr("rank 1 has optimizer.clip_norm=0.5, rank 0 has optimizer.clip_norm=0: "));
  JobSpec job = MakeJob();
  clip(job);
  const absl::Status status = ParseAgreement(SerializeAgreement(job)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("clip_norm is 0.5, a server updates a bucket before it has"));
}

TEST(JobSpecTest, AServerRefusesValuesOutOfBounds) {
  const auto message = [](const std::function<void(v1::JobAgreement&)>& change) {
    v1::JobAgreement proto;
    EXPECT_TRUE(proto.ParseFromString(SerializeAgreement(MakeJob())));
    change(proto);
    const absl::Status status = ParseAgreement(proto.SerializeAsString()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  for (const int wrong : {0, -1, kWorldSizeMax + 1, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_THAT(message([&](auto& proto) { proto.set_world_size(wrong); }),
                HasSubstr(absl::StrCat("world_size is ", wrong, ", it must be from 1 to 1024")));
  }
  EXPECT_THAT(message([](auto& proto) { proto.set_first_step(-1); }), HasSubstr("first_step is -1"));
  EXPECT_THAT(message([](auto& proto) { proto.set_first_step(kStepMax + 1); }), HasSubstr("first_step is 281474976"));
  EXPECT_THAT(message([](auto& proto) { proto.set_bucket_bytes(5); }),
              HasSubstr("bucket_bytes is 5, this build rounds"));
  EXPECT_THAT(message([](auto& proto) { proto.mutable_optimizer()->set_beta1(2); }),
              HasSubstr("optimizer: beta1 is 2"));
  EXPECT_THAT(
      message([](auto& proto) { proto.mutable_optimizer()->set_kind(static_cast<v1::OptimizerConfig::Kind>(5)); }),
      HasSubstr("optimizer.kind is 5"));
  EXPECT_THAT(message([](auto& proto) { proto.mutable_schedule()->set_total_steps(2); }), HasSubstr("schedule: total"));
  EXPECT_THAT(
      message([](auto& proto) { proto.mutable_schedule()->set_kind(static_cast<v1::LearningRateSchedule::Kind>(5)); }),
      HasSubstr("schedule.kind is 5"));
  EXPECT_THAT(message([](auto& proto) { proto.set_sum_order(static_cast<v1::JobAgreement::SumOrder>(2)); }),
              HasSubstr("sum_order is 2"));
  EXPECT_THAT(message([](auto& proto) { proto.clear_chunk_bytes(); }),
              HasSubstr("chunk_bytes is 0, this build adds in chunks of 131072 with 2 workers"));
  EXPECT_EQ(ParseAgreement("\x08").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace starring
