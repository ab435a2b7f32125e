#include "common/transport/tcp/tcp_handshake.h"

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/common/transport/tcp/tls_loopback.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kToken(32, '\x5a');
const std::string kOther(32, '\x5b');
constexpr size_t kHeadBytes = 24, kHelloBytes = 440, kProofFrameBytes = kHeadBytes + 32;
constexpr size_t kAddressOffset = 6 * 4 + 32;  // in a hello: after six numbers and the nonce

TcpHello Hello() {
  return {.purpose = TcpHello::Purpose::kNotices,
          .rank = 7,
          .to_rank = 3,
          .world_size = 9,
          .run_id = "run 12",
          .address = "10.0.0.7:4711"};
}

struct Outcome {
  absl::Status dialer;
  absl::Status door;
};

// Runs both sides until each has an outcome. The door welcomes a peer that has proved itself.
Outcome Shake(TcpDialer& dialer, TcpDoorkeeper& door) {
  std::optional<absl::Status> dialled, opened;
  Until([&] { return dialled.has_value() && opened.has_value(); },
        [&] {
          if (!opened.has_value()) {
            const absl::StatusOr<bool> step = door.Advance();
            if (!step.ok() || *step) opened = step.status();
            if (opened.has_value() && opened->ok()) door.connection().Send(TcpFrameKind::kWelcome, "");
          }
          if (!dialled.has_value()) {
            const absl::StatusOr<bool> step = dialer.Advance();
            if (!step.ok() || *step) dialled = step.status();
          }
        });
  const absl::Status never = absl::DeadlineExceededError("no outcome");
  return {.dialer = dialled.value_or(never), .door = opened.value_or(never)};
}

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(TcpHandshakeTest, TwoRanksOfOneJobOpenAConnection) {
  for (const std::string& token : {kToken, std::string()}) {
    SocketPair pair = ConnectedSockets();
    TcpDialer dialer(std::move(pair.a), Hello(), token);
    TcpHellosHeard heard;
    TcpDoorkeeper door(std::move(pair.b), token, &heard);
    const Outcome outcome = Shake(dialer, door);
    EXPECT_EQ(outcome.dialer, absl::OkStatus());
    ASSERT_EQ(outcome.door, absl::OkStatus());
    EXPECT_EQ(door.hello().purpose, TcpHello::Purpose::kNotices);
    EXPECT_EQ(door.hello().rank, 7);
    EXPECT_EQ(door.hello().to_rank, 3);
    EXPECT_EQ(door.hello().world_size, 9);
    EXPECT_EQ(door.hello().run_id, "run 12");
    EXPECT_EQ(door.hello().address, "10.0.0.7:4711");
  }
}

TEST(TcpHandshakeTest, TheLongestTextsFit) {
  TcpHello hello = Hello();
  hello.run_id = std::string(kRunIdBytesMax, 'r');
  hello.address = std::string(kTcpAddressBytesMax, 'a');
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), hello, kToken);
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
  ASSERT_EQ(Shake(dialer, door).door, absl::OkStatus());
  EXPECT_EQ(door.hello().run_id, hello.run_id);
  EXPECT_EQ(door.hello().address, hello.address);
}

TEST(TcpHandshakeTest, AnotherSecretIsRefusedAndBothSidesKnow) {
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), Hello(), kOther);
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
  const Outcome outcome = Shake(dialer, door);
  EXPECT_TRUE(absl::IsUnauthenticated(outcome.door)) << outcome.door;
  EXPECT_THAT(Text(outcome.door), HasSubstr("has another job secret"));
  EXPECT_TRUE(absl::IsUnauthenticated(outcome.dialer)) << outcome.dialer;
  EXPECT_THAT(Text(outcome.dialer), HasSubstr("says: you have another job secret"));
}

TEST(TcpHandshakeTest, AMissingSecretIsNamedOnBothSides) {
  for (const bool dialer_has_one : {true, false}) {
    SocketPair pair = ConnectedSockets();
    TcpDialer dialer(std::move(pair.a), Hello(), dialer_has_one ? kToken : "");
    TcpHellosHeard heard;
    TcpDoorkeeper door(std::move(pair.b), dialer_has_one ? "" : kToken, &heard);
    const Outcome outcome = Shake(dialer, door);
    EXPECT_THAT(Text(outcome.door), HasSubstr(dialer_has_one ? "has a --job_secret" : "has no --job_secret"));
    EXPECT_THAT(Text(outcome.dialer),
                HasSubstr(dialer_has_one ? "says: you have a --job_secret" : "says: this job has a --job_secret"));
  }
}

