#include "worker/python/group.h"

#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/transport/collectives.h"
#include "common/transport/message_pump.h"
#include "common/watch/stall_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/transport/tcp/tcp_loopback.h"
#include "tests/worker/python/summing_ranks.h"

namespace starring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr milliseconds kLong = seconds(60);

// Ranks, then servers, each with connections of its own to all others.
class Groups {
 public:
  enum class Hosts { kOne, kSeveral };
  explicit Groups(int worker_count, const Group::Options& options = {}, Hosts hosts = Hosts::kOne)
      : worker_count_(worker_count) {
    const int world_size = worker_count + options.server_count;
    std::vector<Group::Options> all(world_size, options);
    if (hosts == Hosts::kSeveral) all.back().host_id = "another";
    // Ranks alone have the wish for GPU memory.
    for (int server = worker_count; server < world_size; ++server) all[server].gpu.reset();
    const std::vector<absl::Status> statuses = Open(std::move(all), options.server_count);
    for (const absl::Status& status : statuses) EXPECT_EQ(status, absl::OkStatus());
  }
  // Every process with options of its own.
  explicit Groups(std::vector<Group::Options> options) : worker_count_(static_cast<int>(options.size())) {
    statuses_ = Open(std::move(options), 0);
  }
  // In any order, so all at a time.
  ~Groups() {
    for (size_t i = 0; i < groups_.size(); ++i) Close(static_cast<int>(i));
  }

  Group& operator[](int rank) { return *groups_[rank]; }
  const Group& operator[](int rank) const { return *groups_[rank]; }
  void Close(int rank) { groups_[rank] = nullptr; }
  const std::vector<absl::Status>& statuses() const { return statuses_; }

