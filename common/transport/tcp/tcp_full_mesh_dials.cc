// The connections that this rank opens with others: with rank 0 to register, and with all lower ranks for the mesh.
#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/steady_time.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_full_mesh.h"
#include "common/watch/roll_call.h"

namespace starring {
namespace {

using Purpose = TcpHello::Purpose;

constexpr std::chrono::milliseconds kRedial{kTcpRedialMs};
// In the mesh the addresses are known to be those of ranks that live: an attempt that takes longer has lost a packet,
// and the next one is sooner there than the kernel's own repeats.
constexpr std::chrono::milliseconds kMeshDial{1000};
// After a peer that has no proof of the job's secret has refused this rank, or is another program: the job's rank may
// come.
constexpr std::chrono::milliseconds kUnprovedPause{500};
// How long a rank that cannot connect with another looks for rank 0's verdict: a round trip. The others are told that
// much later.
constexpr int kCauseMs = 100;

std::string FirewallText(bool is_silent) { return is_silent ? absl::StrCat(kFirewallCause, kFirewallWayOut) : ""; }

}  // namespace

// Rank 0 may start later than this rank, so a refused connection is no error until the deadline. Nor is a refusal by a
// process that has not proved that it has the job's secret: it may have rank 0's port for a while.
absl::Status TcpFullMesh::Register() {
  std::string last;
  bool has_answered = false;  // anything at that address
  absl::Status refused;       // by what has no proof
  while (Clock::now() < deadline_) {
    // A dial ends for the report, which would otherwise come late if packets to rank 0 are dropped.
    const Clock::time_point until = std::min(deadline_, std::max(report_at_, Clock::now() + kRedial));
    const absl::Duration patience = std::min(absl::FromChrono(until - Clock::now()), absl::Milliseconds(kTcpDialMs));
    DialResult dialled = std::move(DialAll({&options_.rendezvous, 1}, patience).front());
    bool is_refused = false;
    if (dialled.socket.fd() >= 0) {
      const Registration attempt = RegisterOnce(std::move(dialled.socket), dialled.local_address);
      // A rank's refusal is final. A connection that ends without one may have reached the job that ran here before.
      if (attempt.is_final) return attempt.status;
      last = std::string(attempt.status.message());
      has_answered = true;
      is_refused = !absl::IsUnavailable(attempt.status);
      if (is_refused && refused.ok()) SayUnproved(attempt.status);
      if (is_refused) refused = attempt.status;
    } else {
      last = absl::StrCat(NameOf(0), " cannot be reached: ", dialled.error);
      // A dial that is cut short by the deadline is silent, too.
      has_answered = has_answered || dialled.error_number != ETIMEDOUT;
    }
    ReportStall([&] { return last; });
    std::this_thread::sleep_for(is_refused ? kUnprovedPause : kRedial);
  }
  if (!refused.ok()) return refused;
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", rank_, " did not find rank 0 at --rendezvous=", options_.rendezvous, " within ",
                   absl::FormatDuration(options_.join_deadline), ": ", last,
                   has_answered ? ": is rank 0 running there, and may this host reach it?" : FirewallText(true)));
}

TcpFullMesh::Registration TcpFullMesh::RegisterOnce(Socket socket, const std::string& local_address) {
  const bool is_six = local_address.find(':') != std::string::npos;
  listener_.reset();  // of an earlier attempt: the range may have no other port
  absl::StatusOr<TcpListener> listener = TcpListener::Listen(
      is_six ? absl::StrCat("[", local_address, "]:0") : absl::StrCat(local_address, ":0"), options_.ports);
  if (!listener.ok()) return {.status = listener.status(), .is_final = true};
  listener_ = *std::move(listener);
  TcpDialer dialer(std::move(socket), MakeHello(Purpose::kRegister, 0), options_.token, options_.tls.get());
  const Clock::time_point patience =
      std::min(deadline_, Clock::now() + absl::ToChronoNanoseconds(BoundedDeadline(options_.hello_deadline)));
  while (true) {
    const absl::StatusOr<bool> welcome = dialer.Advance();
    if (!welcome.ok()) {
      const bool is_final = !absl::IsUnavailable(welcome.status()) && dialer.may_refuse();
      return {.status = About(NameOf(0), welcome.status()), .is_final = is_final};
    }
    if (*welcome) break;
    if (Clock::now() >= patience)
      return {.status = absl::UnavailableError(absl::StrCat(NameOf(0), " does not answer"))};
    ReportStall([&] { return absl::StrCat(NameOf(0), " does not answer"); });
    pollfd polled = Polled(dialer.connection());
    poll(&polled, 1, PollMs(std::min(patience, report_at_)));
  }
  members_[0] = {.connection = std::move(dialer.connection()), .address = options_.rendezvous};
  return {.status = absl::OkStatus(), .is_final = true};
}

void TcpFullMesh::SayUnproved(const absl::Status& why) const {
  if (options_.say == nullptr) return;
  const absl::Duration left = absl::Ceil(absl::FromChrono(deadline_ - Clock::now()), absl::Seconds(1));
  options_.say(absl::StrCat(std::string(why.message()), "; it has not proved that it has this job's secret, so rank ",
                            rank_, " tries for ", absl::FormatDuration(left), " more"));
}

