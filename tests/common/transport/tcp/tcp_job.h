// A job over TCP whose ranks are threads of a test, and ranks that the test plays itself.
#ifndef STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_JOB_H_
#define STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_JOB_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"

namespace starring {

using Joined = absl::StatusOr<std::unique_ptr<Transport>>;

inline const std::string kToken(32, '\x5a');

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

// A job whose ranks are threads of this process. Rank 0 listens before any of them starts.
class Job {
 public:
  explicit Job(int world_size)
      : world_size_(world_size), listener_(Listen()), address_(listener_->address()), results_(world_size) {}
  ~Job() { Join(); }

  const std::string& address() const { return address_; }

  TcpRendezvousOptions Options(int rank) {
    TcpRendezvousOptions options = {.rank = rank,
                                    .world_size = world_size_,
                                    .rendezvous = address_,
                                    .run_id = "run 12",
                                    .token = kToken,
                                    .join_deadline = absl::Seconds(30)};
    if (rank == 0) {
      options.listener = std::exchange(listener_, std::nullopt);
      options.say = [this](const std::string& line) {
        const std::lock_guard lock(mutex_);
        said_.push_back(line);
      };
    }
    return options;
  }

  void Start(int rank) { Start(rank, Options(rank)); }
  void Start(int rank, TcpRendezvousOptions options) {
    threads_.emplace_back(
        [this, rank, o = std::move(options)]() mutable { results_[rank] = ConnectFullMesh(std::move(o)); });
  }
  void StartAll(absl::Duration deadline = absl::Seconds(30)) {
    for (int rank = 0; rank < world_size_; ++rank) {
      TcpRendezvousOptions options = Options(rank);
      options.join_deadline = deadline;
      Start(rank, std::move(options));
    }
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // After Join.
  Joined& result(int rank) { return results_[rank]; }
  std::string error(int rank) { return Text(results_[rank].status()); }

  std::vector<std::string> said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }
  // Whether rank 0 says a line that contains `text`.
  bool AwaitLine(const std::string& text) {
    return Until(
        [&] {
          const std::vector<std::string> lines = said();
          return std::any_of(lines.begin(), lines.end(),
                             [&](const std::string& line) { return line.find(text) != std::string::npos; });
        },
        [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  }

  // Every rank sends a message to every other one.
  void ExpectConnected() {
    for (const Joined& joined : results_) ASSERT_TRUE(joined.ok()) << joined.status();
    std::vector<std::thread> threads;
    for (Joined& joined : results_) {
      threads.emplace_back([&transport = **joined, this] {
        EXPECT_EQ(transport.world_size(), world_size_);
        const int rank = transport.rank();
        std::vector<int> got(world_size_, -1);
        uint64_t operation = 0;
        size_t done = 0;
        for (int peer = 0; peer < world_size_; ++peer) {
          if (peer == rank) continue;
          transport.PostReceive(peer, 16, std::as_writable_bytes(std::span(&got[peer], 1)), {.operation = operation++});
          transport.PostSend(peer, 16, std::as_bytes(std::span(&rank, 1)), {.operation = operation++});
        }
        EXPECT_TRUE(Until([&] { return done == operation; },
                          [&] {
                            std::vector<Transport::Token> completed;
                            EXPECT_EQ(transport.Poll(completed), absl::OkStatus());
                            done += completed.size();
                          }));
        for (int peer = 0; peer < world_size_; ++peer) EXPECT_EQ(got[peer], peer == rank ? -1 : peer);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static std::optional<TcpListener> Listen() {
    auto listener = TcpListener::Listen("127.0.0.1:0");
    CHECK_OK(listener);
    return *std::move(listener);
  }

  const int world_size_;
  std::optional<TcpListener> listener_;
  const std::string address_;
  std::vector<Joined> results_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::string> said_;
};

// A port of loopback at which no one listens. As long as `holder` is open, no other process gets it.
struct ReservedAddress {
  ReservedAddress() : holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(place);
    const int yes = 1;
    // As the listener does, which may therefore have the port all the same.
    CHECK(setsockopt(holder.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    CHECK(bind(holder.fd(), reinterpret_cast<sockaddr*>(&place), length) == 0);
    CHECK(getsockname(holder.fd(), reinterpret_cast<sockaddr*>(&place), &length) == 0);
    text = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  }
  Socket holder;
  std::string text;
};

inline Socket Dial(const std::string& address) {
  DialResult dialled = std::move(DialAll({&address, 1}, absl::Seconds(10)).front());
  CHECK_GE(dialled.socket.fd(), 0) << dialled.error;
  return std::move(dialled.socket);
}

// A rank that the test plays itself: it has proved itself to rank 0, which may have refused it.
class BareRank {
 public:
  BareRank(const std::string& rendezvous, const TcpHello& hello) : dialer_(Dial(rendezvous), hello, kToken) {}

  absl::Status AwaitWelcome() {
    absl::StatusOr<bool> welcome = false;
    Until([&] { return !welcome.ok() || *welcome; }, [&] { welcome = dialer_.Advance(); });
    return welcome.ok() && !*welcome ? absl::DeadlineExceededError("no answer") : welcome.status();
  }
  bool AwaitTable() {
    absl::StatusOr<std::optional<TcpFrame>> frame = std::optional<TcpFrame>();
    const bool has_come =
        Until([&] { return frame.ok() && frame->has_value() && (*frame)->kind == TcpFrameKind::kTable; },
              [&] { frame = dialer_.connection().Receive(kTcpTableBytesMax); });
    if (has_come) table_ = absl::StrSplit((*frame)->payload, '\n');
    return has_come;
  }
  // After AwaitTable: the addresses of the ranks.
  const std::vector<std::string>& table() const { return table_; }
  void Send(TcpFrameKind kind) { dialer_.connection().Send(kind, ""); }
  // The channel for the bytes after the handshake.
  TcpChannel TakeChannel() { return dialer_.connection().TakeChannel(); }

 private:
  TcpDialer dialer_;
  std::vector<std::string> table_;
};

inline TcpHello HelloOf(int rank, int world_size) {
  return {.purpose = TcpHello::Purpose::kRegister,
          .rank = rank,
          .to_rank = 0,
          .world_size = world_size,
          .run_id = "run 12",
          .address = "127.0.0.1:9"};
}

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_JOB_H_
