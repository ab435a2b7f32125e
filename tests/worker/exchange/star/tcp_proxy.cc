#include "tests/worker/exchange/star/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"

namespace starring {
namespace {

constexpr int kPollMs = 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// A reset, not an orderly end: bytes in flight are lost.
void Reset(int socket) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(socket);
}

bool WriteAll(int socket, const char* data, ssize_t size) {
  while (size > 0) {
    const ssize_t written = send(socket, data, size, MSG_NOSIGNAL);
    if (written <= 0) return false;
    data += written;
    size -= written;
  }
  return true;
}

}  // namespace

TcpProxy::TcpProxy(const std::string& target, int receive_buffer_bytes) : target_(target) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_GE(listener_, 0);
  sockaddr_in address = Loopback(0);
  CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  if (receive_buffer_bytes > 0) {  // accepted connections inherit it
    CHECK_EQ(setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes)), 0);
  }
  CHECK_EQ(listen(listener_, 64), 0);
  socklen_t length = sizeof(address);
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  acceptor_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  stopping_ = true;
  acceptor_.join();
  for (std::thread& forwarder : forwarders_) forwarder.join();
  close(listener_);
}

void TcpProxy::CutEvery(int64_t bytes, int times) {
  cut_bytes_ = bytes;
  cuts_left_ = times;
}

std::string TcpProxy::Describe() const {
  return "proxy of " + target_ + ": " + std::to_string(accepted_) + " connections, " + std::to_string(cuts_) +
         " cut, " + std::to_string(closed_by_target_) + " closed by the target, " + std::to_string(not_connected_) +
         " not connected to it (errno " + std::to_string(connect_error_) + ")";
}

void TcpProxy::Set(Door door) {
  shut_ = door == Door::kShut;
  ++generation_;
}

void TcpProxy::Accept() {
  while (!stopping_) {
    pollfd poll_listener{.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&poll_listener, 1, kPollMs) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    ++accepted_;
    if (shut_) {
      Reset(client);
      continue;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    forwarders_.emplace_back([this, client] { Forward(client); });
  }
}

void TcpProxy::Forward(int client) {
  const int64_t generation = generation_;
  const int64_t losses = losses_;
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(std::stoi(target_.substr(target_.rfind(':') + 1)));
  if (connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    connect_error_ = errno;
    ++not_connected_;
    Reset(client);
    close(server);
    return;
  }
  int64_t forwarded = 0;
  std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
  std::vector<char> buffer(64 << 10);
  bool alive = true;
  while (alive && !stopping_ && generation == generation_) {
    if (frozen_) {
      poll(nullptr, 0, kPollMs);
      continue;
    }
    if (poll(ends.data(), ends.size(), kPollMs) <= 0) continue;
    for (int i = 0; i < 2 && alive; ++i) {
      if (ends[i].revents == 0) continue;
      int64_t room = static_cast<int64_t>(buffer.size());
      if (cuts_left_ > 0 && cut_bytes_ > 0) room = std::min(room, cut_bytes_ - forwarded);
      const ssize_t got = room > 0 ? recv(ends[i].fd, buffer.data(), room, 0) : 0;
      if (i == 0 && got > 0) bytes_from_clients_ += got;
      if (i == 1 && room > 0 && got <= 0) ++closed_by_target_;
      const bool is_lost = losses != losses_;
      alive = got > 0 && (is_lost ? i == 1 : WriteAll(ends[1 - i].fd, buffer.data(), got));
      forwarded += got;
      if (cut_bytes_ > 0 && forwarded >= cut_bytes_ && cuts_left_-- > 0) {
        ++cuts_;
        alive = false;
      }
    }
  }
  Reset(client);
  Reset(server);
}

}  // namespace starring
