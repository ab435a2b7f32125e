// What a server bounds before it knows who calls, and what it bounds of those it knows. Raw gRPC clients stand for
// strangers, of which a worker of ours is none.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/host/host_port.h"
#include "common/limits.h"
#include "common/trace.h"
#include "common/wire/exchange_message.h"
#include "common/wire/grpc_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/job.pb.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using v1::ExchangeMessage;

constexpr absl::Duration kPatience = absl::Seconds(20);

std::unique_ptr<ParameterServer> StartServer(ParameterServer::Options options = {}) {
  auto server = ParameterServer::Start(std::move(options));
  CHECK_OK(server);
  return *std::move(server);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : channel_(OpenChannel(address)), stub_(v1::ParameterServer::NewStub(channel_)) {}

  v1::ParameterServer::Stub& stub() { return *stub_; }

  v1::GetStatusReply Status() {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::GetStatusReply reply;
    const grpc::Status status = stub_->GetStatus(&context, {}, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;  // shared: gRPC's way
  const std::unique_ptr<v1::ParameterServer::Stub> stub_;
};

// An Exchange stream that ends by itself or not at all.
class Stream {
 public:
  explicit Stream(Stranger& stranger) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream_ = stranger.stub().Exchange(&context_);
  }
  ~Stream() {
    context_.TryCancel();
    if (stream_ != nullptr) stream_->Finish();
  }
  bool Write(const ExchangeMessage& message) { return stream_->Write(message); }
  bool Read(ExchangeMessage* message) { return stream_->Read(message); }
  // How the server ends the stream.
  grpc::Status End() {
    ExchangeMessage message;
    while (stream_->Read(&message)) {
    }
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ExchangeMessage, ExchangeMessage>> stream_;
};

// A connection that says nothing.
class SilentConnection {
 public:
  explicit SilentConnection(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  SilentConnection(const SilentConnection&) = delete;
  SilentConnection& operator=(const SilentConnection&) = delete;
  ~SilentConnection() { close(fd_); }

  void Send(const std::string& data) const {
    EXPECT_EQ(send(fd_, data.data(), data.size(), MSG_NOSIGNAL), static_cast<ssize_t>(data.size()));
  }
  bool IsClosed(absl::Duration patience) const {
    pollfd wait = {.fd = fd_, .events = POLLRDHUP, .revents = 0};
    return poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
  }

 private:
  const int fd_;
};

TEST(ServerLimitsTest, AStreamWithoutHelloEnds) {
  const auto server = StartServer({.hello_deadline = absl::Milliseconds(200)});
  Stranger stranger(server->address());
  Stream stream(stranger);
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("no HELLO"));
}

TEST(ServerLimitsTest, AConnectionThatDoesNotShakeHandsEnds) {
  const auto server = StartServer({.hello_deadline = absl::Milliseconds(200)});
  const SilentConnection stranger(server->address());
  EXPECT_TRUE(stranger.IsClosed(absl::Seconds(5)));
}

TEST(ServerLimitsTest, AFirstMessageLongerThanHelloEndsTheStream) {
  const auto server = StartServer();
  Stranger stranger(server->address());
  ExchangeMessage hello;
  hello.set_kind(ExchangeMessage::HELLO);
  hello.set_text(std::string(kHelloBytesMax, 'x'));
  Stream stream(stranger);
  stream.Write(hello);
  const grpc::Status status = stream.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kHelloBytesMax)));
}

