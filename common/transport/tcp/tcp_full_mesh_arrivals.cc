// The connections that other processes open with this rank: which of them stay, and how many may be unproved at a time.
//
// A *seat* is a place among the connections that have not proved themselves yet. A rank's hello is its first data
// (tcp_handshake.h), and only a process with the job's secret can make one. So connections with a hello are treated
// differently from the others:
//   - A connection is read when it is accepted. It gets no seat if its data are not a hello, or repeat an earlier
//     hello.
//   - A connection without a hello has a seat until the next one needs it. A rank's hello comes within microseconds of
//     its connection; a rank that loses its seat all the same dials again.
//   - A connection with a hello keeps its seat for kStrangerLifeMinMs at least. Then it may have to go for another
//     connection: the oldest one of the address that has the most seats goes. A recorded hello is good for one seat, so
//     such connections are few.
//
// Cost: a stranger without a hello costs the system calls of one accept, one read and one close.
#include <errno.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/network/address.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_full_mesh.h"

namespace starring {
namespace {

using Purpose = TcpHello::Purpose;

// Without descriptors nothing can be accepted, yet the listener stays readable.
constexpr std::chrono::milliseconds kDescriptorPause{10};
// A round looks at all connections, so that a thousand ranks that dial at once are accepted in few rounds. The number
// is limited, because strangers that dial for ever must not keep connected ranks waiting.
constexpr int kAcceptsPerRound = 64;

}  // namespace

void TcpFullMesh::Accept() {
  for (int i = 0; i < kAcceptsPerRound && AcceptOne(); ++i) {
  }
}

bool TcpFullMesh::AcceptOne() {
  Socket socket = listener_->Accept();
  if (socket.fd() < 0) {
    if (errno != EMFILE && errno != ENFILE) return false;
    // A stranger gives up its descriptor. Without strangers, ranks or other parts of this process have all descriptors.
    if (!DropArrival()) std::this_thread::sleep_for(kDescriptorPause);
    return false;
  }
  const Clock::time_point now = Clock::now();
  Arrival arrival = {.door = TcpDoorkeeper(std::move(socket), options_.token, &hellos_heard_, options_.tls.get()),
                     .since = now,
                     .deadline = now + absl::ToChronoNanoseconds(BoundedDeadline(options_.hello_deadline))};
  if (IsArrivalOver(arrival, true)) return true;
  if (arrivals_.size() >= DueCount() + kStrangerConnectionsMax && !DropArrival()) {
    NoteRefusal(arrival.door.connection().peer(), absl::ResourceExhaustedError("has found no seat"));
    return true;
  }
  arrivals_.push_back(std::move(arrival));
  return true;
}

// Makes room for another connection. False if all arrivals have just said their hello.
bool TcpFullMesh::DropArrival() {
  auto victim = std::find_if(arrivals_.begin(), arrivals_.end(),
                             [](const Arrival& arrival) { return !arrival.door.has_hello(); });
  if (victim == arrivals_.end()) {
    std::map<std::string, int> seats;  // by host
    const Clock::time_point young = Clock::now() - std::chrono::milliseconds(kStrangerLifeMinMs);
    for (auto arrival = arrivals_.begin(); arrival != arrivals_.end() && arrival->since <= young; ++arrival) {
      ++seats[HostOf(*arrival)];
    }
    for (auto arrival = arrivals_.begin(); arrival != arrivals_.end() && arrival->since <= young; ++arrival) {
      if (victim == arrivals_.end() || seats[HostOf(*arrival)] > seats[HostOf(*victim)]) victim = arrival;
    }
    if (victim == arrivals_.end()) return false;
  }
  NoteRefusal(victim->door.connection().peer(), absl::ResourceExhaustedError("was silent for too long"));
  arrivals_.erase(victim);
  return true;
}

std::string TcpFullMesh::HostOf(Arrival& arrival) {
  const std::string& peer = arrival.door.connection().peer();
  return peer.substr(0, peer.rfind(':'));
}

// The connections that ranks above this one have yet to open: two each, and at rank 0 one more. Those that are open do
// not count, so that with strangers there are never more descriptors than CheckRendezvousOptions has asked for.
size_t TcpFullMesh::DueCount() const {
  size_t due = 0;
  for (int rank = rank_ + 1; rank < world_size_; ++rank) {
    if (links_[rank].messages.fd() < 0) ++due;
    if (links_[rank].notices.fd() < 0) ++due;
    if (rank_ == 0 && !members_[rank].connection.has_value()) ++due;
  }
  return due;
}

bool TcpFullMesh::IsArrivalOver(Arrival& arrival, bool is_ready) {
  TcpFrameConnection& connection = arrival.door.connection();
  if (is_ready) {
    const absl::StatusOr<bool> is_proved = arrival.door.Advance();
    if (!is_proved.ok()) {
      NoteRefusal(connection.peer(), is_proved.status());
      return true;
    }
    if (*is_proved) {
      Admit(connection, arrival.door.hello());
      return true;
    }
  }
  if (Clock::now() < arrival.deadline) return false;
  NoteRefusal(connection.peer(),
              absl::DeadlineExceededError(absl::StrCat("has connected and not said which rank it is within ",
                                                       absl::FormatDuration(options_.hello_deadline))));
  return true;
}

void TcpFullMesh::Admit(TcpFrameConnection& connection, const TcpHello& hello) {
  if (const absl::Status refused = Judge(hello); !refused.ok()) {
    connection.Refuse(refused);
    NoteRefusal(connection.peer(), absl::Status(refused.code(), absl::StrCat("as rank ", hello.rank, ": ",
                                                                             std::string(refused.message()))));
    return;
  }
  // A welcome that does not leave at once belongs to a rank that is gone.
  connection.Send(TcpFrameKind::kWelcome, "");
  if (connection.has_unsent()) return;
  if (hello.purpose == Purpose::kRegister) {
    members_[hello.rank] = {.connection = std::move(connection), .address = hello.address};
    return;
  }
  links_[hello.rank].address = connection.peer();
  ChannelOf(hello.rank, hello.purpose) = connection.TakeChannel();
}

// Whether a rank that has proved itself may have the connection for which it asks; the text is for both sides.
absl::Status TcpFullMesh::Judge(const TcpHello& hello) const {
  if (hello.world_size != world_size_ && options_.server_count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("process ", hello.rank, " counts ", hello.world_size, " workers and servers, process ", rank_,
                     " counts ", world_size_,
                     ": start all with the same --world_size, and as many servers as --server_ranks of the workers and "
                     "--shard_count of the servers say"));
  }
  if (hello.world_size != world_size_) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", hello.rank, " has --world_size=", hello.world_size,
                                                   ", rank ", rank_, " has ", world_size_,
                                                   ": start all ranks with the same; if one of them is a server, give "
                                                   "the workers --server_ranks"));
  }
  if (hello.run_id != options_.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", hello.rank, " belongs to run \"", hello.run_id, "\", rank ", rank_, " to run \"",
                     options_.run_id, "\": give both the same --run_id, unless another job uses this rendezvous"));
  }
  if (hello.has_tls != (options_.tls != nullptr)) {
    const bool has_tls = options_.tls != nullptr;
    return absl::InvalidArgumentError(
        absl::StrCat(ProcessName(hello.rank, worker_count()), " was started ", hello.has_tls ? "with" : "without",
                     " --tls, ", ProcessName(rank_, worker_count()), has_tls ? " with it" : " without it",
                     ": give it to all ranks and servers of the job or to none"));
  }
  if (hello.to_rank != rank_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " listens here, and rank ", hello.rank, " looks for rank ", hello.to_rank));
  }
  if (hello.rank <= rank_ || hello.rank >= world_size_) {
    return absl::InvalidArgumentError(absl::StrCat("a rank ", hello.rank, " of ", world_size_, " does not dial rank ",
                                                   rank_, ": ranks are 0 to ", world_size_ - 1,
                                                   ", and the higher one dials"));
  }
  if (hello.purpose != Purpose::kRegister) {
    const TcpTransport::Link& link = links_[hello.rank];
    const bool is_known = hello.purpose == Purpose::kMessages || hello.purpose == Purpose::kNotices;
    const TcpChannel& channel = hello.purpose == Purpose::kMessages ? link.messages : link.notices;
    if (is_known && channel.fd() < 0 && (rank_ != 0 || phase_ != Phase::kRegister)) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", rank_, " expects no connection of rank ", hello.rank, ": is that rank started twice?"));
  }
  if (rank_ != 0) return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " is not rank 0, which registers"));
  if (members_[hello.rank].connection.has_value()) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", hello.rank, " has joined already, from ",
                                                 members_[hello.rank].connection->peer(), ": start each rank once"));
  }
  if (phase_ != Phase::kRegister) return absl::FailedPreconditionError("the job has begun");
  return Annotate(ParseHostPort(hello.address).status(), "the address of this rank");
}

void TcpFullMesh::NoteRefusal(const std::string& peer, const absl::Status& why) {
  last_refusal_ = absl::StrCat(peer, " ", std::string(why.message())).substr(0, kLogLineBytesMax);
  if (options_.say != nullptr && refusals_said_++ < kLogRefusalsMax) {
    options_.say(absl::StrCat("rank ", rank_, " refused a connection: ", last_refusal_));
  }
}

}  // namespace starring
