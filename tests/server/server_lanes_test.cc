// A server's limits on the lanes of a worker: messages, answers that wait, tracks of a trace.
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/arithmetic/reduction_order.h"
#include "common/base/limits.h"
#include "common/metrics/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/stranger.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

ExchangeMessage MessageOf(ExchangeMessage::Kind kind, int64_t step = 0, int bucket = 0) {
  ExchangeMessage message;
  message.set_kind(kind);
  message.set_step(step);
  message.set_bucket(bucket);
  return message;
}

ExchangeMessage HelloOf(const PendingJoin& join, int rank = 0, int lane = 0) {
  ExchangeMessage hello = MessageOf(ExchangeMessage::HELLO);
  hello.set_job_id(join.job_id());
  hello.set_rank(rank);
  hello.set_lane(lane);
  return hello;
}

// A server whose job has one worker, with one open lane.
class OneLaneJob {
 public:
  explicit OneLaneJob(const JobSpec& job = MakeJob(0, 1, 1000, 1), ParameterServer::Options options = {})
      : server_(StartServer(std::move(options))),
        join_(server_->address(), RequestOf(job, 10)),
        worker_(server_->address()),
        monitor_(server_->address()),
        lane_(worker_) {
    EXPECT_TRUE(join_.Wait().ok());
    EXPECT_TRUE(lane_.Write(HelloOf(join_)));
    ExchangeMessage answer;
    EXPECT_TRUE(lane_.Read(&answer));
    EXPECT_EQ(answer.kind(), ExchangeMessage::HERE);
    EXPECT_TRUE(AwaitLanes(1));
  }
  bool AwaitLanes(int count) {
    return Eventually([&] { return monitor_.Status().workers(0).lanes_open() == count; });
  }
  // The status with which the server ends the lane after a gradient of this length.
  grpc::Status EndByGradient(int64_t payload_bytes) {
    ExchangeMessage gradient = MessageOf(ExchangeMessage::GRADIENT);
    gradient.set_payload(std::string(payload_bytes, '\0'));
    lane_.Write(gradient);
    return lane_.End();
  }
  Stream& lane() { return lane_; }
  const std::string& address() const { return server_->address(); }

 private:
  const std::unique_ptr<ParameterServer> server_;
  PendingJoin join_;
  Stranger worker_;
  Stranger monitor_;
  Stream lane_;
};

TEST(ServerLanesTest, AWorkerThatAsksAndDoesNotReadIsCut) {
  // Answers of 1 MiB: gRPC buffers only a few of them for a client that does not read.
  const JobSpec job = MakeJob(0, 1, 8 * 32768, 1 << 20);
  OneLaneJob worker(job);
  ExchangeMessage parameters = MessageOf(ExchangeMessage::INITIAL_PARAMETERS, -1);
  parameters.set_payload(std::string(job.layout.element_count() * sizeof(float), '\0'));
  ASSERT_TRUE(worker.lane().Write(parameters));
  const absl::Time begin = absl::Now();
  const ExchangeMessage fetch = MessageOf(ExchangeMessage::FETCH_PARAMETERS, -1);
  for (int i = 0; i < 3 * kLaneAnswersMax && worker.lane().Write(fetch); ++i) {
  }
  EXPECT_TRUE(worker.AwaitLanes(0));
  EXPECT_LT(absl::Now() - begin, kPatience / 2) << "that was the stream's own deadline";
}

// One worker of two submits many slices on one lane, and the other contributes nothing: `expected` of them arrive.
void ExpectContributions(SameHost same_host, int expected) {
  const auto server = StartServer();
  constexpr int kBuckets = 4 * kLaneRequestsMax;
  JobSpec job = MakeJob(0, 2, kBuckets * ChunkElements(1), 1);
  ASSERT_EQ(job.buckets.bucket_count(), kBuckets);
  PendingJoin other(server->address(),
                    RequestOf(MakeJob(1, 2, kBuckets * ChunkElements(1), 1), 11));  // and contributes nothing
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  const std::vector<float> gradient(job.layout.element_count());
  auto exchange = MakeStar({server->address()}, 1, same_host);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  ASSERT_EQ(exchange->memory().gradients.empty(), same_host == SameHost::kSocket);
  for (int b = 0; b < kBuckets; ++b) {
    const ElementRange range = job.buckets.bucket(b);
    exchange->Submit({.round = 0, .bucket = b, .gradient = std::span(gradient).subspan(range.begin, range.size())});
  }
  Stranger monitor(server->address());
  const auto contributions = [&] { return monitor.Status().workers(0).contributions(); };
  ASSERT_TRUE(Eventually([&] { return contributions() >= expected; }));
  absl::SleepFor(absl::Milliseconds(200));  // more would arrive in this time
  EXPECT_EQ(contributions(), expected);
  exchange->Abort(absl::CancelledError("the test is over"));
}

TEST(ServerLanesTest, AWorkerHasNoMoreSlicesOnTheirWayThanAllowed) {
  ExpectContributions(SameHost::kSocket, kShardSlicesMax);
}