TEST(ServerLimitsTest, AConnectionHasNoMoreStreamsThanAllowed) {
  const auto server = StartServer();
  Stranger stranger(server->address());
  std::deque<Stream> streams;
  for (int i = 0; i < kStreamsPerConnectionMax; ++i) streams.emplace_back(stranger);
  // The server says how many it takes, and gRPC's clients keep to that.
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Milliseconds(300)));
  v1::GetStatusReply reply;
  EXPECT_EQ(stranger.stub().GetStatus(&context, {}, &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  streams.pop_back();
  EXPECT_EQ(stranger.Status().state(), v1::GetStatusReply::WAITING);
}

// HTTP/2's frame of a type, without flags but END_HEADERS.
std::string Frame(char type, int stream, const std::string& payload) {
  const auto size = static_cast<char>(payload.size());
  const char flags = type == 1 ? 4 : 0;
  return std::string{0, 0, size, type, flags, 0, 0, static_cast<char>(stream >> 8), static_cast<char>(stream & 255)} +
         payload;
}

TEST(ServerLimitsTest, AClientThatIgnoresTheLimitOfStreamsIsCut) {
  const auto server = StartServer();
  const auto literal = [](const std::string& name, const std::string& value) {
    return std::string{0, static_cast<char>(name.size())} + name + static_cast<char>(value.size()) + value;
  };
  const std::string headers = "\x83\x86" + literal(":path", "/starring.v1.ParameterServer/Exchange") +
                              literal(":authority", "stranger") + literal("content-type", "application/grpc") +
                              literal("te", "trailers");
  const auto open_streams = [&](int count) {
    std::string frames = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "");
    for (int i = 0; i < count; ++i) frames += Frame(1, 2 * i + 1, headers);
    return frames;
  };
  SilentConnection modest(server->address());
  SilentConnection greedy(server->address());
  modest.Send(open_streams(kStreamsPerConnectionMax));
  greedy.Send(open_streams(kStreamsPerConnectionMax + 1));
  EXPECT_TRUE(greedy.IsClosed(absl::Seconds(5)));
  EXPECT_FALSE(modest.IsClosed(absl::Milliseconds(100)));
}

