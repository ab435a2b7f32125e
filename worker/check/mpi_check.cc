// The check of ranks over MPI. Before MPI is tried, TCP must connect them: with a wrong interface Open MPI hangs or
// ends the process. So each rank listens, and the others dial it at every address that Open MPI may use. The ranks have
// no connections yet by which to say where they listen. Under mpirun they meet by names (mpi_names.h), which work even
// if no rank reaches another; under srun MPI's own messages must do.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/flags/command_line.h"
#include "common/network/dial.h"
#include "common/network/round_trip.h"
#include "common/transport/check_conversation.h"
#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "common/transport/mpi/mpi_names.h"
#include "worker/check/host_network.h"
#include "worker/check/peer_listener.h"
#include "worker/check/topology_check.h"

namespace starring {
namespace {

using v1::LinkReport;
using v1::ProcessFacts;
using v1::ProcessReport;

// Addresses of one rank that are told to the others and dialled. Further ones belong to bridges and virtual machines.
constexpr int kAddressesMax = 4;
// For all round trips of one rank together, however many peers accept a connection and then are silent.
constexpr absl::Duration kRoundTripsDeadline = absl::Seconds(10);
// Longer than an answer takes: the peer may first wait until its own connections have missed their deadlines.
constexpr absl::Duration kMpiDeadline = absl::Seconds(15);
// The advice if MPI's messages do not arrive and nothing is known of the other hosts.
constexpr char kIncludeOneNetwork[] = "set OMPI_MCA_btl_tcp_if_include to a network that all hosts share";

class NameBoard final : public NoteBoard {
 public:
  explicit NameBoard(const MpiRuntime* mpi) : mpi_(*mpi) {}
  absl::Status Put(int stage, const std::string& text) override {
    // mpirun's names must not have zero bytes.
    return PublishMpiName(mpi_, Name(mpi_.rank(), stage), absl::Base64Escape(text));
  }
  absl::StatusOr<std::optional<std::string>> Get(int rank, int stage) override {
    ASSIGN_OR_RETURN(const std::optional<std::string> escaped, LookUpMpiName(mpi_, Name(rank, stage)));
    std::string text;
    if (!escaped.has_value()) return escaped;
    if (!absl::Base64Unescape(*escaped, &text)) return absl::DataLossError("a name that is no note");
    return std::optional(std::move(text));
  }

 private:
  static std::string Name(int rank, int stage) { return absl::StrCat(rank, ":", stage); }

  const MpiRuntime& mpi_;
};

bool IsSix(const ProcessFacts::Address& address) { return absl::StrContains(address.address(), ':'); }

std::string PlaceOf(const ProcessFacts::Address& address, int port) {
  return IsSix(address) ? absl::StrCat("[", address.address(), "]:", port) : absl::StrCat(address.address(), ":", port);
}

// The addresses at which this rank dials `peer`: loopback if both are on one machine, otherwise every address that Open
// MPI could use, which needs one of the same family on this host.
std::vector<ProcessFacts::Address> AddressesOf(const ProcessFacts& own, const ProcessFacts& peer) {
  if (own.machine() == peer.machine()) {
    ProcessFacts::Address loopback;
    loopback.set_address("127.0.0.1");
    return {loopback};
  }
  std::vector<ProcessFacts::Address> addresses;
  std::ranges::copy_if(peer.addresses(), std::back_inserter(addresses), [&](const ProcessFacts::Address& address) {
    return std::ranges::find(own.addresses(), IsSix(address), IsSix) != own.addresses().end();
  });
  return addresses;
}

class MpiChecker {
 public:
  MpiChecker(const CheckParts& parts, ProcessReport report)
      : parts_(parts),
        rank_(parts.options->rank),
        world_size_(parts.options->world_size),
        report_(std::move(report)),
        findings_(EmptyFindings(parts)),
        transport_(CreateMpiTransport(*parts.mpi, MpiCommunicator::kWorld)),
        pump_(std::make_unique<MessagePump>(transport_.get(), StallOptions())) {}

