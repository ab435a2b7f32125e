// Listens and accepts connections for a gRPC server, at most so many at a time: gRPC 1.51 takes all that come.
//
// A connection is *kept* once the server knows that it is a worker's. The others, strangers and workers that have just
// connected, are bounded: over the limit the oldest of them is cut, and so is one that sends more than
// kStrangerBytesMax (plus kStrangerBytesPerSecond for its age). Kept connections are never cut here.
//
// A connection costs two descriptors: gRPC's own, and a duplicate by which it is watched and cut.
//
// Thread safety: any thread may call any method. An own thread accepts.
#ifndef STARRING_SERVER_CONNECTION_ACCEPTOR_H_
#define STARRING_SERVER_CONNECTION_ACCEPTOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starring {

class ConnectionAcceptor {
 public:
  // `address` is host:port; port 0 takes a free one, the same on every address of the host. InvalidArgument, quoting
  // it, if it is no address or cannot be listened on. Connections wait in the kernel until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const std::string& address);

  ~ConnectionAcceptor();

  // host:port with the port that was bound.
  const std::string& address() const { return address_; }

  // Called once. `hand_over` gets every accepted, non-blocking socket on the acceptor's own thread and owns it.
  void Start(int connections_max, std::function<void(int fd)> hand_over);

  // Accepts no more. What was handed over lives on.
  void Stop();

  // Cuts the oldest strangers that are over it.
  void SetLimit(int connections_max);

  // `peer` as gRPC's ServerContext::peer() says it. No effect on an unknown one.
  void Keep(absl::string_view peer);

  // A request came from `peer`, whoever it is. No effect on an unknown one.
  void Heard(absl::string_view peer);

  // Connections that sent something and were ended by gRPC before any request came: their peer speaks no HTTP/2, or
  // one of the two sides has TLS, or one does not trust the other.
  struct Unheard {
    int64_t count = 0;
    std::string last_peer;
  };
  Unheard unheard() const;

  int open_count() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int fd = -1;  // the duplicate
    std::string peer;
    Clock::time_point accepted;
    bool kept = false;
    bool heard = false;
    int64_t bytes_received = 0;  // when it was last looked at
  };

  ConnectionAcceptor() = default;
  absl::Status Open(const std::string& address);
  absl::Status AddListener(const void* socket_address, unsigned length, int* port);
  void Run();
  void Accept(int listener);
  void OnConnectionEvent(uint64_t id, uint32_t events);
  // Cuts the strangers that send too much. Returns when to look again: -1, never, if there are none.
  int CheckStrangersMs();
  // Of a stranger: true if it has sent something since it was last looked at. May cut it.
  bool CheckStranger(uint64_t id);
  // Room for one more: false if all connections are kept.
  bool MakeRoom();
  // The newest connection of that name, as an older one may not have been closed yet; or the end.
  std::map<uint64_t, Connection>::iterator Find(absl::string_view peer);
  void Cut(uint64_t id);

  std::string address_;
  std::vector<int> listeners_;
  int epoll_ = -1;
  int stop_ = -1;  // an eventfd
  std::function<void(int fd)> hand_over_;
  std::thread thread_;
  Clock::time_point check_at_;  // of strangers

  // ---- Guarded by mutex_.
  mutable std::mutex mutex_;
  int connections_max_ = 0;
  uint64_t next_id_ = 0;
  std::map<uint64_t, Connection> connections_;  // by age: ids ascend
  std::set<uint64_t> strangers_;                // of these: neither kept nor cut
  Unheard unheard_;
  int open_count_ = 0;  // of those that are not cut
};

}  // namespace starring

#endif  // STARRING_SERVER_CONNECTION_ACCEPTOR_H_
