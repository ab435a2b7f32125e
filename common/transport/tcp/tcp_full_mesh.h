// One rank's part in ConnectFullMesh (tcp_rendezvous.h): its listening socket, the connections that are being opened,
// and those to the rank that leads.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_FULL_MESH_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_FULL_MESH_H_

#include <poll.h>

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_channel.h"
#include "common/transport/tcp/tcp_frames.h"
#include "common/transport/tcp/tcp_handshake.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tcp_rendezvous.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/watch/stall_report.h"

namespace starring {

class TcpFullMesh {
 public:
  // REQUIRES: the options are valid, and world_size > 1.
  explicit TcpFullMesh(TcpRendezvousOptions options);

  // Called once. An error has been told to the ranks that wait.
  absl::StatusOr<std::vector<TcpTransport::Link>> Connect();

 private:
  using Clock = std::chrono::steady_clock;

  // A connection that is accepted and not proved yet.
  struct Arrival {
    TcpDoorkeeper door;
    Clock::time_point since;
    Clock::time_point deadline;
  };
  // A connection of the mesh that this rank opens.
  struct Dialled {
    int to_rank = 0;
    TcpHello::Purpose purpose = TcpHello::Purpose::kMessages;
    std::string address;  // as the table has it
    std::string numeric_address;
    Clock::time_point deadline;       // of the attempt; without one, when the next begins
    std::optional<PendingDial> dial;  // at most one of these two
    std::optional<TcpDialer> dialer;
    std::string trouble;  // why the last attempt failed; empty: none has
  };
  struct Registration {
    absl::Status status;
    bool is_final = false;  // otherwise trying again may help
  };
  // A rank that has registered, at rank 0; rank 0, elsewhere.
  struct Member {
    std::optional<TcpFrameConnection> connection;
    std::string address;  // where it listens
    bool is_ready = false;
  };
  enum class Phase { kRegister, kMesh, kGo };

  absl::Status Lead();
  absl::Status Follow();
  absl::Status Register();
  Registration RegisterOnce(Socket socket, const std::string& local_address);
  void SayUnproved(const absl::Status& why) const;
  void DialLowerRanks();
  absl::Status CauseOf(const absl::Status& failed);
  absl::Status CheckAddresses() const;

  // `why`, whose text completes a sentence, with its subject.
  static absl::Status About(const std::string& name, const absl::Status& why);
  static int PollMs(Clock::time_point end);
  static pollfd Polled(TcpFrameConnection& connection);

  absl::Status RunUntil(absl::FunctionRef<bool()> done);
  void ReportStall(absl::FunctionRef<std::string()> describe);
  absl::Status Round();
  int PollTimeoutMs() const;
  void Accept();
  bool AcceptOne();
  bool DropArrival();
  static std::string HostOf(Arrival& arrival);
  size_t DueCount() const;
  bool IsArrivalOver(Arrival& arrival, bool is_ready);
  static pollfd PolledDial(Dialled& dialled);
  absl::StatusOr<bool> IsDialledOver(Dialled& dialled, bool is_ready);
  absl::StatusOr<bool> DialAgain(Dialled& dialled, const absl::Status& why);
  std::string DescribeRedials() const;
  absl::Status OnMemberReady(int rank);
  absl::Status OnFrame(int rank, const TcpFrame& frame);

  void Admit(TcpFrameConnection& connection, const TcpHello& hello);
  absl::Status Judge(const TcpHello& hello) const;
  TcpChannel& ChannelOf(int rank, TcpHello::Purpose purpose);
  bool IsMeshComplete() const;
  TcpHello MakeHello(TcpHello::Purpose purpose, int to_rank) const;

  int worker_count() const { return world_size_ - options_.server_count; }
  std::string NameOf(int rank) const;
  std::vector<int> RanksThatAre(absl::FunctionRef<bool(const Member&)> is_so) const;
  std::string DescribeMissing() const;
  void NoteRefusal(const std::string& peer, const absl::Status& why);

  const int rank_;
  const int world_size_;
  TcpRendezvousOptions options_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point deadline_;
  Clock::time_point redial_until_;
  Clock::time_point report_at_ = Clock::time_point::max();  // max(): reported already, or never
  StallReport report_;
  Phase phase_ = Phase::kRegister;
  std::optional<TcpListener> listener_;
  TcpHellosHeard hellos_heard_;
  std::list<Arrival> arrivals_;  // oldest first
  std::list<Dialled> dialled_;
  std::vector<Member> members_;            // by rank
  std::vector<std::string> table_;         // by rank: where it listens; empty until it is known
  std::vector<TcpTransport::Link> links_;  // by rank
  bool may_go_ = false;
  std::string last_refusal_;
  int refusals_said_ = 0;
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_FULL_MESH_H_
