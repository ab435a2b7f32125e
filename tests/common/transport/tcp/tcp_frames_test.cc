#include "common/transport/tcp/tcp_frames.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr size_t kMax = 100;

struct Frames {
  Frames() : Frames(ConnectedSockets()) {}
  explicit Frames(SocketPair pair) : a(std::move(pair.a)), b(std::move(pair.b)) {}
  TcpFrameConnection a;
  TcpFrameConnection b;
};

// The next frame, or the error instead.
absl::StatusOr<TcpFrame> Await(TcpFrameConnection& connection, size_t bytes_max = kMax) {
  absl::StatusOr<std::optional<TcpFrame>> frame = std::optional<TcpFrame>();
  Until([&] { return !frame.ok() || frame->has_value(); }, [&] { frame = connection.Receive(bytes_max); });
  if (!frame.ok()) return frame.status();
  if (!frame->has_value()) return absl::DeadlineExceededError("no frame");
  return **frame;
}

// The bytes of a frame on the wire, taken from a connection whose other end is bare.
std::string WireFrame(TcpFrameKind kind, const std::string& payload) {
  SocketPair pair = ConnectedSockets();
  TcpFrameConnection connection(std::move(pair.a));
  connection.Send(kind, payload);
  return ReceiveSome(pair.b, 24 + payload.size());
}

TEST(TcpFramesTest, FramesArriveAsTheyWereSent) {
  Frames frames;
  for (const std::string& payload : {std::string(), std::string("a"), std::string(kMax, '\0')}) {
    frames.a.Send(TcpFrameKind::kTable, payload);
    const auto got = Await(frames.b);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->kind, TcpFrameKind::kTable);
    EXPECT_EQ(got->payload, payload);
  }
  EXPECT_THAT(frames.a.peer(), StartsWith("127.0.0.1:"));
}

TEST(TcpFramesTest, AFrameMayArriveByteByByte) {
  const std::string wire = WireFrame(TcpFrameKind::kReady, "payload") + WireFrame(TcpFrameKind::kGo, "");
  SocketPair pair = ConnectedSockets();
  TcpFrameConnection connection(std::move(pair.b));
  std::string got;
  for (const char byte : wire) {
    ASSERT_TRUE(SendAll(pair.a, std::string(1, byte)));
    const auto frame = connection.Receive(kMax);
    ASSERT_TRUE(frame.ok());
    if (frame->has_value()) got += (*frame)->payload + ";";
  }
  Until([&] { return got == "payload;;"; },
        [&] {
          const auto frame = connection.Receive(kMax);
          if (frame.ok() && frame->has_value()) got += (*frame)->payload + ";";
        });
  EXPECT_EQ(got, "payload;;");
}

// The bytes after a frame belong to the messages of the job.
TEST(TcpFramesTest, ReadsNoByteBeyondAFrame) {
  SocketPair pair = ConnectedSockets();
  ASSERT_TRUE(SendAll(pair.a, WireFrame(TcpFrameKind::kWelcome, "") + "next"));
  TcpFrameConnection connection(std::move(pair.b));
  ASSERT_TRUE(Await(connection).ok());
  const TcpChannel rest = connection.TakeChannel();
  EXPECT_EQ(ReceiveSome(rest.socket(), 4), "next");
}

TEST(TcpFramesTest, RefusesALongFrameByItsHead) {
  Frames frames;
  frames.a.Send(TcpFrameKind::kHello, std::string(kMax + 1, 'x'));
  const absl::Status status = Await(frames.b).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("101 bytes"), HasSubstr("at most 100")));
}

