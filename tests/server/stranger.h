// Raw gRPC clients of a server: strangers, and workers that do what ours never do.
#ifndef STARRING_TESTS_SERVER_STRANGER_H_
#define STARRING_TESTS_SERVER_STRANGER_H_

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/job/job_spec.h"
#include "common/network/address.h"
#include "common/wire/exchange_message.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "server/parameter_server.h"

namespace starring {

inline constexpr absl::Duration kPatience = absl::Seconds(20);

inline std::unique_ptr<ParameterServer> StartServer(ParameterServer::Options options = {}) {
  auto server = ParameterServer::Start(std::move(options));
  CHECK_OK(server);
  return *std::move(server);
}

inline std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : channel_(OpenChannel(address)), stub_(v1::ParameterServer::NewStub(channel_)) {}

  v1::ParameterServer::Stub& stub() { return *stub_; }

  v1::GetStatusReply Status() {
    v1::GetStatusReply reply;
    const grpc::Status status = TryStatus(&reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  grpc::Status TryStatus(v1::GetStatusReply* reply) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    return stub_->GetStatus(&context, {}, reply);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;  // shared: gRPC returns it as a shared_ptr
  const std::unique_ptr<v1::ParameterServer::Stub> stub_;
};

// An Exchange stream.
class Stream {
 public:
  explicit Stream(Stranger& stranger) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    stream_ = stranger.stub().Exchange(&context_);
  }
  ~Stream() {
    context_.TryCancel();
    if (stream_ != nullptr) stream_->Finish();
  }
  bool Write(const v1::ExchangeMessage& message) { return stream_->Write(message); }
  bool Read(v1::ExchangeMessage* message) { return stream_->Read(message); }
  // Waits for the server to end the stream, and returns its status.
  grpc::Status End() {
    v1::ExchangeMessage message;
    while (stream_->Read(&message)) {
    }
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeMessage, v1::ExchangeMessage>> stream_;
};

// A connection that sends nothing.
class SilentConnection {
 public:
  explicit SilentConnection(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(ParseHostPort(address)->port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  SilentConnection(const SilentConnection&) = delete;
  SilentConnection& operator=(const SilentConnection&) = delete;
  ~SilentConnection() { close(fd_); }

  void Send(const std::string& data) const {
    EXPECT_EQ(send(fd_, data.data(), data.size(), MSG_NOSIGNAL), static_cast<ssize_t>(data.size()));
  }
  bool IsClosed(absl::Duration patience) const {
    pollfd wait = {.fd = fd_, .events = POLLRDHUP, .revents = 0};
    return poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) == 1;
  }

 private:
  const int fd_;
};

inline v1::JoinRequest RequestOf(const JobSpec& job, uint64_t worker_id) {
  v1::JoinRequest request;
  request.set_wire_version(kWireVersion);
  request.set_rank(job.rank);
  request.set_worker_id(worker_id);
  request.set_shard_count(1);
  request.set_agreement(SerializeAgreement(job));
  request.set_join_deadline_ms(20'000);
  request.set_exchange_deadline_ms(20'000);
  return request;
}

// A Join call that waits in its own thread.
class PendingJoin {
 public:
  PendingJoin(const std::string& address, v1::JoinRequest request)
      : stranger_(address), request_(std::move(request)), thread_([this] {
          context_.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
          status_ = stranger_.stub().Join(&context_, request_, &reply_);
        }) {}
  ~PendingJoin() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Wait() {
    thread_.join();
    return status_;
  }
  uint64_t job_id() const { return reply_.job_id(); }

 private:
  Stranger stranger_;
  const v1::JoinRequest request_;
  grpc::ClientContext context_;
  v1::JoinReply reply_;
  grpc::Status status_;
  std::thread thread_;
};

inline bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + kPatience;
  while (!holds()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

inline bool Joined(const v1::GetStatusReply& status, int rank) {
  return rank < status.workers_size() && status.workers(rank).joined();
}

}  // namespace starring

#endif  // STARRING_TESTS_SERVER_STRANGER_H_
