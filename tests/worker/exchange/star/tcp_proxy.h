// A TCP proxy on loopback that cuts connections: what stands between a worker and a server in the tests of broken
// networks.
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
  // Forwards what connects to address() to `target`, host:port with a numeric host. The kernel keeps so many bytes for
  // it that it has not read; 0: as many as it likes.
  explicit TcpProxy(const std::string& target, int receive_buffer_bytes = 0);
  ~TcpProxy();

  const std::string& address() const { return address_; }

  // Resets each connection after so many bytes in either direction, the first so many times; which is mostly in the
  // middle of a message.
  void CutEvery(int64_t bytes, int times);
  int cuts() const { return cuts_; }

  // Resets what is connected and refuses, or accepts again.
  enum class Door { kOpen, kShut };
  void Set(Door door);

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
  std::atomic<int64_t> generation_ = 0;  // of the door: connections of an older one are reset
  std::atomic<int64_t> cut_bytes_ = 0;
  std::atomic<int> cuts_left_ = 0;
  std::atomic<int> cuts_ = 0;

  std::mutex mutex_;
  std::vector<std::thread> forwarders_;  // guarded by mutex_
};

}  // namespace starring

#endif  // STARRING_TESTS_WORKER_EXCHANGE_STAR_TCP_PROXY_H_
