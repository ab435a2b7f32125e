#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/steady_time.h"
#include "common/flags/command_line.h"
#include "common/network/dial.h"
#include "common/transport/mpi/mpi_probe.h"
#include "worker/check/host_network.h"
#include "worker/check/peer_link.h"
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

// Notes go through mpirun's own connections, which work even if neither our TCP connections nor MPI's messages do.
class NameBoard final : public NoteBoard {
 public:
  NameBoard(MpiProbe* probe, int rank) : probe_(probe), rank_(rank) {}
  absl::Status Put(CheckStage stage, const std::string& text) override {
    return probe_->Publish(Name(rank_, stage), text);
  }
  absl::StatusOr<std::optional<std::string>> Get(int rank, CheckStage stage) override {
    return probe_->Lookup(Name(rank, stage));
  }

 private:
  static std::string Name(int rank, CheckStage stage) { return absl::StrCat(rank, ":", static_cast<int>(stage)); }

  MpiProbe* const probe_;
  const int rank_;
};

// Notes in rank 0's listener.
class ListenerBoard final : public NoteBoard {
 public:
  // For rank 0.
  explicit ListenerBoard(PeerListener* listener) : listener_(listener) {}
  // For the others.
  ListenerBoard(PeerLink link, int rank) : link_(std::move(link)), rank_(rank) {}

  absl::Status Put(CheckStage stage, const std::string& text) override {
    if (link_.has_value()) return link_->Put(rank_, static_cast<int>(stage), text, SteadyNow() + kAnswerDeadline);
    listener_->Put(rank_, static_cast<int>(stage), text);
    return absl::OkStatus();
  }
  absl::StatusOr<std::optional<std::string>> Get(int rank, CheckStage stage) override {
    if (link_.has_value()) return link_->Get(rank, static_cast<int>(stage), SteadyNow() + kAnswerDeadline);
    return listener_->Get(rank, static_cast<int>(stage));
  }

 private:
  PeerListener* const listener_ = nullptr;
  std::optional<PeerLink> link_;
  const int rank_ = 0;
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
  for (const ProcessFacts::Address& address : peer.addresses()) {
    const bool is_six = IsSix(address);
    if (std::any_of(own.addresses().begin(), own.addresses().end(),
                    [&](const ProcessFacts::Address& mine) { return IsSix(mine) == is_six; })) {
      addresses.push_back(address);
    }
  }
  return addresses;
}

struct Dial {
  LinkReport report;
  std::optional<PeerLink> link;
};

LinkReport LinkTo(int rank, LinkReport::Means means) {
  LinkReport report;
  report.set_means(means);
  report.set_peer_role(ProcessFacts::WORKER);
  report.set_peer(rank);
  return report;
}

class RingChecker {
 public:
  RingChecker(const CheckParts& parts, ProcessReport report)
      : parts_(parts),
        rank_(parts.options->rank),
        world_size_(parts.options->world_size),
        report_(std::move(report)),
        findings_(EmptyFindings(parts, CheckFindings::Topology::kRing)),
        probe_(parts.mpi) {}

  CheckOutcome Run() {
    if (world_size_ == 1) return ConcludeAlone(parts_, std::move(findings_), report_);
    const std::vector<int> targets = RingTargets(rank_, world_size_);
    // Tests by TCP: all pairs in a small ring, only the next rank in a larger one. One more test is by MPI.
    const int tcp_tests = world_size_ <= 4 ? world_size_ - 1 : 1;
    findings_.bandwidth = PlanBandwidth(tcp_tests + 1, world_size_);
    // Listening comes before the card, which tells the port.
    if (const absl::Status status = Listen(); !status.ok()) return GiveUp(status);
    if (const absl::Status status = MakeBoard(); !status.ok()) return GiveUp(status);
    Meeting meeting({.board = board_.get(),
                     .rank = rank_,
                     .world_size = world_size_,
                     .begin = begin_,
                     .gather_deadline = findings_.gather_deadline,
                     // Another rank may be measuring its messages to this one, and MPI makes progress only while this
                     // rank is inside it.
                     .rest = [this](absl::Duration pause) { probe_.Serve(pause); }});
    if (const absl::Status status = meeting.Put(CheckStage::kCard, report_); !status.ok()) return GiveUp(status);
    DialAllTargets(targets, meeting);
    const int stride = findings_.bandwidth.rank_stride;
    // One rank tests at a time, because tests that share a switch or a host would slow each other down.
    if (rank_ % stride == 0) {
      meeting.AwaitTurn(stride, CheckStage::kReport);
      TestBandwidth(tcp_tests);
    }
    for (const Dial& dial : dials_) *report_.add_links() = dial.report;
    if (const absl::Status status = meeting.Put(CheckStage::kReport, report_); !status.ok()) return GiveUp(status);
    const auto try_mpi = [&](ProcessReport& report) {
      if (rank_ % stride != 0) return;
      const std::optional<ProcessReport> before = meeting.AwaitTurn(stride, CheckStage::kMpiReport);
      report.set_mpi_hangs(before.has_value() && before->mpi_hangs());
      // If a rank's MPI hangs, the next rank's would too, and the deadlines would add up.
      if (!report.mpi_hangs()) TestMpi(report);
      // Rank 0's findings join its first report, but rank 1 waits for this note to begin its turn.
      if (rank_ == 0) meeting.Put(CheckStage::kMpiReport, report).IgnoreError();
    };
    return Conclude(parts_, findings_, report_, meeting, try_mpi);
  }

