#include "tests/common/transport/tcp/tcp_loopback.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/network/address.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_stream.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;
// Far above what a busy machine takes, under a sanitizer: a test that passes does not wait for it.
constexpr std::chrono::seconds kPatience{30};

void AwaitEvent(int fd, short events) {
  pollfd polled = {.fd = fd, .events = events, .revents = 0};
  poll(&polled, 1, 100);
}

// A test that has failed ends soon: threads that help it would otherwise wait for what it does no more.
bool IsOver(Clock::time_point end) { return Clock::now() >= end || testing::Test::HasFatalFailure(); }

std::string HeaderBytes(const tcp_wire::MessageHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

}  // namespace

SocketPair ConnectedSockets() {
  absl::StatusOr<TcpListener> listener = TcpListener::Listen("127.0.0.1:0");
  CHECK_OK(listener);
  const std::string address = listener->address();
  DialResult dialled = std::move(DialAll({&address, 1}, absl::Seconds(10)).front());
  CHECK_GE(dialled.socket.fd(), 0) << dialled.error;
  SocketPair pair = {.a = std::move(dialled.socket), .b = Socket()};
  while (pair.b.fd() < 0) {
    AwaitEvent(listener->fd(), POLLIN);
    pair.b = listener->Accept();
  }
  return pair;
}

ChannelPair EncryptedChannels(SocketPair pair, const TlsContext& context) {
  ChannelPair channels = {.a = std::move(pair.a), .b = std::move(pair.b)};
  channels.a.Encrypt(context.NewSession(channels.a.fd(), TlsContext::Side::kDials));
  channels.b.Encrypt(context.NewSession(channels.b.fd(), TlsContext::Side::kIsDialled));
  bool a_is_done = false, b_is_done = false;
  const auto step = [](TcpChannel& channel, bool& is_done) {
    if (is_done) return;
    const absl::StatusOr<bool> result = channel.tls()->Handshake();
    CHECK_OK(result);
    is_done = *result;
  };
  CHECK(Until([&] { return a_is_done && b_is_done; },
              [&] {
                step(channels.a, a_is_done);
                step(channels.b, b_is_done);
              }));
  return channels;
}

std::vector<std::unique_ptr<TcpTransport>> ConnectedRanks(int world_size, const TcpTransport::Options& base,
                                                          const TlsContext* tls) {
  const auto connect = [tls] {
    SocketPair pair = ConnectedSockets();
    if (tls != nullptr) return EncryptedChannels(std::move(pair), *tls);
    return ChannelPair{.a = std::move(pair.a), .b = std::move(pair.b)};
  };
  std::vector<TcpTransport::Options> options(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    options[rank] = {.rank = rank,
                     .links = std::vector<TcpTransport::Link>(world_size),
                     .server_count = base.server_count,
                     .unexpected_bytes_max = base.unexpected_bytes_max,
                     .silence_ms = base.silence_ms,
                     .loss_grace_ms = base.loss_grace_ms,
                     .last_notice_ms = base.last_notice_ms,
                     .last_words_ms = base.last_words_ms};
  }
  for (int high = 0; high < world_size; ++high) {
    for (int low = 0; low < high; ++low) {
      ChannelPair messages = connect(), notices = connect();
      options[high].links[low] = {.messages = std::move(messages.a), .notices = std::move(notices.a), .address = "low"};
      options[low].links[high] = {
          .messages = std::move(messages.b), .notices = std::move(notices.b), .address = "high"};
    }
  }
  std::vector<std::unique_ptr<TcpTransport>> ranks;
  for (TcpTransport::Options& one : options) {
    auto rank = TcpTransport::Create(std::move(one));
    CHECK_OK(rank);
    ranks.push_back(*std::move(rank));
  }
  return ranks;
}

RankAndBarePeers ConnectBarePeers(int peer_count, const TcpTransport::Options& base) {
  RankAndBarePeers result;
  TcpTransport::Options options = {.links = std::vector<TcpTransport::Link>(1 + peer_count),
                                   .unexpected_bytes_max = base.unexpected_bytes_max,
                                   .silence_ms = base.silence_ms,
                                   .loss_grace_ms = base.loss_grace_ms,
                                   .last_notice_ms = base.last_notice_ms,
                                   .last_words_ms = base.last_words_ms};
  for (int rank = 1; rank <= peer_count; ++rank) {
    SocketPair messages = ConnectedSockets(), notices = ConnectedSockets();
    const std::string address = PeerNameOfSocket(messages.a.fd());
    options.links[rank] = {.messages = std::move(messages.a), .notices = std::move(notices.a), .address = address};
    result.peers.push_back({.messages = std::move(messages.b),
                            .notices = std::move(notices.b),
                            .name = absl::StrCat("rank ", rank, " (", address, ")")});
  }
  auto created = TcpTransport::Create(std::move(options));
  CHECK_OK(created);
  result.rank = *std::move(created);
  return result;
}

std::string WireMessage(int tag, const std::string& data) {
  return HeaderBytes({.tag = tag, .length = data.size()}) + data;
}

std::string WireGoodbye() { return HeaderBytes({.tag = tcp_wire::kGoodbyeTag}); }

bool SendAll(const Socket& socket, const std::string& bytes) {
  const Clock::time_point end = Clock::now() + kPatience;
  for (size_t sent = 0; sent < bytes.size();) {
    if (IsOver(end)) return false;
    const ssize_t count = send(socket.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count < 0) AwaitEvent(socket.fd(), POLLOUT);
    if (count > 0) sent += static_cast<size_t>(count);
  }
  return true;
}

std::string ReceiveSome(const Socket& socket, size_t size) {
  std::string bytes(size, '\0');
  size_t arrived = 0;
  const Clock::time_point end = Clock::now() + kPatience;
  while (arrived < size && !IsOver(end)) {
    const ssize_t count = recv(socket.fd(), bytes.data() + arrived, size - arrived, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (count < 0) AwaitEvent(socket.fd(), POLLIN);
    if (count > 0) arrived += static_cast<size_t>(count);
  }
  bytes.resize(arrived);
  return bytes;
}

std::string ReceiveNow(const Socket& socket, size_t size) {
  std::string bytes(size, '\0');
  const ssize_t count = recv(socket.fd(), bytes.data(), size, MSG_DONTWAIT);
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

bool EndsInOrder(const Socket& socket) {
  char byte;
  ssize_t count = -1;
  const bool over = Until(
      [&] {
        count = recv(socket.fd(), &byte, 1, MSG_DONTWAIT);
        return count >= 0 || (errno != EAGAIN && errno != EINTR);
      },
      [&] { AwaitEvent(socket.fd(), POLLIN); });
  // A reset after the end of the stream shows only here.
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  CHECK(getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error_number, &length) == 0);
  return over && count == 0 && error_number == 0;
}

bool AwaitDelivery(const Socket& socket) {
  return Until(
      [&] {
        int unacknowledged = -1;
        CHECK(ioctl(socket.fd(), SIOCOUTQ, &unacknowledged) == 0);
        return unacknowledged == 0;
      },
      [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
}

void Reset(TcpChannel channel) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  CHECK(setsockopt(channel.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
}

std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> data(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& one : data) {
    state = state * 6364136223846793005 + 1442695040888963407;
    one = static_cast<std::byte>(state >> 56);
  }
  return data;
}

bool Until(const std::function<bool()>& done, const std::function<void()>& step) {
  const Clock::time_point end = Clock::now() + kPatience;
  while (!done()) {
    if (IsOver(end)) return false;
    step();
    std::this_thread::yield();
  }
  return true;
}

}  // namespace starring
