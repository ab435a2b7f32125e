#include "server/door/connection_acceptor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>  // not netinet/tcp.h, whose tcp_info ends before tcpi_bytes_received
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/network/address.h"
#include "common/network/congestion_control.h"

namespace starring {
namespace {

// epoll returns 64 bits of ours with each event: a connection's id, or, with this bit, the number of another
// descriptor.
constexpr uint64_t kDescriptorBit = uint64_t{1} << 63;
// Connections that wait in the kernel to be accepted. The kernel lowers the number to net.core.somaxconn.
constexpr int kBacklog = 1024;
// Without descriptors or kernel memory nothing can be accepted, yet the listener stays readable. Without a pause the
// thread would spin.
constexpr std::chrono::milliseconds kResourcePause(10);
// How often strangers are looked at: while one of them sends, and while none does.
constexpr std::chrono::milliseconds kBusyPeriod(5);
constexpr std::chrono::milliseconds kIdlePeriod(100);
// gRPC closes a connection within milliseconds after it was cut. If it needs longer it is overloaded, so no other one
// is cut meanwhile. The bound is for a connection that gRPC never closes.
constexpr std::chrono::seconds kCloseTimeMax(10);
// gRPC sets this value, its keepalive's timeout, on connections that it accepts itself, but not on those that are
// handed to it.
constexpr int kUserTimeoutMs = 20'000;

int64_t BytesReceived(int fd) {
  // The kernel counts what has arrived, whether gRPC has read it or not.
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

// Whether something has arrived that gRPC has not read.
bool HasUnread(int fd) {
  int bytes = 0;
  return ioctl(fd, FIONREAD, &bytes) == 0 && bytes > 0;
}

// The inode of an open descriptor's file; 0: the descriptor is closed. Asked by path, because gRPC may at any time
// close the descriptor or open another file under its number: fstat would be a race, and ThreadSanitizer reports it.
uint64_t InodeOf(int fd) {
  struct stat facts = {};
  return stat(absl::StrCat("/proc/self/fd/", fd).c_str(), &facts) == 0 ? facts.st_ino : 0;
}

// Whether the peer may still send. A client that has closed a new connection needs no seat.
bool IsPeerThere(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  constexpr int kEstablished = 1;  // TCP_ESTABLISHED of netinet/tcp.h
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == kEstablished;
}

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(const Options& options) {
  constexpr std::chrono::milliseconds kPause(100);
  ASSIGN_OR_RETURN(const HostPort wanted, ParseHostPort(options.listen));
  const Clock::time_point end = Clock::now() + options.patience;
  for (bool has_said = false;; has_said = true) {
    std::unique_ptr<ConnectionAcceptor> acceptor;
    const auto listen_at = [&](int port) {
      acceptor.reset(new ConnectionAcceptor(options.members_max));
      const absl::Status status = acceptor->Open(options.listen, {.host = wanted.host, .port = port});
      return acceptor->is_taken_ ? absl::AlreadyExistsError(status.message()) : status;
    };
    const absl::Status status = wanted.port == 0 ? ListenInRange(options.ports, listen_at) : listen_at(wanted.port);
    if (status.ok()) return acceptor;
    if (!absl::IsAlreadyExists(status)) return status;
    if (Clock::now() >= end) return absl::InvalidArgumentError(status.message());
    if (!has_said && options.say != nullptr) {
      options.say(absl::StrCat("another program has ", options.listen, ": waiting for it, ",
                               options.patience.count() / 1000, " s at most"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status ConnectionAcceptor::Open(const std::string& address, const HostPort& wanted) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || stop_ < 0) return absl::ErrnoToStatus(errno, "cannot watch connections");

  const addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  // Users write 0.0.0.0 for every address of the machine, those of IPv6 included.
  const std::string host = IsAnyHost(wanted.host) ? "::" : wanted.host;
  absl::Status status;
  int port = wanted.port;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    status = absl::InvalidArgumentError(gai_strerror(error));
  } else {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      const absl::Status added = AddListener(one->ai_addr, one->ai_addrlen, &port);
      // One of a host's addresses may be another machine's, which is fine if others can be listened on. A port that is
      // taken on one of them is not: workers that connect there would reach another program.
      if (!added.ok() && (status.ok() || absl::IsAlreadyExists(added))) status = added;
    }
    freeaddrinfo(found);
  }
  if (listeners_.empty() && wanted.host == "0.0.0.0") {  // a machine without IPv6
    sockaddr_in any = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {INADDR_ANY}, .sin_zero = {}};
    status = AddListener(&any, sizeof(any), &port);
  }
  is_taken_ = absl::IsAlreadyExists(status);
  if (listeners_.empty() || is_taken_) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", std::string(status.message()),
                                                   ": is the port taken, or is the host not this machine's? "
                                                   "port 0 takes a free one"));
  }
  address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return absl::OkStatus();
}

