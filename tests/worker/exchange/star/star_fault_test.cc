// The star when connections break, servers or workers vanish, or messages are wrong.
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>
#include <latch>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/network/address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "tests/worker/exchange/star/star_fixture.h"
#include "tests/worker/exchange/star/tcp_proxy.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kElements = 200'003;
constexpr int64_t kBucketBytes = 1;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

JobSpec Job(int rank, int world_size, absl::Duration join_deadline, absl::Duration exchange_deadline) {
  JobSpec job = MakeJob(rank, world_size, kElements, kBucketBytes);
  job.join_deadline = join_deadline;
  job.exchange_deadline = exchange_deadline;
  return job;
}

// Two workers; each reaches each of two servers through a proxy of its own.
class CutTest : public ::testing::TestWithParam<std::tuple<int64_t, SameHost>> {};

TEST_P(CutTest, TheResultIsTheSameWhenConnectionsBreakInTheMiddleOfMessages) {
  constexpr int kSteps = 8;
  constexpr int kWorkers = 2;
  constexpr int kCuts = 5;  // per proxy
  const auto [bytes, same_host] = GetParam();
  Servers servers(2);
  std::vector<std::unique_ptr<TcpProxy>> proxies;
  for (int rank = 0; rank < kWorkers; ++rank) {
    for (const std::string& address : servers.addresses) {
      proxies.push_back(std::make_unique<TcpProxy>(address));
      proxies.back()->CutEvery(bytes, kCuts);
    }
  }
  std::vector<std::vector<float>> parameters(kWorkers);
  RunWorkers(kWorkers, [&, mode = same_host](int rank) {
    // A reset that gRPC overlooks costs the 10 s until a ping (common/wire/grpc_transport.cc), each time.
    const JobSpec job = Job(rank, kWorkers, absl::Seconds(40), absl::Seconds(40));
    parameters[rank] = InitialParameters(job.layout.element_count());
    auto exchange = MakeStar({proxies[2 * rank]->address(), proxies[2 * rank + 1]->address()}, 2, mode);
    const absl::Status started = exchange->Start(job, parameters[rank]);
    ASSERT_TRUE(started.ok()) << started;
    const absl::Status trained = TrainSteps(exchange.get(), job, kSteps, RoughGradientAt);
    EXPECT_TRUE(trained.ok()) << trained;
    std::vector<double> sum = {1.0 + rank};
    const absl::Status summed = exchange->Sum(SumPurpose::kStopVote, sum);
    EXPECT_TRUE(summed.ok()) << summed;
    EXPECT_EQ(sum[0], 3.0);
    const absl::Status finished = exchange->Finish();
    EXPECT_TRUE(finished.ok()) << finished;
    parameters[rank] = ParametersOf(*exchange, parameters[rank]);
  });
  for (const auto& server : servers.servers) {
    const absl::Status status = server->Wait();
    EXPECT_TRUE(status.ok()) << status;
  }
  int cuts = 0;
  for (const auto& proxy : proxies) cuts += proxy->cuts();
  EXPECT_EQ(cuts, kCuts * static_cast<int>(proxies.size()));
  if (HasFailure()) {
    for (const auto& proxy : proxies) ADD_FAILURE() << proxy->Describe();
  }
  const std::vector<float> expected =
      ReferenceRun(MakeJob(0, kWorkers, kElements, kBucketBytes), kSteps, RoughGradientAt);
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(parameters[rank], expected) << "rank " << rank;
}

