// The processes of bench/strangers/rendezvous.py: ranks that meet over TCP and end, and a stranger that floods them.
//
//   rendezvous_parts start HOST RANKS DEADLINE_S   prints the address at which rank 0 listens, waits for a line, starts
//                                                  all ranks, and prints "met SECONDS" or why they did not
//   rendezvous_parts hello RANKS                   prints a hello of such a rank, as a stranger records it
//   rendezvous_parts flood ADDRESS RATE SECONDS    opens so many connections a second, says on each what is on stdin,
//                                                  and prints how many it has opened; SIGTERM ends it sooner
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"

namespace starring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kRunId[] = "strangers";
// More open connections than a stranger has descriptors for would end the flood.
constexpr size_t kKept = 2000;
// The clock is read once for so many connections.
constexpr int kBurst = 40;

volatile sig_atomic_t is_stopped = 0;

// `start` and `hello` share the key, so a recorded hello is one of the job's.
std::string Key() { return std::string(32, 'k'); }

int Number(const char* text) {
  int number = 0;
  CHECK(absl::SimpleAtoi(text, &number)) << text;
  return number;
}

int Start(const std::string& host, int ranks, int deadline_s) {
  absl::StatusOr<TcpListener> listener = TcpListener::Listen(host + ":0");
  CHECK_OK(listener);
  const std::string address = listener->address();
  // Rank 0 is a child, which inherits the listener, so no other process can take the port in between.
  listener->KeepInChildren();
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  const Clock::time_point begin = Clock::now();
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    TcpRendezvousOptions options = {.rank = rank,
                                    .world_size = ranks,
                                    .rendezvous = address,
                                    .run_id = kRunId,
                                    .token = Key(),
                                    .join_deadline = absl::Seconds(deadline_s)};
    if (rank == 0) {
      options.listener = *std::move(listener);
    } else {
      const TcpListener other = *std::move(listener);  // this process's copy must not keep the port
    }
    const auto met = ConnectFullMesh(std::move(options));
    if (!met.ok()) std::printf("rank %d: %s\n", rank, std::string(met.status().message()).c_str());
    std::fflush(stdout);
    _exit(met.ok() ? 0 : 1);
  }
  // The parent's copy would keep the port open after rank 0 has ended.
  { const TcpListener other = *std::move(listener); }
  bool is_met = true;
  int status = 0;
  while (wait(&status) > 0) is_met = is_met && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (is_met) std::printf("met %.2f\n", std::chrono::duration<double>(Clock::now() - begin).count());
  return 0;
}

// Prints the hello of the rank that dials first. A stranger needs nothing else.
int Hello(int ranks) {
  const absl::StatusOr<TcpListener> listener = TcpListener::Listen("127.0.0.1:0");
  CHECK_OK(listener);
  const std::string address = listener->address();
  DialResult dialled = std::move(DialAll({&address, 1}, absl::Seconds(10)).front());
  const TcpDialer dialer(std::move(dialled.socket),
                         {.rank = 1, .to_rank = 0, .world_size = ranks, .run_id = kRunId, .address = "127.0.0.1:9"},
                         Key());
  pollfd polled = {.fd = listener->fd(), .events = POLLIN, .revents = 0};
  CHECK_EQ(poll(&polled, 1, 10'000), 1);
  const Socket heard(accept(listener->fd(), nullptr, nullptr));
  char bytes[4096];
  const ssize_t size = recv(heard.fd(), bytes, sizeof(bytes), 0);
  return size > 0 && fwrite(bytes, static_cast<size_t>(size), 1, stdout) == 1 ? 0 : 1;
}

int Flood(const std::string& address, int rate, int seconds) {
  signal(SIGTERM, [](int) { is_stopped = 1; });
  const std::string said{std::istreambuf_iterator<char>(std::cin), {}};
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const size_t kept_max = std::min<size_t>(kKept, limit.rlim_cur / 2);
  const absl::StatusOr<HostPort> place = ParseHostPort(address);
  CHECK_OK(place);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(place->port));
  to.sin_addr.s_addr = inet_addr(place->host.c_str());
  std::deque<Socket> kept;
  int64_t count = 0;
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + std::chrono::seconds(seconds);
  for (Clock::time_point now = begin; now < end && is_stopped == 0; now = Clock::now()) {
    const double due = std::chrono::duration<double>(now - begin).count() * rate;
    if (static_cast<double>(count) >= due) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      continue;
    }
    for (int i = 0; i < kBurst; ++i, ++count) {
      Socket one(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      // The results are ignored: a connection that is refused, or still being opened, counts as well.
      connect(one.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
      if (!said.empty()) send(one.fd(), said.data(), said.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      kept.push_back(std::move(one));
      if (kept.size() > kept_max) kept.pop_front();
    }
  }
  std::printf("%lld\n", static_cast<long long>(count));
  return 0;
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "start" && argc == 5)
    return starring::Start(argv[2], starring::Number(argv[3]), starring::Number(argv[4]));
  if (part == "hello" && argc == 3) return starring::Hello(starring::Number(argv[2]));
  if (part == "flood" && argc == 5)
    return starring::Flood(argv[2], starring::Number(argv[3]), starring::Number(argv[4]));
  std::fputs("rendezvous_parts: for bench/strangers/rendezvous.py\n", stderr);
  return 2;
}
