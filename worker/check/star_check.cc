#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/network/dial.h"
#include "worker/check/host_network.h"
#include "worker/check/topology_check.h"
#include "worker/exchange/star/check_client.h"

namespace starring {
namespace {

using v1::LinkReport;

// With four boards the table is complete even if some workers reach only some of the servers.
constexpr size_t kBoardServersMax = 4;
// How many servers are asked at the same time.
constexpr size_t kThreadsMax = 16;
// A server forgets a worker that it has not heard for some seconds.
constexpr absl::Duration kKeepPause = absl::Seconds(1);
// How long rank 0 stays for workers that have not read the verdict, and between two looks.
constexpr absl::Duration kReadersDeadline = absl::Seconds(3);
constexpr absl::Duration kReadersPause = absl::Milliseconds(10);
// The facts of more servers would make a note too long.
constexpr int kServersInNoteMax = 32;

// The boards of the first servers that this worker reaches, used as one: a note is put on all of them and found on any.
class ServerBoard final : public NoteBoard {
 public:
  ServerBoard(const WorkerOptions& options, std::vector<StarCheckClient*> servers)
      : options_(options), servers_(std::move(servers)) {}

  ~ServerBoard() override {
    if (options_.rank == 0) AwaitReaders();
    // A server would otherwise keep the notes until it forgets this worker, and a second check would find them.
    for (StarCheckClient* server : servers_) server->Leave(SteadyNow() + absl::Seconds(1)).IgnoreError();
  }

  absl::Status Put(int stage, const std::string& text) override {
    // The note is put if one board has it, because Get asks all of them.
    absl::Status status = absl::UnavailableError("no server takes a note");
    for (StarCheckClient* server : servers_) {
      if (server->Put(stage, text, SteadyNow() + kAnswerDeadline).ok()) status = absl::OkStatus();
    }
    return status;
  }

  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage) override {
    absl::Status status = absl::UnavailableError("no server answers");
    for (size_t i = 0; i < servers_.size(); ++i) {
      // A server that has failed is asked again in its turn: it may only have been slow.
      StarCheckClient* const server = servers_[next_++ % servers_.size()];
      auto note = server->Get(rank, stage, SteadyNow() + kAnswerDeadline);
      if (note.ok()) return note;  // the next call asks the next server, so that the load is shared
      status = note.status();
    }
    return status;
  }

  // Tells the servers that this worker is still there, while it does something else.
  void Keep() {
    if (SteadyNow() - kept_ < kKeepPause) return;
    kept_ = SteadyNow();
    for (StarCheckClient* server : servers_) {
      server->Get(0, kCard, SteadyNow() + kAnswerDeadline).IgnoreError();
    }
  }

 private:
  // Rank 0's notes leave with it, and the verdict is one of them. A worker that has read it takes its card with it.
  void AwaitReaders() {
    const absl::Time end = SteadyNow() + kReadersDeadline;
    for (int rank = 1; rank < options_.world_size; ++rank) {
      for (auto card = Get(rank, kCard); card.ok() && card->has_value() && SteadyNow() < end; card = Get(rank, kCard)) {
        absl::SleepFor(kReadersPause);
      }
    }
  }

