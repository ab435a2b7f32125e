#include "common/network/dial.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/steady_time.h"
#include "common/network/congestion_control.h"

namespace starring {
namespace {

// A name with more addresses belongs to a cluster and not to a server: the others are not dialled.
constexpr size_t kAddressesPerName = 4;

// How often HangUpAll looks.
constexpr absl::Duration kDeliveryPause = absl::Milliseconds(1);

struct ErrnoName {
  int number;
  const char* name;
};

// The names of all errors that a call for a socket, an epoll or a descriptor may give. The C library's own function,
// strerrorname_np, is of glibc 2.32, and libstarring.so also runs with 2.28.
#define STARRING_ERRNO(name) \
  ErrnoName { name, #name }
constexpr auto kErrnoNames = std::to_array({
    STARRING_ERRNO(EPERM),           STARRING_ERRNO(ENOENT),
    STARRING_ERRNO(EINTR),           STARRING_ERRNO(EIO),
    STARRING_ERRNO(ENXIO),           STARRING_ERRNO(EBADF),
    STARRING_ERRNO(EAGAIN),          STARRING_ERRNO(ENOMEM),
    STARRING_ERRNO(EACCES),          STARRING_ERRNO(EFAULT),
    STARRING_ERRNO(EBUSY),           STARRING_ERRNO(EEXIST),
    STARRING_ERRNO(ENODEV),          STARRING_ERRNO(EINVAL),
    STARRING_ERRNO(ENFILE),          STARRING_ERRNO(EMFILE),
    STARRING_ERRNO(ENOTTY),          STARRING_ERRNO(ENOSPC),
    STARRING_ERRNO(ESPIPE),          STARRING_ERRNO(EROFS),
    STARRING_ERRNO(EPIPE),           STARRING_ERRNO(ELOOP),
    STARRING_ERRNO(ENOSYS),          STARRING_ERRNO(EPROTO),
    STARRING_ERRNO(EOVERFLOW),       STARRING_ERRNO(ENOTSOCK),
    STARRING_ERRNO(EDESTADDRREQ),    STARRING_ERRNO(EMSGSIZE),
    STARRING_ERRNO(EPROTOTYPE),      STARRING_ERRNO(ENOPROTOOPT),
    STARRING_ERRNO(EPROTONOSUPPORT), STARRING_ERRNO(EOPNOTSUPP),
    STARRING_ERRNO(EAFNOSUPPORT),    STARRING_ERRNO(EADDRINUSE),
    STARRING_ERRNO(EADDRNOTAVAIL),   STARRING_ERRNO(ENETDOWN),
    STARRING_ERRNO(ENETUNREACH),     STARRING_ERRNO(ENETRESET),
    STARRING_ERRNO(ECONNABORTED),    STARRING_ERRNO(ECONNRESET),
    STARRING_ERRNO(ENOBUFS),         STARRING_ERRNO(EISCONN),
    STARRING_ERRNO(ENOTCONN),        STARRING_ERRNO(ETIMEDOUT),
    STARRING_ERRNO(ECONNREFUSED),    STARRING_ERRNO(EHOSTDOWN),
    STARRING_ERRNO(EHOSTUNREACH),    STARRING_ERRNO(EALREADY),
    STARRING_ERRNO(EINPROGRESS),
});
#undef STARRING_ERRNO

struct Place {
  sockaddr_storage address = {};
  socklen_t length = 0;
};

struct Resolution {
  std::vector<Place> places;
  std::string error;
  bool done = false;
};

// The last colon separates the port: an IPv6 address has others before it.
// `flags` is that of addrinfo.
void Resolve(const std::string& host_and_port, int flags, Resolution& resolution) {
  const size_t colon = host_and_port.rfind(':');
  std::string host = host_and_port.substr(0, colon);
  // "[::1]:7077" is how an IPv6 address is written with a port.
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : host_and_port.substr(colon + 1);
  addrinfo hints = {};
  hints.ai_flags = flags;
  // Without a type getaddrinfo returns each address once for each type of socket.
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) {
    resolution.error = absl::StrCat(host, ": ", absl::AsciiStrToLower(gai_strerror(code)));
    return;
  }
  for (const addrinfo* info = found; info != nullptr && resolution.places.size() < kAddressesPerName;
       info = info->ai_next) {
    Place place;
    place.length = info->ai_addrlen;
    memcpy(&place.address, info->ai_addr, info->ai_addrlen);
    resolution.places.push_back(place);
  }
  freeaddrinfo(found);
}

// getaddrinfo takes no deadline, so each name has a thread of its own. A thread that is still waiting at our deadline
// is left to end by itself; a shared_ptr keeps what it writes to.
struct Resolutions {
  Mutex mutex;
  ConditionVariable changed;
  std::vector<Resolution> by_name ABSL_GUARDED_BY(mutex);
  size_t open ABSL_GUARDED_BY(mutex) = 0;
};

std::vector<Resolution> ResolveAll(std::span<const std::string> names, absl::Time end) {
  std::vector<Resolution> numeric(names.size());
  size_t open = 0;
  // A numeric address needs no name service and no thread. A mesh of many ranks dials many of them.
  for (size_t i = 0; i < names.size(); ++i) {
    Resolve(names[i], AI_NUMERICHOST, numeric[i]);
    numeric[i].done = !numeric[i].places.empty();
    if (!numeric[i].done) ++open;
  }
  const auto shared = std::make_shared<Resolutions>();
  {
    const MutexLock lock(shared->mutex);
    shared->by_name = numeric;
    shared->open = open;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (numeric[i].done) continue;
    std::thread([shared, i, name = names[i]] {
      Resolution resolution;
      Resolve(name, 0, resolution);
      resolution.done = true;
      const MutexLock lock(shared->mutex);
      shared->by_name[i] = std::move(resolution);
      --shared->open;
      shared->changed.NotifyAll();
    }).detach();
  }
  const MutexLock lock(shared->mutex);
  // At the deadline, the names that are not resolved get an error below.
  shared->changed.WaitFor(shared->mutex, absl::ToChronoNanoseconds(end - SteadyNow()),
                          [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared->mutex) { return shared->open == 0; });
  // The result is a copy, because a thread that answers after the deadline still writes to the original.
  std::vector<Resolution> copy = shared->by_name;
  for (size_t i = 0; i < copy.size(); ++i) {
    if (!copy[i].done) copy[i].error = absl::StrCat(names[i], ": the name service does not answer");
  }
  return copy;
}

struct Attempt {
  size_t name = 0;
  Socket socket;
  bool open = false;
  int error_number = 0;
};

// Starts one connect without waiting for it. An attempt that is not open has ended, with an error or with a socket.
Attempt Begin(size_t name, const Place& place) {
  Attempt attempt;
  attempt.name = name;
  attempt.socket = Socket(socket(place.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (attempt.socket.fd() < 0) {
    attempt.error_number = errno;
    return attempt;
  }
  attempt.socket.CloseInChildren();
  // Nagle's algorithm would delay short messages, such as those that measure a round trip.
  const int one = 1;
  setsockopt(attempt.socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  AvoidBbr(attempt.socket.fd());
  if (connect(attempt.socket.fd(), reinterpret_cast<const sockaddr*>(&place.address), place.length) != 0 &&
      errno != EINPROGRESS) {
    attempt.error_number = errno;
    return attempt;
  }
  // The attempt is open even if connect has succeeded at once, as on loopback: poll then reports it in the first round.
  attempt.open = true;
  return attempt;
}

// The address from which the system dials. It tells which of the interfaces leads to the peer.
std::string LocalAddress(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  if (getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

// Dialling a free port of this host again and again succeeds one day: the kernel chooses that port for this end too,
// and connects the socket with itself.
bool IsConnectedWithItself(int fd) {
  sockaddr_storage own = {}, other = {};
  socklen_t own_length = sizeof(own), other_length = sizeof(other);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) == 0 && own_length == other_length &&
         memcmp(&own, &other, own_length) == 0;
}

void Settle(Attempt& attempt, DialResult& result) {
  // A connect without blocking reports its result here, after poll has said that there is one.
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  getsockopt(attempt.socket.fd(), SOL_SOCKET, SO_ERROR, &error_number, &length);
  attempt.open = false;
  if (error_number == 0 && IsConnectedWithItself(attempt.socket.fd())) error_number = ECONNREFUSED;
  attempt.error_number = error_number;
  // The first address of a name that answers wins. Other connections are closed with their attempts.
  if (error_number != 0 || result.socket.fd() >= 0) return;
  result.local_address = LocalAddress(attempt.socket.fd());
  result.socket = std::move(attempt.socket);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(Release());
}

int Socket::Release() {
  not_in_children_ = CloseOnFork();
  return std::exchange(fd_, -1);
}

void HangUp(const Socket& socket) {
  shutdown(socket.fd(), SHUT_WR);
  char dropped[4096];
  // The bound ends the loop if the other end sends for ever.
  for (int i = 0; i < 256; ++i) {
    const ssize_t got = recv(socket.fd(), dropped, sizeof(dropped), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EINTR)) return;
  }
}

bool IsDelivered(const Socket& socket) {
  int unacknowledged = 0;
  // The end of the output counts as a byte.
  if (ioctl(socket.fd(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged <= 1) return true;
  tcp_info info = {};
  socklen_t length = sizeof(info);
  return getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0 || info.tcpi_state == TCP_CLOSE;
}

void HangUpAll(std::vector<const Socket*> sockets, absl::Duration patience) {
  const absl::Time end = SteadyNow() + patience;
  while (true) {
    std::erase_if(sockets, [](const Socket* socket) {
      HangUp(*socket);
      return IsDelivered(*socket);
    });
    if (sockets.empty() || SteadyNow() >= end) return;
    absl::SleepFor(kDeliveryPause);  // no event tells of an acknowledgement
  }
}

std::string ErrnoText(int error_number) {
  std::array<char, 128> room;
  // The GNU function returns a text of its own, or one in `room`, and never null.
  const char* const description = strerror_r(error_number, room.data(), room.size());
  const auto* const name = std::ranges::find(kErrnoNames, error_number, &ErrnoName::number);
  return absl::StrCat(absl::AsciiStrToLower(description), " (",
                      name == kErrnoNames.end() ? absl::StrCat("errno ", error_number) : std::string(name->name), ")");
}

PendingDial::PendingDial(const std::string& address) {
  Resolution resolution;
  Resolve(address, AI_NUMERICHOST, resolution);
  failure_.error = resolution.error;
  if (resolution.places.empty()) return;
  Attempt attempt = Begin(0, resolution.places.front());
  if (attempt.open) {
    socket_ = std::move(attempt.socket);
    return;
  }
  failure_.error_number = attempt.error_number;
  failure_.error = ErrnoText(attempt.error_number);
}

std::optional<DialResult> PendingDial::Advance() {
  if (socket_.fd() < 0) return std::move(failure_);
  pollfd polled = {.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
  if (poll(&polled, 1, 0) <= 0) return std::nullopt;
  Attempt attempt{.socket = std::move(socket_), .open = true};
  DialResult result;
  Settle(attempt, result);
  if (result.socket.fd() < 0) {
    result.error_number = attempt.error_number;
    result.error = ErrnoText(attempt.error_number);
  }
  return result;
}

std::vector<DialResult> DialAll(std::span<const std::string> addresses, absl::Duration timeout) {
  // Resolving and dialling share one deadline: the header promises an end after `timeout`. Resolving may use only half
  // of the time. One name that the name service does not answer would otherwise use all of it, and every other address
  // would be reported as silent, with advice about firewalls.
  const absl::Time begin = SteadyNow();
  const absl::Time end = begin + timeout;
  const std::vector<Resolution> resolved = ResolveAll(addresses, begin + timeout / 2);
  std::vector<DialResult> results(addresses.size());
  std::vector<Attempt> attempts;
  for (size_t i = 0; i < addresses.size(); ++i) {
    results[i].error = resolved[i].error;
    for (const Place& place : resolved[i].places) attempts.push_back(Begin(i, place));
  }
  const auto is_open = [](const Attempt& attempt) { return attempt.open; };
  while (std::any_of(attempts.begin(), attempts.end(), is_open) && SteadyNow() < end) {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : attempts) {
      // poll ignores an entry with -1, so that `polled` and `attempts` keep one index.
      polled.push_back({.fd = attempt.open ? attempt.socket.fd() : -1, .events = POLLOUT, .revents = 0});
    }
    // The wait is at least 1 ms: with 0 the last part of a millisecond would be spent in a busy loop.
    const int64_t wait_ms = std::max<int64_t>(1, absl::ToInt64Milliseconds(end - SteadyNow()));
    // The loop's condition decides after a timeout and after a signal alike.
    if (poll(polled.data(), polled.size(), static_cast<int>(wait_ms)) <= 0) continue;
    for (size_t i = 0; i < attempts.size(); ++i) {
      if (attempts[i].open && polled[i].revents != 0) Settle(attempts[i], results[attempts[i].name]);
    }
  }
  for (const Attempt& attempt : attempts) {
    DialResult& result = results[attempt.name];
    // One address that answers is enough, and the first error describes the name well enough.
    if (result.socket.fd() >= 0 || result.error_number != 0) continue;
    // The system itself would try for minutes. An attempt that is still open has not been answered in our time.
    result.error_number = attempt.open ? ETIMEDOUT : attempt.error_number;
    result.error = ErrnoText(result.error_number);
  }
  return results;
}

}  // namespace starring