// Odd sizes, so that connections break while workers join, in a header, and in a payload: of the initial parameters, of
// gradients, of answers.
INSTANTIATE_TEST_SUITE_P(Socket, CutTest,
                         ::testing::Combine(::testing::Values(100, 9'973, 50'021, 250'007),
                                            ::testing::Values(SameHost::kSocket)));
// Only rank 0's initial parameters are long; the rest of the run has few bytes for a cut.
INSTANTIATE_TEST_SUITE_P(SharedMemory, CutTest,
                         ::testing::Combine(::testing::Values(100, 701), ::testing::Values(SameHost::kSharedMemory)));

TEST(StarFaultTest, AServerThatIsUnreachableForAWhileIsWaitedFor) {
  Servers servers(1);
  TcpProxy proxy(servers.addresses[0]);
  const JobSpec job = Job(0, 1, absl::Seconds(20), absl::Seconds(20));
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({proxy.address()});
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  proxy.Set(TcpProxy::Door::kShut);
  std::thread opener([&] {
    absl::SleepFor(absl::Milliseconds(300));  // keeps the door shut; the test waits for nothing here
    proxy.Set(TcpProxy::Door::kOpen);
  });
  const absl::Status trained = TrainSteps(exchange.get(), job, 2, RoughGradientAt);
  opener.join();
  EXPECT_TRUE(trained.ok()) << trained;
  EXPECT_TRUE(exchange->Finish().ok());
  EXPECT_EQ(ParametersOf(*exchange, parameters), ReferenceRun(job, 2, RoughGradientAt));
}

TEST(StarFaultTest, AServerThatIsNotThereIsNamedAtTheJoinDeadline) {
  Servers servers(1);
  std::string nobody;
  {
    const TcpProxy gone(servers.addresses[0]);
    nobody = gone.address();
  }
  const JobSpec job = Job(0, 1, absl::Seconds(1), absl::Seconds(1));
  std::vector<float> parameters(job.layout.element_count());
  const absl::Time start = absl::Now();
  const absl::Status status = MakeStar({nobody})->Start(job, parameters);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr(nobody), HasSubstr("shard 0"), HasSubstr("--servers")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(StarFaultTest, ServersInTheWrongOrderAreRefused) {
  Servers servers(2);
  const JobSpec job = Job(0, 1, absl::Seconds(5), absl::Seconds(5));
  std::vector<float> parameters(job.layout.element_count());
  const absl::Status status = MakeStar({servers.addresses[1], servers.addresses[0]})->Start(job, parameters);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr(servers.addresses[1]), HasSubstr("shard 1 of 2")));
}

TEST(StarFaultTest, AServerThatWasJoinedIsToldWhyAnotherOneWasNot) {
  Servers servers(2), wrong(1);
  const JobSpec job = Job(0, 1, absl::Seconds(5), absl::Seconds(5));
  std::vector<float> parameters(job.layout.element_count());
  const absl::Status status = MakeStar({servers.addresses[0], wrong.addresses[0]})->Start(job, parameters);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("(shard 1): "), HasSubstr("shard 0 of 1")));
  EXPECT_EQ(Message(servers.servers[0]->Wait()), "rank 0 gave up: " + Message(status));
}

TEST(StarFaultTest, AWorkerThatIsNotThereIsNamedAtTheJoinDeadline) {
  Servers servers(2);
  const JobSpec job = Job(0, 3, absl::Seconds(1), absl::Seconds(1));
  std::vector<float> parameters(job.layout.element_count());
  const absl::Status status = MakeStar(servers.addresses)->Start(job, parameters);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr("ranks 1, 2 of 3 have not joined within 1 s"));
}

// The first worker comes too early. It prints which ranks are missing, and later that the job goes on.
TEST(StarFaultTest, AWorkerThatWaitsForOthersToJoinSaysWhoIsMissing) {
  Servers servers(1);
  std::vector<std::string> lines;
  std::promise<void> said;
  const auto start = [&](int rank, StallOptions stall) {
    const JobSpec job = Job(rank, 2, absl::Seconds(20), absl::Seconds(20));
    std::vector<float> parameters = InitialParameters(job.layout.element_count());
    auto exchange = CreateStarExchange({.addresses = servers.addresses, .stall = std::move(stall)});
    ASSERT_TRUE(exchange.ok());
    EXPECT_TRUE((*exchange)->Start(job, parameters).ok());
    EXPECT_TRUE((*exchange)->Finish().ok());
  };
  std::thread first([&] {
    start(0, {.times = {.report_after = std::chrono::milliseconds(300)}, .say = [&](const std::string& line) {
                lines.push_back(line);
                if (lines.size() == 1) said.set_value();
              }});
  });
  EXPECT_EQ(said.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  start(1, {});
  first.join();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("s (joining): server " + servers.addresses[0]),
                              HasSubstr("(shard 0): rank 1 of 2 has not joined")));
  EXPECT_THAT(lines[1], HasSubstr("the job goes on after"));
}

