// A TCP connection between two ranks as a stream of messages, in both directions. Matching is not done here: the
// receiver says where a message's bytes go when its header has arrived.
//
// Wire. A message is a header (tcp_wire) and `length` bytes. The last header of an orderly stream has the tag
// kGoodbyeTag and no bytes: a peer that ends without it has failed.
//
// Cost. Bytes are sent from the poster's memory and received in the memory that the receiver names. Only the first
// bytes of a message that arrive together with its header, at most 4 KiB, are copied once more, which saves a system
// call for each message. A message whose bytes have arrived costs one call.
//
// Thread safety: one thread at a time.
#ifndef STARRING_COMMON_TRANSPORT_TCP_TCP_STREAM_H_
#define STARRING_COMMON_TRANSPORT_TCP_TCP_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/network/dial.h"
#include "common/transport/tcp/tcp_channel.h"
#include "common/transport/transport.h"

namespace starring {

// The wire format. Only the stream and its tests look inside.
namespace tcp_wire {

inline constexpr uint32_t kMagic = 0x4d525453;  // "STRM"
inline constexpr int32_t kGoodbyeTag = -1;

// As it is in memory, little-endian.
struct MessageHeader {
  uint32_t magic = kMagic;
  int32_t tag = 0;
  uint64_t length = 0;
};
static_assert(sizeof(MessageHeader) == 16);

}  // namespace tcp_wire

// How long the kernel waits at most before it sends again what the network has lost (Linux 6.15 or newer). Without it
// the pause doubles each time: after a network was down for 13 s, it would be tried again 12 s later.
inline constexpr int kTcpResendMsMax = 1000;

class TcpStream {
 public:
  class Receiver {
   public:
    // A message begins. Returns where its bytes go, memory that stays valid until OnMessage or Redirect. An error is
    // Internal, and ends the stream.
    virtual absl::StatusOr<std::byte*> OnHeader(int tag, int64_t length) = 0;
    // All bytes of the message have arrived.
    virtual void OnMessage() = 0;
    // The peer sends nothing more.
    virtual void OnGoodbye() = 0;

   protected:
    ~Receiver() = default;
  };

  // `channel` is connected and does not block. Sets the options of a stream between ranks: no delay, probes of an idle
  // connection, and the loss of a connection after `silence_ms` without an acknowledgement.
  TcpStream(TcpChannel channel, int silence_ms);

  int fd() const { return channel_.fd(); }
  // To hang up (dial.h): nothing else works afterwards.
  const Socket& socket() const { return channel_.socket(); }

  // Queues a message, which Write sends. `data` belongs to the stream until Write returns the token.
  void Push(int tag, std::span<const std::byte> data, Transport::Token token);
  // Messages are queued, or wait in the channel, encrypted, for the kernel.
  bool has_unsent() const { return !outgoing_.empty() || channel_.has_unsent(); }
  size_t unsent_count() const { return outgoing_.size(); }
  // Sends no more, and returns the tokens of what was queued. For a connection that has failed.
  std::vector<Transport::Token> DropUnsent();

  // Sends about `budget` bytes at most, no more than the kernel takes at once, and appends the tokens of messages that
  // it has taken to `sent`. Never blocks. Unavailable if the connection is closed or lost: Read says more.
  absl::Status Write(int64_t budget, std::vector<Transport::Token>& sent);

  // Receives about `budget` bytes at most, no more than have arrived. Never blocks. Unavailable if the peer has closed
  // the connection or the network has lost it; the bytes before that have been received. Internal if the peer sends
  // data that is not a message, or if the receiver refuses a message.
  absl::Status Read(int64_t budget, Receiver& receiver);

  // The message that is arriving goes to `destination` from now on; what has arrived of it is copied there. REQUIRES: a
  // message is arriving.
  void Redirect(std::byte* destination);

  // Sends the last header, if nothing is queued and the kernel takes it, and hangs up. To be called before the
  // destructor: nothing works afterwards.
  void SayGoodbye();

 private:
  struct Outgoing {
    tcp_wire::MessageHeader header;
    std::span<const std::byte> data;
    size_t sent = 0;  // bytes of header and data together
    Transport::Token token;

    size_t size() const { return sizeof(header) + data.size(); }
  };

  void RetireSealed(std::vector<Transport::Token>& sent);
  void Retire(size_t written, std::vector<Transport::Token>& taken);
  absl::Status Parse(std::span<const std::byte> bytes, Receiver& receiver);
  absl::Status BeginMessage(Receiver& receiver);
  void EndMessage(Receiver& receiver);
  absl::Status Closed() const;
  absl::Status WriteError(int error_number) const;

  TcpChannel channel_;
  std::deque<Outgoing> outgoing_;
  // The tokens of messages that wait in the channel, encrypted. They are not sent yet: a process that ends loses them.
  std::vector<Transport::Token> sealed_;

  // The data that is arriving: a header, or the message of a complete header.
  tcp_wire::MessageHeader header_;
  size_t header_bytes_ = 0;
  bool is_over_ = false;  // the last header has arrived
  bool in_message_ = false;
  std::byte* destination_ = nullptr;  // of the whole message
  int64_t missing_ = 0;               // of its bytes
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_TCP_TCP_STREAM_H_