 private:
  // This rank knows nothing of the others. All it can tell is where it is itself.
  CheckOutcome GiveUp(const absl::Status& status) {
    parts_.print(absl::StrCat("not ready: ", std::string(status.message()), ": ", OwnPlace(*parts_.launcher), ": ",
                              kIncludeOneNetwork, "\n"));
    // MPI_Finalize would wait for the other ranks, which this one may not reach.
    return {.exit_code = kExitPeerMissing, .mpi_is_stuck = true};
  }

  absl::Status Listen() {
    ASSIGN_OR_RETURN(listener_, PeerListener::Start());
    ProcessFacts* const facts = report_.mutable_facts();
    interfaces_ = ListInterfaceAddresses();
    for (const InterfaceAddress& one : SelectAddresses(interfaces_, parts_.launcher->mpi_interfaces_included,
                                                       parts_.launcher->mpi_interfaces_excluded)) {
      if (facts->addresses_size() == kAddressesMax) break;
      ProcessFacts::Address* const address = facts->add_addresses();
      address->set_interface(one.interface);
      address->set_address(one.address);
      address->set_prefix_bits(one.prefix_bits);
    }
    facts->set_port(listener_->port());
    facts->set_nonce(listener_->nonce());
    return absl::OkStatus();
  }

  absl::Status MakeBoard() {
    if (parts_.launcher->launcher == Launcher::kOpenMpi) {
      board_ = std::make_unique<NameBoard>(&probe_, rank_);
      return absl::OkStatus();
    }
    // If no address can be reached, Open MPI 4.1 ends the process in this first collective, whatever the error handler.
    // So each host says now where it is.
    if (parts_.launcher->host_count > 1 && parts_.launcher->local_rank == 0) {
      parts_.print(absl::StrCat(OwnPlace(*parts_.launcher), "; if no table follows, ", kIncludeOneNetwork, "\n"));
    }
    ASSIGN_OR_RETURN(
        const std::vector<std::string> cards,
        probe_.Gather(absl::Base64Escape(report_.SerializeAsString()), begin_ + findings_.gather_deadline));
    if (rank_ == 0) {
      board_ = std::make_unique<ListenerBoard>(listener_.get());
      return absl::OkStatus();
    }
    std::string bytes;
    ProcessReport first;
    if (!absl::Base64Unescape(cards[0], &bytes) || !first.ParseFromString(bytes)) {
      return absl::InternalError("what MPI brought from rank 0 is no card");
    }
    std::vector<std::string> places;
    for (const ProcessFacts::Address& address : AddressesOf(report_.facts(), first.facts())) {
      places.push_back(PlaceOf(address, first.facts().port()));
    }
    // The first address that answers is enough; the others are closed with their results.
    std::string error = "it has no address";
    for (DialResult& dialled : DialAll(places, kDialDeadline)) {
      if (!dialled.error.empty()) {
        error = dialled.error;
        continue;
      }
      board_ = std::make_unique<ListenerBoard>(PeerLink(std::move(dialled.socket), first.facts().nonce()), rank_);
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("rank 0 on ", first.facts().host(), " cannot be dialled: ", error));
  }

