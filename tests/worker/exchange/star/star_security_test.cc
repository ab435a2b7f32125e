// Which workers may join a star, and the errors of both sides if they are protected differently.
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/security/job_secret.h"
#include "common/wire/challenge.h"
#include "common/wire/request_proof.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/starring/v1/parameter_server.grpc.pb.h"
#include "tests/common/security/site_certificates.h"
#include "tests/common/wire/played_server.h"
#include "tests/worker/exchange/star/star_fixture.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// The keys of a fresh secret.
TransportSecurity WithSecret(bool tls) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/secret");
  unlink(path.c_str());
  CHECK_OK(MakeJobSecret(path));
  auto security = LoadTransportSecurity({.job_secret = path, .tls = tls});
  CHECK_OK(security);
  return *std::move(security);
}

TransportSecurity OfSite(const SiteCertificates& site, const std::string& host) {
  const KeyAndCertificate pair = site.Issue(host);
  TransportSecurity security;
  security.tls = {
      .private_key = pair.private_key, .certificate = pair.certificate, .trusted = site.authority(), .server_name = ""};
  return security;
}

class Server {
 public:
  explicit Server(const TransportSecurity& security, absl::Duration join_deadline = absl::Seconds(20)) {
    auto server = ParameterServer::Start({.listen = "127.0.0.1:0",
                                          .security = security,
                                          .join_deadline = join_deadline,
                                          .log = [this](const std::string& line) {
                                            const std::lock_guard<std::mutex> lock(mutex_);
                                            absl::StrAppend(&log_, line, "\n");
                                          }});
    CHECK_OK(server);
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }
  absl::Status Wait() { return server_->Wait(); }
  std::string log() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return log_;
  }

 private:
  std::mutex mutex_;
  std::string log_;
  std::unique_ptr<ParameterServer> server_;
};

// The status of a worker's Start.
absl::Status Join(const std::string& address, const TransportSecurity& security,
                  absl::Duration join_deadline = absl::Seconds(20)) {
  JobSpec job = MakeJob(0, 1, 1000, 4096);
  job.join_deadline = join_deadline;
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  auto exchange = CreateStarExchange({.addresses = {address}, .security = security});
  CHECK_OK(exchange);
  absl::Status status = (*exchange)->Start(job, parameters);
  if (status.ok()) status = TrainSteps(exchange->get(), job, 1, GradientAt);
  if (status.ok()) status = (*exchange)->Finish();
  return status;
}