// A port of 0 becomes the one that was bound, so that the host's next address gets the same.
absl::Status ConnectionAcceptor::AddListener(const void* socket_address, unsigned length, int* port) {
  sockaddr_storage address = {};
  CHECK_LE(length, sizeof(address));
  memcpy(&address, socket_address, length);
  const auto number = htons(static_cast<uint16_t>(*port));
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = number;
  } else if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_port = number;
  } else {
    return absl::InvalidArgumentError("neither IPv4 nor IPv6");
  }
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // not REUSEPORT: a second server must not share the port silently
  if (address.ss_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  AvoidBbr(fd);  // what it accepts inherits that
  auto* const bound = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, bound, length) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    // ErrnoToStatus would give an address of another machine (EADDRNOTAVAIL) the code of a port that is taken.
    if (error == EADDRINUSE) return absl::AlreadyExistsError(strerror(error));
    return absl::UnavailableError(absl::StrCat("bind: ", strerror(error)));
  }
  socklen_t bound_length = sizeof(address);
  CHECK(getsockname(fd, bound, &bound_length) == 0);
  *port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(address).sin_port);
  listeners_.push_back(fd);
  return absl::OkStatus();
}

void ConnectionAcceptor::Stop() {
  if (!thread_.joinable()) return;
  // This wakes the thread from epoll_wait.
  const uint64_t one = 1;
  CHECK(write(stop_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

ConnectionAcceptor::~ConnectionAcceptor() {
  Stop();
  for (const int fd : listeners_) close(fd);
  for (const auto& [id, connection] : connections_) close(connection.fd);
  if (waiting_fd_ >= 0) close(waiting_fd_);
  if (epoll_ >= 0) close(epoll_);
  if (stop_ >= 0) close(stop_);
}

void ConnectionAcceptor::Watch(int fd, int operation, uint32_t events) const {
  epoll_event event = {.events = events, .data = {.u64 = kDescriptorBit | static_cast<uint64_t>(fd)}};
  CHECK(epoll_ctl(epoll_, operation, fd, &event) == 0) << strerror(errno);
}

void ConnectionAcceptor::SetSeatTime(std::chrono::milliseconds seat_time) {
  const MutexLock lock(mutex_);
  seat_time_ = seat_time;
}

void ConnectionAcceptor::Start(int connections_max, std::function<void(int fd)> hand_over) {
  CHECK(!thread_.joinable()) << "Start is called once";
  SetLimit(connections_max);
  hand_over_ = std::move(hand_over);
  Watch(stop_, EPOLL_CTL_ADD, EPOLLIN);
  for (const int fd : listeners_) Watch(fd, EPOLL_CTL_ADD, EPOLLIN);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionAcceptor::SetLimit(int connections_max) {
  CHECK_GE(connections_max, 1);
  const MutexLock lock(mutex_);
  connections_max_ = connections_max;
  while (open_count_ > connections_max_ && CutOldestStranger()) {
  }
}

void ConnectionAcceptor::Run() {
  while (true) {
    std::array<epoll_event, 64> events;
    int wait_ms = CheckStrangersMs();
    // A seat may become free without an event: Keep is called by another thread, and gRPC closes its own descriptor.
    if (waiting_fd_ >= 0) wait_ms = static_cast<int>(kBusyPeriod.count());
    const int count = epoll_wait(epoll_, events.data(), events.size(), wait_ms);
    CHECK(count >= 0 || errno == EINTR) << strerror(errno);
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if ((id & kDescriptorBit) == 0) {
        OnConnectionEvent(id, events[i].events);
      } else if (const int fd = static_cast<int>(id & ~kDescriptorBit); fd == stop_) {
        return;
      } else if (waiting_fd_ < 0) {
        Accept(fd);
      }
    }
    if (waiting_fd_ >= 0) ServeWaiting();
  }
}

// There is no event for data that gRPC reads first, so events alone miss a part of what strangers send. Therefore they
// are looked at from time to time as well, and often while one of them sends.
int ConnectionAcceptor::CheckStrangersMs() {
  const MutexLock lock(mutex_);
  if (strangers_.empty()) return -1;
  const Clock::time_point now = Clock::now();
  if (now >= check_at_) {
    bool is_busy = false;
    // The ids are copied, because a cut changes the set.
    const std::vector<uint64_t> ids(strangers_.begin(), strangers_.end());
    for (const uint64_t id : ids) is_busy |= CheckStranger(id);
    check_at_ = now + (is_busy ? kBusyPeriod : kIdlePeriod);
  }
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(check_at_ - now).count());
}

bool ConnectionAcceptor::CheckStranger(uint64_t id) {
  // A stranger's id leaves strangers_ before its entry goes, so the entry is there.
  Connection& connection = connections_[id];
  const int64_t bytes = BytesReceived(connection.fd);
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - connection.accepted);
  if (bytes > kStrangerBytesMax + age.count() * kStrangerBytesPerSecond) Cut(id);
  return std::exchange(connection.bytes_received, bytes) != bytes;
}

void ConnectionAcceptor::Accept(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) CutForResources();
    return;  // other errors: the peer is gone already
  }
  // While this connection waits for a seat, no other is accepted. The others wait in the kernel, which bounds their
  // number (kBacklog).
  waiting_fd_ = fd;
  for (const int one : listeners_) Watch(one, EPOLL_CTL_MOD, 0);
}