 private:
  std::vector<absl::Status> Open(std::vector<Group::Options> options, int server_count) {
    const int world_size = static_cast<int>(options.size());
    auto transports = ConnectedRanks(
        world_size, {.server_count = server_count, .unexpected_bytes_max = GroupUnexpectedBytesMax(worker_count_)});
    groups_.resize(world_size);
    std::vector<absl::Status> statuses(world_size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = Group::Create(std::move(transports[rank]), options[rank]);
        statuses[rank] = group.status();
        if (group.ok()) groups_[rank] = *std::move(group);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  const int worker_count_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<absl::Status> statuses_;
};

ReductionHead Head(int64_t step, int bucket, int64_t count) { return {.bucket = bucket, .step = step, .count = count}; }

absl::Status Await(Group& group, int64_t ticket, milliseconds patience = kLong) {
  return group.Wait(ticket, patience).value_or(absl::DeadlineExceededError("the test has waited long enough"));
}

// Begins and awaits one sum of a few ones.
absl::Status SumOnes(Group& group, const ReductionHead& head) {
  std::vector<float> ones(head.count, 1.0f);
  const absl::StatusOr<int64_t> ticket = group.Begin(head, reinterpret_cast<std::byte*>(ones.data()));
  return ticket.ok() ? Await(group, *ticket) : ticket.status();
}

struct Set {
  Topology topology = Topology::kStar;
  int worker_count = 1;
  int server_count = 0;
  Groups::Hosts hosts = Groups::Hosts::kOne;
};

class GroupSetTest : public testing::TestWithParam<Set> {};

// One bucket of one step.
struct Bucket {
  ReductionHead head;
  std::vector<std::vector<std::byte>> contributions;
  std::vector<std::byte> sum;
};

Bucket MakeBucket(const Set& set, const ReductionHead& head) {
  Bucket bucket = {.head = head, .contributions = {}, .sum = {}};
  for (int rank = 0; rank < set.worker_count; ++rank) {
    bucket.contributions.push_back(WildElements(head, rank, head.step + 10 * head.bucket));
  }
  bucket.sum = ReferenceSum(set.topology, head, bucket.contributions);
  return bucket;
}

// The buckets change after the first step, as PyTorch's do.
std::vector<std::vector<Bucket>> MakeSteps(const Set& set) {
  std::vector<std::vector<Bucket>> steps;
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{{80'000}, {30'001, 49'999}, {0, 1, 17}}) {
    std::vector<Bucket> buckets;
    for (const int64_t count : counts) {
      buckets.push_back(MakeBucket(set, {.bucket = static_cast<int>(buckets.size()),
                                         .step = static_cast<int64_t>(steps.size()),
                                         .count = count,
                                         .type = steps.size() == 1 ? ElementType::kBfloat16 : ElementType::kFloat32,
                                         .divisor = static_cast<float>(set.worker_count)}));
    }
    steps.push_back(std::move(buckets));
  }
  return steps;
}

void TakePart(Group& group, int rank, const std::vector<std::vector<Bucket>>& steps) {
  for (const std::vector<Bucket>& buckets : steps) {
    std::vector<std::vector<std::byte>> arrays;
    std::vector<int64_t> tickets;
    for (const Bucket& bucket : buckets) arrays.push_back(bucket.contributions[rank]);
    for (size_t i = 0; i < buckets.size(); ++i) {
      const absl::StatusOr<int64_t> ticket = group.Begin(buckets[i].head, arrays[i].data());
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      tickets.push_back(*ticket);
    }
    for (size_t i = 0; i < buckets.size(); ++i) {
      ASSERT_EQ(Await(group, tickets[i]), absl::OkStatus());
      EXPECT_TRUE(arrays[i] == buckets[i].sum) << DescribeReduction(buckets[i].head) << " of rank " << rank;
    }
  }
}

TEST_P(GroupSetTest, EverySumIsTheReferencesOnEveryRank) {
  const Set set = GetParam();
  const std::vector<std::vector<Bucket>> steps = MakeSteps(set);
  Groups groups(set.worker_count, {.topology = set.topology, .server_count = set.server_count}, set.hosts);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < set.worker_count; ++rank) {
    ranks.emplace_back([&, rank] {
      TakePart(groups[rank], rank, steps);
      groups.Close(rank);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (int server = 0; server < set.server_count; ++server) {
    EXPECT_EQ(Await(groups[set.worker_count + server], Group::kServerTicket), absl::OkStatus());
  }
}

std::string NameOf(const testing::TestParamInfo<Set>& set) {
  return std::string(set.param.topology == Topology::kRing ? "Ring" : "Star") + std::to_string(set.param.worker_count) +
         (set.param.server_count > 0 ? "And" + std::to_string(set.param.server_count) : "") +
         (set.param.hosts == Groups::Hosts::kSeveral ? "OnSeveralHosts" : "");
}

constexpr Topology kStar = Topology::kStar, kRing = Topology::kRing;
constexpr auto kSeveral = Groups::Hosts::kSeveral;
INSTANTIATE_TEST_SUITE_P(Sets, GroupSetTest,
                         testing::Values(Set{kStar, 1}, Set{kStar, 2}, Set{kStar, 3}, Set{kStar, 5}, Set{kStar, 8},
                                         Set{kStar, 1, 1}, Set{kStar, 2, 1}, Set{kStar, 3, 2}, Set{kStar, 8, 2},
                                         Set{kStar, 2, 0, kSeveral}, Set{kStar, 5, 0, kSeveral},
                                         Set{kStar, 2, 2, kSeveral}, Set{kStar, 8, 0, kSeveral}, Set{kRing, 1},
                                         Set{kRing, 2}, Set{kRing, 3}, Set{kRing, 5}, Set{kRing, 8},
                                         Set{kRing, 2, 0, kSeveral}, Set{kRing, 5, 0, kSeveral}),
                         NameOf);

TEST(GroupTest, WaitLooksSleepsAndForgets) {
  Groups groups(2);
  std::vector<float> mine(1000, 1.0f);
  const int64_t ticket = *groups[0].Begin(Head(0, 0, 1000), reinterpret_cast<std::byte*>(mine.data()));
  EXPECT_FALSE(groups[0].Wait(ticket, milliseconds(0)).has_value());
  EXPECT_FALSE(groups[0].Wait(ticket, milliseconds(50)).has_value());
  EXPECT_EQ(SumOnes(groups[1], Head(0, 0, 1000)), absl::OkStatus());
  EXPECT_EQ(Await(groups[0], ticket), absl::OkStatus());
  EXPECT_EQ(mine, std::vector<float>(1000, 2.0f));
  for (const int64_t unknown : {ticket, ticket + 1, int64_t{0}, int64_t{-1}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Await(groups[0], unknown))) << unknown;
  }
}

TEST(GroupTest, TooManyTicketsAreRefused) {
  Groups groups(2);
  std::vector<float> values(kReductionsMax, 1.0f);
  for (int64_t i = 0; i < kReductionsMax; ++i) {
    ASSERT_TRUE(groups[0].Begin(Head(i, 0, 1), reinterpret_cast<std::byte*>(&values[i])).ok());
  }
  float more = 1.0f;
  const absl::StatusOr<int64_t> refused = groups[0].Begin(Head(9, 0, 1), reinterpret_cast<std::byte*>(&more));
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  // The other rank finds all of them.
  for (int64_t i = 0; i < kReductionsMax; ++i) ASSERT_EQ(SumOnes(groups[1], Head(i, 0, 1)), absl::OkStatus());
  for (int64_t i = 0; i < kReductionsMax; ++i) ASSERT_EQ(Await(groups[0], i + 1), absl::OkStatus());
  EXPECT_EQ(values, std::vector<float>(kReductionsMax, 2.0f));
}

TEST(GroupTest, DifferentTopologiesAreRefusedOnEveryRank) {
  const Groups groups(std::vector<Group::Options>{{.topology = kStar}, {.topology = kStar}, {.topology = kRing}});
  for (const absl::Status& status : groups.statuses()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 2 opens a ring"), HasSubstr("rank 0 a star")));
  }
}

TEST(GroupTest, AWishForGpuMemoryIsAllRanksOrNones) {
  const Groups groups(std::vector<Group::Options>{{}, {.gpu = Group::Gpu{.ordinal = 0, .bytes = 1}}});
  for (const absl::Status& status : groups.statuses()) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 opens a group for sums in GPU memory, rank 0 one for sums in host memory"));
  }
}

// A rank without a GPU is enough, and then the sums are those of host memory.
TEST(GroupTest, WithoutGpuMemoryTheReasonIsTheSameOnEveryRank) {
  const std::string reason = "rank 0: this libstarring.so was built without nvcc, and so has no kernels for a GPU";
  Groups groups(2, {.gpu = Group::Gpu{.ordinal = 0, .bytes = 1, .image = {}}});
  std::thread other([&] { EXPECT_EQ(SumOnes(groups[1], Head(0, 0, 100)), absl::OkStatus()); });
  EXPECT_EQ(SumOnes(groups[0], Head(0, 0, 100)), absl::OkStatus());
  other.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(groups[rank].adds_on_gpu());
    EXPECT_EQ(groups[rank].gpu_refusal(), reason);
    const absl::Status refused = groups[rank].BeginOnGpu(Head(1, 0, 1), nullptr, nullptr).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(reason));
  }
}

TEST(GroupTest, GpuMemoryIsForRanksOfOneHostWithoutServers) {
  const Group::Gpu gpu = {.ordinal = 0, .bytes = 1};
  const Groups with_server(2, {.server_count = 1, .gpu = gpu});
  EXPECT_EQ(with_server[0].gpu_refusal(), "servers add in host memory");
  const Groups alone(1, {.gpu = gpu});
  EXPECT_EQ(alone[0].gpu_refusal(), "there is one rank");
  const Groups many(kGpuRanksMax + 1, {.gpu = gpu});
  EXPECT_EQ(many[3].gpu_refusal(), "9 ranks are more than the 8 that may share GPU memory");
  const Groups apart(2, {.gpu = gpu}, Groups::Hosts::kSeveral);
  EXPECT_NE(apart[0].gpu_refusal(), "");
  EXPECT_EQ(apart[0].gpu_refusal(), apart[1].gpu_refusal());
}

// Every version of the library sends these numbers first. The rank of another version gets the same sentence.
TEST(GroupTest, AnotherVersionIsRefusedWithBoth) {
  auto transports = ConnectedRanks(2, {.unexpected_bytes_max = GroupUnexpectedBytesMax(2)});
  std::string verdict;
  std::thread other([&] {
    MessagePump pump(transports[1].get(), StallOptions());
    const auto transport = std::move(transports[1]);  // ends before the pump
    const CollectiveOptions join = {.what = "joining", .deadline = absl::Seconds(30), .with_servers = true};
    const std::array<int32_t, 3> agreement = {1000, 0, 0};  // version, a star, no servers
    EXPECT_EQ(GatherToRoot(pump, ControlTag::kAgreement, std::as_bytes(std::span(agreement)), {}, join),
              absl::OkStatus());
    EXPECT_EQ(SendTextFromRoot(pump, verdict, join), absl::OkStatus());
  });
  const absl::Status status = Group::Create(std::move(transports[0]), {}).status();
  other.join();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(std::string(status.message()), verdict);
  EXPECT_THAT(verdict, testing::MatchesRegex("rank 1 has version 1000 of libstarring, rank 0 version [0-9]+: install "
                                             "the same on all hosts"));
}

TEST(GroupTest, RanksThatDisagreeAllLearnBothValues) {
  for (const int server_count : {0, 2}) {
    for (const Topology topology : {kStar, kRing}) {
      if (topology == kRing && server_count > 0) continue;
      Groups groups(3, {.topology = topology, .server_count = server_count});
      std::vector<absl::Status> statuses(3);
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 3; ++rank) {
        ranks.emplace_back([&, rank] { statuses[rank] = SumOnes(groups[rank], Head(12, 3, rank == 2 ? 501 : 500)); });
      }
      for (std::thread& rank : ranks) rank.join();
      for (const absl::Status& status : statuses) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(std::string(status.message()),
                    AllOf(HasSubstr("rank 2 adds 501 elements"), HasSubstr("adds 500 elements in step 12, bucket 3"),
                          AnyOf(HasSubstr("rank 0"), HasSubstr("rank 1"))));
      }
      // The group is of no use any more.
      EXPECT_TRUE(absl::IsInvalidArgument(SumOnes(groups[0], Head(13, 0, 5))));
    }
  }
}

