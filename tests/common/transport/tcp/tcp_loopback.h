// Connections on loopback, for the tests of the transport over TCP. Functions that wait give up after half a minute, or
// when the test has had a fatal failure.
#ifndef STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_LOOPBACK_H_
#define STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_LOOPBACK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/network/dial.h"
#include "common/transport/tcp/tcp_channel.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/tcp/tls_session.h"

namespace starring {

// The two ends of one connection. Neither blocks.
struct SocketPair {
  Socket a;
  Socket b;
};
SocketPair ConnectedSockets();

struct ChannelPair {
  TcpChannel a;
  TcpChannel b;
};

// Runs both handshakes to their end; `a` is the side that dialled.
ChannelPair EncryptedChannels(SocketPair pair, const TlsContext& context);

// The transports of all ranks, connected with each other, in this process. `base` has what is equal on all ranks.
// Encrypted if there is `tls`.
std::vector<std::unique_ptr<TcpTransport>> ConnectedRanks(int world_size, const TcpTransport::Options& base = {},
                                                          const TlsContext* tls = nullptr);

// A transport of rank 0, and the bare sockets of the ranks above it, which the test plays itself.
struct BarePeer {
  Socket messages;
  Socket notices;
  std::string name;  // "rank 1 (127.0.0.1:4711)"
};
struct RankAndBarePeers {
  std::unique_ptr<TcpTransport> rank;
  std::vector<BarePeer> peers;  // rank 1 first
};
RankAndBarePeers ConnectBarePeers(int peer_count, const TcpTransport::Options& base = {});

// A message as it travels.
std::string WireMessage(int tag, const std::string& data);
std::string WireGoodbye();

// Sends everything, waiting for the kernel if needed. False if the peer has closed the connection, or if the call gives
// up.
bool SendAll(const Socket& socket, const std::string& bytes);
// Receives until `size` bytes have arrived, the stream ends, or the call gives up.
std::string ReceiveSome(const Socket& socket, size_t size);
// Receives only bytes that have arrived already.
std::string ReceiveNow(const Socket& socket, size_t size);
// Whether the other end closes the connection in order, without a reset, and sends nothing before.
bool EndsInOrder(const Socket& socket);
// Whether all that was sent has arrived at the other end, which need not have read it.
bool AwaitDelivery(const Socket& socket);
// Ends a connection with a reset instead of an orderly end.
void Reset(TcpChannel channel);

// `size` bytes that depend on the seed.
std::vector<std::byte> Pattern(size_t size, uint64_t seed);

// Calls `step` until `done`, or until it gives up. True: done.
bool Until(const std::function<bool()>& done, const std::function<void()>& step);

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_TRANSPORT_TCP_TCP_LOOPBACK_H_
