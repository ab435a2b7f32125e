// The transport over TCP: two connections to every other rank, one for messages and one for notices.
//
// Why two. Messages on one connection arrive in the order in which they were sent. A notice (a rank is stuck, a rank
// gives up) that waits for megabytes on a slow network would come too late to explain the delay, so notices have a
// connection with a send and a receive buffer of its own.
//
// Every stream is always read. The message at its head may belong to a block for which this rank has posted no receive,
// while the next one is that for which this rank waits: not reading would be a deadlock. Messages without a receive are
// kept in memory, up to what a correct peer can send (TcpUnexpectedBytesMax); more is an error that names the peer.
// Notices need no bound of that kind: with many of them untaken, their connection is not read, which holds up nothing
// else. For a rank that reads no notices, few are queued, and further notices are dropped.
//
// A peer has *left* when the last word (tcp_stream.h) of its messages has arrived; that is an error only if something
// is still wanted from it. It is *lost* if a connection ends without that word. The error waits, for kTcpLossGraceMs at
// most, until both connections have ended, and until the notices that have arrived are taken, because they say why.
//
// The rendezvous authenticates the ranks that opened the connections. Without --tls these are neither encrypted nor
// checked beyond TCP's checksum.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_channel.h"
#include "common/transport/tcp/tcp_stream.h"
#include "common/transport/transport.h"

namespace starring {

// The bytes that one rank of a correct job can send to another before the other posts the receives: the blocks of the
// ring that both have in flight, reduced and gathered, and control messages. With --micro_batches `leaf_owners` has the
// rank of each leaf (common/job/leaf_shares.h): a rank sends one message for each node of its share.
int64_t TcpUnexpectedBytesMax(int world_size, std::span<const int> leaf_owners = {});

// After how many milliseconds without an acknowledgement a connection is lost: those of the exchange's deadline, within
// kTcpSilenceMsMin and kTcpSilenceMsMax.
int TcpSilenceMs(absl::Duration exchange_deadline);

class TcpTransport final : public Transport {
 public:
  // The connections to one rank.
  struct Link {
    TcpChannel messages;
    TcpChannel notices;
    std::string address;  // of the other end, for errors
  };
  struct Options {
    int rank = 0;
    std::vector<Link> links;            // by rank; that of `rank` itself is empty
    int server_count = 0;               // the last ranks of the world, which errors then call servers
    int64_t unexpected_bytes_max = 0;   // 0: TcpUnexpectedBytesMax
    int silence_ms = kTcpSilenceMsMin;  // see TcpSilenceMs
    int loss_grace_ms = kTcpLossGraceMs;
    int last_notice_ms = kTcpLastNoticeMs;
    int last_words_ms = kTcpLastWordsMs;
  };
  // Internal if the system has no descriptors left.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(Options options);

  // Tells the peers that this rank has ended its part in order, unless there was an error. A peer to which a message
  // has not been sent as a whole is not told so. Waits, for last_words_ms at most, until the notices that were sent
  // have arrived: the last one may be this rank's reason.
  ~TcpTransport() override;

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(peers_.size()); }
  int tag_max() const override { return std::numeric_limits<int>::max(); }
  bool loses_single_links() const override { return true; }

  // A notice for a rank that has left or takes no notices is dropped, and completes. REQUIRES: `peer` is another rank;
  // a receive has no kNoticeTag.
  void PostSend(int peer, int tag, std::span<const std::byte> data, Token token) override;
  void PostReceive(int peer, int tag, std::span<std::byte> data, Token token) override;
  void NeedPeer(int peer) override;
  absl::Status Poll(std::vector<Token>& completed) override;
  void Wait(std::chrono::microseconds longest) override;
  void Wake() override;
  // REQUIRES: `tag` is kNoticeTag, and `data` has kAbortNoticeBytesMax bytes.
  [[nodiscard]] std::optional<Received> TryReceive(int tag, std::span<std::byte> data) override;

 private:
  using Clock = std::chrono::steady_clock;
  class Connection;

  struct Receive {
    int tag = 0;
    std::span<std::byte> data;
    Token token;
  };
  // A message without a receive: complete, or the one that is arriving.
  struct Unexpected {
    int tag = 0;
    std::unique_ptr<std::byte[]> data;
    int64_t length = 0;
    bool complete = false;

    int64_t cost() const { return length + kTcpKeptMessageBytes; }
  };
  struct Notice {
    int peer = 0;
    std::vector<std::byte> data;
  };
  struct Loss {
    absl::Status why;
    Clock::time_point since;
  };
  struct Peer {
    std::string name;  // "rank 2 (10.0.0.3:4711)"
    std::unique_ptr<Connection> messages;
    std::unique_ptr<Connection> notices;
    std::deque<Receive> receives;      // posted, not yet matched; oldest first
    std::list<Unexpected> unexpected;  // oldest first; the one that is arriving, if any, is the last
    int64_t unexpected_bytes = 0;
    int notice_count = 0;  // in notices_
    bool has_left = false;
    bool is_wanted = false;  // an operation needs it that cannot complete any more
    std::optional<Loss> loss;
  };

  explicit TcpTransport(const Options& options);

  enum class Purpose { kMessages, kNotices };
  absl::Status AddConnection(int peer, Purpose purpose, TcpChannel channel, int silence_ms);
  void Serve(Connection& connection, uint32_t events, int64_t share);
  void Send(Connection& connection, int64_t budget);
  void DropUnsent(Connection& connection);
  void Watch(Connection& connection);
  void Complete(Token token);
  void Raise(std::atomic<bool>& flag);
  void Sleep(std::chrono::microseconds longest);

  // Called by a Connection when it reports arriving data.
  absl::StatusOr<std::byte*> BeginMessage(Connection& connection, int tag, int64_t length);
  absl::StatusOr<std::byte*> BeginNotice(Connection& connection, int tag, int64_t length);
  void EndMessage(Connection& connection);
  static absl::Status CheckLength(const Receive& receive, int64_t length);

  void End(Connection& connection, const absl::Status& why);
  void Lose(Peer& peer, const absl::Status& why);
  void JudgeLosses();
  void Fail(const Peer& peer, const absl::Status& why);

  const int rank_;
  const int64_t unexpected_bytes_max_;
  const std::chrono::milliseconds loss_grace_;
  const std::chrono::milliseconds last_notice_;
  const absl::Duration last_words_;
  Socket epoll_;
  Socket wake_;                           // an eventfd
  std::vector<Peer> peers_;               // by rank
  std::vector<Connection*> connections_;  // by the number that epoll returns
  std::deque<Notice> notices_;            // oldest first
  std::vector<Token> done_;               // completed since the last Poll
  int loss_count_ = 0;                    // peers with a loss that is no error yet
  absl::Status error_;                    // the first one; it stays

  // For Wait, which other threads call. Only the thread that polls and posts writes the flags.
  std::atomic<bool> has_work_ = false;  // Poll or TryReceive returns something without a system call
  std::atomic<bool> has_losses_ = false;
  std::atomic<int> waiting_ = 0;  // threads in Wait
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_TRANSPORT_H_