TEST(GroupTest, ARankThatDoesNotComeIsNamedWithinTheDeadline) {
  for (const int server_count : {0, 1}) {
    Groups groups(3, {.server_count = server_count, .exchange_deadline = absl::Seconds(1)});
    const auto start = std::chrono::steady_clock::now();
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.emplace_back([&, i] { statuses[i] = SumOnes(groups[2 * i], Head(7, 2, 100'000)); });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const absl::Status& status : statuses) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("step 7, bucket 2 did not come within 1s"),
                                                       HasSubstr("rank 1 lives but is 1 call behind"),
                                                       HasSubstr("outside the exchange, before the first step")));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
    if (server_count > 0) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(Await(groups[3], Group::kServerTicket)));
    }
    const absl::Status late = SumOnes(groups[1], Head(7, 2, 100'000));
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("gave up"));
  }
}

TEST(GroupTest, AReasonToAbortReachesEveryRankAndServer) {
  Groups groups(3, {.server_count = 1});
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] { statuses[rank] = SumOnes(groups[rank], Head(0, 0, 100)); });
  }
  groups[2].Abort(absl::AbortedError("the loss is not a number"));
  for (std::thread& rank : ranks) rank.join();
  statuses[2] = SumOnes(groups[2], Head(0, 0, 100));
  statuses.push_back(Await(groups[3], Group::kServerTicket));
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the loss is not a number"));
  }
  groups[0].Abort(absl::AbortedError("too late"));
}

