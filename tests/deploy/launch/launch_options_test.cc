#include "deploy/launch/launch_options.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/flags/flag_table_checks.h"

namespace starring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<LaunchOptions> Parse(const std::vector<std::string>& words) {
  // Any program that is there.
  std::vector<const char*> argv = {"launch", "--worker_binary=/bin/true", "--server_binary=/bin/true"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return ParseLaunchOptions(static_cast<int>(argv.size()), argv.data());
}

std::string Refusal(const std::vector<std::string>& words) {
  const auto options = Parse(words);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

std::string File(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path) << text;
  return path;
}

TEST(LaunchOptionsTest, EveryFlagIsInTheTableAndInTheHelp) { ExpectWholeTable(LaunchFlags()); }

TEST(LaunchOptionsTest, AWorkersFlagBelongsAfterTheDashes) {
  EXPECT_EQ(Refusal({"--epochs=3"}),
            "unknown flag --epochs: it is a flag of the workers: write it after --, as in launch --workers=2 -- "
            "--epochs=...");
  EXPECT_THAT(Refusal({"--epoch=3"}), HasSubstr("unknown flag --epoch (--help shows all flags)"));
}

TEST(LaunchOptionsTest, AFileHoldsItsFlagsAndThoseOfItsWorkers) {
  const std::string path = File("job.flags", "--workers=3\n--\n--model=mlp\n");
  const auto options = Parse({"--flagfile=" + path, "--", "--epochs=1"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->worker_count, 3);
  EXPECT_THAT(options->worker_flags, ElementsAre("--epochs=1", "--flagfile=" + path));
}

TEST(LaunchOptionsTest, KnowsTheWorkersFlagsInTheirFiles) {
  const std::string path = File("worker.flags", "--checkpoint_dir=/somewhere\n");
  EXPECT_TRUE(Parse({"--restarts=1", "--", "--flagfile=" + path}).ok());
  EXPECT_TRUE(Parse({"--restarts=1", "--", "--flagfile", path}).ok());
  EXPECT_THAT(Refusal({"--restarts=1"}), HasSubstr("--checkpoint_dir"));
  EXPECT_THAT(Refusal({"--restarts=1", "--", "--checkpoint_dir=none"}), HasSubstr("--checkpoint_dir"));
  EXPECT_THAT(Refusal({"--", "--flagfile=" + File("rank.flags", "--rank=1\n")}), HasSubstr("--rank is after --"));
  EXPECT_THAT(Refusal({"--flagfile=" + File("both.flags", "--\n--sync=star\n")}), HasSubstr("--sync is after --"));
  EXPECT_EQ(Parse({"--", "--flagfile=/nowhere"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(LaunchOptionsTest, OnlyAStarOverGrpcOrTcpHasServers) {
  const auto star = Parse({"--sync=star"});
  ASSERT_TRUE(star.ok()) << star.status();
  EXPECT_EQ(star->transport, TransportKind::kGrpc);
  EXPECT_EQ(star->server_count, 1);
  EXPECT_EQ(Parse({"--sync=ring"})->transport, TransportKind::kMpi);
  EXPECT_EQ(Parse({"--sync=mpi"})->transport, TransportKind::kMpi);
  EXPECT_EQ(Parse({"--sync=auto"})->sync, Sync::kLocal);
  EXPECT_EQ(Parse({"--sync=auto", "--workers=2"})->transport, TransportKind::kMpi);
  EXPECT_EQ(Parse({"--sync=auto", "--workers=2", "--transport=tcp"})->transport, TransportKind::kTcp);
  EXPECT_EQ(Parse({"--sync=auto", "--workers=2", "--servers=2"})->transport, TransportKind::kGrpc);
  EXPECT_EQ(Parse({"--sync=local"})->transport, TransportKind::kNone);
  for (const char* const sync : {"--sync=star", "--sync=ring"}) {
    EXPECT_EQ(Parse({sync, "--transport=mpi"})->transport, TransportKind::kMpi);
    EXPECT_EQ(Parse({sync, "--transport=tcp"})->transport, TransportKind::kTcp);
    for (const char* const transport : {"--transport=mpi", "--transport=tcp"}) {
      EXPECT_EQ(Parse({sync, transport})->server_count, 0);
      const std::string job = absl::StrCat(sync, " ", transport);
      if (job != "--sync=star --transport=tcp") {
        EXPECT_THAT(Refusal({sync, transport, "--servers=2"}), HasSubstr(job + " has no servers"));
      }
      EXPECT_THAT(Refusal({sync, transport, "--through_proxy=h:1"}), HasSubstr(job + " has no servers"));
    }
  }
}

// The launcher takes a flag if and only if the table says that the cell may. Workers alone know of shared memory.
TEST(LaunchOptionsTest, EachCellOfTheTableIsAJob) {
  for (const Cell& cell : Cells()) {
    if (cell.same_host != SameHost::kSocket) continue;
    const auto parse = [&](const char* more) {
      std::vector<std::string> words = {absl::StrCat("--sync=", SyncName(cell.sync)), more};
      if (cell.Exchanges()) words.push_back(absl::StrCat("--transport=", TransportName(cell.transport)));
      if (cell.placement == Placement::kServers) words.emplace_back("--servers=1");
      return Parse(words);
    };
    ASSERT_TRUE(parse("--workers=1").ok()) << parse("--workers=1").status();
    EXPECT_STREQ(parse("--workers=1")->cell().name, cell.name);
    EXPECT_TRUE(parse("--check").ok()) << cell.name;
    EXPECT_EQ(parse("--tls").ok(), cell.May(Cell::kSecret)) << cell.name;
    EXPECT_EQ(parse("--elastic").ok(), cell.May(Cell::kElastic)) << cell.name;
    EXPECT_EQ(parse("--through_proxy=h:1").ok(), cell.contact == Contact::kServers) << cell.name;
    EXPECT_EQ(Parse({absl::StrCat("--sync=", SyncName(cell.sync))})->transport == cell.transport,
              FindCell({.sync = cell.sync, .transport = cell.transport, .may = Cell::kUsual}) != nullptr)
        << cell.name;
  }
}

TEST(LaunchOptionsTest, AStarOverTcpHasTheServersThatItIsGiven) {
  EXPECT_EQ(Parse({"--sync=star", "--transport=tcp", "--servers=2"})->server_count, 2);
  EXPECT_THAT(Refusal({"--transport=tcp", "--servers=1", "--through_proxy=h:1"}),
              HasSubstr("has no servers that workers dial"));
  EXPECT_THAT(Refusal({"--", "--server_ranks=1"}), HasSubstr("--server_ranks is after --"));
}

TEST(LaunchOptionsTest, RefusesTransportsThatASyncHasNot) {
  EXPECT_THAT(Refusal({"--sync=ring", "--transport=grpc"}), HasSubstr("only a star has it: choose mpi or tcp"));
  EXPECT_THAT(Refusal({"--sync=mpi", "--transport=tcp"}), HasSubstr("--sync=mpi is MPI's own allreduce"));
  EXPECT_THAT(Refusal({"--sync=mpi", "--transport=grpc"}), HasSubstr("--sync=mpi is MPI's own allreduce"));
  EXPECT_THAT(Refusal({"--sync=local", "--transport=mpi"}), HasSubstr("--sync=local exchanges nothing"));
  EXPECT_THAT(Refusal({"--transport=pigeon"}), HasSubstr("auto, grpc, mpi, tcp"));
  EXPECT_THAT(Refusal({"--", "--transport=mpi"}), HasSubstr("--transport is after --"));
  EXPECT_THAT(Refusal({"--", "--rendezvous=h:1"}), HasSubstr("--rendezvous is after --"));
  EXPECT_THAT(Refusal({"--transport=mpi", "--tls"}),
              HasSubstr("--tls protects connections by gRPC or TCP, and --sync=star --transport=mpi has none"));
  EXPECT_TRUE(Parse({"--transport=tcp", "--tls"}).ok());
  EXPECT_THAT(Refusal({"--transport=tcp", "--tls", "--tls_ca=f"}),
              HasSubstr("flag --tls_ca=f is for connections by gRPC; over TCP --tls takes the certificate in"));
  EXPECT_EQ(Parse({"--transport=tcp", "--job_secret=/nowhere"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(LaunchOptionsTest, ARangeOfPortsIsForJobsThatListen) {
  for (const char* const transport : {"--transport=grpc", "--transport=tcp"}) {
    const auto star = Parse({"--port_range=7000-7100", transport});
    ASSERT_TRUE(star.ok()) << star.status();
    EXPECT_EQ(star->port_range.last, 7100);
  }
  EXPECT_TRUE(Parse({"--port_range=7000-7100", "--transport=mpi", "--check"}).ok());
  EXPECT_THAT(Refusal({"--port_range=7000-7100", "--transport=mpi"}), HasSubstr("MPI chooses its ports itself"));
  EXPECT_THAT(Refusal({"--port_range=7000-7100", "--sync=local"}), HasSubstr("--sync=local has nothing that listens"));
  EXPECT_THAT(Refusal({"--port_range=7100-7000"}), HasSubstr("it must be: first-last"));
  EXPECT_THAT(Refusal({"--", "--port_range=7000-7100"}), HasSubstr("--port_range is after --"));
}

TEST(LaunchOptionsTest, RefusesWhatAnElasticJobHasNot) {
  EXPECT_TRUE(Parse({"--elastic", "--restart_processes=2", "--state_dir=s", "--min_workers=2"}).ok());
  for (const char* const word : {"--restart_processes=2", "--state_dir=s", "--min_workers=2"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("is for an elastic job: give --elastic, too")) << word;
  }
  for (const char* const word :
       {"--sync=ring", "--sync=local", "--transport=tcp", "--transport=mpi", "--through_proxy=h:1", "--check"}) {
    EXPECT_THAT(Refusal({"--elastic", word}),
                HasSubstr("flag --elastic cannot be \"true\": it needs --sync=star --transport=grpc, without "
                          "--through_proxy and --check"));
    EXPECT_THAT(Refusal({"--join=h:1", "--job_secret=s", word}),
                HasSubstr("flag --join cannot be \"h:1\": it needs --sync=star --transport=grpc"));
  }
  EXPECT_THAT(Refusal({"--join=h:1"}), HasSubstr("it needs the job's secret: start the job with --job_secret=FILE"));
  EXPECT_THAT(Refusal({"--join=h:1", "--job_secret=s", "--servers=2"}),
              HasSubstr("the job has its servers: drop --servers"));
  for (const char* const word : {"--elastic", "--state_dir=s", "--min_workers=2"}) {
    EXPECT_THAT(Refusal({"--join=h:1", "--job_secret=s", word}),
                HasSubstr(" is for the command that starts a job; --join adds workers to one: drop it"));
  }
  EXPECT_THAT(Refusal({"--join=nowhere", "--job_secret=s"}), HasSubstr("--join: address \"nowhere\""));
  EXPECT_THAT(Refusal({"--status=nowhere"}), HasSubstr("--status: address \"nowhere\""));
  for (const char* const word : {"--elastic", "--coordinator=h:1"}) {
    EXPECT_THAT(Refusal({"--elastic", "--", word}), HasSubstr("is after --, but the launcher sets it")) << word;
  }
}

TEST(LaunchOptionsTest, RefusesWhatIsBeyondTheLimits) {
  ExpectWholeNumbersEnd(LaunchFlags(), [](const std::string& word) { return Refusal({word}); });
  EXPECT_THAT(Refusal({"--workers=0"}), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(Refusal({"--servers=257"}), HasSubstr("from 0 to 256"));
  EXPECT_THAT(Refusal({"--metrics_port=65536"}), HasSubstr("from -1 to 65535"));
  for (const char* const word : {"--restarts=1001", "--restart_processes=1001"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("to 1000")) << word;
  }
  for (const char* const word : {"--start_deadline_s=3601", "--stop_deadline_s=3601"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("to 3600")) << word;
  }
  EXPECT_THAT(Refusal({"--cores_per_worker=4097"}), HasSubstr("to 4096"));
}

TEST(JoinDeadlineTest, IsTheWorkers) {
  EXPECT_EQ(JoinDeadline({"--epochs=3"}), absl::Seconds(60));
  EXPECT_EQ(JoinDeadline({"--join_deadline_s=7", "--epochs=3"}), absl::Seconds(7));
  EXPECT_EQ(JoinDeadline({"--join_deadline_s=soon"}), absl::Seconds(60));  // the worker refuses it
}

}  // namespace
}  // namespace starring
