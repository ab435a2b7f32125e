// A server at an address where workers look for theirs. It records what it hears, and proves itself as the test says.
#ifndef STARRING_TESTS_COMMON_WIRE_PLAYED_SERVER_H_
#define STARRING_TESTS_COMMON_WIRE_PLAYED_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/wire/request_proof.h"
#include "proto/starring/v1/coordinator.grpc.pb.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"

namespace starring {

class PlayedServer {
 public:
  enum class Proof {
    kGenuine,
    kWrong,
    kNone,         // as of a server that was given no secret
    kUnknownCall,  // as of a server of an older build
  };

  PlayedServer(Proof proof, const std::string& key, int shard = 0) : proof_(proof), key_(key), shard_(shard) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&server_service_);
    builder.RegisterService(&coordinator_service_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~PlayedServer() { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  void SetProof(Proof proof) { proof_ = proof; }
  // Every request but challenges, as it came.
  std::string heard() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return heard_;
  }
  int challenge_count() const { return challenge_count_; }

 private:
  class ServerService final : public v1::ParameterServer::Service {
   public:
    explicit ServerService(PlayedServer& played) : played_(played) {}

   private:
    grpc::Status Challenge(grpc::ServerContext* /*context*/, const v1::ChallengeRequest* request,
                           v1::ChallengeReply* reply) override {
      ++played_.challenge_count_;
      const Proof proof = played_.proof_;
      if (proof == Proof::kUnknownCall) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
      if (proof == Proof::kNone) return grpc::Status::OK;
      reply->set_shard(played_.shard_);
      reply->set_nonce(std::string(kProofNonceBytes, 'n'));
      reply->set_code(ServerCode(proof == Proof::kGenuine ? played_.key_ : "another", *request, *reply));
      return grpc::Status::OK;
    }
    grpc::Status Join(grpc::ServerContext* /*context*/, const v1::JoinRequest* request,
                      v1::JoinReply* /*reply*/) override {
      played_.Hear(*request);
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "played");
    }
    grpc::Status GetStatus(grpc::ServerContext* /*context*/, const v1::GetStatusRequest* request,
                           v1::GetStatusReply* /*reply*/) override {
      played_.Hear(*request);
      return grpc::Status::OK;
    }

    PlayedServer& played_;
  };
  class CoordinatorService final : public v1::Coordinator::Service {
   public:
    explicit CoordinatorService(PlayedServer& played) : played_(played) {}

   private:
    grpc::Status Attend(grpc::ServerContext* /*context*/,
                        grpc::ServerReaderWriter<v1::MemberOrder, v1::MemberReport>* stream) override {
      v1::MemberReport report;
      while (stream->Read(&report)) played_.Hear(report);
      return grpc::Status::OK;
    }
    grpc::Status GetRun(grpc::ServerContext* /*context*/, const v1::GetRunRequest* request,
                        v1::GetRunReply* reply) override {
      played_.Hear(*request);
      reply->set_generation(5);
      return grpc::Status::OK;
    }

    PlayedServer& played_;
  };

  template <typename Request>
  void Hear(const Request& request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    absl::StrAppend(&heard_, request.SerializeAsString(), "\n");
  }

  std::atomic<Proof> proof_;
  const std::string key_;
  const int shard_;
  std::atomic<int> challenge_count_ = 0;
  std::mutex mutex_;
  std::string heard_;
  std::string address_;
  ServerService server_service_{*this};
  CoordinatorService coordinator_service_{*this};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_WIRE_PLAYED_SERVER_H_