// The deadline is an error; a line that the job goes on would contradict it.
TEST(StarFaultTest, AJoinThatFailsDoesNotGoOn) {
  Servers servers(1);
  std::vector<std::string> lines;
  const JobSpec job = Job(0, 2, absl::Seconds(1), absl::Seconds(1));
  std::vector<float> parameters(job.layout.element_count());
  auto exchange = CreateStarExchange({.addresses = servers.addresses,
                                      .stall = {.times = {.report_after = std::chrono::milliseconds(200)},
                                                .say = [&](const std::string& line) { lines.push_back(line); }}});
  ASSERT_TRUE(exchange.ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded((*exchange)->Start(job, parameters)));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("rank 1 of 2 has not joined"));
}

// The answer to Join is lost, and gRPC does not notice that the connection has ended. The question who is missing is
// written to the same connection, and finds out long before a ping does.
TEST(StarFaultTest, AJoinWhoseAnswerIsLostIsRepeated) {
  std::promise<void> joined;
  auto server = ParameterServer::Start({.log = [&, once = false](const std::string& line) mutable {
    if (line.find("rank 0 joined") != std::string::npos && !std::exchange(once, true)) joined.set_value();
  }});
  ASSERT_TRUE(server.ok());
  TcpProxy proxy((*server)->address());
  const auto run = [](int rank, const std::string& address) {
    const JobSpec job = Job(rank, 2, absl::Seconds(20), absl::Seconds(20));
    std::vector<float> parameters = InitialParameters(job.layout.element_count());
    auto exchange =
        CreateStarExchange({.addresses = {address},
                            .stall = {.times = {.report_after = std::chrono::milliseconds(1000)}, .say = nullptr}});
    ASSERT_TRUE(exchange.ok());
    const absl::Status started = (*exchange)->Start(job, parameters);
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_TRUE((*exchange)->Finish().ok());
  };
  const absl::Time begin = absl::Now();
  std::thread first([&] { run(0, proxy.address()); });
  EXPECT_EQ(joined.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  proxy.LoseAnswers();
  run(1, (*server)->address());
  first.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(9));
}

// Two workers have one rank, by mistake or because the first is gone and the server has not noticed: a line says so
// well before the deadline.
TEST(StarFaultTest, AWorkerWhoseRankIsTakenSaysSoOnce) {
  std::promise<void> joined;
  auto server = ParameterServer::Start({.log = [&](const std::string& line) {
    if (line.find("rank 1 joined") != std::string::npos) joined.set_value();
  }});
  ASSERT_TRUE(server.ok());
  const std::string address = (*server)->address();
  const auto start = [&](int rank, absl::Duration join_deadline, std::function<void(const std::string&)> say) {
    const JobSpec job = Job(rank, 2, join_deadline, absl::Seconds(20));
    std::vector<float> parameters = InitialParameters(job.layout.element_count());
    auto exchange = CreateStarExchange({.addresses = {address}, .stall = {.times = {}, .say = std::move(say)}});
    CHECK_OK(exchange);
    const absl::Status started = (*exchange)->Start(job, parameters);
    return started.ok() ? (*exchange)->Finish() : started;
  };
  std::thread first([&] { EXPECT_TRUE(start(1, absl::Seconds(20), nullptr).ok()); });
  joined.get_future().wait();
  std::vector<std::string> lines;
  const absl::Status taken = start(1, absl::Seconds(2), [&](const std::string& line) { lines.push_back(line); });
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists) << taken;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("server " + address +
                                        " (shard 0): another process has joined as rank 1, from 127.0.0.1:"),
                              HasSubstr("give every worker its own --rank; trying for "),
                              HasSubstr("s more, in case that process is gone")));
  EXPECT_TRUE(start(0, absl::Seconds(20), nullptr).ok());
  first.join();
}

