#include "common/transport/tcp/tcp_rendezvous.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "common/transport/tcp/tcp_listener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_job.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/common/transport/tcp/tls_loopback.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class TcpRendezvousRanks : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, TcpRendezvousRanks, testing::Values(1, 2, 3, 8));

TEST_P(TcpRendezvousRanks, EveryRankIsConnectedWithEveryOther) {
  Job job(GetParam());
  job.StartAll();
  job.Join();
  job.ExpectConnected();
  EXPECT_THAT(job.said(), testing::IsEmpty());
}

TEST_P(TcpRendezvousRanks, EveryRankIsConnectedWithEveryOtherByTls) {
  Job job(GetParam());
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  for (int rank = 0; rank < GetParam(); ++rank) {
    TcpRendezvousOptions options = job.Options(rank);
    options.tls = tls;
    job.Start(rank, std::move(options));
  }
  job.Join();
  job.ExpectConnected();
  EXPECT_THAT(job.said(), testing::IsEmpty());
}

// All ranks or none: the odd one is told at once, and the job goes on when it comes back.
TEST(TcpRendezvousTest, OneRankWithoutTlsIsRefused) {
  for (const bool job_has_it : {true, false}) {
    Job job(2);
    const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
    const auto options = [&](int rank, bool has_it) {
      TcpRendezvousOptions made = job.Options(rank);
      if (has_it) made.tls = tls;
      return made;
    };
    job.Start(0, options(0, job_has_it));
    const Joined refused = ConnectFullMesh(options(1, !job_has_it));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    EXPECT_THAT(Text(refused.status()),
                HasSubstr(job_has_it ? "rank 1 was started without --tls, rank 0 with it: give it to all ranks and"
                                     : "rank 1 was started with --tls, rank 0 without it: give it to all ranks and"));
    job.Start(1, options(1, job_has_it));
    job.Join();
    job.ExpectConnected();
  }
}

