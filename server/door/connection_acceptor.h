// Listens and accepts connections for a gRPC server, and bounds their number, which gRPC 1.51 does not.
//
// A connection is *kept* once the server knows that it is a worker's. Kept connections are never cut here. Those of an
// elastic run's members stay through all its jobs, and are counted apart, up to Options::members_max. The others,
// strangers and workers that have just connected, share kStrangerConnectionsMax *seats*:
//   - A connection that is kept gives its seat back at once.
//   - A stranger's seat is taken until gRPC has closed the socket, so that gRPC never holds more of their connections
//     than there are seats. It is taken for the seat time at least, so that strangers who come and go slow a job
//     little.
//   - Without a free seat the next connection waits, and the oldest stranger is cut for it after kStrangerLifeMinMs: a
//     worker is not cut before it can say HELLO. Where gRPC is slow to read, that time begins when it has read, and
//     ends after kStrangerUnreadLifeMaxMs in all: a worker is not cut before its HELLO can be heard.
//   - A stranger that sends more than kStrangerBytesMax (plus kStrangerBytesPerSecond for its age) is cut.
//
// A connection costs two descriptors: gRPC's own, and a duplicate by which it is watched and cut.
//
// Thread safety: any thread may call any method. A thread of this object accepts.
#ifndef STARRING_SERVER_DOOR_CONNECTION_ACCEPTOR_H_
#define STARRING_SERVER_DOOR_CONNECTION_ACCEPTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/network/address.h"
#include "common/network/port_range.h"

namespace starring {

class ConnectionAcceptor {
 public:
  struct Options {
    std::string listen;  // host:port; port 0 takes a free one, of `ports`, the same on every address of the host
    PortRange ports = {};
    int members_max = kMemberConnectionsMax;
    // How long to wait for a port that another program has, and what says that this one waits.
    std::chrono::milliseconds patience{0};
    std::function<void(const std::string& line)> say = nullptr;
  };
  // InvalidArgument, quoting it, if `listen` is not an address or cannot be listened on. Connections wait in the kernel
  // until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const Options& options);

  ~ConnectionAcceptor();

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }

  // Called once. `hand_over` gets every accepted, non-blocking socket on the acceptor's own thread and owns it.
  // `connections_max` is for kept connections, without members', and strangers together.
  void Start(int connections_max, std::function<void(int fd)> hand_over);

  // Accepts no more connections. Those that were handed over stay open.
  void Stop();

  // Replaces Start's `connections_max`, and cuts the oldest strangers that exceed it.
  void SetLimit(int connections_max);

  // How long a stranger's seat is taken at least; zero at the start.
  void SetSeatTime(std::chrono::milliseconds seat_time);

  // The connection of `peer`, as ServerContext::peer() names it, is a worker's. No effect on an unknown peer.
  void Keep(absl::string_view peer);

  // The connection of `peer` is a member's. No effect if there are members_max, if it is kept already, or on an unknown
  // peer.
  void KeepMember(absl::string_view peer);
  int member_count() const;

  // Cuts `peer` if it is a stranger. No effect on an unknown peer.
  void CutStranger(absl::string_view peer);

  // A request came from `peer`, a stranger or a worker. No effect on an unknown peer.
  void Heard(absl::string_view peer);

  // Connections that sent something and that gRPC ended before a request arrived: the peer does not speak HTTP/2, or
  // only one side has TLS, or one side does not trust the other.
  struct Unheard {
    int64_t count = 0;
    std::string last_peer;
  };
  Unheard unheard() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int fd = -1;  // the duplicate
    int handed_over_fd = -1;
    uint64_t inode = 0;  // of the socket: shows whether handed_over_fd is still this socket
    std::string peer;
    Clock::time_point accepted;
    Clock::time_point last_unread;  // seen while another one waited for a seat
    bool kept = false;
    bool is_member = false;  // it is kept, too
    bool heard = false;
    int64_t bytes_received = 0;  // at the last look
  };
  // A stranger's connection that has ended or was cut, and whose seat is not free yet.
  struct Leaving {
    int handed_over_fd;
    uint64_t inode;
    Clock::time_point accepted;
    Clock::time_point left;
  };

  explicit ConnectionAcceptor(int members_max) : members_max_(members_max) {}
  // `wanted` is `address` with the port to listen at.
  absl::Status Open(const std::string& address, const HostPort& wanted);
  absl::Status AddListener(const void* socket_address, unsigned length, int* port);
  // Watches a descriptor other than a connection's.
  void Watch(int fd, int operation, uint32_t events) const;
  void Run();
  void Accept(int listener);
  // No descriptor or no kernel memory is left, so nothing can be accepted: cuts a stranger to get some, and pauses.
  void CutForResources();
  // Hands waiting_fd_ over if there is a seat, else tries to get one.
  void ServeWaiting();
  void OnConnectionEvent(uint64_t id, uint32_t events);
  // Cuts the strangers that send too much. Returns in how many milliseconds to look again; -1: there are none.
  int CheckStrangersMs();

  // Cuts stranger `id` if it sends too much. True if it has sent something since the last look.
  bool CheckStranger(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the seats of strangers that have left, then returns whether one is free.
  [[nodiscard]] bool HasSeat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the connection a seat. False if it is gone already, or if there is no descriptor to watch it by.
  [[nodiscard]] bool Seat(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cuts the oldest stranger that has had its time, if gRPC has closed those that were cut before.
  void CutIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False if there is no stranger.
  bool CutOldestStranger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Cut(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if `peer` is no stranger.
  Connection* KeepStranger(absl::string_view peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The newest connection of that name, or the end. An older one of the name may not have been closed yet.
  std::map<uint64_t, Connection>::iterator Find(absl::string_view peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int members_max_;
  std::string address_;
  std::vector<int> listeners_;
  bool is_taken_ = false;  // the port, by another program
  int epoll_ = -1;
  int stop_ = -1;  // an eventfd
  std::function<void(int fd)> hand_over_;
  std::thread thread_;
  int waiting_fd_ = -1;         // accepted, waits for a seat; no other is accepted meanwhile
  Clock::time_point check_at_;  // when strangers are looked at next

  mutable Mutex mutex_;
  int connections_max_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds seat_time_ ABSL_GUARDED_BY(mutex_){0};
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);  // by age: ids ascend
  std::set<uint64_t> strangers_ ABSL_GUARDED_BY(mutex_);                // those that are neither kept nor cut
  std::vector<Leaving> leaving_ ABSL_GUARDED_BY(mutex_);
  Unheard unheard_ ABSL_GUARDED_BY(mutex_);
  int open_count_ ABSL_GUARDED_BY(mutex_) = 0;  // connections that are not cut, without members'
  int member_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace starring

#endif  // STARRING_SERVER_DOOR_CONNECTION_ACCEPTOR_H_