// An impostor at the address of a rank welcomes every peer.
TEST(TcpHandshakeTest, AWelcomeWithoutAProofIsNotBelieved) {
  for (const bool sends_challenge : {true, false}) {
    SocketPair pair = ConnectedSockets();
    TcpDialer dialer(std::move(pair.a), Hello(), kToken);
    TcpFrameConnection impostor(std::move(pair.b));
    if (sends_challenge) {
      impostor.Send(TcpFrameKind::kChallenge, std::string(64, 'x'));
    }
    impostor.Send(TcpFrameKind::kWelcome, "");
    absl::StatusOr<bool> welcome = false;
    Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); });
    EXPECT_TRUE(absl::IsUnauthenticated(welcome.status())) << welcome.status();
  }
}

// It would be answered for ever, and its answers would pile up.
TEST(TcpHandshakeTest, OneChallengeIsAnswered) {
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), Hello(), kToken);
  TcpFrameConnection impostor(std::move(pair.b));
  for (int i = 0; i < 2; ++i) impostor.Send(TcpFrameKind::kChallenge, std::string(64, 'x'));
  absl::StatusOr<bool> welcome = false;
  EXPECT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(welcome.status())) << welcome.status();
}

// The bytes that a dialler sends before its welcome: its hello, and its proof for the challenge of a true door.
struct Recorded {
  std::string hello;
  std::string proof;
};
Recorded Record() {
  SocketPair dialled = ConnectedSockets(), relayed = ConnectedSockets();
  TcpDialer dialer(std::move(dialled.a), Hello(), kToken);
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(relayed.b), kToken, &heard);
  Recorded recorded;
  recorded.hello = ReceiveSome(dialled.b, kHeadBytes + kHelloBytes);
  EXPECT_TRUE(SendAll(relayed.a, recorded.hello));
  EXPECT_TRUE(Until([&] { return door.hello().rank == Hello().rank; }, [&] { EXPECT_TRUE(door.Advance().ok()); }));
  EXPECT_TRUE(SendAll(dialled.b, ReceiveSome(relayed.a, kHeadBytes + 64)));
  EXPECT_TRUE(Until([&] { return recorded.proof.size() == kProofFrameBytes; },
                    [&] {
                      EXPECT_TRUE(dialer.Advance().ok());
                      recorded.proof += ReceiveNow(dialled.b, kProofFrameBytes - recorded.proof.size());
                    }));
  return recorded;
}

TEST(TcpHandshakeTest, TheSecretNeverTravels) {
  const Recorded recorded = Record();
  EXPECT_THAT(recorded.hello + recorded.proof, Not(HasSubstr(kToken.substr(0, 8))));
}

// A recorded handshake opens no other door.
TEST(TcpHandshakeTest, ARecordedHandshakeOpensNoOtherDoor) {
  const Recorded recorded = Record();
  SocketPair pair = ConnectedSockets();
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
  ASSERT_TRUE(SendAll(pair.a, recorded.hello + recorded.proof));
  absl::StatusOr<bool> open = false;
  Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
  EXPECT_TRUE(absl::IsUnauthenticated(open.status())) << open.status();
}

// The rank in between changes who the dialler is, in a hello and with a proof that are genuine.
TEST(TcpHandshakeTest, AHelloThatWasChangedOnItsWayIsRefused) {
  const size_t kPlaces[] = {0, 4, 8, 12, 20, kAddressOffset, kAddressOffset + kTcpAddressBytesMax + 1};
  for (const size_t place : kPlaces) {
    SocketPair dialled = ConnectedSockets(), relayed = ConnectedSockets();
    TcpDialer dialer(std::move(dialled.a), Hello(), kToken);
    TcpHellosHeard heard;
    TcpDoorkeeper door(std::move(relayed.b), kToken, &heard);
    std::string hello = ReceiveSome(dialled.b, kHeadBytes + kHelloBytes);
    hello[kHeadBytes + place] ^= 1;
    ASSERT_TRUE(SendAll(relayed.a, hello));
    absl::StatusOr<bool> open = false;
    Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
    EXPECT_TRUE(absl::IsUnauthenticated(open.status())) << place << ": " << open.status();
    EXPECT_FALSE(door.has_hello());
  }
}