// No message arrives and a question is not answered: a line says so long before the deadline.
TEST(StarFaultTest, AServerThatHangsIsNamedWhileItIsWaitedFor) {
  Servers servers(1);
  TcpProxy proxy(servers.addresses[0]);
  const JobSpec job = Job(0, 1, absl::Seconds(20), absl::Milliseconds(1500));
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  std::vector<std::string> lines;
  auto created = CreateStarExchange({.addresses = {proxy.address()},
                                     .stall = {.times = {.report_after = std::chrono::milliseconds(800)},
                                               .say = [&](const std::string& line) { lines.push_back(line); }}});
  ASSERT_TRUE(created.ok());
  const std::unique_ptr<GradientExchange> exchange = *std::move(created);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  proxy.Freeze();
  const absl::Status status = TrainSteps(exchange.get(), job, 1, GradientAt);
  EXPECT_THAT(Message(status), HasSubstr("of rank 0 within 1.5 s, and does not answer at all"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("stuck for "), HasSubstr("of step 0): server " + proxy.address()),
                              HasSubstr("(shard 0) does not answer: last heard ")));
}

TEST(StarFaultTest, AServerWhoseWorkersDoNotComeEnds) {
  Servers servers(1, absl::Seconds(1));
  const JobSpec job = Job(0, 2, absl::Seconds(20), absl::Seconds(1));
  std::vector<float> parameters(job.layout.element_count());
  const absl::Status started = MakeStar(servers.addresses)->Start(job, parameters);
  EXPECT_EQ(started.code(), absl::StatusCode::kDeadlineExceeded) << started;
  EXPECT_THAT(Message(started), HasSubstr("rank 1 of 2 has not joined"));
  const absl::Status status = servers.servers[0]->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST(StarFaultTest, AWorkerWithOtherFlagsIsRefusedAndMayCorrectThem) {
  std::promise<void> first_joined;
  auto server = ParameterServer::Start({.listen = "127.0.0.1:0",
                                        .shard = 0,
                                        .shard_count = 1,
                                        .join_deadline = absl::Seconds(60),
                                        .log = [&, once = false](const std::string& line) mutable {
                                          if (line.find("rank 0 joined") != std::string::npos && !once) {
                                            once = true;
                                            first_joined.set_value();
                                          }
                                        }});
  ASSERT_TRUE(server.ok());
  const auto start = [&](int rank, const char* seed) {
    JobSpec job = Job(rank, 2, absl::Seconds(20), absl::Seconds(20));
    job.agreed_flags = {{"seed", seed}};
    std::vector<float> parameters(job.layout.element_count());
    auto exchange = MakeStar({(*server)->address()});
    absl::Status status = exchange->Start(job, parameters);
    if (status.ok()) status = exchange->Finish();
    return status;
  };
  absl::Status first;
  std::thread rank0([&] { first = start(0, "1"); });
  first_joined.get_future().wait();
  const absl::Status refused = start(1, "2");
  const absl::Status corrected = start(1, "1");
  rank0.join();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(Message(refused), AllOf(HasSubstr("--seed=2"), HasSubstr("--seed=1")));
  EXPECT_TRUE(corrected.ok()) << corrected;
  EXPECT_TRUE(first.ok()) << first;
}

// Runs `world_size` workers; `part(rank, exchange, job)` is what each does between Start and its end.
using Part = std::function<void(int rank, GradientExchange* exchange, const JobSpec& job)>;
void RunJob(const std::vector<std::string>& addresses, int world_size, absl::Duration exchange_deadline,
            const Part& part) {
  RunWorkers(world_size, [&](int rank) {
    const JobSpec job = Job(rank, world_size, absl::Seconds(20), exchange_deadline);
    std::vector<float> parameters = InitialParameters(job.layout.element_count());
    auto exchange = MakeStar(addresses);
    const absl::Status started = exchange->Start(job, parameters);
    ASSERT_TRUE(started.ok()) << started;
    part(rank, exchange.get(), job);
  });
}

TEST(StarFaultTest, ALateWorkerIsNamedWithBucketAndStep) {
  Servers servers(2);
  absl::Status late;
  RunJob(servers.addresses, 3, absl::Seconds(1), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    ASSERT_TRUE(TrainSteps(exchange, job, 2, GradientAt).ok());
    absl::Status status;
    if (rank == 1) {  // joins, but contributes nothing
      std::vector<double> sum = {1};
      status = exchange->Sum(SumPurpose::kStopVote, sum);
    } else {
      JobSpec rest = job;
      rest.first_step = 2;
      status = TrainSteps(exchange, rest, 1, GradientAt);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(Message(status),
                AnyOf(AllOf(HasSubstr("rank 1 has not contributed bucket"), HasSubstr("of step 2 within 1 s")),
                      HasSubstr("ranks 0, 2 have not joined in sum 0")));
  });
  for (const auto& server : servers.servers) {
    EXPECT_THAT(server->Wait().code(), AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAborted));
  }
}

