// How the ranks of a job find each other without mpirun, and connect every rank with every other one.
//
//   register   Rank 0 listens at --rendezvous. Every other rank dials it until it answers, proves that it belongs to
//              the job (tcp_handshake.h), and says where it listens itself: at a free port of the address from which
//              it reaches rank 0, which the other ranks then reach too. Options may limit the ports.
//   table      When all ranks have registered, rank 0 sends each the table of addresses.
//   mesh       Every rank dials all ranks below it, twice each: a connection for messages and one for notices. It dials
//              again what was lost, until nine tenths of its join deadline are over.
//   go         A rank that is connected with all others tells rank 0. When all have, rank 0 tells them to begin.
//
// A dedicated star has servers among its ranks, after the workers; errors call them servers.
//
// With --tls all connections are encrypted from the first proof on.
//
// Errors reach all ranks. A rank that is refused learns why, and the rank that refuses it logs the reason. At the
// deadline rank 0 names the missing ranks to the ranks that wait. A rank that cannot reach another one reports this to
// rank 0, which passes it on to the others. A rank whose connection ends before the table is forgotten and may come
// back.
//
// A process that does not prove that it has the job's secret decides nothing. If the process at rank 0's address
// refuses a rank without that proof, or is another program, the rank asks again until the join deadline. It logs this
// once.
//
// Strangers cost little. A connection must prove itself within `hello_deadline` and in kTcpHelloBytesMax bytes a
// message; until then it is no rank. kStrangerConnectionsMax of them are kept at a time, in addition to the connections
// that are due; tcp_full_mesh_arrivals.cc says which.
//
// Cost. 3 (N - 1) connections at rank 0, of which 2 (N - 1) stay, and at most 2 (N - 1) + 1 elsewhere; five round trips
// one after the other, with --tls nine.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_RENDEZVOUS_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/network/port_range.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/tcp/tls_session.h"
#include "common/transport/transport.h"

namespace starring {

struct TcpRendezvousOptions {
  int rank = 0;
  int world_size = 1;      // workers and servers
  int server_count = 0;    // the last ranks
  std::string rendezvous;  // host:port, where rank 0 listens
  // Rank 0 listens here already, instead of at `rendezvous`: for a port that the system has chosen.
  std::optional<TcpListener> listener;
  int bound_fd = -1;     // or a socket that is bound to `rendezvous`, at which rank 0 then listens; -1: none
  PortRange ports = {};  // of the other ranks; see TcpListener::Listen
  std::string run_id;    // of the job; all ranks have the same
  // A key that only processes of the job have (JobSecret::KeyFor). Without one only a loopback address is allowed,
  // unless `insecure`.
  std::string token;
  bool insecure = false;
  // Connections are encrypted if all ranks have one; a rank without it is refused. Needs `token`. Shared with the
  // caller.
  std::shared_ptr<const TlsContext> tls;
  absl::Duration join_deadline = absl::Seconds(60);      // until every rank is connected with every other one
  absl::Duration exchange_deadline = absl::Seconds(60);  // for a host that is silent, within limits.h
  // TcpTransport::Options::unexpected_bytes_max; 0: as the worker's exchanges need it.
  int64_t unexpected_bytes_max = 0;
  absl::Duration hello_deadline = absl::Milliseconds(kHelloDeadlineMs);
  // After this time `say` gets the names of the missing ranks, and later that the job goes on; 0: never.
  absl::Duration stall_report = absl::ZeroDuration();
  // Gets lines for people: each connection that is refused, and a stall. Called by the thread that connects.
  std::function<void(const std::string& line)> say;
};

// InvalidArgument, with the way out, for options with which this rank cannot meet any other: a job can be refused
// before it reads its data. ConnectFullMesh checks them too.
absl::Status CheckRendezvousOptions(const TcpRendezvousOptions& options);

// Meets the other ranks and returns the transport between them. Collective over all ranks. Blocks until then, or until
// the deadline; ranks other than 0 wait two seconds longer, for rank 0's verdict.
//
// InvalidArgument for options that are wrong or differ from rank 0's, with both values, and for another build;
// FailedPrecondition for another run; AlreadyExists if a rank is started twice; Unauthenticated, at the deadline, for
// another secret, as in a star; Unavailable, naming both ends, if a rank is gone or cannot be reached;
// DeadlineExceeded, naming the missing ranks.
absl::StatusOr<std::unique_ptr<Transport>> ConnectFullMesh(TcpRendezvousOptions options);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_RENDEZVOUS_H_