// Trains with two workers and one server. Returns the parameters of rank 0.
std::vector<float> Train(const TransportSecurity& server_security, const TransportSecurity& worker_security,
                         SameHost same_host) {
  Server server(server_security);
  std::vector<float> result;
  RunWorkers(2, [&](int rank) {
    const JobSpec job = MakeJob(rank, 2, 150'000, 64 << 10);
    std::vector<float> parameters(job.layout.element_count());
    if (rank == 0) parameters = InitialParameters(job.layout.element_count());
    auto exchange = CreateStarExchange({.addresses = {server.address()},
                                        .lanes = 2,
                                        .run_id = "",
                                        .security = worker_security,
                                        .same_host = same_host});
    CHECK_OK(exchange);
    absl::Status status = (*exchange)->Start(job, parameters);
    if (status.ok()) status = TrainSteps(exchange->get(), job, 3, RoughGradientAt);
    if (status.ok()) status = (*exchange)->Finish();
    EXPECT_TRUE(status.ok()) << status;
    if (rank == 0) result = ParametersOf(**exchange, parameters);
  });
  EXPECT_TRUE(server.Wait().ok());
  return result;
}

TEST(StarSecurityTest, TheBitsAreTheSameInEveryWay) {
  const std::vector<float> expected = ReferenceRun(MakeJob(0, 2, 150'000, 64 << 10), 3, RoughGradientAt);
  const SiteCertificates site;
  const TransportSecurity token = WithSecret(false);
  const TransportSecurity tls = WithSecret(true);
  // A worker's certificate may have any name: only that of a server is checked.
  const TransportSecurity site_server = OfSite(site, "127.0.0.1");
  const TransportSecurity site_worker = OfSite(site, "worker.example.org");
  EXPECT_EQ(Train({}, {}, SameHost::kSocket), expected);
  EXPECT_EQ(Train(token, token, SameHost::kSocket), expected);
  EXPECT_EQ(Train(tls, tls, SameHost::kSocket), expected);
  EXPECT_EQ(Train(tls, tls, SameHost::kSharedMemory), expected);
  EXPECT_EQ(Train(site_server, site_worker, SameHost::kSocket), expected);
}

TEST(StarSecurityTest, AWrongSecretIsRefused) {
  for (const bool tls : {false, true}) {
    Server server(WithSecret(tls), absl::Seconds(2));
    const absl::Status status = Join(server.address(), WithSecret(tls), absl::Seconds(1));
    EXPECT_EQ(status.code(), tls ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(server.address()), HasSubstr("--job_secret")));
    if (tls) continue;
    EXPECT_THAT(Message(server.Wait()), HasSubstr("ended before a request, the last from 127.0.0.1:"));
  }
}

// A process that has taken the server's port gets neither the secret nor a request, and does not end the worker: the
// server may come.
TEST(StarSecurityTest, AThiefOfAServersPortGetsNothing) {
  const TransportSecurity security = WithSecret(false);
  PlayedServer thief(PlayedServer::Proof::kWrong, security.request_key);
  JobSpec job = MakeJob(0, 1, 1000, 4096);
  job.join_deadline = absl::Seconds(20);
  std::vector<float> parameters = InitialParameters(job.layout.element_count());
  std::string said;
  auto exchange = CreateStarExchange(
      {.addresses = {thief.address()}, .security = security, .stall = {.say = [&](const std::string& line) {
                                                               said = line;
                                                               EXPECT_EQ(thief.heard(), "");
                                                               // Now the job's own server is there. It refuses the job,
                                                               // for good.
                                                               thief.SetProof(PlayedServer::Proof::kGenuine);
                                                             }}});
  CHECK_OK(exchange);
  const absl::Status status = (*exchange)->Start(job, parameters);
  EXPECT_THAT(said, AllOf(HasSubstr("does not prove that it has this job's secret"), HasSubstr("trying for")));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(thief.heard(), Not(HasSubstr(security.request_key.substr(0, 8))));
}

TEST(StarSecurityTest, AMissingSecretIsRefusedAndTheServerSaysSo) {
  const TransportSecurity token = WithSecret(false);
  Server server(token, absl::Seconds(1));
  const absl::Status missing = Join(server.address(), {});
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnauthenticated) << missing;
  EXPECT_THAT(Message(missing), HasSubstr("--job_secret"));
  const absl::Status end = server.Wait();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(end), HasSubstr("1 request without the job's secret was refused, the last from ipv4:127.0.0.1:"));
  EXPECT_THAT(server.log(), Not(HasSubstr("rank")));
  EXPECT_THAT(Message(end), Not(HasSubstr("ended before a request")));  // the server has read and refused it

  Server open({});
  const absl::Status unwanted = Join(open.address(), token, absl::Seconds(1));
  EXPECT_EQ(unwanted.code(), absl::StatusCode::kUnauthenticated) << unwanted;
  EXPECT_THAT(Message(unwanted), HasSubstr("was given no secret"));
}