TEST(StarFaultTest, AServerThatMissesNoRankIsToldTheReasonOfAnother) {
  Servers servers(2);
  std::latch others_ended(2);
  RunJob(servers.addresses, 3, absl::Seconds(1), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    ASSERT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    if (rank == 1) return others_ended.wait();
    std::vector<double> sum = {1};  // at shard 0 alone
    EXPECT_THAT(Message(exchange->Sum(SumPurpose::kStopVote, sum)), HasSubstr("rank 1 has not joined in sum 0"));
    others_ended.count_down();
  });
  for (const auto& server : servers.servers) {
    EXPECT_THAT(Message(server->Wait()), HasSubstr("rank 1 has not joined in sum 0 within 1 s"));
  }
}

TEST(StarFaultTest, ADeadlineThatIsInfiniteIsNotOver) {
  Servers servers(1);
  RunJob(servers.addresses, 2, absl::InfiniteDuration(), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    if (rank == 1) absl::SleepFor(absl::Milliseconds(300));  // several checks of rank 0's deadline
    EXPECT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    EXPECT_TRUE(exchange->Finish().ok());
  });
}

TEST(StarFaultTest, AnAbortReachesTheOthersAtOnceWithRankAndReason) {
  Servers servers(2);
  std::latch all_trained(3);
  RunJob(servers.addresses, 3, absl::Seconds(60), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    EXPECT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    all_trained.arrive_and_wait();  // otherwise the abort may overtake, on another lane, an answer for a slower worker
    const absl::Time start = absl::Now();
    if (rank == 1) {
      exchange->Abort(absl::InvalidArgumentError("the gradient of fc1.weight is NaN in step 1"));
      return;
    }
    absl::Status status;
    if (rank == 0) {
      JobSpec rest = job;
      rest.first_step = 1;
      status = TrainSteps(exchange, rest, 1, GradientAt);
    } else {
      std::vector<double> sum = {1};
      status = exchange->Sum(SumPurpose::kStopVote, sum);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 1 gave up"), HasSubstr("fc1.weight is NaN")));
    EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  });
  for (const auto& server : servers.servers) {
    const absl::Status status = server->Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  }
}

TEST(StarFaultTest, AWorkerThatLeavesWithoutAWordIsReported) {
  Servers servers(1);
  std::latch all_trained(2);
  RunJob(servers.addresses, 2, absl::Seconds(60), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    EXPECT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    all_trained.arrive_and_wait();
    if (rank == 1) return;  // destroyed without Finish, as after an error in the trainer
    const absl::Status status = exchange->Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(Message(status), HasSubstr("rank 1 gave up"));
  });
}

