// The TCP connection between two workers of a ring during a check: one listens, the other dials, measures the round
// trip and the bandwidth, and puts and gets notes.
//
// Both ends are the same program on the same kind of machine, so the messages are structs as they are in memory
// (peer_protocol). The listener's nonce, which the job's launcher carries to the other ranks, keeps all other
// programs out.
#ifndef STARRING_WORKER_CHECK_PEER_LINK_H_
#define STARRING_WORKER_CHECK_PEER_LINK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/network/dial.h"

namespace starring {

// The wire format. Only the two sources and their test look inside.
namespace peer_protocol {

inline constexpr uint64_t kMagic = 0x6b63656863727473;  // "strcheck"

enum class Word : uint32_t {
  kPing = 1,  // nothing follows; the answer has the clock
  kData = 2,  // `length` bytes follow and are ignored; answered when all have come
  kPut = 3,   // `length` bytes follow: the note of worker `rank` for `stage`
  kGet = 4,   // the answer has the note of worker `rank` for `stage`
};

struct Request {
  uint64_t magic = kMagic;
  uint64_t nonce = 0;  // the listener's
  Word word = Word::kPing;
  int32_t rank = 0;
  int32_t stage = 0;
  uint32_t length = 0;
};
static_assert(sizeof(Request) == 32);

struct Answer {
  uint64_t magic = kMagic;
  int64_t clock_us = 0;  // the listener's wall clock
  uint32_t found = 0;    // kGet: whether there is such a note
  uint32_t length = 0;   // of the note, which follows
};
static_assert(sizeof(Answer) == 24);

}  // namespace peer_protocol

// The quickest of several pings.
struct RoundTrip {
  double microseconds = 0;
  double clock_ahead_s = 0;  // the peer's wall clock less this host's, give or take half the round trip
};

// The end that dials.
//
// Thread safety: one thread.
class PeerLink {
 public:
  // `socket` is connected and non-blocking, `nonce` the listener's.
  PeerLink(Socket socket, uint64_t nonce) : socket_(std::move(socket)), nonce_(nonce) {}

  // Each fails with DeadlineExceeded if the peer has not answered at `end`, and with Unavailable if it closes the
  // connection: then another program listens there.
  absl::StatusOr<RoundTrip> MeasureRoundTrip(absl::Time end);
  // Bytes per second towards the peer. Sends for `seconds`, but no more than common/base/limits.h allows.
  absl::StatusOr<double> MeasureBandwidth(double seconds, absl::Time end);
  absl::Status Put(int rank, int stage, const std::string& text, absl::Time end);
  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage, absl::Time end);

 private:
  absl::Status Send(const void* data, size_t size, absl::Time end);
  absl::Status Receive(void* data, size_t size, absl::Time end);
  absl::StatusOr<peer_protocol::Answer> Ask(const peer_protocol::Request& request, const std::string& text,
                                            absl::Time end);
  absl::Status AwaitReady(short events, absl::Time end) const;

  Socket socket_;
  uint64_t nonce_;
};

// The end that is dialled. Its thread accepts connections on every interface, at a port that the system chooses,
// answers requests, and keeps notes. It closes a connection that does not know the nonce.
//
// Thread safety: any thread may call any method.
class PeerListener {
 public:
  // Internal if the system has no socket or port left.
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
    std::string received;      // the part of the current request that has arrived
    size_t bytes_to_skip = 0;  // the part of kData that has not arrived
  };
  PeerListener(Socket socket, Socket waker, int port, uint64_t nonce);

  void Run();
  void Accept();
  // These return false if the connection must be closed.
  [[nodiscard]] bool OnReadable(Connection& connection);
  [[nodiscard]] bool AnswerComplete(Connection& connection);
  [[nodiscard]] bool Answer(const Connection& connection, const std::optional<std::string>& note, bool is_get);

  const Socket socket_;
  const Socket waker_;  // an eventfd: readable when the thread must end
  const int port_;
  const uint64_t nonce_;
  std::vector<Connection> connections_;  // only the thread uses them

  mutable Mutex mutex_;
  std::map<std::pair<int, int>, std::string> notes_ ABSL_GUARDED_BY(mutex_);  // by rank and stage
  std::thread thread_;
};

}  // namespace starring

#endif  // STARRING_WORKER_CHECK_PEER_LINK_H_