TEST(GroupTest, ClosingWithATicketUnderWayBreaksTheGroup) {
  Groups groups(3);
  std::vector<float> mine(1000, 1.0f), others(1000, 1.0f);
  const int64_t ticket = *groups[1].Begin(Head(0, 0, 1000), reinterpret_cast<std::byte*>(others.data()));
  ASSERT_TRUE(groups[0].Begin(Head(0, 0, 1000), reinterpret_cast<std::byte*>(mine.data())).ok());
  groups.Close(0);
  const absl::Status status = Await(groups[1], ticket);
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 0"), HasSubstr("closed the group")));
}

TEST(GroupTest, ARankMayLeaveWhenNothingIsUnderWay) {
  Groups groups(2);
  std::thread other([&] { EXPECT_EQ(SumOnes(groups[1], Head(0, 0, 1000)), absl::OkStatus()); });
  EXPECT_EQ(SumOnes(groups[0], Head(0, 0, 1000)), absl::OkStatus());
  other.join();
  groups.Close(1);
  const absl::Status status = SumOnes(groups[0], Head(1, 0, 1000));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

TEST(GroupTest, AServerThatClosesEarlyIsNamed) {
  Groups groups(2, {.server_count = 1});
  groups.Close(2);
  const absl::Status status = SumOnes(groups[0], Head(0, 0, 1000));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("server 0"));
}