  // All connections are dialled at the same time, so that any number of addresses that do not answer costs one
  // deadline.
  void DialAllTargets(const std::vector<int>& targets, Meeting& meeting) {
    // Both lists have an element for each of dials_. A place is empty if the target has no address.
    std::vector<std::string> places;
    std::vector<uint64_t> nonces;
    for (const int target : targets) {
      // The cards are awaited one after the other, but to one common end, so that all missing ranks cost one deadline
      // together.
      const std::optional<ProcessReport> card = meeting.Await(target, CheckStage::kCard, meeting.gather_end());
      if (!card.has_value()) continue;  // rank 0 reports it as missing
      for (const ProcessFacts::Address& address : AddressesOf(report_.facts(), card->facts())) {
        places.push_back(PlaceOf(address, card->facts().port()));
        nonces.push_back(card->facts().nonce());
        dials_.push_back({.report = LinkTo(target, LinkReport::TCP), .link = std::nullopt});
        dials_.back().report.set_address(places.back());
        dials_.back().report.set_prefix_bits(address.prefix_bits());
      }
      if (card->facts().addresses().empty() && card->facts().machine() != report_.facts().machine()) {
        dials_.push_back({.report = LinkTo(target, LinkReport::TCP), .link = std::nullopt});
        dials_.back().report.set_error("it has no interface that Open MPI may use");
        dials_.back().report.set_way_out(
            absl::StrCat("bring one up on ", card->facts().host(), ", or correct OMPI_MCA_btl_tcp_if_include"));
        places.emplace_back();
        nonces.push_back(0);
      }
    }
    std::vector<std::string> real;
    std::copy_if(places.begin(), places.end(), std::back_inserter(real),
                 [](const auto& place) { return !place.empty(); });
    std::vector<DialResult> dialled = DialAll(real, kDialDeadline);
    const absl::Time end = SteadyNow() + kRoundTripsDeadline;
    size_t next = 0;
    for (size_t i = 0; i < dials_.size(); ++i) {
      if (places[i].empty()) continue;
      Take(std::move(dialled[next++]), nonces[i], end, dials_[i]);
      probe_.Serve(absl::ZeroDuration());
    }
  }

  void Take(DialResult dialled, uint64_t nonce, absl::Time end, Dial& dial) const {
    dial.report.set_interface(InterfaceWith(interfaces_, dialled.local_address));
    if (!dialled.error.empty()) {
      dial.report.set_error_number(dialled.error_number);
      dial.report.set_error(dialled.error);
      dial.report.set_way_out(WayOut(dialled.error_number, CheckFindings::Topology::kRing));
      return;
    }
    // Another program may accept a connection at this address. Only the answer to a ping, which needs the nonce, shows
    // that it is the rank.
    dial.link.emplace(std::move(dialled.socket), nonce);
    const auto round_trip = dial.link->MeasureRoundTrip(std::min(end, SteadyNow() + kAnswerDeadline));
    if (!round_trip.ok()) {
      // This may be another host: bridges that containers made have the same address everywhere.
      dial.report.set_error(std::string(round_trip.status().message()));
      dial.report.set_way_out(WayOut(0, CheckFindings::Topology::kRing));
      dial.link.reset();
      return;
    }
    dial.report.set_round_trip_us(round_trip->microseconds);
    dial.report.set_clock_ahead_s(round_trip->clock_ahead_s);
  }

  // The connection to that rank with the shortest round trip; null if there is none.
  Dial* BestTo(int rank) {
    Dial* best = nullptr;
    for (Dial& dial : dials_) {
      if (dial.report.peer() != rank || !dial.link.has_value()) continue;
      if (best == nullptr || dial.report.round_trip_us() < best->report.round_trip_us()) best = &dial;
    }
    return best;
  }

  void TestBandwidth(int tests) {
    for (int distance = 1; distance <= tests; ++distance) {
      Dial* const dial = BestTo((rank_ + distance) % world_size_);
      if (dial == nullptr) continue;
      const auto rate = dial->link->MeasureBandwidth(findings_.bandwidth.seconds, SteadyNow() + kAnswerDeadline);
      if (rate.ok()) {
        dial->report.set_bytes_per_second(*rate);
      } else {
        // A ping has passed on this connection before.
        dial->report.set_error("small messages pass, large ones do not");
        dial->report.set_way_out("look for a smaller MTU on the way");
        dial->link.reset();
      }
      probe_.Serve(absl::ZeroDuration());
    }
  }

  // Exchanges messages by MPI with the next rank. Open MPI may end the process.
  void TestMpi(ProcessReport& report) {
    const int peer = (rank_ + 1) % world_size_;
    LinkReport link = LinkTo(peer, LinkReport::MPI);
    const auto measured = probe_.Measure(peer, findings_.bandwidth.seconds, SteadyNow() + kMpiDeadline);
    if (measured.ok()) {
      link.set_round_trip_us(measured->round_trip_us);
      link.set_bytes_per_second(measured->bytes_per_second);
    } else {
      link.set_error(std::string(measured.status().message()));
      // Messages may still be in flight. The ranks whose turn comes later see this in the report and do not test.
      report.set_mpi_hangs(true);
    }
    *report.add_links() = link;
  }

  const CheckParts& parts_;
  const int rank_;
  const int world_size_;
  const absl::Time begin_ = SteadyNow();
  ProcessReport report_;
  CheckFindings findings_;
  MpiProbe probe_;
  std::vector<InterfaceAddress> interfaces_;
  std::unique_ptr<PeerListener> listener_;
  std::unique_ptr<NoteBoard> board_;
  std::vector<Dial> dials_;
};

}  // namespace

CheckOutcome CheckRing(const CheckParts& parts, v1::ProcessReport report) {
  return RingChecker(parts, std::move(report)).Run();
}

}  // namespace starring