TEST(StarFaultTest, AServerThatDiesIsNamedWithinTheDeadline) {
  Servers servers(2);
  RunJob(servers.addresses, 2, absl::Seconds(1), [&](int rank, GradientExchange* exchange, const JobSpec& job) {
    ASSERT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    // After this sum no worker waits for an answer to step 0 any more.
    std::vector<double> sum = {1};
    ASSERT_TRUE(exchange->Sum(SumPurpose::kStopVote, sum).ok());
    if (rank == 0) servers.servers[1].reset();
    JobSpec rest = job;
    rest.first_step = 1;
    const absl::Time start = absl::Now();
    const absl::Status status = TrainSteps(exchange, rest, 3, GradientAt);
    // The worker that notices first tells the other through server 0.
    EXPECT_THAT(status.code(),
                AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted, absl::StatusCode::kDeadlineExceeded))
        << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(servers.addresses[1]), HasSubstr("of step ")));
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  });
}

TEST(StarFaultTest, AServerThatHangsIsNamedWithinTheDeadline) {
  Servers servers(1);
  TcpProxy proxy(servers.addresses[0]);
  const JobSpec job = Job(0, 1, absl::Seconds(20), absl::Seconds(1));
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({proxy.address()});
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  proxy.Freeze();
  const absl::Status status = TrainSteps(exchange.get(), job, 1, GradientAt);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr(proxy.address()), HasSubstr("of step 0"), HasSubstr("of rank 0")));
}

// Answers Join, and HELLO when it is told to: by a refusal, which ends the job.
class SlowServer final : public v1::ParameterServer::Service {
 public:
  SlowServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Exchange(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::ExchangeMessage, v1::ExchangeMessage>* stream) override {
    v1::ExchangeMessage hello;
    EXPECT_TRUE(stream->Read(&hello));
    EXPECT_EQ(hello.kind(), v1::ExchangeMessage::HELLO);
    hello_arrived.set_value();
    may_answer.get_future().wait();
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the test is over");
  }
  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest*, v1::JoinReply*) override { return grpc::Status::OK; }

  std::promise<void> hello_arrived, may_answer;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A server cuts connections that send much before it has read HELLO, and may be too busy to read it soon.
TEST(StarFaultTest, AWorkerSendsNothingLongBeforeItsHelloIsAnswered) {
  SlowServer server;
  TcpProxy proxy(server.address());
  std::thread worker([&] {
    const JobSpec job = Job(0, 1, absl::Seconds(20), absl::Seconds(20));
    std::vector<float> parameters = InitialParameters(job.layout.element_count());
    const absl::Status started = MakeStar({proxy.address()}, 1, SameHost::kSocket)->Start(job, parameters);
    EXPECT_TRUE(absl::IsFailedPrecondition(started)) << started;
  });
  server.hello_arrived.get_future().wait();
  absl::SleepFor(absl::Milliseconds(200));  // more would arrive in this time
  EXPECT_LT(proxy.bytes_from_clients(), 8 << 10);
  server.may_answer.set_value();
  worker.join();
}

// As on a slow link, where the kernel takes few bytes before the first answers arrive.
void ShrinkSendBuffers(const std::string& peer) {
  std::vector<int> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    fds.push_back(std::stoi(entry.path().filename()));
  }
  constexpr int kBytes = 32 << 10;
  for (const int fd : fds) {
    if (PeerNameOfSocket(fd) == peer) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  }
}