// The proofs cover the hello by themselves, whatever its own code covers: a door that has heard another hello than the
// dialler has sent gives a proof that the dialler does not believe.
TEST(TcpHandshakeTest, TheProofsCoverTheHello) {
  SocketPair first = ConnectedSockets(), second = ConnectedSockets(), to_door = ConnectedSockets();
  TcpHello other = Hello();
  other.rank = 8;
  TcpDialer dialer(std::move(first.a), Hello(), kToken), other_dialer(std::move(second.a), other, kToken);
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(to_door.b), kToken, &heard);
  // The relay swaps the hellos of two genuine ranks, and passes on all else.
  ASSERT_EQ(ReceiveSome(first.b, kHeadBytes + kHelloBytes).size(), kHeadBytes + kHelloBytes);
  ASSERT_TRUE(SendAll(to_door.a, ReceiveSome(second.b, kHeadBytes + kHelloBytes)));
  ASSERT_TRUE(Until([&] { return door.has_hello(); }, [&] { EXPECT_TRUE(door.Advance().ok()); }));
  ASSERT_TRUE(SendAll(first.b, ReceiveSome(to_door.a, kHeadBytes + 64)));
  std::string proof;
  ASSERT_TRUE(Until([&] { return proof.size() == kProofFrameBytes; },
                    [&] {
                      EXPECT_TRUE(dialer.Advance().ok());
                      proof += ReceiveNow(first.b, kProofFrameBytes - proof.size());
                    }));
  EXPECT_FALSE(dialer.may_refuse()) << "the door's proof is for another hello";
  ASSERT_TRUE(SendAll(to_door.a, proof));
  absl::StatusOr<bool> open = false;
  Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
  EXPECT_TRUE(absl::IsUnauthenticated(open.status())) << open.status();
}

// A stranger sends the answers of a true door again, which it has heard when the same rank dialled before.
TEST(TcpHandshakeTest, RecordedAnswersAreNotBelieved) {
  SocketPair dialled = ConnectedSockets(), relayed = ConnectedSockets();
  TcpDialer dialer(std::move(dialled.a), Hello(), kToken);
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(relayed.b), kToken, &heard);
  ASSERT_TRUE(SendAll(relayed.a, ReceiveSome(dialled.b, kHeadBytes + kHelloBytes)));
  ASSERT_TRUE(Until([&] { return door.has_hello(); }, [&] { EXPECT_TRUE(door.Advance().ok()); }));
  const std::string challenge = ReceiveSome(relayed.a, kHeadBytes + 64);
  SocketPair again = ConnectedSockets();
  TcpDialer second(std::move(again.a), Hello(), kToken);
  ASSERT_TRUE(SendAll(again.b, challenge));
  TcpFrameConnection stranger(std::move(again.b));
  stranger.Send(TcpFrameKind::kWelcome, "");
  absl::StatusOr<bool> welcome = false;
  Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = second.Advance(); });
  EXPECT_TRUE(absl::IsUnauthenticated(welcome.status())) << welcome.status();
  EXPECT_FALSE(second.may_refuse());
}

TEST(TcpHandshakeTest, ARecordedHelloIsRefusedAtOnce) {
  SocketPair dialled = ConnectedSockets();
  TcpDialer dialer(std::move(dialled.a), Hello(), kToken);
  const std::string hello = ReceiveSome(dialled.b, kHeadBytes + kHelloBytes);
  TcpHellosHeard heard;
  for (const bool is_first : {true, false}) {
    SocketPair pair = ConnectedSockets();
    TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
    ASSERT_TRUE(SendAll(pair.a, hello));
    absl::StatusOr<bool> open = false;
    EXPECT_TRUE(Until([&] { return door.has_hello() || !open.ok(); }, [&] { open = door.Advance(); }));
    EXPECT_EQ(door.has_hello(), is_first);
    EXPECT_EQ(open.ok(), is_first) << open.status();
  }
}

TEST(TcpHandshakeTest, TheHellosThatAreRememberedAreBounded) {
  TcpHellosHeard heard;
  for (size_t i = 0; i <= kTcpHellosHeardMax; ++i) EXPECT_TRUE(heard.Add(std::to_string(i)));
  EXPECT_FALSE(heard.Add("1"));
  EXPECT_TRUE(heard.Add("0")) << "the oldest is forgotten";
}