TEST(TcpFramesTest, RefusesAnotherProtocolAndAnotherVersion) {
  const std::string wire = WireFrame(TcpFrameKind::kHello, "");
  std::string newer = wire;
  newer[8] = 9;  // the version follows the magic number
  for (const auto& [bytes, expected] :
       {std::pair<std::string, std::string>("GET / HTTP/1.1\r\nHost: localhost\r\n", "another protocol"),
        std::pair<std::string, std::string>(newer, "speaks version 9 of the rendezvous, and this process version 3")}) {
    SocketPair pair = ConnectedSockets();
    ASSERT_TRUE(SendAll(pair.a, bytes));
    TcpFrameConnection connection(std::move(pair.b));
    const absl::Status status = Await(connection).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected));
    EXPECT_EQ(connection.has_other_version(), bytes == newer);
  }
}

TEST(TcpFramesTest, ARefusalIsTheStatusItCarries) {
  Frames frames;
  // Quotation marks and other languages are read by people, control characters by terminals.
  frames.a.Refuse(absl::AlreadyExistsError("rank 1 has joined run \"l'été\"\x1b[2J\n"));
  const absl::Status status = Await(frames.b, 0).status();  // refusals have a limit of their own
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(std::string(status.message()), "says: rank 1 has joined run \"l'été\"\\x1b[2J\\x0a");
  Frames others;
  others.a.Refuse(absl::InternalError(std::string(3 * kStatusTextBytesMax, 'x')));
  EXPECT_THAT(std::string(Await(others.b).status().message()), SizeIs(kStatusTextBytesMax - 4 + 6));
}

// With unread bytes a close would reset the connection, and the reset may overtake the refusal.
TEST(TcpFramesTest, ARefusalArrivesAlsoIfTheFrameWasNotRead) {
  Frames frames;
  frames.a.Send(TcpFrameKind::kHello, std::string(kMax + 1, 'x'));
  EXPECT_FALSE(Await(frames.b).ok());  // its payload is still in the kernel
  frames.b.Refuse(absl::InvalidArgumentError("too long"));
  frames.b = TcpFrameConnection(Socket());
  EXPECT_EQ(Await(frames.a).status(), absl::InvalidArgumentError("says: too long"));
  EXPECT_TRUE(EndsInOrder(frames.a.TakeChannel().socket()));
}

// A send to a peer that has refused and gone must not hide the reason.
TEST(TcpFramesTest, ARefusalIsReadAlsoIfASendFails) {
  Frames frames;
  frames.b.Refuse(absl::InvalidArgumentError("no"));
  Reset(frames.b.TakeChannel());
  for (int i = 0; i < 3; ++i) frames.a.Send(TcpFrameKind::kReady, "");
  EXPECT_TRUE(frames.a.has_unsent());
  EXPECT_EQ(Await(frames.a).status(), absl::InvalidArgumentError("says: no"));
}

TEST(TcpFramesTest, APeerThatHasGoneHasAName) {
  SocketPair pair = ConnectedSockets();
  Reset(std::move(pair.a));
  EXPECT_EQ(TcpFrameConnection(std::move(pair.b)).peer(), "a peer");
}

TEST(TcpFramesTest, ControlCharactersAreNotPrintable) {
  EXPECT_TRUE(IsPrintable("run 12, \"l'été\""));
  for (const char control : {'\n', '\x1b', '\x7f', '\0'}) EXPECT_FALSE(IsPrintable(std::string("a") + control));
}

TEST(TcpFramesTest, ARefusalWithoutAKnownCodeIsInternal) {
  for (const uint32_t code : {0u, 17u, 4'000'000'000u}) {
    Frames frames;
    std::string payload(4, '\0');
    std::memcpy(payload.data(), &code, sizeof(code));
    frames.a.Send(TcpFrameKind::kRefusal, payload + "no");
    EXPECT_EQ(Await(frames.b).status(), absl::InternalError("says: no"));
  }
}

TEST(TcpFramesTest, AnEndIsUnavailable) {
  Frames frames;
  frames.a.TakeChannel();
  const absl::Status status = Await(frames.b).status();
  EXPECT_EQ(status, absl::UnavailableError("has closed the connection"));
}

}  // namespace
}  // namespace starring