TEST(StarSecurityTest, TlsOnOneSideIsSaid) {
  const TransportSecurity tls = WithSecret(true);
  Server plain({.request_key = tls.request_key, .tls = {}}, absl::Seconds(2));
  const absl::Status at_plain = Join(plain.address(), tls);
  EXPECT_EQ(at_plain.code(), absl::StatusCode::kInvalidArgument) << at_plain;
  EXPECT_THAT(Message(at_plain), HasSubstr("does not speak TLS: start it with --tls"));
  EXPECT_THAT(Message(plain.Wait()), AllOf(HasSubstr("ended before a request, the last from 127.0.0.1:"),
                                           HasSubstr("a worker with --tls does so")));
  EXPECT_THAT(plain.log(), HasSubstr("a worker with --tls does so"));

  Server encrypted(tls, absl::Seconds(2));
  const absl::Status at_encrypted =
      Join(encrypted.address(), {.request_key = tls.request_key, .tls = {}}, absl::Seconds(1));
  EXPECT_EQ(at_encrypted.code(), absl::StatusCode::kUnavailable) << at_encrypted;
  EXPECT_THAT(Message(at_encrypted), HasSubstr("start this worker with --tls"));
  EXPECT_THAT(Message(encrypted.Wait()), AllOf(HasSubstr("ended before a request, the last from 127.0.0.1:"),
                                               HasSubstr("start every worker with --tls")));
}

TEST(StarSecurityTest, TlsNeedsTheTokenToo) {
  const TransportSecurity tls = WithSecret(true);
  Server server(tls);
  TransportSecurity without = tls;
  without.request_key.clear();
  EXPECT_EQ(Join(server.address(), without).code(), absl::StatusCode::kUnauthenticated);
}

TEST(StarSecurityTest, ASitesCertificatesAreChecked) {
  const SiteCertificates site;
  const SiteCertificates other_site;
  const TransportSecurity good = OfSite(site, "127.0.0.1");
  Server server(good);
  // The worker does not trust the server's authority.
  TransportSecurity stranger = OfSite(other_site, "127.0.0.1");
  EXPECT_THAT(Message(Join(server.address(), stranger)), HasSubstr("not signed by this worker's --tls_ca"));
  // The server does not trust the worker's.
  stranger.tls->trusted = site.authority();
  const absl::Status untrusted = Join(server.address(), stranger, absl::Seconds(1));
  EXPECT_EQ(untrusted.code(), absl::StatusCode::kUnavailable) << untrusted;
  EXPECT_THAT(Message(untrusted), HasSubstr("does not trust this worker's certificate"));
  // The server's certificate has another name than the address that the worker dials.
  Server elsewhere(OfSite(site, "10.0.0.1"));
  const absl::Status misnamed = Join(elsewhere.address(), good, absl::Seconds(1));
  EXPECT_EQ(misnamed.code(), absl::StatusCode::kInvalidArgument) << misnamed;
  EXPECT_THAT(Message(misnamed), HasSubstr("another name"));
}

TEST(StarSecurityTest, StatusAsksForAProof) {
  const TransportSecurity token = WithSecret(false);
  Server server(token);
  const auto stub =
      v1::ParameterServer::NewStub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  const auto ask = [&](const RequestSigner& signer) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetStatusRequest request;
    signer.Sign(kGetStatusMethod, &request);
    v1::GetStatusReply reply;
    return stub->GetStatus(&context, request, &reply).error_code();
  };
  EXPECT_EQ(ask(RequestSigner("")), grpc::StatusCode::UNAUTHENTICATED);
  RequestSigner signer(token.request_key);
  grpc::ClientContext context;
  ASSERT_EQ(Challenge(*stub, &context, &signer), absl::OkStatus());
  EXPECT_EQ(ask(signer), grpc::StatusCode::OK);
}

TEST(StarSecurityTest, WithoutASecretOnlyLoopbackIsListenedOn) {
  const auto start = [](const TransportSecurity& security, bool insecure) {
    return ParameterServer::Start({.listen = "0.0.0.0:0", .security = security, .insecure = insecure, .log = nullptr})
        .status();
  };
  const absl::Status refused = start({}, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--job_secret=FILE"), HasSubstr("--insecure")));
  EXPECT_TRUE(start({}, true).ok());
  EXPECT_TRUE(start(WithSecret(false), false).ok());
  // A site's certificate proves that a process belongs to the site, not to the job.
  const SiteCertificates site;
  EXPECT_FALSE(start(OfSite(site, "127.0.0.1"), false).ok());
}

}  // namespace
}  // namespace starring