void ConnectionAcceptor::CutForResources() {
  {
    const MutexLock lock(mutex_);
    CutOldestStranger();
  }
  std::this_thread::sleep_for(kResourcePause);
}

void ConnectionAcceptor::ServeWaiting() {
  int fd_to_hand_over = -1;
  if (IsPeerThere(waiting_fd_)) {
    const MutexLock lock(mutex_);
    if (HasSeat()) {
      if (Seat(waiting_fd_)) fd_to_hand_over = waiting_fd_;
    } else if (!strangers_.empty() || !leaving_.empty()) {
      CutIfDue();
      return;
    }
  }
  if (fd_to_hand_over >= 0) {
    // The seat was taken first, since gRPC may report the connection's first request at once, on another thread. The
    // mutex is not held while gRPC takes the socket.
    hand_over_(fd_to_hand_over);
  } else {
    close(waiting_fd_);  // the peer is gone already, or workers have all connections
  }
  waiting_fd_ = -1;
  for (const int one : listeners_) Watch(one, EPOLL_CTL_MOD, EPOLLIN);
}

void ConnectionAcceptor::CutIfDue() {
  constexpr std::chrono::milliseconds kLifeMin(kStrangerLifeMinMs);
  constexpr std::chrono::milliseconds kUnreadLifeMax(kStrangerUnreadLifeMaxMs);
  const Clock::time_point now = Clock::now();
  const auto time = std::max(kLifeMin, seat_time_);
  const auto due = std::ranges::find_if(strangers_, [&](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Connection& connection = connections_[id];
    if (now - connection.accepted < time) return false;
    if (now - connection.accepted >= kUnreadLifeMax) return true;
    if (HasUnread(connection.fd)) connection.last_unread = now;
    return now - connection.last_unread >= kLifeMin;
  });
  if (due == strangers_.end()) return;
  const bool is_one_being_closed =
      std::any_of(leaving_.begin(), leaving_.end(), [&](const Leaving& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return now - one.accepted >= seat_time_ && now - one.left < kCloseTimeMax;
      });
  if (!is_one_being_closed) Cut(*due);
}

bool ConnectionAcceptor::HasSeat() {
  std::erase_if(leaving_, [this, now = Clock::now()](const Leaving& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A seat is free when its time is over and gRPC's descriptor is closed or belongs to another file.
    return now - one.accepted >= seat_time_ && InodeOf(one.handed_over_fd) != one.inode;
  });
  return open_count_ < connections_max_ && std::ssize(strangers_) + std::ssize(leaving_) < kStrangerConnectionsMax;
}

bool ConnectionAcceptor::Seat(int fd) {
  std::string peer = PeerNameOfSocket(fd);
  if (peer.empty()) return false;  // it is closed again; handed over, it would cause a line in gRPC's log
  // The duplicate is made before gRPC owns the socket and may close it. It keeps the socket itself alive, so that
  // cutting and counting always mean this connection.
  const int watched = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (watched < 0) return false;
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  const uint64_t id = next_id_++;
  connections_[id] = {
      .fd = watched, .handed_over_fd = fd, .inode = InodeOf(fd), .peer = std::move(peer), .accepted = Clock::now()};
  strangers_.insert(id);
  ++open_count_;
  // Only edges are reported: gRPC reads the data, not this thread, and level-triggered events would come until it does.
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {.u64 = id}};
  CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, watched, &event) == 0) << strerror(errno);
  return true;
}

