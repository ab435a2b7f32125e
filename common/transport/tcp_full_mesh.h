// One rank's part in ConnectFullMesh (tcp_rendezvous.h): its listening socket, the connections that are being opened,
// and those to the rank that leads.
//
// Thread safety: one thread.
#ifndef STARRING_COMMON_TRANSPORT_TCP_FULL_MESH_H_
#define STARRING_COMMON_TRANSPORT_TCP_FULL_MESH_H_

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/stall_report.h"
#include "common/transport/tcp_frames.h"
#include "common/transport/tcp_handshake.h"
#include "common/transport/tcp_listener.h"
#include "common/transport/tcp_rendezvous.h"
#include "common/transport/tcp_transport.h"

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
    Clock::time_point deadline;
  };
  // A connection of the mesh that this rank has dialled.
  struct Dialled {
    TcpDialer dialer;
    int to_rank = 0;
    TcpHello::Purpose purpose = TcpHello::Purpose::kMessages;
    std::string address;
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
  absl::Status RegisterOnce(Socket socket, const std::string& local_address);
  absl::Status DialLowerRanks();
  absl::Status CauseOf(const absl::Status& failed);
  absl::Status CheckAddresses() const;

  absl::Status RunUntil(absl::FunctionRef<bool()> done);
  void ReportStall(absl::FunctionRef<std::string()> describe);
  absl::Status Round();
  int PollTimeoutMs() const;
  void Accept();
  bool AcceptOne();
  void DropOldestArrival();
  size_t DueCount() const;
  bool IsArrivalOver(Arrival& arrival, bool is_ready);
  absl::StatusOr<bool> IsDialledOver(Dialled& dialled, bool is_ready);
  absl::Status OnMemberReady(int rank);
  absl::Status OnFrame(int rank, const TcpFrame& frame);

  void Admit(TcpFrameConnection& connection, const TcpHello& hello);
  absl::Status Judge(const TcpHello& hello) const;
  Socket& SocketOf(int rank, TcpHello::Purpose purpose);
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
  Clock::time_point report_at_ = Clock::time_point::max();  // max(): reported already, or never
  StallReport report_;
  Phase phase_ = Phase::kRegister;
  std::optional<TcpListener> listener_;
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

#endif  // STARRING_COMMON_TRANSPORT_TCP_FULL_MESH_H_
