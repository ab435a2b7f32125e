#include "common/transport/tcp/tcp_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kSilenceMs = 20'000;
constexpr int64_t kAnyBudget = 1 << 20;

// Keeps every message in memory of its own.
struct Inbox final : TcpStream::Receiver {
  struct Message {
    int tag = 0;
    std::vector<std::byte> data;
    bool complete = false;
  };
  absl::StatusOr<std::byte*> OnHeader(int tag, int64_t length) override {
    if (tag == refused_tag) return absl::InternalError("sends what no rank wants");
    messages.push_back({.tag = tag, .data = std::vector<std::byte>(static_cast<size_t>(length))});
    return messages.back().data.data();
  }
  void OnMessage() override { messages.back().complete = true; }
  void OnGoodbye() override { ++goodbyes; }

  size_t complete_count() const {
    return std::count_if(messages.begin(), messages.end(), [](const Message& one) { return one.complete; });
  }

  std::vector<Message> messages;
  int goodbyes = 0;
  int refused_tag = -7;
};

struct Streams {
  Streams() : Streams(ConnectedSockets()) {}
  explicit Streams(SocketPair pair) : a(std::move(pair.a), kSilenceMs), b(std::move(pair.b), kSilenceMs) {}
  TcpStream a;
  TcpStream b;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

// Messages of all lengths, with budgets that end in the middle of headers and messages.
TEST(TcpStreamTest, MessagesArriveWholeAndInOrder) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Streams streams;
    Inbox inbox;
    std::vector<std::vector<std::byte>> sent;
    for (int i = 0; i < 60; ++i) {
      const size_t longest = size_t{1} << (random() % 19);
      sent.push_back(Pattern(i % 7 == 0 ? 0 : random() % longest, random()));
    }
    for (size_t i = 0; i < sent.size(); ++i) streams.a.Push(static_cast<int>(i), sent[i], {.operation = i});
    std::vector<Transport::Token> done;
    const auto step = [&] {
      ASSERT_EQ(streams.a.Write(1 + static_cast<int64_t>(random() % 100'000), done), absl::OkStatus());
      ASSERT_EQ(streams.b.Read(1 + static_cast<int64_t>(random() % 100'000), inbox), absl::OkStatus());
    };
    ASSERT_TRUE(Until([&] { return inbox.complete_count() == sent.size() && done.size() == sent.size(); }, step));
    EXPECT_FALSE(streams.a.has_unsent());
    for (size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(inbox.messages[i].tag, static_cast<int>(i));
      EXPECT_EQ(inbox.messages[i].data, sent[i]) << i;
      EXPECT_EQ(done[i].operation, i);
    }
  }
}

// The bytes that came before are copied, those that come after are received there.
TEST(TcpStreamTest, AMessageMayMoveWhileItArrives) {
  Streams streams;
  Inbox inbox;
  const std::vector<std::byte> data = Pattern(300'000, 3);
  streams.a.Push(5, data, {});
  std::vector<Transport::Token> done;
  ASSERT_TRUE(Until([&] { return !inbox.messages.empty(); },
                    [&] {
                      ASSERT_EQ(streams.a.Write(100'000, done), absl::OkStatus());
                      ASSERT_EQ(streams.b.Read(10'000, inbox), absl::OkStatus());
                    }));
  ASSERT_FALSE(inbox.messages[0].complete);
  std::vector<std::byte> other(data.size());
  streams.b.Redirect(other.data());
  inbox.messages[0].data = {};
  ASSERT_TRUE(Until([&] { return inbox.messages[0].complete; },
                    [&] {
                      ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
                      ASSERT_EQ(streams.b.Read(kAnyBudget, inbox), absl::OkStatus());
                    }));
  EXPECT_EQ(other, data);
}

// Returns the error with which the stream ends.
absl::Status ReadToTheEnd(TcpStream& stream, Inbox& inbox) {
  absl::Status status;
  Until([&] { return !status.ok(); }, [&] { status = stream.Read(kAnyBudget, inbox); });
  return status;
}

TEST(TcpStreamTest, AnOrderlyEndHasALastWord) {
  Streams streams;
  Inbox inbox;
  std::vector<Transport::Token> done;
  const std::vector<std::byte> data = Pattern(1000, 1);
  streams.a.Push(1, data, {});
  ASSERT_EQ(streams.a.Write(kAnyBudget, done), absl::OkStatus());
  streams.a.SayGoodbye();
  const absl::Status end = ReadToTheEnd(streams.b, inbox);
  EXPECT_EQ(inbox.goodbyes, 1);
  ASSERT_EQ(inbox.messages.size(), 1u);
  EXPECT_EQ(inbox.messages[0].data, data);
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_THAT(Text(end), AllOf(HasSubstr("has closed its connection"), Not(HasSubstr("middle"))));
}

TEST(TcpStreamTest, NothingFollowsTheLastWord) {
  for (const std::string& more : {WireMessage(1, "x"), WireGoodbye()}) {
    SocketPair pair = ConnectedSockets();
    ASSERT_TRUE(SendAll(pair.a, WireGoodbye() + more));
    TcpStream stream(std::move(pair.b), kSilenceMs);
    Inbox inbox;
    const absl::Status end = ReadToTheEnd(stream, inbox);
    EXPECT_TRUE(absl::IsInternal(end)) << end;
    EXPECT_THAT(Text(end), HasSubstr("more after its last message"));
    EXPECT_EQ(inbox.goodbyes, 1);
    EXPECT_THAT(inbox.messages, IsEmpty());
  }
}

TEST(TcpStreamTest, SaysNoGoodbyeWithMessagesUnsent) {
  Streams streams;
  const std::vector<std::byte> data = Pattern(1000, 1);
  streams.a.Push(1, data, {.operation = 9});
  streams.a.SayGoodbye();
  const std::vector<Transport::Token> dropped = streams.a.DropUnsent();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].operation, 9u);
  Inbox inbox;
  EXPECT_EQ(streams.b.Read(kAnyBudget, inbox), absl::OkStatus());
  EXPECT_EQ(inbox.goodbyes, 0);
}

TEST(TcpStreamTest, AnEndInTheMiddleIsSaidToBeOne) {
  for (const size_t size : {size_t{3}, size_t{16}, size_t{500}}) {
    SocketPair pair = ConnectedSockets();
    ASSERT_TRUE(SendAll(pair.a, WireMessage(1, std::string(1000, 'x')).substr(0, size)));
    pair.a = Socket();
    TcpStream stream(std::move(pair.b), kSilenceMs);
    Inbox inbox;
    EXPECT_THAT(Text(ReadToTheEnd(stream, inbox)), HasSubstr("in the middle of a message")) << size;
  }
}

TEST(TcpStreamTest, AResetIsALoss) {
  SocketPair pair = ConnectedSockets();
  TcpStream stream(std::move(pair.b), kSilenceMs);
  Reset(std::move(pair.a));
  Inbox inbox;
  const absl::Status end = ReadToTheEnd(stream, inbox);
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_THAT(Text(end), HasSubstr("ECONNRESET"));
}

// Without MSG_NOSIGNAL this would end the process.
TEST(TcpStreamTest, WritingToAClosedConnectionIsAnError) {
  SocketPair pair = ConnectedSockets();
  TcpStream stream(std::move(pair.b), kSilenceMs);
  Reset(std::move(pair.a));
  const std::vector<std::byte> data = Pattern(100'000, 1);
  std::vector<Transport::Token> done;
  absl::Status status;
  ASSERT_TRUE(Until([&] { return !status.ok(); },
                    [&] {
                      stream.Push(1, data, {});
                      status = stream.Write(kAnyBudget, done);
                    }));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(TcpStreamTest, RefusesWhatIsNoMessage) {
  const auto header = [](uint32_t magic, int32_t tag, uint64_t length) {
    const tcp_wire::MessageHeader one = {.magic = magic, .tag = tag, .length = length};
    return std::string(reinterpret_cast<const char*>(&one), sizeof(one));
  };
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), header(tcp_wire::kMagic + 1, 1, 1), header(tcp_wire::kMagic, -2, 0),
        header(tcp_wire::kMagic, tcp_wire::kGoodbyeTag, 1), header(tcp_wire::kMagic, 1, uint64_t{1} << 63)}) {
    SocketPair pair = ConnectedSockets();
    ASSERT_TRUE(SendAll(pair.a, bytes));
    TcpStream stream(std::move(pair.b), kSilenceMs);
    Inbox inbox;
    const absl::Status status = ReadToTheEnd(stream, inbox);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("instead of 4d525453"));
    EXPECT_THAT(inbox.messages, IsEmpty());
  }
}

TEST(TcpStreamTest, PassesOnTheReceiversRefusal) {
  SocketPair pair = ConnectedSockets();
  ASSERT_TRUE(SendAll(pair.a, WireMessage(1, "yes") + WireMessage(2, "no")));
  TcpStream stream(std::move(pair.b), kSilenceMs);
  Inbox inbox;
  inbox.refused_tag = 2;
  EXPECT_EQ(ReadToTheEnd(stream, inbox), absl::InternalError("sends what no rank wants"));
  EXPECT_EQ(inbox.complete_count(), 1u);
}

TEST(TcpStreamTest, SetsTheOptionsOfAStreamBetweenRanks) {
  Streams streams;
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t length = sizeof(value);
    getsockopt(streams.a.fd(), level, name, &value, &length);
    return value;
  };
  EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), kTcpKeepaliveSeconds);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), kTcpKeepaliveSeconds);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), kSilenceMs);
  constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS of Linux 6.15
  EXPECT_THAT(option(IPPROTO_TCP, kTcpRtoMaxMs), testing::AnyOf(kTcpResendMsMax, -1));
}

}  // namespace
}  // namespace starring
