#include "common/transport/tcp/openssl_tls.h"

#include <errno.h>
#include <malloc.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/security/job_secret.h"
#include "common/security/transport_security.h"
#include "common/transport/tcp/tcp_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/common/transport/tcp/tls_loopback.h"

namespace starring {
namespace {

using testing::HasSubstr;

constexpr int kSilenceMs = 20'000;
constexpr int64_t kAnyBudget = 1 << 20;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

struct Inbox final : TcpStream::Receiver {
  absl::StatusOr<std::byte*> OnHeader(int, int64_t length) override {
    messages.emplace_back(static_cast<size_t>(length));
    return messages.back().data();
  }
  void OnMessage() override { ++complete_count; }
  void OnGoodbye() override { has_goodbye = true; }

  std::vector<std::vector<std::byte>> messages;
  size_t complete_count = 0;
  bool has_goodbye = false;
};

struct Streams {
  explicit Streams(ChannelPair pair) : a(std::move(pair.a), kSilenceMs), b(std::move(pair.b), kSilenceMs) {}
  TcpStream a;
  TcpStream b;
};

bool IsReady(int fd, short events) {
  pollfd polled = {.fd = fd, .events = events, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

// The outcome of both ends' handshakes.
struct Outcome {
  absl::Status dials;
  absl::Status is_dialled;
};
Outcome Shake(TcpChannel& a, TcpChannel& b) {
  std::optional<absl::Status> first, second;
  const auto step = [](TcpChannel& channel, std::optional<absl::Status>& outcome) {
    if (outcome.has_value()) return;
    const absl::StatusOr<bool> result = channel.tls()->Handshake();
    if (!result.ok() || *result) outcome = result.status();
  };
  EXPECT_TRUE(Until([&] { return first.has_value() && second.has_value(); },
                    [&] {
                      step(a, first);
                      step(b, second);
                    }));
  return {.dials = *first, .is_dialled = *second};
}

// Each end reads and writes only when the kernel says that it may, as epoll does: bytes that wait decrypted, or
// encrypted, without an event would wait for ever. Small buffers of the kernel split every record. The keys change
// every third record.
TEST(OpensslTlsTest, MessagesOfAllLengthsArriveWholeAndInOrder) {
  const std::shared_ptr<const TlsContext> context = FreshTlsContext(3);
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    SocketPair pair = ConnectedSockets();
    const int small = 1 << 13;
    if (seed % 2 == 0) setsockopt(pair.a.fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    Streams streams(EncryptedChannels(std::move(pair), *context));
    Inbox inbox;
    std::vector<std::vector<std::byte>> sent;
    for (int i = 0; i < 60; ++i) {
      const size_t longest = size_t{1} << (random() % 19);
      sent.push_back(Pattern(i % 7 == 0 ? 0 : random() % longest, random()));
    }
    for (size_t i = 0; i < sent.size(); ++i) streams.a.Push(static_cast<int>(i), sent[i], {.operation = i});
    std::vector<Transport::Token> done;
    const auto step = [&] {
      if (streams.a.has_unsent() && IsReady(streams.a.fd(), POLLOUT)) {
        ASSERT_EQ(streams.a.Write(1 + static_cast<int64_t>(random() % 100'000), done), absl::OkStatus());
      }
      if (IsReady(streams.b.fd(), POLLIN)) {
        ASSERT_EQ(streams.b.Read(1 + static_cast<int64_t>(random() % 3'000), inbox), absl::OkStatus());
      }
    };
    ASSERT_TRUE(Until([&] { return inbox.complete_count == sent.size() && done.size() == sent.size(); }, step));
    EXPECT_EQ(inbox.messages, sent);
    EXPECT_FALSE(streams.a.has_unsent());
    streams.a.SayGoodbye();
    // The connection ends after the last word, which one call may find as well.
    ASSERT_TRUE(Until([&] { return inbox.has_goodbye; }, [&] { (void)streams.b.Read(kAnyBudget, inbox); }));
  }
}

TEST(OpensslTlsTest, ConnectionsAreEncryptedIfTheSecurityHasACertificate) {
  const absl::StatusOr<std::shared_ptr<const TlsContext>> none = TlsContextOf({});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
  TransportSecurity security;
  security.tls.emplace();
  EXPECT_EQ(TlsContextOf(security).status().code(), absl::StatusCode::kInvalidArgument) << "this one has no key";
  const KeyAndCertificate pair = MakeSelfSigned(kJobSecretName).value();
  security.tls = {.private_key = pair.private_key, .certificate = pair.certificate, .trusted = pair.certificate};
  const absl::StatusOr<std::shared_ptr<const TlsContext>> some = TlsContextOf(security);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_NE(*some, nullptr);
}

TEST(OpensslTlsTest, AnotherCertificateIsRefusedByBothSides) {
  const std::shared_ptr<const TlsContext> one = FreshTlsContext(), other = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpChannel a(std::move(pair.a)), b(std::move(pair.b));
  a.Encrypt(one->NewSession(a.fd(), TlsContext::Side::kDials));
  b.Encrypt(other->NewSession(b.fd(), TlsContext::Side::kIsDialled));
  const Outcome outcome = Shake(a, b);
  EXPECT_EQ(outcome.dials.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(outcome.is_dialled.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(Text(outcome.dials), HasSubstr("has not shown the certificate of this job's secret"));
}

// A program that speaks TLS and presents nothing.
TEST(OpensslTlsTest, APeerWithoutACertificateIsRefused) {
  const std::shared_ptr<const TlsContext> context = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpChannel door(std::move(pair.b));
  door.Encrypt(context->NewSession(door.fd(), TlsContext::Side::kIsDialled));
  SSL_CTX* const anonymous = SSL_CTX_new(TLS_client_method());
  SSL* const stranger = SSL_new(anonymous);
  SSL_set_fd(stranger, pair.a.fd());
  absl::StatusOr<bool> result = false;
  EXPECT_TRUE(Until([&] { return !result.ok() || *result; },
                    [&] {
                      (void)SSL_connect(stranger);
                      result = door.tls()->Handshake();
                    }));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnauthenticated);
  SSL_free(stranger);
  SSL_CTX_free(anonymous);
}

TEST(OpensslTlsTest, APeerThatLeavesInTheHandshakeIsGone) {
  const std::shared_ptr<const TlsContext> context = FreshTlsContext();
  SocketPair pair = ConnectedSockets();
  TcpChannel a(std::move(pair.a));
  a.Encrypt(context->NewSession(a.fd(), TlsContext::Side::kDials));
  ASSERT_THAT(a.tls()->Handshake(), testing::Property(&absl::StatusOr<bool>::ok, true));
  ReceiveSome(pair.b, 16);
  pair.b = Socket();
  absl::StatusOr<bool> result = false;
  EXPECT_TRUE(Until([&] { return !result.ok(); }, [&] { result = a.tls()->Handshake(); }));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
}

// A host between two ranks: it sees all bytes, and can change them.
struct Relay {
  // The bytes that have left `from`, which it passes on after `change`.
  std::string Pass(const Socket& from, const Socket& to, const std::function<void(std::string&)>& change = nullptr) {
    std::string bytes = ReceiveNow(from, 1 << 20);
    if (change != nullptr && !bytes.empty()) change(bytes);
    EXPECT_TRUE(SendAll(to, bytes));
    return bytes;
  }
};

struct RelayedStreams {
  explicit RelayedStreams(const TlsContext& context) : left(ConnectedSockets()), right(ConnectedSockets()) {
    TcpChannel near(std::move(left.a)), far(std::move(right.a));
    near.Encrypt(context.NewSession(near.fd(), TlsContext::Side::kDials));
    far.Encrypt(context.NewSession(far.fd(), TlsContext::Side::kIsDialled));
    bool near_is_done = false, far_is_done = false;
    EXPECT_TRUE(Until([&] { return near_is_done && far_is_done; },
                      [&] {
                        if (!near_is_done) near_is_done = *near.tls()->Handshake();
                        if (!far_is_done) far_is_done = *far.tls()->Handshake();
                        relay.Pass(left.b, right.b);
                        relay.Pass(right.b, left.b);
                      }));
    a.emplace(std::move(near), kSilenceMs);
    b.emplace(std::move(far), kSilenceMs);
  }
  Relay relay;
  SocketPair left, right;  // `a` and `b` have the ends a, the relay the ends b
  std::optional<TcpStream> a, b;
};

TEST(OpensslTlsTest, AHostBetweenReadsNothing) {
  RelayedStreams streams(*FreshTlsContext());
  const std::string text = "gradients of a secret model";
  std::vector<Transport::Token> done;
  streams.a->Push(3, std::as_bytes(std::span(text)), {});
  ASSERT_EQ(streams.a->Write(kAnyBudget, done), absl::OkStatus());
  Inbox inbox;
  std::string seen;
  ASSERT_TRUE(Until([&] { return inbox.complete_count == 1; },
                    [&] {
                      seen += streams.relay.Pass(streams.left.b, streams.right.b);
                      ASSERT_EQ(streams.b->Read(kAnyBudget, inbox), absl::OkStatus());
                    }));
  EXPECT_GE(seen.size(), text.size());
  EXPECT_EQ(seen.find("gradients"), std::string::npos);
}

// In the last record: nothing follows that would make the descriptor readable again.
TEST(OpensslTlsTest, AByteThatIsChangedOnTheWayIsFound) {
  RelayedStreams streams(*FreshTlsContext());
  const std::vector<std::byte> data = Pattern(40'000, 7);
  std::vector<Transport::Token> done;
  streams.a->Push(3, data, {});
  ASSERT_EQ(streams.a->Write(kAnyBudget, done), absl::OkStatus());
  Inbox inbox;
  absl::Status status;
  int64_t passed = 0;
  ASSERT_TRUE(Until([&] { return !status.ok() || inbox.complete_count == 1; },
                    [&] {
                      passed += std::ssize(streams.relay.Pass(streams.left.b, streams.right.b, [&](std::string& bytes) {
                        const int64_t at = 39'000 - passed;
                        if (at >= 0 && at < std::ssize(bytes)) bytes[at] = static_cast<char>(bytes[at] ^ 1);
                      }));
                      if (IsReady(streams.b->fd(), POLLIN)) status = streams.b->Read(kAnyBudget, inbox);
                    }));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(Text(status), HasSubstr("does not decrypt"));
  EXPECT_EQ(inbox.complete_count, 0u);
}

// An end without the last word, which only the peer can send, is a failure: a host between cannot pass it off as an
// orderly one.
TEST(OpensslTlsTest, AConnectionThatIsCutHasNotEndedInOrder) {
  RelayedStreams streams(*FreshTlsContext());
  streams.right.b = Socket();
  Inbox inbox;
  absl::Status status;
  ASSERT_TRUE(Until([&] { return !status.ok(); }, [&] { status = streams.b->Read(kAnyBudget, inbox); }));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(inbox.has_goodbye);
}

TEST(OpensslTlsTest, ABudgetStopsAWriteAndTheRestWaits) {
  Streams streams(EncryptedChannels(ConnectedSockets(), *FreshTlsContext()));
  const std::vector<std::byte> data = Pattern(64 << 20, 1);
  std::vector<Transport::Token> done;
  streams.a.Push(1, data, {});
  // The peer reads nothing: the kernel takes no more after a few megabytes.
  for (int i = 0; i < 10; ++i) ASSERT_EQ(streams.a.Write(int64_t{64} << 20, done), absl::OkStatus());
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(streams.a.has_unsent());
}

// The decrypted rest of a record is received without a budget, and no further record: other connections, and the
// thread that computes, would wait for a peer that sends without a pause.
TEST(OpensslTlsTest, ABudgetStopsARead) {
  Streams streams(EncryptedChannels(ConnectedSockets(), *FreshTlsContext()));
  const std::vector<std::byte> data = Pattern(10'000, 1);
  std::vector<Transport::Token> done;
  for (uint64_t i = 0; i < 50; ++i) streams.a.Push(1, data, {.operation = i});
  ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
  Inbox inbox;
  const size_t records = 2;  // of what one Read receives: that of the budget's end, and the one before
  const size_t most = records * static_cast<size_t>(kTlsRecordBytesMax) / data.size();
  ASSERT_TRUE(Until([&] { return inbox.complete_count == 50; },
                    [&] {
                      std::vector<Transport::Token> more;
                      ASSERT_EQ(streams.a.Write(kAnyBudget, more), absl::OkStatus());
                      const size_t before = inbox.complete_count;
                      ASSERT_EQ(streams.b.Read(1, inbox), absl::OkStatus());
                      ASSERT_LE(inbox.complete_count - before, most);
                    }));
}

// Its data is the sender's again, but a process that ends now would take the encrypted bytes with it.
TEST(OpensslTlsTest, AMessageIsSentWhenTheKernelHasIt) {
  SocketPair pair = ConnectedSockets();
  Streams streams(EncryptedChannels(std::move(pair), *FreshTlsContext()));
  const std::vector<std::byte> data = Pattern(10'000, 1);
  std::vector<Transport::Token> done;
  uint64_t pushed = 0;
  while (!streams.a.has_unsent()) {
    ASSERT_LT(pushed, 100'000u);
    streams.a.Push(1, data, {.operation = pushed++});
    ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
  }
  EXPECT_LT(done.size(), pushed);
  Inbox inbox;
  ASSERT_TRUE(Until([&] { return done.size() == pushed; },
                    [&] {
                      ASSERT_EQ(streams.b.Read(kAnyBudget, inbox), absl::OkStatus());
                      ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
                    }));
  for (uint64_t i = 0; i < pushed; ++i) EXPECT_EQ(done[i].operation, i);
}

// The connection is lost while encrypted bytes wait, and nothing else is queued.
TEST(OpensslTlsTest, AMessageThatWaitedInVainIsNotSent) {
  ChannelPair pair = EncryptedChannels(ConnectedSockets(), *FreshTlsContext());
  TcpStream stream(std::move(pair.a), kSilenceMs);
  const std::vector<std::byte> data = Pattern(10'000, 1);
  std::vector<Transport::Token> done;
  uint64_t pushed = 0;
  while (!stream.has_unsent()) {
    ASSERT_LT(pushed, 100'000u);
    stream.Push(1, data, {.operation = pushed++});
    ASSERT_EQ(stream.Write(kAnyBudget, done), absl::OkStatus());
  }
  Reset(std::move(pair.b));
  absl::Status status;
  ASSERT_TRUE(Until([&] { return !status.ok(); }, [&] { status = stream.Write(kAnyBudget, done); }));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(done.size(), pushed);
  EXPECT_EQ(done.size() + stream.DropUnsent().size(), pushed);
  EXPECT_FALSE(stream.has_unsent());
}

// A rank of the largest job has two thousand connections.
TEST(OpensslTlsTest, AnIdleConnectionHoldsNoBuffers) {
  constexpr int kConnections = 20;
  const std::shared_ptr<const TlsContext> context = FreshTlsContext();
  Streams first(EncryptedChannels(ConnectedSockets(), *context));  // what OpenSSL keeps for the process
  const size_t before = mallinfo2().uordblks;
  std::vector<Streams> all;
  for (int i = 0; i < kConnections; ++i) all.emplace_back(EncryptedChannels(ConnectedSockets(), *context));
  const std::vector<std::byte> data = Pattern(200'000, 1);
  for (Streams& streams : all) {
    Inbox inbox;
    std::vector<Transport::Token> done;
    streams.a.Push(1, data, {});
    ASSERT_TRUE(Until([&] { return inbox.complete_count == 1; },
                      [&] {
                        ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
                        ASSERT_EQ(streams.b.Read(kAnyBudget, inbox), absl::OkStatus());
                      }));
  }
  // Both ends of each. A session has about 20 KB; OpenSSL's buffers would be 32 KiB more, its own 66 KB.
  const size_t held = mallinfo2().uordblks - before;
  EXPECT_LT(held / (2 * kConnections), 32u << 10);
}

// The lengths of the whole records in `bytes`.
std::vector<size_t> RecordLengths(const std::string& bytes) {
  std::vector<size_t> lengths;
  for (size_t at = 0; at + 5 <= bytes.size(); at += 5 + lengths.back()) {
    lengths.push_back(static_cast<unsigned char>(bytes[at + 3]) * size_t{256} +
                      static_cast<unsigned char>(bytes[at + 4]));
  }
  return lengths;
}

TEST(OpensslTlsTest, KeysChangeWhenTheyAreUsedUp) {
  RelayedStreams streams(*FreshTlsContext(3));
  const std::vector<std::byte> data = Pattern(12 * kTlsRecordBytesMax, 7);
  std::vector<Transport::Token> done;
  streams.a->Push(3, data, {});
  std::string seen;
  Inbox inbox;
  ASSERT_TRUE(Until([&] { return inbox.complete_count == 1; },
                    [&] {
                      ASSERT_EQ(streams.a->Write(kAnyBudget, done), absl::OkStatus());
                      seen += streams.relay.Pass(streams.left.b, streams.right.b);
                      ASSERT_EQ(streams.b->Read(kAnyBudget, inbox), absl::OkStatus());
                    }));
  const std::vector<size_t> lengths = RecordLengths(seen);
  // KeyUpdate: a head of four bytes, one, its type and a tag (RFC 8446, 4.6.3).
  EXPECT_EQ(std::count(lengths.begin(), lengths.end(), 4u + 1 + 1 + 16), 4) << lengths.size() << " records";
}

// OpenSSL has one queue for a thread, in which other parts of the program leave errors.
TEST(OpensslTlsTest, AnErrorOfAnotherPartIsNotTheConnections) {
  Streams streams(EncryptedChannels(ConnectedSockets(), *FreshTlsContext()));
  ERR_raise(ERR_LIB_USER, ERR_R_INTERNAL_ERROR);
  Inbox inbox;
  EXPECT_EQ(streams.b.Read(kAnyBudget, inbox), absl::OkStatus()) << "nothing has arrived";
  ERR_clear_error();
}

}  // namespace
}  // namespace starring