// Sends a door's own proof back to it.
TEST(TcpHandshakeTest, AReflectedProofOpensNoDoor) {
  SocketPair dialled = ConnectedSockets();
  TcpDialer dialer(std::move(dialled.a), Hello(), kToken);
  const std::string hello = ReceiveSome(dialled.b, kHeadBytes + kHelloBytes);
  SocketPair pair = ConnectedSockets();
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
  TcpFrameConnection thief(std::move(pair.a));
  thief.Send(TcpFrameKind::kHello, hello.substr(kHeadBytes));
  absl::StatusOr<std::optional<TcpFrame>> challenge = std::optional<TcpFrame>();
  absl::StatusOr<bool> open = false;
  ASSERT_TRUE(Until([&] { return challenge.ok() && challenge->has_value(); },
                    [&] {
                      open = door.Advance();
                      challenge = thief.Receive(kTcpHelloBytesMax);
                    }));
  thief.Send(TcpFrameKind::kProof, (*challenge)->payload.substr(32));
  Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
  EXPECT_TRUE(absl::IsUnauthenticated(open.status())) << open.status();
}

TEST(TcpHandshakeTest, RefusesWhatIsNoHello) {
  const std::string endless(kHelloBytes, 'x');
  std::string two_lines(kHelloBytes, '\0');
  two_lines.replace(kAddressOffset, 5, "a\nb:1");
  const struct {
    TcpFrameKind kind;
    std::string payload;
    std::string expected;
  } kCases[] = {{TcpFrameKind::kProof, std::string(32, 'x'), "does not begin with a hello"},
                {TcpFrameKind::kHello, "short", "hello has a wrong length"},
                {TcpFrameKind::kHello, endless, "does not end"},
                {TcpFrameKind::kHello, two_lines, "control characters"},
                {TcpFrameKind::kHello, std::string(kTcpHelloBytesMax + 1, 'x'), "at most 512 are allowed"}};
  for (const auto& one : kCases) {
    SocketPair pair = ConnectedSockets();
    TcpFrameConnection stranger(std::move(pair.a));
    stranger.Send(one.kind, one.payload);
    TcpHellosHeard heard;
    TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
    absl::StatusOr<bool> open = false;
    Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
    EXPECT_THAT(Text(open.status()), HasSubstr(one.expected));
  }
}

// A build of another version is told so in a frame that it understands.
TEST(TcpHandshakeTest, AnotherVersionIsToldSo) {
  SocketPair pair = ConnectedSockets();
  SocketPair copy = ConnectedSockets();
  TcpDialer dialer(std::move(copy.a), Hello(), kToken);
  std::string hello = ReceiveSome(copy.b, kHeadBytes + kHelloBytes);
  hello[8] = 1;
  ASSERT_TRUE(SendAll(pair.a, hello));
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard);
  absl::StatusOr<bool> open = false;
  Until([&] { return !open.ok() || *open; }, [&] { open = door.Advance(); });
  EXPECT_THAT(Text(open.status()), AllOf(HasSubstr("speaks version 1"), HasSubstr("this process version 3")));
  TcpFrameConnection stranger(std::move(pair.a));
  absl::StatusOr<std::optional<TcpFrame>> answer = std::optional<TcpFrame>();
  Until([&] { return !answer.ok(); }, [&] { answer = stranger.Receive(0); });
  EXPECT_THAT(Text(answer.status()), HasSubstr("says: this rank speaks version 3"));
}

// --- TLS ---

TcpHello TlsHello() {
  TcpHello hello = Hello();
  hello.has_tls = true;
  return hello;
}

TEST(TcpHandshakeTest, TwoRanksWithTlsOpenAnEncryptedConnection) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), TlsHello(), kToken, tls.get());
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard, tls.get());
  const Outcome outcome = Shake(dialer, door);
  ASSERT_EQ(outcome.dialer, absl::OkStatus());
  ASSERT_EQ(outcome.door, absl::OkStatus());
  EXPECT_TRUE(door.hello().has_tls);
  EXPECT_TRUE(dialer.connection().is_encrypted() && door.connection().is_encrypted());
  // Later frames are encrypted, too.
  const std::string text = "where every rank listens";
  dialer.connection().Send(TcpFrameKind::kTable, text);
  absl::StatusOr<std::optional<TcpFrame>> frame = std::optional<TcpFrame>();
  ASSERT_TRUE(Until([&] { return !frame.ok() || frame->has_value(); },
                    [&] { frame = door.connection().Receive(kTcpHelloBytesMax); }));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->payload, text);
}

