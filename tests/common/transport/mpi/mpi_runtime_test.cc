// Errors of the MPI library, which this test makes up. This process is the whole job and sends to itself; what several
// ranks do is in mpi_exchange_test.sh and mpi_fault_test.sh.
#include "common/transport/mpi/mpi_runtime.h"

#include <mpi.h>
#include <stdlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/transport/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {
bool improbe_fails = false;
bool mrecv_fails = false;
}  // namespace

// These replace MPI's functions and call the originals through MPI's profiling interface.
extern "C" int MPI_Improbe(int peer, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return improbe_fails ? MPI_ERR_INTERN : PMPI_Improbe(peer, tag, comm, flag, message, status);
}
extern "C" int MPI_Mrecv(void* data, int count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
  // The message is taken in any case: MPI_Finalize would wait for one that was only announced.
  const int code = PMPI_Mrecv(data, count, type, message, status);
  return mrecv_fails ? MPI_ERR_INTERN : code;
}

namespace starring {
namespace {

using ::testing::HasSubstr;

constexpr int kTag = 3;

class MpiTransportTest : public testing::Test, private Transport::Poster {
 protected:
  static void SetUpTestSuite() {
    // Open MPI names its files after process ids, which repeat from sandbox to sandbox.
    char folder[] = "/tmp/starring_mpi.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    setenv("TMPDIR", folder, /*replace=*/1);
    auto runtime = MpiRuntime::Start({});
    CHECK_OK(runtime);
    runtime_ = *std::move(runtime);
  }
  static void TearDownTestSuite() {
    runtime_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void TearDown() override { improbe_fails = mrecv_fails = false; }

  void OnCompletion(uint64_t) override {}
  Transport::Poster* poster() { return this; }

  // Sends one notice to this rank itself.
  void SendNotice() { transport_->PostSend(0, kTag, notice_, {.poster = this, .operation = 1}); }
  // Tries for a while, because a message may take some polls to arrive. Ends at the first error.
  std::optional<Transport::Received> Receive(absl::Status* status) {
    std::vector<Transport::Token> completed;
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
      *status = transport_->Poll(completed);
      if (!status->ok()) return std::nullopt;
      if (auto received = transport_->TryReceive(kTag, buffer_); received.has_value()) return received;
    }
    return std::nullopt;
  }

  static std::string folder_;
  static std::unique_ptr<MpiRuntime> runtime_;
  const std::array<std::byte, 3> notice_ = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 16> buffer_ = {};
  std::unique_ptr<Transport> transport_ = CreateMpiTransport(*runtime_);
};

std::string MpiTransportTest::folder_;
std::unique_ptr<MpiRuntime> MpiTransportTest::runtime_;

TEST_F(MpiTransportTest, TakesANotice) {
  SendNotice();
  absl::Status status;
  const auto received = Receive(&status);
  ASSERT_TRUE(received.has_value()) << status;
  EXPECT_EQ(received->peer, 0);
  EXPECT_EQ(received->bytes, 3);
  EXPECT_EQ(buffer_[2], std::byte{3});
}

TEST_F(MpiTransportTest, TellsTheLengthOfAMessageThatMayBeShorter) {
  int64_t bytes = -1;
  transport_->PostReceive(0, kTag, buffer_, {.poster = poster(), .operation = 2, .bytes = &bytes});
  SendNotice();
  std::vector<Transport::Token> completed;
  for (const absl::Time end = absl::Now() + absl::Seconds(20); completed.size() < 2 && absl::Now() < end;) {
    ASSERT_EQ(transport_->Poll(completed), absl::OkStatus());
  }
  ASSERT_EQ(completed.size(), 2);
  EXPECT_EQ(bytes, 3);
  EXPECT_EQ(buffer_[2], std::byte{3});
}

// The bytes would be read as a notice.
TEST_F(MpiTransportTest, WhatAFailedReceiveLeavesIsNoNotice) {
  SendNotice();
  mrecv_fails = true;
  absl::Status status;
  EXPECT_FALSE(Receive(&status).has_value());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("MPI_Mrecv: "));
}

TEST_F(MpiTransportTest, AnErrorOfTheSearchForNoticesIsReported) {
  improbe_fails = true;
  absl::Status status;
  EXPECT_FALSE(Receive(&status).has_value());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("MPI_Improbe: "));
}

}  // namespace
}  // namespace starring