// A stranger that has intercepted a rank's hello can begin TLS with it, and no more.
TEST(TcpRendezvousTest, AHandshakeOfTlsThatStopsEndsAtItsDeadline) {
  Job job(2);
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  const auto options = [&](int rank) {
    TcpRendezvousOptions made = job.Options(rank);
    made.tls = tls;
    return made;
  };
  TcpRendezvousOptions of_rank_0 = options(0);
  of_rank_0.hello_deadline = absl::Milliseconds(200);
  job.Start(0, std::move(of_rank_0));
  TcpHello hello = HelloOf(1, 2);
  hello.has_tls = true;
  TcpDialer silent(Dial(job.address()), hello, kToken, tls.get());
  EXPECT_TRUE(job.AwaitLine("has connected and not said which rank it is within 200ms"));
  job.Start(1, options(1));
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousTest, RankZeroMayComeLast) {
  const ReservedAddress address;
  std::vector<Joined> results(3);
  std::vector<std::thread> threads;
  for (const int rank : {1, 2, 0}) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    threads.emplace_back(
        [&, rank] { results[rank] = ConnectFullMesh({.rank = rank, .world_size = 3, .rendezvous = address.text}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Joined& joined : results) EXPECT_TRUE(joined.ok()) << joined.status();
}

// No test waits so long. A rank that starts before rank 0 loses at most one redial. A host that drops packets is found,
// and a meeting of the usual length has time for another attempt. Rank 0's verdict is there before others give up.
TEST(TcpRendezvousTest, WaitsAreShorterThanAMeeting) {
  EXPECT_EQ(kTcpRedialMs, 100);
  EXPECT_EQ(kTcpDialMs, 10'000);
  EXPECT_EQ(kVerdictGraceMs, 2000);
  EXPECT_EQ(TcpRendezvousOptions().join_deadline, absl::Seconds(60));
}

// Every receive between a worker and a server is posted before its message leaves, but for control messages: two
// segments of a MiB, the values of two sums, and a text.
TEST(TcpRendezvousTest, BetweenWorkersAndServersLittleComesUnexpected) {
  const std::vector<std::byte> much(4 << 20);
  Job job(2);
  for (const int rank : {0, 1}) {
    TcpRendezvousOptions options = job.Options(rank);
    options.server_count = 1;
    job.Start(rank, std::move(options));
  }
  job.Join();
  for (const int rank : {0, 1}) ASSERT_TRUE(job.result(rank).ok()) << job.error(rank);
  (*job.result(1))->PostSend(0, 16, much, {.operation = 1});
  absl::Status status;
  Until([&] { return !status.ok(); },
        [&] {
          std::vector<Transport::Token> completed;
          status = (*job.result(0))->Poll(completed);
        });
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("a correct rank has at most 3211264 under way"));
}

// --- Processes that may not take part ---

TEST(TcpRendezvousTest, AnotherSecretIsRefusedAndTheJobGoesOnWithoutIt) {
  Job job(2);
  job.Start(0);
  TcpRendezvousOptions wrong = job.Options(1);
  wrong.token = std::string(32, '\x11');
  wrong.join_deadline = absl::Milliseconds(300);
  const Joined refused = ConnectFullMesh(std::move(wrong));
  EXPECT_TRUE(absl::IsUnauthenticated(refused.status())) << refused.status();
  EXPECT_THAT(Text(refused.status()), AllOf(HasSubstr(job.address()), HasSubstr("another job secret")));
  EXPECT_TRUE(job.AwaitLine("has another job secret"));
  job.Start(1);
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousTest, NoSecretIsRefusedByAJobThatHasOne) {
  Job job(2);
  job.Start(0);
  TcpRendezvousOptions wrong = job.Options(1);
  wrong.token.clear();
  EXPECT_THAT(Text(ConnectFullMesh(std::move(wrong)).status()), HasSubstr("this job has a --job_secret"));
  job.Start(1);
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousTest, WithoutASecretOnlyLoopbackIsAllowed) {
  for (const int rank : {0, 1}) {
    for (const char* const address : {"192.0.2.1:7077", "node1:7077"}) {
      const Joined refused = ConnectFullMesh({.rank = rank, .world_size = 2, .rendezvous = address});
      EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
      EXPECT_THAT(Text(refused.status()),
                  AllOf(HasSubstr(address), HasSubstr("--job_secret=FILE"), HasSubstr("--insecure")));
    }
  }
  // Accepted, and therefore only late.
  EXPECT_TRUE(absl::IsDeadlineExceeded(ConnectFullMesh({.rank = 0,
                                                        .world_size = 2,
                                                        .rendezvous = "localhost:1",
                                                        .listener = *TcpListener::Listen("127.0.0.1:0"),
                                                        .insecure = true,
                                                        .join_deadline = absl::Milliseconds(50)})
                                           .status()));
}

TEST(TcpRendezvousTest, WrongFlagsAreRefusedBeforeAnythingIsOpened) {
  struct Case {
    TcpRendezvousOptions options;
    std::string expected;
  };
  std::vector<Case> cases;
  cases.push_back({{.rank = 0, .world_size = 0, .rendezvous = "127.0.0.1:1"}, "world size 0 is not between 1 and"});
  cases.push_back(
      {{.rank = 0, .world_size = kWorldSizeMax + 1, .rendezvous = "127.0.0.1:1"}, "not between 1 and 1024"});
  cases.push_back({{.rank = 2, .world_size = 2, .rendezvous = "127.0.0.1:1"}, "rank 2 is not below the world size 2"});
  cases.push_back({{.rank = -1, .world_size = 2, .rendezvous = "127.0.0.1:1"}, "rank -1 is not below"});
  cases.push_back({{.rank = 1, .world_size = 2, .rendezvous = "127.0.0.1"}, "--rendezvous"});
  cases.push_back({{.rank = 1, .world_size = 2, .rendezvous = "127.0.0.1:0"}, "has no port"});
  cases.push_back({{.rank = 1, .world_size = 2, .rendezvous = "0.0.0.0:7077"}, "no address that other ranks can dial"});
  cases.push_back({{.rank = 1, .world_size = 2, .rendezvous = "127.0.0.1:1", .run_id = std::string(256, 'r')},
                   "--run_id has 256 bytes, at most 255"});
  cases.push_back({{.rank = 1, .world_size = 2, .rendezvous = "127.0.0.1:1", .run_id = "run\n12"},
                   "--run_id has control characters"});
  for (Case& one : cases) {
    const absl::Status status = ConnectFullMesh(std::move(one.options)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr(one.expected));
  }
}

TEST(TcpRendezvousTest, APortThatIsTakenIsNamed) {
  const auto taken = TcpListener::Listen("127.0.0.1:0");
  const Joined joined = ConnectFullMesh({.rank = 0, .world_size = 2, .rendezvous = taken->address()});
  EXPECT_TRUE(absl::IsInvalidArgument(joined.status())) << joined.status();
  EXPECT_THAT(Text(joined.status()), AllOf(HasSubstr(taken->address()), HasSubstr("is the port taken")));
}

[[noreturn]] void JoinWithFewDescriptors() {
  const rlimit few = {.rlim_cur = 100, .rlim_max = 100};
  setrlimit(RLIMIT_NOFILE, &few);
  const Joined joined = ConnectFullMesh({.rank = 0, .world_size = 64, .rendezvous = "127.0.0.1:1"});
  std::fputs(Text(joined.status()).c_str(), stderr);
  _exit(0);
}

TEST(TcpRendezvousTest, TooFewDescriptorsAreRefusedWithBothNumbers) {
  EXPECT_EXIT(JoinWithFewDescriptors(), testing::ExitedWithCode(0),
              "64 ranks need [0-9]+ descriptors each, this process may open 100");
}

// --- Ranks that do not fit together: refused by a sentence to both sides ---

TEST(TcpRendezvousTest, ARankThatDoesNotFitIsRefusedAndTheJobGoesOn) {
  Job job(3);
  job.Start(0);
  job.Start(1);
  struct Case {
    std::function<void(TcpHello&)> change;
    absl::StatusCode code;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {[](TcpHello& hello) { hello.world_size = 4; }, absl::StatusCode::kInvalidArgument,
       "rank 2 has --world_size=4, rank 0 has 3"},
      {[](TcpHello& hello) { hello.run_id = "run 13"; }, absl::StatusCode::kFailedPrecondition,
       "rank 2 belongs to run \"run 13\", rank 0 to run \"run 12\""},
      {[](TcpHello& hello) { hello.rank = 3; }, absl::StatusCode::kInvalidArgument,
       "a rank 3 of 3 does not dial rank 0"},
      {[](TcpHello& hello) { hello.rank = 0; }, absl::StatusCode::kInvalidArgument,
       "a rank 0 of 3 does not dial rank 0"},
      {[](TcpHello& hello) { hello.rank = -5; }, absl::StatusCode::kInvalidArgument, "a rank -5 of 3"},
      {[](TcpHello& hello) { hello.to_rank = 1; }, absl::StatusCode::kInvalidArgument,
       "rank 0 listens here, and rank 2 looks for rank 1"},
      {[](TcpHello& hello) { hello.purpose = TcpHello::Purpose::kMessages; }, absl::StatusCode::kAlreadyExists,
       "rank 0 expects no connection of rank 2"},
      {[](TcpHello& hello) { hello.purpose = static_cast<TcpHello::Purpose>(77); }, absl::StatusCode::kAlreadyExists,
       "rank 0 expects no connection of rank 2"},
      {[](TcpHello& hello) { hello.address = "nowhere"; }, absl::StatusCode::kInvalidArgument, "nowhere"},
  };
  for (const Case& one : cases) {
    TcpHello hello = HelloOf(2, 3);
    one.change(hello);
    const absl::Status status = BareRank(job.address(), hello).AwaitWelcome();
    EXPECT_EQ(status.code(), one.code) << status;
    EXPECT_THAT(Text(status), AllOf(StartsWith("says: "), HasSubstr(one.expected)));
    EXPECT_TRUE(job.AwaitLine(one.expected)) << one.expected;
  }
  job.Start(2);
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousTest, ARankIsStartedOnce) {
  Job job(3);
  job.Start(0);
  {
    BareRank first(job.address(), HelloOf(1, 3));
    ASSERT_EQ(first.AwaitWelcome(), absl::OkStatus());
    const absl::Status second = BareRank(job.address(), HelloOf(1, 3)).AwaitWelcome();
    EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
    EXPECT_THAT(Text(second), HasSubstr("rank 1 has joined already, from 127.0.0.1:"));
    EXPECT_TRUE(job.AwaitLine("rank 1 has joined already"));
  }
  // The first one has ended before the others counted on it, and may come back.
  job.Start(1);
  job.Start(2);
  job.Join();
  job.ExpectConnected();
}

// --- Strangers ---

TEST(TcpRendezvousTest, StrangersAreNoRanks) {
  Job job(3);
  job.Start(0);
  const Socket silent = Dial(job.address());
  const Socket browser = Dial(job.address());
  ASSERT_TRUE(SendAll(browser, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  Socket scanner = Dial(job.address());
  Reset(std::move(scanner));
  EXPECT_TRUE(job.AwaitLine("is no rank of a job"));
  job.Start(1);
  job.Start(2);
  job.Join();
  job.ExpectConnected();
}

TEST(TcpRendezvousTest, ManySilentStrangersDoNotKeepTheRanksOut) {
  Job job(3);
  job.Start(0);
  std::vector<Socket> strangers;
  for (int i = 0; i < 4 * kStrangerConnectionsMax; ++i) strangers.push_back(Dial(job.address()));
  job.Start(1);
  job.Start(2);
  job.Join();
  job.ExpectConnected();
  EXPECT_LE(job.said().size(), static_cast<size_t>(kLogRefusalsMax));
}

// A connection that is open is not due any more. Otherwise strangers could take the descriptors that the ranks need.
TEST(TcpRendezvousTest, FewerStrangersAreHeardWhenRanksHaveJoined) {
  Job job(3);
  job.Start(0);
  BareRank one(job.address(), HelloOf(1, 3));
  ASSERT_EQ(one.AwaitWelcome(), absl::OkStatus());
  constexpr size_t kDue = 3 * 2 - 1, kTooMany = 3;
  std::vector<Socket> strangers;
  for (size_t i = 0; i < kDue + kStrangerConnectionsMax + kTooMany; ++i) strangers.push_back(Dial(job.address()));
  EXPECT_TRUE(Until([&] { return job.said().size() >= kTooMany; },
                    [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }));
  for (const std::string& line : job.said()) EXPECT_THAT(line, HasSubstr("was silent for too long"));
  for (size_t i = 0; i < kTooMany; ++i) EXPECT_EQ(ReceiveSome(strangers[i], 1), "");  // the oldest
  BareRank two(job.address(), HelloOf(2, 3));
  EXPECT_EQ(two.AwaitWelcome(), absl::OkStatus());
}

// A rank that repeats itself for ever must not keep rank 0 busy beyond its deadline.
TEST(TcpRendezvousTest, ARankIsReadyOnce) {
  Job job(2);
  job.Start(0);
  BareRank one(job.address(), HelloOf(1, 2));
  ASSERT_EQ(one.AwaitWelcome(), absl::OkStatus());
  ASSERT_TRUE(one.AwaitTable());
  for (int i = 0; i < 2; ++i) one.Send(TcpFrameKind::kReady);
  job.Join();
  EXPECT_TRUE(absl::IsInternal(job.result(0).status())) << job.error(0);
  EXPECT_THAT(job.error(0), HasSubstr("has sent frame 7 at a wrong time"));
}

TEST(TcpRendezvousTest, AStrangerThatSaysNothingIsDropped) {
  Job job(2);
  TcpRendezvousOptions options = job.Options(0);
  // Long enough for the rank that comes later, on a busy machine.
  options.hello_deadline = absl::Seconds(1);
  job.Start(0, std::move(options));
  const Socket silent = Dial(job.address());
  EXPECT_TRUE(job.AwaitLine("has connected and not said which rank it is within 1s"));
  EXPECT_EQ(ReceiveSome(silent, 1), "");  // the end of the stream
  job.Start(1);
  job.Join();
  job.ExpectConnected();
}

// A registration that stops half way is a stranger's.
TEST(TcpRendezvousTest, AStalledRegistrationIsDroppedAndTheRankNamed) {
  Job job(3);
  for (const int rank : {0, 1}) {
    TcpRendezvousOptions options = job.Options(rank);
    options.hello_deadline = absl::Milliseconds(500);
    options.join_deadline = absl::Seconds(3);
    job.Start(rank, std::move(options));
  }
  TcpDialer stalled(Dial(job.address()), HelloOf(2, 3), kToken);  // the hello leaves, and nothing after it
  EXPECT_TRUE(job.AwaitLine("has connected and not said which rank it is"));
  job.Join();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(job.result(rank).status())) << job.error(rank);
    EXPECT_THAT(job.error(rank), AllOf(HasSubstr("rank 2 of 3 has not joined"), HasSubstr("within 3s"),
                                       HasSubstr("the last connection that was refused: 127.0.0.1:")));
  }
}

// --- Ranks that are missing ---

TEST(TcpRendezvousTest, MissingRanksAreNamedToAll) {
  Job job(5);
  for (const int rank : {0, 2, 4}) {
    TcpRendezvousOptions options = job.Options(rank);
    options.join_deadline = absl::Seconds(2);
    job.Start(rank, std::move(options));
  }
  job.Join();
  for (const int rank : {0, 2, 4}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(job.result(rank).status())) << job.error(rank);
    EXPECT_THAT(job.error(rank), HasSubstr("ranks 1, 3 of 5 have not joined at " + job.address() + " within 2s"));
    EXPECT_THAT(job.error(rank), Not(HasSubstr("refused")));
  }
  EXPECT_THAT(job.error(2), StartsWith("rank 0 (" + job.address() + ") says: "));
}

TEST(TcpRendezvousTest, LongBeforeTheDeadlineEachRankSaysForWhomItWaits) {
  Job job(3);
  TcpRendezvousOptions zero = job.Options(0), one = job.Options(1);
  zero.stall_report = one.stall_report = absl::Milliseconds(50);
  one.say = zero.say;
  job.Start(0, std::move(zero));
  EXPECT_TRUE(job.AwaitLine("(joining): ranks 1, 2 of 3 have not joined at " + job.address()));
  job.Start(1, std::move(one));
  EXPECT_TRUE(job.AwaitLine("(joining): rank 0 (" + job.address() + ")"));
  job.Start(2);
  job.Join();
  job.ExpectConnected();
  EXPECT_THAT(job.said(), ElementsAre(StartsWith("stuck for "), StartsWith("stuck for "),
                                      StartsWith("the job goes on after "), StartsWith("the job goes on after ")));
}

TEST(TcpRendezvousTest, AMissingRankZeroIsNamedWithItsAddress) {
  const ReservedAddress address;
  std::vector<std::string> said;
  const Joined joined = ConnectFullMesh({.rank = 1,
                                         .world_size = 2,
                                         .rendezvous = address.text,
                                         .join_deadline = absl::Milliseconds(100),
                                         .stall_report = absl::Milliseconds(50),
                                         .say = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_TRUE(absl::IsDeadlineExceeded(joined.status())) << joined.status();
  EXPECT_THAT(Text(joined.status()),
              AllOf(HasSubstr("did not find rank 0 at --rendezvous=" + address.text), HasSubstr("ECONNREFUSED")));
  EXPECT_THAT(said, ElementsAre(AllOf(StartsWith("stuck for "), HasSubstr("(joining): rank 0 (" + address.text),
                                      HasSubstr("cannot be reached: "))));
}

TEST(TcpRendezvousTest, ARankThatEndsInTheMiddleIsNamedToAll) {
  Job job(3);
  job.Start(0);
  job.Start(1);
  {
    BareRank two(job.address(), HelloOf(2, 3));
    ASSERT_EQ(two.AwaitWelcome(), absl::OkStatus());
    EXPECT_TRUE(two.AwaitTable());  // now the others count on this rank
  }
  job.Join();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(absl::IsUnavailable(job.result(rank).status())) << job.error(rank);
    EXPECT_THAT(job.error(rank), HasSubstr("rank 2 (127.0.0.1:9) has closed the connection"));
  }
}

// Rank 1's address is closed, as by a firewall: rank 2 finds it out before its deadline, and all ranks are told.
TEST(TcpRendezvousTest, ARankThatCannotBeReachedIsNamedToAll) {
  Job job(3);
  job.Start(0);
  BareRank one(job.address(), HelloOf(1, 3));  // where no process listens
  ASSERT_EQ(one.AwaitWelcome(), absl::OkStatus());
  TcpRendezvousOptions two = job.Options(2);
  two.join_deadline = absl::Seconds(1);
  job.Start(2, std::move(two));
  job.Join();
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(job.result(rank).status())) << job.error(rank);
    EXPECT_THAT(job.error(rank),
                AllOf(HasSubstr("rank 2 cannot connect with rank 1 at 127.0.0.1:9"), HasSubstr("ECONNREFUSED")));
  }
}