  ~MpiChecker() {
    transport_.reset();
    // MPI may still write to the buffers, so they stay until the process ends.
    // One of them may be for an answer that came too late.
    if (outcome_.exit_code != kExitOk || !tested_.ok()) static_cast<void>(pump_.release());
  }

  CheckOutcome Run() {
    if (world_size_ == 1) return ConcludeAlone(parts_, std::move(findings_), report_);
    if (const absl::Status status = Reach(); !status.ok()) {
      // This rank knows nothing of the others. All it can tell is where it is itself.
      parts_.print(absl::StrCat("not ready: ", std::string(status.message()), ": ", OwnPlace(*parts_.launcher), ": ",
                                kIncludeOneNetwork, "\n"));
      // MPI_Finalize would wait for the other ranks, which this one may not reach.
      return outcome_ = {.exit_code = kExitPeerMissing, .mpi_is_stuck = true};
    }
    outcome_ = Conclude(parts_, findings_, report_, *meeting_, Round::kBeforeMpi);
    // A rank at which MPI hangs does not come to MPI_Finalize.
    outcome_.mpi_is_stuck = !pump_->failure().ok();
    if (outcome_.exit_code != kExitOk) return outcome_;
    tested_ = TestMpi();
    outcome_ = Conclude(parts_, findings_, report_, *meeting_, Round::kMpi);
    outcome_.mpi_is_stuck = outcome_.exit_code != kExitOk;
    return outcome_;
  }

 private:
  // Listens, meets the others, and dials those that this rank would talk to.
  absl::Status Reach() {
    // Listening comes before the card, which tells the port.
    ASSIGN_OR_RETURN(listener_, PeerListener::Start(parts_.options->port_range));
    ProcessFacts* const facts = report_.mutable_facts();
    for (const InterfaceAddress& one :
         SelectAddresses(ListInterfaceAddresses(), parts_.launcher->mpi_interfaces_included,
                         parts_.launcher->mpi_interfaces_excluded)) {
      if (facts->addresses_size() == kAddressesMax) break;
      ProcessFacts::Address* const address = facts->add_addresses();
      address->set_address(one.address);
      address->set_prefix_bits(one.prefix_bits);
    }
    facts->set_port(listener_->port());
    facts->set_nonce(listener_->nonce());
    ASSIGN_OR_RETURN(const std::vector<ProcessFacts> cards,
                     parts_.launcher->launcher == Launcher::kOpenMpi ? MeetByNames() : MeetByMpi());
    DialAllOf(cards);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ProcessFacts>> MeetByNames() {
    board_ = std::make_unique<NameBoard>(parts_.mpi);
    auto meeting = std::make_unique<BoardMeeting>(BoardMeeting::Options{
        .board = board_.get(), .rank = rank_, .world_size = world_size_, .gather_end = gather_end_});
    RETURN_IF_ERROR(meeting->PutCard(report_));
    std::vector<ProcessFacts> cards;
    for (const int target : RingTargets(rank_, world_size_)) {
      // Rank 0 reports those that are missing.
      const std::optional<ProcessReport> card = meeting->AwaitCard(target);
      if (card.has_value()) cards.push_back(card->facts());
    }
    meeting_ = std::move(meeting);
    return cards;
  }

  absl::StatusOr<std::vector<ProcessFacts>> MeetByMpi() {
    // If no address can be reached, Open MPI 4.1 ends the process at the first message, whatever the error handler. So
    // each host says now where it is.
    if (parts_.launcher->host_count > 1 && parts_.launcher->local_rank == 0) {
      parts_.print(absl::StrCat(OwnPlace(*parts_.launcher), "; if no table follows, ", kIncludeOneNetwork, "\n"));
    }
    const CollectiveOptions options = {.what = "the check", .deadline = findings_.gather_deadline};
    const std::string own = report_.facts().SerializeAsString();
    if (std::ssize(own) > kCheckCardBytesMax) return absl::InternalError("this rank's addresses are too long");
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTextToRoot(*pump_, own, options));
    ProcessReport all;
    for (const std::string& text : texts) all.add_servers()->ParseFromString(text);
    std::string text = all.SerializeAsString();
    RETURN_IF_ERROR(SendTextFromRoot(*pump_, text, options));
    if (!all.ParseFromString(text) || all.servers_size() != world_size_) {
      return absl::InternalError("rank 0 has sent no addresses: start one build everywhere");
    }
    std::vector<ProcessFacts> cards;
    for (const int target : RingTargets(rank_, world_size_)) cards.push_back(all.servers(target));
    meeting_ = std::make_unique<PumpMeeting>(pump_.get());
    return cards;
  }