void TcpFullMesh::DialLowerRanks() {
  // Rank 0 may be known by a name, which would have to be looked up again. An address with an interface
  // (fe80::1%eth0) is no name, and a connection does not tell that.
  const bool has_interface = table_[0].find('%') != std::string::npos;
  const std::string rank_zero = has_interface ? table_[0] : members_[0].connection->peer();
  for (int rank = 0; rank < rank_; ++rank) {
    for (const Purpose purpose : {Purpose::kMessages, Purpose::kNotices}) {
      dialled_.push_back({.to_rank = rank,
                          .purpose = purpose,
                          .address = table_[rank],
                          .numeric_address = rank == 0 ? rank_zero : table_[rank],
                          .deadline = Clock::now()});
    }
  }
}

pollfd TcpFullMesh::PolledDial(Dialled& dialled) {
  if (dialled.dialer.has_value()) return Polled(dialled.dialer->connection());
  return {.fd = dialled.dial.has_value() ? dialled.dial->fd() : -1, .events = POLLOUT, .revents = 0};
}

// A connection of the mesh goes from waiting to dial to being dialled to the handshake, and back to the first after a
// failure. `deadline` is that of the state in which it is.
absl::StatusOr<bool> TcpFullMesh::IsDialledOver(Dialled& dialled, bool is_ready) {
  const Clock::time_point now = Clock::now();
  if (!is_ready && now < dialled.deadline) return false;
  if (!dialled.dialer.has_value() && !dialled.dial.has_value()) {
    dialled.dial.emplace(dialled.numeric_address);
    dialled.deadline = now + kMeshDial;
  }
  if (dialled.dial.has_value()) {
    std::optional<DialResult> result = dialled.dial->Advance();
    if (!result.has_value() && now < dialled.deadline) return false;
    dialled.dial.reset();
    if (!result.has_value() || result->socket.fd() < 0) {
      const std::string error = result.has_value() ? result->error : ErrnoText(ETIMEDOUT);
      const bool is_silent = !result.has_value() || result->error_number == ETIMEDOUT;
      return DialAgain(dialled,
                       absl::UnavailableError(absl::StrCat(
                           ProcessName(rank_, worker_count()), " cannot connect with ",
                           ProcessName(dialled.to_rank, worker_count()), " at ", dialled.address, ": ", error,
                           ": every rank must be able to reach every other one, at any port, or those of --port_range",
                           FirewallText(is_silent))));
    }
    // The hello leaves now: to the other end a connection without one is a stranger's.
    dialled.dialer.emplace(std::move(result->socket), MakeHello(dialled.purpose, dialled.to_rank), options_.token,
                           options_.tls.get());
    dialled.deadline = now + absl::ToChronoNanoseconds(BoundedDeadline(options_.hello_deadline));
  }
  absl::StatusOr<bool> is_welcome = dialled.dialer->Advance();
  if (is_welcome.ok() && !*is_welcome && now >= dialled.deadline) {
    is_welcome = absl::UnavailableError("does not answer");
  }
  if (!is_welcome.ok()) {
    const absl::Status why = About(
        absl::StrCat(ProcessName(dialled.to_rank, worker_count()), " (", dialled.address, ")"), is_welcome.status());
    const bool is_final = !absl::IsUnavailable(why) && dialled.dialer->may_refuse();
    return is_final ? absl::StatusOr<bool>(CauseOf(why)) : DialAgain(dialled, why);
  }
  if (!*is_welcome) return false;
  ChannelOf(dialled.to_rank, dialled.purpose) = dialled.dialer->connection().TakeChannel();
  links_[dialled.to_rank].address = dialled.address;
  return true;
}

// One lost packet, or strangers that fill the other rank's backlog, must not be the end of a job.
absl::StatusOr<bool> TcpFullMesh::DialAgain(Dialled& dialled, const absl::Status& why) {
  dialled.dialer.reset();
  dialled.trouble = std::string(why.message());
  const Clock::time_point now = Clock::now();
  if (now >= redial_until_) return CauseOf(why);
  dialled.deadline = std::min(redial_until_, now + (absl::IsUnavailable(why) ? kRedial : kUnprovedPause));
  return false;
}

// Completes DescribeMissing.
std::string TcpFullMesh::DescribeRedials() const {
  for (const Dialled& dialled : dialled_) {
    if (!dialled.trouble.empty()) return absl::StrCat(": ", dialled.trouble);
  }
  return "";
}

// Rank 0 may have ended the meeting because of another rank, and closed its listener and connections. Its verdict was
// sent before, and says more than that this rank cannot connect.
absl::Status TcpFullMesh::CauseOf(const absl::Status& failed) {
  pollfd polled = Polled(*members_[0].connection);
  if (poll(&polled, 1, kCauseMs) <= 0) return failed;
  const absl::Status verdict = OnMemberReady(0);
  return verdict.ok() ? failed : verdict;
}

}  // namespace starring