TEST(ServerLimitsTest, CompressedMessagesAreRefused) {
  const auto server = StartServer();
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    Stranger stranger(server->address());
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    context.set_compression_algorithm(algorithm);
    v1::JoinRequest request;
    request.set_agreement(std::string(100'000, '.'));  // a thousandth of that on the wire
    v1::JoinReply reply;
    const grpc::Status status = stranger.stub().Join(&context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
}

TEST(ServerLimitsTest, StrangersDoNotKeepAWorkerOut) {
  const auto server = StartServer({.listen = "127.0.0.1:0"});
  const JobSpec job = MakeJob(0, 1, 1000, 1);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({server->address()}, 2, SameHost::kSocket);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  // More than the job's connections and all strangers that are allowed beside them.
  std::deque<Stranger> strangers;
  for (int i = 0; i < 2 * kStrangerConnectionsMax; ++i) {
    strangers.emplace_back(server->address());
    strangers.back().Status();
  }
  const absl::Status trained = TrainSteps(exchange.get(), job, 3, RoughGradientAt);
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(parameters, ReferenceRun(job, 3, RoughGradientAt));
}

v1::JoinRequest RequestOf(const JobSpec& job, uint64_t worker_id) {
  v1::JoinRequest request;
  request.set_wire_version(kWireVersion);
  request.set_rank(job.rank);
  request.set_worker_id(worker_id);
  request.set_shard_count(1);
  request.set_agreement(SerializeAgreement(job));
  request.set_join_deadline_ms(20'000);
  request.set_exchange_deadline_ms(20'000);
  return request;
}

// A Join that waits in a thread of its own.
class PendingJoin {
 public:
  PendingJoin(const std::string& address, v1::JoinRequest request)
      : stranger_(address), request_(std::move(request)), thread_([this] {
          context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
          status_ = stranger_.stub().Join(&context_, request_, &reply_);
        }) {}
  ~PendingJoin() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Wait() {
    thread_.join();
    return status_;
  }
  uint64_t job_id() const { return reply_.job_id(); }

 private:
  Stranger stranger_;
  const v1::JoinRequest request_;
  grpc::ClientContext context_;
  v1::JoinReply reply_;
  grpc::Status status_;
  std::thread thread_;
};

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + kPatience;
  while (!holds()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

bool Joined(const v1::GetStatusReply& status, int rank) {
  return rank < status.workers_size() && status.workers(rank).joined();
}

TEST(ServerLimitsTest, ARepeatedJoinReplacesTheOneBeforeForGood) {
  std::atomic<int> joins = 0;
  const auto server =
      StartServer({.log = [&](const std::string& line) { joins += absl::StrContains(line, "joined;"); }});
  Stranger monitor(server->address());
  PendingJoin first(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  PendingJoin second(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return joins == 2; }));
  // The first call does not wait any longer; and when it is gone, the worker is not.
  EXPECT_EQ(first.Wait().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Joined(monitor.Status(), 0));
  PendingJoin other(server->address(), RequestOf(MakeJob(1, 2, 1000, 1), 11));
  EXPECT_TRUE(second.Wait().ok());
  EXPECT_TRUE(other.Wait().ok());
  EXPECT_EQ(second.job_id(), other.job_id());
}

TEST(ServerLimitsTest, ConnectionsOfAJobComeOnTopOfThoseOfStrangers) {
  std::atomic<int> joins = 0;
  const auto server =
      StartServer({.log = [&](const std::string& line) { joins += absl::StrContains(line, "joined;"); }});
  std::deque<SilentConnection> strangers;
  while (strangers.size() < kStrangerConnectionsMax) strangers.emplace_back(server->address());
  EXPECT_FALSE(strangers[0].IsClosed(absl::Milliseconds(50)));
  v1::JoinRequest request = RequestOf(MakeJob(0, 2, 1000, 1), 10);
  request.set_lanes(3);
  PendingJoin join(server->address(), request);  // one connection too many, until the server knows whose it is
  EXPECT_TRUE(strangers[0].IsClosed(absl::Seconds(5)));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  strangers.emplace_back(server->address());  // the worker needs no seat any more
  EXPECT_FALSE(strangers[1].IsClosed(absl::Milliseconds(50)));
  strangers.emplace_back(server->address());
  EXPECT_TRUE(strangers[1].IsClosed(absl::Seconds(5)));
}

TEST(ServerLimitsTest, AWorkerThatGivesUpIsForgotten) {
  const auto server = StartServer();
  Stranger monitor(server->address());
  PendingJoin join(server->address(), RequestOf(MakeJob(0, 2, 1000, 1), 10));
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  join.Cancel();
  EXPECT_TRUE(Eventually([&] { return !Joined(monitor.Status(), 0); }));
}

// Its process may have died with its machine, which the server has not noticed yet.
TEST(ServerLimitsTest, ARankThatIsTakenIsTriedAgainUntilItIsFree) {
  std::atomic<int> joins = 0;
  std::atomic<int> refusals = 0;
  const auto server = StartServer({.log = [&](const std::string& line) {
    joins += absl::StrContains(line, "joined;");
    refusals += absl::StrContains(line, "refused rank 0: another process");
  }});
  const JobSpec job = MakeJob(0, 2, 1000, 1);
  PendingJoin dead(server->address(), RequestOf(job, 99));
  ASSERT_TRUE(Eventually([&] { return joins == 1; }));
  absl::Status started;
  std::thread worker([&] {
    std::vector<float> parameters(job.layout.element_count());
    started = MakeStar({server->address()}, 1, SameHost::kSocket)->Start(job, parameters);
  });
  EXPECT_TRUE(Eventually([&] { return refusals > 0; }));
  dead.Cancel();
  EXPECT_TRUE(Eventually([&] { return joins == 2; }));
  EXPECT_TRUE(PendingJoin(server->address(), RequestOf(MakeJob(1, 2, 1000, 1), 11)).Wait().ok());
  worker.join();
  EXPECT_TRUE(started.ok()) << started;
}

v1::JoinRequest HugeRequest() {
  v1::JobAgreement agreement;
  agreement.set_world_size(1);
  agreement.set_element_count(kElementCountMax);
  agreement.set_bucket_bytes(kBucketBytesMax);
  agreement.mutable_optimizer()->set_kind(v1::OptimizerConfig::ADAMW);
  agreement.mutable_optimizer()->set_beta1(0.9);
  agreement.mutable_optimizer()->set_beta2(0.999);
  agreement.mutable_optimizer()->set_epsilon(1e-8);
  agreement.mutable_schedule()->set_base(0.1);
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_agreement(agreement.SerializeAsString());
  return request;
}

TEST(ServerLimitsTest, AJobThatDoesNotFitIsRefusedAndTheServerWaitsForAnother) {
  for (const int64_t limit : {int64_t{1'000'000'000}, int64_t{0}}) {  // given, and of this machine
    const auto server = StartServer({.memory_bytes_max = limit});
    const grpc::Status status = PendingJoin(server->address(), HugeRequest()).Wait();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("needs 1924.1"));  // 7 times 256 GiB
    if (limit > 0) {
      EXPECT_THAT(status.error_message(), HasSubstr("may use 1.000 GB"));
    }
    EXPECT_EQ(Stranger(server->address()).Status().world_size(), 0);
    EXPECT_TRUE(PendingJoin(server->address(), RequestOf(MakeJob(0, 1, 1000, 1), 11)).Wait().ok());
  }
}

// Between two workers' Joins the memory may go to others.
TEST(ServerLimitsTest, AJobThatCannotBeginIsToldToAllAndInTheStatus) {
  std::atomic<int64_t> free_bytes = 1 << 30;
  const auto server = StartServer({.available_memory = [&] { return free_bytes.load(); }});
  PendingJoin first(server->address(), RequestOf(MakeJob(0, 2, 4 << 20, 1 << 20), 10));
  Stranger monitor(server->address());
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  free_bytes = 64 << 20;
  v1::JoinRequest request = RequestOf(MakeJob(1, 2, 4 << 20, 1 << 20), 11);
  request.set_lanes(2);  // more than before, so the server counts again
  EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  request.set_lanes(1);
  EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(first.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const v1::GetStatusReply status = monitor.Status();
  EXPECT_EQ(status.state(), v1::GetStatusReply::FAILED);
  EXPECT_THAT(status.message(), HasSubstr("this server may use"));
  EXPECT_EQ(server->Wait().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ServerLimitsTest, ALongJoinIsRefused) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_agreement(std::string(kJoinBytesMax, 'x'));
  const grpc::Status status = PendingJoin(server->address(), request).Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr(absl::StrCat(kJoinBytesMax)));
}

TEST(ServerLimitsTest, LanesOverTheLimitAreRefused) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  for (const int lanes : {-1, kLanesMax + 1}) {
    request.set_lanes(lanes);
    EXPECT_EQ(PendingJoin(server->address(), request).Wait().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST(ServerLimitsTest, TheLogIsPrintableShortAndRare) {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto server = StartServer({.log = [&](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(line);
  }});
  JobSpec job = MakeJob(0, 2, 1000, 1);
  job.agreed_flags = {{"seed", "1"}};
  PendingJoin first(server->address(), RequestOf(job, 10));
  Stranger monitor(server->address());
  ASSERT_TRUE(Eventually([&] { return Joined(monitor.Status(), 0); }));
  job.rank = 1;
  job.agreed_flags = {{"seed", "\x1b[2J\n" + std::string(10'000, 'x')}};  // quoted in the refusal
  for (int i = 0; i < 2 * kLogRefusalsMax; ++i) {
    EXPECT_EQ(PendingJoin(server->address(), RequestOf(job, 11)).Wait().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  int refusals = 0;
  for (const std::string& line : lines) {
    refusals += absl::StrContains(line, "refused");
    EXPECT_LE(line.size(), kLogLineBytesMax + 100);
    EXPECT_TRUE(std::all_of(line.begin(), line.end(), absl::ascii_isprint)) << line;
  }
  EXPECT_EQ(refusals, kLogRefusalsMax);
}

TEST(ServerLimitsTest, ADeadlineBeyondAllMeasureIsNotOver) {
  const auto server = StartServer();
  v1::JoinRequest request = RequestOf(MakeJob(0, 1, 1000, 1), 10);
  request.set_join_deadline_ms(INT64_MAX);
  request.set_exchange_deadline_ms(INT64_MAX);
  ASSERT_TRUE(PendingJoin(server->address(), request).Wait().ok());
  absl::SleepFor(absl::Milliseconds(300));  // in which deadlines are looked at twice
  const v1::GetStatusReply status = Stranger(server->address()).Status();
  EXPECT_EQ(status.state(), v1::GetStatusReply::RUNNING) << status.message();
}

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
    EXPECT_TRUE(AwaitLanes(1));
  }
  bool AwaitLanes(int count) {
    return Eventually([&] { return monitor_.Status().workers(0).lanes_open() == count; });
  }
  // How the server ends the lane when a gradient comes with so much.
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

TEST(ServerLimitsTest, AWorkerThatAsksAndDoesNotReadIsCut) {
  // Answers of 1 MiB, of which gRPC buffers few at a client that stands still.
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

TEST(ServerLimitsTest, AWorkerHasNoMoreRequestsInFlightOnALaneThanAllowed) {
  const auto server = StartServer();
  constexpr int kBuckets = 4 * kLaneRequestsMax;
  JobSpec job = MakeJob(0, 2, kBuckets * 2 * 32768, 1);
  ASSERT_EQ(job.buckets.bucket_count(), kBuckets);
  PendingJoin other(server->address(),
                    RequestOf(MakeJob(1, 2, kBuckets * 2 * 32768, 1), 11));  // and contributes nothing
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  const std::vector<float> gradient(job.layout.element_count());
  auto exchange = MakeStar({server->address()}, 1, SameHost::kSocket);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  for (int b = 0; b < kBuckets; ++b) {
    const ElementRange range = job.buckets.bucket(b);
    exchange->Submit(0, b, std::span(gradient).subspan(range.begin, range.size()));
  }
  Stranger monitor(server->address());
  const auto contributions = [&] { return monitor.Status().workers(0).contributions(); };
  ASSERT_TRUE(Eventually([&] { return contributions() >= kLaneRequestsMax; }));
  absl::SleepFor(absl::Milliseconds(200));  // in which more would come
  EXPECT_EQ(contributions(), kLaneRequestsMax);
  exchange->Abort(absl::CancelledError("the test is over"));
}

TEST(ServerLimitsTest, AHelloOfNoWorkerOrLaneIsRefused) {
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

TEST(ServerLimitsTest, AMessageOverTheLimitIsNotTaken) {
  OneLaneJob worker;
  // As gRPC says it, before it reads it.
  EXPECT_EQ(worker.EndByGradient(kMessageBytesMax).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// gRPC holds a message until it is whole.
TEST(ServerLimitsTest, AMessageThatTheMemoryLimitDoesNotHoldIsNotTaken) {
  OneLaneJob worker(MakeJob(0, 1, 1000, 1), {.memory_bytes_max = 8 << 20});
  EXPECT_EQ(worker.EndByGradient(kMessagePayloadBytesMax).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // The worker may come back with less. gRPC may have closed the monitor's idle connection, to have its memory.
  EXPECT_EQ(Stranger(worker.address()).Status().state(), v1::GetStatusReply::RUNNING);
}

// All lanes together keep as many events as kServerTracksMax tracks.
TEST(ServerLimitsTest, TracksOfManyLanesKeepFewEventsEach) {
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

TEST(ServerLimitsTest, ShardsOverTheLimitAreRefused) {
  EXPECT_TRUE(ParameterServer::Start({.shard = 255, .shard_count = 256}).ok());
  EXPECT_EQ(ParameterServer::Start({.shard = 256, .shard_count = 257}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ServerLimitsTest, AHandshakeAndHelloHaveTenSeconds) {
  EXPECT_EQ(ParameterServer::Options().hello_deadline, absl::Seconds(10));
}

}  // namespace
}  // namespace starring
