#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/third_party/hello.grpc.pb.h"
#include "tests/third_party/hello.pb.h"

namespace starring::tests {
namespace {

class HelloService final : public Hello::Service {
  grpc::Status Greet(grpc::ServerContext*, const HelloRequest* request, HelloReply* reply) override {
    reply->set_greeting(absl::StrCat("hello ", request->name()));
    return grpc::Status::OK;
  }
};

TEST(Grpc, UnaryCallOverLoopback) {
  HelloService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const std::unique_ptr<Hello::Stub> stub = Hello::NewStub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
  HelloRequest request;
  request.set_name("star");
  HelloReply reply;
  grpc::ClientContext context;
  const grpc::Status status = stub->Greet(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.greeting(), "hello star");
  server->Shutdown();
}

}  // namespace
}  // namespace starring::tests