// When socket buffers are full, gRPC lets go of a slice only when the connection ends, even if the stream has ended.
TEST(StarFaultTest, AServerThatHangsInTheMiddleOfASliceIsNamedWithinTheDeadlineToo) {
  Servers servers(1);
  TcpProxy proxy(servers.addresses[0], 128 << 10);
  // On each connection, chance decides whether gRPC still has a part of a slice to write when its window and the
  // kernel's buffers are full. Without the cut, about half of the connections wait.
  constexpr int kLanes = 8;
  constexpr int64_t kSteps = 4;
  JobSpec job = MakeJob(0, 1, kLanes << 20, 4 << 20);
  job.exchange_deadline = absl::Seconds(2);
  std::vector<float> parameters(job.layout.element_count());
  auto exchange = MakeStar({proxy.address()}, kLanes, SameHost::kSocket);
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  ASSERT_TRUE(TrainSteps(exchange.get(), job, kSteps, GradientAt).ok());  // widens gRPC's windows
  ShrinkSendBuffers(proxy.address());
  proxy.Freeze();
  const std::vector<float> gradient(job.layout.element_count());
  const absl::Time begin = absl::Now();
  for (int b = 0; b < job.buckets.bucket_count(); ++b) {
    const ElementRange range = job.buckets.bucket(b);
    exchange->Submit(
        {.round = kSteps, .bucket = b, .gradient = std::span(gradient).subspan(range.begin, range.size())});
  }
  const absl::Status status = exchange->Await(kSteps, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  // The deadline takes 2 s, the server's verdict 2 s, and telling it 1 s. It would take 20 s more if the kernel had to
  // give up the connection.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(14));
}

// A new server process at the old address does not know the job, so a worker must not wait for it.
TEST(StarFaultTest, ARestartedServerIsNotTakenForTheOldOne) {
  std::optional<Servers> servers(std::in_place, 1);
  const std::string address = servers->addresses[0];
  const JobSpec job = Job(0, 1, absl::Seconds(20), absl::Seconds(20));
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = MakeStar({address});
  ASSERT_TRUE(exchange->Start(job, parameters).ok());
  servers.reset();
  auto second = ParameterServer::Start(
      {.listen = address, .shard = 0, .shard_count = 1, .join_deadline = absl::Seconds(60), .log = nullptr});
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status status = TrainSteps(exchange.get(), job, 1, GradientAt);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr(address), HasSubstr("restarted")));
}

TEST(StarFaultTest, ASecondJobIsRefused) {
  Servers servers(1);
  RunJob(servers.addresses, 1, absl::Seconds(20), [&](int, GradientExchange* exchange, const JobSpec& job) {
    std::vector<float> parameters(job.layout.element_count());
    const absl::Status second = MakeStar(servers.addresses)->Start(job, parameters);
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
    EXPECT_THAT(Message(second), HasSubstr("job has begun"));
    EXPECT_TRUE(TrainSteps(exchange, job, 1, GradientAt).ok());
    EXPECT_TRUE(exchange->Finish().ok());
  });
}

TEST(StarFaultTest, APortThatIsTakenIsRefused) {
  Servers servers(1);
  const auto second = ParameterServer::Start({.listen = servers.addresses[0],
                                              .shard = 0,
                                              .shard_count = 1,
                                              .join_deadline = absl::Seconds(1),
                                              .log = nullptr});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(second.status()), HasSubstr(servers.addresses[0]));
}

TEST(StarFaultTest, WrongOptionsAreRefused) {
  const auto code = [](const StarOptions& options) { return CreateStarExchange(options).status().code(); };
  EXPECT_EQ(code({.addresses = {}, .lanes = 2, .run_id = ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.addresses = {"localhost"}, .lanes = 2, .run_id = ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.addresses = {"a:1"}, .lanes = 0, .run_id = ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.addresses = {"a:1"}, .lanes = 17, .run_id = ""}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.addresses = {"a:99999"}, .lanes = 2, .run_id = ""}), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> many(257, "a:1");
  EXPECT_EQ(code({.addresses = many, .lanes = 1, .run_id = ""}), absl::StatusCode::kInvalidArgument);
}

TEST(StarFaultTest, InterruptEndsAServerWithoutAJobAtOnce) {
  Servers servers(1);
  servers.servers[0]->Interrupt();
  EXPECT_TRUE(servers.servers[0]->Wait().ok());
}

TEST(StarFaultTest, InterruptLetsAJobFinish) {
  Servers servers(1);
  RunJob(servers.addresses, 1, absl::Seconds(20), [&](int, GradientExchange* exchange, const JobSpec& job) {
    servers.servers[0]->Interrupt();
    EXPECT_TRUE(TrainSteps(exchange, job, 3, GradientAt).ok());
    EXPECT_TRUE(exchange->Finish().ok());
  });
  EXPECT_TRUE(servers.servers[0]->Wait().ok());
}

}  // namespace
}  // namespace starring