// The key of the secret without its certificate is not enough.
TEST(TcpHandshakeTest, TlsWithAnotherCertificateIsRefused) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext(), other = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), TlsHello(), kToken, tls.get());
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(pair.b), kToken, &heard, other.get());
  const Outcome outcome = Shake(dialer, door);
  EXPECT_TRUE(absl::IsUnauthenticated(outcome.dialer)) << outcome.dialer;
  EXPECT_TRUE(absl::IsUnauthenticated(outcome.door)) << outcome.door;
  EXPECT_FALSE(dialer.may_refuse());
}

// Both prove themselves in the clear, so that the caller's refusal is believed at once.
TEST(TcpHandshakeTest, OneSideWithTlsAloneCanBeRefused) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  for (const bool dialer_has_it : {true, false}) {
    SocketPair pair = ConnectedSockets();
    TcpDialer dialer(std::move(pair.a), dialer_has_it ? TlsHello() : Hello(), kToken,
                     dialer_has_it ? tls.get() : nullptr);
    TcpHellosHeard heard;
    TcpDoorkeeper door(std::move(pair.b), kToken, &heard, dialer_has_it ? nullptr : tls.get());
    absl::StatusOr<bool> open = false, welcome = false;
    ASSERT_TRUE(Until([&] { return !open.ok() || *open; },
                      [&] {
                        welcome = dialer.Advance();
                        open = door.Advance();
                      }));
    ASSERT_TRUE(open.ok()) << open.status();
    EXPECT_EQ(door.hello().has_tls, dialer_has_it);
    EXPECT_FALSE(door.connection().is_encrypted());
    door.connection().Refuse(absl::InvalidArgumentError("give --tls to all"));
    ASSERT_TRUE(Until([&] { return !welcome.ok(); }, [&] { welcome = dialer.Advance(); }));
    EXPECT_EQ(Text(welcome.status()), "says: give --tls to all");
    EXPECT_TRUE(dialer.may_refuse());
  }
}

// A host on the way welcomes a rank in the clear, after a challenge that a rank of the job without --tls has made.
TEST(TcpHandshakeTest, ARankWithTlsIsNotWelcomedInTheClear) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  SocketPair dialled = ConnectedSockets(), relayed = ConnectedSockets();
  TcpDialer dialer(std::move(dialled.a), TlsHello(), kToken, tls.get());
  TcpHellosHeard heard;
  TcpDoorkeeper door(std::move(relayed.b), kToken, &heard);
  ASSERT_TRUE(SendAll(relayed.a, ReceiveSome(dialled.b, kHeadBytes + kHelloBytes)));
  ASSERT_TRUE(Until([&] { return door.has_hello(); }, [&] { EXPECT_TRUE(door.Advance().ok()); }));
  ASSERT_TRUE(SendAll(dialled.b, ReceiveSome(relayed.a, kHeadBytes + 64)));
  TcpFrameConnection between(std::move(dialled.b));
  between.Send(TcpFrameKind::kWelcome, "");
  absl::StatusOr<bool> welcome = false;
  ASSERT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsUnauthenticated(welcome.status())) << welcome.status();
  EXPECT_THAT(Text(welcome.status()), HasSubstr("without TLS"));
}