TEST(TcpRendezvousTest, ARankThatJoinsAndDoesNoMoreIsNamed) {
  Job job(3);
  for (const int rank : {0, 1}) {
    TcpRendezvousOptions options = job.Options(rank);
    options.join_deadline = absl::Seconds(2);
    job.Start(rank, std::move(options));
  }
  BareRank two(job.address(), HelloOf(2, 3));
  ASSERT_EQ(two.AwaitWelcome(), absl::OkStatus());
  job.Join();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(job.error(rank),
                AllOf(HasSubstr("rank 2 joined, but did not connect with rank 0"), HasSubstr("within 2s")));
  }
}

TEST(TcpRendezvousTest, LoopbackAndOtherAddressesDoNotMix) {
  Job job(3);
  job.Start(0);
  TcpHello far = HelloOf(1, 3);
  far.address = "10.1.2.3:4711";
  BareRank one(job.address(), far);
  ASSERT_EQ(one.AwaitWelcome(), absl::OkStatus());
  BareRank two(job.address(), HelloOf(2, 3));
  ASSERT_EQ(two.AwaitWelcome(), absl::OkStatus());
  job.Join();
  EXPECT_TRUE(absl::IsInvalidArgument(job.result(0).status()));
  EXPECT_THAT(job.error(0),
              AllOf(HasSubstr("rank 2 listens at 127.0.0.1:9, which rank 1 at 10.1.2.3:4711 cannot reach"),
                    HasSubstr("address of its network interface")));
}

}  // namespace
}  // namespace starring