// Arrays in shared memory are not on their way.
TEST(ServerLanesTest, AWorkerHasNoMoreRequestsOnALaneThanAllowed) {
  ExpectContributions(SameHost::kSharedMemory, kLaneRequestsMax);
}

TEST(ServerLanesTest, AHelloOfNoWorkerOrLaneIsRefused) {
  const auto server = StartServer();
  PendingJoin join(server->address(), RequestOf(MakeJob(0, 1, 1000, 1), 10));
  ASSERT_TRUE(join.Wait().ok());
  Stranger worker(server->address());
  for (const auto& [rank, lane] : {std::pair(0, kLanesMax), std::pair(0, -1), std::pair(1, 0), std::pair(-1, 0)}) {
    Stream stream(worker);
    ASSERT_TRUE(stream.Write(HelloOf(join, rank, lane)));
    EXPECT_EQ(stream.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << rank << ", " << lane;
  }
}

TEST(ServerLanesTest, AMessageOverTheLimitIsNotTaken) {
  OneLaneJob worker;
  // In gRPC's words: gRPC refuses the message by its length, before it reads it.
  EXPECT_EQ(worker.EndByGradient(kMessageBytesMax).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// gRPC holds a message until it is complete, so the limit of memory applies first. Mostly: another thread of gRPC takes
// memory back, and may come after the end of the message, which is then a wrong one for this job, or close the worker's
// connection. So one attempt of some is enough.
TEST(ServerLanesTest, AMessageThatTheMemoryLimitDoesNotHoldIsNotTaken) {
  bool is_refused = false;
  for (int attempt = 0; attempt < 20 && !is_refused; ++attempt) {
    OneLaneJob worker(MakeJob(0, 1, 1000, 1), {.memory_bytes_max = 8 << 20});
    const grpc::StatusCode code = worker.EndByGradient(kMessagePayloadBytesMax).error_code();
    // The worker may come back with a shorter message. gRPC may close a connection that asks, too.
    Stranger monitor(worker.address());
    v1::GetStatusReply status;
    ASSERT_TRUE(Eventually([&] { return monitor.TryStatus(&status).ok(); }));
    const bool is_running = status.state() == v1::GetStatusReply::RUNNING;
    is_refused = is_running && code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (is_refused || (is_running && code == grpc::StatusCode::UNAVAILABLE)) continue;
    EXPECT_THAT(status.message(), HasSubstr("a wrong message from rank 0")) << code;
  }
  EXPECT_TRUE(is_refused);
}

// All lanes together keep as many events as kServerTracksMax tracks.
TEST(ServerLanesTest, TracksOfManyLanesKeepFewEventsEach) {
  constexpr int kWorkers = 32;
  constexpr int64_t kKept = kServerTracksMax * kTraceEventsMax / (kWorkers * kLanesMax);
  const Trace::Options options = {.path = ::testing::TempDir() + "/limits.json", .role = Trace::Role::kServer};
  const auto trace = Trace::Create(options).value();
  auto server = StartServer({.trace = trace.get()});
  std::deque<PendingJoin> joins;
  for (int rank = 0; rank < kWorkers; ++rank) {
    v1::JoinRequest request = RequestOf(MakeJob(rank, kWorkers, 16, 1), 10 + rank);
    request.set_lanes(kLanesMax);
    joins.emplace_back(server->address(), request);
  }
  for (PendingJoin& join : joins) ASSERT_TRUE(join.Wait().ok());
  std::deque<Stranger> workers;
  std::deque<Stream> streams;
  ExchangeMessage answer;
  ExchangeMessage gradient = MessageOf(ExchangeMessage::GRADIENT);
  gradient.set_payload(std::string(16 * sizeof(float), '\0'));
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back(server->address());
    streams.emplace_back(workers.back());
    ASSERT_TRUE(streams[rank].Write(HelloOf(joins[0], rank)));
    ASSERT_TRUE(streams[rank].Read(&answer));
    if (rank == 0) {
      ExchangeMessage parameters = MessageOf(ExchangeMessage::INITIAL_PARAMETERS, -1);
      parameters.set_payload(gradient.payload());
      ASSERT_TRUE(streams[0].Write(parameters));
      ASSERT_TRUE(streams[0].Read(&answer));
    }
    ASSERT_TRUE(streams[rank].Write(gradient));
  }
  // Each repeated gradient is answered with the same parameters.
  ASSERT_TRUE(streams[0].Read(&answer));
  for (int64_t left = kKept + 4; left > 0; left -= kLaneRequestsMax) {
    const int64_t count = std::min<int64_t>(left, kLaneRequestsMax);
    for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(streams[0].Write(gradient));
    for (int64_t i = 0; i < count; ++i) ASSERT_TRUE(streams[0].Read(&answer));
  }
  server.reset();
  std::ifstream file(Trace::PathOf(options));
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(json, HasSubstr(R"("dropped_events":5})"));
}

}  // namespace
}  // namespace starring