bool ConnectionAcceptor::CutOldestStranger() {
  if (strangers_.empty()) return false;
  // Ids ascend, so the first is that of the oldest connection.
  Cut(*strangers_.begin());
  return true;
}

// Shuts the socket down and does not close it: gRPC uses the same socket by its own descriptor. gRPC sees the end of
// the stream and closes its descriptor; the event of that closes our duplicate (OnConnectionEvent).
void ConnectionAcceptor::Cut(uint64_t id) {
  Leave(id);
  shutdown(connections_[id].fd, SHUT_RDWR);
}

void ConnectionAcceptor::Leave(uint64_t id) {
  const Connection& connection = connections_[id];
  strangers_.erase(id);
  --open_count_;
  leaving_.push_back({.handed_over_fd = connection.handed_over_fd,
                      .inode = connection.inode,
                      .accepted = connection.accepted,
                      .left = Clock::now()});
}

void ConnectionAcceptor::OnConnectionEvent(uint64_t id, uint32_t events) {
  const MutexLock lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  const bool is_stranger = strangers_.contains(id);
  if ((events & EPOLLHUP) != 0) {  // both directions are shut down, as gRPC does before it closes
    if (is_stranger && !connection.heard && BytesReceived(connection.fd) > 0) {
      // It has sent something, and gRPC has ended it before a request: most likely TLS on one side only.
      ++unheard_.count;
      unheard_.last_peer = connection.peer;
    }
    // A connection that was cut is neither a stranger nor kept: Leave has counted it already.
    if (is_stranger) Leave(id);
    if (connection.kept) --(connection.is_member ? member_count_ : open_count_);
    close(connection.fd);
    connections_.erase(found);
  } else if (is_stranger) {
    CheckStranger(id);
  }
}

std::map<uint64_t, ConnectionAcceptor::Connection>::iterator ConnectionAcceptor::Find(absl::string_view peer) {
  const std::string name = PeerNameOfUri(peer);
  // The search begins with the newest. A name is an address and a port, which a client's system may use again while an
  // older connection is being closed here.
  const auto found = std::find_if(connections_.rbegin(), connections_.rend(),
                                  [&](const auto& entry) { return entry.second.peer == name; });
  return found == connections_.rend() ? connections_.end() : std::prev(found.base());
}

void ConnectionAcceptor::Keep(absl::string_view peer) {
  const MutexLock lock(mutex_);
  KeepStranger(peer);
}

void ConnectionAcceptor::KeepMember(absl::string_view peer) {
  const MutexLock lock(mutex_);
  // Without a secret everyone who connects is a member.
  if (member_count_ >= members_max_) return;
  Connection* const connection = KeepStranger(peer);
  if (connection == nullptr) return;
  connection->is_member = true;
  --open_count_;
  ++member_count_;
}

int ConnectionAcceptor::member_count() const {
  const MutexLock lock(mutex_);
  return member_count_;
}

ConnectionAcceptor::Connection* ConnectionAcceptor::KeepStranger(absl::string_view peer) {
  const auto found = Find(peer);
  if (found == connections_.end() || strangers_.erase(found->first) == 0) return nullptr;  // kept, or being cut
  found->second.kept = true;
  // From now on there are no events for data: an exchange must not wake this thread with every segment.
  epoll_event event = {.events = EPOLLET, .data = {.u64 = found->first}};
  epoll_ctl(epoll_, EPOLL_CTL_MOD, found->second.fd, &event);
  return &found->second;
}

void ConnectionAcceptor::CutStranger(absl::string_view peer) {
  const MutexLock lock(mutex_);
  const auto found = Find(peer);
  if (found != connections_.end() && strangers_.contains(found->first)) Cut(found->first);
}

void ConnectionAcceptor::Heard(absl::string_view peer) {
  const MutexLock lock(mutex_);
  if (const auto found = Find(peer); found != connections_.end()) found->second.heard = true;
}

ConnectionAcceptor::Unheard ConnectionAcceptor::unheard() const {
  const MutexLock lock(mutex_);
  return unheard_;
}

}  // namespace starring