  const WorkerOptions& options_;
  const std::vector<StarCheckClient*> servers_;
  size_t next_ = 0;
  absl::Time kept_ = absl::InfinitePast();
};

struct Server {
  std::unique_ptr<StarCheckClient> client;  // null: not reachable
  LinkReport link;
  std::optional<v1::ProcessFacts> facts;
};

void Fail(const std::string& error, const std::string& way_out, Server& server) {
  server.link.set_error(error);
  server.link.set_way_out(way_out);
}

void AskServer(int shard, Server& server) {
  const absl::StatusOr<v1::ProcessFacts> facts = server.client->Ask(SteadyNow() + kAnswerDeadline, server.link);
  if (!facts.ok()) {
    const bool silent = absl::IsDeadlineExceeded(facts.status());
    // A refusal by the server says in its message how to mend it.
    Fail(std::string(facts.status().message()),
         silent ? "correct --servers, or start that server again if it is stuck" : "", server);
    return;
  }
  // The facts are kept even if the server is in the wrong place: the table shows it under its real number.
  server.facts = *facts;
  if (facts->number() == shard) return;
  Fail(absl::StrCat("answers as shard ", facts->number()), "give --servers in shard order", server);
}

std::vector<Server> DialServers(const CheckParts& parts, uint64_t worker_id) {
  const std::vector<std::string>& addresses = parts.options->servers;
  const std::vector<InterfaceAddress> interfaces = ListInterfaceAddresses();
  // TCP comes first, because errno tells a refused connection from lost packets, and gRPC reports both as unavailable.
  const std::vector<DialResult> dialled = DialAll(addresses, kDialDeadline);
  std::vector<Server> servers(addresses.size());
  for (size_t shard = 0; shard < servers.size(); ++shard) {
    Server& server = servers[shard];
    server.link.set_means(LinkReport::GRPC);
    server.link.set_peer_role(v1::ProcessFacts::SERVER);
    server.link.set_peer(static_cast<int>(shard));
    server.link.set_address(addresses[shard]);
    server.link.set_interface(InterfaceWith(interfaces, dialled[shard].local_address));
    if (!dialled[shard].error.empty()) {
      Fail(dialled[shard].error, WayOut(dialled[shard].error_number, Contact::kServers), server);
      continue;
    }
    server.client = std::make_unique<StarCheckClient>(StarCheckClient::Options{.address = addresses[shard],
                                                                               .security = parts.options->security,
                                                                               .rank = parts.options->rank,
                                                                               .worker_id = worker_id});
  }
  // The servers are asked in parallel: a job may have many, and each that is stuck takes kAnswerDeadline.
  for (size_t begin = 0; begin < servers.size(); begin += kThreadsMax) {
    std::vector<std::thread> threads;
    for (size_t shard = begin; shard < std::min(servers.size(), begin + kThreadsMax); ++shard) {
      if (servers[shard].client == nullptr) continue;
      threads.emplace_back([&servers, shard] { AskServer(static_cast<int>(shard), servers[shard]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return servers;
}

void FillReport(const std::vector<Server>& servers, v1::ProcessReport* report) {
  report->clear_links();
  report->clear_servers();
  // Every worker learns the same facts of the servers. With many servers only rank 0 reports them: a note has a limit.
  const bool with_facts = report->facts().number() == 0 || static_cast<int>(servers.size()) <= kServersInNoteMax;
  for (const Server& server : servers) {
    *report->add_links() = server.link;
    if (with_facts && server.facts.has_value()) *report->add_servers() = *server.facts;
  }
}

void MeasureBandwidths(double seconds, std::vector<Server>& servers, ServerBoard& board) {
  for (Server& server : servers) {
    if (!server.link.error().empty()) continue;
    const auto rate = server.client->MeasureBandwidth(seconds, SteadyNow() + kAnswerDeadline);
    if (rate.ok()) {
      server.link.set_bytes_per_second(*rate);
    } else {
      Fail(absl::StrCat("small messages pass, large ones do not: ", std::string(rate.status().message())),
           "look for a smaller MTU on the way", server);
    }
    board.Keep();
  }
}

}  // namespace

CheckOutcome CheckStar(const CheckParts& parts, v1::ProcessReport report) {
  const WorkerOptions& options = *parts.options;
  const absl::Time begin = SteadyNow();
  CheckFindings findings = EmptyFindings(parts);
  findings.bandwidth = PlanBandwidth(static_cast<int>(options.servers.size()), options.world_size);
  // The number tells two processes of one rank apart: a server drops the notes of the one before.
  std::vector<Server> servers = DialServers(parts, DrawNonce());
  std::vector<StarCheckClient*> board_servers;
  for (const Server& server : servers) {
    if (server.link.error().empty() && board_servers.size() < kBoardServersMax) {
      board_servers.push_back(server.client.get());
    }
  }
  FillReport(servers, &report);
  // Without a server there is no board, and no way to hear of the other workers.
  if (board_servers.empty()) return ConcludeAlone(parts, std::move(findings), report, AloneError(options.rank));

  ServerBoard board(options, board_servers);
  BoardMeeting meeting({.board = &board,
                        .rank = options.rank,
                        .world_size = options.world_size,
                        .begin = begin,
                        .gather_deadline = findings.gather_deadline});
  const absl::Status status = meeting.PutCard(report);
  if (!status.ok()) return ConcludeAlone(parts, std::move(findings), report, status);
  // One worker tests at a time. While it waits for its turn, its questions to the board keep its notes.
  if (findings.bandwidth.SecondsOf(options.rank) > 0) {
    meeting.AwaitTurn(findings.bandwidth.rank_stride);
    MeasureBandwidths(findings.bandwidth.seconds, servers, board);
  }
  // The card had the links without bandwidths; the report replaces it.
  FillReport(servers, &report);
  return Conclude(parts, std::move(findings), report, meeting);
}

}  // namespace starring
