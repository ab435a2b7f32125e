// The check of workers that dial servers: by TCP, and by a call of the real protocol. They meet at the servers' boards.
#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/nonce.h"
#include "common/base/steady_time.h"
#include "common/network/dial.h"
#include "common/network/round_trip.h"
#include "worker/check/topology_check.h"
#include "worker/exchange/star/check_client.h"

namespace starring {
namespace {

using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

// How many servers are asked at the same time.
constexpr size_t kServersAtOnceMax = 16;
// The facts of more servers would make a note too long.
constexpr size_t kServersInNoteMax = 32;

// By shard; null: not reachable.
using Servers = std::vector<std::unique_ptr<StarCheckClient>>;

// The boards of the first servers that this worker reaches, used as one: a note is put on all of them and found on any.
class ServerBoard final : public NoteBoard {
 public:
  explicit ServerBoard(std::vector<StarCheckClient*> servers) : servers_(std::move(servers)) {}

  // A server forgets a worker that it has not heard for some seconds. To be called more often than that.
  void Keep() {
    if (SteadyNow() - kept_ < absl::Seconds(1)) return;
    kept_ = SteadyNow();
    for (StarCheckClient* server : servers_) server->UseBoard({}, SteadyNow() + kAnswerDeadline).IgnoreError();
  }

  absl::Status Put(int stage, const std::string& text) override {
    v1::CheckRequest request;
    request.set_put_stage(stage);
    request.set_put_text(text);
    // The note is put if one board has it, because Get asks all of them.
    absl::Status status = absl::UnavailableError("no server takes a note");
    for (StarCheckClient* server : servers_) {
      if (server->UseBoard(request, SteadyNow() + kAnswerDeadline).ok()) status = absl::OkStatus();
    }
    return status;
  }

  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage) override {
    v1::CheckRequest request;
    request.set_get_rank(rank);
    request.set_get_stage(stage);
    absl::Status status = absl::UnavailableError("no server answers");
    for (size_t i = 0; i < servers_.size(); ++i) {
      // A server that has failed is asked again in its turn: it may only have been slow. The next call asks the next
      // server, so that the load is shared.
      const auto reply = servers_[next_++ % servers_.size()]->UseBoard(request, SteadyNow() + kAnswerDeadline);
      if (reply.ok()) return reply->found() ? std::optional(reply->text()) : std::nullopt;
      status = reply.status();
    }
    return status;
  }

 private:
  const std::vector<StarCheckClient*> servers_;
  size_t next_ = 0;
  absl::Time kept_ = absl::InfinitePast();
};

// The facts of a server that answers. The link has an error if the server is of no use.
std::optional<ProcessFacts> AskServer(StarCheckClient& server, LinkReport& link) {
  absl::StatusOr<ProcessFacts> facts = server.Ask(SteadyNow() + kAnswerDeadline, link);
  if (!facts.ok()) {
    const bool silent = absl::IsDeadlineExceeded(facts.status());
    // A refusal by the server says in its message how to mend it.
    FailLink(std::string(facts.status().message()),
             silent ? "correct --servers, or start that server again if it is stuck" : "", link);
    return std::nullopt;
  }
  // The facts are kept even if the server is in the wrong place: the table shows it under its real number.
  if (facts->number() != link.peer()) {
    FailLink(absl::StrCat("answers as shard ", facts->number()), "give --servers in shard order", link);
  }
  return *std::move(facts);
}

// The report has a link to each server, in the order of shards, and the facts of those that answer.
Servers DialServers(const WorkerOptions& options, ProcessReport& report) {
  // The number tells two processes of one rank apart: a server drops the notes of the one before.
  const uint64_t worker_id = DrawNonce();
  Servers servers(options.servers.size());
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    AddLink(LinkReport::GRPC, ProcessFacts::SERVER, static_cast<int>(shard), report)
        .set_address(options.servers[shard]);
  }
  // TCP comes first, because errno tells a refused connection from lost packets, and gRPC reports both as unavailable.
  (void)DialLinks(Contact::kServers, report);
  // Every worker learns the same facts of the servers. With many servers only rank 0 reports them: a note has a limit.
  const bool with_facts = options.rank == 0 || servers.size() <= kServersInNoteMax;
  // The servers are asked in parallel: a job may have many, and each that is stuck takes kAnswerDeadline.
  for (size_t begin = 0; begin < servers.size(); begin += kServersAtOnceMax) {
    std::vector<std::future<std::optional<ProcessFacts>>> answers;
    for (size_t shard = begin; shard < std::min(servers.size(), begin + kServersAtOnceMax); ++shard) {
      LinkReport* const link = report.mutable_links(static_cast<int>(shard));
      if (!link->error().empty()) continue;
      servers[shard] = std::make_unique<StarCheckClient>(StarCheckClient::Options{
          .address = link->address(), .security = options.security, .rank = options.rank, .worker_id = worker_id});
      answers.push_back(std::async(std::launch::async, AskServer, std::ref(*servers[shard]), std::ref(*link)));
    }
    for (auto& answer : answers) {
      if (const std::optional<ProcessFacts> facts = answer.get(); with_facts && facts.has_value()) {
        *report.add_servers() = *facts;
      }
    }
  }
  return servers;
}

void MeasureBandwidths(double seconds, Servers& servers, ServerBoard& board, ProcessReport& report) {
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    LinkReport& link = *report.mutable_links(static_cast<int>(shard));
    if (!link.error().empty()) continue;
    SetBandwidth(servers[shard]->MeasureBandwidth(seconds, SteadyNow() + kAnswerDeadline), link).IgnoreError();
    board.Keep();
  }
}

}  // namespace

CheckOutcome CheckStar(const CheckParts& parts, ProcessReport report) {
  const WorkerOptions& options = *parts.options;
  const absl::Time begin = SteadyNow();
  CheckFindings findings = EmptyFindings(parts);
  Servers servers = DialServers(options, report);
  std::vector<StarCheckClient*> board_servers;
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    if (report.links(static_cast<int>(shard)).error().empty()) board_servers.push_back(servers[shard].get());
  }
  // Without a server there is no board, and no way to hear of the other workers.
  if (board_servers.empty()) return ConcludeAlone(parts, std::move(findings), report, AloneError(options.rank));
  board_servers.resize(std::min(board_servers.size(), size_t{NoteBoard::kBoardsMax}));

  ServerBoard board(std::move(board_servers));
  BoardMeeting meeting({.board = &board,
                        .rank = options.rank,
                        .world_size = options.world_size,
                        .gather_end = begin + findings.gather_deadline});
  const absl::Status status = meeting.PutCard(report);
  if (!status.ok()) return ConcludeAlone(parts, std::move(findings), report, status);
  // One worker tests at a time. While it waits for its turn, its questions to the board keep its notes.
  if (findings.bandwidth.SecondsOf(options.rank) > 0) {
    meeting.AwaitTurn(findings.bandwidth.rank_stride);
    MeasureBandwidths(findings.bandwidth.seconds, servers, board, report);
  }
  // The card had the links without bandwidths; the report replaces it.
  return Conclude(parts, std::move(findings), report, meeting);
}

}  // namespace starring
