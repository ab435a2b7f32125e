// A TCP proxy on loopback between a worker and a server, which cuts their connections in tests of broken networks.
#ifndef STARRING_TESTS_WORKER_EXCHANGE_STAR_TCP_PROXY_H_
#define STARRING_TESTS_WORKER_EXCHANGE_STAR_TCP_PROXY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace starring {

class TcpProxy {
 public:
  // Forwards connections to address() to `target`, host:port with a numeric host. `receive_buffer_bytes`: how many
  // unread bytes the kernel keeps for the proxy; 0: the kernel decides.
  explicit TcpProxy(const std::string& target, int receive_buffer_bytes = 0);
  ~TcpProxy();

  const std::string& address() const { return address_; }

  // Resets the next `times` connections, each after `bytes` bytes in either direction, which is usually in the middle
  // of a message.
  void CutEvery(int64_t bytes, int times);
  int cuts() const { return cuts_; }

  // Describes the proxy's history, for the message of a test that failed.
  std::string Describe() const;

  // The bytes that clients have sent.
  int64_t bytes_from_clients() const { return bytes_from_clients_; }

  // Resets all connections and refuses new ones, or accepts them again.
  enum class Door { kOpen, kShut };
  void Set(Door door);

  // For connections that are open now: drops what the target sends, and resets a connection when its client sends the
  // next byte. gRPC sees this of a connection whose reset it has overlooked (common/wire/grpc_transport.cc).
  void LoseAnswers() { ++losses_; }

  // Stops forwarding without closing anything, as a dead machine does.
  void Freeze() { frozen_ = true; }

 private:
  void Accept();
  void Forward(int client);

  const std::string target_;
  std::string address_;
  int listener_ = -1;
  std::thread acceptor_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> frozen_ = false;
  std::atomic<bool> shut_ = false;
  std::atomic<int64_t> generation_ = 0;  // grows whenever the door is shut; connections of an older one are reset
  std::atomic<int64_t> losses_ = 0;      // grows with LoseAnswers, which concerns connections of an older one
  std::atomic<int64_t> cut_bytes_ = 0;
  std::atomic<int> cuts_left_ = 0;
  std::atomic<int> cuts_ = 0;
  std::atomic<int> accepted_ = 0;
  std::atomic<int> not_connected_ = 0;  // because the target did not take a connection
  std::atomic<int> connect_error_ = 0;  // the last one's errno
  std::atomic<int> closed_by_target_ = 0;
  std::atomic<int64_t> bytes_from_clients_ = 0;

  std::mutex mutex_;
  std::vector<std::thread> forwarders_;  // guarded by mutex_
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_STAR_TCP_PROXY_H_
