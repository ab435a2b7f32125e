// Lets other workers dial this one during a check, and keeps notes for them.
//
// A thread of its own accepts connections on every interface, at a port that the system chooses, and answers requests
// (peer_protocol.h). A connection that does not know the nonce is closed.
//
// Thread safety: any thread may call any method.
#ifndef STARRING_WORKER_CHECK_PEER_LISTENER_H_
#define STARRING_WORKER_CHECK_PEER_LISTENER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/check/peer_protocol.h"
#include "worker/check/tcp_dial.h"

namespace starring {

class PeerListener {
 public:
  // Fails with Internal if the system has no socket or port.
  static absl::StatusOr<std::unique_ptr<PeerListener>> Start();
  // Closes all connections.
  ~PeerListener();

  int port() const { return port_; }
  uint64_t nonce() const { return nonce_; }

  void Put(int rank, int stage, std::string text);
  std::optional<std::string> Get(int rank, int stage) const;

 private:
  struct Connection {
    Socket socket;
    std::string received;      // of the request that is being read
    size_t bytes_to_skip = 0;  // of kData
  };
  PeerListener(Socket socket, Socket waker, int port, uint64_t nonce);

  void Run();
  void Accept();
  // False: the connection is over.
  bool OnReadable(Connection& connection);
  bool AnswerComplete(Connection& connection);
  bool Answer(const Connection& connection, const std::optional<std::string>& note, bool is_get);

  const Socket socket_;
  const Socket waker_;  // an eventfd: readable when it is time to end
  const int port_;
  const uint64_t nonce_;
  std::vector<Connection> connections_;  // of the thread

  mutable Mutex mutex_;
  std::map<std::pair<int, int>, std::string> notes_ ABSL_GUARDED_BY(mutex_);  // by rank and stage
  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_PEER_LISTENER_H_