// Each of two ranks dials a door of its own. A host on the way passes on their hellos, and then gives each the other's
// encrypted connection.
TEST(TcpHandshakeTest, AnEncryptedConnectionBelongsToItsHello) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  struct Way {
    Way() : dialled(ConnectedSockets()), relayed(ConnectedSockets()) {}
    SocketPair dialled, relayed;
  } ways[2];
  TcpHello hellos[2] = {TlsHello(), TlsHello()};
  hellos[1].rank = 8;
  TcpDialer dialers[2] = {{std::move(ways[0].dialled.a), hellos[0], kToken, tls.get()},
                          {std::move(ways[1].dialled.a), hellos[1], kToken, tls.get()}};
  TcpHellosHeard heard;
  TcpDoorkeeper doors[2] = {{std::move(ways[0].relayed.b), kToken, &heard, tls.get()},
                            {std::move(ways[1].relayed.b), kToken, &heard, tls.get()}};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(SendAll(ways[i].relayed.a, ReceiveSome(ways[i].dialled.b, kHeadBytes + kHelloBytes)));
    ASSERT_TRUE(Until([&] { return doors[i].has_hello(); }, [&] { EXPECT_TRUE(doors[i].Advance().ok()); }));
    ASSERT_TRUE(SendAll(ways[i].dialled.b, ReceiveSome(ways[i].relayed.a, kHeadBytes)));  // kBeginTls
  }
  absl::StatusOr<bool> open[2] = {false, false};
  bool is_swapped_open = false;
  Until([&] { return !open[0].ok() && !open[1].ok(); },
        [&] {
          for (int i = 0; i < 2; ++i) {
            (void)dialers[i].Advance();
            if (open[i].ok() && !*open[i]) open[i] = doors[i].Advance();
            is_swapped_open = is_swapped_open || (open[i].ok() && *open[i]);
            SendAll(ways[1 - i].relayed.a, ReceiveNow(ways[i].dialled.b, 1 << 16));
            SendAll(ways[1 - i].dialled.b, ReceiveNow(ways[i].relayed.a, 1 << 16));
          }
        });
  EXPECT_FALSE(is_swapped_open);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnauthenticated(open[i].status())) << open[i].status();
    EXPECT_FALSE(dialers[i].may_refuse());
  }
}

// The rank has then shown its proof in the clear, which is tied to no encrypted connection.
TEST(TcpHandshakeTest, TlsDoesNotBeginAfterTheChallenge) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), TlsHello(), kToken, tls.get());
  TcpFrameConnection impostor(std::move(pair.b));
  impostor.Send(TcpFrameKind::kChallenge, std::string(64, 'x'));
  impostor.Send(TcpFrameKind::kBeginTls, "");
  absl::StatusOr<bool> welcome = false;
  EXPECT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(welcome.status())) << welcome.status();
}

TEST(TcpHandshakeTest, TlsDoesNotBeginTwice) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), TlsHello(), kToken, tls.get());
  TcpFrameConnection door(std::move(pair.b));
  ASSERT_EQ(ReceiveSome(door.socket(), kHeadBytes + kHelloBytes).size(), kHeadBytes + kHelloBytes);
  door.Send(TcpFrameKind::kBeginTls, "");
  door.BeginTls(*tls, TlsContext::Side::kIsDialled);
  absl::StatusOr<bool> encrypted = false, welcome = false;
  ASSERT_TRUE(Until([&] { return !encrypted.ok() || *encrypted; },
                    [&] {
                      welcome = dialer.Advance();
                      encrypted = door.Handshake();
                    }));
  ASSERT_TRUE(encrypted.ok()) << encrypted.status();
  door.Send(TcpFrameKind::kBeginTls, "");
  EXPECT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(welcome.status())) << welcome.status();
}

// The hello waits for the kernel, and the other end answers before it has heard it.
TEST(TcpHandshakeTest, TlsThatBeginsBeforeTheHelloIsRefused) {
  const std::shared_ptr<const TlsContext> tls = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  // Buffers whose size is set do not grow.
  const int small = 1 << 13;
  setsockopt(pair.a.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  setsockopt(pair.b.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  const std::string much(1 << 20, 'x');
  for (int i = 0; i < 20; ++i) {
    while (send(pair.a.fd(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // some of it moves to the other end
  }
  TcpDialer dialer(std::move(pair.a), TlsHello(), kToken, tls.get());
  ASSERT_TRUE(dialer.connection().has_unsent());
  TcpFrameConnection impostor(std::move(pair.b));
  impostor.Send(TcpFrameKind::kBeginTls, "");
  absl::StatusOr<bool> welcome = false;
  EXPECT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(welcome.status())) << welcome.status();
}

// A frame of TLS means nothing to a rank that was started without it.
TEST(TcpHandshakeTest, ARankWithoutTlsDoesNotBeginIt) {
  SocketPair pair = ConnectedSockets();
  TcpDialer dialer(std::move(pair.a), Hello(), kToken);
  TcpFrameConnection impostor(std::move(pair.b));
  impostor.Send(TcpFrameKind::kBeginTls, "");
  absl::StatusOr<bool> welcome = false;
  EXPECT_TRUE(Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer.Advance(); }));
  EXPECT_TRUE(absl::IsInvalidArgument(welcome.status())) << welcome.status();
}

}  // namespace
}  // namespace starring