  void DialAllOf(const std::vector<ProcessFacts>& cards) {
    std::vector<uint64_t> nonces;  // of the peers, by link
    for (const ProcessFacts& card : cards) {
      for (const ProcessFacts::Address& address : AddressesOf(report_.facts(), card)) {
        LinkReport& link = AddLink(LinkReport::TCP, ProcessFacts::WORKER, card.number(), report_);
        link.set_address(PlaceOf(address, card.port()));
        link.set_prefix_bits(address.prefix_bits());
        nonces.push_back(card.nonce());
      }
      if (card.addresses().empty() && card.machine() != report_.facts().machine()) {
        FailLink("it has no interface that Open MPI may use",
                 absl::StrCat("bring one up on ", card.host(), ", or correct OMPI_MCA_btl_tcp_if_include"),
                 AddLink(LinkReport::TCP, ProcessFacts::WORKER, card.number(), report_));
        nonces.push_back(card.nonce());
      }
    }
    const std::vector<DialResult> dialled = DialLinks(Contact::kMpirun, report_);
    const absl::Time end = SteadyNow() + kRoundTripsDeadline;
    for (size_t i = 0; i < dialled.size(); ++i) {
      LinkReport& link = *report_.mutable_links(static_cast<int>(i));
      if (!link.error().empty()) continue;
      // Another program may accept a connection at this address, or another host: bridges that containers made have
      // the same address everywhere.
      const absl::Status pinged =
          PingListener(dialled[i].socket, nonces[i], std::min(end, SteadyNow() + kAnswerDeadline), link);
      if (!pinged.ok()) FailLink(std::string(pinged.message()), "let TCP pass between the hosts", link);
    }
  }

  // Exchanges messages by MPI with the neighbours. Open MPI may end the process. The report has the error of a link.
  absl::Status TestMpi() {
    // The reports must be there before the others' deadline.
    const absl::Time end = gather_end_ + kTestsDeadline - kAnswerDeadline;
    const absl::Status tested = TestLinks(*pump_,
                                          {.means = LinkReport::MPI,
                                           .bandwidth_seconds = findings_.bandwidth.SecondsOf(rank_),
                                           .deadline = end - SteadyNow(),
                                           .own_deadline = kMpiDeadline},
                                          report_);
    const auto has_error = [](const LinkReport& link) { return !link.error().empty(); };
    if (tested.ok() || std::ranges::any_of(report_.links(), has_error)) return tested;
    // An answer to the rank before this one, which measures that link, came too late or not at all.
    FailLink(std::string(tested.message()), "",
             AddLink(LinkReport::MPI, ProcessFacts::WORKER, (rank_ + world_size_ - 1) % world_size_, report_));
    return tested;
  }

  const CheckParts& parts_;
  const int rank_;
  const int world_size_;
  ProcessReport report_;
  CheckFindings findings_;
  const absl::Time gather_end_ = SteadyNow() + findings_.gather_deadline;
  CheckOutcome outcome_;
  absl::Status tested_;  // by MPI
  std::unique_ptr<MpiTransport> transport_;
  std::unique_ptr<MessagePump> pump_;
  std::unique_ptr<PeerListener> listener_;
  std::unique_ptr<NoteBoard> board_;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace

CheckOutcome CheckOverMpi(const CheckParts& parts, v1::ProcessReport report) {
  return MpiChecker(parts, std::move(report)).Run();
}

}  // namespace starring