// A process may have switched subnormal numbers off, for the thread that opens the group too.
TEST(GroupTest, SubnormalNumbersAreAdded) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  Groups groups(2);
  _mm_setcsr(before);
  std::vector<float> a(100, 0x1p-140f), b(100, 0x1p-141f);
  const int64_t of_a = *groups[0].Begin(Head(0, 0, 100), reinterpret_cast<std::byte*>(a.data()));
  const int64_t of_b = *groups[1].Begin(Head(0, 0, 100), reinterpret_cast<std::byte*>(b.data()));
  EXPECT_EQ(Await(groups[0], of_a), absl::OkStatus());
  EXPECT_EQ(Await(groups[1], of_b), absl::OkStatus());
  EXPECT_EQ(a, std::vector<float>(100, 0x1.8p-140f));
  EXPECT_EQ(a, b);
}

// Control messages of 3.2 MB, eight pieces of 256 KiB, and the heads of a thousand sums.
TEST(GroupTest, AMemberKeepsLittleThatItDoesNotExpect) { EXPECT_LE(GroupUnexpectedBytesMax(2), 5'500'000); }

// While one rank stays away, the other one says so in a line, and when it goes on.
TEST(GroupTest, AStallIsReported) {
  for (const int server_count : {0, 1}) {
    Mutex mutex;
    std::vector<std::string> lines;
    const auto say = [&](const std::string& line) {
      const MutexLock lock(mutex);
      lines.push_back(line);
    };
    {
      Groups groups(2, {.server_count = server_count, .stall_report = milliseconds(400), .say = say});
      std::thread late([&] {
        std::this_thread::sleep_for(milliseconds(1'500));
        EXPECT_EQ(SumOnes(groups[1], Head(5, 1, 1000)), absl::OkStatus());
      });
      EXPECT_EQ(SumOnes(groups[0], Head(5, 1, 1000)), absl::OkStatus());
      late.join();
    }
    const MutexLock lock(mutex);
    ASSERT_EQ(lines.size(), 2u) << testing::PrintToString(lines);
    EXPECT_THAT(lines[0], AllOf(HasSubstr("step 5, bucket 1"), HasSubstr("rank 1 answers, and has been outside")));
    EXPECT_THAT(lines[1], HasSubstr("the job goes on"));
  }
}

}  // namespace
}  // namespace starring
